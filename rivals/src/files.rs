//! `tokio::fs`: tasks that seek and read in a file in the page cache. Each task has a handle of its own.
//!
//! Goals: the cost of a runtime's own futures on files.
//! Non-goals: files that are not in memory; with `tokio::fs` a thread waits for each such read.

use std::io::SeekFrom;
use std::sync::Arc;

use iomill::{Error, Result};
use iomill_bench::contender::{Cache, Contender, Sample, Slice, TOKIO_FS, Task};
use iomill_bench::pattern;
use iomill_bench::records::{self, Data, RECORD_BYTES, Reader, RecordReads, Skew};
use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncSeekExt};
use tokio::runtime::{Builder, Runtime};

/// Number of tasks that read at the same time.
const IN_FLIGHT: usize = 64;

/// See the head of this file.
#[derive(Debug)]
pub struct TokioFs {
    data: Arc<Data>,
    reads: RecordReads,
}

impl TokioFs {
    /// Reads the plain file of the data.
    pub fn new(data: Arc<Data>) -> TokioFs {
        TokioFs { data, reads: RecordReads { skew: Skew::Uniform, batch: 1 } }
    }
}

impl Contender<RecordReads> for TokioFs {
    fn name(&self) -> &'static str {
        TOKIO_FS
    }

    fn cache(&self) -> Cache {
        Cache::Warm
    }

    fn prepare(&mut self, reads: &RecordReads) -> Result<Option<String>> {
        reads.check()?;
        self.reads = *reads;
        Ok(None)
    }

    fn run(&mut self, slice: &Slice<'_>) -> Result<Sample> {
        // Brings all of the file into the page cache.
        let mut file = std::fs::File::open(self.data.path()).map_err(|e| Error::io("open", self.data.path(), e))?;
        std::io::copy(&mut file, &mut std::io::sink()).map_err(|e| Error::io("read", self.data.path(), e))?;
        records::run(slice, &self.reads, &self.data, || Tasks::new(&self.data))
    }

    fn notes(&self) -> Vec<String> {
        vec![format!(
            "{IN_FLIGHT} tasks on a runtime of one thread, or one for each record of a call if these are fewer"
        )]
    }
}

/// A task's own handle, and the record that it read last.
struct Handle {
    file: File,
    record: [u8; RECORD_BYTES],
}

struct Tasks {
    runtime: Runtime,
    idle: Vec<Handle>,
}

impl Tasks {
    fn new(data: &Data) -> Result<Tasks> {
        let made = Builder::new_current_thread().build();
        let runtime = made.map_err(|e| Error::Machine { what: "a runtime of tokio".into(), why: e.to_string() })?;
        let open = || async {
            let file = File::open(data.path()).await.map_err(|e| Error::io("open", data.path(), e))?;
            Ok(Handle { file, record: [0; RECORD_BYTES] })
        };
        let idle = (0..IN_FLIGHT).map(|_| runtime.block_on(open())).collect::<Result<_>>()?;
        Ok(Tasks { runtime, idle })
    }
}

impl Reader for Tasks {
    fn read<const VERIFY: bool>(&mut self, records: &[u32], data: &Data) -> Result<()> {
        let tasks = self.idle.len().min(records.len());
        let seed = data.seed();
        let spawned: Vec<_> = (0..tasks)
            .filter_map(|first| {
                let own: Vec<u32> = records.iter().copied().skip(first).step_by(tasks).collect();
                let handle = self.idle.pop()?;
                Some(self.runtime.spawn(read_all::<VERIFY>(handle, own, seed)))
            })
            .collect();
        self.runtime.block_on(async {
            for task in spawned {
                let ended = task.await.map_err(|e| Error::Machine { what: "a task".into(), why: e.to_string() })?;
                self.idle.push(ended.map_err(|(offset, why)| wrong(data, offset, &why))?);
            }
            Ok(())
        })
    }
}

/// Reads records one after the other. An error gives the offset and the reason.
async fn read_all<const VERIFY: bool>(
    mut handle: Handle,
    records: Vec<u32>,
    seed: u64,
) -> std::result::Result<Handle, (u64, String)> {
    for record in records {
        let offset = u64::from(record) * RECORD_BYTES as u64;
        let told = |e: std::io::Error| (offset, e.to_string());
        handle.file.seek(SeekFrom::Start(offset)).await.map_err(told)?;
        handle.file.read_exact(&mut handle.record).await.map_err(told)?;
        std::hint::black_box(&handle.record);
        if VERIFY && !pattern::holds(seed, offset, &handle.record) {
            return Err((offset, "is not what was written; write the file anew and run again".to_owned()));
        }
    }
    Ok(handle)
}

fn wrong(data: &Data, offset: u64, why: &str) -> Error {
    Error::Corrupt { path: data.path().to_owned(), why: format!("the record at offset {offset} {why}") }
}

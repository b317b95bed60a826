//! `tokio::fs`: tasks that seek and read in a file in the page cache. Each task has a handle of its own.
//!
//! Goals: the cost of a runtime's own futures on files.
//! Non-goals: files that are not in memory; with `tokio::fs` a thread waits for each such read.
//!
//! The runtime's blocking threads make the system calls. So the state of a slice is that of the whole process: the
//! bytes that drives gave to any of its threads.

use std::io::SeekFrom;
use std::sync::{Arc, Barrier};
use std::time::Duration;

use crate::contender::{Slice, TOKIO_FS};
use crate::pattern;
use crate::records::{self, Data, InMemory, RECORD_BYTES, Reader, RecordReads};
use crate::seen::Seen;
use iomill::{Error, Result};
use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncSeekExt};
use tokio::runtime::{Builder, Runtime};

/// Number of tasks that read at the same time.
const IN_FLIGHT: usize = 64;

/// How long a blocking thread lives without work: longer than other threads are set up and a slice lasts.
const KEPT: Duration = Duration::from_secs(3600);

/// Reads the plain file of the data.
pub fn tokio_fs(data: &Arc<Data>) -> InMemory {
    let note =
        format!("{IN_FLIGHT} tasks on a runtime of one thread, or one for each record of a call if these are fewer");
    let read = |slice: &Slice<'_>, reads: &RecordReads, data: &Data| {
        // Reads all of the file into the page cache.
        let mut file = std::fs::File::open(data.path()).map_err(|e| Error::io("open", data.path(), e))?;
        std::io::copy(&mut file, &mut std::io::sink()).map_err(|e| Error::io("read", data.path(), e))?;
        let mut sample = records::run(slice, reads, data, || Tasks::new(data))?;
        // The measuring thread reads nothing itself.
        sample.seen = sample.seen.map(|seen| Seen { fetched_bytes: sample.fetched_bytes, ..seen });
        Ok(sample)
    };
    InMemory::new(TOKIO_FS, data, read).noting(note)
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
        let made = Builder::new_current_thread().thread_keep_alive(KEPT).build();
        let runtime = made.map_err(|e| Error::Tool { what: "a runtime of tokio".into(), why: e.to_string() })?;
        let open = || async {
            let file = File::open(data.path()).await.map_err(|e| Error::io("open", data.path(), e))?;
            Ok(Handle { file, record: [0; RECORD_BYTES] })
        };
        let mut idle = (0..IN_FLIGHT).map(|_| runtime.block_on(open())).collect::<Result<Vec<_>>>()?;
        start_threads(&runtime)?;
        // Each handle makes its buffer at its first read.
        for handle in &mut idle {
            let read = runtime.block_on(handle.file.read_exact(&mut handle.record));
            read.map_err(|e| Error::io("read", data.path(), e))?;
        }
        Ok(Tasks { runtime, idle })
    }
}

/// Starts as many blocking threads as there are tasks, so that none starts within the slice. Each thread waits until
/// all have started.
fn start_threads(runtime: &Runtime) -> Result<()> {
    let all_are_there = Arc::new(Barrier::new(IN_FLIGHT));
    let waiting: Vec<_> = (0..IN_FLIGHT)
        .map(|_| {
            let all_are_there = Arc::clone(&all_are_there);
            runtime.spawn_blocking(move || _ = all_are_there.wait())
        })
        .collect();
    let failed = |e: tokio::task::JoinError| Error::Tool { what: "a thread of tokio".into(), why: e.to_string() };
    runtime.block_on(async {
        for thread in waiting {
            thread.await.map_err(failed)?;
        }
        Ok(())
    })
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
                let ended = task.await.map_err(|e| Error::Tool { what: "a task".into(), why: e.to_string() })?;
                self.idle.push(ended.map_err(|failed| failed.error(data))?);
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
) -> std::result::Result<Handle, Failed> {
    for record in records {
        let offset = u64::from(record) * RECORD_BYTES as u64;
        let told = |e: std::io::Error| Failed::Read(offset, e);
        handle.file.seek(SeekFrom::Start(offset)).await.map_err(told)?;
        handle.file.read_exact(&mut handle.record).await.map_err(told)?;
        std::hint::black_box(&handle.record);
        if VERIFY && !pattern::holds(seed, offset, &handle.record) {
            return Err(Failed::Wrong(offset));
        }
    }
    Ok(handle)
}

/// The reason for the early end of a task.
enum Failed {
    /// The kernel's error at an offset.
    Read(u64, std::io::Error),
    /// The record at an offset differs from the written bytes.
    Wrong(u64),
}

impl Failed {
    fn error(self, data: &Data) -> Error {
        let path = data.path().to_owned();
        match self {
            Failed::Read(offset, source) => Error::io_at("read", path, offset, source),
            Failed::Wrong(offset) => pattern::wrong(path, "record", offset),
        }
    }
}

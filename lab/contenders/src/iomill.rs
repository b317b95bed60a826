//! iomill itself without its cache: gathers and scatters in batches, inline, by drive threads, and over the null
//! engine; also futures and callbacks.
//!
//! Goals: the calls that a user would write, in a loop. A batch is several times the number of I/Os in flight, so that
//! the drives have work until its end. Non-goals: an array of its own. It opens the target's array for the length of a
//! slice.

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use ::iomill::engine::EngineKind;
use ::iomill::sys::cpu;
use ::iomill::{Array, ArrayOptions, Buffer, Error, File, Result};

use crate::arena::{Arena, SEED};
use crate::asynchronous::{Flyer, Load, Op, Ops};
use crate::contender::{Cache, Contender, IOMILL_DRIVE_THREADS, IOMILL_NULL, Sample, Slice};
use crate::pattern::{self, PAGE_BYTES};
use crate::target::Target;
use crate::task::Task;
use crate::threads::{self, Count, goes_on};
use crate::workload::{Places, Workload};

/// A batch holds this many times the number of I/Os in flight over all drives.
const BATCH_TURNS: u32 = 16;

/// With more threads than this, batches get shorter. Many threads keep the drives busy anyway, and the end of a slice
/// waits for all batches in flight.
const THREADS_OF_LONG_BATCHES: usize = 16;

/// A batch has at most this many bytes of memory. Larger ones do not fit in the CPU's caches.
const BATCH_BYTES_MAX: usize = 8 << 20;

/// See the head of this file.
#[derive(Debug)]
pub struct Iomill {
    name: &'static str,
    drives: Vec<PathBuf>,
    file_name: String,
    target: Target,
    options: ArrayOptions,
    workload: Workload,
    /// Makes the calls if they are not batches.
    flyer: Option<Flyer>,
    /// The number of threads of the last slice.
    threads: usize,
    /// CPUs for the calling threads, used in turn. Empty: threads are not bound.
    cpus: Vec<usize>,
}

impl Iomill {
    /// Uses the measured file of `arena`.
    pub fn new(name: &'static str, arena: &Arena, options: &ArrayOptions) -> Result<Iomill> {
        let options = options.clone().with_tuning(|tuning| tuning.drive_threads(name == IOMILL_DRIVE_THREADS));
        let options = if name == IOMILL_NULL { options.engine(EngineKind::Null) } else { options };
        Iomill::with(name, arena, options)
    }

    fn with(name: &'static str, arena: &Arena, options: ArrayOptions) -> Result<Iomill> {
        // Without a cache only the path to the drives is measured.
        let options = options.cache_bytes(0);
        let (drives, file_name) = (arena.drives().to_owned(), arena.file_name().to_owned());
        Ok(Iomill {
            name,
            drives,
            file_name,
            target: arena.target()?,
            options,
            workload: Workload::RANDOM_READ,
            flyer: None,
            threads: 1,
            cpus: Vec::new(),
        })
    }
}

impl Iomill {
    /// Uses asynchronous calls.
    pub fn flying(flyer: &Flyer, arena: &Arena, options: &ArrayOptions) -> Result<Iomill> {
        let calls = Iomill::with(flyer.name(), arena, options.clone())?;
        Ok(Iomill { flyer: Some(flyer.clone()), ..calls })
    }

    /// Binds each calling thread to one of these CPUs.
    pub fn bound(mut self, cpus: Vec<usize>) -> Iomill {
        self.cpus = cpus;
        self
    }
}

impl Contender for Iomill {
    fn name(&self) -> &'static str {
        self.name
    }

    fn cache(&self) -> Cache {
        Cache::Direct
    }

    fn prepare(&mut self, workload: &Workload) -> Result<Option<String>> {
        workload.check()?;
        self.workload = *workload;
        Ok((self.name == IOMILL_NULL && workload.writes()).then(|| "the null engine does not write".to_owned()))
    }

    fn bytes_in_flight(&self) -> u64 {
        // A batch is bounded.
        self.flyer.as_ref().map_or(0, |flyer| flyer.in_flight() as u64 * u64::from(self.workload.block_bytes))
    }

    fn run(&mut self, slice: &Slice<'_>) -> Result<Sample> {
        self.threads = slice.threads;
        // Pages that other contenders left in the page cache would slow direct I/O down.
        self.target.drop_cached()?;
        let options = self.options.clone().depth(self.workload.depth).read_only(!self.workload.writes());
        let array = options.open_at(&self.drives)?;
        let file = array.open_file(&self.file_name)?;
        let verify = slice.verify && self.name != IOMILL_NULL;
        let sample = match &self.flyer {
            Some(flyer) => self.fly(flyer, &array, &file, slice)?,
            None => threads::run(
                slice,
                |thread| Worker::new(self, &array, &file, thread, slice.threads),
                |worker, stop| worker.work(stop, verify),
            )?,
        };
        file.close()?;
        array.close()?;
        Ok(sample)
    }

    fn notes(&self) -> Vec<String> {
        if let Some(flyer) = &self.flyer {
            return vec![flyer.note()];
        }
        let batch = batch_len(&self.workload, 1, self.threads);
        vec![format!("latency is that of a whole call, a batch of {batch} operations per drive")]
    }
}

impl Iomill {
    fn fly(&self, flyer: &Flyer, array: &Array, file: &File, slice: &Slice<'_>) -> Result<Sample> {
        let (op_bytes, writes) = (self.workload.block_bytes as usize, self.workload.writes());
        let load = Load { array, file, op_bytes, seed: SEED, writes };
        let ops = |lane, lanes| {
            let mut places = Places::new(&self.workload, &[file.len()], lane, lanes)?;
            let draw = move || places.draw().map(|place| Op { offset: place.offset, write: place.write });
            Ok(Box::new(std::iter::from_fn(draw)) as Ops)
        };
        flyer.run(slice, &load, |_| Ok(()), ops, || ())
    }
}

/// Operations per call.
fn batch_len(workload: &Workload, drives: usize, threads: usize) -> usize {
    let turns = (BATCH_TURNS as usize * THREADS_OF_LONG_BATCHES / threads.max(1)).clamp(1, BATCH_TURNS as usize);
    let ops = workload.depth as usize * turns * drives;
    ops.min(BATCH_BYTES_MAX / workload.block_bytes as usize).max(1)
}

struct Worker {
    file: File,
    places: Places,
    offsets: Vec<u64>,
    writes: Vec<u64>,
    buffer: Buffer,
    block_bytes: usize,
}

impl Worker {
    fn new(this: &Iomill, array: &Array, file: &File, thread: usize, threads: usize) -> Result<Worker> {
        if let Some(&cpu) = this.cpus.get(thread % this.cpus.len().max(1)) {
            let failed = |e: std::io::Error| Error::Tool { what: "a measuring thread".into(), why: e.to_string() };
            cpu::bind_current_thread(&[cpu]).map_err(failed)?;
        }
        let block_bytes = this.workload.block_bytes as usize;
        let batch = batch_len(&this.workload, array.stat(file.name())?.drives.len(), threads);
        let mut worker = Worker {
            file: file.clone(),
            places: Places::new(&this.workload, &[file.len()], thread, threads)?,
            offsets: Vec::with_capacity(batch),
            writes: Vec::with_capacity(batch),
            buffer: array.buffer(batch * block_bytes)?,
            block_bytes,
        };
        if this.workload.writes() {
            pattern::fill_to_write(&mut worker.buffer);
        }
        // The first read makes the rings before the clock starts.
        let first = worker.buffer.len().min(block_bytes);
        file.read_at(&mut worker.buffer[..first], 0)?;
        Ok(worker)
    }

    fn work(&mut self, stop: &AtomicBool, verify: bool) -> Result<Count> {
        let mut count = Count::new()?;
        let batch = self.offsets.capacity();
        while goes_on(count.ops, stop) {
            self.offsets.clear();
            self.writes.clear();
            for _ in 0..batch {
                let Some(place) = self.places.draw() else { break };
                if place.write { self.writes.push(place.offset) } else { self.offsets.push(place.offset) }
            }
            let start = Instant::now();
            self.read(verify)?;
            self.write()?;
            count.record(start.elapsed());
            let ops = (self.offsets.len() + self.writes.len()) as u64;
            if ops == 0 {
                break;
            }
            count.ops += ops;
            count.bytes += ops * self.block_bytes as u64;
        }
        Ok(count)
    }

    fn read(&mut self, verify: bool) -> Result<()> {
        let out = &mut self.buffer[..self.offsets.len() * self.block_bytes];
        self.file.read_many(out, &self.offsets, self.block_bytes)?;
        if verify {
            for (&offset, block) in self.offsets.iter().zip(out.chunks(self.block_bytes)) {
                pattern::check_stamps(self.file.name(), SEED, offset, block)?;
            }
        }
        Ok(())
    }

    fn write(&mut self) -> Result<()> {
        if self.writes.is_empty() {
            return Ok(());
        }
        let bytes = &mut self.buffer[..self.writes.len() * self.block_bytes];
        for (&offset, block) in self.writes.iter().zip(bytes.chunks_mut(self.block_bytes)) {
            for (page, bytes) in (offset / PAGE_BYTES as u64..).zip(block.chunks_mut(PAGE_BYTES)) {
                bytes[..8].copy_from_slice(&pattern::stamp(SEED, page).to_le_bytes());
            }
        }
        self.file.write_many(bytes, &self.writes, self.block_bytes)
    }
}

//! Reads of one plain file, one at a time.
//!
//! Rules:
//! - Cold: no contender has the file mapped, and it is dropped from the page cache before the slice. No bytes are read
//!   twice.
//! - Warm: all of the file is in the page cache, and contenders that map it have its pages mapped too.

use std::fmt;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use iomill::engine::mmap::{MappedParts, MmapEngine};
use iomill::engine::{Completion, Engine, EngineConfig, FileRef, IoRequest, Memory, Op};
use iomill::sys::fs::Handle;
use iomill::{Error, Result};
use rustix::fs::Advice;

use crate::arena::SEED;
use crate::contender::{Cache, Contender, MMAP_ENGINE, MMAP_ENGINE_AROUND, PREAD, PROCESS_VM_READV, Sample, Slice};
use crate::flat::FlatFile;
use crate::memory::Region;
use crate::pattern::{self, Rng, mix};
use crate::slots::Timer;
use crate::target::{Part, Target, advise};
use crate::task::Task;
use crate::threads::{self, Count, goes_on};
use crate::workload::{Order, shuffled};
use iomill_cli::human;

/// Reads of any length, in one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlainReads {
    /// The order of the reads.
    pub order: Order,
    /// Bytes per read.
    pub op_bytes: u32,
}

impl fmt::Display for PlainReads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let order = match self.order {
            Order::Random => "random",
            Order::Sequential => "sequential",
        };
        write!(f, "{order}-read-{}", human::size(self.op_bytes.into()).replace(' ', ""))
    }
}

impl Task for PlainReads {
    fn check(&self) -> Result<()> {
        if !(1..=16 << 20).contains(&self.op_bytes) {
            return Err(Error::invalid(format!("reads of {} bytes", self.op_bytes), "give 1 byte to 16 MiB"));
        }
        Ok(())
    }
}

/// How bytes are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// By the engine, from its mapping.
    Mapped,
    /// By the engine's system calls, as while a part cannot be mapped.
    Around,
    /// `pread` by hand.
    Pread,
    /// By the kernel, from a mapping. A page that fails is then an error of the call.
    VmRead,
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Way::Mapped => MMAP_ENGINE,
            Way::Around => MMAP_ENGINE_AROUND,
            Way::Pread => PREAD,
            Way::VmRead => PROCESS_VM_READV,
        }
    }
}

/// A contender that reads in one way.
#[derive(Debug)]
pub struct Reads {
    way: Way,
    flat: Arc<FlatFile>,
    cache: Cache,
    reads: PlainReads,
}

impl Reads {
    /// Reads of the file in that way, with its pages in memory or not.
    pub fn new(way: Way, flat: &Arc<FlatFile>, cache: Cache) -> Reads {
        Reads { way, flat: flat.clone(), cache, reads: PlainReads { order: Order::Random, op_bytes: 4096 } }
    }

    fn open(&self) -> Result<File> {
        File::open(self.flat.path()).map_err(|e| Error::io("open", self.flat.path(), e))
    }

    /// The mappings that all threads of a slice share.
    fn shared(&self, file: &File) -> Result<Shared> {
        let map = |e: rustix::io::Errno| Error::io("map", self.flat.path(), e.into());
        let region = match self.way {
            Way::VmRead => Some(Region::file_as_it_comes(file, self.flat.len_bytes() as usize).map_err(map)?),
            _ => None,
        };
        let shared = Shared { parts: MappedParts::new(), region };
        if self.cache == Cache::Warm {
            // Each contender reads in its own way, so that the pages of its mapping are mapped.
            let mut reader = Reader::new(self, &shared, self.open()?, 1 << 20)?;
            let mut at = 0;
            while at < self.flat.len_bytes() {
                let len = (self.flat.len_bytes() - at).min(1 << 20) as usize;
                reader.read(at, len)?;
                at += len as u64;
            }
        }
        Ok(shared)
    }
}

/// The common state of the threads of a slice.
#[derive(Debug)]
struct Shared {
    parts: Arc<MappedParts>,
    region: Option<Region>,
}

impl Contender<PlainReads> for Reads {
    fn name(&self) -> &'static str {
        self.way.name()
    }

    fn cache(&self) -> Cache {
        self.cache
    }

    fn prepare(&mut self, reads: &PlainReads) -> Result<Option<String>> {
        reads.check()?;
        self.reads = *reads;
        let needed = u64::from(reads.op_bytes);
        if self.flat.len_bytes() < needed {
            return Ok(Some(format!("the file is shorter than {}", human::size(needed))));
        }
        if self.cache != Cache::Cold {
            return Ok(None);
        }
        let part = Part { path: self.flat.path().to_owned(), len_bytes: self.flat.len_bytes() };
        Target::new(vec![part], SEED, Target::striped(1, 1))?.why_not_cold()
    }

    fn run(&mut self, slice: &Slice<'_>) -> Result<Sample> {
        let file = self.open()?;
        advise(&file, self.flat.path(), Advice::DontNeed)?;
        let shared = self.shared(&file)?;
        let (this, shared) = (&*self, &shared);
        threads::run(
            slice,
            |thread| {
                let file = this.open()?;
                if this.reads.order == Order::Random {
                    advise(&file, this.flat.path(), Advice::Random)?;
                }
                let reader = Reader::new(this, shared, file, this.reads.op_bytes as usize)?;
                Ok((reader, Places::new(this, thread, slice.threads.max(1))))
            },
            |(reader, places), stop| match slice.verify {
                true => work::<true>(this, reader, places, stop),
                false => work::<false>(this, reader, places, stop),
            },
        )
    }

    fn notes(&self) -> Vec<String> {
        let way = match self.way {
            Way::Mapped => "copies from the engine's mapping, one request at a time",
            Way::Around => "the same engine by system calls, as while a part cannot be mapped",
            Way::Pread => "through the page cache, by hand",
            Way::VmRead => "copies that the kernel makes from a mapping",
        };
        vec![way.to_owned()]
    }
}

fn work<const VERIFY: bool>(
    of: &Reads,
    reader: &mut Reader<'_>,
    places: &mut Places,
    stop: &AtomicBool,
) -> Result<Count> {
    let (mut count, mut timer) = (Count::new()?, Timer::new());
    let len = of.reads.op_bytes as usize;
    // At least one read: on a busy machine a short slice may end before its thread runs.
    while goes_on(count.ops, stop) {
        let Some(offset) = places.draw() else { break };
        timer.time(&mut count, || reader.read(offset, len))?;
        if VERIFY && !pattern::holds(SEED, offset, &reader.buffer[..len]) {
            return Err(pattern::wrong(of.flat.path(), "block", offset));
        }
        count.ops += 1;
    }
    count.bytes = count.ops * len as u64;
    Ok(count)
}

/// A thread's sequence of offsets.
#[derive(Debug)]
struct Places {
    rng: Rng,
    order: Order,
    /// True if no block may be read twice.
    once: bool,
    /// The number of blocks, and the bytes of one block.
    blocks: u64,
    op_bytes: u64,
    next: u64,
    /// The end of this thread's share, and the distance between its blocks.
    end: u64,
    step: u64,
}

impl Places {
    fn new(of: &Reads, thread: usize, threads: usize) -> Places {
        let (thread, threads) = (thread as u64, threads as u64);
        let op_bytes = u64::from(of.reads.op_bytes);
        let blocks = of.flat.len_bytes() / op_bytes;
        let (next, end, step) = match of.reads.order {
            Order::Random => (thread, blocks, threads),
            Order::Sequential => (blocks * thread / threads, blocks * (thread + 1) / threads, 1),
        };
        let rng = Rng::new(mix(thread) ^ u64::from(std::process::id()));
        Places { rng, order: of.reads.order, once: of.cache == Cache::Cold, blocks, op_bytes, next, end, step }
    }

    #[inline(always)]
    fn draw(&mut self) -> Option<u64> {
        let block = match self.order {
            Order::Random if !self.once => ((u128::from(self.rng.draw()) * u128::from(self.blocks)) >> 64) as u64,
            order => {
                if self.next >= self.end {
                    if self.once || order == Order::Random {
                        return None;
                    }
                    self.next -= self.next.min(self.blocks);
                }
                let next = self.next;
                self.next += self.step;
                if order == Order::Random { shuffled(next, self.blocks) } else { next }
            }
        };
        Some(block * self.op_bytes)
    }
}

/// The buffers and descriptors of one thread.
struct Reader<'a> {
    of: &'a Reads,
    with: ReadMeans<'a>,
    file: File,
    buffer: Vec<u8>,
}

enum ReadMeans<'a> {
    Engine { engine: Box<MmapEngine>, done: Vec<Completion> },
    Call,
    Copy(&'a Region),
}

impl<'a> Reader<'a> {
    fn new(of: &'a Reads, shared: &'a Shared, file: File, most_bytes: usize) -> Result<Reader<'a>> {
        let config = EngineConfig { capacity: 1, poll: false, hold: Vec::new(), shared: false };
        let refused = |e: std::io::Error| Error::Tool { what: "an engine that maps files".into(), why: e.to_string() };
        let engine = match of.way {
            Way::Mapped => Some(MmapEngine::new(&config, shared.parts.clone()).map_err(refused)?),
            Way::Around => Some(MmapEngine::by_system_calls(&config, shared.parts.clone()).map_err(refused)?),
            Way::Pread | Way::VmRead => None,
        };
        let with = match (engine, &shared.region) {
            (Some(engine), _) => ReadMeans::Engine { engine: Box::new(engine), done: Vec::with_capacity(1) },
            (None, Some(region)) => ReadMeans::Copy(region),
            (None, None) => ReadMeans::Call,
        };
        Ok(Reader { of, with, file, buffer: vec![0; most_bytes] })
    }

    #[inline(always)]
    fn read(&mut self, offset: u64, len: usize) -> Result<()> {
        let buffer = &mut self.buffer[..len];
        let read = match &mut self.with {
            ReadMeans::Engine { engine, done } => {
                let file = FileRef { handle: Handle(self.file.as_raw_fd()), key: 1 };
                let memory = Memory::one(buffer.as_mut_ptr());
                let request = IoRequest { slot: 0, op: Op::Read, len: len as u32, file, offset, memory };
                // SAFETY: the buffer and the file live until the request has completed; the loop waits for that.
                unsafe { engine.push(&[request]) };
                done.clear();
                let mut waited = Ok(());
                while done.is_empty() && waited.is_ok() {
                    waited = engine.wait(1, None, done);
                }
                waited.and_then(|()| match done.first().map_or(0, |completion| completion.result) {
                    result if result < 0 => Err(std::io::Error::from_raw_os_error(-result)),
                    result => Ok(result as usize),
                })
            }
            ReadMeans::Call => self.file.read_at(buffer, offset),
            ReadMeans::Copy(region) => {
                let to = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: len };
                let from = libc::iovec { iov_base: region.as_ptr().wrapping_add(offset as usize).cast(), iov_len: len };
                // SAFETY: both vectors describe memory of this process that outlives the call: the buffer, and a range
                // of the mapping.
                let copied = unsafe { libc::process_vm_readv(libc::getpid(), &raw const to, 1, &raw const from, 1, 0) };
                usize::try_from(copied).map_err(|_| std::io::Error::last_os_error())
            }
        };
        match read {
            Ok(read) if read == len => Ok(()),
            read => Err(failed(self.of, offset, len, read)),
        }
    }
}

#[cold]
fn failed(of: &Reads, offset: u64, len: usize, read: std::io::Result<usize>) -> Error {
    let path = of.flat.path().to_owned();
    match read {
        Ok(read) => Error::part_cut(path, offset + read as u64, (len - read) as u64),
        Err(source) => Error::io_at("read", path, offset, source),
    }
}

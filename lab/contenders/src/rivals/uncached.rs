//! Reads of single pages by other runtimes, with a number of tasks on each measuring thread: compio and monoio by rings
//! of their own with direct I/O, and `tokio::fs` through a page cache that is dropped before.
//!
//! Goals: the costs of a program that uses such a runtime and not iomill. Each task has its buffer for the whole slice.
//! Non-goals: a cache, several drives as one file, writes.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crate::contender::{Cache, Contender, Sample, Slice, UNCACHED};
use crate::seen::Seen;
use crate::slots::TIMED_EVERY;
use crate::target::{Target, advise};
use crate::task::Task;
use crate::threads::{self, Count};
use crate::workload::{Place, Places, Workload};
use compio::BufResult;
use compio::buf::{IntoInner, IoBuf};
use compio::io::AsyncReadAt;
use iomill::{Error, Result};
use monoio::buf::IoBufMut as _;
use rustix::fs::Advice;
use tokio::io::{AsyncReadExt, AsyncSeekExt};

/// The alignment of memory for direct I/O.
const ALIGN: usize = 4096;

/// The runtimes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Compio,
    Monoio,
    TokioFs,
}

const KINDS: [(&str, Kind); 3] = [("compio", Kind::Compio), ("monoio", Kind::Monoio), ("tokio-fs", Kind::TokioFs)];

/// Each runtime with one, 64 and 512 reads in flight.
pub fn all(target: &Target) -> Vec<Box<dyn Contender>> {
    let of = |name: &&'static str| -> Option<Box<dyn Contender>> {
        let (kind, in_flight) = name.rsplit_once('-')?;
        let (_, kind) = KINDS.into_iter().find(|(known, _)| *known == kind)?;
        let (in_flight, target) = (in_flight.parse().ok()?, target.clone());
        Some(Box::new(OnRuntime { name, kind, in_flight, target, workload: Workload::RANDOM_READ }))
    };
    UNCACHED.iter().filter_map(of).collect()
}

/// See the head of this file.
#[derive(Debug)]
struct OnRuntime {
    name: &'static str,
    kind: Kind,
    in_flight: usize,
    target: Target,
    workload: Workload,
}

impl Contender for OnRuntime {
    fn name(&self) -> &'static str {
        self.name
    }

    fn cache(&self) -> Cache {
        if self.kind == Kind::TokioFs { Cache::Cold } else { Cache::Direct }
    }

    fn prepare(&mut self, workload: &Workload) -> Result<Option<String>> {
        workload.check()?;
        self.workload = *workload;
        if workload.writes() {
            return Ok(Some("it only reads".to_owned()));
        }
        if self.kind == Kind::TokioFs { self.target.why_not_cold() } else { self.target.why_not_direct() }
    }

    fn bytes_in_flight(&self) -> u64 {
        self.in_flight as u64 * u64::from(self.workload.block_bytes)
    }

    fn run(&mut self, slice: &Slice<'_>) -> Result<Sample> {
        self.target.drop_cached()?;
        let (this, stop) = (&*self, Arc::new(AtomicBool::new(false)));
        let set_up = |thread| Worker::new(this, thread, slice, &stop);
        let mut sample = threads::run_told(&stop, slice, set_up, || Ok(()), |worker, _| worker.work())?;
        if self.kind == Kind::TokioFs {
            // Threads of the runtime read, not the measuring thread.
            sample.seen = sample.seen.map(|seen| Seen { fetched_bytes: sample.fetched_bytes, ..seen });
        }
        Ok(sample)
    }

    fn notes(&self) -> Vec<String> {
        let how = if self.kind == Kind::TokioFs { "through the page cache, dropped before" } else { "direct I/O" };
        vec![format!("{} in flight per thread, each a task; {how}", self.in_flight)]
    }
}

/// The common state of the tasks of a thread.
struct Shared {
    target: Target,
    block_bytes: usize,
    verify: bool,
    stop: Arc<AtomicBool>,
    places: RefCell<Places>,
    count: RefCell<Count>,
    until_timed: RefCell<u32>,
}

impl Shared {
    fn next(&self) -> Option<(Place, Option<Instant>)> {
        if self.stop.load(Ordering::Relaxed) && self.count.borrow().ops > 0 {
            return None;
        }
        let place = self.places.borrow_mut().draw()?;
        let mut until_timed = self.until_timed.borrow_mut();
        *until_timed = until_timed.checked_sub(1).unwrap_or(TIMED_EVERY - 1);
        Some((place, (*until_timed == 0).then(Instant::now)))
    }

    fn ended(&self, place: Place, started: Option<Instant>, read: io::Result<usize>, bytes: &[u8]) -> Result<()> {
        let (part, offset) = (place.part as usize, place.offset);
        let whole = read.and_then(|read| match read == self.block_bytes {
            true => Ok(()),
            false => Err(io::Error::new(io::ErrorKind::UnexpectedEof, format!("{read} bytes were read"))),
        });
        let path = || self.target.parts()[part].path.clone();
        whole.map_err(|source| Error::io_at("read", path(), offset, source))?;
        if self.verify {
            self.target.verify(part, offset, bytes)?;
        }
        let mut count = self.count.borrow_mut();
        count.ops += 1;
        count.bytes += self.block_bytes as u64;
        if let Some(started) = started {
            count.record(started.elapsed());
        }
        Ok(())
    }

    /// Memory for a block, and the offset of the block in it.
    fn buffer(&self) -> (Vec<u8>, usize) {
        let memory = vec![0; self.block_bytes + ALIGN];
        let at = memory.as_ptr().align_offset(ALIGN);
        (memory, at)
    }
}

/// The runtime of a measuring thread, with its files open.
enum Running {
    Compio(compio::runtime::Runtime, Vec<compio::fs::File>),
    Monoio(Box<monoio::Runtime<monoio::IoUringDriver>>, Vec<Rc<monoio::fs::File>>),
    /// Each task has handles of its own, because it seeks.
    Tokio(tokio::runtime::Runtime, Vec<Vec<tokio::fs::File>>),
}

struct Worker {
    running: Running,
    in_flight: usize,
    shared: Rc<Shared>,
}

fn failed(what: &'static str) -> impl Fn(io::Error) -> Error {
    move |e| Error::Tool { what: format!("a runtime of {what}"), why: e.to_string() }
}

impl Worker {
    fn new(of: &OnRuntime, thread: usize, slice: &Slice<'_>, stop: &Arc<AtomicBool>) -> Result<Worker> {
        let lens = of.target.part_lens();
        let places = match of.cache() {
            Cache::Cold => Places::once(&of.workload, &lens, thread, slice.threads)?,
            _ => Places::new(&of.workload, &lens, thread, slice.threads)?,
        };
        let shared = Rc::new(Shared {
            target: of.target.clone(),
            block_bytes: of.workload.block_bytes as usize,
            verify: slice.verify,
            stop: Arc::clone(stop),
            places: RefCell::new(places),
            count: RefCell::new(Count::new()?),
            until_timed: RefCell::new(TIMED_EVERY),
        });
        let running = match of.kind {
            Kind::Compio => start_compio(of)?,
            Kind::Monoio => start_monoio(of)?,
            Kind::TokioFs => start_tokio(of)?,
        };
        Ok(Worker { running, in_flight: of.in_flight, shared })
    }

    /// Runs the tasks to their ends.
    fn work(&mut self) -> Result<Count> {
        let (shared, in_flight) = (&self.shared, self.in_flight);
        match &mut self.running {
            Running::Compio(runtime, files) => runtime.block_on(async {
                let task = |_| compio::runtime::spawn(by_compio(files.clone(), Rc::clone(shared)));
                let tasks: Vec<_> = (0..in_flight).map(task).collect();
                let mut ended = Ok(());
                for task in tasks {
                    let outcome = task.await.unwrap_or_else(|_panic| Err(panicked("compio")));
                    ended = ended.and(outcome);
                }
                ended
            })?,
            Running::Monoio(runtime, files) => runtime.block_on(async {
                let task = |_| monoio::spawn(by_monoio(files.clone(), Rc::clone(shared)));
                let tasks: Vec<_> = (0..in_flight).map(task).collect();
                let mut ended = Ok(());
                for task in tasks {
                    ended = ended.and(task.await);
                }
                ended
            })?,
            Running::Tokio(runtime, files) => {
                let tasks = tokio::task::LocalSet::new();
                let spawn = |files| tasks.spawn_local(by_tokio(files, Rc::clone(shared)));
                let spawned: Vec<_> = std::mem::take(files).into_iter().map(spawn).collect();
                tasks.block_on(runtime, async {
                    let mut ended = Ok(());
                    for task in spawned {
                        ended = ended.and(task.await.unwrap_or_else(|_panic| Err(panicked("tokio"))));
                    }
                    ended
                })?;
            }
        }
        Ok(self.shared.count.replace(Count::new()?))
    }
}

fn panicked(what: &str) -> Error {
    Error::Tool { what: format!("a task of {what}"), why: "it panicked".to_owned() }
}

fn start_compio(of: &OnRuntime) -> Result<Running> {
    let runtime = compio::runtime::Runtime::new().map_err(failed("compio"))?;
    let open = |path: &Path| {
        let mut options = compio::fs::OpenOptions::new();
        options.read(true).custom_flags(libc::O_DIRECT);
        runtime.block_on(options.open(path)).map_err(|e| Error::io("open", path, e))
    };
    let files = of.target.parts().iter().map(|part| open(&part.path)).collect::<Result<Vec<_>>>()?;
    Ok(Running::Compio(runtime, files))
}

fn start_monoio(of: &OnRuntime) -> Result<Running> {
    let entries = (of.in_flight as u32).max(64);
    let builder = monoio::RuntimeBuilder::<monoio::IoUringDriver>::new().with_entries(entries);
    let mut runtime = { builder }.build().map_err(failed("monoio"))?;
    let files = of.target.open(true, false)?;
    // The files belong to the runtime that is running when they are made.
    let of_runtime = |file: File| monoio::fs::File::from_std(file).map(Rc::new).map_err(failed("monoio"));
    let files = runtime.block_on(async { files.into_iter().map(of_runtime).collect::<Result<Vec<_>>>() })?;
    Ok(Running::Monoio(Box::new(runtime), files))
}

fn start_tokio(of: &OnRuntime) -> Result<Running> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().map_err(failed("tokio"))?;
    let open = || -> Result<Vec<tokio::fs::File>> {
        let files = of.target.open(false, false)?;
        let parts = files.into_iter().zip(of.target.parts());
        parts
            .map(|(file, part)| {
                advise(&file, &part.path, Advice::Random)?;
                Ok(tokio::fs::File::from_std(file))
            })
            .collect()
    };
    let files = (0..of.in_flight).map(|_| open()).collect::<Result<Vec<_>>>()?;
    Ok(Running::Tokio(runtime, files))
}

async fn by_compio(files: Vec<compio::fs::File>, shared: Rc<Shared>) -> Result<()> {
    let (mut memory, at) = shared.buffer();
    let end = at + shared.block_bytes;
    while let Some((place, started)) = shared.next() {
        let BufResult(read, slice) = files[place.part as usize].read_at(memory.slice(at..end), place.offset).await;
        memory = slice.into_inner();
        shared.ended(place, started, read, &memory[at..end])?;
    }
    Ok(())
}

async fn by_monoio(files: Vec<Rc<monoio::fs::File>>, shared: Rc<Shared>) -> Result<()> {
    let (mut memory, at) = shared.buffer();
    let end = at + shared.block_bytes;
    while let Some((place, started)) = shared.next() {
        let (read, slice) = files[place.part as usize].read_at(memory.slice_mut(at..end), place.offset).await;
        memory = slice.into_inner();
        shared.ended(place, started, read, &memory[at..end])?;
    }
    Ok(())
}

async fn by_tokio(mut files: Vec<tokio::fs::File>, shared: Rc<Shared>) -> Result<()> {
    let mut memory = vec![0; shared.block_bytes];
    while let Some((place, started)) = shared.next() {
        let file = &mut files[place.part as usize];
        let read = match file.seek(io::SeekFrom::Start(place.offset)).await {
            Ok(_) => file.read_exact(&mut memory).await,
            Err(error) => Err(error),
        };
        shared.ended(place, started, read, &memory)?;
    }
    Ok(())
}

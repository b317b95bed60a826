//! `pread` through the page cache, as most programs do.
//!
//! Cold: the parts are dropped from the page cache before each slice, and no block is read twice in it. Warm: all parts
//! are read before the slice. Read-ahead is off for random reads. Non-goals: writes. The page cache takes them without
//! touching a drive, so their figures would not be comparable.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::sync::atomic::AtomicBool;

use iomill::{Error, Result};
use rustix::fs::Advice;

use crate::contender::{Cache, Contender, PREAD, Sample, Slice};
use crate::machine;
use crate::slots::Timer;
use crate::target::{Target, advise};
use crate::task::Task;
use crate::threads::{self, Count, goes_on};
use crate::workload::{Order, Places, Workload};

/// See the head of this file.
#[derive(Debug)]
pub struct Pread {
    target: Target,
    workload: Workload,
    cache: Cache,
}

impl Pread {
    /// Uses the parts of `target`. `Cache::Direct` counts as cold.
    pub fn new(target: Target, cache: Cache) -> Pread {
        let cache = if cache == Cache::Warm { cache } else { Cache::Cold };
        Pread { target, workload: Workload::RANDOM_READ, cache }
    }
}

impl Contender for Pread {
    fn name(&self) -> &'static str {
        PREAD
    }

    fn cache(&self) -> Cache {
        self.cache
    }

    fn prepare(&mut self, workload: &Workload) -> Result<Option<String>> {
        workload.check()?;
        self.workload = *workload;
        why_not_buffered(&self.target, workload, self.cache)
    }

    fn run(&mut self, slice: &Slice<'_>) -> Result<Sample> {
        set_temperature(&self.target, self.cache)?;
        let this = &*self;
        threads::run(
            slice,
            |thread| Worker::new(this, thread, slice.threads),
            |worker, stop| if slice.verify { worker.work::<true>(stop) } else { worker.work::<false>(stop) },
        )
    }

    fn notes(&self) -> Vec<String> {
        vec![temperature_note(self.cache).to_owned()]
    }
}

/// The reason why a contender that uses the page cache cannot do this workload in a comparable way.
pub(super) fn why_not_buffered(target: &Target, workload: &Workload, cache: Cache) -> Result<Option<String>> {
    if workload.writes() {
        return Ok(Some(
            "the page cache takes writes without touching a drive, so the figures would not be comparable".into(),
        ));
    }
    let (needed, there) = (target.total_bytes(), machine::available_memory_bytes()?);
    if cache == Cache::Warm && needed > there / 10 * 8 {
        let (needed, there) = (iomill_cli::human::size(needed), iomill_cli::human::size(there));
        return Ok(Some(format!("{needed} do not fit in {there} of free memory")));
    }
    if cache == Cache::Cold { target.why_not_cold() } else { Ok(None) }
}

/// Drops the parts from the page cache, or reads them into it.
pub(crate) fn set_temperature(target: &Target, cache: Cache) -> Result<()> {
    if cache != Cache::Warm {
        return target.drop_cached();
    }
    let mut chunk = vec![0; 1 << 20];
    for (part, file) in target.parts().iter().zip(target.open(false, false)?) {
        let mut file = file.take(part.len_bytes);
        while file.read(&mut chunk).map_err(|e| Error::io("read", &part.path, e))? > 0 {}
    }
    Ok(())
}

pub(super) fn temperature_note(cache: Cache) -> &'static str {
    match cache {
        Cache::Warm => "warm: all bytes are in the page cache before each slice",
        _ => "cold: dropped from the page cache before each slice, no block read twice in it",
    }
}

/// The places of a thread: each at most once for cold reads, otherwise any number of times.
pub(super) fn places(
    target: &Target,
    workload: &Workload,
    cache: Cache,
    thread: usize,
    threads: usize,
) -> Result<Places> {
    match cache {
        Cache::Cold => Places::once(workload, &target.part_lens(), thread, threads),
        _ => Places::new(workload, &target.part_lens(), thread, threads),
    }
}

struct Worker<'a> {
    files: Vec<File>,
    places: Places,
    buffer: Vec<u8>,
    target: &'a Target,
}

impl<'a> Worker<'a> {
    fn new(of: &'a Pread, thread: usize, threads: usize) -> Result<Worker<'a>> {
        let files = of.target.open(false, false)?;
        if of.workload.order == Order::Random {
            for (file, part) in files.iter().zip(of.target.parts()) {
                advise(file, &part.path, Advice::Random)?;
            }
        }
        let places = places(&of.target, &of.workload, of.cache, thread, threads)?;
        let buffer = vec![0; of.workload.block_bytes as usize];
        Ok(Worker { files, places, buffer, target: &of.target })
    }

    fn work<const VERIFY: bool>(&mut self, stop: &AtomicBool) -> Result<Count> {
        let (mut count, mut timer) = (Count::new()?, Timer::new());
        while goes_on(count.ops, stop) {
            let Some(place) = self.places.draw() else { break };
            let (part, offset) = (place.part as usize, place.offset);
            let (file, buffer) = (&self.files[part], &mut self.buffer);
            timer.time(&mut count, || {
                file.read_exact_at(buffer, offset).map_err(|e| failed(self.target, part, offset, e))
            })?;
            if VERIFY {
                self.target.verify(part, offset, buffer)?;
            }
            count.ops += 1;
            count.bytes += buffer.len() as u64;
        }
        Ok(count)
    }
}

#[cold]
fn failed(target: &Target, part: usize, offset: u64, source: io::Error) -> Error {
    Error::io_at("read", target.path(part).to_owned(), offset, source)
}

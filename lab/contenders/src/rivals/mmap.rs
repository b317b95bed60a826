//! Mapped files: the parts mapped with `MADV_RANDOM`, blocks copied out of them.
//!
//! Cold and warm are as for `pread`. For warm reads the pages are also mapped before the slice, so that no read faults.
//! Non-goals: writes (as for `pread`); surviving a failing drive, which raises SIGBUS in every program that maps.

use std::sync::atomic::AtomicBool;

use iomill::{Error, Result};

use super::pread;
use crate::contender::{Cache, Contender, MMAP, Sample, Slice};
use crate::memory::Region;
use crate::slots::Timer;
use crate::target::Target;
use crate::task::Task;
use crate::threads::{self, Count, goes_on};
use crate::workload::{Places, Workload};

/// See the head of this file.
#[derive(Debug)]
pub struct Mmap {
    target: Target,
    workload: Workload,
    cache: Cache,
}

impl Mmap {
    /// Uses the parts of `target`. `Cache::Direct` counts as cold.
    pub fn new(target: Target, cache: Cache) -> Mmap {
        let cache = if cache == Cache::Warm { cache } else { Cache::Cold };
        Mmap { target, workload: Workload::RANDOM_READ, cache }
    }

    fn map(&self) -> Result<Vec<Region>> {
        let files = self.target.open(false, false)?;
        let mapped = self.target.parts().iter().zip(&files).map(|(part, file)| {
            let failed = |e: rustix::io::Errno| Error::io("map", &part.path, e.into());
            let region = Region::file(file, part.len_bytes as usize).map_err(failed)?;
            if self.cache == Cache::Warm {
                region.populate().map_err(failed)?;
            }
            Ok(region)
        });
        mapped.collect()
    }
}

impl Contender for Mmap {
    fn name(&self) -> &'static str {
        MMAP
    }

    fn cache(&self) -> Cache {
        self.cache
    }

    fn prepare(&mut self, workload: &Workload) -> Result<Option<String>> {
        workload.check()?;
        self.workload = *workload;
        pread::why_not_buffered(&self.target, workload, self.cache)
    }

    fn run(&mut self, slice: &Slice<'_>) -> Result<Sample> {
        pread::set_temperature(&self.target, self.cache)?;
        let this = &*self;
        let mapped = &this.map()?[..];
        threads::run(
            slice,
            |thread| {
                let places = pread::places(&this.target, &this.workload, this.cache, thread, slice.threads)?;
                let buffer = vec![0; this.workload.block_bytes as usize];
                Ok(Worker { mapped, places, buffer, target: &this.target })
            },
            |worker, stop| if slice.verify { worker.work::<true>(stop) } else { worker.work::<false>(stop) },
        )
    }

    fn notes(&self) -> Vec<String> {
        vec![pread::temperature_note(self.cache).to_owned()]
    }
}

struct Worker<'a> {
    mapped: &'a [Region],
    places: Places,
    buffer: Vec<u8>,
    target: &'a Target,
}

impl Worker<'_> {
    fn work<const VERIFY: bool>(&mut self, stop: &AtomicBool) -> Result<Count> {
        let (mut count, mut timer) = (Count::new()?, Timer::new());
        while goes_on(count.ops, stop) {
            let Some(place) = self.places.draw() else { break };
            let (part, start) = (place.part as usize, place.offset as usize);
            let (mapped, buffer) = (self.mapped[part].bytes(), &mut self.buffer);
            timer.time(&mut count, || {
                let end = start + buffer.len();
                buffer.copy_from_slice(&mapped[start..end]);
                // Without this the compiler would remove the copy as unused.
                std::hint::black_box(&*buffer);
                Ok(())
            })?;
            if VERIFY {
                self.target.verify(part, place.offset, buffer)?;
            }
            count.ops += 1;
            count.bytes += buffer.len() as u64;
        }
        Ok(count)
    }
}

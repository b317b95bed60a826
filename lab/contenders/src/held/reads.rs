//! Accesses through a page cache that is too small: by `pread` and `pwrite`, or mapped.
//!
//! The slots go to the parts in turn, so that all drives work, as with an array's file. Read-ahead is off unless the
//! slots are sequential. A slice starts with a full cache. Non-goals: writes to a mapping.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use iomill::{Error, Result};
use rustix::fs::Advice;

use crate::access::Access;
use crate::arena::Arena;
use crate::contender::{Sample, Slice};
use crate::draw::{Choice, Draws};
use crate::memory::Region;
use crate::pattern::{PAGE_BYTES, Rng};
use crate::slots::Timer;
use crate::target::{Target, advise};
use crate::task::Task;
use crate::threads::{self, Count, goes_on};

/// Random bytes for writes.
const POOL_BYTES: usize = 1 << 16;

/// See the head of this file.
#[derive(Debug)]
pub(super) struct Buffered {
    mapped: bool,
    target: Target,
    access: Access,
    /// Number of slots in each part.
    slots_per_part: u64,
}

impl Buffered {
    pub(super) fn new(mapped: bool, drives: &[PathBuf], file_name: &str, access: Access) -> Result<Buffered> {
        access.check()?;
        let target = Arena::named(drives, file_name).target()?;
        let shortest = target.part_lens().into_iter().min().unwrap_or(0);
        let slots_per_part = shortest / u64::from(access.slot_bytes);
        if slots_per_part < 2 {
            return Err(Error::invalid(format!("a part of {shortest} bytes"), "give a larger --size"));
        }
        Ok(Buffered { mapped, target, access, slots_per_part })
    }

    fn run_on<B: Backend>(
        &self,
        slice: &Slice<'_>,
        ready: &mut dyn FnMut() -> Result<()>,
        backend: impl Fn() -> Result<B> + Sync,
    ) -> Result<Sample> {
        threads::run_told(
            &AtomicBool::new(false),
            slice,
            |thread| {
                let mut worker = Worker::new(self, backend()?, thread, slice.threads)?;
                worker.fill_cache()?;
                Ok(worker)
            },
            ready,
            |worker, stop| if slice.verify { worker.work::<true>(stop) } else { worker.work::<false>(stop) },
        )
    }

    /// Runs one slice. Calls `ready` when it is set up and before the clock starts.
    pub(super) fn run(&mut self, slice: &Slice<'_>, ready: &mut dyn FnMut() -> Result<()>) -> Result<Sample> {
        // H2.
        self.target.drop_cached()?;
        let files = self.target.open(false, self.access.writes())?;
        for (file, part) in files.iter().zip(self.target.parts()) {
            let in_order = self.access.choice == Choice::Sequential;
            advise(file, &part.path, if in_order { Advice::Normal } else { Advice::Random })?;
        }
        if !self.mapped {
            return self.run_on(slice, ready, || Ok(Called { files: &files, target: &self.target }));
        }
        let map = |(part, file): (&crate::target::Part, &File)| {
            let failed = |e: rustix::io::Errno| Error::io("map", &part.path, e.into());
            Region::file(file, part.len_bytes as usize).map_err(failed)
        };
        let mapped = self.target.parts().iter().zip(&files).map(map).collect::<Result<Vec<Region>>>()?;
        self.run_on(slice, ready, || Ok(Mapped { parts: &mapped }))
    }
}

trait Backend {
    fn read(&mut self, part: usize, offset: u64, bytes: &mut [u8]) -> Result<()>;

    fn write(&mut self, part: usize, offset: u64, bytes: &[u8]) -> Result<()>;
}

struct Called<'a> {
    files: &'a [File],
    target: &'a Target,
}

impl Backend for Called<'_> {
    #[inline(always)]
    fn read(&mut self, part: usize, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.files[part].read_exact_at(bytes, offset).map_err(|e| failed(self.target, "read", part, offset, e))
    }

    #[inline(always)]
    fn write(&mut self, part: usize, offset: u64, bytes: &[u8]) -> Result<()> {
        self.files[part].write_all_at(bytes, offset).map_err(|e| failed(self.target, "write", part, offset, e))
    }
}

#[cold]
fn failed(target: &Target, action: &'static str, part: usize, offset: u64, source: std::io::Error) -> Error {
    Error::io_at(action, target.path(part).to_owned(), offset, source)
}

struct Mapped<'a> {
    parts: &'a [Region],
}

impl Backend for Mapped<'_> {
    #[inline(always)]
    fn read(&mut self, part: usize, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let start = offset as usize;
        bytes.copy_from_slice(&self.parts[part].bytes()[start..start + bytes.len()]);
        Ok(())
    }

    fn write(&mut self, _: usize, _: u64, _: &[u8]) -> Result<()> {
        Err(Error::invalid("a write to a mapping", "measure it with reads only"))
    }
}

struct Worker<'a, B> {
    backend: B,
    of: &'a Buffered,
    draws: Draws,
    parts: u64,
    /// Chooses which operations write, and which bytes.
    rng: Rng,
    pool: Vec<u8>,
    buffer: Vec<u8>,
}

impl<'a, B: Backend> Worker<'a, B> {
    fn new(of: &'a Buffered, backend: B, thread: usize, threads: usize) -> Result<Worker<'a, B>> {
        let parts = of.target.parts().len() as u64;
        let draws = of.access.draws(of.slots_per_part * parts, thread, threads);
        let mut rng = Rng::new(thread as u64);
        let pool = (0..POOL_BYTES).map(|_| rng.draw() as u8).collect();
        Ok(Worker { backend, of, draws, parts, rng, pool, buffer: vec![0; of.access.op_bytes as usize] })
    }

    #[inline(always)]
    fn place(&self, slot: u64) -> (usize, u64) {
        ((slot % self.parts) as usize, slot / self.parts * u64::from(self.of.access.slot_bytes))
    }

    fn fill_cache(&mut self) -> Result<()> {
        for slot in self.draws.warm_up() {
            let (part, offset) = self.place(slot);
            self.backend.read(part, offset, &mut self.buffer[..1])?;
        }
        Ok(())
    }

    fn work<const VERIFY: bool>(&mut self, stop: &AtomicBool) -> Result<Count> {
        let (mut count, mut timer) = (Count::new()?, Timer::new());
        let read_percent = u64::from(self.of.access.read_percent);
        while goes_on(count.ops, stop) {
            let slot = self.draws.draw();
            let (part, offset) = self.place(slot);
            let chosen = self.rng.draw();
            let (backend, buffer, pool) = (&mut self.backend, &mut self.buffer, &self.pool);
            if read_percent == 100 || chosen % 100 < read_percent {
                timer.time(&mut count, || {
                    backend.read(part, offset, buffer)?;
                    std::hint::black_box(&*buffer);
                    Ok(())
                })?;
                if VERIFY {
                    self.of.target.verify_bytes(part, offset, buffer)?;
                }
            } else if VERIFY {
                // Other threads read while this one writes. Only the pattern stays right for their checks.
                self.of.target.fill_bytes(part, offset, buffer);
                backend.write(part, offset, buffer)?;
            } else {
                let start = (chosen >> 32) as usize % (POOL_BYTES - PAGE_BYTES);
                let bytes = &pool[start..start + buffer.len()];
                timer.time(&mut count, || backend.write(part, offset, bytes))?;
            }
            count.ops += 1;
        }
        count.bytes = count.ops * self.buffer.len() as u64;
        Ok(count)
    }
}

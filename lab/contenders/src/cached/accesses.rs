//! Accesses to a file of which a part fits in iomill's cache: one call for each operation, or gathers and scatters.
//!
//! As for other contenders, a slice starts with a full cache: the array is reopened, and each thread reads pages until
//! the cache is full.

use std::hint::black_box;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use iomill::{ArrayOptions, Error, File, Result};

use super::{CountersAtStart, Hits, Opened, Place, fetched_bytes};
use crate::access::Access;
use crate::arena::{Arena, SEED};
use crate::asynchronous::{Flyer, Load, Op, Ops};
use crate::contender::{Cache, Contender, IOMILL_READ_AT, IOMILL_READ_AT_NO_READ_AHEAD, IOMILL_READ_MANY};
use crate::contender::{Sample, Slice};
use crate::draw::{Choice, Draws};
use crate::pattern::{self, PAGE_BYTES, Rng};
use crate::seen::Own;
use crate::slots::Timer;
use crate::target::Target;
use crate::task::Task;
use crate::threads::{self, Count, goes_on};

/// Random bytes for writes.
const POOL_BYTES: usize = 1 << 16;

/// Pages per call while the cache is filled.
const WARM_UP_BATCH: usize = 4096;

/// Operations of a call.
#[derive(Clone, Debug)]
enum Calls {
    OneByOne,
    InBatches,
    AsBatch,
    InFlight(Flyer),
}

/// See the head of this file.
#[derive(Debug)]
pub struct Accesses {
    name: &'static str,
    place: Place,
    /// The plain files. Other contenders may have left pages of them in the page cache.
    target: Target,
    calls: Calls,
    access: Access,
    /// Hits and misses of the timed slices since the contender was prepared.
    hits: Hits,
}

impl Accesses {
    /// One call for each operation.
    pub fn one_by_one(arena: &Arena, options: &ArrayOptions) -> Result<Accesses> {
        Accesses::new(IOMILL_READ_AT, Calls::OneByOne, arena, options)
    }

    /// The same without read-ahead. Only sequential readers compare with it.
    pub fn without_read_ahead(arena: &Arena, options: &ArrayOptions) -> Result<Accesses> {
        Accesses::new(
            IOMILL_READ_AT_NO_READ_AHEAD,
            Calls::OneByOne,
            arena,
            &options.clone().with_cache(|cache| cache.read_ahead_bytes(0)),
        )
    }

    /// Calls with a batch of operations each.
    pub fn in_batches(arena: &Arena, options: &ArrayOptions) -> Result<Accesses> {
        Accesses::new(IOMILL_READ_MANY, Calls::InBatches, arena, options)
    }

    /// One call for each operation, with many operations in flight.
    pub fn in_flight(flyer: &Flyer, arena: &Arena, options: &ArrayOptions) -> Result<Accesses> {
        Accesses::new(flyer.name(), Calls::InFlight(flyer.clone()), arena, options)
    }

    /// One call for each operation if the batch is 1, else calls with a batch each.
    pub fn named(name: &'static str, arena: &Arena, options: &ArrayOptions) -> Result<Accesses> {
        Accesses::new(name, Calls::AsBatch, arena, options)
    }

    fn new(name: &'static str, calls: Calls, arena: &Arena, options: &ArrayOptions) -> Result<Accesses> {
        let access = Access::page_reads(8 << 20, 1 << 20, 1);
        let (place, target) = (Place::new(arena, options), arena.target()?);
        Ok(Accesses { name, place, target, calls, access, hits: Hits::default() })
    }

    /// One slice of blocking calls.
    fn call(&self, opened: &Opened, at_start: &CountersAtStart, slice: &Slice<'_>) -> Result<Sample> {
        threads::run(
            slice,
            |thread| {
                let mut worker = Worker::new(opened, self.access, thread, slice.threads);
                worker.fill_cache()?;
                Ok(worker)
            },
            |worker, stop| {
                at_start.begin(&opened.array);
                match (self.in_turn(), slice.verify) {
                    (true, true) => worker.work::<true>(stop),
                    (true, false) => worker.work::<false>(stop),
                    (false, verify) => worker.work_in_batches(verify, stop),
                }
            },
        )
    }

    /// One slice of a flyer. Its lanes start when the cache is full.
    fn fly(&self, flyer: &Flyer, opened: &Opened, at_start: &CountersAtStart, slice: &Slice<'_>) -> Result<Sample> {
        let (array, file, access) = (&opened.array, &opened.file, self.access);
        let slot_bytes = u64::from(access.slot_bytes);
        let slots = file.len() / slot_bytes;
        let load = Load { array, file, op_bytes: access.op_bytes as usize, seed: SEED, writes: access.writes() };
        let fill = |thread| Worker::new(opened, access, thread, slice.threads).fill_cache();
        // The threads that fill the cache use the first sequences of draws. Lanes with the same draws would find the
        // pages just read.
        let fillers = slice.threads.max(1);
        let ops = |lane, lanes| {
            let mut draws = access.draws(slots, fillers + lane, fillers + lanes).after_warm_up();
            let draw = move || Some(Op { offset: draws.draw() * slot_bytes, write: false });
            Ok(Box::new(std::iter::from_fn(draw)) as Ops)
        };
        flyer.run(slice, &load, fill, ops, || at_start.begin(&opened.array))
    }

    fn in_turn(&self) -> bool {
        match self.calls {
            Calls::OneByOne => true,
            Calls::InBatches | Calls::InFlight(_) => false,
            Calls::AsBatch => self.access.batch == 1,
        }
    }
}

impl Contender<Access> for Accesses {
    fn name(&self) -> &'static str {
        self.name
    }

    fn cache(&self) -> Cache {
        Cache::Held
    }

    fn prepare(&mut self, access: &Access) -> Result<Option<String>> {
        access.check()?;
        (self.access, self.hits) = (*access, Hits::default());
        if matches!(self.calls, Calls::InFlight(_)) && (access.writes() || access.choice == Choice::Sequential) {
            return Ok(Some("operations in flight are measured with random reads only".to_owned()));
        }
        let compares = self.name != IOMILL_READ_AT_NO_READ_AHEAD || access.choice == Choice::Sequential;
        Ok((!compares).then(|| "without sequential reads there is no read-ahead to compare".to_owned()))
    }

    fn run(&mut self, slice: &Slice<'_>) -> Result<Sample> {
        // Pages that other contenders left in the page cache would slow direct I/O down.
        self.target.drop_cached()?;
        let opened = self.place.open(self.access.cache_bytes, self.access.writes())?;
        let at_start = CountersAtStart::default();
        let mut sample = match &self.calls {
            Calls::InFlight(flyer) => self.fly(flyer, &opened, &at_start, slice)?,
            _ => self.call(&opened, &at_start, slice)?,
        };
        let counted = at_start.end(&opened.array);
        sample.filled = at_start.filled(self.access.cache_bytes.min(opened.file.len()));
        sample.own = Some(Own { hits: counted.hits, misses: counted.misses });
        sample.fetched_bytes = Some(fetched_bytes(&counted));
        if !slice.verify {
            self.hits.add(&counted);
        }
        opened.close()?;
        Ok(sample)
    }

    fn spoils(&self) -> bool {
        self.access.writes()
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = vec![self.hits.note(self.access.cache_bytes)];
        if let Calls::InFlight(flyer) = &self.calls {
            notes.push(flyer.note());
        } else if !self.in_turn() {
            notes.push(format!("latency is that of a whole call, a batch of {} operations", self.access.batch));
        }
        notes
    }
}

struct Worker<'a> {
    file: &'a File,
    access: Access,
    draws: Draws,
    /// Chooses which operations write, and which bytes.
    rng: Rng,
    pool: Vec<u8>,
    /// The bytes of a batch of operations.
    buffer: Vec<u8>,
    reads: Vec<u64>,
    writes: Vec<u64>,
}

impl Worker<'_> {
    fn new(opened: &Opened, access: Access, thread: usize, threads: usize) -> Worker<'_> {
        let slots = opened.file.len() / u64::from(access.slot_bytes);
        let mut rng = Rng::new(thread as u64);
        let pool = (0..POOL_BYTES).map(|_| rng.draw() as u8).collect();
        Worker {
            file: &opened.file,
            access,
            draws: access.draws(slots, thread, threads),
            rng,
            pool,
            buffer: vec![0; access.batch as usize * access.op_bytes as usize],
            reads: Vec::new(),
            writes: Vec::new(),
        }
    }

    fn fill_cache(&mut self) -> Result<()> {
        let slot_bytes = u64::from(self.access.slot_bytes);
        let mut bytes = [0; WARM_UP_BATCH];
        for slots in self.draws.warm_up().chunks(WARM_UP_BATCH) {
            self.reads.clear();
            self.reads.extend(slots.iter().map(|slot| slot * slot_bytes));
            self.file.read_many(&mut bytes[..slots.len()], &self.reads, 1)?;
        }
        Ok(())
    }

    /// The offset of the next operation, and the number that decides whether it writes.
    #[inline(always)]
    fn draw(&mut self) -> (u64, u64) {
        let offset = self.draws.draw() * u64::from(self.access.slot_bytes);
        (offset, if self.access.writes() { self.rng.draw() } else { 0 })
    }

    fn reads(&self, chosen: u64) -> bool {
        !self.access.writes() || chosen % 100 < u64::from(self.access.read_percent)
    }

    fn work<const VERIFY: bool>(&mut self, stop: &AtomicBool) -> Result<Count> {
        let (mut count, mut timer) = (Count::new()?, Timer::new());
        let len = self.access.op_bytes as usize;
        while goes_on(count.ops, stop) {
            let (offset, chosen) = self.draw();
            let reads = self.reads(chosen);
            let (file, buffer, pool) = (self.file, &mut self.buffer[..len], &self.pool);
            if reads {
                timer.time(&mut count, || {
                    let read = file.read_at(buffer, offset)?;
                    black_box(&*buffer);
                    if read == len { Ok(()) } else { Err(wrong(file, offset)) }
                })?;
                if VERIFY && !pattern::holds(SEED, offset, buffer) {
                    return Err(wrong(file, offset));
                }
            } else if VERIFY {
                // Other threads read while this one writes. Only the pattern stays right for their checks.
                pattern::fill_bytes(SEED, offset, buffer);
                file.write_at(buffer, offset)?;
            } else {
                let start = (chosen >> 32) as usize % (POOL_BYTES - PAGE_BYTES);
                timer.time(&mut count, || file.write_at(&pool[start..start + len], offset))?;
            }
            count.ops += 1;
        }
        count.bytes = count.ops * len as u64;
        Ok(count)
    }

    fn work_in_batches(&mut self, verify: bool, stop: &AtomicBool) -> Result<Count> {
        let mut count = Count::new()?;
        while goes_on(count.ops, stop) {
            self.reads.clear();
            self.writes.clear();
            for _ in 0..self.access.batch {
                let (offset, chosen) = self.draw();
                if self.reads(chosen) { self.reads.push(offset) } else { self.writes.push(offset) }
            }
            let start = Instant::now();
            self.gather(verify)?;
            self.scatter(verify)?;
            count.record(start.elapsed());
            count.ops += u64::from(self.access.batch);
        }
        count.bytes = count.ops * u64::from(self.access.op_bytes);
        Ok(count)
    }

    fn gather(&mut self, verify: bool) -> Result<()> {
        let len = self.access.op_bytes as usize;
        let out = &mut self.buffer[..self.reads.len() * len];
        self.file.read_many(out, &self.reads, len)?;
        black_box(&*out);
        let mut read = self.reads.iter().zip(out.chunks_exact(len));
        match read.find(|(offset, bytes)| verify && !pattern::holds(SEED, **offset, bytes)) {
            Some((&offset, _)) => Err(wrong(self.file, offset)),
            None => Ok(()),
        }
    }

    fn scatter(&mut self, verify: bool) -> Result<()> {
        if self.writes.is_empty() {
            return Ok(());
        }
        let len = self.access.op_bytes as usize;
        let bytes = &mut self.buffer[..self.writes.len() * len];
        for (&offset, bytes) in self.writes.iter().zip(bytes.chunks_exact_mut(len)) {
            if verify {
                pattern::fill_bytes(SEED, offset, bytes);
            } else {
                let start = self.rng.draw() as usize % (POOL_BYTES - PAGE_BYTES);
                bytes.copy_from_slice(&self.pool[start..start + len]);
            }
        }
        self.file.write_many(bytes, &self.writes, len)
    }
}

fn wrong(file: &File, offset: u64) -> Error {
    pattern::wrong(file.name(), "value", offset)
}

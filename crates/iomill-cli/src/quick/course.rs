//! The contenders, and the rounds in which each of them takes its turn.
//!
//! Goals: comparable figures. A disturbance of the machine meets all contenders, because each round has a turn of each,
//! in another order. A figure with the name cold or warm is one.
//!
//! Rules:
//! 1. Cold: at least nine bytes in ten that a turn has read came from drives in it. iomill's own count of them agrees.
//! 2. Warm: at most one page in a thousand came from a drive, was not in iomill's cache, or was not mapped.
//! 3. A turn that breaks these rules is taken again. A contender that breaks them too often has no figure, and the
//!    reason is shown.
//! 4. The first round brings buffers and rings into use, and is not counted.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use crate::human;
use iomill::{ArrayOptions, Counters, EngineKind, Error};
use iomill_loops::quick::{Count, DRIVES, Deck, Gather, Limits, OneByOne, PAGE_BYTES, Reads, Ring};

use super::meter::{Meter, Seen};
use super::site::{Opened, Site};
use crate::failure::Result;
use crate::interrupt::Interrupt;

/// Rounds that count.
pub const ROUNDS: usize = 5;

/// A turn of a round that counts, and one of the first round.
pub const TURN: Duration = Duration::from_millis(300);
const FIRST_TURN: Duration = Duration::from_millis(100);

/// A warm turn ends after this number of passes over the warm part. Only a small file is read that often in a turn.
const WARM_PASSES: u64 = 64;

/// Of reads in memory one in this number is timed, because reading the clock costs a part of such a read.
const TIMED_EVERY: u64 = 16;

/// Pages in a gather out of the cache: they fit in a CPU's own caches.
const WARM_BATCH: usize = 64;

/// Pages in a gather from the drives: this multiple of those in flight, so that the drives have work until its end, and
/// at most 8 MiB.
const BATCH_TURNS: usize = 16;
const BATCH_MAX: usize = (8 << 20) / PAGE_BYTES;

/// Rule 3: turns of a contender that may be taken again.
const RETAKES_MAX: usize = 3;

/// Page faults and bytes that a warm turn may have besides: stacks, and pages of this program.
const FAULTS_BESIDES: u64 = 256;
const FETCHED_BESIDES_BYTES: u64 = 256 << 10;

/// Contenders that compare with each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// From the drives, many reads in flight.
    Cold,
    /// From the drives, one read after the other.
    One,
    /// From memory.
    Warm,
}

/// How a contender reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    ReadMany,
    ReadAt,
    Ring,
    Pread,
    Mmap,
}

/// All contenders, in the order of the table.
pub const CONTENDERS: [(Group, Way); 10] = [
    (Group::Cold, Way::ReadMany),
    (Group::Cold, Way::Ring),
    (Group::One, Way::ReadAt),
    (Group::One, Way::Ring),
    (Group::One, Way::Pread),
    (Group::One, Way::Mmap),
    (Group::Warm, Way::ReadMany),
    (Group::Warm, Way::ReadAt),
    (Group::Warm, Way::Mmap),
    (Group::Warm, Way::Pread),
];

/// One turn.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sample {
    pub pages: u64,
    pub seen: Seen,
    /// Median and 99th percentile of the reads that were timed; `None` if none was.
    pub latency_us: Option<(f64, f64)>,
}

/// A contender, with its turns so far.
pub struct Contender {
    pub group: Group,
    pub way: Way,
    /// Its loop. `None` for cold reads of a mapping: each turn maps anew, because mapped pages stay in memory.
    reads: Option<Box<dyn Reads>>,
    /// Why it has no figures.
    pub missing: Option<String>,
    pub samples: Vec<Sample>,
    retaken: usize,
}

/// Everything that is open while contenders take turns.
pub struct Course<'a> {
    site: &'a Site,
    pub contenders: Vec<Contender>,
    /// Opened by iomill without a cache.
    pub cold: Opened,
    /// Opened by iomill with a cache that holds the warm part.
    warm: Opened,
    /// The parts, opened for the kernel's page cache.
    parts: Vec<File>,
    cold_deck: Deck,
    warm_deck: Deck,
    /// Whether the kernel counts what this file system fetches. If not, nothing proves that cold reads are cold.
    pub counts_fetches: bool,
    /// Whether the buffers of io_uring by hand are registered.
    pub is_registered: bool,
    /// Used by all turns, so that none takes new memory.
    count: Count,
}

impl<'a> Course<'a> {
    /// Opens everything, with up to `depth` reads in flight, and brings the warm part into memory.
    pub fn open(site: &'a Site, options: &ArrayOptions, depth: usize) -> Result<Course<'a>> {
        let parts = site.open_parts(false)?;
        // The limit of locked memory is one for all rings of a user. The first read makes iomill's ring. Those by hand
        // come before the large buffer that iomill registers, so each finds what it needs as long as the limit has room
        // for all.
        let cold = site.open(options, 0)?;
        cold.file.read_at(&mut [0; PAGE_BYTES], 0)?;
        let rings = [(Group::Cold, depth), (Group::One, 1)].map(|(group, depth)| (group, ring(site, depth)));
        let is_registered = rings.iter().all(|(_, ring)| ring.as_ref().is_ok_and(Ring::is_registered));
        // A page has a few places in the cache only, so a cache that is just as long would lack some pages. The engine
        // makes no difference to a hit, and this one locks no memory.
        let warm = site.open(&options.clone().engine(EngineKind::Posix), site.size.warm_bytes * 2)?;
        let (warm_pages, cold_pages) = site.size.pages();
        let mut course = Course {
            site,
            contenders: Vec::new(),
            cold,
            warm,
            parts,
            cold_deck: Deck::shuffled(cold_pages),
            warm_deck: Deck::shuffled(warm_pages),
            counts_fetches: false,
            is_registered,
            count: Count::default(),
        };
        course.counts_fetches = course.finds_out_about_fetches()?;
        // Before the mapping is made: it is populated at once.
        [Way::ReadMany, Way::Pread].into_iter().try_for_each(|way| course.warm_up(way))?;
        let mut rings = Vec::from(rings);
        for (group, way) in CONTENDERS {
            let reads = match rings.iter().position(|(ring, _)| way == Way::Ring && *ring == group) {
                Some(index) => rings.swap_remove(index).1.map(|ring| Some(Box::new(ring) as Box<dyn Reads>)),
                None => course.reads(group, way, depth)?,
            };
            let (reads, missing) = match reads {
                Ok(reads) => (reads, None),
                Err(why) => (None, Some(why)),
            };
            course.contenders.push(Contender { group, way, reads, missing, samples: Vec::new(), retaken: 0 });
        }
        Ok(course)
    }

    /// The loop of a contender other than the rings. `Ok(Err(why))` if it cannot read here.
    fn reads(&self, group: Group, way: Way, depth: usize) -> Result<Result<Option<Box<dyn Reads>>, String>> {
        let Opened { array, file } = if group == Group::Warm { &self.warm } else { &self.cold };
        let batch = (depth * BATCH_TURNS).min(BATCH_MAX).max(depth);
        let timed_every = if group == Group::Warm { TIMED_EVERY } else { 1 };
        let reads: Box<dyn Reads> = match (group, way) {
            (Group::Warm, Way::ReadMany) => Box::new(Gather::new(array, file, WARM_BATCH, WARM_BATCH)?),
            (_, Way::ReadMany) => Box::new(Gather::new(array, file, depth, batch)?),
            (_, Way::ReadAt) => Box::new(OneByOne::read_at(array, file, timed_every)?),
            (Group::Warm, Way::Mmap) => {
                let len = self.site.size.warm_bytes_of_part() as usize;
                Box::new(OneByOne::mapped(&self.parts, len, true, TIMED_EVERY)?)
            }
            (_, Way::Mmap) if self.counts_fetches => return Ok(Ok(None)),
            (_, Way::Mmap) => return Ok(Err(UNCOUNTED.to_owned())),
            (Group::Warm, _) => Box::new(OneByOne::pread(self.site.open_parts(false)?, timed_every)?),
            _ => match self.site.open_parts(true) {
                Ok(parts) => Box::new(OneByOne::pread(parts, timed_every)?),
                Err(error) => return Ok(Err(no_direct(error))),
            },
        };
        Ok(Ok(Some(reads)))
    }

    /// Whether the kernel counts the bytes that it fetches from this file system: reads a page that was dropped.
    fn finds_out_about_fetches(&self) -> Result<bool> {
        self.site.drop_cold(&self.parts)?;
        let meter = Meter::start()?;
        let read = self.parts[0].read_at(&mut [0; PAGE_BYTES], self.site.size.warm_bytes_of_part());
        read.map_err(|source| Error::io("read", &self.site.parts[0], source))?;
        Ok(meter.end()?.fetched_bytes.is_some_and(|bytes| bytes > 0))
    }

    /// Brings the warm part into iomill's cache, or into the kernel's.
    fn warm_up(&self, way: Way) -> Result<()> {
        let mut chunk = vec![0; 1 << 20];
        if matches!(way, Way::ReadMany | Way::ReadAt) {
            for offset in (0..self.site.size.warm_bytes).step_by(chunk.len()) {
                self.warm.file.read_at(&mut chunk, offset)?;
            }
            return Ok(());
        }
        let len = self.site.size.warm_bytes_of_part() as usize;
        for (part, path) in self.parts.iter().zip(&self.site.parts) {
            for offset in (0..len).step_by(chunk.len()) {
                let bytes = &mut chunk[..(len - offset).min(1 << 20)];
                part.read_exact_at(bytes, offset as u64).map_err(|source| Error::io("read", path, source))?;
            }
        }
        Ok(())
    }

    /// All rounds. Calls `turn_begins` for each turn, with the number of turns before it and of all turns. Returns
    /// whether all rounds are complete.
    pub fn run(&mut self, interrupt: &Interrupt, turn_begins: &mut dyn FnMut(usize, usize, usize)) -> Result<bool> {
        let all = self.contenders.len();
        for round in 0..=ROUNDS {
            for turn in 0..all {
                turn_begins(round, round * all + turn, (ROUNDS + 1) * all);
                let index = (turn + round) % all;
                while self.contenders[index].missing.is_none() {
                    let taken = self.turn(index, round, interrupt);
                    if interrupt.check().is_err() {
                        self.keep_complete();
                        return Ok(false);
                    }
                    if taken? {
                        break;
                    }
                }
            }
        }
        Ok(true)
    }

    /// Leaves out turns of a round that not all contenders have finished.
    fn keep_complete(&mut self) {
        let there = self.contenders.iter().filter(|one| one.missing.is_none());
        let complete = there.map(|one| one.samples.len()).min().unwrap_or(0);
        self.contenders.iter_mut().for_each(|one| one.samples.truncate(complete));
    }

    /// One turn of a contender. False if it must be taken again.
    fn turn(&mut self, index: usize, round: usize, interrupt: &Interrupt) -> Result<bool> {
        let Contender { group, way, .. } = self.contenders[index];
        let sample = match self.sample(index, round, interrupt) {
            Ok(sample) => sample,
            // Wrong bytes fail the whole measurement, and not only a rival: the file that all contenders read is
            // damaged.
            Err(error @ Error::Corrupt { .. }) => return Err(error.into()),
            Err(error) if matches!(way, Way::ReadMany | Way::ReadAt) => return Err(error.into()),
            Err(error) => {
                self.contenders[index].missing = Some(error.to_string());
                return Ok(true);
            }
        };
        let (sample, own) = sample;
        if round == 0 {
            return Ok(true);
        }
        let contender = &mut self.contenders[index];
        match broken(group, &sample, own.as_ref(), self.counts_fetches) {
            None => contender.samples.push(sample),
            Some(why) if contender.retaken == RETAKES_MAX => contender.missing = Some(why),
            Some(_) => {
                contender.retaken += 1;
                if group == Group::Warm {
                    self.warm_up(way)?;
                }
                if (group, way) == (Group::Warm, Way::Mmap) {
                    self.contenders[index].reads = self.reads(group, way, 1)?.unwrap_or_default();
                }
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Runs a contender's loop, and returns its figures and iomill's counters of the same time.
    fn sample(
        &mut self,
        index: usize,
        round: usize,
        interrupt: &Interrupt,
    ) -> Result<(Sample, Option<Counters>), Error> {
        let contender = &mut self.contenders[index];
        let is_warm = contender.group == Group::Warm;
        let (deck, passes) = if is_warm { (&mut self.warm_deck, WARM_PASSES) } else { (&mut self.cold_deck, 1) };
        let duration = if round == 0 { FIRST_TURN } else { TURN };
        let limits = Limits { duration, pages_max: deck.pages() * passes, stop: interrupt.flag() };
        if !is_warm {
            // Also before direct I/O: the kernel looks for each page among those that a mapping left in memory.
            self.site.drop_cold(&self.parts)?;
        }
        let mut mapped = None;
        let reads: &mut dyn Reads = match &mut contender.reads {
            Some(reads) => &mut **reads,
            None => {
                let len = self.site.size.bytes as usize / DRIVES;
                mapped.insert(OneByOne::mapped(&self.parts, len, false, 1)?)
            }
        };
        let array = if is_warm { &self.warm.array } else { &self.cold.array };
        let is_own = matches!(contender.way, Way::ReadMany | Way::ReadAt);
        let before = is_own.then(|| array.counters());
        self.count.pages = 0;
        self.count.latencies_ns.clear();
        let meter = Meter::start()?;
        reads.run(deck, &limits, &mut self.count)?;
        let seen = meter.end()?;
        drop(mapped);
        let own = before.map(|before| array.counters().since(&before));
        let latency_us = quantiles_us(&mut self.count.latencies_ns);
        Ok((Sample { pages: self.count.pages, seen, latency_us }, own))
    }

    /// Closes iomill's array and file.
    pub fn close(self) -> Result<Vec<Contender>> {
        let Course { mut contenders, cold, warm, .. } = self;
        contenders.iter_mut().for_each(|contender| contender.reads = None);
        cold.close()?;
        warm.close()?;
        Ok(contenders)
    }
}

/// The rule that a turn breaks.
fn broken(group: Group, sample: &Sample, own: Option<&Counters>, counts_fetches: bool) -> Option<String> {
    let bytes = sample.pages * PAGE_BYTES as u64;
    let fetched = sample.seen.fetched_bytes.filter(|_| counts_fetches);
    let [read, came] = [Some(bytes), fetched].map(|bytes| human::size(bytes.unwrap_or(0)));
    if group != Group::Warm {
        let by_iomill: Option<u64> = own.map(|own| own.drives.iter().map(|drive| drive.read_bytes).sum());
        return match (fetched, by_iomill) {
            (Some(fetched), _) if fetched < bytes / 10 * 9 => {
                Some(format!("it was not cold: of {read} that it read only {came} came from the drive"))
            }
            (_, Some(by_iomill)) if by_iomill < bytes => Some(format!(
                "it was not cold: of {read} that it read iomill asked the drives for {by_iomill} bytes only"
            )),
            _ => None,
        };
    }
    let few = sample.pages / 1000;
    if fetched.is_some_and(|fetched| fetched > few * PAGE_BYTES as u64 + FETCHED_BESIDES_BYTES) {
        return Some(format!("it was not warm: of {read} that it read {came} came from the drive"));
    }
    if sample.seen.faults > few + FAULTS_BESIDES {
        return Some(format!("it was not warm: it had {} page faults in {} reads", sample.seen.faults, sample.pages));
    }
    own.filter(|own| own.misses > few)
        .map(|own| format!("it was not warm: iomill's cache lacked {} of {} pages", own.misses, sample.pages))
}

/// A ring over the parts, or why there is none.
fn ring(site: &Site, depth: usize) -> Result<Ring, String> {
    let parts = site.open_parts(true).map_err(no_direct)?;
    Ring::new(parts, depth).map_err(|error| match &error {
        Error::Tool { what, why } if what == "io_uring" => {
            format!(
                "the kernel refuses io_uring, as in many containers, or with little memory to lock, `ulimit -l` ({why})"
            )
        }
        _ => error.to_string(),
    })
}

fn no_direct(error: Error) -> String {
    match error.errno() {
        Some(libc::EINVAL) => "the file system has no direct I/O".to_owned(),
        _ => error.to_string(),
    }
}

const UNCOUNTED: &str =
    "the kernel does not count what this file system fetches, so nothing shows whether its reads are cold";

/// Median and 99th percentile in microseconds.
fn quantiles_us(latencies_ns: &mut [u32]) -> Option<(f64, f64)> {
    latencies_ns.sort_unstable();
    let at = |percent: usize| Some(f64::from(*latencies_ns.get(latencies_ns.len() * percent / 100)?) / 1e3);
    Some((at(50)?, at(99)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(pages: u64, faults: u64, fetched: Option<u64>) -> Sample {
        let seen = Seen { faults, fetched_bytes: fetched.map(|pages| pages * PAGE_BYTES as u64), ..Seen::default() };
        Sample { pages, seen, latency_us: None }
    }

    #[test]
    fn cold_means_that_drives_were_read() {
        let why = |fetched, counts| broken(Group::Cold, &sample(1000, 0, fetched), None, counts);
        assert_eq!((why(Some(1000), true), why(Some(900), true), why(None, true)), (None, None, None));
        assert!(why(Some(899), true).is_some_and(|why| why.contains("not cold") && why.contains("3.5 MiB came")));
        assert_eq!(why(Some(0), false), None, "the kernel does not count for this file system");
        let own = Counters::default();
        let why = broken(Group::One, &sample(1000, 0, None), Some(&own), false);
        assert!(why.is_some_and(|why| why.contains("asked the drives for 0 bytes")));
        assert_eq!(broken(Group::One, &sample(0, 0, None), Some(&own), false), None);
    }

    #[test]
    fn warm_means_that_memory_was_read() {
        let why = |faults, fetched, misses| {
            let mut own = Counters::default();
            own.misses = misses;
            broken(Group::Warm, &sample(100_000, faults, Some(fetched)), Some(&own), true)
        };
        assert_eq!(why(356, 164, 100), None);
        assert!(why(357, 0, 0).is_some_and(|why| why.contains("357 page faults")));
        assert!(why(0, 165, 0).is_some_and(|why| why.contains("came from the drive")));
        assert!(why(0, 0, 101).is_some_and(|why| why.contains("lacked 101 of 100000")));
    }

    #[test]
    fn quantiles_are_of_sorted_times() {
        let mut times: Vec<u32> = (0..200).rev().map(|time| time * 1000).collect();
        assert_eq!(quantiles_us(&mut times), Some((100.0, 198.0)));
        assert_eq!((quantiles_us(&mut [7000]), quantiles_us(&mut [])), (Some((7.0, 7.0)), None));
    }
}

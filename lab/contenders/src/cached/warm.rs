//! Reads of records from a cache that holds all of the file: one call per record, one pin per record, or gathers.

use std::hint::black_box;
use std::sync::{Arc, Mutex, PoisonError};

use iomill::{ArrayOptions, Error, File, Result};

use super::{CountersAtStart, Hits, Opened, Place};
use crate::arena::Arena;
use crate::asynchronous::{Flyer, Load, Op, Ops};
use crate::contender::{Cache, Contender, IOMILL_PIN, IOMILL_READ_AT, IOMILL_READ_MANY, Sample, Slice};
use crate::pattern::PAGE_BYTES;
use crate::records::{self, Copier, Data, OneByOne, RECORD_BYTES, Reader, Record, RecordReads, Skew};
use crate::seen::Own;
use crate::task::Task;
use iomill_cli::human;

/// Bytes per read while the cache is filled.
const FILL_BYTES: usize = 1 << 20;

/// A cache that keeps a smaller share of the pages does not hold the file: the time of its misses would show in the
/// results.
const KEPT_MIN: f64 = 0.999;

/// The measured file in a cache that holds all of it. It is opened and read once for all contenders that read from it.
#[derive(Debug)]
pub struct Whole {
    place: Place,
    cache_bytes: u64,
    opened: Mutex<Option<Opened>>,
}

impl Whole {
    /// The file of an arena that has been filled, in a cache of that size.
    pub fn new(arena: &Arena, options: &ArrayOptions, cache_bytes: u64) -> Whole {
        Whole { place: Place::new(arena, options), cache_bytes, opened: Mutex::default() }
    }

    /// Opens the file and reads all of it into the cache, unless that has been done.
    fn open(&self) -> Result<std::result::Result<Opened, String>> {
        let mut held = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(opened) = &*held {
            return Ok(Ok(opened.clone()));
        }
        let opened = self.place.open(self.cache_bytes, false)?;
        read_all(&opened)?;
        let before = opened.array.counters();
        read_all(&opened)?;
        let kept = opened.array.counters().since(&before).hit_rate().unwrap_or(0.0);
        if kept < KEPT_MIN {
            let (cache, len) = (human::size(self.cache_bytes), human::size(opened.file.len()));
            let percent = 100.0 * kept;
            let why = format!("a cache of {cache} keeps only {percent:.2}% of {len}; give a larger --cache");
            opened.close()?;
            return Ok(Err(why));
        }
        Ok(Ok(held.insert(opened).clone()))
    }
}

fn read_all(opened: &Opened) -> Result<()> {
    let mut buffer = opened.array.buffer(FILL_BYTES)?;
    let mut offset = 0;
    while offset < opened.file.len() {
        offset += opened.file.read_at(&mut buffer, offset)? as u64;
    }
    Ok(())
}

/// All contenders that read from one cache.
pub fn warm(data: &Arc<Data>, whole: &Arc<Whole>, flyers: &[Flyer]) -> Vec<Box<dyn Contender<RecordReads>>> {
    let one = |name, calls| {
        let (data, whole) = (data.clone(), whole.clone());
        let reads = RecordReads { skew: Skew::Uniform, batch: 1 };
        let warm = Warm { name, calls, data, whole, reads, opened: None, hits: Hits::default() };
        Box::new(warm) as Box<dyn Contender<RecordReads>>
    };
    let blocking = [(IOMILL_READ_AT, Calls::ReadAt), (IOMILL_PIN, Calls::Pin), (IOMILL_READ_MANY, Calls::ReadMany)];
    let flying = flyers.iter().map(|flyer| (flyer.name(), Calls::InFlight(flyer.clone())));
    blocking.into_iter().chain(flying).map(|(name, calls)| one(name, calls)).collect()
}

#[derive(Clone, Debug)]
enum Calls {
    ReadAt,
    Pin,
    ReadMany,
    InFlight(Flyer),
}

#[derive(Debug)]
struct Warm {
    name: &'static str,
    calls: Calls,
    data: Arc<Data>,
    whole: Arc<Whole>,
    reads: RecordReads,
    /// The open array and file, with all bytes in the cache, once the contender is prepared.
    opened: Option<Opened>,
    /// Hits and misses of the timed slices since then.
    hits: Hits,
}

impl Contender<RecordReads> for Warm {
    fn name(&self) -> &'static str {
        self.name
    }

    fn cache(&self) -> Cache {
        Cache::Warm
    }

    fn prepare(&mut self, reads: &RecordReads) -> Result<Option<String>> {
        reads.check()?;
        (self.reads, self.hits) = (*reads, Hits::default());
        match self.whole.open()? {
            Ok(opened) => self.opened = Some(opened),
            Err(why) => return Ok(Some(why)),
        }
        Ok(None)
    }

    fn run(&mut self, slice: &Slice<'_>) -> Result<Sample> {
        let unprepared = || Error::Tool { what: self.name.to_owned(), why: "it has not been prepared".into() };
        let Opened { array, file } = self.opened.as_ref().ok_or_else(unprepared)?;
        let at_start = CountersAtStart::default();
        at_start.begin(array);
        let (reads, data) = (&self.reads, &*self.data);
        let mut sample = match &self.calls {
            Calls::ReadAt => records::run(slice, reads, data, || Ok(OneByOne(Called { file, data }))),
            Calls::Pin => records::run(slice, reads, data, || Ok(OneByOne(Pinned(file)))),
            Calls::ReadMany => records::run(slice, reads, data, || Ok(Gathered::new(file, reads.batch as usize))),
            Calls::InFlight(flyer) => {
                let load = Load { array, file, op_bytes: RECORD_BYTES, seed: data.seed(), writes: false };
                let ops = |lane, lanes| Ok(listed(data, reads.skew, lane, lanes));
                flyer.run(slice, &load, |_| Ok(()), ops, || ())
            }
        }?;
        let counted = at_start.end(array);
        sample.own = Some(Own { hits: counted.hits, misses: counted.misses });
        if !slice.verify {
            self.hits.add(&counted);
        }
        Ok(sample)
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = vec![self.hits.note(self.whole.cache_bytes)];
        match &self.calls {
            Calls::ReadMany => notes.push(format!("{} records per call", self.reads.batch)),
            Calls::InFlight(flyer) => notes.push(flyer.note()),
            Calls::ReadAt | Calls::Pin => {}
        }
        notes
    }
}

/// Goes round the list of records. Each lane starts at its own position.
fn listed(data: &Data, skew: Skew, lane: usize, lanes: usize) -> Ops {
    let list = data.list(skew);
    let first = list.len() / lanes * lane;
    Box::new((0..).map(move |at: usize| {
        let record = list[(first + at) % list.len()];
        Op { offset: u64::from(record) * RECORD_BYTES as u64, write: false }
    }))
}

struct Called<'a> {
    file: &'a File,
    data: &'a Data,
}

impl Copier for Called<'_> {
    #[inline(always)]
    fn copy(&mut self, offset: u64, record: &mut Record) -> Result<()> {
        match self.file.read_at(record, offset)? {
            RECORD_BYTES => Ok(()),
            read => Err(short(self.data, offset, read)),
        }
    }
}

#[cold]
fn short(data: &Data, offset: u64, read: usize) -> Error {
    let path = data.path().to_owned();
    Error::damaged(path, format!("the array's file has only {read} bytes of the record at offset {offset}"))
}

struct Pinned<'a>(&'a File);

impl Copier for Pinned<'_> {
    #[inline(always)]
    fn copy(&mut self, offset: u64, record: &mut Record) -> Result<()> {
        let pin = self.0.pin(offset / PAGE_BYTES as u64)?;
        // The file has whole pages, and no record crosses a page.
        let start = offset as usize % PAGE_BYTES;
        record.copy_from_slice(&pin[start..start + RECORD_BYTES]);
        Ok(())
    }
}

struct Gathered<'a> {
    file: &'a File,
    offsets: Vec<u64>,
    out: Vec<u8>,
}

impl Gathered<'_> {
    fn new(file: &File, batch: usize) -> Gathered<'_> {
        Gathered { file, offsets: Vec::with_capacity(batch), out: vec![0; batch * RECORD_BYTES] }
    }
}

impl Reader for Gathered<'_> {
    #[inline(always)]
    fn read<const VERIFY: bool>(&mut self, records: &[u32], data: &Data) -> Result<()> {
        self.offsets.clear();
        self.offsets.extend(records.iter().map(|&index| u64::from(index) * RECORD_BYTES as u64));
        let out = &mut self.out[..records.len() * RECORD_BYTES];
        self.file.read_many(out, &self.offsets, RECORD_BYTES)?;
        black_box(&*out);
        if VERIFY {
            for (&offset, record) in self.offsets.iter().zip(out.chunks_exact(RECORD_BYTES)) {
                data.check(offset, record)?;
            }
        }
        Ok(())
    }
}

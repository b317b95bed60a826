//! Reads of small records from bytes that are all in memory: the cost of a hit.
//!
//! Goals: all contenders do the same work, and nothing else is timed. The records are listed before the slice. All
//! contenders go through the same list, copy each record into a buffer and use it. Non-goals: latency, because reading
//! the clock costs as much as a read.

use std::fmt;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use iomill::{Error, Result};

use crate::contender::{Cache, Contender, Sample, Slice};
use crate::draw::{Choice, Draws};
use crate::pattern::{self, PAGE_BYTES};
use crate::task::Task;
use crate::threads::{self, Count, goes_on};

/// Length of a record. Records do not cross pages.
pub const RECORD_BYTES: usize = 128;

/// Records in a list. It is so long that the records do not stay in the CPU's caches. It is read in order, so that the
/// list itself costs almost nothing.
const LISTED: usize = 4 << 20;

/// The bytes of a record.
pub type Record = [u8; RECORD_BYTES];

/// The popularity of the records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Skew {
    /// All records are equally popular.
    Uniform,
    /// A few records are popular, by a zipf law.
    Zipf,
}

/// Random reads of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordReads {
    /// The popularity of the records.
    pub skew: Skew,
    /// Records per call, for contenders that take many in a call; at least one.
    pub batch: u32,
}

impl fmt::Display for RecordReads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // These are the names of `--skew`. All records of `warm` have the same length.
        f.write_str(match self.skew {
            Skew::Uniform => "uniform",
            Skew::Zipf => "zipf",
        })
    }
}

impl Task for RecordReads {
    fn check(&self) -> Result<()> {
        if self.batch == 0 || self.batch > 1 << 16 {
            return Err(Error::invalid(format!("a batch of {} records", self.batch), "give 1 to 65536"));
        }
        Ok(())
    }
}

/// The bytes to read: a plain file of pattern. The caches of the other contenders have the same length.
#[derive(Debug)]
pub struct Data {
    path: PathBuf,
    pages: u64,
    seed: u64,
    uniform: Arc<[u32]>,
    zipf: Arc<[u32]>,
}

impl Data {
    /// The pattern of `seed` in `pages` pages. The file at `path` holds these bytes.
    pub fn new(path: PathBuf, pages: u64, seed: u64) -> Result<Data> {
        let records = pages * (PAGE_BYTES / RECORD_BYTES) as u64;
        if records < 2 || u32::try_from(records).is_err() {
            let what = format!("{pages} pages of records");
            return Err(Error::invalid(what, "give at least one page and less than 512 GiB"));
        }
        let list = |choice| {
            let mut draws = Draws::new(choice, records, 0, 0, 1);
            (0..LISTED).map(|_| draws.draw() as u32).collect()
        };
        Ok(Data { path, pages, seed, uniform: list(Choice::Uniform), zipf: list(Choice::Zipf) })
    }

    /// The plain file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its length in pages.
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// Its length in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.pages * PAGE_BYTES as u64
    }

    /// The pattern's seed.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The records in the order in which they are read.
    pub(crate) fn list(&self, skew: Skew) -> Arc<[u32]> {
        Arc::clone(match skew {
            Skew::Uniform => &self.uniform,
            Skew::Zipf => &self.zipf,
        })
    }

    /// Checks all bytes of a record.
    pub(crate) fn check(&self, offset: u64, record: &[u8]) -> Result<()> {
        if pattern::holds(self.seed, offset, record) {
            Ok(())
        } else {
            Err(pattern::wrong(&self.path, "record", offset))
        }
    }
}

/// Reads a given list of records.
pub trait Reader {
    /// Reads each of `records`, and uses its bytes.
    fn read<const VERIFY: bool>(&mut self, records: &[u32], data: &Data) -> Result<()>;
}

/// Reads one record.
pub trait Copier {
    /// Copies the record at `offset`.
    fn copy(&mut self, offset: u64, record: &mut Record) -> Result<()>;
}

/// A reader that copies one record after the other.
#[derive(Debug)]
pub struct OneByOne<C>(pub C);

impl<C: Copier> Reader for OneByOne<C> {
    #[inline(always)]
    fn read<const VERIFY: bool>(&mut self, records: &[u32], data: &Data) -> Result<()> {
        let mut record = [0; RECORD_BYTES];
        for &index in records {
            let offset = u64::from(index) * RECORD_BYTES as u64;
            self.0.copy(offset, &mut record)?;
            // Without this the compiler would remove the copy as unused.
            black_box(&record);
            if VERIFY {
                data.check(offset, &record)?;
            }
        }
        Ok(())
    }
}

/// A slice of reads of records.
type Reads = dyn FnMut(&Slice<'_>, &RecordReads, &Data) -> Result<Sample> + Send;

/// A contender that has all of the data in memory, and reads records of it.
pub struct InMemory {
    name: &'static str,
    notes: Vec<String>,
    data: Arc<Data>,
    reads: RecordReads,
    read: Box<Reads>,
}

impl InMemory {
    /// A contender of that name. `read` reads the data into memory if necessary, and then runs a slice.
    pub fn new(
        name: &'static str,
        data: &Arc<Data>,
        read: impl FnMut(&Slice<'_>, &RecordReads, &Data) -> Result<Sample> + Send + 'static,
    ) -> InMemory {
        let reads = RecordReads { skew: Skew::Uniform, batch: 1 };
        InMemory { name, notes: Vec::new(), data: data.clone(), reads, read: Box::new(read) }
    }

    /// Adds important facts for a reader of the figures.
    pub fn noting(mut self, note: impl Into<String>) -> InMemory {
        self.notes.push(note.into());
        self
    }
}

impl Contender<RecordReads> for InMemory {
    fn name(&self) -> &'static str {
        self.name
    }

    fn cache(&self) -> Cache {
        Cache::Warm
    }

    fn prepare(&mut self, reads: &RecordReads) -> Result<Option<String>> {
        reads.check()?;
        self.reads = *reads;
        Ok(None)
    }

    fn run(&mut self, slice: &Slice<'_>) -> Result<Sample> {
        (self.read)(slice, &self.reads, &self.data)
    }

    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }
}

/// Runs one slice. `set_up` makes a reader for each thread.
pub fn run<R: Reader>(
    slice: &Slice<'_>,
    reads: &RecordReads,
    data: &Data,
    set_up: impl Fn() -> Result<R> + Sync,
) -> Result<Sample> {
    let list = &*data.list(reads.skew);
    let batch = reads.batch as usize;
    threads::run(
        slice,
        |thread| Ok((set_up()?, list.len() / slice.threads.max(1) * thread)),
        |(reader, at), stop| match slice.verify {
            true => work::<R, true>(reader, at, list, batch, data, stop),
            false => work::<R, false>(reader, at, list, batch, data, stop),
        },
    )
}

fn work<R: Reader, const VERIFY: bool>(
    reader: &mut R,
    at: &mut usize,
    list: &[u32],
    batch: usize,
    data: &Data,
    stop: &AtomicBool,
) -> Result<Count> {
    let mut count = Count::new()?;
    while goes_on(count.ops, stop) {
        let records = &list[*at..list.len().min(*at + batch)];
        reader.read::<VERIFY>(records, data)?;
        *at = if *at + batch < list.len() { *at + batch } else { 0 };
        count.ops += records.len() as u64;
    }
    count.bytes = count.ops * RECORD_BYTES as u64;
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn lists_cover_the_data_and_differ_in_skew() {
        let data = Data::new("none".into(), 1024, 1).unwrap();
        let distinct = |skew| data.list(skew)[..100_000].iter().collect::<HashSet<_>>().len();
        assert!(distinct(Skew::Uniform) > 30_000 && distinct(Skew::Zipf) < 24_000);
        for skew in [Skew::Uniform, Skew::Zipf] {
            assert!(data.list(skew).iter().all(|&record| u64::from(record) < 1024 * 32));
        }
        assert!(Data::new("none".into(), 0, 1).is_err() && Data::new("none".into(), 1 << 27, 1).is_err());
        assert!(RecordReads { skew: Skew::Zipf, batch: 0 }.check().is_err());
        assert_eq!(RecordReads { skew: Skew::Zipf, batch: 64 }.to_string(), "zipf");
    }
}

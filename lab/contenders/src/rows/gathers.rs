//! Rows gathered by iomill: one call of `read_rows` for many of them, from a plain file with a runtime of its own.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use iomill::{Counters, Error, File, PlainOptions, Result, Runtime, RuntimeOptions};

use super::{Course, Gather, RowReads, why_not};
use crate::contender::{Cache, Contender, IOMILL_READ_ROWS, Sample, Slice};
use crate::pattern::PAGE_BYTES;
use crate::rivals::pread::set_temperature;
use crate::seen::Own;
use crate::target::Target;
use crate::task::Task;
use iomill_cli::human;

/// Bytes per read while all of the file is read into the cache.
const FILL_BYTES: usize = 1 << 20;

/// See the head of this file.
#[derive(Debug)]
pub struct ReadRows {
    path: PathBuf,
    options: RuntimeOptions,
    /// Held or warm.
    cache: Cache,
    /// The file, the part of it that is read, and the rows, once the contender is prepared.
    prepared: Option<(Target, RowReads, Arc<[u64]>)>,
    /// Warm: the open file, with all of it in the cache.
    opened: Option<(Runtime, File)>,
    notices: Vec<String>,
}

impl ReadRows {
    /// Rows of that file. `options` are those of the runtime, except for the size of its cache.
    pub fn new(path: PathBuf, options: RuntimeOptions, cache: Cache) -> ReadRows {
        ReadRows { path, options, cache, prepared: None, opened: None, notices: Vec::new() }
    }

    /// Opens the file with an empty cache of that size.
    fn open(&self, cache_bytes: u64) -> Result<(Runtime, File)> {
        let runtime = self.options.clone().cache_bytes(cache_bytes).start()?;
        let file = PlainOptions::new().runtime(&runtime).open(&self.path)?;
        Ok((runtime, file))
    }
}

impl Contender<RowReads> for ReadRows {
    fn name(&self) -> &'static str {
        IOMILL_READ_ROWS
    }

    fn cache(&self) -> Cache {
        self.cache
    }

    fn prepare(&mut self, reads: &RowReads) -> Result<Option<String>> {
        reads.check()?;
        let target = Target::plain(self.path.clone(), reads.len_bytes)?;
        let why = why_not(&target, self.cache)?;
        if self.cache == Cache::Warm && why.is_none() {
            let (runtime, file) = self.open(reads.cache_bytes)?;
            let mut buffer = runtime.buffer(FILL_BYTES)?;
            let mut offset = 0;
            while offset < reads.len_bytes {
                let read = file.read_at(&mut buffer, offset)?;
                if read == 0 {
                    break;
                }
                offset += read as u64;
            }
            self.opened = Some((runtime, file));
            // The checked slice compares with `pread`, which must not read from a drive either.
            set_temperature(&target, Cache::Warm)?;
        }
        self.prepared = Some((target, *reads, reads.list()));
        Ok(why)
    }

    fn run(&mut self, slice: &Slice<'_>) -> Result<Sample> {
        let unprepared = || Error::Tool { what: IOMILL_READ_ROWS.to_owned(), why: "it has not been prepared".into() };
        let (target, reads, list) = self.prepared.as_ref().ok_or_else(unprepared)?;
        let (runtime, file) = match &self.opened {
            Some(opened) => opened.clone(),
            None => {
                target.drop_cached()?;
                let (runtime, file) = self.open(reads.cache_bytes)?;
                for (offset, len) in reads.stretches() {
                    let mut buffer = runtime.buffer(len)?;
                    file.read_at(&mut buffer, offset)?;
                }
                (runtime, file)
            }
        };
        let at_start: OnceLock<Counters> = OnceLock::new();
        let mut note_start = || {
            at_start.get_or_init(|| runtime.counters());
            Ok(())
        };
        let step = reads.batch as usize;
        let course = Course { target, reads, list, cache: self.cache, step };
        let row_bytes = reads.row_bytes as usize;
        let mut sample = course.run(slice, &mut note_start, || Ok(Gathered { file: &file, row_bytes }))?;
        let before = at_start.get().ok_or_else(unprepared)?;
        let counted = runtime.counters().since(before);
        let (pages, room) = (before.fills.saturating_sub(before.evictions), reads.cache_bytes.min(reads.len_bytes));
        sample.filled = Some((pages * PAGE_BYTES as u64) as f64 / room.max(1) as f64);
        sample.own = Some(Own { hits: counted.hits, misses: counted.misses });
        if self.cache == Cache::Held {
            sample.fetched_bytes = Some(counted.drives.iter().map(|drive| drive.read_bytes).sum());
        }
        self.notices = runtime.notices();
        Ok(sample)
    }

    fn notes(&self) -> Vec<String> {
        let of = |(_, reads, _): &(Target, RowReads, Arc<[u64]>)| {
            format!(
                "a cache of {}; latency is that of a whole call for {} rows",
                human::size(reads.cache_bytes),
                reads.batch
            )
        };
        self.prepared.iter().map(of).chain(self.notices.iter().cloned()).collect()
    }
}

struct Gathered<'a> {
    file: &'a File,
    row_bytes: usize,
}

impl Gather for Gathered<'_> {
    fn gather(&mut self, ids: &[u64], out: &mut [u8]) -> Result<()> {
        self.file.read_rows(out, ids, self.row_bytes, 0)
    }
}

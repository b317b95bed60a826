//! Rows copied one after the other: out of a mapping, with and without advice, or by `pread`.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use iomill::{Error, Result};
use rustix::fs::Advice;
use serde::{Deserialize, Serialize};

use super::{Course, Gather, RowReads, why_not};
use crate::contender::{Cache, Contender, MMAP, MMAP_RANDOM, PREAD, Sample, Slice};
use crate::memory::Region;
use crate::target::{Target, advise};
use crate::task::Task;

/// Rows between two checks for the end of a slice.
const STEP: usize = 64;

/// How a row is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Way {
    /// Out of a mapping without advice, like that of `numpy.memmap`.
    Mapped,
    /// Out of a mapping with the advice that reads are random.
    MappedRandom,
    /// By `pread`, with the same advice.
    Called,
}

impl Way {
    /// The contender's name.
    pub fn name(self) -> &'static str {
        match self {
            Way::Mapped => MMAP,
            Way::MappedRandom => MMAP_RANDOM,
            Way::Called => PREAD,
        }
    }
}

/// See the head of this file.
#[derive(Debug)]
pub struct Loops {
    way: Way,
    path: PathBuf,
    cache: Cache,
    /// The file, the part of it that is read, and the rows, once the contender is prepared.
    prepared: Option<(Target, RowReads, Arc<[u64]>)>,
}

impl Loops {
    /// Rows of that file, read in that way and state.
    pub fn new(way: Way, path: PathBuf, cache: Cache) -> Loops {
        Loops { way, path, cache, prepared: None }
    }

    /// Runs one slice. Calls `ready` when it is set up and before the clock starts.
    pub(crate) fn run_told(&mut self, slice: &Slice<'_>, ready: &mut dyn FnMut() -> Result<()>) -> Result<Sample> {
        let unprepared = || Error::Tool { what: self.way.name().to_owned(), why: "it has not been prepared".into() };
        let (target, reads, list) = self.prepared.as_ref().ok_or_else(unprepared)?;
        let course = Course { target, reads, list, cache: self.cache, step: STEP };
        if self.cache != Cache::Warm {
            target.drop_cached()?;
        }
        let file = target.open(false, false)?.remove(0);
        if self.cache == Cache::Held {
            let mut bytes = Vec::new();
            for (offset, len) in reads.stretches() {
                bytes.resize(len, 0);
                file.read_exact_at(&mut bytes, offset).map_err(|source| self.failed(offset, source))?;
            }
        }
        let failed = |e: rustix::io::Errno| Error::io("map", &self.path, e.into());
        let map = || match self.way {
            Way::MappedRandom => Region::file(&file, reads.len_bytes as usize),
            Way::Mapped | Way::Called => Region::file_as_it_comes(&file, reads.len_bytes as usize),
        };
        if self.cache == Cache::Warm || self.way != Way::Called {
            let mapped = map().map_err(failed)?;
            if self.cache == Cache::Warm {
                // This also reads missing pages into memory, which `pread` needs.
                mapped.populate().map_err(failed)?;
            }
            if self.way != Way::Called {
                let row_bytes = reads.row_bytes as usize;
                return course.run(slice, ready, || Ok(Mapped { bytes: mapped.bytes(), row_bytes }));
            }
        }
        advise(&file, &self.path, Advice::Random)?;
        course.run(slice, ready, || Ok(Called { file: &file, of: self, row_bytes: reads.row_bytes as usize }))
    }

    #[cold]
    fn failed(&self, offset: u64, source: std::io::Error) -> Error {
        Error::io_at("read", self.path.clone(), offset, source)
    }
}

impl Contender<RowReads> for Loops {
    fn name(&self) -> &'static str {
        self.way.name()
    }

    fn cache(&self) -> Cache {
        self.cache
    }

    fn prepare(&mut self, reads: &RowReads) -> Result<Option<String>> {
        reads.check()?;
        let target = Target::plain(self.path.clone(), reads.len_bytes)?;
        // A process with limited memory touches no measured byte before it has its limit (`held`, H1).
        let why = if self.cache == Cache::Held { None } else { why_not(&target, self.cache)? };
        self.prepared = Some((target, *reads, reads.list()));
        Ok(why)
    }

    fn run(&mut self, slice: &Slice<'_>) -> Result<Sample> {
        self.run_told(slice, &mut || Ok(()))
    }

    fn notes(&self) -> Vec<String> {
        let way = match self.way {
            Way::Mapped => "a mapping without advice, as numpy.memmap makes it; one row after the other is copied",
            Way::MappedRandom => "a mapping with MADV_RANDOM; one row after the other is copied",
            Way::Called => "one call per row, with POSIX_FADV_RANDOM",
        };
        let unlimited = "dropped from the page cache before each slice, and then all of the machine's memory is for it";
        [way].into_iter().chain((self.cache == Cache::Cold).then_some(unlimited)).map(str::to_owned).collect()
    }
}

struct Mapped<'a> {
    bytes: &'a [u8],
    row_bytes: usize,
}

impl Gather for Mapped<'_> {
    #[inline]
    fn gather(&mut self, ids: &[u64], out: &mut [u8]) -> Result<()> {
        for (&id, row) in ids.iter().zip(out.chunks_exact_mut(self.row_bytes)) {
            let start = id as usize * self.row_bytes;
            row.copy_from_slice(&self.bytes[start..start + self.row_bytes]);
        }
        Ok(())
    }
}

struct Called<'a> {
    file: &'a File,
    of: &'a Loops,
    row_bytes: usize,
}

impl Gather for Called<'_> {
    #[inline]
    fn gather(&mut self, ids: &[u64], out: &mut [u8]) -> Result<()> {
        for (&id, row) in ids.iter().zip(out.chunks_exact_mut(self.row_bytes)) {
            let offset = id * self.row_bytes as u64;
            self.file.read_exact_at(row, offset).map_err(|source| self.of.failed(offset, source))?;
        }
        Ok(())
    }
}

//! Records from a plain file that is in the page cache: mapped, and by `pread`.
//!
//! The mapping gets no advice, and all its pages are mapped before the slice. The kernel maps huge pages if it has the file in such
//! pieces, which needs a machine with free memory. A second contender has small pages only.
//! Non-goals: files that do not fit in memory (`held`).

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use iomill::{Error, Result};

use crate::contender::{Cache, Contender, MMAP, MMAP_SMALL_PAGES, PREAD, Sample, Slice};
use crate::memory::Region;
use crate::records::{self, Copier, Data, OneByOne, RECORD_BYTES, Record, RecordReads, Skew};
use crate::task::Task;

/// See the head of this file.
#[derive(Debug)]
pub struct Resident {
    name: &'static str,
    data: Arc<Data>,
    reads: RecordReads,
}

impl Resident {
    /// Reads from a mapping of the file.
    pub fn mmap(data: Arc<Data>) -> Resident {
        Resident { name: MMAP, data, reads: RecordReads { skew: Skew::Uniform, batch: 1 } }
    }

    /// Reads from a mapping with small pages only.
    pub fn mmap_small_pages(data: Arc<Data>) -> Resident {
        Resident { name: MMAP_SMALL_PAGES, ..Resident::mmap(data) }
    }

    /// Reads the file by `pread`.
    pub fn pread(data: Arc<Data>) -> Resident {
        Resident { name: PREAD, ..Resident::mmap(data) }
    }
}

impl Contender<RecordReads> for Resident {
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
        let path = self.data.path();
        let file = File::open(path).map_err(|e| Error::io("open", path, e))?;
        let failed = |e: rustix::io::Errno| Error::io("map", path, e.into());
        let mapped = Region::file_as_it_comes(&file, self.data.len_bytes() as usize).map_err(failed)?;
        if self.name == MMAP_SMALL_PAGES {
            mapped.keep_small_pages().map_err(failed)?;
        }
        // Reads missing pages into memory. `pread` needs this too, and gains nothing else from the mapping.
        mapped.populate().map_err(failed)?;
        if self.name != PREAD {
            return records::run(slice, &self.reads, &self.data, || Ok(OneByOne(Mapped(mapped.bytes()))));
        }
        drop(mapped);
        records::run(slice, &self.reads, &self.data, || Ok(OneByOne(Called { file: &file, data: &self.data })))
    }
}

struct Mapped<'a>(&'a [u8]);

impl Copier for Mapped<'_> {
    #[inline(always)]
    fn copy(&mut self, offset: u64, record: &mut Record) -> Result<()> {
        let start = offset as usize;
        record.copy_from_slice(&self.0[start..start + RECORD_BYTES]);
        Ok(())
    }
}

struct Called<'a> {
    file: &'a File,
    data: &'a Data,
}

impl Copier for Called<'_> {
    #[inline(always)]
    fn copy(&mut self, offset: u64, record: &mut Record) -> Result<()> {
        self.file.read_exact_at(record, offset).map_err(|source| failed(self.data, offset, source))
    }
}

#[cold]
fn failed(data: &Data, offset: u64, source: std::io::Error) -> Error {
    Error::Io { action: "read", path: data.path().to_owned(), offset: Some(offset), source }
}

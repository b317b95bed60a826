//! Records from a plain file that is in the page cache: mapped, and by `pread`.
//!
//! The mapping gets no advice, and all its pages are mapped before the slice. The kernel maps huge pages if the page
//! cache has the file in such pieces, for which a machine needs free memory. A second contender has small pages only.
//! Non-goals: files that do not fit in memory (`held`).

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use iomill::{Error, Result};

use crate::contender::{MMAP, MMAP_SMALL_PAGES, PREAD};
use crate::memory::Region;
use crate::records::{self, Copier, Data, InMemory, OneByOne, RECORD_BYTES, Record};

/// Reads from a mapping of the file.
pub fn mmap(data: &Arc<Data>) -> InMemory {
    InMemory::new(MMAP, data, |slice, reads, data| {
        let (_file, mapped) = mapped(data, false)?;
        records::run(slice, reads, data, || Ok(OneByOne(Mapped(mapped.bytes()))))
    })
}

/// Reads from a mapping with small pages only.
pub fn mmap_small_pages(data: &Arc<Data>) -> InMemory {
    InMemory::new(MMAP_SMALL_PAGES, data, |slice, reads, data| {
        let (_file, mapped) = mapped(data, true)?;
        records::run(slice, reads, data, || Ok(OneByOne(Mapped(mapped.bytes()))))
    })
}

/// Reads the file by `pread`.
pub fn pread(data: &Arc<Data>) -> InMemory {
    InMemory::new(PREAD, data, |slice, reads, data| {
        // Populating a mapping reads missing pages into memory. `pread` needs nothing else of it.
        let (file, mapped) = mapped(data, false)?;
        drop(mapped);
        records::run(slice, reads, data, || Ok(OneByOne(Called { file: &file, data })))
    })
}

/// The file and a mapping of all of it, which is in memory.
fn mapped(data: &Data, small_pages: bool) -> Result<(File, Region)> {
    let path = data.path();
    let file = File::open(path).map_err(|e| Error::io("open", path, e))?;
    let failed = |e: rustix::io::Errno| Error::io("map", path, e.into());
    let mapped = Region::file_as_it_comes(&file, data.len_bytes() as usize).map_err(failed)?;
    if small_pages {
        mapped.keep_small_pages().map_err(failed)?;
    }
    mapped.populate().map_err(failed)?;
    Ok((file, mapped))
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
    Error::io_at("read", data.path().to_owned(), offset, source)
}

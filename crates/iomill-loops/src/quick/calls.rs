//! Loops of calls that return when their pages are there: iomill's, `pread`, and copies out of a mapping.

use std::fs::File;
use std::hint::black_box;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::Instant;

use iomill::{Array, Buffer, Error, Result};
use rustix::io::Errno;

use super::memory::Memory;
use super::pages::{self, Deck, PAGE_BYTES};
use super::{Count, Limits, Reads};

/// A batch gets longer as long as a call takes less than this part of a slice. On a slow drive a long batch would not
/// end in time.
const BATCHES_PER_SLICE: u32 = 8;

/// iomill's `read_many`: many pages in a call.
pub struct Gather {
    file: iomill::File,
    buffer: Buffer,
    offsets: Vec<u64>,
    batch: usize,
}

impl Gather {
    /// Gathers of `batch` pages at first, and of up to `batch_max` where these do not take too long. Neither is 0.
    pub fn new(array: &Array, file: &iomill::File, batch: usize, batch_max: usize) -> Result<Gather> {
        let buffer = array.buffer(batch_max.max(batch) * PAGE_BYTES)?;
        Ok(Gather { file: file.clone(), buffer, offsets: Vec::new(), batch })
    }
}

impl Reads for Gather {
    fn run(&mut self, deck: &mut Deck, limits: &Limits<'_>, count: &mut Count) -> Result<()> {
        let (mut before, mut left) = (Instant::now(), limits.pages_max);
        let end = before + limits.duration;
        while left > 0 {
            let pages = (self.batch as u64).min(left) as usize;
            self.offsets.clear();
            self.offsets.extend((0..pages).map(|_| deck.draw() * PAGE_BYTES as u64));
            let out = &mut self.buffer[..pages * PAGE_BYTES];
            self.file.read_many(out, &self.offsets, PAGE_BYTES)?;
            for (offset, page) in self.offsets.iter().zip(out.chunks_exact(PAGE_BYTES)) {
                pages::check(offset / PAGE_BYTES as u64, pages::head(page))?;
            }
            count.pages += pages as u64;
            left -= pages as u64;
            let now = Instant::now();
            if !limits.goes_on(end, now) {
                break;
            }
            let is_short = now - before < limits.duration / BATCHES_PER_SLICE;
            if is_short && self.batch * 2 * PAGE_BYTES <= self.buffer.len() {
                self.batch *= 2;
            }
            before = now;
        }
        Ok(())
    }
}

/// One page after the other.
pub struct OneByOne {
    /// Reads a page, and returns its first bytes.
    read: Box<dyn FnMut(u64) -> Result<[u8; 8]>>,
    /// One read in this many is timed.
    timed_every: u64,
}

impl OneByOne {
    /// iomill's `read_at`. Times one read in `timed_every`, which is not 0; so do the others.
    pub fn read_at(array: &Array, file: &iomill::File, timed_every: u64) -> Result<OneByOne> {
        let (file, mut buffer) = (file.clone(), array.buffer(PAGE_BYTES)?);
        let read = Box::new(move |page| {
            // A short read leaves the page before in the buffer, and the check finds it.
            file.read_at(&mut buffer, page * PAGE_BYTES as u64)?;
            Ok(pages::head(&buffer))
        });
        Ok(OneByOne { read, timed_every })
    }

    /// `pread` on the parts, in the layout's order.
    pub fn pread(parts: Vec<File>, timed_every: u64) -> Result<OneByOne> {
        let mut buffer = Memory::anonymous(PAGE_BYTES).map_err(refused("memory for a page"))?;
        let read = Box::new(move |page| {
            let (part, offset) = pages::place(page);
            parts[part].read_exact_at(buffer.bytes_mut(), offset).map_err(|e| failed(part, offset, e))?;
            Ok(pages::head(buffer.bytes()))
        });
        Ok(OneByOne { read, timed_every })
    }

    /// Copies of pages out of the first `len_bytes` of mapped parts, in the layout's order. With `is_populated` all
    /// their pages come into memory now, so that no read faults.
    pub fn mapped(parts: &[File], len_bytes: usize, is_populated: bool, timed_every: u64) -> Result<OneByOne> {
        let mapped: Vec<Memory> = parts
            .iter()
            .map(|part| Memory::file(part, len_bytes, is_populated))
            .collect::<Result<_, _>>()
            .map_err(refused("a mapping"))?;
        let mut buffer = Memory::anonymous(PAGE_BYTES).map_err(refused("memory for a page"))?;
        let read = Box::new(move |page| {
            let (part, offset) = pages::place(page);
            buffer.bytes_mut().copy_from_slice(&mapped[part].bytes()[offset as usize..][..PAGE_BYTES]);
            // Without this the compiler would leave out all of the copy except what is checked.
            black_box(buffer.bytes_mut());
            Ok(pages::head(buffer.bytes()))
        });
        Ok(OneByOne { read, timed_every })
    }
}

impl Reads for OneByOne {
    fn run(&mut self, deck: &mut Deck, limits: &Limits<'_>, count: &mut Count) -> Result<()> {
        let end = Instant::now() + limits.duration;
        for turn in 0..limits.pages_max {
            let page = deck.draw();
            let start = (turn % self.timed_every == 0).then(Instant::now);
            let first = (self.read)(page)?;
            let times = start.map(|start| (start, Instant::now()));
            pages::check(page, first)?;
            count.pages += 1;
            if let Some((start, now)) = times {
                count.add(now - start);
                if !limits.goes_on(end, now) {
                    break;
                }
            }
        }
        Ok(())
    }
}

/// The error of a failed read of a part.
#[cold]
pub(crate) fn failed(part: usize, offset: u64, source: io::Error) -> Error {
    Error::io_at("read", format!("part {part} of the measured file"), offset, source)
}

fn refused(what: &'static str) -> impl Fn(Errno) -> Error {
    move |error| Error::Tool { what: what.into(), why: io::Error::from(error).to_string() }
}

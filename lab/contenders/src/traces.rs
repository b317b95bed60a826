//! Requests of a recorded block trace, in batches, as fast as the array runs them.
//!
//! Goals: reads and writes at the offsets of the trace, the same for every step. Non-goals: the recorded times between
//! requests; requests that are not whole pages, and caches (`iomill-lab replay` has both).
//!
//! Rules:
//! 1. A request covers all pages that it touches, as a cache asks for them. Pages are the unit of direct I/O; a request
//!    within a page would measure bounce pages. Devices lie end to end (`Survey`). An offset is taken modulo the length
//!    of the measured file. A request that would cross the end of the file moves to its start. A request longer than
//!    the file is cut to its length.
//! 2. Consecutive requests make a batch. I/Os in flight together have no order, so one call does a batch's reads and
//!    another its writes.
//! 3. While reads are checked, writes write the pattern of their offset, so that no thread reads other bytes.
//!    Afterwards all writes write the same incompressible bytes: new bytes for each write would be part of the measured
//!    time.

use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use iomill::{Array, Buffer, Error, File};
use iomill_trace::replay::Survey;
use iomill_trace::{Format, Op, Reader, TraceError};

use crate::arena::SEED;
use crate::loads::BATCH_PAGES;
use crate::pattern::{self, PAGE_BYTES};
use crate::threads::{Count, goes_on};

/// A batch has at most this many requests. A batch of two or more has at most this many bytes.
const BATCH_REQUESTS: usize = BATCH_PAGES;
const BATCH_BYTES: usize = BATCH_PAGES * PAGE_BYTES;

/// A trace, ready to be replayed on a file of one length.
#[derive(Clone, PartialEq, Eq)]
pub struct Trace {
    name: String,
    /// Not empty. Each batch transfers some bytes.
    batches: Vec<Batch>,
    /// The most bytes that the reads or the writes of one batch have.
    most_bytes: usize,
}

/// Requests that are in flight together. Each is an (offset, length) in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Batch {
    reads: Vec<(u64, usize)>,
    writes: Vec<(u64, usize)>,
    read_bytes: usize,
    write_bytes: usize,
}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trace").field("name", &self.name).field("batches", &self.batches.len()).finish_non_exhaustive()
    }
}

impl Trace {
    /// Reads the first `limit` requests of a trace, for a file of `len_bytes` (whole pages).
    pub fn open(
        name: String,
        path: &Path,
        format: Option<Format>,
        limit: u64,
        len_bytes: u64,
    ) -> iomill_trace::Result<Trace> {
        let len_bytes = len_bytes / PAGE_BYTES as u64 * PAGE_BYTES as u64;
        if len_bytes == 0 {
            return Err(Error::invalid("a file without pages", "give at least one page, 4KiB").into());
        }
        let survey = Survey::of(&mut Reader::open(path, format)?, limit, &AtomicBool::new(false))?;
        let mut trace = Trace { name, batches: Vec::new(), most_bytes: 0 };
        let (mut reader, mut batch) = (Reader::open(path, format)?, Batch::default());
        for _ in 0..limit {
            let Some(request) = reader.next_request()? else { break };
            if request.len == 0 {
                continue;
            }
            let (offset, len) = wrap(survey.place(request, reader.path())?, request.len, len_bytes);
            let requests = batch.reads.len() + batch.writes.len();
            if requests == BATCH_REQUESTS || batch.read_bytes + batch.write_bytes + len > BATCH_BYTES {
                trace.take(std::mem::take(&mut batch));
            }
            let (places, bytes) = match request.op {
                Op::Read => (&mut batch.reads, &mut batch.read_bytes),
                Op::Write => (&mut batch.writes, &mut batch.write_bytes),
            };
            places.push((offset, len));
            *bytes += len;
        }
        trace.take(batch);
        if trace.batches.is_empty() {
            let why = "its requests transfer nothing; give a trace with reads or writes".to_owned();
            return Err(TraceError::Whole { path: reader.path().to_owned(), why });
        }
        Ok(trace)
    }

    fn take(&mut self, batch: Batch) {
        self.most_bytes = self.most_bytes.max(batch.read_bytes).max(batch.write_bytes);
        if batch.read_bytes + batch.write_bytes > 0 {
            self.batches.push(batch);
        }
    }

    /// The trace's name in reports.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether any of its requests writes.
    pub fn writes(&self) -> bool {
        self.batches.iter().any(|batch| batch.write_bytes > 0)
    }
}

/// Rule 1: the range of a request in a file of `len_bytes`. The file has at least one page, and whole pages only. The
/// request is not empty.
fn wrap(place: u64, len: u32, len_bytes: u64) -> (u64, usize) {
    let page = PAGE_BYTES as u64;
    let (first, end, pages) = (place / page, (place + u64::from(len)).div_ceil(page), len_bytes / page);
    let count = (end - first).min(pages);
    let at = if first % pages + count <= pages { first % pages } else { 0 };
    (at * page, (count * page) as usize)
}

/// A thread that replays a trace together with other threads.
pub struct Worker<'a> {
    file: File,
    trace: &'a Trace,
    /// The number of the next batch, shared by all threads. After the last batch comes the first.
    next: &'a AtomicUsize,
    buffer: Buffer,
    content: Buffer,
}

impl<'a> Worker<'a> {
    /// The first read makes the rings before the clock starts.
    pub fn new(array: &Array, file: &File, trace: &'a Trace, next: &'a AtomicUsize) -> iomill::Result<Self> {
        let pages = trace.most_bytes.max(1).div_ceil(PAGE_BYTES);
        let (mut buffer, mut content) = (array.buffer(pages * PAGE_BYTES)?, array.buffer(pages * PAGE_BYTES)?);
        pattern::fill_bytes(!SEED, 0, &mut content);
        file.read_at(&mut buffer[..PAGE_BYTES], 0)?;
        Ok(Worker { file: file.clone(), trace, next, buffer, content })
    }

    /// Takes batches of the trace until `stop`, and counts. Returns the error of an access or of its check.
    pub fn work(&mut self, stop: &AtomicBool, verify: bool) -> iomill::Result<Count> {
        let mut count = Count::new()?;
        while goes_on(count.ops, stop) {
            let batch = &self.trace.batches[self.next.fetch_add(1, Ordering::Relaxed) % self.trace.batches.len()];
            if verify {
                fill(&batch.writes, &mut self.content);
            }
            let start = Instant::now();
            if batch.read_bytes > 0 {
                self.file.read_ranges(&mut self.buffer[..batch.read_bytes], &batch.reads)?;
            }
            if batch.write_bytes > 0 {
                self.file.write_ranges(&self.content[..batch.write_bytes], &batch.writes)?;
            }
            count.record(start.elapsed());
            count.ops += (batch.reads.len() + batch.writes.len()) as u64;
            count.bytes += (batch.read_bytes + batch.write_bytes) as u64;
            if verify {
                check(self.file.name(), &batch.reads, &self.buffer)?;
            }
        }
        Ok(count)
    }
}

/// Rule 3: fills in the pattern of all ranges, one after the other.
fn fill(ranges: &[(u64, usize)], bytes: &mut [u8]) {
    let mut left = bytes;
    for &(offset, len) in ranges {
        let (now, rest) = left.split_at_mut(len);
        pattern::fill_bytes(SEED, offset, now);
        left = rest;
    }
}

/// Checks that the bytes of the ranges, one after the other, are the pattern.
fn check(name: &str, ranges: &[(u64, usize)], bytes: &[u8]) -> iomill::Result<()> {
    let mut left = bytes;
    for &(offset, len) in ranges {
        let (now, rest) = left.split_at(len);
        if !pattern::holds(SEED, offset, now) {
            return Err(pattern::wrong(name, &format!("request of {len} bytes"), offset));
        }
        left = rest;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = PAGE_BYTES as u64;

    fn open(text: &str, limit: u64) -> iomill_trace::Result<Trace> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        Trace::open("t".to_owned(), file.path(), None, limit, 8 * PAGE + 5)
    }

    #[test]
    fn requests_are_whole_pages_of_the_file() {
        for ((place, len), (first, pages)) in [
            ((0, 4096), (0, 1)),
            ((4095, 1), (0, 1)),
            ((4095, 2), (0, 2)),
            ((7 * PAGE + 512, 512), (7, 1)),
            ((7 * PAGE, 4097), (0, 2)),
            ((5 * 8 * PAGE + 3 * PAGE + 7, 5000), (3, 2)),
            ((PAGE, 1 << 30), (0, 8)),
        ] {
            assert_eq!(wrap(place, len, 8 * PAGE), (first * PAGE, pages * PAGE_BYTES), "{place} {len}");
        }
    }

    #[test]
    fn batches_hold_all_requests_in_their_order() {
        let trace = open("r,0,512\nw,4096,4096\nr,99,0\nr,36864,1\n", u64::MAX).unwrap();
        let (one, two) = (PAGE_BYTES, 2 * PAGE_BYTES);
        let expected =
            Batch { reads: vec![(0, one), (PAGE, one)], writes: vec![(PAGE, one)], read_bytes: two, write_bytes: one };
        assert_eq!((&trace.batches[..], trace.most_bytes), (&[expected][..], two));
        assert!(trace.writes() && !open("r,0,512\nw,0,1\n", 1).unwrap().writes());
        // A batch is full by its number of requests, and by its bytes: two requests of 16 KiB more than fit.
        let many = open(&"r,0,512\n".repeat(BATCH_REQUESTS + 1), u64::MAX).unwrap();
        assert_eq!(many.batches.iter().map(|batch| batch.reads.len()).collect::<Vec<_>>(), [BATCH_REQUESTS, 1]);
        let long = open(&"w,0,16384\n".repeat(BATCH_BYTES / 16_384 + 2), u64::MAX).unwrap();
        assert_eq!(long.batches.iter().map(|batch| batch.writes.len()).collect::<Vec<_>>(), [512, 2]);
        assert_eq!(long.most_bytes, BATCH_BYTES);
        assert!(open("r,5,0\n", 9).unwrap_err().to_string().contains("transfer nothing"));
        assert!(open("r,5,x\n", 9).is_err());
    }

    #[test]
    fn what_is_read_is_checked() {
        let ranges = [(100, 5000), (0, 1)];
        let mut bytes = vec![0; 6000];
        fill(&ranges, &mut bytes);
        check("f", &ranges, &bytes).unwrap();
        bytes[5000] ^= 1;
        let error = check("f", &ranges, &bytes).unwrap_err().to_string();
        assert!(error.contains("f: the request of 1 bytes at offset 0 is not"), "{error}");
    }
}

//! Ranges of a file, read by gathers on each processor.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;

use iomill::{File, Result};

/// Bytes that a gather asks for. More does not make a drive faster, and takes memory.
const BATCH_BYTES: usize = 2 << 20;

/// Ranges that it asks for: a gather keeps a list of them.
const BATCH_RANGES: usize = 8192;

/// Calls `each` with the bytes of each range, an offset and a length in bytes, and the range's index, in any order.
/// Each processor gathers the next batch of ranges, and hands them on.
pub fn visit(file: &File, ranges: &[(u64, usize)], each: &(dyn Fn(usize, &[u8]) + Sync)) -> Result<()> {
    let batches = batches(ranges);
    let next = AtomicUsize::new(0);
    let work = || -> Result<()> {
        let mut bytes = Vec::new();
        while let Some(batch) = batches.get(next.fetch_add(1, Relaxed)) {
            let ranges = &ranges[batch.clone()];
            bytes.resize(ranges.iter().map(|range| range.1).sum(), 0);
            file.read_ranges(&mut bytes, ranges)?;
            let mut rest = &bytes[..];
            for (index, range) in batch.clone().zip(ranges) {
                let (own, behind) = rest.split_at(range.1);
                each(index, own);
                rest = behind;
            }
        }
        Ok(())
    };
    let threads = thread::available_parallelism().map_or(1, usize::from).min(batches.len());
    thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
        let own = work();
        others.into_iter().map(|thread| thread.join().expect("a visit panicked")).fold(own, Result::and)
    })
}

/// Parts of the list of ranges, each with at most [`BATCH_RANGES`] of about [`BATCH_BYTES`].
fn batches(ranges: &[(u64, usize)]) -> Vec<Range<usize>> {
    let (mut batches, mut start, mut len) = (Vec::new(), 0, 0);
    for (index, range) in ranges.iter().enumerate() {
        if index > start && (len + range.1 > BATCH_BYTES || index - start == BATCH_RANGES) {
            batches.push(start..index);
            (start, len) = (index, 0);
        }
        len += range.1;
    }
    batches.push(start..ranges.len());
    batches
}

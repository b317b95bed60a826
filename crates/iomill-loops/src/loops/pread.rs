//! `pread` through the page cache, as most programs do. Read-ahead is off, because the reads are random.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};

use iomill::{Error, Result};
use rustix::fs::Advice;

use super::super::draw::{PAGE_BYTES, Pages};
use super::super::parts::{self, Part};
use super::reader::{Failed, Reader, Work};

/// See the head of this file. The blocks of all parts have one order.
pub(super) struct Pread<'a> {
    files: Vec<(&'a Part, File)>,
    order: Pages,
    buffer: Vec<u8>,
}

impl<'a> Pread<'a> {
    pub(super) fn new(parts: &'a [Part], work: &Work) -> Result<Pread<'a>> {
        let buffer = vec![0; work.request_bytes as usize];
        let mut files = Vec::new();
        for part in parts {
            files.push((part, open(part)?));
        }
        let blocks = parts.iter().map(|part| part.len_bytes / buffer.len() as u64).sum();
        Ok(Pread { files, order: Pages::new(blocks), buffer })
    }
}

impl Reader for Pread<'_> {
    fn read(&mut self, stop: &AtomicBool) -> Result<u64> {
        let (mut reads, len) = (0, self.buffer.len() as u64);
        while let Some(mut block) = self.order.draw() {
            for (part, file) in &self.files {
                let blocks = part.len_bytes / len;
                if block < blocks {
                    let (path, offset) = (&part.path, block * len);
                    let failed = |source| Error::io_at("read", path.clone(), offset, source);
                    file.read_exact_at(&mut self.buffer, offset).map_err(failed)?;
                    break;
                }
                block -= blocks;
            }
            reads += 1;
            if stop.load(Ordering::Relaxed) {
                break;
            }
        }
        Ok(reads)
    }
}

/// Refuses if reads cannot be shown to come from drives: the file system is in memory, or it does not say what it
/// fetches.
pub(super) fn check_cold(parts: &[Part]) -> std::result::Result<(), Failed> {
    parts::drop_cached(parts)?;
    for part in parts {
        let (file, before) = (open(part)?, fetched_bytes());
        let read = file.read_at(&mut [0; PAGE_BYTES], 0).map_err(|e| Error::io("read", &part.path, e))?;
        if read > 0 && before.zip(fetched_bytes()).is_some_and(|(before, after)| after == before) {
            let why = "was dropped from the page cache, and reading it again brought nothing from a drive: its file system keeps it \
                       in memory, or does not say what it fetches";
            return Err(Failed::Refused(format!("{} {why}", part.path.display())));
        }
    }
    Ok(())
}

fn open(part: &Part) -> Result<File> {
    let file = parts::open(&part.path, false)?;
    parts::advise(&file, &part.path, Advice::Random)?;
    Ok(file)
}

/// Bytes that this thread made drives fetch so far; `None` on kernels that do not count them.
fn fetched_bytes() -> Option<u64> {
    let text = fs::read_to_string("/proc/thread-self/io").ok()?;
    text.lines().find_map(|line| line.strip_prefix("read_bytes: "))?.trim().parse().ok()
}

//! A file that grows by small writes at its end: by system calls and mapped, with and without preallocation.
//!
//! Goals: the number of calls to the file system, and the time; the time of the final sync is separate. Preallocation
//! has an array's sizes: an eighth of the file's length, from 1 MiB to 256 MiB. Non-goals: an array above the file.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use iomill::engine::mmap::{MappedParts, MmapEngine};
use iomill::engine::{Engine, EngineConfig, FileRef, IoRequest, Memory, Op};
use iomill::sys::fs::Handle;
use iomill::{Error, Result};
use rustix::fs::{FallocateFlags, fallocate, ftruncate};
use serde::Serialize;

use crate::arena::SEED;
use crate::leftovers::{self, By};
use crate::pattern::{self, PAGE_BYTES};
use iomill_cli::human;

/// Limits of a preallocation, in bytes.
const ROOM_LEAST_BYTES: u64 = 1 << 20;
const ROOM_MOST_BYTES: u64 = 256 << 20;

/// How a file grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writer {
    /// `pwrite` by hand.
    Pwrite,
    /// The mmap engine.
    Mapped,
}

/// The writers, each with and without preallocation.
pub const ALL: [(Writer, bool); 4] =
    [(Writer::Pwrite, false), (Writer::Pwrite, true), (Writer::Mapped, false), (Writer::Mapped, true)];

/// The cost of growth.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Growth {
    /// `pwrite` or `mmap-engine`.
    pub contender: String,
    /// Whether space was preallocated.
    pub is_preallocated: bool,
    /// Bytes that the file grew by.
    pub bytes: u64,
    /// Bytes per write.
    pub op_bytes: u64,
    /// Calls to the file system that write, lengthen, or ask for the length.
    pub calls: u64,
    /// Time until all was written, in seconds.
    pub seconds: f64,
    /// Time of the sync after that, in seconds.
    pub sync_seconds: f64,
}

/// A file that is removed after the measurement.
struct Grown {
    path: PathBuf,
    file: File,
}

impl Drop for Grown {
    /// An error is ignored: the removal of the directory then reports the file that is left.
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Grown {
    fn new(dir: &Path) -> Result<Grown> {
        let path = dir.join(format!("{}.grown", leftovers::name(By::Bench)));
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path);
        let file = file.map_err(|e| Error::io("create", &path, e))?;
        Ok(Grown { path, file })
    }

    /// Lengthens the file: by preallocation, or by a hole of exactly the needed size.
    fn lengthen(&self, has: u64, needs: u64, is_ahead: bool) -> Result<u64> {
        let failed = |e: rustix::io::Errno| Error::io("lengthen", &self.path, e.into());
        if !is_ahead {
            ftruncate(&self.file, needs).map_err(failed)?;
            return Ok(needs);
        }
        let to =
            needs.max(has + (has / 8).clamp(ROOM_LEAST_BYTES, ROOM_MOST_BYTES).next_multiple_of(PAGE_BYTES as u64));
        fallocate(&self.file, FallocateFlags::empty(), has, to - has).map_err(failed)?;
        Ok(to)
    }
}

/// Lets a file grow to `bytes`.
pub fn grow(dir: &Path, writer: Writer, is_ahead: bool, bytes: u64) -> Result<Growth> {
    let grown = Grown::new(dir)?;
    let io = |e: std::io::Error| Error::io("write", &grown.path, e);
    let op_bytes = PAGE_BYTES as u64;
    let mut page = [0; PAGE_BYTES];
    pattern::fill_page(SEED, 0, &mut page);
    let parts = MappedParts::new();
    let config = EngineConfig { capacity: 1, poll: false, hold: Vec::new(), shared: false };
    let mut engine = MmapEngine::new(&config, Arc::clone(&parts))
        .map_err(|e| Error::Tool { what: "an engine that maps files".into(), why: e.to_string() })?;
    let file = FileRef { handle: Handle(grown.file.as_raw_fd()), key: 1 };
    let (mut has, mut at, mut calls) = (0, 0, 0);
    let start = Instant::now();
    while at < bytes {
        let needs = at + op_bytes;
        // `pwrite` lengthens the file itself.
        if needs > has && (is_ahead || writer == Writer::Mapped) {
            has = grown.lengthen(has, needs, is_ahead)?;
            calls += 1;
        }
        match writer {
            Writer::Pwrite => {
                calls += 1;
                rustix::io::pwrite(&grown.file, &page, at).map_err(|e| io(e.into()))?;
            }
            Writer::Mapped => {
                let memory = Memory::one(page.as_mut_ptr());
                let request = IoRequest { slot: 0, op: Op::Write, len: op_bytes as u32, file, offset: at, memory };
                let mut done = Vec::new();
                // SAFETY: the page and the file live until the request has completed; the loop waits for that.
                unsafe { engine.push(&[request]) };
                while done.is_empty() {
                    engine.wait(1, None, &mut done).map_err(io)?;
                }
                if done[0].result != op_bytes as i32 {
                    return Err(io(std::io::Error::from_raw_os_error(-done[0].result.min(0))));
                }
            }
        }
        at = needs;
    }
    let seconds = start.elapsed().as_secs_f64();
    let start = Instant::now();
    rustix::fs::fdatasync(&grown.file).map_err(|e| io(e.into()))?;
    let sync_seconds = start.elapsed().as_secs_f64();
    let contender = match writer {
        Writer::Pwrite => crate::contender::PWRITE,
        Writer::Mapped => crate::contender::MMAP_ENGINE,
    };
    let calls = calls + parts.calls();
    Ok(Growth {
        contender: contender.to_owned(),
        is_preallocated: is_ahead,
        bytes,
        op_bytes,
        calls,
        seconds,
        sync_seconds,
    })
}

/// The table for people.
pub fn table(rows: &[Growth]) -> String {
    let mut lines = Vec::new();
    if let Some(first) = rows.first() {
        let (bytes, op_bytes) = (human::size(first.bytes), human::size(first.op_bytes));
        lines.push(format!("growth by {bytes} in writes of {op_bytes}, calls to the file system and time:"));
    }
    for row in rows {
        let ahead = if row.is_preallocated { "preallocated" } else { "each write extends" };
        lines.push(format!(
            "{:12} {ahead:20} {:>8} calls {:>9} + {:>9} sync",
            row.contender,
            row.calls,
            human::time_us(row.seconds * 1e6),
            human::time_us(row.sync_seconds * 1e6)
        ));
    }
    lines.join("\n")
}

//! The state of an open virtual file, shared by all its handles: parts, length, and what keeps them in step.
//!
//! Rules of the length:
//! 1. Before a byte is written past the end, every part is at least as long as the layout implies for the new end
//!    (`reserve`). Parts only ever are too long, never too short, and what is beyond the length reads as zero.
//! 2. The length in memory grows after the write that extends it has ended well (`wrote`).
//! 3. The durable length is published after an fdatasync of every part that was written since the last one (`sync`).
//! 4. Shrinking publishes first and cuts after (`set_len`), with no I/O in flight. What a crash leaves uncut is cut when
//!    the file is next opened for writing (`tail::clean`).
//! 5. What a failed write has left beyond the length is cleared before the length grows over it, by a change of the length or by a write
//!    that begins later (`sweep`), with no I/O in flight.
//! 6. Who closes the gate looks at the array and at earlier failures when it is closed: both may have ended what it waited for.

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::array::ArrayInner;
use super::cached::Paged;
use super::callbacks;
use super::durable::{Mark, Published, Syncs};
use super::gate::{Closed, Gate};
use super::late::Late;
use super::tail;
use crate::catalog::{Record, part_path};
use crate::drive::{Failure, Fault, PAGE_BYTES, serve};
use crate::engine::{FileRef, Op};
use crate::error::{Error, Result};
use crate::layout::{Map, Placement};
use crate::sys::fs::{Access, Alignment, OpenFile};
use crate::sys::sync::{AtomicU64, Mutex, Ordering};

/// The longest file in bytes: far beyond every file system's own limit, and low enough that no sum overflows.
pub const MAX_FILE_BYTES: u64 = 1 << 60;

/// One drive's share of an open file.
#[derive(Debug)]
pub struct Part {
    /// The open part.
    pub open: OpenFile,
    /// Its name to the engines.
    pub file: FileRef,
    /// Index of its drive in the array.
    pub drive: u16,
    /// What its drive's queues take I/O on it to demand.
    pub align: Alignment,
    /// Bytes that the part is known to have: a multiple of the page. Written under `FileState::grow` only.
    pub reserved: AtomicU64,
    /// Whether it holds what no fdatasync has covered.
    pub mark: Mark,
}

/// An open virtual file.
#[derive(Debug)]
pub struct FileState {
    pub record: Arc<Record>,
    pub map: Map,
    pub block_bytes: u64,
    pub parts: Vec<Part>,
    /// I/O enters; `set_len` closes it.
    pub gate: Gate,
    /// Its part of the cache, if there is one.
    pub paged: Option<Arc<Paged>>,
    /// Failures of write-back that handles are to be told of.
    pub late: Late,
    array: Arc<ArrayInner>,
    /// Current length in bytes, durable or not.
    len: AtomicU64,
    /// Serialises whatever changes the size of parts.
    pub(super) grow: Mutex<()>,
    /// Syncs, with the length that is published. Only a writer has any.
    pub(super) syncs: Syncs<Published>,
    /// A failed write may have left bytes beyond the length (rule 5). Set inside the gate, cleared with the gate closed.
    litter: AtomicBool,
    /// Nothing is left to keep: not opened whole yet, or kept by `finish`. What a finished file still held would be
    /// written without the array's lock.
    finished: AtomicBool,
    /// Nobody wants what the drives do not hold yet. Set by the last handle, cleared by one that comes after it (`give_up`).
    given_up: AtomicBool,
    /// One share for each handle, and this one. Operations in flight hold the file without being handles.
    handles: Arc<()>,
}

impl FileState {
    /// Opens a file's parts.
    pub fn open(array: &Arc<ArrayInner>, record: Arc<Record>) -> Result<FileState> {
        let map = Map::new(record.layout, &record.weights, record.key)?;
        let file = array.catalog.open_length(&record)?;
        let len = file.current();
        if len > MAX_FILE_BYTES {
            let what = format!("length of {:?} is {len}", record.name);
            return Err(Error::invalid(what, "no file is that long: the length file is not to be trusted"));
        }
        let access = if array.is_writer() { Access::WRITE } else { Access::READ }.direct();
        let mut parts = Vec::with_capacity(record.drives.len());
        for (index, &drive) in record.drives.iter().enumerate() {
            let holds_bytes = map.part_bytes(index as u16, len, record.block_bytes) > 0;
            parts.push(open_part(array, &record, drive, access, Mark::new(holds_bytes))?);
        }
        let mut state = FileState {
            finished: AtomicBool::new(true),
            given_up: AtomicBool::new(false),
            handles: Arc::new(()),
            block_bytes: u64::from(record.block_bytes),
            map,
            parts,
            gate: Gate::default(),
            paged: None,
            late: Late::default(),
            array: Arc::clone(array),
            len: AtomicU64::new(len),
            grow: Mutex::new(()),
            syncs: Syncs::new(Published { len, file }),
            litter: AtomicBool::new(false),
            record,
        };
        state.check_parts(len)?;
        if array.is_writer() {
            tail::clean(&state, len)?;
        }
        state.paged = array.cached.as_ref().map(|cached| Arc::new(Paged::new(cached, len)));
        state.finished.store(false, Ordering::Release);
        Ok(state)
    }

    /// Every part must hold what the length says.
    fn check_parts(&self, len: u64) -> Result<()> {
        for (index, part) in self.parts.iter().enumerate() {
            let has = part.reserved.load(Ordering::Relaxed);
            let needs = self.part_bytes(index, len);
            if has < needs {
                let why = format!(
                    "the part is {has} bytes long but the file's length needs {needs}: it was cut behind iomill's \
                     back, or it is not the part that belongs here; restore it, or see `iomill check`"
                );
                return Err(Error::Corrupt { path: part.open.full_path(), why });
            }
        }
        Ok(())
    }

    /// What part `index` must hold at least when the file is `len` bytes long, in bytes.
    pub fn part_bytes(&self, index: usize, len: u64) -> u64 {
        self.map.part_bytes(index as u16, len, self.record.block_bytes)
    }

    /// A share of the file for a new handle.
    pub fn handle(&self) -> Arc<()> {
        let handle = Arc::clone(&self.handles);
        self.given_up.store(false, Ordering::Release);
        handle
    }

    /// Has what is only in memory given up, unless there is another handle than the caller's. Who becomes a handle counts itself and then
    /// clears the mark (`handle`): so either it is counted here, or the mark is cleared after this.
    pub fn give_up(&self) {
        // Read and written in one, so that whose clearing this undoes is counted below.
        self.given_up.swap(true, Ordering::AcqRel);
        if Arc::strong_count(&self.handles) > 2 {
            self.given_up.store(false, Ordering::Release);
        }
    }

    /// Whether a user has a handle, rather than an operation on its way out.
    pub fn is_held(&self) -> bool {
        Arc::strong_count(&self.handles) > 1
    }

    pub fn array(&self) -> &Arc<ArrayInner> {
        &self.array
    }

    pub fn len(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }

    /// Checks that a range can exist at all; its end.
    pub fn range_end(&self, offset: u64, len: u64) -> Result<u64> {
        match offset.checked_add(len) {
            Some(end) if end <= MAX_FILE_BYTES => Ok(end),
            _ => Err(Error::invalid(
                format!("offset {offset} with length {len}"),
                format!("a file ends at 2^60 = {MAX_FILE_BYTES} bytes at the latest"),
            )),
        }
    }

    /// Takes note of a write up to `end` that failed. What it left behind within the file must reach the drives as well
    /// before a sync may say that all did; what it left beyond is in the way of growing.
    pub fn wrote_in_part(&self, end: u64, touched: impl Fn(&Part) -> bool) {
        if end > self.len() {
            self.litter.store(true, Ordering::Relaxed);
        }
        self.wrote(0, touched);
    }

    /// Takes note of a write that ended well (rule 2): to which array drives, and where it ended.
    pub fn wrote(&self, end: u64, touched: impl Fn(&Part) -> bool) {
        for part in self.parts.iter().filter(|part| touched(part)) {
            part.mark.set();
        }
        if end > self.len.load(Ordering::Relaxed) {
            self.len.fetch_max(end, Ordering::AcqRel);
        }
    }

    /// Sets the length, durably (rule 4). The caller is not inside the gate.
    pub fn set_len(&self, len: u64) -> Result<()> {
        self.range_end(len, 0)?;
        let _closed = self.close_gate()?;
        if len < self.len() {
            self.sync()?;
            self.len.store(len, Ordering::Release);
            if let Some(paged) = &self.paged {
                paged.cut(len);
            }
            self.sync()?;
            return self.clean_tail(len);
        }
        if len > self.len() {
            // What fails before the length is raised leaves it as it is.
            self.paged.as_ref().map_or(Ok(()), |paged| self.flush_all(paged))?;
            self.clear_litter()?;
            self.extend(len)?;
            self.wrote(len, |_| false);
        }
        // A length that writes have brought about already is to be durable too.
        self.sync()
    }

    /// Closes the gate for a change of what the file holds (rule 6).
    fn close_gate(&self) -> Result<Closed<'_>> {
        // Where there is nothing to wait for.
        self.check_writable()?;
        let closed = self.gate.close(|| self.array.pause_for_io());
        self.array.check_open()?;
        self.check_writable()?;
        Ok(closed)
    }

    /// Whether a write up to `end` would bring into the file what a failed one has left (rule 5).
    #[inline]
    pub fn is_littered(&self, end: u64) -> bool {
        end > self.len() && self.litter.load(Ordering::Relaxed)
    }

    /// Clears what failed writes have left beyond the end (rule 5). The caller is not inside the gate. It waits for drives, which who is
    /// called by a drive thread must not; without threads it waits for who may have called it, if that is a callback.
    pub fn sweep(&self) -> Result<()> {
        if serve::is_serving() || !(self.array.has_threads() || callbacks::may_block()) {
            return Err(Error::WouldBlock { call: "a write after one that failed" });
        }
        let _closed = self.close_gate()?;
        self.clear_litter()
    }

    /// The same with the gate closed.
    fn clear_litter(&self) -> Result<()> {
        if !self.litter.load(Ordering::Relaxed) {
            return Ok(());
        }
        let len = self.len();
        if let Some(paged) = &self.paged {
            // The page that the file ends in goes as well, and is wanted on its drive before.
            self.flush_page(paged, len / PAGE_BYTES as u64)?;
            paged.cut(len);
        }
        self.clean_tail(len)
    }

    /// Makes what is beyond the length read as zero. Where that fails, the file must not grow over it.
    fn clean_tail(&self, len: u64) -> Result<()> {
        tail::clean(self, len).inspect_err(|error| self.set_poison(error))?;
        self.litter.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Turns a piece's failure into an error that names the part.
    pub fn error(&self, failure: Failure) -> Error {
        let part = self.parts.iter().find(|part| part.file.key == failure.key);
        let path = part.map(|part| part.open.full_path()).unwrap_or_default();
        match failure.fault {
            Fault::Cut(missing) => Error::PartCut { path, offset: failure.offset, missing },
            Fault::Errno(libc::ECANCELED) => Error::Closed,
            Fault::Errno(errno) => Error::Io {
                action: match failure.op {
                    Op::Read => "read",
                    Op::Write => "write",
                    Op::Sync => "sync",
                },
                path,
                offset: (failure.op != Op::Sync).then_some(failure.offset),
                source: std::io::Error::from_raw_os_error(errno),
            },
        }
    }
}

impl FileState {
    /// Keeps what was written and gives back what was allocated ahead, once. Nothing is in flight. The first error, after everything was
    /// tried.
    pub fn finish(&self) -> Result<()> {
        if self.finished.swap(true, Ordering::AcqRel) || !self.array.is_writer() {
            return Ok(());
        }
        if self.given_up.load(Ordering::Acquire) {
            return Ok(());
        }
        debug_assert!(!serve::is_serving(), "what follows waits for drives (`FileState::let_go`)");
        // Where an earlier failure keeps the file from being made durable, this says so.
        // A length that could not be published may be shorter than the one that was, for which the parts must be long enough.
        let kept = self.sync_as(true).and_then(|()| tail::trim(self));
        kept.and(self.late.untold().map_or(Ok(()), |failure| Err(self.error(failure))))
    }

    /// Where a byte of the file is: its part, its block, and its offset in the part, in bytes.
    #[inline]
    pub fn locate(&self, offset: u64) -> (&Part, Placement, u64) {
        let placement = self.map.place(offset / self.block_bytes);
        let within = placement.block * self.block_bytes + offset % self.block_bytes;
        (&self.parts[usize::from(placement.drive)], placement, within)
    }
}

impl Drop for FileState {
    /// The last handle is gone. Whoever wants to hear of errors calls `close`.
    fn drop(&mut self) {
        if self.finished.load(Ordering::Acquire) {
            // Never open, and whoever tried will tell; or the array is closed, and nobody will ask.
            return;
        }
        if let Err(error) = self.finish() {
            self.array.notice(format!("closing {:?}: {error}", self.record.name));
        }
        if let Some(paged) = &self.paged {
            paged.cached.leave(paged.number());
        }
        for part in &self.parts {
            self.array.forget(part.file.key);
        }
        self.array.closed(&self.record.id);
    }
}

fn open_part(array: &ArrayInner, record: &Record, drive: u16, access: Access, mark: Mark) -> Result<Part> {
    let Some(place) = array.catalog.drives().get(usize::from(drive)) else {
        let what = format!("drive {drive} in the record of {:?}", record.name);
        return Err(Error::invalid(what, "the array has no such drive"));
    };
    let path = part_path(&record.id);
    let whole_path = || place.fs.location().join("iomill").join(&path);
    let align = array.align(drive);
    let access = Access { direct: access.direct && align.is_direct(), ..access };
    let mut open = OpenFile::open(&place.fs, &path, access).map_err(|e| match e.kind() {
        ErrorKind::NotFound => {
            let why =
                format!("the drive has lost its part of {:?}; `iomill check` tells what can be done", record.name);
            Error::Corrupt { path: whole_path(), why }
        }
        _ => Error::io("open", whole_path(), e),
    })?;
    let own = place.fs.alignment(open.handle()).map_err(|e| Error::io("examine", whole_path(), e))?;
    if own != align {
        // A file may differ from its drive's others (encrypted, journalled, inline). Buffered it takes what the queue, which
        // goes by the drive, makes of the pieces.
        let buffered = Access { direct: false, ..access };
        open = OpenFile::open(&place.fs, &path, buffered).map_err(|e| Error::io("open", whole_path(), e))?;
    }
    let reserved = place.fs.len(open.handle()).map_err(|e| Error::io("measure", whole_path(), e))?;
    let file = FileRef { handle: open.handle(), key: array.next_key() };
    Ok(Part { open, file, drive, align, reserved: AtomicU64::new(reserved), mark })
}

#[cfg(all(test, not(iomill_models)))]
mod tests {
    use std::sync::Arc;

    use crate::api::{ArrayOptions, Layout};

    /// What holds the file over the last handle's end, as an operation does, does not give up what a later handle writes.
    #[test]
    fn who_opens_what_was_given_up_keeps_what_it_writes() {
        let dir = tempfile::tempdir().unwrap();
        let array = ArrayOptions::new().cache_bytes(4 << 20).create([dir.path()]).unwrap();
        let file = array.create_file("x", Layout::default()).unwrap();
        let held = Arc::clone(&file.state);
        file.discard();
        let again = array.open_file("x").unwrap();
        assert!(Arc::ptr_eq(&held, &again.state), "it is another one, and this shows nothing");
        again.write_at(b"kept", 0).unwrap();
        drop(again);
        drop(held);
        let mut read = [0; 4];
        assert_eq!(array.open_file("x").unwrap().read_at(&mut read, 0).unwrap(), 4);
        assert_eq!(&read, b"kept");
        array.close().unwrap();
    }
}

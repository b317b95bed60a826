//! An open file below the cache ([`FileState`]): its parts, its length, the gate, and the rules that keep them
//! consistent.
//!
//! Goals: one state for all handles of a file below the cache. Non-goals: pages in memory, handles, arrays.
//!
//! - `mod.rs`: `FileState`, and the rules of the length.
//! - `backing.rs`, `parts.rs`, `plain.rs`: the places of the bytes: the trait `Backing`, the parts of an array, plain
//!   files.
//! - `gate.rs`, `entered.rs`: the gate: I/O enters, a change of the length closes it.
//! - `split.rs`, `transfer.rs`, `vectored.rs`: pieces from a call's ranges; reads and writes past the cache.
//! - `first.rs`, `room.rs`: the first write of a small file; the sizes of parts, with allocation and bytes past the
//!   end.
//! - `sums/`, `summed.rs`: the sums of pages; reads, writes, cuts and syncs with sums.
//! - `durable.rs`, `mark.rs`: syncs, and the marks of parts that no sync has covered.
//! - `writeback_errors.rs`: failures of write-back, and which handles have reported them.
//!
//! # Rules of the length
//!
//! 1. Before a byte is written past the end, every part is at least as long as the layout implies for the new end
//!    (`reserve`). Parts may be too long, and are never too short. Bytes beyond the length read as zero.
//! 2. The length in memory grows after the write that extends it has succeeded (`wrote`).
//! 3. The durable length is published after an fdatasync of every part that was written since the last one (`durable`).
//! 4. Shrinking first publishes the length, and then cuts the parts ([`Resize`]), with no I/O in flight. After a crash
//!    in between, the next opening for writing cuts them (`clean_beyond`).
//! 5. Before the length grows over bytes of a failed write, these are cleared, with no I/O in flight. A change of the
//!    length clears them, or a write that begins later.
//! 6. A plain file has no published length: its own is the length. While it is written to, it may be longer by less
//!    than a page (`make_room_in_plain`). With the gate closed, a sync writes all dirty pages and cuts the file to the
//!    length before the fdatasync (`cut_plain`). So no write of a whole page can lengthen it in between, and no cut
//!    page is dirty.
//! 7. A caller that has closed the gate checks again that the array is open, and that no sync has failed. Either may
//!    have changed while it waited.
//!
//! So a crash leaves parts too long, never too short. The next opening for writing cuts off the bytes beyond the
//! published length. With the hash layout it also zeroes unused blocks inside the parts. A file with sums does this
//! later, like a small file: before it first grows, because the sum of its last page changes with it.
//!
//! - Parts grow by an eighth of their size, by at least 1 MiB and at most 256 MiB. If the drive has no room for that,
//!   they grow by what the write needs. They are trimmed when the file is closed, so `du` agrees with `ls`.
//! - A write that skips more than 256 MiB of a part leaves a hole there.
//!
//! # Places
//!
//! A file of an array has no place until it is first made longer. Up to one block, and at most 64 KiB, its bytes are in
//! pages of a shared part. The catalog allocates these pages. A longer file moves, with the gate closed, to more pages
//! or to parts of its own. Opening a small file needs no system call: bytes of an earlier writer past its end are
//! cleared when it grows. The rules are at the top of `parts.rs`.
//!
//! # Plain files
//!
//! - A plain file is its one part, and the part's length is the file's (rule 6). Direct I/O writes whole pages, so a
//!   write to the last page makes the file longer first. A sync of an overlong file closes the gate, flushes, cuts, and
//!   syncs. With an open gate it could cut bytes that another thread is writing.
//! - No space is allocated ahead, because other programs would see it. A write allocates its space before it begins, so
//!   a full disk is an error of the write.
//! - Without direct I/O a file is written to by bytes, and is never too long.
//! - The state of a reader is identified by device, inode, length, times and mount. So after a change of the times, an
//!   opening gets another state, and other pages. If a file may change without a change of its times, each opening gets
//!   another state. A writer changes the times itself, so its state is identified by device and inode, and is not
//!   remembered.
//! - The opening reads these values again under the entry of the state and the claims. Before that, a thread that
//!   closes the file may cut it.
//! - A process has a file open for reading or for writing (`Claim`). Two states of one file could not see each other's
//!   writes.
//! - The places of a list are those of its files, one after the other. A page of the list may begin within a page of a
//!   file, or be in two files (`Lies::Across`). Such a page has pieces of its own, which are bounced. Numbering with
//!   each file at a page edge would avoid that, but every call would have to translate offsets.
//!
//! # The gate
//!
//! The gate is one word: a count of operations inside, and three flags. An operation that enters increments the count
//! and reads the flag. A change of the length sets the flag and reads the count. A call that finds the gate closed
//! waits outside and holds nothing. If calls waited, the gate closes again only after one of them has entered. The
//! rules are at the top of `gate.rs`.
//!
//! Three values are guards of unfinished work: `SyncTurn`, `WriteTurn` and `Resize`. If an error or a panic drops a
//! `WriteTurn` before its end, it records a partial write.
//!
//! # Durability
//!
//! - A sync holds the lock of the published length; syncs take it in the order of their calls. The pager flushes
//!   between `begin_sync` and `SyncTurn::finish`. `finish` syncs the marked parts and publishes the length that
//!   `begin_sync` read.
//! - After a failed fdatasync a file accepts no more writes until it is opened again. The kernel may have dropped the
//!   dirty pages, and a second fdatasync would report success. A sync that waited for the failed one fails, too.
//! - A part that holds bytes at its opening is marked, because the last writer may have left them unsynced.
//!
//! # Pieces
//!
//! `Splitter` cuts a range at block boundaries, because the next block is on another drive. It also cuts at page edges,
//! because direct I/O needs whole pages. A piece is at most one block, and at most 256 KiB. The room `drive` describes
//! its execution.
//!
//! `docs/durability.md` has the promises, each with the test that fails when it is broken.

pub mod backing;
pub mod durable;
mod entered;
mod first;
mod gate;
mod mark;
mod parts;
pub mod plain;
mod room;
pub mod split;
pub mod summed;
pub mod sums;
pub mod transfer;
pub mod vectored;
mod writeback_errors;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::catalog::{Catalog, Draft, Record};
use crate::drive::{Failure, Fault};
use crate::engine::Op;
use crate::error::{CHECK, Error, Result};
use crate::exec::Exec;
use crate::sys::fsyncs::Since;
use crate::sys::sync::{AtomicU64, Mutex, Ordering};
use backing::{Backing, BackingKind, Part, Place};
use durable::{DurableLength, Syncs};
use gate::Gate;
use parts::ArrayParts;
use writeback_errors::WritebackErrors;

pub use entered::{Entered, Resize};
pub use writeback_errors::Reported;

/// The longest file in bytes: far beyond every file system's own limit, and low enough that no sum overflows.
pub const MAX_FILE_BYTES: u64 = 1 << 52;

/// An open file below the cache.
#[derive(Debug)]
pub struct FileState {
    pub exec: Arc<Exec>,
    backing: Box<dyn Backing>,
    kind: BackingKind,
    is_writer: bool,
    /// The sums of its pages: the backing's.
    sums: Option<Arc<sums::Sums>>,
    /// I/O enters it. A change of the length closes it.
    gate: Gate,
    /// Failures of write-back, for the next sync of each handle.
    pub errors: WritebackErrors,
    /// Current length in bytes, durable or not.
    len: AtomicU64,
    /// Serialises changes of the size of parts.
    grow: Mutex<()>,
    /// The syncs, with the published length. Only a writer syncs.
    syncs: Syncs<DurableLength>,
    /// Whether a failed write may have left bytes past the length (rule 5). Set inside the gate, cleared with the gate
    /// closed.
    has_stale_tail: AtomicBool,
    /// Whether an earlier writer may have left bytes past the length: in the pages of a small file, or in a file with
    /// sums. They are cleared like those of failed writes: opening a small file needs no system call, and the sums of
    /// these bytes go with them.
    is_tail_unknown: AtomicBool,
    /// Whether the catalog may name a length or a place that the file does not have: a change of its record failed with
    /// an unknown outcome. Then the next sync records both again. Set with the gate closed, or by a sync.
    is_record_unknown: AtomicBool,
}

impl FileState {
    /// Opens a file of an array. One without a name is a draft. `memory` is that of the array for sums.
    pub fn open(
        exec: &Arc<Exec>,
        catalog: &Arc<Catalog>,
        record: &Arc<Record>,
        draft: Option<Arc<Draft>>,
        memory: &Arc<sums::SumsMemory>,
    ) -> Result<FileState> {
        let len = record.length;
        if len > MAX_FILE_BYTES {
            let what = format!("length of {:?} is {len}", record.name);
            let why = format!("a file has at most {MAX_FILE_BYTES} bytes (4 PiB), so its length is damaged");
            return Err(Error::invalid(what, why).advise(CHECK));
        }
        let backing = Box::new(ArrayParts::open(exec, catalog, record, draft, memory)?);
        let published = DurableLength { len };
        FileState::new(exec, backing, catalog.is_writer(), published)
    }

    /// A file in `backing`, with its published length.
    fn new(
        exec: &Arc<Exec>,
        backing: Box<dyn Backing>,
        is_writer: bool,
        published: DurableLength,
    ) -> Result<FileState> {
        let len = published.len;
        let file = FileState {
            exec: Arc::clone(exec),
            kind: backing.kind(),
            sums: backing.sums().cloned(),
            backing,
            is_writer,
            gate: Gate::default(),
            errors: WritebackErrors::default(),
            len: AtomicU64::new(len),
            grow: Mutex::new(()),
            syncs: Syncs::new(published),
            has_stale_tail: AtomicBool::new(false),
            is_tail_unknown: AtomicBool::new(false),
            is_record_unknown: AtomicBool::new(false),
        };
        file.check_parts(len)?;
        // A plain file has nothing beyond its length.
        if is_writer && file.kind == BackingKind::Parts {
            if file.backing.is_small() {
                file.is_tail_unknown.store(true, Ordering::Relaxed);
            } else if file.sums.is_some() {
                file.fill_up(len)?;
                file.is_tail_unknown.store(!file.parts().is_empty(), Ordering::Relaxed);
            } else {
                file.clean_beyond(len)?;
            }
        }
        Ok(file)
    }

    /// Checks that every part is as long as the length demands.
    fn check_parts(&self, len: u64) -> Result<()> {
        for (index, part) in self.parts().iter().enumerate() {
            let (has, needs) = (part.has(), self.backing.part_bytes(index, len));
            if has < needs {
                let why = format!(
                    "the part is {has} bytes long but the file's length needs {needs}: it was cut behind iomill's \
                     back, or it is not the part that belongs here"
                );
                return Err(Error::corrupt(part.path(), why).advise("restore it, or check the array"));
            }
        }
        Ok(())
    }

    /// The file's name when it was opened. A draft has the name that it got.
    pub fn name(&self) -> &str {
        self.backing.name()
    }

    /// Bytes of a block, which lies in one part.
    pub fn block_bytes(&self) -> u64 {
        self.backing.block_bytes()
    }

    pub fn parts(&self) -> &[Part] {
        self.backing.parts()
    }

    /// Where a byte is, by its offset in bytes, and its part.
    pub fn locate(&self, offset: u64) -> (&Part, Place) {
        let place = self.backing.locate(offset);
        (&self.parts()[place.part], place)
    }

    /// Whether its bytes lie in a part that other files share.
    pub fn is_small(&self) -> bool {
        self.backing.is_small()
    }

    /// Whether it is several plain files, which need not begin at a page's edge.
    #[inline]
    pub fn is_list(&self) -> bool {
        self.kind == BackingKind::List
    }

    /// Whether it is no file of an array.
    pub fn is_plain(&self) -> bool {
        self.kind != BackingKind::Parts
    }

    /// Whether a later opening can tell that the file is as it was when it was closed.
    pub fn is_known(&self) -> bool {
        self.backing.is_known()
    }

    pub fn is_writer(&self) -> bool {
        self.is_writer
    }

    #[inline(always)]
    pub fn len(&self) -> u64 {
        // Acquire: pairs with the AcqRel in `wrote`, so that a reader that sees the length sees the bytes.
        self.len.load(Ordering::Acquire)
    }

    /// Checks that a range can exist at all. Returns its end.
    pub fn range_end(&self, offset: u64, len: u64) -> Result<u64> {
        match offset.checked_add(len) {
            Some(end) if end <= MAX_FILE_BYTES => Ok(end),
            _ => Err(Error::invalid(
                format!("offset {offset} with length {len}"),
                format!("a file ends at 4 PiB ({MAX_FILE_BYTES} bytes) at the latest"),
            )),
        }
    }

    /// Checks that every range, (offset, length) in bytes each, lies within the file.
    pub fn check_within(&self, noun: &str, ranges: impl Iterator<Item = (u64, usize)>) -> Result<()> {
        let len = self.len();
        for (index, (offset, range_len)) in ranges.enumerate() {
            if offset.checked_add(range_len as u64).is_none_or(|end| end > len) {
                let what = format!("{noun} {index} at offset {offset} of {range_len} bytes");
                return Err(Error::invalid(what, format!("file {:?} ends at {len}", self.name())));
            }
        }
        Ok(())
    }

    /// Notes a failed write up to `end` that began at the moment `since`. A sync also covers the bytes that it has
    /// written within the file. The bytes past the length must be cleared before the file grows over them.
    pub fn wrote_in_part(&self, end: u64, since: Since) {
        if end > self.len() {
            self.has_stale_tail.store(true, Ordering::Relaxed);
        }
        self.mark_parts(since);
    }

    /// Shortens the length in memory. Nothing is in flight.
    fn shorten(&self, len: u64) {
        // Release: pairs with the Acquire in `len`.
        self.len.store(len, Ordering::Release);
    }

    /// Notes a write up to `end` that succeeded (rule 2).
    pub fn wrote(&self, end: u64) {
        if end > self.len.load(Ordering::Relaxed) {
            // AcqRel: pairs with the Acquire in `len`.
            self.len.fetch_max(end, Ordering::AcqRel);
        }
    }

    /// Marks all parts: they hold uncovered bytes of writes that began at the moment `since` or later.
    pub fn mark_parts(&self, since: Since) {
        self.parts().iter().for_each(|part| part.mark.set(since));
    }

    /// Marks the part of one byte, likewise.
    pub fn mark_part_of(&self, offset: u64, since: Since) {
        self.locate(offset).0.mark.set(since);
    }

    /// Whether a write up to `end` would extend the file over bytes of a failed write (rule 5).
    #[inline]
    pub fn is_in_stale_tail(&self, end: u64) -> bool {
        end > self.len()
            && (self.has_stale_tail.load(Ordering::Relaxed) || self.is_tail_unknown.load(Ordering::Relaxed))
    }

    /// Whether failed writes may have left bytes beyond the length.
    pub fn has_stale_tail(&self) -> bool {
        self.has_stale_tail.load(Ordering::Relaxed)
    }

    /// An error if the file takes no writes.
    pub fn check_writable(&self) -> Result<()> {
        if !self.is_writer {
            let (why, advice) = match self.kind {
                BackingKind::Parts => ("the array was opened for reading".to_owned(), "open it for writing"),
                BackingKind::Plain => {
                    (format!("{} was opened for reading", self.name()), "open it with `PlainOptions::write`")
                }
                BackingKind::List => (format!("{} are a list, which is for reading", self.name()), "open one of them"),
            };
            return Err(Error::read_only(why).advise(advice));
        }
        self.check_syncable()
    }

    /// Turns a piece's failure into an error that names the part.
    pub fn error(&self, failure: Failure) -> Error {
        if matches!(failure.fault, Fault::Wrong | Fault::NoSum(_)) {
            return self.doubt_error(failure.fault, failure.offset);
        }
        let part = self.parts().iter().find(|part| part.file.key == failure.key);
        self.error_in(part.map(Part::path).unwrap_or_default(), failure)
    }

    /// The same, of the part with this path.
    fn error_in(&self, path: PathBuf, failure: Failure) -> Error {
        match failure.fault {
            Fault::Cut(missing) if self.is_plain() => Error::FileCut { path, offset: failure.offset, missing },
            Fault::Cut(missing) => Error::PartCut { path, offset: failure.offset, missing },
            Fault::Wrong | Fault::NoSum(_) => self.doubt_error(failure.fault, failure.offset),
            Fault::Errno(libc::ECANCELED) if !self.exec.is_open() => Error::Closed,
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

    /// Whether it is a plain file that is longer than its length (rule 6).
    pub fn is_overlong(&self) -> bool {
        self.is_plain() && self.is_writer && self.parts().iter().any(|part| part.has() > self.len())
    }
}

impl Drop for FileState {
    /// Nothing is in flight.
    fn drop(&mut self) {
        // A shared part stays open.
        for part in self.backing.parts().iter().filter(|_| !self.backing.is_small()) {
            self.exec.forget(part.file.key);
        }
    }
}

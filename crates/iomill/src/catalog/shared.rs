//! [`SharedPart`]: an open file with the pages of many small files (C34, C35).
//!
//! Goals: one fsync for all waiting callers, which all get its failure; no growth over lost bytes. Non-goals: the owner
//! of each page (`small`).
//!
//! Rules:
//! 1. One descriptor writes, and [`SharedPart::fsync`] alone syncs it, also the zeros by which the part grows. So no
//!    failure of an fsync is lost.
//! 2. After an fsync that failed no fsync of that part is tried (C12): each file with bytes in it takes no more writes.
//! 3. A part that is shorter than the log says was cut, or it is lost. It is measured before it grows, before pages of
//!    it are allocated, and before each fsync. A write past its end would make lost bytes read as zeros.

use std::sync::{Arc, OnceLock};

use super::PAGE_BYTES;
use super::journal::commits::{CommitQueue, Commits, Failed};
use super::store::{absent_is_none, failed, full_path, is_full, write_zeros};
use crate::engine::FileRef;
use crate::error::{Error, Result};
use crate::sys::fs::{Access, Alignment, DriveFile, DriveFs, check_fsyncs};
use crate::sys::fsyncs::{Fsyncs, Since};
use crate::sys::sync::{AtomicU64, Ordering};

/// The highest stamp of the writes that callers want to be durable.
#[derive(Debug, Default)]
struct Wish(u64);

impl CommitQueue for Wish {
    fn empty(&mut self) {
        self.0 = 0;
    }
}

/// See the module.
#[derive(Debug)]
pub struct SharedPart {
    open: Arc<DriveFile>,
    align: Alignment,
    key: OnceLock<u64>,
    /// A leader syncs for all that wait.
    turns: Commits<Wish>,
    fsyncs: Arc<Fsyncs>,
    /// Its length in bytes by the log (rule 3).
    named: AtomicU64,
    /// Its length in bytes at the last measurement.
    measured: AtomicU64,
}

impl SharedPart {
    /// Opens a part that has `pages` pages according to the log. One without pages is made if it is missing. `align` is
    /// what I/O on the drive assumes.
    pub(super) fn open_at(
        fs: &Arc<dyn DriveFs>,
        path: &str,
        pages: u32,
        align: Alignment,
        access: Access,
    ) -> Result<SharedPart> {
        let open = |direct| {
            let opened = absent_is_none(DriveFile::open(fs, path, Access { direct, ..access }));
            opened.map_err(failed("open", &**fs, path))
        };
        let file = match open(align.is_direct())? {
            Some(file) => file,
            None if pages > 0 => {
                return Err(Error::corrupt(full_path(&**fs, path), "the drive has lost these pages of small files"));
            }
            None => {
                let create = Access { direct: align.is_direct(), ..Access::CREATE };
                DriveFile::open(fs, path, create).map_err(failed("create", &**fs, path))?
            }
        };
        let own = fs.alignment(file.handle()).map_err(failed("examine", &**fs, path))?;
        // The queue aligns pieces by its drive, and buffered I/O takes them all.
        let lost = || failed("open", &**fs, path)(std::io::ErrorKind::NotFound.into());
        let file = if own == align { file } else { open(false)?.ok_or_else(lost)? };
        let part = SharedPart {
            open: Arc::new(file),
            align,
            key: OnceLock::new(),
            turns: Commits::default(),
            fsyncs: Arc::default(),
            named: AtomicU64::new(bytes_of(pages)),
            measured: AtomicU64::new(0),
        };
        part.measure()?;
        Ok(part)
    }

    /// The open file.
    pub fn open(&self) -> &Arc<DriveFile> {
        &self.open
    }

    /// The alignment that its drive's queues assume for I/O on it.
    pub fn align(&self) -> Alignment {
        self.align
    }

    /// By what engines know it. `next_key` makes a key that no other file has.
    pub fn file_ref(&self, next_key: impl FnOnce() -> u64) -> FileRef {
        FileRef { handle: self.open.handle(), key: *self.key.get_or_init(next_key) }
    }

    /// Its fsyncs.
    pub fn fsyncs(&self) -> &Arc<Fsyncs> {
        &self.fsyncs
    }

    fn measure(&self) -> Result<u64> {
        let (fs, path) = (&**self.open.fs(), self.open.path());
        let bytes = fs.len(self.open.handle()).map_err(failed("measure", fs, path))?;
        self.measured.store(bytes, Ordering::Relaxed);
        Ok(bytes)
    }

    /// An error if the part does not have its first `needs` bytes (rule 3). It is measured only if it was shorter
    /// before.
    pub fn check_has(&self, needs: u64) -> Result<()> {
        if self.measured.load(Ordering::Relaxed) >= needs || self.measure()? >= needs {
            return Ok(());
        }
        Err(self.is_cut(needs))
    }

    /// An error if the part is shorter than the log says (rule 3).
    pub(super) fn check_whole(&self) -> Result<()> {
        let needs = self.named.load(Ordering::Acquire);
        if self.measure()? >= needs { Ok(()) } else { Err(self.is_cut(needs)) }
    }

    fn is_cut(&self, needs: u64) -> Error {
        let has = self.measured.load(Ordering::Relaxed);
        let why = format!(
            "it has {has} bytes, and small files have their bytes there up to {needs}: it was cut, or the drive has lost them"
        );
        Error::corrupt(full_path(&**self.open.fs(), self.open.path()), why)
            .advise("bring it back from a copy, or check the array")
    }

    /// Makes the writes durable that have a stamp up to this one, together with other callers (rules 1 and 2).
    pub fn fsync(&self, stamp: u64) -> Result<()> {
        if self.fsyncs.cover(stamp) {
            return Ok(());
        }
        let (fs, path) = (&**self.open.fs(), self.open.path());
        let failed_before = || {
            Error::drive(fs.location(), format!("an earlier fsync of {path} failed"))
                .advise("close the array and open it again")
        };
        let wish = |wish: &mut Wish| {
            wish.0 = stamp.max(wish.0);
            Ok::<(), Failed>(())
        };
        let ticket = self.turns.queue(wish).map_err(|_| failed_before())?;
        let lead = |wish: &mut Wish| {
            self.fsyncs.run(wish.0, || {
                self.check_whole()?;
                fs.sync_data(self.open.handle()).map_err(failed("sync", fs, path))
            })
        };
        self.turns.commit(ticket, lead).map_err(|error| error.unwrap_or_else(failed_before))
    }

    /// Makes the part longer by zeros, durably, from `before` pages to `after` pages (C35).
    pub(super) fn lengthen(&self, before: u32, after: u32) -> Result<()> {
        let (fs, first) = (&**self.open.fs(), bytes_of(before));
        self.fill(before, after - before).inspect_err(|error| {
            if is_full(error) && self.measure().is_ok_and(|bytes| bytes > first) {
                // Frees the space that was taken. If that fails, the next growth uses it.
                let _ = fs.set_len(self.open.handle(), first);
            }
        })?;
        self.named.fetch_max(bytes_of(after), Ordering::Release);
        self.measure().map(drop)
    }

    /// Fills pages with zeros, durably. They have no other owner.
    pub(super) fn fill(&self, first: u32, pages: u32) -> Result<()> {
        self.check_whole()?;
        let (fs, path) = (&**self.open.fs(), self.open.path());
        let mut at = bytes_of(first);
        self.durably(|| {
            write_zeros(bytes_of(pages), |zeros| {
                fs.write_at(self.open.handle(), zeros, at).map_err(failed("write", fs, path))?;
                at += zeros.len() as u64;
                Ok(())
            })
        })
    }

    /// Writes to the part, and makes that durable. An error also if another fsync of the drive fails meanwhile (rule 4
    /// of `sys::fsyncs`).
    pub fn durably(&self, write: impl FnOnce() -> Result<()>) -> Result<()> {
        let since = Since::now();
        write()?;
        self.fsync(self.fsyncs.stamp())?;
        check_fsyncs(&**self.open.fs(), since)
    }
}

fn bytes_of(pages: u32) -> u64 {
    u64::from(pages) * u64::from(PAGE_BYTES)
}

/// Bytes of its drive that a shared part takes. A part that is lost takes none.
pub(super) fn allocated(fs: &Arc<dyn DriveFs>, path: &str) -> Result<u64> {
    let opened = absent_is_none(DriveFile::open(fs, path, Access::READ));
    let Some(file) = opened.map_err(failed("open", &**fs, path))? else { return Ok(0) };
    fs.allocated(file.handle()).map_err(failed("examine", &**fs, path))
}

//! The mapped parts of a platform, which all its engines share.
//!
//! Goals: one mapping per part, however many threads use it. No thread waits for a part that is being mapped.
//! Non-goals: copying.
//!
//! Rules, beside those of [`super::epochs`], which keep a mapping that is in use:
//! 1. Only one thread at a time replaces a part's mapping (`change`). Other threads do not wait: they use system calls.
//! 2. A request is copied only if the mapping's length covers it. That is the file's length as the kernel last gave it,
//!    and may be out of date. Then the copy stops early, and a system call reports why.
//! 3. So no decision relies on that length: it only saves faults.
//! 4. A forgotten part is not mapped again.
//! 5. After a write by a system call, the next sync must be the kernel's. The same holds if the file's size or
//!    allocation has changed since the last sync. Outside DAX every sync is the kernel's.

use std::collections::HashMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, TryLockError};

use super::epochs::{Current, EpochGuard, Epochs, Reader};
use super::mapping::Mapping;
use crate::engine::FileRef;
use crate::sys::barrier;
use crate::sys::fs::Handle;
use crate::sys::sync::{AtomicBool, AtomicU64, Mutex, Ordering, lock};

/// The number of requests between a refused mapping and the next try. They are system calls.
const RETRY_REQUESTS: u32 = 4096;

/// The mapped parts. Engines that share them map each part once.
#[derive(Debug, Default)]
pub struct MappedParts {
    epochs: Arc<Epochs<Mapping>>,
    parts: Mutex<HashMap<u64, Arc<MappedPart>>>,
    /// The number of system calls that read a file's length or mapped a file.
    calls: AtomicU64,
}

/// One part.
#[derive(Debug, Default)]
pub(super) struct MappedPart {
    pub(super) mapping: Current<Mapping>,
    change: Mutex<PartState>,
    /// Rule 5: whether a system call has written since the last sync began.
    bypassed: AtomicBool,
}

#[derive(Debug, Default)]
struct PartState {
    /// Rule 4: whether the part is forgotten.
    is_gone: bool,
    /// The number of requests until the next try to map.
    refused: u32,
    /// The file's size in bytes and in blocks when the last sync began.
    synced: Option<(i64, i64)>,
    /// The number of syncs in the kernel. While there are any, another sync must not report their writes as durable.
    syncing: u32,
}

impl MappedParts {
    /// No mapped parts.
    pub fn new() -> Arc<MappedParts> {
        // Registers for the kernel's heavy fences here, so that readers may use light ones later.
        barrier::available();
        Arc::default()
    }

    /// The number of system calls for a file's length or a mapping: the cost of growing parts.
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// A new reader of mappings.
    pub(super) fn reader(&self) -> Reader<Mapping> {
        Epochs::reader(&self.epochs)
    }

    /// The part with this key.
    pub(super) fn part(&self, key: u64) -> Arc<MappedPart> {
        Arc::clone(lock(&self.parts).entry(key).or_default())
    }

    /// Unmaps a part that is about to be closed.
    pub fn forget(&self, key: u64) {
        let part = lock(&self.parts).remove(&key);
        if let Some(part) = part {
            self.unmap(&part);
        }
    }

    /// Drops one engine's share of a part, and unmaps the part if no other engine has one.
    pub(super) fn leave(&self, key: u64, known: Arc<MappedPart>) {
        let last = {
            let mut parts = lock(&self.parts);
            // With a count of 2 only the table and the caller share the part. New shares are made only under the
            // table's lock.
            let ours = parts.get(&key).is_some_and(|part| Arc::ptr_eq(part, &known));
            if ours && Arc::strong_count(&known) == 2 { parts.remove(&key) } else { None }
        };
        drop(known);
        if let Some(part) = last {
            self.unmap(&part);
        }
    }

    /// Unmaps a part, and waits until its mappings are dropped, unless a copy takes very long. A mapping keeps its file
    /// open just as a descriptor does.
    fn unmap(&self, part: &MappedPart) {
        {
            let mut change = lock(&part.change);
            change.is_gone = true;
            self.epochs.replace(&part.mapping, None);
        }
        self.epochs.settle();
    }

    /// Makes the mapping cover a file's bytes up to `end`, if the file is that long and no other thread maps it.
    #[cold]
    pub(super) fn cover(&self, guard: &EpochGuard<'_, Mapping>, part: &MappedPart, file: FileRef, end: u64) {
        // Rule 1.
        let mut change = match part.change.try_lock() {
            Ok(change) => change,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        if change.is_gone {
            return;
        }
        // If this fails, the request's system call reports the error.
        self.calls.fetch_add(1, Ordering::Relaxed);
        let Ok(stat) = status(file.handle) else { return };
        let Ok(size) = u64::try_from(stat.st_size) else { return };
        let now = guard.current(&part.mapping);
        if let Some(mapping) = now {
            mapping.measured(size);
            if end <= mapping.reserved() {
                return;
            }
        }
        if size < end {
            return;
        }
        if change.refused > 0 {
            change.refused -= 1;
            return;
        }
        self.calls.fetch_add(1, Ordering::Relaxed);
        match Mapping::new(file.handle, size) {
            Ok(mapping) => self.epochs.replace(&part.mapping, Some(Box::new(mapping))),
            // There is no address space, or the file cannot be mapped: system calls serve it.
            Err(_) => change.refused = RETRY_REQUESTS,
        }
    }
}

impl MappedPart {
    /// Rule 5: called before a write by a system call, and again after it, before its end is reported. Release: pairs
    /// with the Acquire in `begin_sync`.
    pub(super) fn bypass(&self) {
        self.bypassed.store(true, Ordering::Release);
    }

    /// Rule 5: whether the kernel must sync, beyond the lines that were written back. If so, [`MappedPart::end_sync`]
    /// must follow.
    pub(super) fn begin_sync(&self, file: Handle) -> bool {
        let mut change = lock(&self.change);
        // Acquire: pairs with the Release in `bypass`.
        let bypassed = self.bypassed.swap(false, Ordering::AcqRel);
        let size = status(file).ok().map(|stat| (stat.st_size, stat.st_blocks));
        let same = size.is_some() && change.synced == size;
        change.synced = size;
        let is_needed = bypassed || !same || change.syncing > 0;
        change.syncing += u32::from(is_needed);
        is_needed
    }

    /// Ends a sync by the kernel. After a failure the next sync must be the kernel's, too.
    pub(super) fn end_sync(&self, is_well: bool) {
        let mut change = lock(&self.change);
        change.syncing -= 1;
        if !is_well {
            self.bypass();
        }
    }
}

fn status(file: Handle) -> io::Result<rustix::fs::Stat> {
    if file.0 < 0 {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    // SAFETY: a descriptor of a part that is open (contract of `Engine::push`), not negative, used for this one call.
    let fd = unsafe { BorrowedFd::borrow_raw(file.0) };
    Ok(rustix::fs::fstat(fd)?)
}

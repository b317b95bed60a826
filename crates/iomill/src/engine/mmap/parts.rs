//! The parts that a platform's engines have mapped, for all of them together.
//!
//! Goals: one mapping per part, however many threads use it; nobody waits for a part that is being mapped. Non-goals: copying.
//!
//! Rules, beside those of [`super::epochs`], by which a mapping that is in use stays:
//! 1. What changes which mapping a part has is done by one thread at a time (`change`). Others do not wait: they go by system calls.
//! 2. A request is copied only if the mapping's length covers it. The length is what the file was seen to have, and may be wrong a
//!    moment later; then the copy is cut short, and a system call says what is the matter.
//! 3. So nothing is decided outside that must still hold inside: the length saves faults, and is never relied on.
//! 4. A part that was forgotten is not mapped again.
//! 5. A write that went by a system call, or a file whose size or allocation is not what it was at the last sync, makes the next
//!    sync one of the kernel's. On all but DAX each sync is.

use std::collections::HashMap;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, TryLockError};

use super::epochs::{Current, Epochs, Inside, Reader};
use super::mapping::Mapping;
use crate::engine::FileRef;
use crate::sys::barrier;
use crate::sys::fs::Handle;
use crate::sys::sync::{AtomicBool, AtomicU64, Mutex, Ordering, lock};

/// After a mapping was refused, so many requests go by system calls before it is tried again.
const RETRY_REQUESTS: u32 = 4096;

/// The mapped parts; engines that share them map each part once.
#[derive(Debug, Default)]
pub struct MappedParts {
    epochs: Arc<Epochs<Mapping>>,
    parts: Mutex<HashMap<u64, Arc<Part>>>,
    /// How often a file was asked for its length or mapped.
    calls: AtomicU64,
}

/// One part.
#[derive(Debug, Default)]
pub(super) struct Part {
    pub(super) mapping: Current<Mapping>,
    change: Mutex<Change>,
    /// Rule 5: something was being written past the mapping since the last sync began.
    bypassed: AtomicBool,
}

#[derive(Debug, Default)]
struct Change {
    /// Rule 4.
    is_gone: bool,
    /// Requests to let pass before mapping is tried again.
    refused: u32,
    /// Size in bytes and blocks of the file when the last sync began.
    synced: Option<(i64, i64)>,
    /// Syncs that the kernel has not ended: until then what they cover is not durable for others either.
    syncing: u32,
}

impl MappedParts {
    /// None yet.
    pub fn new() -> Arc<MappedParts> {
        // Decided now, so that readers need no full fences later.
        barrier::available();
        Arc::default()
    }

    /// How often the kernel was asked for a file's length or for a mapping: what growth costs beside the growing itself.
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Somebody who uses mappings.
    pub(super) fn reader(&self) -> Reader<Mapping> {
        Epochs::reader(&self.epochs)
    }

    /// The part of that key.
    pub(super) fn part(&self, key: u64) -> Arc<Part> {
        Arc::clone(lock(&self.parts).entry(key).or_default())
    }

    /// Unmaps a part that is about to be closed.
    pub(super) fn forget(&self, key: u64) {
        let part = lock(&self.parts).remove(&key);
        if let Some(part) = part {
            self.unmap(&part);
        }
    }

    /// Gives up what one engine knows of a part, and unmaps it if no other knows it.
    pub(super) fn leave(&self, key: u64, known: Arc<Part>) {
        let last = {
            let mut parts = lock(&self.parts);
            // The table's share and the caller's; shares are only made with the table locked.
            let ours = parts.get(&key).is_some_and(|part| Arc::ptr_eq(part, &known));
            if ours && Arc::strong_count(&known) == 2 { parts.remove(&key) } else { None }
        };
        drop(known);
        if let Some(part) = last {
            self.unmap(&part);
        }
    }

    fn unmap(&self, part: &Part) {
        let mut change = lock(&part.change);
        change.is_gone = true;
        self.epochs.replace(&part.mapping, None);
    }

    /// Has the mapping cover a file's bytes up to `end`, if they are there and it can be done without waiting.
    #[cold]
    pub(super) fn cover(&self, inside: &Inside<'_, Mapping>, part: &Part, file: FileRef, end: u64) {
        // Rule 1.
        let mut change = match part.change.try_lock() {
            Ok(change) => change,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        if change.is_gone {
            return;
        }
        // Whatever is wrong, the system call says it.
        self.calls.fetch_add(1, Ordering::Relaxed);
        let Ok(stat) = status(file.handle) else { return };
        let Ok(size) = u64::try_from(stat.st_size) else { return };
        let now = inside.current(&part.mapping);
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
            // No address space, or a file that cannot be mapped: there are system calls.
            Err(_) => change.refused = RETRY_REQUESTS,
        }
    }
}

impl Part {
    /// Rule 5: before something is written by a system call, and after it, before anybody is told of its end.
    pub(super) fn bypass(&self) {
        self.bypassed.store(true, Ordering::Release);
    }

    /// Rule 5: whether a sync has anything to do beyond what write-backs of lines have done. If so, [`Part::end_sync`] follows.
    pub(super) fn begin_sync(&self, file: Handle) -> bool {
        let mut change = lock(&self.change);
        let bypassed = self.bypassed.swap(false, Ordering::AcqRel);
        let size = status(file).ok().map(|stat| (stat.st_size, stat.st_blocks));
        let same = size.is_some() && change.synced == size;
        change.synced = size;
        let is_needed = bypassed || !same || change.syncing > 0;
        change.syncing += u32::from(is_needed);
        is_needed
    }

    /// The end of a sync that was needed. One that failed is needed again.
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

//! A part that is mapped: address space far beyond its end, so that it can grow without being mapped anew.
//!
//! Goals: an address that stays for as long as the part fits. Non-goals: who may use it and when ([`super::epochs`]).
//!
//! Linux lets a mapping reach beyond the end of its file. Pages there raise SIGBUS until the file has grown over them, and again
//! when it has been cut. So neither growth nor a cut changes the mapping, and its length is a hint that may be wrong at any time.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use super::flush::LineFlush;
use crate::sys::fs::Handle;
use crate::sys::memory::page_bytes;
use crate::sys::sync::{AtomicU64, Ordering};

/// Address space for a part, at least, and for how many times its present size; half of that and so on where there is less.
const RESERVE_LEAST_BYTES: u64 = 16 << 30;
const RESERVE_TIMES: u64 = 4;

/// One mapping of a part; unmapped when it is dropped.
#[derive(Debug)]
pub(super) struct Mapping {
    /// Start of `reserved` bytes of address space that this value alone owns, all of them the file's.
    base: *mut u8,
    /// Whole pages; never 0.
    reserved: u64,
    /// Bytes from the start that the file was last seen to have, in whole pages; at most `reserved`.
    len: AtomicU64,
    /// Whether it may be written to: the part is open for writing.
    pub(super) is_writable: bool,
    /// The file is memory itself (DAX with `MAP_SYNC`), so that lines that were written back are durable.
    pub(super) flush: Option<LineFlush>,
}

// SAFETY: the mapping belongs to no thread; its bytes are only touched by copies that do not mind others (`super::copy`).
unsafe impl Send for Mapping {}
// SAFETY: as above; the fields do not change, but for an atomic one.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps a part that has so many bytes, with room to grow where there is some.
    pub(super) fn new(file: Handle, size: u64) -> io::Result<Mapping> {
        let page = page_bytes() as u64;
        let least = size.checked_next_multiple_of(page).filter(|least| *least > 0).ok_or(Errno::INVAL)?;
        let mut reserve = size.saturating_mul(RESERVE_TIMES).clamp(RESERVE_LEAST_BYTES, 1 << 46).max(least);
        loop {
            let reserved = reserve / page * page;
            match map(file, usize::try_from(reserved).map_err(|_| Errno::NOMEM)?) {
                Ok((base, is_writable, flush)) => {
                    let len = AtomicU64::new(size / page * page);
                    return Ok(Mapping { base, reserved, len, is_writable, flush });
                }
                Err(Errno::NOMEM | Errno::OVERFLOW | Errno::INVAL) if reserve > least => {
                    reserve = (reserve / 2).max(least);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The address of a byte that [`Mapping::len`] covers, or did a moment ago.
    pub(super) fn at(&self, offset: u64) -> *mut u8 {
        debug_assert!(offset <= self.reserved);
        self.base.wrapping_add(offset as usize)
    }

    /// Bytes that are there as far as is known. Whole pages: what lies in the last, partial page of a file would read as zero
    /// beyond its end, where a system call says that it has ended.
    pub(super) fn len(&self) -> u64 {
        self.len.load(Ordering::Relaxed)
    }

    /// Bytes that it can have without being mapped anew.
    pub(super) fn reserved(&self) -> u64 {
        self.reserved
    }

    /// Takes note of the file's size.
    pub(super) fn measured(&self, size: u64) {
        let page = page_bytes() as u64;
        self.len.store(size.min(self.reserved) / page * page, Ordering::Relaxed);
    }

    /// A page was not there: the next request looks how long the file is.
    pub(super) fn distrust(&self) {
        self.len.store(0, Ordering::Relaxed);
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and whoever used it has left (`super::epochs`, rule 3).
        let unmapped = unsafe { rustix::mm::munmap(self.base.cast(), self.reserved as usize) };
        debug_assert!(unmapped.is_ok(), "unmapping one's own mapping cannot fail");
    }
}

/// Maps so many bytes: for writing if the file is open for it, with `MAP_SYNC` if it can be, which tells memory from drives for readers too.
fn map(file: Handle, len: usize) -> Result<(*mut u8, bool, Option<LineFlush>), Errno> {
    if file.0 < 0 {
        return Err(Errno::BADF);
    }
    // SAFETY: a descriptor of a part that is open (contract of `Engine::push`), not negative, used for these calls alone.
    let fd = unsafe { BorrowedFd::borrow_raw(file.0) };
    // SAFETY: a new mapping at an address that the kernel chooses touches no memory that exists.
    let try_map = |access, flags| unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, access, flags, fd, 0) };
    let both = ProtFlags::READ | ProtFlags::WRITE;
    let flush = LineFlush::of_this_processor();
    if flush.is_some() {
        // Everything that is no such file refuses this, in one way or another; what is truly wrong shows below.
        let synchronous = MapFlags::SHARED_VALIDATE | MapFlags::SYNC;
        match try_map(both, synchronous) {
            Ok(base) => return Ok((base.cast(), true, flush)),
            Err(Errno::ACCESS | Errno::PERM) => {
                if let Ok(base) = try_map(ProtFlags::READ, synchronous) {
                    return Ok((base.cast(), false, flush));
                }
            }
            Err(_) => {}
        }
    }
    match try_map(both, MapFlags::SHARED) {
        Ok(base) => Ok((base.cast(), true, None)),
        // Open for reading only; or sealed.
        Err(Errno::ACCESS | Errno::PERM) => Ok((try_map(ProtFlags::READ, MapFlags::SHARED)?.cast(), false, None)),
        Err(error) => Err(error),
    }
}

//! Detection of copies that wait for pages outside memory, and the reads that replace such copies.
//!
//! Goals: bytes that are not in memory are read by one I/O per request, and all requests of a batch at the same time.
//! Bytes in memory cost no system call. Non-goals: an own read-ahead. For sequential reads the kernel's is as good as
//! any.
//!
//! By itself the kernel reads `read_ahead_kb` of the device around each missing page, and a copy waits for one page
//! after the other. Rules:
//! 1. The thread's count of major faults shows whether its copies wait. Reading the count is a system call, so the
//!    engine reads it once in `LOOK_PAGES` pages, and more often at first. After a fault the engine is *cold* for
//!    `COLD_BATCHES` batches.
//! 2. In a cold engine, a read that is alone in its batch is a system call, which reads exactly the request's bytes.
//!    Several reads are announced to the kernel before the first of them is copied.
//! 3. A read that begins where the last read of its part ended, for the `STREAK`th successive time or later, belongs to
//!    a stream. It is copied without an announcement, so that the kernel reads ahead.
//! 4. If the thread has waited in a batch of a cold engine, the engine is cold for another `COLD_BATCHES` batches.
//! 5. Announcements are advice. If one fails, the copy or the system call after it meets the same error. Memory (DAX)
//!    needs none.

use std::num::NonZeroU64;
use std::os::fd::BorrowedFd;

use rustix::fs::{Advice, fadvise};

use crate::engine::IoRequest;

/// The number of pages between two looks at the count of faults, at first and later. A look costs as much as copying
/// three pages.
const LOOK_PAGES_FIRST: u64 = 1;
const LOOK_PAGES: u64 = 256;

/// The number of batches for which an engine stays cold after a wait.
const COLD_BATCHES: u32 = 256;

/// The number of reads, each beginning where the last one ended, that make a stream.
const STREAK: u32 = 8;

const PAGE_BYTES: u64 = 4096;

/// One engine's knowledge of the waits of its copies. An engine belongs to one thread at a time.
#[derive(Debug)]
pub(super) struct Ahead {
    /// The number of batches for which the engine is still cold.
    cold: u32,
    /// The number of pages copied since the last look.
    pages: u64,
    /// The value of `pages` at which the next look is due.
    look_pages: u64,
    /// The thread's counts at the last look.
    last: Waits,
}

/// The detector of a stream of reads in one part.
#[derive(Debug, Default)]
pub(super) struct PartStream {
    /// The offset at which the last read ended.
    end: u64,
    /// The number of successive reads that began where the one before ended.
    streak: u32,
}

/// A thread's counts of waits since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Waits {
    major_faults: i64,
    /// How often the thread slept, also for a page that another read was bringing already.
    sleeps: i64,
}

impl Waits {
    fn now() -> Waits {
        let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
        // SAFETY: the pointer is valid for one `rusage`, which the call fills.
        let result = unsafe { libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()) };
        if result != 0 {
            // This kernel does not count faults, so no wait is ever seen.
            return Waits::default();
        }
        // SAFETY: zeroes are a valid value of this plain struct, and the call has filled it.
        let usage = unsafe { usage.assume_init() };
        Waits { major_faults: usage.ru_majflt, sleeps: usage.ru_nvcsw }
    }
}

impl Default for Ahead {
    fn default() -> Ahead {
        Ahead { cold: 0, pages: 0, look_pages: LOOK_PAGES_FIRST, last: Waits::default() }
    }
}

impl Ahead {
    /// Whether the engine is cold. Called once, before a batch.
    pub(super) fn begin(&mut self) -> bool {
        if self.cold == 0 {
            // The engine may have moved to this thread since the last look.
            if self.pages == 0 && self.look_pages == LOOK_PAGES_FIRST {
                self.last = Waits::now();
            }
            return false;
        }
        self.cold -= 1;
        if self.cold == 0 {
            self.look_pages = LOOK_PAGES_FIRST;
        }
        self.last = Waits::now();
        true
    }

    /// Makes the engine cold, as after a fault.
    #[cfg(test)]
    pub(super) fn make_cold(&mut self) {
        self.cold = COLD_BATCHES;
    }

    /// Called after a batch of a cold engine (rule 4).
    pub(super) fn end_cold(&mut self) {
        if Waits::now() != self.last {
            self.cold = COLD_BATCHES;
        }
        self.pages = 0;
    }

    /// Called after a batch of an engine that is not cold, with the numbers of its reads and of their bytes (rule 1).
    pub(super) fn end_warm(&mut self, reads: u64, bytes: u64) {
        self.pages += reads.max(bytes / PAGE_BYTES);
        if self.pages < self.look_pages {
            return;
        }
        let now = Waits::now();
        // Only faults count here: the thread may have slept for other reasons.
        if now.major_faults != self.last.major_faults {
            self.cold = COLD_BATCHES;
        }
        self.look_pages = (2 * self.look_pages).min(LOOK_PAGES);
        (self.last, self.pages) = (now, 0);
    }
}

impl PartStream {
    /// Notes a read. Returns whether it belongs to a stream (rule 3).
    pub(super) fn goes_on(&mut self, request: &IoRequest) -> bool {
        self.streak = if request.offset == self.end { self.streak.saturating_add(1) } else { 0 };
        self.end = request.offset.saturating_add(request.len.into());
        self.streak >= STREAK
    }
}

/// Asks the kernel to bring in the bytes of a read, without waiting for them.
pub(super) fn announce(request: &IoRequest) {
    if request.file.handle.0 < 0 {
        return;
    }
    // SAFETY: a descriptor of an open part (contract of `Engine::push`), not negative, used for this one call.
    let fd = unsafe { BorrowedFd::borrow_raw(request.file.handle.0) };
    if let Some(len) = NonZeroU64::new(request.len.into()) {
        // Rule 5.
        let _advised = fadvise(fd, request.offset, Some(len), Advice::WillNeed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{FileRef, Memory, Op};
    use crate::sys::fs::Handle;

    #[test]
    fn streams_are_reads_that_go_on() {
        let file = FileRef { handle: Handle(-1), key: 0 };
        let memory = Memory::one(std::ptr::null_mut());
        let read = |offset, len| IoRequest { slot: 0, op: Op::Read, len, file, offset, memory };
        let mut stream = PartStream::default();
        assert!(!stream.goes_on(&read(1 << 20, 4096)));
        for number in 1..20 {
            let goes_on = stream.goes_on(&read((1 << 20) + number * 4096, 4096));
            assert_eq!(goes_on, number >= u64::from(STREAK), "{number}");
        }
        assert!(!stream.goes_on(&read(0, 1)) && !stream.goes_on(&read(u64::MAX, 9)));
        announce(&read(0, 4096));
    }

    #[test]
    fn an_engine_is_cold_from_a_fault_until_nothing_waits_any_more() {
        let mut ahead = Ahead::default();
        for _ in 0..5 * LOOK_PAGES {
            assert!(!ahead.begin());
            // Waits of the test itself do not count.
            ahead.last = Waits::now();
            ahead.end_warm(1, 512);
        }
        // Pretends that there was a fault. The engine sees it after `LOOK_PAGES` pages, and not before.
        ahead.pages = 0;
        for pages in [LOOK_PAGES - 1, 1] {
            assert!(!ahead.begin());
            ahead.last.major_faults = -1;
            ahead.end_warm(1, pages * PAGE_BYTES);
        }
        assert_eq!(ahead.cold, COLD_BATCHES);
        for _ in 0..COLD_BATCHES / 2 {
            assert!(ahead.begin());
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
        ahead.end_cold();
        assert_eq!(ahead.cold, COLD_BATCHES, "it slept");
        for _ in 0..COLD_BATCHES {
            assert!(ahead.begin());
        }
        assert!(!ahead.begin());
        assert_eq!(ahead.look_pages, LOOK_PAGES_FIRST, "the next look comes soon");
    }
}

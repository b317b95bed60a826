//! The allocator of this program: the system's. It counts in the processes of tests that call `start`.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

struct Counting;

/// Set in few processes. In the others, threads only read it, and do not contend for the counts.
static ON: AtomicBool = AtomicBool::new(false);
static CALLS: AtomicI64 = AtomicI64::new(0);
static BYTES: AtomicI64 = AtomicI64::new(0);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Begins to count the allocations of all threads of the process.
pub fn start() {
    ON.store(true, Ordering::Relaxed);
}

/// The number of allocations since the start.
pub fn calls() -> i64 {
    CALLS.load(Ordering::Relaxed)
}

/// The bytes allocated since the start, less the freed ones.
pub fn bytes() -> i64 {
    BYTES.load(Ordering::Relaxed)
}

fn count(calls: i64, bytes: usize, given_back: usize) {
    if ON.load(Ordering::Relaxed) {
        CALLS.fetch_add(calls, Ordering::Relaxed);
        BYTES.fetch_add(bytes as i64 - given_back as i64, Ordering::Relaxed);
    }
}

// SAFETY: every call goes to the system's allocator. The counts touch none of its memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(1, layout.size(), 0);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(1, layout.size(), 0);
        // SAFETY: the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, len: usize) -> *mut u8 {
        count(1, len, layout.size());
        // SAFETY: the caller's promise.
        unsafe { System.realloc(memory, layout, len) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count(0, 0, layout.size());
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(memory, layout) }
    }
}

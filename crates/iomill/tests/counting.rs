//! The allocator of this program: the system's. It counts in the process of a test that asks for it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

struct Counting;

/// Set in few processes. The others only look at it, so that their threads do not meet at the counts.
static ON: AtomicBool = AtomicBool::new(false);
static CALLS: AtomicI64 = AtomicI64::new(0);
static BYTES: AtomicI64 = AtomicI64::new(0);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Begins to count what all threads of the process allocate.
pub fn start() {
    ON.store(true, Ordering::Relaxed);
}

/// How often memory was allocated since the start.
pub fn calls() -> i64 {
    CALLS.load(Ordering::Relaxed)
}

/// The bytes that were allocated since the start, less those that were given back.
pub fn bytes() -> i64 {
    BYTES.load(Ordering::Relaxed)
}

fn count(calls: i64, bytes: usize, given_back: usize) {
    if ON.load(Ordering::Relaxed) {
        CALLS.fetch_add(calls, Ordering::Relaxed);
        BYTES.fetch_add(bytes as i64 - given_back as i64, Ordering::Relaxed);
    }
}

// SAFETY: all of it is the system's allocator, and the counts are beside it.
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

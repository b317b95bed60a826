//! An allocator that makes the alignment of memory a function of its size. Alignment decides whether direct I/O takes
//! memory directly or bounces it. So the whole run depends only on the seed.

use std::alloc::{GlobalAlloc, Layout, System};

/// Larger allocations begin at this distance behind a multiple of 512.
const SHIFT: usize = 64;
const UNIT: usize = 512;

struct Shifted;

#[global_allocator]
static HEAP: Shifted = Shifted;

/// The layout to request from the system. `None` if the caller gets the system's memory unchanged.
fn widened(layout: Layout) -> Option<Layout> {
    if layout.size() < UNIT || layout.align() > SHIFT {
        return None;
    }
    Layout::from_size_align(layout.size() + SHIFT, UNIT).ok()
}

// SAFETY: memory comes from `System` with `layout` itself, or with the widened layout. Of the widened memory the caller
// gets the part behind the first `SHIFT` bytes. That part is as long as `layout` asks. It is aligned to `SHIFT`, which
// is at least the alignment that `layout` asks. `dealloc` gets the same layout, so it takes the same branch and frees
// the same allocation.
unsafe impl GlobalAlloc for Shifted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match widened(layout) {
            // SAFETY: the caller's promise about `layout`.
            None => unsafe { System.alloc(layout) },
            Some(wide) => {
                // SAFETY: `wide` is not empty.
                let start = unsafe { System.alloc(wide) };
                if start.is_null() { start } else { start.wrapping_add(SHIFT) }
            }
        }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        match widened(layout) {
            // SAFETY: it came from `System.alloc(layout)`.
            None => unsafe { System.dealloc(memory, layout) },
            // SAFETY: it came from `System.alloc(wide)`, moved by `SHIFT`.
            Some(wide) => unsafe { System.dealloc(memory.wrapping_sub(SHIFT), wide) },
        }
    }
}

//! An allocator that makes the alignment of memory a function of its size, so that what direct I/O takes straight and what it
//! bounces, and with it the whole run, depends on the seed alone.

use std::alloc::{GlobalAlloc, Layout, System};

/// Larger allocations begin this far behind a multiple of 512.
const SHIFT: usize = 64;
const UNIT: usize = 512;

struct Shifted;

#[global_allocator]
static HEAP: Shifted = Shifted;

/// The layout to ask the system for; `None` where the caller gets the system's memory as it is.
fn widened(layout: Layout) -> Option<Layout> {
    if layout.size() < UNIT || layout.align() > SHIFT {
        return None;
    }
    Layout::from_size_align(layout.size() + SHIFT, UNIT).ok()
}

// SAFETY: memory comes from `System` by `layout` itself, or by the widened layout, of which the part behind the first `SHIFT`
// bytes is handed out: as long as `layout` asks, and aligned to `SHIFT`, which is at least its alignment. `dealloc` gets the same
// layout, so it takes the same branch and gives back what was taken.
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

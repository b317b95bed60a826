//! A context of libaio: its system calls, and its completions, which are read from the kernel's ring in user space.
//!
//! Non-goals: libaio the library; buffered files, because `io_submit` blocks on them.

use std::io;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

/// `struct iocb` of the kernel. The order of its key and flags depends on the machine, but both stay zero.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ControlBlock {
    /// Comes back with the end.
    pub data: u64,
    key_and_flags: [u32; 2],
    /// [`READ`] or [`WRITE`].
    pub opcode: u16,
    priority: i16,
    /// The file.
    pub descriptor: u32,
    /// The address of the memory.
    pub buffer: u64,
    /// In bytes.
    pub len: u64,
    /// In bytes.
    pub offset: i64,
    reserved: u64,
    flags: u32,
    event_descriptor: u32,
}

/// `struct io_event` of the kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Event {
    /// That of the control block.
    pub data: u64,
    object: u64,
    /// Bytes, or a negative error number.
    pub result: i64,
    result2: i64,
}

/// Head of the completion ring, which the kernel maps at the context's address.
#[repr(C)]
struct RingHead {
    id: u32,
    entries: u32,
    /// Next event to take. The thread that takes it moves this.
    head: AtomicU32,
    /// End of the available events. The kernel moves this.
    tail: AtomicU32,
    magic: u32,
    compatible_features: u32,
    incompatible_features: u32,
    head_bytes: u32,
}

/// Shows that the mapped ring has the layout that this file knows.
const RING_MAGIC: u32 = 0xa10a_10a1;

/// The opcode of a read.
pub const READ: u16 = 0;

/// The opcode of a write.
pub const WRITE: u16 = 1;

/// A kernel context. Its drop waits for operations in flight.
#[derive(Debug)]
pub struct Context {
    /// From `io_setup`. It is also the address of the ring, and valid until `io_destroy` in `drop`.
    id: libc::c_ulong,
    mapped: bool,
}

impl Context {
    /// A context for `events` operations in flight. A container may forbid it.
    pub fn new(events: usize) -> io::Result<Context> {
        let mut id: libc::c_ulong = 0;
        // SAFETY: the kernel writes one word to `id`.
        check(unsafe { libc::syscall(libc::SYS_io_setup, events as libc::c_uint, &raw mut id) })?;
        let ring = id as *const RingHead;
        // SAFETY: the context's id is the address of its ring, mapped readable until `io_destroy`.
        let mapped = unsafe {
            (*ring).magic == RING_MAGIC
                && (*ring).incompatible_features == 0
                && (*ring).head_bytes as usize == size_of::<RingHead>()
        };
        Ok(Context { id, mapped })
    }

    /// Submits operations. Returns how many the kernel has taken.
    ///
    /// # Safety
    /// The pointers lead to control blocks. The files and the memory that they name stay valid until the operations
    /// have ended.
    #[inline(always)]
    pub unsafe fn submit(&self, blocks: &[*mut ControlBlock]) -> io::Result<usize> {
        // SAFETY: the caller's promise.
        check(unsafe { libc::syscall(libc::SYS_io_submit, self.id, blocks.len() as libc::c_long, blocks.as_ptr()) })
    }

    /// Waits for `min` events, and takes as many as fit into `events`.
    #[inline(always)]
    pub fn wait(&self, min: usize, events: &mut [Event]) -> io::Result<usize> {
        let no_limit = ptr::null_mut::<libc::timespec>();
        let (min, max) = (min.min(events.len()) as libc::c_long, events.len() as libc::c_long);
        // SAFETY: the kernel writes at most `max` events to the slice.
        check(unsafe { libc::syscall(libc::SYS_io_getevents, self.id, min, max, events.as_mut_ptr(), no_limit) })
    }

    /// Takes available events without a system call.
    #[inline(always)]
    pub fn take(&self, events: &mut [Event]) -> usize {
        if !self.mapped {
            return 0;
        }
        let ring = self.id as *const RingHead;
        // SAFETY: the ring is mapped until `io_destroy`. Only this thread moves `head`, and the kernel moves `tail`.
        // Events between the two are complete once `tail` has been read with Acquire. `head` stays below `entries`.
        unsafe {
            let (mut head, tail) = ((*ring).head.load(Ordering::Relaxed), (*ring).tail.load(Ordering::Acquire));
            let first = ring.add(1).cast::<Event>();
            let mut taken = 0;
            while head != tail && taken < events.len() {
                events[taken] = first.add(head as usize).read();
                taken += 1;
                head = if head + 1 == (*ring).entries { 0 } else { head + 1 };
            }
            // Release: pairs with the kernel's read of `head`, which may reuse what lies before it.
            (*ring).head.store(head, Ordering::Release);
            taken
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: the context is this value's own. The call waits for reads in flight. It fails only for a context that
        // does not exist.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.id) };
    }
}

fn check(result: libc::c_long) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_structures_have_the_kernels_sizes() {
        assert_eq!((size_of::<ControlBlock>(), size_of::<Event>(), size_of::<RingHead>()), (64, 32, 32));
    }

    #[test]
    fn this_kernels_ring_is_known() {
        match Context::new(8) {
            Ok(context) => assert!(context.mapped, "completions can be read without a system call"),
            Err(error) => assert!(error.raw_os_error() != Some(libc::EINVAL), "{error}"),
        }
    }
}

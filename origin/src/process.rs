//! The number of this process ([`here`]), and a value of which each process has its own ([`PerProcess`]). A forked
//! child has none of its parent's threads, and a lock that one of them held stays locked. So the child uses no value of
//! its parent. Non-goals: processes that share a cache.
//!
//! Nothing here takes a lock: a thread that the child does not have may hold it.

#![allow(unsafe_code)]

use std::fmt;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// The place of this process's number: 0 until a call needs it, and in a child before any code of the child runs. The
/// kernel clears the page (since Linux 4.14). Null until the first call of a process.
static WORD: AtomicPtr<AtomicU64> = AtomicPtr::new(null_mut());
/// The number, if the kernel cannot clear pages. Then the C library calls [`clear`] in children, and a fork past the C
/// library is not detected.
static PLAIN: AtomicU64 = AtomicU64::new(0);
/// The number of processes so far that have a number. A child inherits the count, so its number differs from those of
/// its ancestors.
static NUMBERS: AtomicU64 = AtomicU64::new(0);

extern "C" fn clear() {
    PLAIN.store(0, Ordering::Relaxed);
}

/// The number of this process.
pub fn here() -> u64 {
    // SAFETY: null, or a word that lives as long as the process. Acquire: pairs with the AcqRel in `find_word`.
    let word = unsafe { WORD.load(Ordering::Acquire).as_ref() }.unwrap_or_else(find_word);
    match word.load(Ordering::Relaxed) {
        0 => {
            let number = NUMBERS.fetch_add(1, Ordering::Relaxed) + 1;
            // Of two threads that come first, one sets the number.
            word.compare_exchange(0, number, Ordering::Relaxed, Ordering::Relaxed)
                .map_or_else(|given| given, |_| number)
        }
        number => number,
    }
}

#[cold]
fn find_word() -> &'static AtomicU64 {
    let found = wiped_page().unwrap_or_else(|_| {
        // SAFETY: the function stays, and does no more than store a number, which a child may do.
        let refused = unsafe { libc::pthread_atfork(None, None, Some(clear)) };
        // It fails if a few bytes of memory are missing. Then any allocation would end the process, too.
        assert_eq!(refused, 0, "no memory for a handler of forks");
        (&raw const PLAIN).cast_mut()
    });
    // Of two threads that come first, one leaves a page unused.
    let first = match WORD.compare_exchange(null_mut(), found, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => found,
        Err(first) => first,
    };
    // SAFETY: it is the word of `PLAIN` or the first one of a page that is never unmapped.
    unsafe { &*first }
}

/// A word on a page that is zero in children. The page is never unmapped.
fn wiped_page() -> rustix::io::Result<*mut AtomicU64> {
    // At least a page, of any size that Linux has.
    const LEN: usize = 64 << 10;
    // SAFETY: the kernel chooses an address where nothing is mapped, so no memory of the process changes.
    let page = unsafe { mmap_anonymous(null_mut(), LEN, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE) }?;
    // SAFETY: the mapping is this call's, and nothing is in it yet.
    if let Err(error) = unsafe { madvise(page, LEN, Advice::LinuxWipeOnFork) } {
        // SAFETY: as above. If the kernel refuses, some address space is lost.
        let _unmapped = unsafe { munmap(page, LEN) };
        return Err(error);
    }
    Ok(page.cast())
}

/// A value of which each process has its own. The values of ancestors stay unchanged, and are not dropped.
pub struct PerProcess<T>(AtomicPtr<Node<T>>);

struct Node<T> {
    process: u64,
    value: T,
    /// The node that was first when this one was added. Null in the last one.
    next: *mut Node<T>,
}

// SAFETY: other threads get references to the values, and the thread that drops this drops the values.
unsafe impl<T: Send + Sync> Sync for PerProcess<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Send for PerProcess<T> {}

impl<T: Send + Sync> PerProcess<T> {
    /// A list with the value of this process.
    pub fn new(value: T) -> PerProcess<T> {
        let made = PerProcess(AtomicPtr::new(null_mut()));
        made.insert(value);
        made
    }

    /// The value of this process, if there is one.
    pub fn get(&self) -> Option<&T> {
        let process = here();
        // Acquire: pairs with the Release in `insert`, so that the node is whole.
        let mut at = self.0.load(Ordering::Acquire);
        // SAFETY: a node that is in the list stays, as it is, until `self` is dropped, which the returned reference
        // rules out.
        while let Some(node) = unsafe { at.as_ref() } {
            if node.process == process {
                return Some(&node.value);
            }
            at = node.next;
        }
        None
    }

    /// The value of this process, which is made if it is missing. Two threads may make it, and one of the two values
    /// counts.
    pub fn get_or_try<E>(&self, make: impl FnOnce() -> Result<T, E>) -> Result<&T, E> {
        match self.get() {
            Some(value) => Ok(value),
            None => Ok(self.insert(make()?)),
        }
    }

    fn insert(&self, value: T) -> &T {
        let node = Box::into_raw(Box::new(Node { process: here(), value, next: self.0.load(Ordering::Acquire) }));
        loop {
            if let Some(first) = self.get() {
                // SAFETY: the node is not in the list, so this is the only pointer to it.
                drop(unsafe { Box::from_raw(node) });
                return first;
            }
            // SAFETY: the node is not in the list, so no other thread knows it.
            let next = unsafe { (*node).next };
            // AcqRel: pairs with the Acquire loads, which then see the whole node.
            match self.0.compare_exchange(next, node, Ordering::AcqRel, Ordering::Acquire) {
                // SAFETY: as in `get`.
                Ok(_) => return unsafe { &(*node).value },
                // SAFETY: as above.
                Err(first) => unsafe { (*node).next = first },
            }
        }
    }
}

impl<T> Drop for PerProcess<T> {
    fn drop(&mut self) {
        let process = here();
        let mut at = *self.0.get_mut();
        while !at.is_null() {
            // SAFETY: all nodes of the list are there until here, and each was made by `Box::into_raw`.
            let next = unsafe { (*at).next };
            // SAFETY: as above.
            if unsafe { (*at).process } == process {
                // SAFETY: as above, and no reference is left, because each borrows from `self`.
                drop(unsafe { Box::from_raw(at) });
            }
            at = next;
        }
    }
}

impl<T: fmt::Debug + Send + Sync> fmt::Debug for PerProcess<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_of_a_process_have_one_value() {
        let slot = PerProcess::new(7);
        assert_eq!(slot.get(), Some(&7));
        let failed: Result<&i32, ()> = slot.get_or_try(|| Err(()));
        assert_eq!(failed, Ok(&7));
        let empty = PerProcess(AtomicPtr::new(null_mut()));
        assert!(empty.get().is_none() && empty.get_or_try(|| Err::<String, _>("no")).is_err());
        let values: Vec<*const String> = std::thread::scope(|scope| {
            let make = |n: usize| {
                let empty = &empty;
                move || std::ptr::from_ref(empty.get_or_try(|| Ok::<_, ()>(n.to_string())).unwrap()) as usize
            };
            let threads: Vec<_> = (0..8).map(|n| scope.spawn(make(n))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap() as *const String).collect()
        });
        assert!(values.iter().all(|value| *value == values[0]));
    }

    /// A program may fork by the system call itself, past the C library and its handlers.
    #[test]
    fn a_child_past_the_c_library_is_another_process() {
        let slot = PerProcess::new(7);
        let parent = here();
        // SAFETY: a fork without the C library. The child takes no memory and no lock, and ends by `_exit`.
        let child = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) as libc::pid_t };
        if child == 0 {
            let right = here() != parent && here() == here() && slot.get().is_none();
            // SAFETY: it ends the child, and nothing else.
            unsafe { libc::_exit(if right { 0 } else { 1 }) };
        }
        let mut status = 0;
        // SAFETY: the number is written by the call.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0);
        assert_eq!((here(), slot.get()), (parent, Some(&7)));
    }

    /// A child does not see its parent's value, and does not touch it.
    #[test]
    fn a_forked_child_has_a_value_of_its_own() {
        let slot = PerProcess::new(vec![1]);
        // SAFETY: the child allocates, which the C library allows after a fork, takes no lock of Rust, and ends by
        // `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let right = slot.get().is_none()
                && slot.get_or_try(|| Ok::<_, ()>(vec![2])) == Ok(&vec![2])
                && slot.get() == Some(&vec![2]);
            drop(slot);
            // SAFETY: it ends the child, and nothing else.
            unsafe { libc::_exit(if right { 0 } else { 1 }) };
        }
        let mut status = 0;
        // SAFETY: the number is written by the call.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0);
        assert_eq!(slot.get(), Some(&vec![1]));
    }
}

//! Which process this is ([`here`]), and a value of which each process has its own ([`PerProcess`]). A forked child has none of its parent's
//! threads, and a lock that one of them held stays locked. So it uses nothing of its parent's. Non-goals: processes that share a cache.
//!
//! Nothing here takes a lock: a thread that the child does not have may hold it.

#![allow(unsafe_code)]

use std::fmt;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

/// How many forks this process is away from the first one that looked. Along a line of processes it grows, so that no child has the number of one
/// of its ancestors.
static FORKS: AtomicU64 = AtomicU64::new(0);
static COUNTS: AtomicBool = AtomicBool::new(false);

extern "C" fn is_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// The number of this process. A child by a system call of the program's own, past the C library, has that of its parent.
pub fn here() -> u64 {
    // Relaxed: the value alone counts. A thread that comes second only misses a fork that happens in this moment.
    if !COUNTS.load(Ordering::Relaxed) && !COUNTS.swap(true, Ordering::Relaxed) {
        // SAFETY: the function stays, and does no more than add to a number, which a child may do.
        let refused = unsafe { libc::pthread_atfork(None, None, Some(is_child)) };
        // It fails if a few bytes of memory are missing. Any allocation would then end the process too.
        assert_eq!(refused, 0, "no memory for a handler of forks");
    }
    FORKS.load(Ordering::Relaxed)
}

/// A value of which each process has its own. The values of ancestors are left as they are, and are not dropped.
pub struct PerProcess<T>(AtomicPtr<Node<T>>);

struct Node<T> {
    process: u64,
    value: T,
    /// The node that was first when this one came. Null behind the last one.
    next: *mut Node<T>,
}

// SAFETY: other threads get references to the values, and the thread that drops this drops the values.
unsafe impl<T: Send + Sync> Sync for PerProcess<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Send for PerProcess<T> {}

impl<T: Send + Sync> PerProcess<T> {
    /// With the value of this process.
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
        // SAFETY: a node that is in the list stays, as it is, until `self` is dropped, which the returned reference rules out.
        while let Some(node) = unsafe { at.as_ref() } {
            if node.process == process {
                return Some(&node.value);
            }
            at = node.next;
        }
        None
    }

    /// The value of this process, which is made if there is none. Two threads may make it, and one of the two counts.
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

    /// A child does not see its parent's value, and leaves it alone.
    #[test]
    fn a_forked_child_has_a_value_of_its_own() {
        let slot = PerProcess::new(vec![1]);
        // SAFETY: the child allocates, which the C library allows after a fork, takes no lock of Rust, and ends by `_exit`.
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

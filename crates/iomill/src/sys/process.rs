//! [`Home`]: the identity of a process, without a system call. [`PerProcess`]: a value that each process has for
//! itself.
//!
//! Goals: a forked child recognises its parent's values, for the price of two loads. Non-goals: telling the processes
//! of a machine apart.
//!
//! Rules:
//! 1. The word is 0 in a process until the process first asks for its name, and then it is the name. Names are counted
//!    in memory that children inherit, so a child's name differs from those of all its ancestors.
//! 2. The word is 0 in a child before any code of the child runs: the kernel wipes the word's page (`MADV_WIPEONFORK`,
//!    Linux 4.14). Where the kernel cannot, the C library calls `clear` in the child. A fork by a raw system call then
//!    goes unnoticed.
//! 3. No code here takes a lock: a thread that does not exist in the child might hold it.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags};

use super::memory::page_bytes;

/// The address of the word; null until a process first asks for its name.
static WORD: AtomicPtr<AtomicU64> = AtomicPtr::new(null_mut());

/// The word if the kernel cannot wipe pages.
static PLAIN: AtomicU64 = AtomicU64::new(0);

/// The number of names so far (rule 1).
static NAMES: AtomicU64 = AtomicU64::new(0);

unsafe extern "C" {
    fn pthread_atfork(
        prepare: Option<unsafe extern "C" fn()>,
        parent: Option<unsafe extern "C" fn()>,
        child: Option<unsafe extern "C" fn()>,
    ) -> libc::c_int;
}

/// The name of a process, kept with a value that the process made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Home(u64);

impl Home {
    /// This process.
    pub fn here() -> Home {
        let word = word().unwrap_or_else(find_word);
        match word.load(Ordering::Relaxed) {
            0 => Home(name(word)),
            named => Home(named),
        }
    }

    /// Whether the calling process is the one with this name, and not a child of it.
    #[inline]
    pub fn is_here(self) -> bool {
        word().is_some_and(|word| word.load(Ordering::Relaxed) == self.0)
    }
}

/// Names the calling process. Returns its name: another thread may have been faster.
#[cold]
fn name(word: &AtomicU64) -> u64 {
    let name = NAMES.fetch_add(1, Ordering::Relaxed) + 1;
    match word.compare_exchange(0, name, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => name,
        Err(named) => named,
    }
}

/// Has the C library call `call` in every child that it forks, on the child's only thread. `call` takes neither locks
/// nor memory.
pub fn call_in_children(call: unsafe extern "C" fn()) {
    // SAFETY: the function exists for as long as the process, and does only what a child may do.
    let refused = unsafe { pthread_atfork(None, None, Some(call)) };
    // It fails only for lack of a few bytes of memory. Any other allocation would then end the process, too.
    assert_eq!(refused, 0, "iomill: no memory for a handler of forks");
}

/// A value that each process has for itself, made at its first use. A forked child never touches the parent's value:
/// threads that the child does not have may hold locks in it.
#[derive(Debug)]
pub struct PerProcess<T>(AtomicPtr<(Home, T)>);

// SAFETY: other threads get references to the value, and any thread may drop it.
unsafe impl<T: Send + Sync> Sync for PerProcess<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Send for PerProcess<T> {}

impl<T: Default + Send + Sync> PerProcess<T> {
    /// No value yet.
    pub const fn empty() -> PerProcess<T> {
        PerProcess(AtomicPtr::new(null_mut()))
    }

    /// This process's value.
    pub fn get(&self) -> &T {
        let mut seen = self.0.load(Ordering::Acquire);
        loop {
            // SAFETY: null, or a box that was leaked below. A process drops its own box only in `drop`, and never drops
            // a parent's. Acquire, here and in the exchange: pairs with the AcqRel there.
            match unsafe { seen.as_ref() } {
                Some((home, value)) if home.is_here() => return value,
                _ => {}
            }
            let new = Box::into_raw(Box::new((Home::here(), T::default())));
            match self.0.compare_exchange(seen, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => seen = new,
                Err(other) => {
                    // SAFETY: the box was made above, and no other thread has seen it.
                    drop(unsafe { Box::from_raw(new) });
                    seen = other;
                }
            }
        }
    }
}

impl<T> Drop for PerProcess<T> {
    fn drop(&mut self) {
        let value = *self.0.get_mut();
        // SAFETY: null, or a box that was leaked by `get`, to which no reference is left.
        if unsafe { value.as_ref() }.is_some_and(|(home, _)| home.is_here()) {
            // SAFETY: as above, and no other code frees the box.
            drop(unsafe { Box::from_raw(value) });
        }
    }
}

#[inline]
fn word() -> Option<&'static AtomicU64> {
    // SAFETY: null, or a word that lives as long as the process (`find_word`). Acquire: pairs with the AcqRel there.
    unsafe { WORD.load(Ordering::Acquire).as_ref() }
}

#[cold]
fn find_word() -> &'static AtomicU64 {
    let found = wiped_page().unwrap_or_else(|_| {
        call_in_children(clear);
        (&raw const PLAIN).cast_mut()
    });
    // If two threads come here at the same moment, one of the pages stays unused. AcqRel: pairs with the Acquire in
    // `word`.
    let _second = WORD.compare_exchange(null_mut(), found, Ordering::AcqRel, Ordering::Acquire);
    word().unwrap_or(&PLAIN)
}

/// A word on a page that is zero in children (rule 2). The page is never unmapped.
fn wiped_page() -> rustix::io::Result<*mut AtomicU64> {
    let len = page_bytes();
    // SAFETY: a new private mapping at an address that the kernel chooses touches no memory that exists.
    let page =
        unsafe { rustix::mm::mmap_anonymous(null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE) }?;
    // SAFETY: the page is ours, and nothing is on it yet.
    if let Err(error) = unsafe { rustix::mm::madvise(page, len, Advice::LinuxWipeOnFork) } {
        // SAFETY: as above. If the kernel refuses to unmap, one page of address space is lost.
        let _unmapped = unsafe { rustix::mm::munmap(page, len) };
        return Err(error);
    }
    Ok(page.cast())
}

/// Keeps rule 2 if the kernel cannot wipe pages.
extern "C" fn clear() {
    PLAIN.store(0, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The answer of a child that was forked by a raw system call, without the C library.
    fn in_child(question: impl Fn() -> bool) -> bool {
        // SAFETY: the child asks questions that take neither locks nor memory, and ends.
        unsafe { answer_of(libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) as libc::pid_t, question) }
    }

    /// # Safety
    /// `child` is the result of a fork, and `question` does only what the child may do.
    unsafe fn answer_of(child: libc::pid_t, question: impl Fn() -> bool) -> bool {
        // SAFETY: the caller's promise; the child ends, and the parent waits for it.
        unsafe {
            if child == 0 {
                libc::_exit(i32::from(question()));
            }
            assert!(child > 0, "{}", std::io::Error::last_os_error());
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
            assert!(libc::WIFEXITED(status), "{status:#x}");
            libc::WEXITSTATUS(status) == 1
        }
    }

    #[test]
    fn each_process_has_its_own_value() {
        static VALUE: PerProcess<AtomicU64> = PerProcess::empty();
        VALUE.get().store(7, Ordering::Relaxed);
        let own = || VALUE.get().swap(5, Ordering::Relaxed) == 0 && VALUE.get().load(Ordering::Relaxed) == 5;
        // SAFETY: after a fork by the C library the child may take memory.
        assert!(unsafe { answer_of(libc::fork(), own) });
        assert_eq!(VALUE.get().load(Ordering::Relaxed), 7);
    }

    #[test]
    fn a_process_drops_its_own_value_only() {
        static DROPPED: AtomicU64 = AtomicU64::new(0);
        #[derive(Default)]
        struct Counted;
        impl Drop for Counted {
            fn drop(&mut self) {
                DROPPED.fetch_add(1, Ordering::Relaxed);
            }
        }
        let mut value = Some(PerProcess::<Counted>::empty());
        value.as_ref().unwrap().get();
        let drops = |uses: bool| {
            // SAFETY: after a fork by the C library the child may take and free memory.
            unsafe {
                answer_of(libc::fork(), || {
                    if uses {
                        value.as_ref().unwrap().get();
                    }
                    // SAFETY: the child ends without another use of the value.
                    drop(std::ptr::read(&raw const value));
                    DROPPED.load(Ordering::Relaxed) == u64::from(uses)
                })
            }
        };
        assert!(drops(false) && drops(true));
        drop(value.take());
        assert_eq!(DROPPED.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_child_is_another_process() {
        let home = Home::here();
        assert_eq!(home, Home::here());
        assert!(home.is_here());
        assert!(in_child(|| !home.is_here()));
        assert!(in_child(|| Home::here() != home && !home.is_here() && Home::here().is_here()));
        let asks_again = || {
            let child = Home::here();
            in_child(|| !child.is_here() && Home::here() != child && Home::here() != home)
        };
        assert!(in_child(asks_again), "a child's child");
        assert!(home.is_here() && home == Home::here());
    }
}

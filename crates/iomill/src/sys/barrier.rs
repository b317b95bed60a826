//! Fences of unequal cost, for protocols with a frequent side and a rare one.
//!
//! In such a protocol each side writes one word and then reads the other's. A reader announces a use, and then looks
//! whether it is allowed. A writer forbids the use, and then looks for users. At least one of the two must see the
//! other's write. Processors let a read overtake an earlier write, so each side needs a full fence between its write
//! and its read. A full fence costs the frequent side tens of cycles each time. Instead the kernel can make every
//! running thread of the process execute one (`membarrier`), so that the rare side pays for both.
//!
//! Rules:
//! 1. Either both sides use full fences, or the frequent side uses [`light`] and the rare side [`heavy`]. Two light
//!    fences order nothing.
//! 2. The process decides once, before the first heavy fence, whether it uses `membarrier`. If it does, light fences
//!    become fences for the compiler only, which work only together with the kernel's heavy ones. Until the decision
//!    light fences are full.
//! 3. For every pair of a light and a heavy fence one of two things holds. Accesses after the heavy fence see the
//!    writes before the light one, or accesses after the light fence see the writes before the heavy one. The kernel
//!    ensures that: a thread that runs at some moment during `membarrier` executes a full fence then. A thread that
//!    does not run passes through the scheduler, which is a full fence. The compiler's fence keeps the compiler from
//!    moving accesses past that point.
//! 4. All this holds within one process. Memory that is shared with another process needs full fences on both sides.
//!
//! In models (`--cfg iomill_models`) both are full fences, which loom knows. So a model checks the places of fences,
//! and readers check rule 1.

pub use imp::{available, heavy, light, light_by_kernel};

#[cfg(not(iomill_models))]
mod imp {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicBool, Ordering, compiler_fence, fence};

    use rustix::io::Errno;
    use rustix::thread::{MembarrierCommand, membarrier};

    /// Whether `membarrier` is used; empty until the decision (rule 2).
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    /// A copy of `AVAILABLE`, `false` until the decision. `light` reads it, because it takes fewer instructions.
    static KERNEL_FENCES: AtomicBool = AtomicBool::new(false);

    /// Whether `membarrier` is used. The first call asks the kernel and registers the process. Until then light fences
    /// are full ones.
    pub fn available() -> bool {
        *AVAILABLE.get_or_init(|| {
            let available = register();
            KERNEL_FENCES.store(available, Ordering::Relaxed);
            available
        })
    }

    /// Registers the process, and tries a barrier. For a registered process a barrier is an interrupt on the CPUs that
    /// run it, which takes microseconds. Otherwise the kernel would wait until all CPUs have passed through their
    /// schedulers. Kernels before 4.14, and sandboxes, refuse.
    #[cold]
    fn register() -> bool {
        membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok() && barrier().is_ok()
    }

    fn barrier() -> Result<(), Errno> {
        loop {
            match membarrier(MembarrierCommand::PrivateExpedited) {
                // On machines with very many CPUs the call allocates a mask.
                Err(Errno::NOMEM) => std::thread::yield_now(),
                result => return result,
            }
        }
    }

    /// The frequent side's fence: almost free if `membarrier` is used, else a full fence.
    #[inline(always)]
    pub fn light() {
        if KERNEL_FENCES.load(Ordering::Relaxed) {
            compiler_fence(Ordering::SeqCst);
        } else {
            fence(Ordering::SeqCst);
        }
    }

    /// [`light`] for a caller to which `available` has returned `true`: a fence for the compiler only.
    #[inline(always)]
    pub fn light_by_kernel() {
        debug_assert!(KERNEL_FENCES.load(Ordering::Relaxed));
        compiler_fence(Ordering::SeqCst);
    }

    /// The rare side's fence, which takes microseconds. It pairs with every [`light`] of all threads of the process,
    /// and with full fences.
    pub fn heavy() {
        // The kernel interrupts only the other CPUs. For this CPU the system call itself is a full fence, and the
        // compiler cannot look into it. This fence makes that explicit, and its cost is small beside a system call's.
        fence(Ordering::SeqCst);
        if available() {
            let done = barrier();
            // Other threads have relied on light fences already, so the process cannot go on. The known cause is a
            // filter of system calls that was installed after the first barrier.
            assert!(
                done.is_ok(),
                "iomill: membarrier worked before and now fails (was a seccomp filter installed meanwhile?): {done:?}"
            );
            fence(Ordering::SeqCst);
        }
    }
}

#[cfg(iomill_models)]
mod imp {
    use loom::sync::atomic::{Ordering, fence};

    /// Never: a model has full fences only.
    pub fn available() -> bool {
        false
    }

    /// A full fence.
    pub fn light() {
        fence(Ordering::SeqCst);
    }

    /// A full fence.
    pub fn light_by_kernel() {
        fence(Ordering::SeqCst);
    }

    /// A full fence.
    pub fn heavy() {
        fence(Ordering::SeqCst);
    }
}

#[cfg(all(test, not(iomill_models)))]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed};

    use super::*;

    #[test]
    fn decided_once() {
        let first = available();
        heavy();
        light();
        assert!((0..3).all(|_| available() == first));
    }

    /// Waits until both sides have arrived `times` times. Spins, because sides that sleep would not go on at the same
    /// moment.
    fn meet(arrived: &AtomicU32, times: u32) {
        arrived.fetch_add(1, AcqRel);
        let mut spins = 0;
        while arrived.load(Acquire) < 2 * times {
            spins += 1;
            if spins % 1000 == 0 {
                std::thread::yield_now();
            }
            std::hint::spin_loop();
        }
    }

    /// Both sides write their word and read the other's. At least one must read the other's new word. Returns the
    /// number of rounds in which neither did.
    fn misses(rounds: u32, left: fn(), right: fn()) -> u32 {
        let arrived = AtomicU32::new(0);
        let words = [AtomicU32::new(0), AtomicU32::new(0)];
        let seen = [AtomicU32::new(0), AtomicU32::new(0)];
        let play = |me: usize, fence: fn()| {
            let mut missed = 0;
            for round in 1..=rounds {
                meet(&arrived, 2 * round - 1);
                words[me].store(round, Relaxed);
                fence();
                seen[me].store(words[1 - me].load(Relaxed), Relaxed);
                meet(&arrived, 2 * round);
                missed += u32::from(seen.iter().all(|seen| seen.load(Relaxed) < round));
            }
            missed
        };
        std::thread::scope(|scope| {
            let left = scope.spawn(|| play(0, left));
            play(1, right).max(left.join().expect("no side fails"))
        })
    }

    #[test]
    fn one_side_sees_the_other() {
        assert_eq!(misses(3_000, light, heavy), 0);
        assert_eq!(misses(3_000, heavy, heavy), 0);
    }
}

#[cfg(all(test, iomill_models))]
mod models {
    use super::*;
    use crate::sys::sync::{Arc, AtomicU32, Ordering::Relaxed, model};

    #[test]
    fn loom_one_side_sees_the_other() {
        model(|| {
            let words = Arc::new([AtomicU32::new(0), AtomicU32::new(0)]);
            let theirs = Arc::clone(&words);
            let thread = loom::thread::spawn(move || {
                theirs[0].store(1, Relaxed);
                light();
                theirs[1].load(Relaxed)
            });
            words[1].store(1, Relaxed);
            heavy();
            let seen = words[0].load(Relaxed);
            assert!(thread.join().unwrap() + seen > 0);
        });
    }
}

//! A copy that survives the loss of the memory it copies.
//!
//! Where a file is shorter than its mapping, or its device fails, access to the mapping raises SIGBUS. The copy here is
//! one routine in assembly. If the signal interrupts that routine, its handler makes the routine return the number of
//! bytes that are not copied. Goals: no cost besides the copying. Non-goals: the fastest copy of a few bytes.
//!
//! Rules:
//! 1. The routine calls nothing and has no stack frame, so it can end at any instruction. At each instruction that
//!    touches memory, one register holds the number of bytes that are not copied yet.
//! 2. The handler looks only at the interrupted instruction: it needs no lock, no memory, and no data of the thread.
//! 3. A signal with another cause is passed to the handler that was installed before, as if this one did not exist.
//! 4. A SIGBUS kills a thread that blocks it, so each thread unblocks the signal before its first copy.

use std::cell::Cell;
use std::io;
use std::mem::MaybeUninit;
use std::sync::OnceLock;

/// The action of SIGBUS before the installation. Set before the handler can run, and never changed.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();
/// Whether the handler is installed, or the errno with which the kernel refused it.
static INSTALLED: OnceLock<Result<(), i32>> = OnceLock::new();

thread_local! {
    /// Whether this thread has unblocked the signal (rule 4).
    static READY: Cell<bool> = const { Cell::new(false) };
}

#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    ".pushsection .text.iomill_mmap_copy,\"ax\",@progbits",
    ".p2align 4",
    ".globl iomill_mmap_copy",
    ".hidden iomill_mmap_copy",
    ".type iomill_mmap_copy,@function",
    "iomill_mmap_copy:",
    "mov rcx, rdx",
    ".globl iomill_mmap_copy_begin",
    ".hidden iomill_mmap_copy_begin",
    "iomill_mmap_copy_begin:",
    // The processor keeps rsi, rdi and rcx exact when it is interrupted.
    "rep movsb",
    ".globl iomill_mmap_copy_end",
    ".hidden iomill_mmap_copy_end",
    "iomill_mmap_copy_end:",
    "mov rax, rcx",
    "ret",
    ".size iomill_mmap_copy, . - iomill_mmap_copy",
    ".popsection",
);

#[cfg(target_arch = "aarch64")]
std::arch::global_asm!(
    ".pushsection .text.iomill_mmap_copy,\"ax\",@progbits",
    ".p2align 4",
    ".globl iomill_mmap_copy",
    ".hidden iomill_mmap_copy",
    ".type iomill_mmap_copy,@function",
    "iomill_mmap_copy:",
    ".globl iomill_mmap_copy_begin",
    ".hidden iomill_mmap_copy_begin",
    "iomill_mmap_copy_begin:",
    "2: cmp x2, #32",
    "b.lo 3f",
    "ldp q0, q1, [x1]",
    "stp q0, q1, [x0]",
    "add x1, x1, #32",
    "add x0, x0, #32",
    "sub x2, x2, #32",
    "b 2b",
    "3: cbz x2, 4f",
    "ldrb w3, [x1]",
    "strb w3, [x0]",
    "add x1, x1, #1",
    "add x0, x0, #1",
    "sub x2, x2, #1",
    "b 3b",
    "4:",
    ".globl iomill_mmap_copy_end",
    ".hidden iomill_mmap_copy_end",
    "iomill_mmap_copy_end:",
    "mov x0, x2",
    "ret",
    ".size iomill_mmap_copy, . - iomill_mmap_copy",
    ".popsection",
);

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod routine {
    unsafe extern "C" {
        /// Copies, and returns how many bytes are not copied.
        #[link_name = "iomill_mmap_copy"]
        pub fn copy(to: *mut u8, from: *const u8, len: usize) -> usize;
        /// The first instruction that touches memory.
        #[link_name = "iomill_mmap_copy_begin"]
        static BEGIN: u8;
        /// The first instruction after those that touch memory. From here the routine returns.
        #[link_name = "iomill_mmap_copy_end"]
        static END: u8;
    }

    /// Makes an interrupted copy or write-back return. `false` if the signal interrupted any other instruction.
    ///
    /// # Safety
    /// `context` is the third argument of a signal handler, as the kernel passed it.
    pub unsafe fn leave(context: *mut libc::c_void) -> bool {
        let context = context.cast::<libc::ucontext_t>();
        // SAFETY: the caller's promise. The instruction pointer is a register of the interrupted thread, which the
        // kernel restores.
        let at = unsafe {
            #[cfg(target_arch = "x86_64")]
            let at = &mut (*context).uc_mcontext.gregs[libc::REG_RIP as usize];
            #[cfg(target_arch = "aarch64")]
            let at = &mut (*context).uc_mcontext.pc;
            at
        };
        let (begin, end) = ((&raw const BEGIN).addr(), (&raw const END).addr());
        let here = *at as usize;
        let out = if (begin..end).contains(&here) { Some(end) } else { super::super::persist::way_out(here) };
        // Rule 1: the end of the routine returns the register with the count.
        if let Some(out) = out {
            *at = out as _;
        }
        out.is_some()
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod routine {
    /// Never called, because `install` refuses this processor.
    pub unsafe fn copy(_to: *mut u8, _from: *const u8, len: usize) -> usize {
        len
    }

    /// There is no routine that a signal could interrupt.
    pub unsafe fn leave(_context: *mut libc::c_void) -> bool {
        false
    }
}

/// Installs the handler for the whole process: from now on a SIGBUS within a copy ends only that copy.
///
/// # Errors
/// There is no copy for this processor, or the system refuses the handler.
pub(super) fn install() -> io::Result<()> {
    if !cfg!(any(target_arch = "x86_64", target_arch = "aarch64")) {
        let why =
            "parts are not mapped on this processor: the copy that survives a failing drive is for x86-64 and arm64";
        return Err(io::Error::new(io::ErrorKind::Unsupported, why));
    }
    INSTALLED.get_or_init(install_once).map_err(io::Error::from_raw_os_error)
}

fn install_once() -> Result<(), i32> {
    let refusal = || io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL);
    let mut before = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: the call only reads the present action, into a structure that lives here.
    if unsafe { libc::sigaction(libc::SIGBUS, std::ptr::null(), before.as_mut_ptr()) } != 0 {
        return Err(refusal());
    }
    // SAFETY: the kernel has filled it, and zeroes are a valid value of it anyway.
    let before = BEFORE.get_or_init(|| unsafe { before.assume_init() });
    // The flags and mask of the earlier handler hold for this one, which may call it.
    let mut action = *before;
    action.sa_sigaction = on_bus_error as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART | (before.sa_flags & libc::SA_NODEFER);
    // SAFETY: the handler does only what handlers may do (rule 2), and the structures live until the call returns.
    if unsafe { libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut()) } != 0 {
        return Err(refusal());
    }
    Ok(())
}

extern "C" fn on_bus_error(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the arguments are the kernel's. A signal that a process sent (code 0 or less) is no fault of the copy.
    if unsafe { (*info).si_code > 0 && routine::leave(context) } {
        return;
    }
    // Rule 3.
    let Some(before) = BEFORE.get() else { return };
    // SAFETY: as above.
    let sent = unsafe { (*info).si_code <= 0 };
    match before.sa_sigaction {
        libc::SIG_IGN if sent => {}
        // The kernel does not let a process ignore a fault.
        libc::SIG_DFL | libc::SIG_IGN => {
            let mut default = MaybeUninit::<libc::sigaction>::zeroed();
            // SAFETY: zeroes are the default action without flags. Handlers may make both calls. The raised signal
            // arrives when this handler returns; so does a fault, as the interrupted instruction runs again.
            unsafe {
                (*default.as_mut_ptr()).sa_sigaction = libc::SIG_DFL;
                libc::sigaction(signal, default.as_ptr(), std::ptr::null_mut());
                if sent {
                    libc::raise(signal);
                }
            }
        }
        handler if before.sa_flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: the handler was installed as a function of this type, and gets the kernel's arguments.
            let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
                unsafe { std::mem::transmute(handler) };
            handler(signal, info, context);
        }
        handler => {
            // SAFETY: as above, of the plain type.
            let handler: extern "C" fn(libc::c_int) = unsafe { std::mem::transmute(handler) };
            handler(signal);
        }
    }
}

/// Copies between memory and a mapping of a file. Returns the number of bytes at the end that were not copied: 0 after
/// a full copy. If other threads change the bytes meanwhile, the copy is any mixture, as with system calls.
///
/// # Safety
/// [`install`] has succeeded. The ranges do not overlap. Both are in mappings that stay during the call (their pages
/// may be missing). There is no reference to bytes that are written.
pub(super) unsafe fn copy(to: *mut u8, from: *const u8, len: usize) -> usize {
    if !READY.get() {
        unblock();
    }
    // SAFETY: the caller's promise. A missing page ends the copy (rule 1).
    unsafe { routine::copy(to, from, len) }
}

/// Unblocks the signal in this thread (rule 4).
#[cold]
fn unblock() {
    let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: the set lives until the calls return, and the first one initialises it. The calls fail only for invalid
    // arguments.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), libc::SIGBUS);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, set.as_ptr(), std::ptr::null_mut());
    }
    READY.set(true);
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;

    use rustix::mm::{MapFlags, ProtFlags};

    use super::*;

    const PAGE: usize = 4096;

    /// A shared mapping of `bytes` bytes of a new file that is `len` bytes long.
    fn mapped(len: u64, bytes: usize) -> (File, *mut u8) {
        let file = tempfile::tempfile().unwrap();
        file.set_len(len).unwrap();
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses. Tests keep it until the process ends.
        let start = unsafe { rustix::mm::mmap(std::ptr::null_mut(), bytes, access, MapFlags::SHARED, file.as_fd(), 0) };
        (file, start.unwrap().cast())
    }

    #[test]
    fn copies_all_lengths_and_alignments() {
        install().unwrap();
        let from: Vec<u8> = (0..3000u32).map(|i| (i * 7 % 251) as u8).collect();
        for len in (0..200).chain([511, 512, 1000, 2900]) {
            for (a, b) in [(0, 0), (1, 0), (0, 3), (5, 11)] {
                let mut to = vec![0xee; len + 32];
                // SAFETY: both ranges lie in the vectors.
                assert_eq!(unsafe { copy(to.as_mut_ptr().add(a), from.as_ptr().add(b), len) }, 0);
                assert!(to[a..a + len] == from[b..b + len], "{len} bytes from {b} to {a}");
                assert!(to[..a].iter().chain(&to[a + len..]).all(|&byte| byte == 0xee), "{len} bytes");
            }
        }
    }

    #[test]
    fn a_copy_ends_at_a_missing_page() {
        install().unwrap();
        let (file, start) = mapped(2 * PAGE as u64, 4 * PAGE);
        let mut to = vec![9u8; 4 * PAGE];
        // SAFETY: the vector and the mapping are long enough. Pages of the mapping fail, which `copy` survives.
        let read = |to: &mut Vec<u8>, at: usize, len: usize| unsafe { copy(to.as_mut_ptr(), start.add(at), len) };
        assert_eq!(read(&mut to, 0, 4 * PAGE), 2 * PAGE);
        assert!(to[..2 * PAGE].iter().all(|&byte| byte == 0) && to[2 * PAGE..].iter().all(|&byte| byte == 9));
        file.set_len(PAGE as u64).unwrap();
        assert_eq!(read(&mut to, 100, 2 * PAGE), PAGE + 100, "the file was cut under the mapping");
        // SAFETY: as above, the other way round.
        let written = unsafe { copy(start.add(PAGE - 10), [5u8; 20].as_ptr(), 20) };
        assert_eq!(written, 10, "writing ended at the end of the file");
        file.set_len(4 * PAGE as u64).unwrap();
        assert_eq!(read(&mut to, 0, 4 * PAGE), 0, "the file has grown into the mapping");
        assert_eq!(to[PAGE - 11..PAGE + 1], [0, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 0]);
    }

    #[test]
    fn a_write_back_ends_at_a_missing_page() {
        use crate::engine::mmap::persist::Persist;
        install().unwrap();
        let Some(persist) = Persist::of_this_processor() else { return };
        let (file, start) = mapped(2 * PAGE as u64, 4 * PAGE);
        // SAFETY: the range is mapped, and this thread copies first. Pages that fail are the subject of this test.
        unsafe {
            assert_eq!(copy(start, [5u8; 20].as_ptr(), 20), 0);
            assert!(persist.write_back(start, PAGE));
            assert!(persist.write_back(start.add(PAGE - 1), 2));
            assert!(
                !persist.write_back(start.add(2 * PAGE - 1), 2),
                "the file was cut between the copy and its write-back"
            );
            assert!(persist.write_back(start.add(2 * PAGE), 0));
        }
        file.set_len(3 * PAGE as u64).unwrap();
        // SAFETY: as above.
        assert!(unsafe { persist.write_back(start.add(2 * PAGE - 1), 2) });
    }

    #[test]
    fn a_thread_that_blocks_the_signal_survives() {
        install().unwrap();
        std::thread::spawn(|| {
            let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
            // SAFETY: changes only this thread's mask.
            unsafe {
                libc::sigfillset(set.as_mut_ptr());
                libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut());
            }
            let (_file, start) = mapped(0, PAGE);
            let mut to = [0u8; 16];
            // SAFETY: the mapping is longer than the copy.
            assert_eq!(unsafe { copy(to.as_mut_ptr(), start, 16) }, 16);
        })
        .join()
        .unwrap();
    }
}

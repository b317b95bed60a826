//! Copies of bytes: the only place where a thread copies what other threads may be changing (rule 1 of the cache), and how pages are copied
//! to memory of users, wherever in its pages that begins.

// Models copy by words that loom watches (`cache::frames`).
#![cfg_attr(iomill_models, allow(dead_code))]

/// As `ptr::copy_nonoverlapping`, but quick wherever both begin (`is_slow_by_string`).
///
/// # Safety
/// `len` bytes are readable at `from` and writable at `to`, no other thread changes them meanwhile, and the two do not overlap.
pub unsafe fn copy_bytes(from: *const u8, to: *mut u8, len: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if len >= STRING_FROM_BYTES && is_slow_by_string(from, to) {
        // SAFETY: the caller's promise.
        return unsafe { copy_by_registers(from, to, len) };
    }
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(from, to, len) }
}

/// From this length on the string instruction is faster than moves by registers.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const STRING_FROM_BYTES: usize = 768;

/// Whether the string instruction may take six times as long as moves by registers. Processors of AMD's Zen 3 take so long if the source's
/// place in its page is 1 to 31 bytes before the destination's. The C library's `memcpy` uses the instruction, too, from some size on. The C library's
/// allocator begins large vectors 16 bytes behind a page's edge. So a copy of a whole page to such a vector would be slow.
/// `cargo bench --bench page_copies` shows it.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline(always)]
fn is_slow_by_string(from: *const u8, to: *const u8) -> bool {
    let behind = to.addr().wrapping_sub(from.addr()) % 4096;
    (1..32).contains(&behind)
}

/// Copies `len` bytes between memory that other threads may read or write at the same time, on either side.
/// The other threads use this function, too. The copy may be a mixture of old and new bytes. The caller finds that out
/// by the frame's version (rule 1 of `occupants`). A race is not undefined behaviour here.
///
/// # Safety
/// `len` bytes are readable at `from` and writable at `to`, and the two do not overlap. All accesses to them by other
/// threads that may happen at the same time are made by this function or by the kernel.
#[inline(always)]
pub unsafe fn copy_racing(from: *const u8, to: *mut u8, len: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: the caller's promise.
    unsafe {
        copy_by_machine(from, to, len);
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    // SAFETY: the caller's promise.
    unsafe {
        copy_by_atomics(from, to, len);
    }
}

/// The instruction that moves 16 bytes. Where the compiler may use AVX, it leaves the upper halves of registers in use.
/// The older form of the instruction keeps those halves, so it waits for the last load into the register. Copies would
/// no longer overlap.
#[cfg(all(target_arch = "x86_64", not(miri), target_feature = "avx"))]
macro_rules! move_16 {
    ($operands:literal) => {
        concat!("vmovups ", $operands)
    };
}
#[cfg(all(target_arch = "x86_64", not(miri), not(target_feature = "avx")))]
macro_rules! move_16 {
    ($operands:literal) => {
        concat!("movups ", $operands)
    };
}

/// To the language, an assembly block is opaque code, which may do whatever Rust code could do. These blocks do what
/// relaxed atomic loads and stores of single bytes would do, in some order. On this architecture every access is at
/// least that strong.
///
/// # Safety
/// As for [`copy_racing`].
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline(always)]
unsafe fn copy_by_machine(from: *const u8, to: *mut u8, len: usize) {
    if len >= STRING_FROM_BYTES && !is_slow_by_string(from, to) {
        // SAFETY: reads and writes the caller's `len` bytes. The direction flag is clear on entry to any block.
        unsafe {
            core::arch::asm!("rep movsb", inout("rcx") len => _, inout("rsi") from => _, inout("rdi") to => _,
                options(nostack, preserves_flags));
        }
        return;
    }
    // SAFETY: the caller's promise.
    unsafe { copy_by_registers(from, to, len) };
}

/// Copies by registers of 16 bytes and less.
///
/// # Safety
/// As for [`copy_racing`].
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline(always)]
unsafe fn copy_by_registers(from: *const u8, to: *mut u8, len: usize) {
    // By pointers: an index would take a register and an instruction even where the length is known.
    let (mut from, mut to, mut left) = (from, to, len);
    while left >= 128 {
        // SAFETY: `left` bytes from `from` and `to` on are within the caller's `len`.
        unsafe {
            copy_64::<0>(from, to);
            copy_64::<64>(from, to);
            (from, to) = (from.add(128), to.add(128));
        }
        left -= 128;
    }
    if left >= 64 {
        // SAFETY: as above.
        unsafe {
            copy_64::<0>(from, to);
            (from, to) = (from.add(64), to.add(64));
        }
        left -= 64;
    }
    if left > 0 {
        // SAFETY: what is left is within the caller's `len`.
        unsafe { copy_less_than_64(from, to, left) };
    }
}

/// Copies 64 bytes, `AT` bytes behind both places.
///
/// # Safety
/// As for [`copy_racing`], for these bytes.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline(always)]
unsafe fn copy_64<const AT: usize>(from: *const u8, to: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe {
        core::arch::asm!(
            move_16!("{a}, [{from} + {at}]"), move_16!("{b}, [{from} + {at} + 16]"),
            move_16!("{c}, [{from} + {at} + 32]"), move_16!("{d}, [{from} + {at} + 48]"),
            move_16!("[{to} + {at}], {a}"), move_16!("[{to} + {at} + 16], {b}"),
            move_16!("[{to} + {at} + 32], {c}"), move_16!("[{to} + {at} + 48], {d}"),
            from = in(reg) from, to = in(reg) to, at = const AT,
            a = out(xmm_reg) _, b = out(xmm_reg) _, c = out(xmm_reg) _, d = out(xmm_reg) _,
            options(nostack, preserves_flags));
    }
}

/// One load and one store of the register's width, at an offset.
#[cfg(all(target_arch = "x86_64", not(miri)))]
macro_rules! copy_by {
    ($class:ident, $load:expr, $store:expr, $from:expr, $to:expr) => {
        core::arch::asm!($load, $store, from = in(reg) $from, to = in(reg) $to, a = out($class) _,
            options(nostack, preserves_flags))
    };
}

/// Copies by the largest registers that fit. The last access may overlap the one before it.
///
/// # Safety
/// As for [`copy_racing`]; `len` is 1 to 63.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline(always)]
unsafe fn copy_less_than_64(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: every access is within the caller's `len` bytes: it begins below `last`, or at `last`, one width before
    // the end.
    unsafe {
        if len >= 16 {
            let (mut at, last) = (0, len - 16);
            while at < last {
                copy_by!(xmm_reg, move_16!("{a}, [{from}]"), move_16!("[{to}], {a}"), from.add(at), to.add(at));
                at += 16;
            }
            copy_by!(xmm_reg, move_16!("{a}, [{from}]"), move_16!("[{to}], {a}"), from.add(last), to.add(last));
        } else if len >= 8 {
            let last = len - 8;
            copy_by!(reg, "mov {a}, [{from}]", "mov [{to}], {a}", from, to);
            copy_by!(reg, "mov {a}, [{from}]", "mov [{to}], {a}", from.add(last), to.add(last));
        } else if len >= 4 {
            let last = len - 4;
            copy_by!(reg, "mov {a:e}, [{from}]", "mov [{to}], {a:e}", from, to);
            copy_by!(reg, "mov {a:e}, [{from}]", "mov [{to}], {a:e}", from.add(last), to.add(last));
        } else {
            for at in 0..len {
                copy_by!(reg_byte, "mov {a}, [{from}]", "mov [{to}], {a}", from.add(at), to.add(at));
            }
        }
    }
}

/// # Safety
/// As for [`copy_racing`].
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
unsafe fn copy_by_atomics(from: *const u8, to: *mut u8, len: usize) {
    use std::sync::atomic::{AtomicU8, Ordering};
    for at in 0..len {
        // SAFETY: both bytes are valid by the caller's promise, and a byte is always aligned. Every other access to
        // them is atomic, too, or counts as atomic.
        unsafe {
            let byte = (*from.add(at).cast::<AtomicU8>()).load(Ordering::Relaxed);
            (*to.add(at).cast::<AtomicU8>()).store(byte, Ordering::Relaxed);
        }
    }
}

#[cfg(all(test, not(iomill_models)))]
mod tests {
    use super::*;

    #[test]
    fn copies_what_it_should_and_no_more() {
        let from: Vec<u8> = (0..6000).map(|i| (i % 251) as u8).collect();
        for len in (0..200).chain([255, 256, 767, 768, 769, 4096]) {
            for shift in [0, 1, 7, 16] {
                let mut to = vec![0xEE; 6000];
                // SAFETY: both vectors are longer than that, and no other code has them.
                unsafe { copy_racing(from.as_ptr().add(shift), to.as_mut_ptr().add(3), len) };
                assert_eq!(&to[3..3 + len], &from[shift..shift + len]);
                assert!(to[..3].iter().chain(&to[3 + len..]).all(|&b| b == 0xEE));
            }
        }
    }

    #[test]
    fn copies_the_same_wherever_both_begin() {
        let from: Vec<u8> = (0..20_000).map(|i| (i % 251) as u8).collect();
        let page = from.as_ptr().align_offset(4096);
        let mut to = vec![0xEE; 20_000];
        let to_page = to.as_ptr().align_offset(4096);
        for behind in (0..70).chain([4064, 4095]) {
            for len in [767, 768, 2000, 4096, 8192] {
                to.fill(0xEE);
                let begin = to_page + behind;
                // SAFETY: both vectors are longer than that, and no other code has them.
                unsafe { copy_bytes(from.as_ptr().add(page), to.as_mut_ptr().add(begin), len) };
                assert_eq!(to[begin..begin + len], from[page..page + len]);
                assert!(to[..begin].iter().chain(&to[begin + len..]).all(|&b| b == 0xEE));
            }
        }
    }
}

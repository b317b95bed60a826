//! Copies of bytes. [`copy_racing`] is the only copy of bytes that other threads may be changing (rule 1 of the cache).
//! [`copy_bytes`] copies pages to memory of users, at any alignment.

// Models copy by words that loom watches (`cache::memory`).
#![cfg_attr(iomill_models, allow(dead_code))]

/// As `ptr::copy_nonoverlapping`, but fast for all alignments of the two (`is_slow_by_string`).
///
/// # Safety
/// `len` bytes are readable at `from` and writable at `to`, no other thread changes them meanwhile, and the two do not
/// overlap.
pub unsafe fn copy_bytes(from: *const u8, to: *mut u8, len: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if len >= STRING_FROM_BYTES && is_slow_by_string(from, to) {
        // SAFETY: the caller's promise.
        return unsafe { copy_by_registers(from, to, len) };
    }
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(from, to, len) }
}

/// The length from which on the string instruction is faster than moves by registers.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const STRING_FROM_BYTES: usize = 768;

/// Whether the string instruction may be slow: it takes AMD's Zen 3 six times as long as moves by registers if the
/// source is at an offset in its page 1 to 31 bytes before the destination's offset. The C library's `memcpy` uses the
/// instruction for long copies, too. Its allocator begins large vectors 16 bytes after a page's start, so copies of
/// whole pages to them would be slow. `cargo bench --bench page_copies` shows it.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline(always)]
fn is_slow_by_string(from: *const u8, to: *const u8) -> bool {
    let behind = to.addr().wrapping_sub(from.addr()) % 4096;
    (1..32).contains(&behind)
}

/// Copies `len` bytes that other threads may read or write at the same time, by this function, too. A race is not
/// undefined behaviour here, but the copy may be a mixture of old and new bytes. The caller detects that by the frame's
/// version (rule 1 of `occupants`).
///
/// # Safety
/// `len` bytes are readable at `from` and writable at `to`, and the two do not overlap. Only this function and the
/// kernel access them at the same time.
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

/// The instruction that moves 16 bytes. If the compiler may use AVX, it leaves values in the upper halves of registers.
/// The older form of the instruction keeps those halves, so it would wait for the register's last load, and copies
/// would no longer overlap.
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

/// Copies by assembly. To the language, an assembly block is opaque code with the effect of some Rust code. These
/// blocks have the effect of relaxed atomic loads and stores of single bytes, in some order: every access of this
/// architecture is at least that strong.
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
    // Pointers, because an index would take a register and an instruction even if the length is known.
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
        // SAFETY: the last `left` bytes are within the caller's `len`.
        unsafe { copy_less_than_64(from, to, left) };
    }
}

/// Copies 64 bytes, from `AT` bytes after `from` to `AT` bytes after `to`.
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

/// Copies by atomic bytes.
///
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
    fn exactly_the_given_bytes_are_copied() {
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
    fn copies_are_right_at_all_alignments() {
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

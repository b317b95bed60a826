//! Write-back of cache lines to memory that keeps its bytes without power.
//!
//! A page may vanish between the copy to it and the write-back of its lines. So lines are written back by routines like
//! the copy's, under the same rules (`super::copy`, rules 1 and 2).
//!
//! Goals: on a file that is mapped with `MAP_SYNC`, stored bytes are durable when `fence` returns. Non-goals: machines
//! that need no write-back, because their caches survive a power failure. There it costs little.

/// The shortest cache line of any known processor. Longer lines are written back more than once.
const LINE_BYTES: usize = 64;

/// Defines a routine that writes lines back by one instruction. Two symbols enclose the instructions that touch memory.
/// A jump to the second one ends the routine: it returns the number of lines that are not written back.
macro_rules! routine {
    ($name:ident, $begin:literal, $body:literal, $end:literal) => {
        mod $name {
            std::arch::global_asm!(
                concat!(".pushsection .text.iomill_mmap_", stringify!($name), ",\"ax\",@progbits"),
                ".p2align 4",
                concat!(".globl iomill_mmap_", stringify!($name)),
                concat!(".hidden iomill_mmap_", stringify!($name)),
                concat!(".type iomill_mmap_", stringify!($name), ",@function"),
                concat!("iomill_mmap_", stringify!($name), ":"),
                $begin,
                $body,
                concat!(".globl iomill_mmap_", stringify!($name), "_end"),
                concat!(".hidden iomill_mmap_", stringify!($name), "_end"),
                concat!("iomill_mmap_", stringify!($name), "_end:"),
                $end,
                "ret",
                concat!(".size iomill_mmap_", stringify!($name), ", . - iomill_mmap_", stringify!($name)),
                ".popsection",
            );

            unsafe extern "C" {
                #[link_name = concat!("iomill_mmap_", stringify!($name))]
                pub fn run(line: *const u8, lines: usize) -> usize;
                #[link_name = concat!("iomill_mmap_", stringify!($name), "_end")]
                static END: u8;
            }

            /// The instructions at which a missing page may interrupt it. Its way out is the end of the range.
            pub fn range() -> std::ops::Range<usize> {
                (run as *const () as usize)..(&raw const END).addr()
            }
        }
    };
}

// The first argument is the line, the second the number of lines that are left.
#[cfg(target_arch = "x86_64")]
routine!(clwb, "2: test rsi, rsi\nje 3f", "clwb [rdi]\nadd rdi, 64\nsub rsi, 1\njmp 2b\n3:", "mov rax, rsi");
#[cfg(target_arch = "x86_64")]
routine!(
    clflushopt,
    "2: test rsi, rsi\nje 3f",
    "clflushopt [rdi]\nadd rdi, 64\nsub rsi, 1\njmp 2b\n3:",
    "mov rax, rsi"
);
// `dc cvap`, written so that every assembler accepts it.
#[cfg(target_arch = "aarch64")]
routine!(cvap, "2: cbz x1, 3f", "sys #3, c7, c12, #1, x0\nadd x0, x0, #64\nsub x1, x1, #1\nb 2b\n3:", "mov x0, x1");

/// The way out of a write-back that was interrupted at the instruction `at`; `None` if `at` is in no write-back.
pub(super) fn way_out(at: usize) -> Option<usize> {
    #[cfg(target_arch = "x86_64")]
    let ranges = [clwb::range(), clflushopt::range()];
    #[cfg(target_arch = "aarch64")]
    let ranges = [cvap::range()];
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let ranges: [std::ops::Range<usize>; 0] = [];
    ranges.into_iter().find(|range| range.contains(&at)).map(|range| range.end)
}

/// The instruction that writes a line back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Persist {
    /// `clwb`: the line stays in the cache.
    #[cfg(target_arch = "x86_64")]
    Clwb,
    /// `clflushopt`: the line leaves the cache.
    #[cfg(target_arch = "x86_64")]
    ClflushOpt,
    /// `dc cvap`, to the point of persistence.
    #[cfg(target_arch = "aarch64")]
    CleanToPersistence,
}

impl Persist {
    /// The best instruction of this processor. `None` if it has none: then the kernel must make parts durable.
    pub(super) fn of_this_processor() -> Option<Persist> {
        #[cfg(target_arch = "x86_64")]
        {
            const FEATURES: u32 = 7;
            #[allow(
                unused_unsafe,
                reason = "newer versions of Rust have them as safe functions, the oldest supported one does not"
            )]
            // SAFETY: every processor of this architecture has the instruction. The leaf is requested only if the
            // processor has it.
            let features = unsafe {
                if std::arch::x86_64::__get_cpuid_max(0).0 < FEATURES {
                    return None;
                }
                std::arch::x86_64::__cpuid_count(FEATURES, 0).ebx
            };
            if features & (1 << 24) != 0 {
                return Some(Persist::Clwb);
            }
            (features & (1 << 23) != 0).then_some(Persist::ClflushOpt)
        }
        #[cfg(target_arch = "aarch64")]
        {
            // SAFETY: reads a word that the kernel passed at the start of the process.
            let features = unsafe { libc::getauxval(libc::AT_HWCAP) };
            (features & libc::HWCAP_DCPOP != 0).then_some(Persist::CleanToPersistence)
        }
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        None
    }

    /// Begins to write back all lines of a range; [`Persist::fence`] waits for them. Returns `false` if a page of the
    /// range is missing.
    ///
    /// # Safety
    /// The range is mapped. If pages in it may be missing, [`super::copy::install`] has succeeded, and this thread has
    /// called [`super::copy::copy`] before.
    pub(super) unsafe fn write_back(self, start: *const u8, len: usize) -> bool {
        let line = start.wrapping_sub(start.addr() % LINE_BYTES);
        let lines = (start.addr() + len - line.addr()).div_ceil(LINE_BYTES) * usize::from(len > 0);
        // SAFETY: the processor has the instruction (`of_this_processor`), which changes no byte. The lines overlap the
        // range, so they are mapped. A missing page ends the routine.
        let left = unsafe {
            match self {
                #[cfg(target_arch = "x86_64")]
                Persist::Clwb => clwb::run(line, lines),
                #[cfg(target_arch = "x86_64")]
                Persist::ClflushOpt => clflushopt::run(line, lines),
                #[cfg(target_arch = "aarch64")]
                Persist::CleanToPersistence => cvap::run(line, lines),
            }
        };
        left == 0
    }

    /// Waits until all lines that this thread wrote back are durable.
    pub(super) fn fence(self) {
        // SAFETY: fences change nothing.
        unsafe {
            #[cfg(target_arch = "x86_64")]
            std::arch::asm!("sfence", options(nostack, preserves_flags));
            #[cfg(target_arch = "aarch64")]
            std::arch::asm!("dsb sy", options(nostack, preserves_flags));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_stay_as_they_are() {
        let Some(persist) = Persist::of_this_processor() else { return };
        let bytes: Vec<u8> = (0..1000u32).map(|i| i as u8).collect();
        let expected = bytes.clone();
        for (at, len) in [(0, 1000), (1, 1), (63, 2), (500, 0)] {
            // SAFETY: the range lies in the vector.
            assert!(unsafe { persist.write_back(bytes.as_ptr().add(at), len) });
            persist.fence();
        }
        assert!(bytes == expected);
    }
}

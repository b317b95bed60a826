//! Writing cache lines back to memory that keeps its bytes without power.
//!
//! Goals: what was stored is durable when `fence` returns, on a file that is mapped with `MAP_SYNC`. Non-goals: memory that
//! needs none of this (caches that power failures do not lose): it costs little there.

/// The shortest line of the processors that we know; lines that are longer are written back more than once.
const LINE_BYTES: usize = 64;

/// How this processor writes a line back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LineFlush {
    /// `clwb`: the line stays in the cache.
    #[cfg(target_arch = "x86_64")]
    Clwb,
    /// `clflushopt`: it does not.
    #[cfg(target_arch = "x86_64")]
    ClflushOpt,
    /// `dc cvap`, to the point of persistence.
    #[cfg(target_arch = "aarch64")]
    CleanToPersistence,
}

impl LineFlush {
    /// The best of this processor; none where it has nothing of the kind, so that parts must be made durable by the kernel.
    pub(super) fn of_this_processor() -> Option<LineFlush> {
        #[cfg(target_arch = "x86_64")]
        {
            const FEATURES: u32 = 7;
            if std::arch::x86_64::__get_cpuid_max(0).0 < FEATURES {
                return None;
            }
            let features = std::arch::x86_64::__cpuid_count(FEATURES, 0).ebx;
            if features & (1 << 24) != 0 {
                return Some(LineFlush::Clwb);
            }
            (features & (1 << 23) != 0).then_some(LineFlush::ClflushOpt)
        }
        #[cfg(target_arch = "aarch64")]
        {
            // SAFETY: asks for a word that the kernel passed at start.
            let features = unsafe { libc::getauxval(libc::AT_HWCAP) };
            (features & libc::HWCAP_DCPOP != 0).then_some(LineFlush::CleanToPersistence)
        }
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        None
    }

    /// Begins to write back all lines of a range; [`LineFlush::fence`] waits for it.
    ///
    /// # Safety
    /// The range is mapped, and its pages are there: they have just been written to.
    pub(super) unsafe fn write_back(self, start: *const u8, len: usize) {
        let end = start.addr() + len;
        let mut line = start.wrapping_sub(start.addr() % LINE_BYTES);
        while line.addr() < end {
            // SAFETY: the processor has the instruction (`of_this_processor`), which changes no byte and no register; the line
            // touches the range, so it is mapped.
            unsafe {
                match self {
                    #[cfg(target_arch = "x86_64")]
                    LineFlush::Clwb => std::arch::asm!("clwb [{}]", in(reg) line, options(nostack, preserves_flags)),
                    #[cfg(target_arch = "x86_64")]
                    LineFlush::ClflushOpt => {
                        std::arch::asm!("clflushopt [{}]", in(reg) line, options(nostack, preserves_flags));
                    }
                    #[cfg(target_arch = "aarch64")]
                    LineFlush::CleanToPersistence => {
                        // `dc cvap`, spelt so that every assembler takes it.
                        std::arch::asm!("sys #3, c7, c12, #1, {}", in(reg) line, options(nostack, preserves_flags));
                    }
                }
            }
            line = line.wrapping_add(LINE_BYTES);
        }
    }

    /// Waits until what this thread wrote back is durable.
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
        let Some(flush) = LineFlush::of_this_processor() else { return };
        let bytes: Vec<u8> = (0..1000u32).map(|i| i as u8).collect();
        let expected = bytes.clone();
        for (at, len) in [(0, 1000), (1, 1), (63, 2), (500, 0)] {
            // SAFETY: the range lies in the vector.
            unsafe { flush.write_back(bytes.as_ptr().add(at), len) };
            flush.fence();
        }
        assert!(bytes == expected);
    }
}

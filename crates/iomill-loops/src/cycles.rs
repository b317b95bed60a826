//! CPU cycles, if the processor has a counter for them and the kernel allows its use.
//!
//! Goals: cycles in user mode and in the kernel, of this thread and of threads that it starts. Without a counter, the
//! reason in plain words. Non-goals: other events; counters without the kernel, where a read spends most of its time.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::FromRawFd;

/// `PERF_TYPE_HARDWARE` and `PERF_COUNT_HW_CPU_CYCLES`.
const HARDWARE: u32 = 0;
const CPU_CYCLES: u64 = 0;
/// `PERF_FORMAT_TOTAL_TIME_ENABLED` and `_RUNNING`. Counters may share one hardware counter in turns; these say how
/// long each ran.
const WITH_TIMES: u64 = 3;
/// The flag `inherit`, the second bit: threads that are started later count too.
const INHERIT: u64 = 1 << 1;
const CLOSE_ON_EXEC: libc::c_ulong = 8;

/// The first version of the kernel's `struct perf_event_attr`, which every kernel accepts.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    kind: u32,
    len: u32,
    config: u64,
    sample_period: u64,
    sample_kind: u64,
    read_format: u64,
    flags: u64,
    wakeup: u32,
    breakpoint: u32,
    config1: u64,
}

const _: () = assert!(size_of::<Attributes>() == 64);

/// A running counter.
#[derive(Debug)]
pub struct Cycles {
    file: File,
}

impl Cycles {
    /// Starts to count, or returns why this is not possible.
    pub fn start() -> Result<Cycles, String> {
        let attributes = Attributes {
            kind: HARDWARE,
            len: size_of::<Attributes>() as u32,
            config: CPU_CYCLES,
            read_format: WITH_TIMES,
            flags: INHERIT,
            ..Attributes::default()
        };
        // This thread, on any CPU, in no group.
        let (thread, cpu, group): (libc::pid_t, libc::c_int, libc::c_int) = (0, -1, -1);
        // SAFETY: the kernel reads as many bytes as the attributes' `len` says.
        let descriptor = unsafe {
            libc::syscall(libc::SYS_perf_event_open, &raw const attributes, thread, cpu, group, CLOSE_ON_EXEC)
        };
        match i32::try_from(descriptor) {
            // SAFETY: the descriptor is new and has no other owner.
            Ok(descriptor) if descriptor >= 0 => Ok(Cycles { file: unsafe { File::from_raw_fd(descriptor) } }),
            _ => Err(why(&io::Error::last_os_error())),
        }
    }

    /// Cycles so far.
    pub fn count(&self) -> Result<u64, String> {
        let mut bytes = [0; 24];
        (&self.file).read_exact(&mut bytes).map_err(|e| format!("the counter of cycles cannot be read: {e}"))?;
        let word = |index: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[8 * index..8 * index + 8]);
            u64::from_ne_bytes(word)
        };
        scaled(word(0), word(1), word(2))
    }
}

/// Scales a count from the time in which the counter ran to the whole time.
fn scaled(count: u64, wanted_ns: u64, running_ns: u64) -> Result<u64, String> {
    if running_ns == 0 {
        return Err(
            "the counter of cycles never had its turn: other programs use all counters of the processor".to_owned()
        );
    }
    Ok((u128::from(count) * u128::from(wanted_ns) / u128::from(running_ns)) as u64)
}

fn why(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::ENOENT | libc::EOPNOTSUPP | libc::ENODEV | libc::EINVAL) => {
            "the processor or the hypervisor shows no counter of cycles".to_owned()
        }
        Some(libc::EACCES | libc::EPERM) => {
            "the kernel allows its counter of cycles to root only (kernel.perf_event_paranoid above 1), or a seccomp filter forbids it"
                .to_owned()
        }
        Some(libc::ENOSYS) => "the kernel has no performance counters".to_owned(),
        _ => format!("the counter of cycles is refused: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cycles_are_counted_or_the_reason_is_told() {
        match Cycles::start() {
            Ok(cycles) => {
                let before = cycles.count().unwrap();
                assert!((0..1000u64).map(std::hint::black_box).sum::<u64>() > 0);
                assert!(cycles.count().unwrap() > before);
            }
            Err(why) => assert!(why.contains("counter"), "{why}"),
        }
        let told = |errno| why(&io::Error::from_raw_os_error(errno));
        assert!(told(libc::ENOENT).contains("shows no counter"));
        assert!(told(libc::EACCES).contains("perf_event_paranoid"));
        assert!(told(libc::EMFILE).contains("Too many open files"));
    }

    #[test]
    fn a_counter_that_took_turns_is_scaled() {
        assert_eq!(scaled(500, 1000, 250), Ok(2000));
        assert!(scaled(0, 1000, 0).unwrap_err().contains("never had its turn"));
    }
}

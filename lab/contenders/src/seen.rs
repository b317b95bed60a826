//! Page faults and bytes from drives, counted for the threads of a slice.
//!
//! Goals: counting is not timed. Non-goals: judging the counts ([`crate::state`]).
//!
//! Rules:
//! 1. A thread counts from before its slice starts until after it has ended. So the preparation of the state is not
//!    counted, and counting is not timed.
//! 2. Each thread counts for itself, because other work of the process is not the contender's.

use std::fs;
use std::mem::MaybeUninit;

use iomill::{Error, Result};

/// The page faults and fetched bytes of all threads of a slice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Seen {
    /// Page faults without I/O.
    pub minor_faults: u64,
    /// Page faults that waited for a drive.
    pub major_faults: u64,
    /// Bytes that the threads made drives fetch; `None` where the kernel does not count them.
    pub fetched_bytes: Option<u64>,
}

/// Counts page faults and fetched bytes of the calling thread (rules 1 and 2). The module `threads` has one for each
/// thread. A contender that works elsewhere brings its own.
#[derive(Clone, Copy, Debug)]
pub struct Watch(Seen);

impl Watch {
    /// Starts to count.
    pub fn begin() -> Result<Watch> {
        Ok(Watch(of_this_thread()?))
    }

    /// The counts of the same thread since then.
    pub fn end(self) -> Result<Seen> {
        let (now, before) = (of_this_thread()?, self.0);
        Ok(Seen {
            minor_faults: now.minor_faults.saturating_sub(before.minor_faults),
            major_faults: now.major_faults.saturating_sub(before.major_faults),
            fetched_bytes: now.fetched_bytes.zip(before.fetched_bytes).map(|(now, before)| now.saturating_sub(before)),
        })
    }
}

impl Seen {
    /// The sum of the counts of two threads.
    pub fn and(self, other: Seen) -> Seen {
        Seen {
            minor_faults: self.minor_faults + other.minor_faults,
            major_faults: self.major_faults + other.major_faults,
            fetched_bytes: self.fetched_bytes.zip(other.fetched_bytes).map(|(one, other)| one + other),
        }
    }
}

fn of_this_thread() -> Result<Seen> {
    let usage = usage(libc::RUSAGE_THREAD, "the page faults of a thread")?;
    let fetched_bytes = fetched_bytes("/proc/thread-self/io");
    Ok(Seen { minor_faults: usage.ru_minflt as u64, major_faults: usage.ru_majflt as u64, fetched_bytes })
}

/// A count of the kernel for this thread or process. `what` names it in an error.
pub(crate) fn usage(whose: libc::c_int, what: &str) -> Result<libc::rusage> {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the pointer is valid for one `rusage`, which the call fills.
    if unsafe { libc::getrusage(whose, usage.as_mut_ptr()) } != 0 {
        let why = std::io::Error::last_os_error().to_string();
        return Err(Error::Tool { what: what.into(), why });
    }
    // SAFETY: zeroed is a valid value of this plain struct, and the call has filled it.
    Ok(unsafe { usage.assume_init() })
}

/// Bytes that the process or thread with that file in `/proc` made drives fetch so far; `None` on kernels that do not
/// count them.
pub(crate) fn fetched_bytes(io: &str) -> Option<u64> {
    let text = fs::read_to_string(io).ok()?;
    text.lines().find_map(|line| line.strip_prefix("read_bytes: "))?.trim().parse().ok()
}

/// The counts of a contender's own cache in a slice.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Own {
    /// Pages that were found in it.
    pub hits: u64,
    /// Pages that were requested and not found.
    pub misses: u64,
}

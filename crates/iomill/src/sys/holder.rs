//! [`Holder`]: the holder of a lock on a file (`flock`), as far as the kernel shows it.
//!
//! Goals: never to name a process that has ended, or never had the lock. Non-goals: locks of other machines.
//!
//! The kernel's list of locks names the process that took a lock. That process may have ended, and another one may have
//! its number by now. A child that was forked meanwhile has the file, and so the lock. A killed process has the lock
//! until its last I/O has ended. So a process counts as the holder if it has the file open with that lock.

use std::fs;
use std::path::Path;

/// The holder of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// The process with this number. It may be this one.
    Process(u32),
    /// A process that is ending or has ended, or none any more. The lock is free soon.
    Ending,
    /// Not known.
    Unknown,
}

impl Holder {
    /// The number of the process, if it is known.
    pub fn process(self) -> Option<u32> {
        if let Holder::Process(number) = self { Some(number) } else { None }
    }
}

/// The bit of SIGKILL in a mask of signals.
const KILL_BIT: u64 = 1 << (libc::SIGKILL - 1);
/// The flag of a task that is ending (`PF_EXITING`, Linux, include/linux/sched.h).
const EXITING: u64 = 4;

/// The holder of a lock on the file or directory with the inode number `inode` on the device `(major, minor)`. Paths to
/// it end with `name`. `proc` is `/proc`.
pub fn find(proc: &Path, name: &str, (major, minor): (u32, u32), inode: u64) -> Holder {
    // Some file systems show users other device numbers than the list of locks has. Then the holder is not known.
    let file = format!("{major:02x}:{minor:02x}:{inode}");
    let Ok(locks) = fs::read_to_string(proc.join("locks")) else { return Holder::Unknown };
    let owners: Vec<i64> = locks.lines().filter_map(|line| owner(line, &file)).collect();
    // In a namespace of processes the list lacks locks of processes that have ended or are outside. Open files still
    // show them.
    let mut is_hidden = owners.is_empty();
    // Numbers of 0 and below stand for processes that this one cannot see.
    for owner in &owners {
        let Some(number) = u32::try_from(*owner).ok().filter(|number| *number > 0) else {
            is_hidden = true;
            continue;
        };
        match has_lock(&proc.join(number.to_string()), name, &file) {
            Some(true) => return Holder::Process(number),
            None if !is_ending(&proc.join(number.to_string())) => return Holder::Process(number),
            Some(false) | None => {}
        }
    }
    let Ok(all) = fs::read_dir(proc) else { return Holder::Unknown };
    let numbers = all.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let heir = numbers.into_iter().find(|number| has_lock(&proc.join(number.to_string()), name, &file) == Some(true));
    match heir {
        Some(number) => Holder::Process(number),
        None if is_hidden => Holder::Unknown,
        None => Holder::Ending,
    }
}

/// The number of the process that took the lock of a line, if the lock is a `flock` of the file. In a line of a process
/// that waits, an arrow follows the line's number.
fn owner(line: &str, file: &str) -> Option<i64> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let place = fields.iter().position(|field| *field == file)?;
    if fields.contains(&"->") || !fields.contains(&"FLOCK") {
        return None;
    }
    fields.get(place.checked_sub(1)?)?.parse().ok()
}

/// Whether a process has the file with the lock open, and is to live on. `None` if it does not show that.
fn has_lock(process: &Path, name: &str, file: &str) -> Option<bool> {
    let descriptors = fs::read_dir(process.join("fd")).ok()?;
    for entry in descriptors.flatten() {
        let is_lock = fs::read_link(entry.path()).is_ok_and(|target| target.ends_with(name));
        if !is_lock {
            continue;
        }
        let info = fs::read_to_string(process.join("fdinfo").join(entry.file_name())).unwrap_or_default();
        let mut locks = info.lines().filter_map(|line| line.strip_prefix("lock:"));
        if locks.any(|line| owner(line, file).is_some()) {
            return Some(!is_ending(process));
        }
    }
    Some(false)
}

/// Whether a process has ended, or was killed and is about to end, with all its threads.
fn is_ending(process: &Path) -> bool {
    let Ok(tasks) = fs::read_dir(process.join("task")) else { return true };
    tasks.flatten().all(|task| {
        let read = |name: &str| fs::read_to_string(task.path().join(name)).unwrap_or_default();
        is_ending_stat(&read("stat")) || is_killed(&read("status"))
    })
}

/// Whether a task's `stat` shows that the task has ended or is ending. It is empty if the task is gone.
fn is_ending_stat(stat: &str) -> bool {
    // The task's name, in brackets, may itself have spaces and brackets.
    let Some((_, fields)) = stat.rsplit_once(')') else { return true };
    let mut fields = fields.split_ascii_whitespace();
    let has_ended = matches!(fields.next(), Some("Z" | "X" | "x") | None);
    // The fields are state, parent, group, session, terminal, the terminal's group, flags.
    has_ended || fields.nth(5).and_then(|flags| flags.parse::<u64>().ok()).is_some_and(|flags| flags & EXITING != 0)
}

/// Whether a task's `status` shows a pending SIGKILL.
fn is_killed(status: &str) -> bool {
    let masks = status.lines().filter_map(|line| line.strip_prefix("SigPnd:").or(line.strip_prefix("ShdPnd:")));
    masks.filter_map(|mask| u64::from_str_radix(mask.trim(), 16).ok()).any(|mask| mask & KILL_BIT != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_that_end_are_known() {
        let stat = |state: &str, flags: u64| format!("12 (a ) b) {state} 1 12 12 0 -1 {flags} 99 0");
        assert!(!is_ending_stat(&stat("R", 0x40_0000)) && !is_ending_stat(&stat("D", 0)));
        assert!(
            is_ending_stat(&stat("Z", 0)) && is_ending_stat(&stat("X", 0)) && is_ending_stat(&stat("D", 0x40_0004))
        );
        assert!(is_ending_stat(""));
        assert!(is_killed("Name:\ta\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000000100\n"));
        assert!(is_killed("SigPnd:\t0000000000000100\n") && !is_killed("SigPnd:\t0000000000000200\nSigBlk:\t100\n"));
    }

    #[test]
    fn lines_of_locks_name_their_owner() {
        let file = "fe:00:77";
        assert_eq!(owner("2: FLOCK  ADVISORY  WRITE 4321 fe:00:77 0 EOF", file), Some(4321));
        assert_eq!(owner("2: FLOCK  ADVISORY  WRITE 4321 fe:00:78 0 EOF", file), None);
        assert_eq!(owner("2: POSIX  ADVISORY  WRITE 4321 fe:00:77 0 EOF", file), None);
        assert_eq!(owner("2: -> FLOCK  ADVISORY  WRITE 4321 fe:00:77 0 EOF", file), None);
        assert_eq!(owner(" 1: FLOCK  ADVISORY  WRITE 0 fe:00:77 0 EOF", file), Some(0));
    }
}

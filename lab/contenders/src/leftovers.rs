//! What killed measurements leave behind. The next measurement in the same place removes it.
//!
//! The name of everything that a measurement makes contains its process id and a word for the namespace in which that id is valid.
//!
//! Goals: files of a living process are never touched, nor files that only look alike. A user may have named results
//! `iomill-bench-2026`. A measurement in another container or on another machine may use the same directory.
//! Non-goals: reporting the removal; files of another user, which that user's next measurement removes; files from before the last
//! start of the machine.

use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::path::Path;
use std::sync::OnceLock;

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

use crate::pattern::mix;

/// Start of the names of what measurements make.
pub(crate) const PREFIX: &str = "iomill-bench-";

/// Start of the names of what probes make. A probe may run in the same place.
const PROBE_PREFIX: &str = "iomill-probe-";

/// Ends of the names, for measurements that make more than one thing: one of these, or a number.
const ENDINGS: [&str; 4] = ["", ".flat", ".mapped", ".grown"];

/// A name for what this process makes.
pub fn name() -> String {
    name_of(PREFIX, std::process::id())
}

/// The same for a probe.
pub fn probe_name() -> String {
    name_of(PROBE_PREFIX, std::process::id())
}

/// `iomill-bench-4711-0123456789ab`.
fn name_of(prefix: &str, process: u32) -> String {
    format!("{prefix}{process}-{}", here())
}

/// The same for a process that has ended, for tests.
#[cfg(test)]
pub(crate) fn name_of_ended(process: u32) -> String {
    name_of(PREFIX, process)
}

/// Identifies where process ids have the same meaning as here: this boot of this machine, and this process namespace.
fn here() -> &'static str {
    static HERE: OnceLock<String> = OnceLock::new();
    HERE.get_or_init(|| {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id");
        let names = fs::read_link("/proc/self/ns/pid");
        let hash = match (boot, names) {
            (Ok(boot), Ok(names)) => {
                let place = format!("{boot}{}", names.display());
                place.bytes().fold(0, |hash, byte| mix(hash ^ u64::from(byte)))
            }
            // Without these no later process can recognise the names, so a random word does.
            _ => RandomState::new().hash_one(std::process::id()),
        };
        format!("{:012x}", hash >> 16)
    })
}

/// Whether a process that has ended made something with this name.
pub(crate) fn is_abandoned(name: &str) -> bool {
    let Some(rest) = name.strip_prefix(PREFIX).or_else(|| name.strip_prefix(PROBE_PREFIX)) else { return false };
    let Some((process, rest)) = rest.split_once('-') else { return false };
    let Some(ending) = rest.strip_prefix(here()) else { return false };
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let is_ours = ENDINGS.contains(&ending) || ending.strip_prefix('-').is_some_and(is_number);
    let process = process.parse().ok().filter(|_| is_number(process)).and_then(Pid::from_raw);
    is_ours && process.is_some_and(|process| test_kill_process(process) == Err(Errno::SRCH))
}

/// Removes what ended processes left in a directory, where permissions allow it.
pub fn remove_in(directory: &Path) {
    // Errors are ignored: a measurement in a directory that cannot be listed fails too, and reports why.
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_name().to_str().is_some_and(is_abandoned) {
            let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
            // Some directories stand for a kernel object, such as an instance of tracing. Only the directory itself can be removed
            // there, not its files.
            let _ = match is_directory {
                true => fs::remove_dir(entry.path()).or_else(|_| fs::remove_dir_all(entry.path())),
                false => fs::remove_file(entry.path()),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_without_a_living_owner_are_removed() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let ended = name_of_ended(child.id());
        assert!(!is_abandoned(&ended), "it has not been waited for");
        child.wait().unwrap();
        let probe = name_of(PROBE_PREFIX, child.id());
        let base = tempfile::tempdir().unwrap();
        let kept = [name_of_ended(1), name(), format!("{PREFIX}x"), PREFIX.to_owned(), format!("{ended}.c")];
        let gone = [ended.clone(), format!("{ended}.flat"), format!("{ended}.mapped"), format!("{ended}.grown"), probe];
        kept.iter().for_each(|name| fs::write(base.path().join(name), "").unwrap());
        fs::create_dir_all(base.path().join(&gone[0]).join("ssd0/iomill")).unwrap();
        gone[1..].iter().for_each(|name| fs::write(base.path().join(name), "").unwrap());
        remove_in(base.path());
        assert!(kept.iter().all(|name| base.path().join(name).exists()));
        assert!(!gone.iter().any(|name| base.path().join(name).exists()));
        assert!(is_abandoned(&format!("{ended}-3")) && !is_abandoned(&format!("{ended}-")));
        assert!(!is_abandoned(&ended.replace(PREFIX, &format!("{PREFIX}+"))));
    }

    /// Users may give their results such names. No process has such ids.
    #[test]
    fn what_only_looks_like_it_stays() {
        let base = tempfile::tempdir().unwrap();
        let elsewhere = format!("{PREFIX}4000000-{}", "0".repeat(here().len()));
        let theirs = ["iomill-bench-2026", "iomill-bench-20261121", "iomill-probe-4000000", "iomill-bench-4000000-2"];
        for name in theirs.into_iter().chain([elsewhere.as_str()]) {
            fs::create_dir(base.path().join(name)).unwrap();
            fs::write(base.path().join(name).join("results.json"), "{}").unwrap();
        }
        remove_in(base.path());
        assert_eq!(fs::read_dir(base.path()).unwrap().count(), 5);
    }
}

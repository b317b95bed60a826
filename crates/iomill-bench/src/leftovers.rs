//! What killed measurements leave, and its removal by the next measurement in the same place.
//!
//! Whatever a measurement makes has a name with the id of its process, and with a word for where that id means something. Goals: nothing
//! of a process that lives is touched, nor anything that only looks like it: results that somebody has called `iomill-bench-2026`, or what
//! is being measured from another container, or another machine, in a directory that both see. Non-goals: telling of it; what is another
//! user's stays, for that user's next measurement; what was left before the machine started anew stays, too.

use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::path::Path;
use std::sync::OnceLock;

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

use crate::pattern::mix;

/// So begin the names of what measurements make.
pub(crate) const PREFIX: &str = "iomill-bench-";

/// And of what probes make, which may stand beside it.
const PROBE_PREFIX: &str = "iomill-probe-";

/// What may follow where a measurement makes more than one thing: these, or a number.
const ENDINGS: [&str; 4] = ["", ".flat", ".mapped", ".grown"];

/// A name for what this process makes.
pub(crate) fn name() -> String {
    name_of(PREFIX, std::process::id())
}

/// The same for a probe.
pub(crate) fn probe_name() -> String {
    name_of(PROBE_PREFIX, std::process::id())
}

/// `iomill-bench-4711-0123456789ab`.
fn name_of(prefix: &str, process: u32) -> String {
    format!("{prefix}{process}-{}", here())
}

/// The same for a process that has ended, as tests need it.
#[cfg(test)]
pub(crate) fn name_of_ended(process: u32) -> String {
    name_of(PREFIX, process)
}

/// Where ids of processes mean what they mean to this one: this start of this machine, and this namespace of processes.
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
            // Where that is not to be known, nobody will know these names again.
            _ => RandomState::new().hash_one(std::process::id()),
        };
        format!("{:012x}", hash >> 16)
    })
}

/// Whether this is the name of something that a process made which has ended.
pub(crate) fn is_abandoned(name: &str) -> bool {
    let Some(rest) = name.strip_prefix(PREFIX).or_else(|| name.strip_prefix(PROBE_PREFIX)) else { return false };
    let Some((process, rest)) = rest.split_once('-') else { return false };
    let Some(ending) = rest.strip_prefix(here()) else { return false };
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let is_ours = ENDINGS.contains(&ending) || ending.strip_prefix('-').is_some_and(is_number);
    let process = process.parse().ok().filter(|_| is_number(process)).and_then(Pid::from_raw);
    is_ours && process.is_some_and(|process| test_kill_process(process) == Err(Errno::SRCH))
}

/// Removes what such processes left in a directory, as far as it may be removed.
pub(crate) fn remove_in(directory: &Path) {
    // A directory that cannot be listed cannot be measured in either, and whoever tries says why.
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_name().to_str().is_some_and(is_abandoned) {
            let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
            // Where directories stand for something in the kernel, which an instance of tracing does, only they can be removed, and
            // not what is in them.
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
    fn only_what_nobody_needs_goes() {
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

    /// People call their results so, and no process has such ids.
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

//! What killed measurements leave behind. The next measurement in the same place removes it.
//!
//! The name of everything that a measurement makes contains its process id and a word for the namespace in which that
//! id is valid.
//!
//! Goals: files of a living process are never touched, nor files that only look alike. A user may have named results
//! `iomill-bench-2026`. A measurement in another container or on another machine may use the same directory. Non-goals:
//! reporting the removal; files of another user, which that user's next measurement removes; files from before the last
//! start of the machine.

use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::path::Path;
use std::sync::OnceLock;

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

use super::draw::mix;

/// The measurements that make files. Two of them may run in the same place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// A comparison.
    Bench,
    /// A probe.
    Probe,
}

impl By {
    const ALL: [By; 2] = [By::Bench, By::Probe];

    /// Start of the names of what it makes.
    pub fn prefix(self) -> &'static str {
        match self {
            By::Bench => "iomill-bench-",
            By::Probe => "iomill-probe-",
        }
    }
}

/// Ends of the names, for measurements that make more than one thing: one of these, or a number.
const ENDINGS: [&str; 5] = ["", ".array", ".flat", ".mapped", ".grown"];

/// A name for what this process makes: `iomill-bench-4711-0123456789ab`.
pub fn name(by: By) -> String {
    name_of(by, std::process::id())
}

/// The same for another process.
pub fn name_of(by: By, process: u32) -> String {
    format!("{}{process}-{}", by.prefix(), here())
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
pub fn is_abandoned(name: &str) -> bool {
    let Some(rest) = By::ALL.iter().find_map(|by| name.strip_prefix(by.prefix())) else { return false };
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
            // Some directories stand for a kernel object, such as an instance of tracing. Only the directory itself can
            // be removed there, not its files.
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
        let ended = name_of(By::Bench, child.id());
        assert!(!is_abandoned(&ended), "it has not been waited for");
        child.wait().unwrap();
        let base = tempfile::tempdir().unwrap();
        let bench = By::Bench.prefix();
        let kept =
            [name_of(By::Bench, 1), name(By::Bench), format!("{bench}x"), bench.to_owned(), format!("{ended}.c")];
        let probe = name_of(By::Probe, child.id());
        let gone = [ended.clone(), format!("{ended}.flat"), probe.clone(), format!("{probe}.array")];
        kept.iter().for_each(|name| fs::write(base.path().join(name), "").unwrap());
        fs::create_dir_all(base.path().join(&gone[0]).join("ssd0/iomill")).unwrap();
        gone[1..].iter().for_each(|name| fs::write(base.path().join(name), "").unwrap());
        remove_in(base.path());
        assert!(kept.iter().all(|name| base.path().join(name).exists()));
        assert!(!gone.iter().any(|name| base.path().join(name).exists()));
        assert!(is_abandoned(&format!("{ended}-3")) && !is_abandoned(&format!("{ended}-")));
        assert!(!is_abandoned(&ended.replace(bench, &format!("{bench}+"))));
    }

    /// Users may give their results such names. No process has such ids.
    #[test]
    fn what_only_looks_like_it_stays() {
        let base = tempfile::tempdir().unwrap();
        let elsewhere = format!("{}4000000-{}", By::Bench.prefix(), "0".repeat(here().len()));
        let theirs = ["iomill-bench-2026", "iomill-bench-20261121", "iomill-probe-4000000", "iomill-bench-4000000-2"];
        for name in theirs.into_iter().chain([elsewhere.as_str()]) {
            fs::create_dir(base.path().join(name)).unwrap();
            fs::write(base.path().join(name).join("results.json"), "{}").unwrap();
        }
        remove_in(base.path());
        assert_eq!(fs::read_dir(base.path()).unwrap().count(), 5);
    }
}

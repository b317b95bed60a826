//! What killed measurements leave, and its removal by the next measurement in the same place.
//!
//! Whatever a measurement makes has a name with the id of its process. Goals: nothing of a process that lives is touched.
//! Non-goals: telling of it; what is another user's stays, for that user's next measurement.

use std::fs;
use std::path::Path;

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

/// So begin the names of what measurements make.
pub(crate) const PREFIX: &str = "iomill-bench-";

/// And of what probes make, which may stand beside it.
const PROBE_PREFIX: &str = "iomill-probe-";

/// A name for what this process makes.
pub(crate) fn name() -> String {
    format!("{PREFIX}{}", std::process::id())
}

/// The same for a probe.
pub(crate) fn probe_name() -> String {
    format!("{PROBE_PREFIX}{}", std::process::id())
}

/// Whether this is the name of something that a process made which has ended.
pub(crate) fn is_abandoned(name: &str) -> bool {
    let Some(rest) = name.strip_prefix(PREFIX).or_else(|| name.strip_prefix(PROBE_PREFIX)) else { return false };
    let (process, ending) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len()));
    let is_ours = match ending.strip_prefix('-') {
        Some(number) => !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()),
        None => matches!(ending, "" | ".flat"),
    };
    let process = process.parse().ok().and_then(Pid::from_raw);
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
        let ended = child.id();
        assert!(!is_abandoned(&format!("{PREFIX}{ended}")), "it has not been waited for");
        child.wait().unwrap();
        let base = tempfile::tempdir().unwrap();
        let kept =
            [format!("{PREFIX}1"), name(), format!("{PREFIX}x"), PREFIX.to_owned(), format!("{PREFIX}{ended}.c")];
        let gone = [format!("{PREFIX}{ended}"), format!("{PREFIX}{ended}.flat"), format!("{PROBE_PREFIX}{ended}")];
        kept.iter().for_each(|name| fs::write(base.path().join(name), "").unwrap());
        fs::create_dir_all(base.path().join(&gone[0]).join("ssd0/iomill")).unwrap();
        gone[1..].iter().for_each(|name| fs::write(base.path().join(name), "").unwrap());
        remove_in(base.path());
        assert!(kept.iter().all(|name| base.path().join(name).exists()));
        assert!(!gone.iter().any(|name| base.path().join(name).exists()));
        assert!(is_abandoned(&format!("{PREFIX}{ended}-3")) && !is_abandoned(&format!("{PREFIX}{ended}-")));
    }
}

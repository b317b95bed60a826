//! A memory cgroup: a limit for a process together with the page cache that it fills.
//!
//! Goals: both versions of cgroups, found by their mounts; removed on drop. Non-goals: any other controller; changes to
//! the system's setup. If the root of a v2 hierarchy does not delegate the memory controller, it stays so.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use iomill::sys::limits;
use iomill::{Error, Result};
use iomill_platform::mounts;

use crate::leftovers::{self, By};

/// Number of attempts to remove a group, and the pause between them. A process that has just ended leaves its group a
/// moment later.
const REMOVALS: u32 = 100;
const REMOVAL_PAUSE: Duration = Duration::from_millis(10);

/// The version of cgroups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    V1,
    V2,
}

/// A group for one process.
#[derive(Debug)]
pub struct MemoryGroup {
    /// The group's directory. This process made it, and it has no groups below it.
    dir: PathBuf,
    version: Version,
}

impl MemoryGroup {
    /// Makes a group without a limit, or returns why this is not possible here.
    pub fn make() -> std::result::Result<MemoryGroup, String> {
        // A kernel without groups has no such file, and a chroot may have no `/proc`.
        let read = |path: &str| {
            fs::read_to_string(path).map_err(|e| format!("cannot read {path}, which lists the cgroups: {e}"))
        };
        let (mounts, own) = (read("/proc/self/mountinfo")?, read("/proc/self/cgroup")?);
        let mut whys = Vec::new();
        for (version, parent) in parents(&mounts, &own) {
            match MemoryGroup::below(&parent, version) {
                Ok(group) => return Ok(group),
                Err(why) => whys.push(why),
            }
        }
        let none = "no memory cgroup hierarchy is mounted".to_owned();
        Err(if whys.is_empty() { none } else { whys.join("; ") })
    }

    fn below(parent: &Path, version: Version) -> std::result::Result<MemoryGroup, String> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
            // A group that still holds a process cannot be removed. A later measurement removes it.
            if entry.file_name().to_str().is_some_and(leftovers::is_abandoned) {
                let _ = fs::remove_dir(entry.path());
            }
        }
        let dir = parent.join(format!("{}-{number}", leftovers::name(By::Bench)));
        fs::create_dir(&dir).map_err(|e| format!("cannot make a group in {} ({e}); run as root", parent.display()))?;
        let group = MemoryGroup { dir, version };
        // A v2 group lacks the files of controllers that its parent does not delegate.
        match group.usage_bytes() {
            Ok(_) => Ok(group),
            Err(error) => Err(error.to_string()),
        }
    }

    /// The kind of group, for the reader of the figures.
    pub fn describe(&self) -> &'static str {
        match self.version {
            Version::V1 => "memory cgroup v1",
            Version::V2 => "memory cgroup v2",
        }
    }

    /// Moves a process into the group. Memory that it has touched before stays counted in its old group.
    pub fn take_in(&self, process: u32) -> Result<()> {
        self.write("cgroup.procs", &process.to_string())
    }

    /// Memory now counted in the group, with the pages of files that its process has read.
    pub fn usage_bytes(&self) -> Result<u64> {
        let file = match self.version {
            Version::V1 => "memory.usage_in_bytes",
            Version::V2 => "memory.current",
        };
        let path = self.dir.join(file);
        let text = fs::read_to_string(&path).map_err(|e| Error::io("read", &path, e))?;
        let odd = |e: std::num::ParseIntError| Error::Tool { what: path.display().to_string(), why: e.to_string() };
        text.trim().parse().map_err(odd)
    }

    /// Memory now counted in the group, without pages of files: the process's own. A limit of this and of some bytes
    /// for the data leaves just these bytes for the data, even if the process has read more of them before.
    pub fn own_bytes(&self) -> Result<u64> {
        // Without this file pages of files would count.
        let stat = self.dir.join("memory.stat");
        fs::metadata(&stat).map_err(|e| Error::io("examine", &stat, e))?;
        let used = limits::group_used_bytes(&self.dir, self.version == Version::V2);
        used.map_err(|error| Error::Tool { what: self.dir.display().to_string(), why: error.to_string() })
    }

    /// Sets the memory limit of the group.
    pub fn limit(&self, bytes: u64) -> Result<()> {
        let file = match self.version {
            Version::V1 => "memory.limit_in_bytes",
            Version::V2 => "memory.max",
        };
        self.write(file, &bytes.to_string())
    }

    fn write(&self, file: &str, text: &str) -> Result<()> {
        let path = self.dir.join(file);
        fs::write(&path, text).map_err(|e| Error::io("write", &path, e))
    }
}

impl Drop for MemoryGroup {
    /// Errors are ignored: a remaining empty group costs almost nothing, and `drop` has no caller to report to.
    fn drop(&mut self) {
        for _ in 0..REMOVALS {
            match fs::remove_dir(&self.dir) {
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => thread::sleep(REMOVAL_PAUSE),
                _ => break,
            }
        }
    }
}

/// Directories in which a group could be made, best first. The first is the own group, so that a limit on this process
/// still holds; then the root of the hierarchy. A v2 group with processes cannot have groups with controllers below it,
/// so v2 uses the root only.
fn parents(mountinfo: &str, own: &str) -> Vec<(Version, PathBuf)> {
    let mut parents = Vec::new();
    for mount in mounts::table(mountinfo) {
        let has_memory = mount.has("memory");
        let point = mount.point;
        match mount.kind.as_str() {
            "cgroup" if has_memory => {
                let own = own.lines().find_map(|line| {
                    let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
                    controllers.split(',').any(|name| name == "memory").then_some(path)
                });
                if let Some(path) = own.map(|path| path.trim_start_matches('/')).filter(|path| !path.is_empty()) {
                    parents.push((Version::V1, point.join(path)));
                }
                parents.push((Version::V1, point));
            }
            "cgroup2" => parents.push((Version::V2, point)),
            _ => {}
        }
    }
    // If both versions are mounted, v1 has the memory controller. Otherwise its v1 hierarchy would not exist.
    parents.sort_by_key(|(version, _)| *version == Version::V2);
    parents
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn places_for_a_group_are_found() {
        let v1 = "30 29 0:26 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n\
                  31 29 0:27 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n\
                  32 29 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let root = Path::new("/sys/fs/cgroup/memory");
        let found = parents(v1, "8:pids:/\n4:memory:/a/b\n0::/\n");
        let v2 = (Version::V2, PathBuf::from("/sys/fs/cgroup/unified"));
        assert_eq!(found, [(Version::V1, root.join("a/b")), (Version::V1, root.to_owned()), v2.clone()]);
        assert_eq!(parents(v1, "4:memory:/\n"), [(Version::V1, root.to_owned()), v2]);
        let only_v2 = "32 29 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n";
        assert_eq!(parents(only_v2, "0::/user.slice\n"), [(Version::V2, PathBuf::from("/sys/fs/cgroup"))]);
        assert!(parents("24 1 0:22 / /proc rw - proc proc rw\n", "").is_empty());
    }

    /// A process that has read a file of 32 MiB has only its own memory.
    fn assert_file_pages_are_not_own(group: &MemoryGroup) {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), vec![1; 32 << 20]).unwrap();
        file.as_file().sync_all().unwrap();
        rustix::fs::fadvise(file.as_file(), 0, None, rustix::fs::Advice::DontNeed).unwrap();
        let mut reads = Command::new("sh");
        reads.args(["-c", "read line; cat \"$0\" >/dev/null; echo read; read line"]).arg(file.path());
        let mut process = reads.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        group.take_in(process.id()).unwrap();
        let mut input = process.stdin.take().unwrap();
        writeln!(input).unwrap();
        let mut said = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut said).unwrap();
        let (usage, own) = (group.usage_bytes().unwrap(), group.own_bytes().unwrap());
        drop(input);
        process.wait().unwrap();
        // A file system in memory has no other pages than its own.
        let is_kept = usage > 32 << 20;
        assert!(said == "read\n" && own < 16 << 20 && (is_kept || usage < 16 << 20), "{usage} and {own}");
    }

    #[test]
    fn a_group_is_made_limited_and_removed_or_the_reason_is_said() {
        match MemoryGroup::make() {
            Ok(group) => {
                group.limit(64 << 20).unwrap();
                assert!(group.usage_bytes().unwrap() < 64 << 20 && group.describe().contains("cgroup"));
                assert!(group.take_in(u32::MAX).is_err(), "there is no such process");
                assert_file_pages_are_not_own(&group);
                let dir = group.dir.clone();
                drop(group);
                assert!(!dir.exists());
            }
            Err(why) => assert!(why.contains("cgroup") || why.contains("root"), "{why}"),
        }
    }
}

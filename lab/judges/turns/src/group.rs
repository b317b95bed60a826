//! A memory cgroup for one contender: a limit for its process together with the page cache that it fills.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// A version of cgroups: the place of its groups, and the names of their files.
#[derive(Debug)]
struct Version {
    root: &'static str,
    limit: &'static str,
    own: &'static str,
}

const VERSIONS: [Version; 2] = [
    Version { root: "/sys/fs/cgroup/memory", limit: "memory.limit_in_bytes", own: "rss" },
    Version { root: "/sys/fs/cgroup", limit: "memory.max", own: "anon" },
];

/// A process that has just ended leaves its group a moment later.
const REMOVALS: u32 = 100;
const REMOVAL_PAUSE: Duration = Duration::from_millis(10);

/// See the module. The group is removed on drop.
#[derive(Debug)]
pub struct MemoryGroup {
    dir: PathBuf,
    version: &'static Version,
}

impl MemoryGroup {
    /// Makes a group without a limit, and moves the process into it.
    pub fn of_process(process: u32) -> Result<MemoryGroup> {
        let is_there = |version: &&Version| Path::new(version.root).join("cgroup.procs").exists();
        let Some(version) = VERSIONS.iter().find(is_there) else {
            bail!(
                "no memory cgroups are mounted at {}; mount them, or leave out the rows with a memory limit",
                VERSIONS[0].root
            )
        };
        let dir = Path::new(version.root).join(format!("iomill-judges-{process}"));
        fs::create_dir(&dir)
            .with_context(|| format!("cannot make the memory cgroup {}; run as root", dir.display()))?;
        let group = MemoryGroup { dir, version };
        group.write("cgroup.procs", &process.to_string())?;
        group.own_bytes()?;
        Ok(group)
    }

    /// Memory of the process itself, without page cache.
    pub fn own_bytes(&self) -> Result<u64> {
        let path = self.dir.join("memory.stat");
        let text = fs::read_to_string(&path).with_context(|| {
            format!(
                "cannot read {}; if these are cgroups v2, enable the memory controller in their root",
                path.display()
            )
        })?;
        let found = text.lines().filter_map(|line| line.split_once(' ')).find(|(name, _)| *name == self.version.own);
        found
            .and_then(|(_, bytes)| bytes.parse().ok())
            .with_context(|| format!("{} has no number after {:?}", path.display(), self.version.own))
    }

    /// Sets the limit.
    pub fn limit(&self, bytes: u64) -> Result<()> {
        self.write(self.version.limit, &bytes.to_string())
    }

    fn write(&self, file: &str, text: &str) -> Result<()> {
        let path = self.dir.join(file);
        fs::write(&path, text).with_context(|| format!("cannot write {text} to {}", path.display()))
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        for _ in 0..REMOVALS {
            if fs::remove_dir(&self.dir).is_ok() {
                return;
            }
            thread::sleep(REMOVAL_PAUSE);
        }
        eprintln!("the memory cgroup {} is left; remove it by `rmdir`", self.dir.display());
    }
}

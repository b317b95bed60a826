//! The kernel's counts for this process, and dropping pages from its cache.

use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::fs::{Advice, fadvise};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// CPU time and fetched bytes of a process in a slice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Seen {
    /// Elapsed time, in microseconds.
    pub wall_us: f64,
    /// CPU time of all threads, in microseconds.
    pub cpu_us: f64,
    /// Bytes that were read from drives.
    pub fetched_bytes: u64,
    /// Bytes that were written to drives, or will be.
    pub written_bytes: u64,
}

/// A moment of a process.
pub struct Moment {
    at: Instant,
    cpu: Duration,
    fetched_bytes: u64,
    written_bytes: u64,
}

const IO: &str = "/proc/self/io";

impl Moment {
    /// Now.
    pub fn now() -> Result<Moment> {
        let text = std::fs::read_to_string(IO).with_context(|| format!("cannot read {IO}, which counts I/O"))?;
        let count = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|rest| rest.trim().parse().ok()).with_context(|| format!("{IO} has no number after {name:?}"))
        };
        let (fetched_bytes, written_bytes) = (count("read_bytes:")?, count("write_bytes:")?);
        let cpu = clock_gettime(ClockId::ProcessCPUTime);
        let cpu = Duration::try_from(cpu).context("the kernel gave a negative CPU time")?;
        Ok(Moment { at: Instant::now(), cpu, fetched_bytes, written_bytes })
    }

    /// The use since then.
    pub fn since(&self) -> Result<Seen> {
        let now = Moment::now()?;
        Ok(Seen {
            wall_us: (now.at - self.at).as_secs_f64() * 1e6,
            cpu_us: (now.cpu - self.cpu).as_secs_f64() * 1e6,
            fetched_bytes: now.fetched_bytes - self.fetched_bytes,
            written_bytes: now.written_bytes - self.written_bytes,
        })
    }
}

/// Makes the kernel drop the pages of a file, or of all files below a directory. Dirty pages are written first.
pub fn drop_cached(path: &Path) -> Result<()> {
    let failed = |what: &str| format!("cannot {what} {}", path.display());
    if path.is_dir() {
        for entry in path.read_dir().with_context(|| failed("list"))? {
            drop_cached(&entry.with_context(|| failed("list"))?.path())?;
        }
        return Ok(());
    }
    let file = File::open(path).with_context(|| failed("open"))?;
    file.sync_data().with_context(|| failed("sync"))?;
    fadvise(&file, 0, None, Advice::DontNeed).with_context(|| failed("drop cached pages of"))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_dropped_file_comes_from_its_drive() {
        // Beside this program: the usual directory for temporary files may be in memory.
        let program = std::env::current_exe().unwrap();
        let dir = tempfile::tempdir_in(program.parent().unwrap()).unwrap();
        let path = dir.path().join("data");
        File::create(&path).unwrap().write_all(&vec![1; 4 << 20]).unwrap();
        drop_cached(dir.path()).unwrap();
        let read = || {
            let before = Moment::now().unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), vec![1; 4 << 20]);
            before.since().unwrap()
        };
        let (first, second) = (read(), read());
        assert!(first.fetched_bytes >= 4 << 20, "{first:?}");
        assert!(second.fetched_bytes < 1 << 20, "{second:?}");
        assert!(first.wall_us > 0.0 && first.cpu_us > 0.0, "{first:?}");
    }
}

//! The CPUs of the calling thread.
//!
//! Goals: to bind the thread, and to list the CPUs on which it may run. Non-goals: deciding which thread runs where;
//! the machine's CPUs and nodes, which `iomill-platform` reads.

use std::io;

use iomill_platform::cpus;
use iomill_platform::tree::Tree;
use rustix::io::Errno;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Binds the calling thread to `cpus`.
pub fn bind_current_thread(cpus: &[usize]) -> io::Result<()> {
    let mut set = CpuSet::new();
    for &cpu in cpus {
        if cpu >= CpuSet::MAX_CPU {
            return Err(invalid(format!("cannot bind a thread to CPU {cpu}: the highest is {}", CpuSet::MAX_CPU - 1)));
        }
        set.set(cpu);
    }
    if cpus.is_empty() {
        return Err(invalid("cannot bind a thread to no CPU: give at least one".to_owned()));
    }
    sched_setaffinity(None, &set).map_err(|error| {
        let source = io::Error::from(error);
        io::Error::new(source.kind(), format!("cannot bind a thread to CPUs {cpus:?}: {source}"))
    })
}

/// The CPUs on which the calling thread may run. If a filter forbids the system call, they come from `/proc`, and
/// without `/proc` they are all CPUs that are online.
pub fn allowed() -> io::Result<Vec<usize>> {
    match sched_getaffinity(None) {
        Ok(set) => Ok((0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()),
        Err(Errno::PERM | Errno::ACCESS | Errno::NOSYS) => Ok(listed(&Tree::machine())),
        Err(error) => Err(error.into()),
    }
}

/// The CPUs on which the calling thread may run, by files of the kernel.
fn listed(tree: &Tree) -> Vec<usize> {
    let status = tree.get("proc/thread-self/status").unwrap_or_default();
    let own = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let own = own.and_then(|list| cpus::parse(list).ok());
    let named = own.or_else(|| tree.cpus("sys/devices/system/cpu/online")).unwrap_or_default();
    // SAFETY: the call only returns a number.
    let count = || unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) }.max(1) as usize;
    if named.is_empty() { (0..count()).collect() } else { named }
}

fn invalid(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seen to fail when the system call was the only source.
    #[test]
    fn a_forbidden_call_is_answered_by_files() {
        let machine = Tree::machine();
        if std::path::Path::new("/proc/thread-self/status").exists() {
            assert_eq!(listed(&machine), allowed().unwrap());
        }
        let dir = tempfile::tempdir().unwrap();
        let tree = Tree::at(dir.path()).unwrap();
        assert!(!listed(&tree).is_empty(), "without any file of the kernel");
        std::fs::create_dir_all(dir.path().join("sys/devices/system/cpu")).unwrap();
        std::fs::write(dir.path().join("sys/devices/system/cpu/online"), "0-2,5\n").unwrap();
        assert_eq!(listed(&tree), [0, 1, 2, 5]);
        std::fs::create_dir_all(dir.path().join("proc/thread-self")).unwrap();
        std::fs::write(dir.path().join("proc/thread-self/status"), "Name:\tx\nCpus_allowed_list:\t1,5\n").unwrap();
        assert_eq!(listed(&tree), [1, 5]);
    }

    #[test]
    fn binding_holds_and_refuses() {
        let before = allowed().unwrap();
        let wanted = before[before.len() - 1];
        // The test uses another thread, so that its own is not bound.
        let after = std::thread::spawn(move || {
            bind_current_thread(&[wanted]).unwrap();
            allowed().unwrap()
        });
        assert_eq!(after.join().unwrap(), [wanted]);
        assert!(bind_current_thread(&[]).is_err());
        assert!(bind_current_thread(&[CpuSet::MAX_CPU]).is_err());
        assert!(bind_current_thread(&[CpuSet::MAX_CPU - 1]).is_err(), "no machine of ours has that many");
        assert_eq!(allowed().unwrap(), before);
    }
}

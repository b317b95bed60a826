//! CPUs and the nodes that they belong to.
//!
//! Goals: binding the calling thread, and listing the CPUs. Non-goals: deciding which thread runs where.

use std::fs;
use std::io;
use std::path::Path;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Where the kernel lists the nodes of this machine.
pub const NODE_ROOT: &str = "/sys/devices/system/node";

/// One NUMA node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelNode {
    /// The kernel's number.
    pub id: u32,
    /// Its CPUs in rising order. A node that is only memory has none.
    pub cpus: Vec<usize>,
}

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
        return Err(invalid("cannot bind a thread to no CPU: give one at least".to_owned()));
    }
    sched_setaffinity(None, &set).map_err(|error| {
        let source = io::Error::from(error);
        io::Error::new(source.kind(), format!("cannot bind a thread to CPUs {cpus:?}: {source}"))
    })
}

/// The CPUs on which the calling thread may run.
pub fn allowed() -> io::Result<Vec<usize>> {
    let set = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect())
}

/// The nodes listed under `root` (see [`NODE_ROOT`]), in order of number. Empty if the kernel knows of none.
pub fn nodes(root: &Path) -> io::Result<Vec<KernelNode>> {
    let entries = match fs::read_dir(root) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut nodes = Vec::new();
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        let id = name.to_str().and_then(|name| name.strip_prefix("node")).and_then(|id| id.parse::<u32>().ok());
        let Some(id) = id else { continue };
        let cpus = parse_list(&fs::read_to_string(entry.path().join("cpulist"))?)?;
        nodes.push(KernelNode { id, cpus });
    }
    nodes.sort_by_key(|node| node.id);
    Ok(nodes)
}

/// Reads a list in the kernel's form: `0-3,8,10-11`. An empty text is an empty list.
pub fn parse_list(text: &str) -> io::Result<Vec<usize>> {
    let mut cpus = Vec::new();
    for range in text.trim().split(',').filter(|range| !range.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (Ok(first), Ok(last)) = (first.trim().parse::<usize>(), last.trim().parse::<usize>()) else {
            return Err(invalid(format!("{range:?} is not a range of CPUs such as 0-3 or 5")));
        };
        // The bound prevents a damaged text from filling the memory.
        if first > last || last >= 1 << 16 {
            return Err(invalid(format!("{range:?} is not a range of CPUs")));
        }
        cpus.extend(first..=last);
    }
    cpus.sort_unstable();
    cpus.dedup();
    Ok(cpus)
}

fn invalid(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists() {
        assert_eq!(parse_list("0-3,8,10-11\n").unwrap(), [0, 1, 2, 3, 8, 10, 11]);
        assert_eq!(parse_list("5,1,1-2").unwrap(), [1, 2, 5]);
        assert_eq!(parse_list("\n").unwrap(), [0usize; 0]);
        for bad in ["a", "1-", "-1", "3-1", "0-99999999999", "0-70000", "1;2"] {
            assert!(parse_list(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn nodes_from_a_tree() {
        let root = tempfile::tempdir().unwrap();
        for (name, cpus) in [("node1", "2-3\n"), ("node0", "0-1\n"), ("node10", "\n"), ("nodes", "9\n")] {
            fs::create_dir(root.path().join(name)).unwrap();
            fs::write(root.path().join(name).join("cpulist"), cpus).unwrap();
        }
        fs::write(root.path().join("online"), "0-1,10").unwrap();
        let found = nodes(root.path()).unwrap();
        let expected = [(0, vec![0, 1]), (1, vec![2, 3]), (10, vec![])].map(|(id, cpus)| KernelNode { id, cpus });
        assert_eq!(found, expected);
        assert_eq!(nodes(&root.path().join("none")).unwrap(), []);
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

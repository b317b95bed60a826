//! What sysfs says about a block device: its name, its NUMA node, and the CPUs near it.
//!
//! Goals: answers also for partitions, device-mapper and md devices, and NVMe namespaces with several paths. The path
//! of sysfs is an argument, so that a test can bring its own tree. Non-goals: certainty. All of this only guides
//! placement, so values that cannot be read are left out.

use std::fs;
use std::path::{Path, PathBuf};

/// What is known of one block device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockDevice {
    /// Name of the whole device, such as `nvme0n1`.
    pub name: String,
    /// `major:minor` of the whole device, if it is readable.
    pub number: Option<(u32, u32)>,
    /// Its NUMA node, if it has one.
    pub node: Option<u32>,
    /// CPUs near it; empty means any.
    pub cpus: Vec<usize>,
}

/// How many levels to follow in devices that are made of devices (a volume on a RAID on partitions).
const STACK_MAX: usize = 8;

/// Looks up the block device `major:minor` in the sysfs mounted at `sys` (`/sys`). `None` if there is no such device,
/// as for a file system in memory.
pub fn find(sys: &Path, major: u32, minor: u32) -> Option<BlockDevice> {
    let directory = fs::canonicalize(sys.join(format!("dev/block/{major}:{minor}"))).ok()?;
    let whole = whole_device(directory);
    let name = whole.file_name()?.to_str()?.to_owned();
    let number = read_line(&whole.join("dev")).and_then(|line| parse_number(&line));
    let node = node_of(sys, &whole, STACK_MAX);
    Some(BlockDevice { name, number, node, cpus: cpus_of(sys, &whole, node) })
}

/// Whether a whole device supports polling for completions; `None` if the kernel does not say.
pub fn can_poll(sys: &Path, name: &str) -> Option<bool> {
    if name.is_empty() {
        return None;
    }
    read_line(&sys.join("block").join(name).join("queue/io_poll")).map(|value| value != "0")
}

/// The unit in which a whole device is addressed, in bytes; `None` where the kernel does not say.
pub fn logical_block_bytes(sys: &Path, name: &str) -> Option<u32> {
    if name.is_empty() {
        return None;
    }
    read_line(&sys.join("block").join(name).join("queue/logical_block_size"))?.parse().ok()
}

/// A partition's directory lies within its device's directory, and contains a file `partition`.
fn whole_device(directory: PathBuf) -> PathBuf {
    match directory.parent() {
        Some(parent) if directory.join("partition").exists() => parent.to_owned(),
        _ => directory,
    }
}

/// The nearest ancestor that has a node gives it (the PCI function of an NVMe drive). A device that is made of others,
/// or reached by others, has a node if all of them have the same.
fn node_of(sys: &Path, device: &Path, depth: usize) -> Option<u32> {
    if depth == 0 {
        return None;
    }
    let below = slaves(device).into_iter().chain(controllers(device));
    let mut nodes = below.map(|below| node_of(sys, &below, depth - 1));
    if let Some(first) = nodes.next() {
        return if nodes.all(|node| node == first) { first } else { None };
    }
    let value = ancestors(sys, device).find_map(|dir| read_line(&dir.join("numa_node")))?;
    // The kernel writes -1 on machines without nodes.
    value.parse().ok()
}

fn cpus_of(sys: &Path, device: &Path, node: Option<u32>) -> Vec<usize> {
    let list = match node {
        Some(node) => read_line(&sys.join(format!("devices/system/node/node{node}/cpulist"))),
        None => {
            let grounds = std::iter::once(device.to_owned()).chain(controllers(device)).collect::<Vec<_>>();
            let mut lists = grounds
                .iter()
                .filter_map(|ground| ancestors(sys, ground).find_map(|dir| read_line(&dir.join("local_cpulist"))));
            // The controllers are near different CPUs, so none of these is nearer than the others.
            lists.next().filter(|first| lists.all(|other| other == *first))
        }
    };
    list.and_then(|list| parse_cpu_list(&list)).unwrap_or_default()
}

/// The controllers of an NVMe namespace that the multipath layer shows. It lies in its subsystem's directory. That
/// directory has no parent device, and has a link to each controller.
fn controllers(device: &Path) -> Vec<PathBuf> {
    let Some(subsystem) = device.parent() else { return Vec::new() };
    if subsystem.parent().and_then(Path::file_name).is_none_or(|name| name != "nvme-subsystem") {
        return Vec::new();
    }
    let Ok(entries) = fs::read_dir(subsystem) else { return Vec::new() };
    let is_controller = |name: &str| {
        name.strip_prefix("nvme").is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit()))
    };
    let links = entries.flatten().filter(|entry| entry.file_name().to_str().is_some_and(is_controller));
    links.filter_map(|entry| fs::canonicalize(entry.path()).ok()).collect()
}

/// The devices that a device-mapper or md device is made of.
fn slaves(device: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(device.join("slaves")) else { return Vec::new() };
    entries.flatten().filter_map(|entry| fs::canonicalize(entry.path()).ok()).map(whole_device).collect()
}

fn ancestors<'a>(sys: &'a Path, device: &'a Path) -> impl Iterator<Item = &'a Path> {
    device.ancestors().take_while(move |dir| dir.file_name().is_some() && *dir != sys)
}

fn read_line(path: &Path) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

fn parse_number(line: &str) -> Option<(u32, u32)> {
    let (major, minor) = line.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// Reads `0-3,8`. `None` if it is not such a list, or an absurd one.
fn parse_cpu_list(list: &str) -> Option<Vec<usize>> {
    const CPU_MAX: usize = 1 << 16;
    let mut cpus = Vec::new();
    for range in list.split(',').filter(|range| !range.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if first > last || last >= CPU_MAX {
            return None;
        }
        cpus.extend(first..=last);
    }
    Some(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whether_a_device_is_polled_is_read() {
        let sys = tempfile::tempdir().unwrap();
        for (name, text) in [("yes", "1\n"), ("no", "0\n")] {
            let queue = sys.path().join("block").join(name).join("queue");
            fs::create_dir_all(&queue).unwrap();
            fs::write(queue.join("io_poll"), text).unwrap();
        }
        let answers = ["yes", "no", "none", ""].map(|name| can_poll(sys.path(), name));
        assert_eq!(answers, [Some(true), Some(false), None, None]);
    }
    use std::os::unix::fs::symlink;

    /// Builds a tree like that of a machine with two NVMe drives, the first with a partition, and a volume over both.
    fn tree(second_node: &str) -> tempfile::TempDir {
        let dir = crate::sys::real_fs::tests::scratch();
        let sys = dir.path();
        let write = |path: &str, text: &str| {
            let path = sys.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let first = "devices/pci0000:00/0000:00:04.0/nvme/nvme0/nvme0n1";
        write("devices/pci0000:00/0000:00:04.0/numa_node", "1\n");
        write(&format!("{first}/dev"), "259:0\n");
        write(&format!("{first}/nvme0n1p1/partition"), "1\n");
        write(&format!("{first}/nvme0n1p1/dev"), "259:1\n");
        let second = "devices/pci0000:00/0000:00:05.0/nvme/nvme1/nvme1n1";
        write("devices/pci0000:00/0000:00:05.0/numa_node", second_node);
        write("devices/pci0000:00/0000:00:05.0/local_cpulist", "0-1\n");
        write(&format!("{second}/dev"), "259:2\n");
        write("devices/virtual/block/dm-0/dev", "253:0\n");
        fs::create_dir_all(sys.join("devices/virtual/block/dm-0/slaves")).unwrap();
        symlink(sys.join(format!("{first}/nvme0n1p1")), sys.join("devices/virtual/block/dm-0/slaves/nvme0n1p1"))
            .unwrap();
        symlink(sys.join(second), sys.join("devices/virtual/block/dm-0/slaves/nvme1n1")).unwrap();
        write("devices/system/node/node1/cpulist", "2-3,8\n");
        fs::create_dir_all(sys.join("dev/block")).unwrap();
        for (number, target) in [
            ("259:0", first.to_owned()),
            ("259:1", format!("{first}/nvme0n1p1")),
            ("259:2", second.to_owned()),
            ("253:0", "devices/virtual/block/dm-0".to_owned()),
        ] {
            symlink(sys.join(target), sys.join("dev/block").join(number)).unwrap();
        }
        dir
    }

    #[test]
    fn a_partition_is_its_drive() {
        let sys = tree("-1\n");
        let drive = find(sys.path(), 259, 1).unwrap();
        let expected =
            BlockDevice { name: "nvme0n1".into(), number: Some((259, 0)), node: Some(1), cpus: vec![2, 3, 8] };
        assert_eq!(drive, expected);
        assert_eq!(find(sys.path(), 259, 0).unwrap(), expected);
    }

    #[test]
    fn without_a_node_the_near_cpus_count() {
        let sys = tree("-1\n");
        let drive = find(sys.path(), 259, 2).unwrap();
        assert_eq!((drive.node, drive.cpus), (None, vec![0, 1]));
        assert_eq!(find(sys.path(), 8, 0), None);
    }

    #[test]
    fn a_volume_has_a_node_when_its_drives_agree() {
        let agree = tree("1\n");
        let volume = find(agree.path(), 253, 0).unwrap();
        assert_eq!((volume.name.as_str(), volume.node, volume.cpus), ("dm-0", Some(1), vec![2, 3, 8]));
        let differ = tree("0\n");
        assert_eq!(find(differ.path(), 253, 0).unwrap().node, None);
    }

    /// The controllers nvme0 and nvme1 reach `nvme1n1`, as the multipath layer shows it.
    #[test]
    fn a_namespace_of_several_paths_has_the_node_of_its_controllers() {
        for (second_node, expected) in [("1\n", (Some(1), vec![2, 3, 8])), ("0\n", (None, vec![]))] {
            let dir = tree(second_node);
            let sys = dir.path();
            let subsystem = sys.join("devices/virtual/nvme-subsystem/nvme-subsys1");
            fs::create_dir_all(subsystem.join("nvme1n1")).unwrap();
            fs::write(subsystem.join("nvme1n1/dev"), "259:7\n").unwrap();
            for (controller, function) in [("nvme0", "0000:00:04.0"), ("nvme1", "0000:00:05.0")] {
                let directory = sys.join(format!("devices/pci0000:00/{function}/nvme/{controller}"));
                symlink(directory, subsystem.join(controller)).unwrap();
            }
            fs::write(sys.join("devices/pci0000:00/0000:00:04.0/local_cpulist"), "2-3,8\n").unwrap();
            symlink(subsystem.join("nvme1n1"), sys.join("dev/block/259:7")).unwrap();
            let namespace = find(sys, 259, 7).unwrap();
            assert_eq!((namespace.node, namespace.cpus), expected);
        }
    }

    #[test]
    fn cpu_lists() {
        assert_eq!(parse_cpu_list("0-2,7"), Some(vec![0, 1, 2, 7]));
        assert_eq!(parse_cpu_list(""), Some(vec![]));
        for bad in ["x", "3-1", "0-99999999999", "-1", "1-"] {
            assert_eq!(parse_cpu_list(bad), None, "{bad}");
        }
    }
}

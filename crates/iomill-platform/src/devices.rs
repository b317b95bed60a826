//! Block devices by sysfs: their name, their NUMA node, and the CPUs near them.
//!
//! Goals: answers for partitions, device-mapper and md devices, and NVMe namespaces with several paths, too. Non-goals:
//! certainty. Values that cannot be read are left out. The library uses them only to place threads and memory.

use crate::machine::NODES;
use crate::tree::Tree;

/// The most levels of devices that are made of devices (a volume on a RAID on partitions).
pub(crate) const STACK_MAX: usize = 8;

/// A whole block device: a drive, or a volume of drives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Device {
    /// The name, such as `nvme0n1`.
    pub name: String,
    /// The number `(major, minor)`, if it is readable.
    pub number: Option<(u32, u32)>,
    /// The NUMA node, if it has one.
    pub node: Option<u32>,
    /// The CPUs near it; empty means any.
    pub cpus: Vec<usize>,
}

/// The whole device with the number `(major, minor)`, or with a partition that has this number. `None` if there is no
/// such device, as for a file system in memory.
pub fn find(tree: &Tree, (major, minor): (u32, u32)) -> Option<Device> {
    let directory = tree.resolve(&format!("sys/dev/block/{major}:{minor}"))?;
    let directory = whole(tree, &directory);
    let number = tree.get(&format!("{directory}/dev")).and_then(|text| parse_number(&text));
    let (node, cpus) = near(tree, directory);
    Some(Device { name: name_of(directory).to_owned(), number, node, cpus })
}

/// Whether a whole device supports polling for completions; `None` if the kernel does not report it.
pub fn can_poll(tree: &Tree, name: &str) -> Option<bool> {
    Some(tree.number(&queue(name, "io_poll")?)? != 0)
}

/// The unit in which a whole device is addressed, in bytes; `None` if the kernel does not report it.
pub fn logical_block_bytes(tree: &Tree, name: &str) -> Option<u32> {
    tree.number(&queue(name, "logical_block_size")?)?.try_into().ok()
}

/// The number of requests that the kernel's queue of a whole device takes before a submitter waits; `None` if the
/// kernel does not report it.
pub fn requests(tree: &Tree, name: &str) -> Option<u32> {
    tree.number(&queue(name, "nr_requests")?)?.try_into().ok()
}

fn queue(name: &str, file: &str) -> Option<String> {
    (!name.is_empty()).then(|| format!("sys/block/{name}/queue/{file}"))
}

/// The NUMA node of the device in a directory, and the CPUs near it.
pub(crate) fn near(tree: &Tree, directory: &str) -> (Option<u32>, Vec<usize>) {
    let node = node_of(tree, directory, STACK_MAX);
    let cpus = match node {
        Some(node) => tree.cpus(&format!("{NODES}/node{node}/cpulist")),
        None => {
            let controllers = controllers(tree, directory);
            let grounds =
                std::iter::once(directory).chain(controllers.iter().map(|(_, controller)| controller.as_str()));
            let mut lists = grounds.filter_map(|ground| {
                ancestors(ground).find_map(|directory| tree.cpus(&format!("{directory}/local_cpulist")))
            });
            // `None` if the controllers are near different CPUs: no CPU is then near all of them.
            lists.next().filter(|first| lists.all(|other| other == *first))
        }
    };
    (node, cpus.unwrap_or_default())
}

/// The NUMA node of a device: that of the nearest ancestor that has one (the PCI function of an NVMe drive). A device
/// that is made of others, or reached by others, has a node if all of those have the same.
fn node_of(tree: &Tree, directory: &str, depth: usize) -> Option<u32> {
    if depth == 0 {
        return None;
    }
    let controllers = controllers(tree, directory).into_iter().map(|(_, controller)| controller);
    let mut nodes = parts(tree, directory).into_iter().chain(controllers).map(|below| node_of(tree, &below, depth - 1));
    if let Some(first) = nodes.next() {
        return if nodes.all(|node| node == first) { first } else { None };
    }
    let value = ancestors(directory).find_map(|directory| tree.get(&format!("{directory}/numa_node")))?;
    // The kernel writes -1 on machines without nodes.
    value.parse().ok()
}

/// The directory of the whole device. A partition's directory is in it, and has a file `partition`.
pub(crate) fn whole<'a>(tree: &Tree, directory: &'a str) -> &'a str {
    match directory.rsplit_once('/') {
        Some((parent, _)) if tree.exists(&format!("{directory}/partition")) => parent,
        _ => directory,
    }
}

/// The directories of the whole devices of which a device-mapper or md device is made.
pub(crate) fn parts(tree: &Tree, directory: &str) -> Vec<String> {
    let slaves = format!("{directory}/slaves");
    let parts = tree.list(&slaves).into_iter().filter_map(|name| tree.resolve(&format!("{slaves}/{name}")));
    parts.map(|part| whole(tree, &part).to_owned()).collect()
}

/// The names and directories of the controllers of an NVMe namespace of the multipath layer. The namespace is in its
/// subsystem's directory, which has no parent device, and a link to each controller.
pub(crate) fn controllers(tree: &Tree, directory: &str) -> Vec<(String, String)> {
    let Some((subsystem, _)) = directory.rsplit_once('/') else { return Vec::new() };
    if subsystem.rsplit('/').nth(1) != Some("nvme-subsystem") {
        return Vec::new();
    }
    let links = tree.list(subsystem).into_iter().filter(|name| is_numbered(name, "nvme"));
    links.filter_map(|name| Some((name.clone(), tree.resolve(&format!("{subsystem}/{name}"))?))).collect()
}

/// A directory and those above it, within `sys/devices`.
pub(crate) fn ancestors(directory: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(directory), |directory| directory.rsplit_once('/').map(|(above, _)| above))
        .take_while(|directory| directory.starts_with("sys/devices/"))
}

/// The last name of a path.
pub(crate) fn name_of(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or_default()
}

/// Whether a name is `prefix` and then a number.
pub(crate) fn is_numbered(name: &str, prefix: &str) -> bool {
    name.strip_prefix(prefix).is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit()))
}

fn parse_number(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Record;

    const FIRST: &str = "sys/devices/pci0000:00/0000:00:04.0";
    const SECOND: &str = "sys/devices/pci0000:00/0000:00:05.0";

    fn unpacked(text: &str) -> (tempfile::TempDir, Tree) {
        let dir = tempfile::tempdir().unwrap();
        Record::parse(text).unwrap().unpack(dir.path()).unwrap();
        let tree = Tree::at(dir.path()).unwrap();
        (dir, tree)
    }

    /// A machine with two NVMe drives, the first with a partition, and a volume over both. `more` are further entries.
    fn machine(second_node: &str, more: &str) -> (tempfile::TempDir, Tree) {
        let (first, second) = (format!("{FIRST}/nvme/nvme0/nvme0n1"), format!("{SECOND}/nvme/nvme1/nvme1n1"));
        let volume = "sys/devices/virtual/block/dm-0";
        unpacked(&format!(
            "{FIRST}/numa_node = 1\n\
             {first}/dev = 259:0\n\
             {first}/nvme0n1p1/partition = 1\n\
             {first}/nvme0n1p1/dev = 259:1\n\
             {SECOND}/numa_node = {second_node}\n\
             {SECOND}/local_cpulist = 0-1\n\
             {second}/dev = 259:2\n\
             {volume}/dev = 253:0\n\
             {volume}/slaves/nvme0n1p1 -> {first}/nvme0n1p1\n\
             {volume}/slaves/nvme1n1 -> {second}\n\
             {NODES}/node1/cpulist = 2-3,8\n\
             sys/dev/block/259:0 -> {first}\n\
             sys/dev/block/259:1 -> {first}/nvme0n1p1\n\
             sys/dev/block/259:2 -> {second}\n\
             sys/dev/block/253:0 -> {volume}\n{more}"
        ))
    }

    #[test]
    fn a_partition_is_its_drive() {
        let (_dir, tree) = machine("-1", "");
        let drive = find(&tree, (259, 1)).unwrap();
        let expected = Device { name: "nvme0n1".into(), number: Some((259, 0)), node: Some(1), cpus: vec![2, 3, 8] };
        assert_eq!(drive, expected);
        assert_eq!(find(&tree, (259, 0)).unwrap(), expected);
    }

    #[test]
    fn without_a_node_the_near_cpus_count() {
        let (_dir, tree) = machine("-1", "");
        let drive = find(&tree, (259, 2)).unwrap();
        assert_eq!((drive.node, drive.cpus), (None, vec![0, 1]));
        assert_eq!(find(&tree, (8, 0)), None);
    }

    #[test]
    fn a_volume_has_a_node_when_its_drives_agree() {
        let (_dir, agree) = machine("1", "");
        let volume = find(&agree, (253, 0)).unwrap();
        assert_eq!((volume.name.as_str(), volume.node, volume.cpus), ("dm-0", Some(1), vec![2, 3, 8]));
        let (_dir, differ) = machine("0", "");
        assert_eq!(find(&differ, (253, 0)).unwrap().node, None);
    }

    /// `nvme1n1` is a namespace of the multipath layer with the controllers nvme0 and nvme1.
    #[test]
    fn a_namespace_of_several_paths_has_the_node_of_its_controllers() {
        for (second_node, expected) in [("1", (Some(1), vec![2, 3, 8])), ("0", (None, vec![]))] {
            let subsystem = "sys/devices/virtual/nvme-subsystem/nvme-subsys1";
            let more = format!(
                "{subsystem}/nvme1n1/dev = 259:7\n\
                 {subsystem}/nvme0 -> {FIRST}/nvme/nvme0\n\
                 {subsystem}/nvme1 -> {SECOND}/nvme/nvme1\n\
                 {FIRST}/local_cpulist = 2-3,8\n\
                 sys/dev/block/259:7 -> {subsystem}/nvme1n1\n"
            );
            let (_dir, tree) = machine(second_node, &more);
            let namespace = find(&tree, (259, 7)).unwrap();
            assert_eq!((namespace.node, namespace.cpus), expected);
        }
    }

    #[test]
    fn what_a_queue_offers_is_read() {
        let (_dir, tree) = unpacked(
            "sys/block/yes/queue/io_poll = 1\nsys/block/no/queue/io_poll = 0\n\
             sys/block/yes/queue/logical_block_size = 4096\nsys/block/odd/queue/logical_block_size = x\n",
        );
        assert_eq!(["yes", "no", "none", ""].map(|name| can_poll(&tree, name)), [Some(true), Some(false), None, None]);
        let sizes = ["yes", "no", "odd", ""].map(|name| logical_block_bytes(&tree, name));
        assert_eq!(sizes, [Some(4096), None, None, None]);
    }
}

//! The machine: its nodes, its CPUs, and the CPUs that this process may use.

use std::io;

use crate::cpus;
use crate::tree::Tree;

/// The directory in which the kernel lists the nodes.
pub const NODES: &str = "sys/devices/system/node";

/// A NUMA node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// The kernel's number.
    pub id: u32,
    /// The node's CPUs in rising order. A node that is only memory has none.
    pub cpus: Vec<usize>,
}

/// The nodes by number; none if the kernel knows of none. An error if there are nodes that cannot be read.
pub fn nodes(tree: &Tree) -> io::Result<Vec<Node>> {
    let mut nodes = Vec::new();
    for name in tree.names(NODES)? {
        let Some(id) = name.strip_prefix("node").and_then(|id| id.parse().ok()) else { continue };
        let list = tree.read(&format!("{NODES}/{name}/cpulist"))?.unwrap_or_default();
        nodes.push(Node { id, cpus: cpus::parse(&list)? });
    }
    nodes.sort_by_key(|node: &Node| node.id);
    Ok(nodes)
}

/// The properties of a machine that findings need.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// The CPUs that are online.
    pub online: Vec<usize>,
    /// The CPUs that this process may use.
    pub allowed: Vec<usize>,
    /// The nodes by number. A node without CPUs is only memory.
    pub nodes: Vec<Node>,
    /// The name of the hypervisor or the product; empty if it is not known.
    pub product: String,
    /// The kernel's release.
    pub kernel: String,
}

impl Machine {
    /// Reads the machine of a tree.
    pub fn look(tree: &Tree) -> Machine {
        let online = tree.cpus("sys/devices/system/cpu/online").unwrap_or_default();
        let status = tree.get("proc/self/status").unwrap_or_default();
        let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        let allowed = allowed.and_then(|list| cpus::parse(list).ok()).unwrap_or_else(|| online.clone());
        let nodes = tree.noted(NODES, nodes(tree)).unwrap_or_default();
        let dmi = |name| tree.get(&format!("sys/class/dmi/id/{name}")).filter(|text| !text.is_empty());
        let product = [dmi("sys_vendor"), dmi("product_name")].into_iter().flatten().collect::<Vec<_>>().join(" ");
        let kernel = tree.get("proc/sys/kernel/osrelease").unwrap_or_default();
        Machine { online, allowed, nodes, product, kernel }
    }

    /// Whether several nodes have CPUs, so that the place of a thread matters.
    pub fn is_numa(&self) -> bool {
        self.nodes.iter().filter(|node| !node.cpus.is_empty()).count() > 1
    }

    /// The CPUs of a node; none if there is no such node.
    pub fn node_cpus(&self, id: u32) -> &[usize] {
        self.nodes.iter().find(|node| node.id == id).map_or(&[], |node| &node.cpus)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Record;

    #[test]
    fn nodes_from_a_tree() {
        let nodes = |text: &str| {
            let dir = tempfile::tempdir().unwrap();
            Record::parse(text).unwrap().unpack(dir.path()).unwrap();
            super::nodes(&Tree::at(dir.path()).unwrap())
        };
        let text = "sys/devices/system/node/node1/cpulist = 2-3\nsys/devices/system/node/node0/cpulist = 0-1\n\
                    sys/devices/system/node/node10/cpulist = \nsys/devices/system/node/nodes/cpulist = 9\n\
                    sys/devices/system/node/online = 0-1,10\n";
        let expected = [(0, vec![0, 1]), (1, vec![2, 3]), (10, vec![])].map(|(id, cpus)| Node { id, cpus });
        assert_eq!(nodes(text).unwrap(), expected);
        assert_eq!(nodes("").unwrap(), []);
        let error = nodes("sys/devices/system/node/node0/cpulist = x\n").unwrap_err().to_string();
        assert!(error.contains("\"x\" is not a range of CPUs"), "{error}");
    }
}

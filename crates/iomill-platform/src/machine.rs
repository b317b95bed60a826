//! The machine: its nodes, its CPUs, and the CPUs that this process may use.

use crate::cpus;
use crate::tree::Tree;

/// A NUMA node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// The kernel's number.
    pub id: u32,
    /// Its CPUs.
    pub cpus: Vec<usize>,
}

/// The properties of a machine that findings need.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// CPUs that are online.
    pub online: Vec<usize>,
    /// CPUs that this process may use.
    pub allowed: Vec<usize>,
    /// The nodes by number. A node without CPUs is only memory.
    pub nodes: Vec<Node>,
    /// Name of the hypervisor or the product; empty if it is not known.
    pub product: String,
    /// The kernel's release.
    pub kernel: String,
}

impl Machine {
    /// Reads a machine.
    pub fn look(tree: &Tree) -> Machine {
        let online = tree.get("sys/devices/system/cpu/online").map(|list| cpus::parse(&list)).unwrap_or_default();
        let status = tree.get("proc/self/status").unwrap_or_default();
        let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        let allowed = allowed.map_or_else(|| online.clone(), |list| cpus::parse(list.trim()));
        let nodes_dir = "sys/devices/system/node";
        let mut nodes = Vec::new();
        for name in tree.list(nodes_dir) {
            let Some(id) = name.strip_prefix("node").and_then(|id| id.parse().ok()) else { continue };
            let list = tree.get(&format!("{nodes_dir}/{name}/cpulist")).unwrap_or_default();
            nodes.push(Node { id, cpus: cpus::parse(&list) });
        }
        nodes.sort_by_key(|node| node.id);
        let dmi = |name| tree.get(&format!("sys/class/dmi/id/{name}")).filter(|text| !text.is_empty());
        let product = [dmi("sys_vendor"), dmi("product_name")].into_iter().flatten().collect::<Vec<_>>().join(" ");
        let kernel = tree.get("proc/sys/kernel/osrelease").unwrap_or_default();
        Machine { online, allowed, nodes, product, kernel }
    }

    /// Whether the place of a thread makes a difference.
    pub fn is_numa(&self) -> bool {
        self.nodes.iter().filter(|node| !node.cpus.is_empty()).count() > 1
    }

    /// The CPUs of a node; none if there is no such node.
    pub fn node_cpus(&self, id: u32) -> &[usize] {
        self.nodes.iter().find(|node| node.id == id).map_or(&[], |node| &node.cpus)
    }
}

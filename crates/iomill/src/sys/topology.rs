//! The nodes of the machine, or of an emulated one.
//!
//! Goals: one list of nodes for all code that places memory and threads, whether the nodes are real or emulated.
//! Non-goals: deciding the placement.

use std::fmt;
use std::io;
use std::str::FromStr;

use iomill_platform::machine;
use iomill_platform::tree::Tree;

use super::cpu;
use super::memory::NodePolicy;

/// The most nodes that can be emulated.
pub const EMULATED_MAX: usize = 64;

/// The nodes that an array sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Topology {
    /// The nodes that the kernel describes.
    #[default]
    Machine,
    /// One node, whatever the machine has.
    One,
    /// This number of nodes, from 1 to 64, with the CPUs divided among them. If there are fewer CPUs, nodes share them.
    /// Memory is not bound.
    #[doc(hidden)]
    Emulate(usize),
}

impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Topology::Machine => f.write_str("machine"),
            Topology::One => f.write_str("one"),
            Topology::Emulate(nodes) => write!(f, "emulate:{nodes}"),
        }
    }
}

impl FromStr for Topology {
    type Err = String;

    fn from_str(text: &str) -> Result<Topology, String> {
        let count = |text: &str| text.parse().ok().filter(|nodes| (1..=EMULATED_MAX).contains(nodes));
        match text {
            "machine" => Ok(Topology::Machine),
            "one" => Ok(Topology::One),
            _ => match text.strip_prefix("emulate:").and_then(count) {
                Some(nodes) => Ok(Topology::Emulate(nodes)),
                None => Err(format!("give `machine`, `one`, or `emulate:N` with N from 1 to {EMULATED_MAX}")),
            },
        }
    }
}

/// A node of the machine, or of an emulated one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// The kernel's number. Emulated nodes are numbered from 0.
    pub id: usize,
    /// The node's CPUs that this process may use, in rising order; empty means any.
    pub cpus: Vec<usize>,
    /// The kernel's number of the node for its memory; `None` means any.
    pub memory: Option<u32>,
}

/// The only node of a machine with one node, or of one that is treated so.
fn only() -> Vec<Node> {
    vec![Node { id: 0, cpus: Vec::new(), memory: None }]
}

/// The nodes, at least one, in rising order of their numbers. Nodes without a CPU that this process may use are left
/// out.
///
/// # Errors
/// The number of emulated nodes is out of range, or the CPUs or nodes cannot be listed.
pub fn nodes(topology: Topology, tree: &Tree) -> io::Result<Vec<Node>> {
    match topology {
        Topology::One | Topology::Emulate(1) => Ok(only()),
        Topology::Machine => {
            let allowed = cpu::allowed()?;
            let mut nodes: Vec<Node> = Vec::new();
            for machine::Node { id, mut cpus } in machine::nodes(tree)? {
                cpus.retain(|cpu| allowed.binary_search(cpu).is_ok());
                if !cpus.is_empty() {
                    nodes.push(Node { id: id as usize, cpus, memory: Some(id) });
                }
            }
            Ok(if nodes.len() < 2 { only() } else { nodes })
        }
        Topology::Emulate(count) if (2..=EMULATED_MAX).contains(&count) => Ok(emulated(count, &cpu::allowed()?)),
        Topology::Emulate(count) => {
            let why = format!("{count} nodes cannot be emulated: give 1 to {EMULATED_MAX}");
            Err(io::Error::new(io::ErrorKind::InvalidInput, why))
        }
    }
}

/// Divides CPUs among nodes as evenly as possible. Each node has at least one CPU.
fn emulated(count: usize, cpus: &[usize]) -> Vec<Node> {
    let share = |id: usize| {
        let start = id * cpus.len() / count;
        let end = ((id + 1) * cpus.len() / count).max(start + 1).min(cpus.len());
        Node { id, cpus: cpus[start.min(end)..end].to_vec(), memory: None }
    };
    (0..count).map(share).collect()
}

/// Finds a thread's node by the CPU on which the thread runs.
#[derive(Clone, Debug)]
pub struct Finder {
    /// The nodes of each CPU, as indices into the list of nodes.
    nodes_of: Vec<Vec<usize>>,
}

impl Finder {
    /// A finder of these nodes.
    pub fn new(nodes: &[Node]) -> Finder {
        let cpus = nodes.iter().flat_map(|node| &node.cpus).max().map_or(0, |last| last + 1);
        let with = |cpu| (0..nodes.len()).filter(|&node| nodes[node].cpus.contains(&cpu)).collect();
        Finder { nodes_of: (0..cpus).map(with).collect() }
    }

    /// The index of the calling thread's node at this moment; `None` if no node has its CPU. If several emulated nodes
    /// share the CPU, `turn` chooses one of them. It is a number of the thread's own.
    pub fn here(&self, turn: usize) -> Option<usize> {
        self.at(rustix::thread::sched_getcpu(), turn)
    }

    fn at(&self, cpu: usize, turn: usize) -> Option<usize> {
        let nodes = self.nodes_of.get(cpu)?;
        nodes.get(turn % nodes.len().max(1)).copied()
    }
}

/// The policy for a node's memory. Pages that spill over to another node are slower, but a process that ends for lack
/// of memory on one node, while others have some, is worse.
pub const MEMORY_POLICY: NodePolicy = NodePolicy::Preferred;

#[cfg(test)]
mod tests {
    use super::*;

    fn cpus_of(count: usize, cpus: &[usize]) -> Vec<Vec<usize>> {
        emulated(count, cpus).into_iter().map(|node| node.cpus).collect()
    }

    #[test]
    fn cpus_are_divided_or_shared() {
        assert_eq!(cpus_of(2, &[0, 1, 2, 3]), [[0, 1], [2, 3]]);
        assert_eq!(cpus_of(3, &[0, 2, 4, 6]), [vec![0], vec![2], vec![4, 6]]);
        assert_eq!(cpus_of(4, &[3, 5]), [[3], [3], [5], [5]]);
        assert_eq!(cpus_of(3, &[7]), [[7], [7], [7]]);
        for (nodes, cpus) in [(5, 3), (64, 2), (7, 16), (4, 4)] {
            let all: Vec<usize> = (0..cpus).collect();
            let shares = cpus_of(nodes, &all);
            assert!(shares.iter().all(|share| !share.is_empty()), "{nodes} of {cpus}");
            assert!(all.iter().all(|cpu| shares.iter().any(|share| share.contains(cpu))), "{nodes} of {cpus}");
        }
    }

    #[test]
    fn a_thread_is_on_the_node_of_its_cpu() {
        let finder = Finder::new(&emulated(4, &[1, 2]));
        assert_eq!([0, 1, 2, 3].map(|turn| finder.at(1, turn)), [Some(0), Some(1), Some(0), Some(1)]);
        assert_eq!([0, 1, 2, 3].map(|turn| finder.at(2, turn)), [Some(2), Some(3), Some(2), Some(3)]);
        assert_eq!((finder.at(0, 0), finder.at(3, 0)), (None, None));
        let here = Finder::new(&nodes(Topology::Emulate(2), &Tree::machine()).unwrap());
        assert!(here.here(0).is_some_and(|node| node < 2));
    }

    #[test]
    fn the_machine_is_as_the_kernel_says() {
        let allowed = cpu::allowed().unwrap();
        let root = tempfile::tempdir().unwrap();
        let tree = Tree::at(root.path()).unwrap();
        let write = |node: &str, cpus: &str| {
            let node = tree.place(machine::NODES).join(node);
            std::fs::create_dir_all(&node).unwrap();
            std::fs::write(node.join("cpulist"), cpus).unwrap();
        };
        assert_eq!(nodes(Topology::Machine, &tree).unwrap(), only());
        write("node3", &format!("{}\n", allowed[0]));
        write("node4", "\n");
        assert_eq!(nodes(Topology::Machine, &tree).unwrap(), only(), "memory alone is no node to run on");
        write("node1", &format!("{},65000\n", allowed[allowed.len() - 1]));
        let found = nodes(Topology::Machine, &tree).unwrap();
        let of = |id: usize, cpu: usize| Node { id, cpus: vec![cpu], memory: Some(id as u32) };
        assert_eq!(found, [of(1, allowed[allowed.len() - 1]), of(3, allowed[0])]);
        assert_eq!(nodes(Topology::One, &tree).unwrap(), only());
    }

    #[test]
    fn names_and_senseless_numbers() {
        for topology in [Topology::Machine, Topology::One, Topology::Emulate(4)] {
            assert_eq!(topology.to_string().parse(), Ok(topology));
        }
        for bad in ["", "emulate", "emulate:", "emulate:0", "emulate:65", "emulate:x", "two"] {
            assert!(bad.parse::<Topology>().unwrap_err().contains("emulate:N"), "{bad}");
        }
        for bad in [0, EMULATED_MAX + 1] {
            assert!(nodes(Topology::Emulate(bad), &Tree::machine()).is_err());
        }
        assert_eq!(nodes(Topology::Emulate(1), &Tree::machine()).unwrap(), only());
    }
}

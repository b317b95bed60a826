//! [`NodeRoles`]: the nodes that cache, and the nodes that own drives.
//!
//! Goals: options are checked against the machine once, and errors list its nodes. Non-goals: threads and memory on
//! these nodes.

use iomill_platform::machine::NODES;
use iomill_platform::tree::{Tree, shown};

use crate::error::{Error, Result};
use crate::sys::topology::{self, Node, Topology};

/// The nodes and their roles.
#[derive(Clone, Debug)]
pub struct NodeRoles {
    /// All nodes; one if nodes make no difference.
    pub nodes: Vec<Node>,
    /// The nodes that cache, as indices into `nodes`, in rising order; not empty.
    pub cache: Vec<usize>,
    /// The nodes that own drives; likewise.
    pub io: Vec<usize>,
}

impl NodeRoles {
    /// All nodes of the topology. A role belongs to the nodes that are named for it, or without names to all nodes. A
    /// simulation has no threads, and takes the machine for one node, so that its runs are the same everywhere.
    pub fn new(
        topology: Topology,
        cache_nodes: &Option<Vec<usize>>,
        io_nodes: &Option<Vec<usize>>,
        has_threads: bool,
    ) -> Result<NodeRoles> {
        let topology = match topology {
            Topology::Machine if !has_threads => Topology::One,
            topology => topology,
        };
        let nodes = topology::nodes(topology, &Tree::machine()).map_err(|e| match topology {
            Topology::Emulate(_) => Error::invalid(format!("topology {topology}"), e.to_string()),
            // `Error::Io` has the advice for this case.
            _ if e.raw_os_error() == Some(libc::EMFILE) => Error::io("list the machine's nodes in", shown(NODES), e),
            _ => Error::Topology { source: e },
        })?;
        let chosen = |wanted: &Option<Vec<usize>>, what| match wanted {
            None => Ok((0..nodes.len()).collect()),
            Some(wanted) => choose(&nodes, wanted, what),
        };
        let (cache, io) = (chosen(cache_nodes, "cache")?, chosen(io_nodes, "I/O")?);
        Ok(NodeRoles { nodes, cache, io })
    }

    /// Whether any node caches and owns no drives.
    pub fn are_apart(&self) -> bool {
        !self.cache.iter().all(|node| self.io.contains(node))
    }

    /// The node that owns each drive, as an index into `nodes`. `at` has the kernel's number of the node near each
    /// drive, if it is known. This node owns the drive if it has the role. Otherwise the nodes with the role take
    /// turns.
    pub fn of_drives(&self, at: &[Option<u32>]) -> Vec<usize> {
        let mut turns = self.io.iter().copied().cycle();
        let known =
            |at: Option<u32>| self.io.iter().copied().find(|&node| at.is_some() && self.nodes[node].memory == at);
        at.iter().map(|&at| known(at).or_else(|| turns.next()).unwrap_or(0)).collect()
    }
}

/// The indices of nodes by their numbers.
fn choose(nodes: &[Node], wanted: &[usize], what: &str) -> Result<Vec<usize>> {
    let ids: Vec<String> = nodes.iter().map(|node| node.id.to_string()).collect();
    let has = match &ids[..] {
        [id] => format!("there is one node, {id}"),
        ids => format!("there are nodes {}", ids.join(", ")),
    };
    if wanted.is_empty() {
        return Err(Error::invalid(format!("an empty list of {what} nodes"), has).advise("name at least one"));
    }
    let mut places = Vec::new();
    for id in wanted {
        match nodes.iter().position(|node| node.id == *id) {
            Some(place) if !places.contains(&place) => places.push(place),
            Some(_) => return Err(Error::invalid(format!("{what} node {id}"), "it is named twice")),
            None => return Err(Error::invalid(format!("{what} node {id}"), has)),
        }
    }
    places.sort_unstable();
    Ok(places)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(id: usize) -> Node {
        Node { id, cpus: vec![id], memory: Some(id as u32) }
    }

    #[test]
    fn nodes_are_named_or_refused() {
        let nodes = [node(0), node(2), node(3)];
        assert_eq!(choose(&nodes, &[3, 0], "cache").unwrap(), [0, 2]);
        for (bad, says) in [(&[][..], "name at least one"), (&[1], "nodes 0, 2, 3"), (&[2, 2], "named twice")] {
            let error = choose(&nodes, bad, "cache").unwrap_err().to_string();
            assert!(error.contains(says) && error.contains("cache node"), "{error}");
        }
        let error = choose(&nodes[..1], &[1], "I/O").unwrap_err().to_string();
        assert!(error.contains("there is one node, 0"), "{error}");
    }

    #[test]
    fn drives_are_owned_by_their_node_or_one_in_turn() {
        let places = NodeRoles { nodes: (0..4).map(node).collect(), cache: vec![0, 1], io: vec![2, 3] };
        assert!(places.are_apart());
        let at = [Some(3), Some(0), None, Some(2), None, Some(3)];
        assert_eq!(places.of_drives(&at), [3, 2, 3, 2, 2, 3]);
        let emulated = NodeRoles { nodes: vec![Node { memory: None, ..node(0) }; 2], cache: vec![1], io: vec![0, 1] };
        assert_eq!(emulated.of_drives(&[None, Some(0), Some(7)]), [0, 1, 0]);
        assert!(!emulated.are_apart());
    }
}

//! The state of several nodes ([`Spread`]): their caches but the first, the node near the calling thread, and their
//! threads. Non-goals: calls that use it (`nodes`).
//!
//! A page always belongs to the same node, by a hash of the 64 KiB that contain it. With one node there is one cache,
//! and no `Spread`.

use super::node_threads::{self, NodeThreads};
use super::span::Span;
use crate::cache::Cache;
use crate::cache::key::Key;
use crate::drive::PAGE_BYTES;
use crate::exec::roles::NodeRoles;
use crate::sys::sync::AtomicU64;
use crate::sys::topology::Finder;

/// The least number of pages of another node that a wave sends there as a message. The calling thread fills fewer pages
/// itself: the drive writes to the memory of any node, and a message costs two wakes.
const MESSAGE_PAGES: usize = 8;

/// How blocking calls reach pages in the cache of another node. Futures and callbacks always reach them directly: their
/// pieces go to the drive threads anyway.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
// Only tools and tests choose.
#[cfg_attr(not(feature = "internals"), allow(dead_code))]
pub enum Remote {
    /// Reads cached pages directly. Sends missing pages and writes by message if a node has several of them.
    #[default]
    Auto,
    /// Always directly.
    Direct,
    /// Always by message to a thread of the node, one message for all pages of a call there, up to 1,024. Pins are
    /// always direct.
    Message,
}

/// The state that several nodes need besides the first cache.
#[derive(Debug)]
pub struct Spread {
    /// The caches but the first.
    pub others: Box<[Cache]>,
    finder: Finder,
    /// By a node's index in `NodeRoles::nodes`: the number of its cache, if it has one.
    homes: Vec<Option<usize>>,
    /// The least number of pages to fill or to write to in a message.
    pub least_asked: usize,
    /// The least number of pages to read in a message, before this thread has looked them up. `None`: it always looks
    /// them up itself.
    pub least_read: Option<usize>,
    /// Pages sent by message, by the cache's number.
    pub sent: Vec<AtomicU64>,
    pub threads: NodeThreads,
}

impl Spread {
    /// The caches' nodes are those of `roles` that cache; `others` are their caches but the first.
    pub fn new(roles: &NodeRoles, others: Vec<Cache>, remote: Remote, has_threads: bool) -> Spread {
        let home = |node| roles.cache.iter().position(|&cache| cache == node);
        let (least_asked, least_read) = match remote {
            _ if !has_threads => (usize::MAX, None),
            Remote::Auto => (MESSAGE_PAGES, None),
            Remote::Direct => (usize::MAX, None),
            Remote::Message => (1, Some(1)),
        };
        Spread {
            others: others.into(),
            finder: Finder::new(&roles.nodes),
            homes: (0..roles.nodes.len()).map(home).collect(),
            least_asked,
            least_read,
            sent: roles.cache.iter().map(|_| AtomicU64::new(0)).collect(),
            threads: NodeThreads::new(roles),
        }
    }

    /// Whether threads read the caches of all nodes themselves, none by message.
    pub fn reads_all(&self) -> bool {
        self.least_read.is_none()
    }

    /// The number of the cache on the calling thread's node, if there is one.
    pub fn home(&self) -> Option<usize> {
        self.finder.here(node_threads::turn()).and_then(|node| self.homes[node])
    }

    pub fn count(&self) -> usize {
        self.others.len() + 1
    }

    /// Takes the spans of other nodes out, if a node has `least` or more. Returns them by the cache's number. `zero` is
    /// the key of their file's page 0.
    pub fn take_away(&self, zero: Key, spans: &mut Vec<Span>, least: usize) -> Vec<Vec<Span>> {
        let home = self.home();
        let mut shares = vec![Vec::new(); self.count()];
        spans.retain(|span| {
            let node = zero.page_after(span.page).node(self.count());
            if Some(node) != home {
                shares[node].push(*span);
            }
            Some(node) == home
        });
        for share in &mut shares {
            if share.len() < least {
                spans.append(share);
            }
        }
        shares
    }
}

/// Divides `bytes` among nodes, in whole sets and as evenly as these allow.
pub fn shares(bytes: u64, ways: usize, nodes: usize) -> Vec<u64> {
    if nodes == 1 {
        return vec![bytes];
    }
    let set_bytes = (ways * PAGE_BYTES) as u64;
    let (sets, nodes) = (bytes / set_bytes, nodes as u64);
    (0..nodes).map(|node| (sets / nodes + u64::from(node < sets % nodes)) * set_bytes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_shared_in_whole_sets() {
        let set = 4 * PAGE_BYTES as u64;
        assert_eq!(shares(7 * set + 5, 4, 1), [7 * set + 5]);
        assert_eq!(shares(7 * set + 5, 4, 3), [3 * set, 2 * set, 2 * set]);
        assert_eq!(shares(4 * set, 4, 4), [set; 4]);
    }
}

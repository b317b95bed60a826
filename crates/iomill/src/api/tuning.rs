//! [`Tuning`]: the service of an array's drives, for programs that measure. Non-goals: their depth
//! ([`ArrayOptions::depth`](super::ArrayOptions::depth)) and profiles (`profile`).

use crate::drive::Batching;
use crate::pager::spread::Remote;
use crate::sys::topology::Topology;

/// Options of the service of an array's drives: threads, queues and NUMA nodes. The defaults suit most machines.
/// Measure before you change one. The options of the queues serve every engine: the copies of
/// [`EngineKind::Mmap`](crate::EngineKind::Mmap) pass through the same queues.
///
/// ```no_run
/// use iomill::{ArrayOptions, Tuning};
///
/// # fn main() -> iomill::Result<()> {
/// let tuning = Tuning::new().drive_threads(true);
/// let array = ArrayOptions::new().tuning(tuning).open("/mnt/ssd0")?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "options do nothing until an array has them"]
pub struct Tuning {
    /// The option as given; `ArrayOptions::drive_threads_in_force` has the value in force.
    pub(super) drive_threads: Option<bool>,
    pub(super) batching: Batching,
    pub(super) poll: bool,
    pub(super) cpu_map: Option<Vec<Vec<usize>>>,
    pub(super) topology: Topology,
    pub(super) cache_nodes: Option<Vec<usize>>,
    pub(super) io_nodes: Option<Vec<usize>>,
    pub(super) remote: Remote,
    pub(super) sums_pages: Option<usize>,
}

impl Tuning {
    /// The defaults.
    pub fn new() -> Tuning {
        Tuning::default()
    }

    /// Whether each drive has a thread that does all its I/O, with the engine of the drive, on the CPUs near the drive.
    /// Calling threads send their requests to it in batches. So the depth of a drive bounds the I/Os in flight of all
    /// threads together, and the drive has one submitter. By default each calling thread has engines of its own. That
    /// was as fast or faster on every measured drive, and takes less CPU time.
    pub fn drive_threads(mut self, drive_threads: bool) -> Self {
        self.drive_threads = Some(drive_threads);
        self
    }

    /// Whether each drive's queue finds the fewest slots that give the full throughput, and uses only those. It needs
    /// many slots to choose from: 256 is a good [depth](super::ArrayOptions::depth), and 1 is refused. Off by default.
    pub fn adaptive_depth(mut self, adaptive: bool) -> Self {
        self.batching.adaptive = adaptive;
        self
    }

    /// Whether each drive's queue sorts waiting requests by offset once it has seen neighbours. On by default.
    pub fn sort(mut self, sort: bool) -> Self {
        self.batching.sort = sort;
        self
    }

    /// Whether each drive's queue merges neighbours into one I/O, up to 256 KiB and 64 ranges of memory. On by default.
    pub fn merge(mut self, merge: bool) -> Self {
        self.batching.merge = merge;
        self
    }

    /// The most requests to a drive that wait for further requests of their call, so that neighbours can be merged: 1
    /// to 1,024, 32 by default. With 1 no request waits. Requests wait only if the queue has seen neighbours and the
    /// call has more requests. They are sent when as many wait as are in flight, or when `requests` I/Os have ended.
    /// Numbers other than 1 and 32 need [`Tuning::merge`].
    pub fn plug(mut self, requests: u32) -> Self {
        self.batching.plug = requests;
        self
    }

    /// Polls for completions instead of taking interrupts, on drives that support it: io_uring, on devices with polling
    /// queues. The others use interrupts, and [`Array::notices`](crate::Array::notices) gives the reason. Off by
    /// default.
    pub fn poll(mut self, poll: bool) -> Self {
        self.poll = poll;
        self
    }

    /// The CPUs of each drive's thread, instead of those near the drive: one entry for each drive, by index. It needs
    /// [drive threads](Tuning::drive_threads).
    pub fn cpu_map(mut self, cpus: impl Into<Vec<Vec<usize>>>) -> Self {
        self.cpu_map = Some(cpus.into());
        self
    }

    /// Whether to treat the machine as one NUMA node. By default an array uses all nodes of the machine. Then each node
    /// that caches has a cache in its own memory, with an even share of the pages.
    pub fn one_node(mut self, one_node: bool) -> Self {
        self.topology = if one_node { Topology::One } else { Topology::Machine };
        self
    }

    /// The NUMA nodes of the array: those of the machine, one, or emulated ones.
    #[cfg(feature = "internals")]
    pub fn topology(mut self, topology: Topology) -> Self {
        self.topology = topology;
        self
    }

    /// The nodes that cache, by their numbers; all by default. If one of them owns no drives ([`Tuning::io_nodes`]),
    /// there are drive threads. Fewer than all nodes need a cache.
    pub fn cache_nodes(mut self, nodes: impl Into<Vec<usize>>) -> Self {
        self.cache_nodes = Some(nodes.into());
        self
    }

    /// The nodes that own drives, by their numbers; all by default. A drive's thread runs on the node near the drive if
    /// that node is in the list. The nodes of the list take the other drives in turn. Fewer than all nodes need [drive
    /// threads](Tuning::drive_threads), by that option or because of [`Tuning::cache_nodes`].
    pub fn io_nodes(mut self, nodes: impl Into<Vec<usize>>) -> Self {
        self.io_nodes = Some(nodes.into());
        self
    }

    /// The most pages of checksums in memory, of 4 KiB each, besides those that operations use.
    #[cfg(feature = "internals")]
    pub fn sums_pages(mut self, pages: usize) -> Self {
        self.sums_pages = Some(pages);
        self
    }

    /// How blocking calls reach pages in the caches of other nodes.
    #[cfg(feature = "internals")]
    pub fn remote(mut self, remote: Remote) -> Self {
        self.remote = remote;
        self
    }
}

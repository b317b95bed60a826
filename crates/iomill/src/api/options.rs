//! [`ArrayOptions`]: how an array is created or opened. Non-goals: checks of options (`setup`), options of files (`file_options`).

use std::sync::Arc;

use super::profile::Profile;
use crate::cache::policy::PolicyKind;
use crate::cache::set::WAYS_DEFAULT;
use crate::catalog::{Catalog, Id};
use crate::drive::Batching;
pub use crate::drive::DEFAULT_PLUG;
use crate::engine::EngineKind;
use crate::engine::platform::Platform;
use crate::engine::real::RealPlatform;
use crate::error::Result;
use crate::exec::roles::NodeRoles;
use crate::pager::PagerOptions;
pub use crate::pager::nodes::Remote;
use crate::sys::topology::Topology;

/// Slots per drive by default: enough for the best throughput of every SSD on which the original was measured.
pub const DEFAULT_DEPTH: u32 = 32;

/// Slots per drive that give an adaptive depth enough room on every drive that was measured.
pub const ADAPTIVE_DEPTH: u32 = 256;

/// Pages of a set of the cache.
pub const DEFAULT_SET_SIZE: usize = WAYS_DEFAULT;

/// The largest window of read-ahead by default, in bytes.
pub const DEFAULT_READ_AHEAD_BYTES: u64 = 1 << 20;

/// Options for creating or opening an array.
///
/// ```no_run
/// # fn main() -> iomill::Result<()> {
/// let array = iomill::ArrayOptions::new().depth(64).read_only(true).open("/mnt/ssd0")?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "options do nothing until an array is created or opened with them"]
pub struct ArrayOptions {
    pub(crate) platform: Arc<dyn Platform>,
    pub(crate) weights: Option<Vec<u32>>,
    pub(crate) copies: Option<usize>,
    pub(crate) read_only: bool,
    pub(crate) sync_changes: bool,
    pub(crate) engine: Option<EngineKind>,
    /// The option as it was given; `drive_threads_in_force` is what counts. The same holds for the depth.
    pub(crate) drive_threads: Option<bool>,
    pub(crate) depth: Option<u32>,
    pub(crate) batching: Batching,
    pub(crate) profile: Option<Arc<Profile>>,
    pub(crate) poll: bool,
    pub(crate) cpu_map: Option<Vec<Vec<usize>>>,
    pub(crate) cache_bytes: Option<u64>,
    pub(crate) cache_bytes_max: Option<u64>,
    pub(crate) set_size: usize,
    pub(crate) policy: PolicyKind,
    pub(crate) read_ahead_bytes: u64,
    pub(crate) hash_mask: u64,
    pub(crate) topology: Topology,
    pub(crate) cache_nodes: Option<Vec<usize>>,
    pub(crate) io_nodes: Option<Vec<usize>>,
    pub(crate) remote: Remote,
}

impl Default for ArrayOptions {
    fn default() -> Self {
        ArrayOptions::new()
    }
}

impl ArrayOptions {
    /// The defaults: for writing, the best engine of each drive, depth 32.
    pub fn new() -> ArrayOptions {
        ArrayOptions {
            platform: Arc::new(RealPlatform::default()),
            weights: None,
            copies: None,
            read_only: false,
            sync_changes: true,
            engine: None,
            drive_threads: None,
            depth: None,
            batching: Batching::default(),
            profile: None,
            poll: false,
            cpu_map: None,
            cache_bytes: None,
            cache_bytes_max: None,
            set_size: DEFAULT_SET_SIZE,
            policy: PolicyKind::default(),
            read_ahead_bytes: DEFAULT_READ_AHEAD_BYTES,
            hash_mask: u64::MAX,
            topology: Topology::default(),
            cache_nodes: None,
            io_nodes: None,
            remote: Remote::default(),
        }
    }

    /// Weights of the drives, in their order (creation only): a drive of weight 2 takes twice the share of one of weight
    /// 1 in files with the hash layout. From 1 to 1,000; all 1 by default.
    pub fn weights(mut self, weights: impl Into<Vec<u32>>) -> Self {
        self.weights = Some(weights.into());
        self
    }

    /// On how many drives the catalog is (creation only): 1 to 3, and at most all. By default on as many as that allows. Each costs every
    /// change a write and a flush. One that fails or is lost costs nothing as long as another is there.
    pub fn copies(mut self, copies: usize) -> Self {
        self.copies = Some(copies);
        self
    }

    /// Opens for reading only, beside other readers.
    pub fn read_only(mut self, read_only: bool) -> Self {
        self.read_only = read_only;
        self
    }

    /// Whether creating, deleting, renaming, publishing and setting attributes wait until the change is durable. They do by default. Without
    /// that, such a change costs a few microseconds. It becomes durable in its order, with the next [`File::sync`](super::File::sync), with
    /// the end of a file that was written to, with [`Array::sync`](super::Array::sync), and when the array is closed. A crash or a kill may lose it
    /// before, and then all that came after it. An error of the log shows only then.
    ///
    /// The content of a file is durable before its name all the same, so a put still flushes its content. Space of deleted files is free when
    /// their deletions are durable.
    pub fn sync_changes(mut self, sync_changes: bool) -> Self {
        self.sync_changes = sync_changes;
        self
    }

    /// Demands this engine for all drives. Opening fails if a drive cannot have it.
    pub fn engine(mut self, engine: EngineKind) -> Self {
        self.engine = Some(engine);
        self
    }

    /// Whether each drive has a thread that does all its I/O, with the engine of the drive, on the CPUs near the drive. Calling threads send it
    /// their requests, in batches. So the depth of a drive bounds what all threads have in flight there, and the drive sees one thread. By default
    /// each calling thread has engines of its own, which was as fast or faster on every drive that was measured, and takes less CPU time.
    pub fn drive_threads(mut self, drive_threads: bool) -> Self {
        self.drive_threads = Some(drive_threads);
        self
    }

    /// Most I/Os in flight per drive and calling thread, or with drive threads per drive: 1 to 1,024, 32 by default.
    pub fn depth(mut self, depth: u32) -> Self {
        self.depth = Some(depth);
        self
    }

    /// Whether each drive's queue uses only as many of its `depth` slots as its throughput needs, instead of all of them. It needs room:
    /// [`ADAPTIVE_DEPTH`] is a good depth for it. Off by default.
    pub fn adaptive_depth(mut self, adaptive: bool) -> Self {
        self.batching.adaptive = adaptive;
        self
    }

    /// Whether each drive's queue orders waiting requests by offset when it has seen neighbours. On by default.
    pub fn sort(mut self, sort: bool) -> Self {
        self.batching.sort = sort;
        self
    }

    /// Whether each drive's queue merges neighbours into one I/O, up to 256 KiB and 64 ranges of memory. On by default.
    pub fn merge(mut self, merge: bool) -> Self {
        self.batching.merge = merge;
        self
    }

    /// How long requests to a drive wait for others of their call, so that neighbours can be merged. They wait only when the queue has seen
    /// neighbours, while the call has more, and until as many wait as are in flight. They wait at most until `pieces` requests wait, or `pieces`
    /// I/Os have ended. 1 to 1,024, 32 by default; with 1 no request waits.
    pub fn plug(mut self, pieces: u32) -> Self {
        self.batching.plug = pieces;
        self
    }

    /// Polls for completions instead of taking interrupts, if engine and device can: io_uring, on devices with polling queues.
    /// Other drives are served as without this, and [`Array::notices`](crate::Array::notices) says why. Off by default.
    pub fn poll(mut self, poll: bool) -> Self {
        self.poll = poll;
        self
    }

    /// The CPUs of each drive's thread, by drive index, instead of those near the drive. It has an entry for each drive.
    pub fn cpu_map(mut self, cpus: Vec<Vec<usize>>) -> Self {
        self.cpu_map = Some(cpus);
        self
    }

    /// Memory for cached pages in bytes; 0 for no cache. By default 512 MiB, and at most a quarter of the memory that the process
    /// may use. It is taken as pages come in.
    pub fn cache_bytes(mut self, bytes: u64) -> Self {
        self.cache_bytes = Some(bytes);
        self
    }

    /// How far [`super::Array::resize_cache`] may grow the cache, in bytes: at least the first size. It costs address space, and memory
    /// only when the cache grows. By default it is four times the first size, or twice, or the same, as far as the process may use so
    /// much memory.
    pub fn cache_bytes_max(mut self, bytes: u64) -> Self {
        self.cache_bytes_max = Some(bytes);
        self
    }

    /// Pages of a set of the cache. A page that comes in takes the place of another page of its set. A multiple of 4 from 4 to 32, 12 by
    /// default.
    pub fn set_size(mut self, pages: usize) -> Self {
        self.set_size = pages;
        self
    }

    /// The policy that chooses which page leaves the cache when another comes in.
    pub fn policy(mut self, policy: PolicyKind) -> Self {
        self.policy = policy;
        self
    }

    /// How far ahead of a sequential reader the cache reads, in bytes. Windows begin with 16 KiB and double up to this: 1 MiB by default,
    /// at most 4 MiB, and at most a 16th of the cache. 0 for no read-ahead.
    pub fn read_ahead_bytes(mut self, bytes: u64) -> Self {
        self.read_ahead_bytes = bytes;
        self
    }

    /// Only these bits of the cache's hash count. For tests that need a bad hash, so that sets fill up.
    #[cfg(feature = "internals")]
    pub fn cache_hash_mask(mut self, mask: u64) -> Self {
        self.hash_mask = mask;
        self
    }

    /// Which NUMA nodes the array sees: those of the machine, one, or a number of emulated ones. With several nodes each node that caches
    /// has a cache of its own in its own memory, with an even share of the pages.
    pub fn topology(mut self, topology: Topology) -> Self {
        self.topology = topology;
        self
    }

    /// The nodes that cache, by their numbers; all by default. If one of them owns no drives ([`ArrayOptions::io_nodes`]), there
    /// are drive threads.
    pub fn cache_nodes(mut self, nodes: impl Into<Vec<usize>>) -> Self {
        self.cache_nodes = Some(nodes.into());
        self
    }

    /// The nodes that own drives, by their numbers; all by default. A drive's thread runs on the node near the drive if that is one of
    /// them. Else it runs on one of them in turn.
    pub fn io_nodes(mut self, nodes: impl Into<Vec<usize>>) -> Self {
        self.io_nodes = Some(nodes.into());
        self
    }

    /// How blocking calls reach pages in the caches of other nodes.
    pub fn remote(mut self, remote: Remote) -> Self {
        self.remote = remote;
        self
    }

    /// The platform of the array: the machine, or a simulation.
    #[cfg(feature = "internals")]
    pub fn platform(mut self, platform: Arc<dyn Platform>) -> Self {
        self.platform = platform;
        self
    }

    /// Which nodes cache, and which own drives.
    pub(super) fn roles(&self) -> Result<NodeRoles> {
        NodeRoles::new(self.topology, &self.cache_nodes, &self.io_nodes, self.platform.threads())
    }

    /// What the pager is made from.
    pub(super) fn pager(&self) -> PagerOptions {
        PagerOptions {
            cache_bytes: self.cache_bytes,
            cache_bytes_max: self.cache_bytes_max,
            set_size: self.set_size,
            policy: self.policy,
            hash_mask: self.hash_mask,
            remote: self.remote,
            has_threads: self.platform.threads(),
        }
    }
}

impl ArrayOptions {
    /// Measurements of the array's drives. They give depth and drive threads unless an option does, and the weights of new files.
    /// [`super::Array::notices`] report what does not fit the array.
    pub fn profile(mut self, profile: Profile) -> Self {
        self.profile = Some(Arc::new(profile));
        self
    }

    pub(super) fn drive_threads_in_force(&self) -> bool {
        self.drive_threads.or_else(|| self.profile.as_ref()?.drive_threads).unwrap_or_default()
    }

    /// The depth of a drive. `None` is a drive that no profile knows.
    pub(super) fn depth_of(&self, drive: Option<&Id>) -> u32 {
        let profiled = || self.profile.as_ref()?.drive(drive?)?.depth;
        self.depth.or_else(profiled).unwrap_or(DEFAULT_DEPTH)
    }

    /// Weights for new files that are not those of the labels.
    pub(super) fn weights_of_files(&self, catalog: &Catalog) -> Option<Vec<u32>> {
        self.profile.as_ref()?.weights(catalog.drives())
    }

    pub(super) fn note_misfits(&self, catalog: &Catalog, notices: &mut Vec<String>) {
        notices.extend(self.profile.iter().flat_map(|profile| profile.misfits(catalog)));
    }
}

//! How an array is created or opened, and how a file is laid out.

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
pub use crate::exec::Mode;
use crate::exec::roles::NodeRoles;
pub use crate::layout::LayoutKind;
use crate::pager::PagerOptions;
pub use crate::pager::nodes::Remote;
use crate::sys::topology::Topology;

/// Slots per drive unless told otherwise: enough to reach the best throughput of every SSD the original was tried on.
pub const DEFAULT_DEPTH: u32 = 32;

/// Slots per drive that leave an adaptive depth room on every drive we know.
pub const ADAPTIVE_DEPTH: u32 = 256;

/// Pages of a set of the cache.
pub const DEFAULT_SET_SIZE: usize = WAYS_DEFAULT;

/// The largest window of read-ahead unless told otherwise, in bytes.
pub const DEFAULT_READ_AHEAD_BYTES: u64 = 1 << 20;

/// Block size unless told otherwise, in bytes: 16 pages.
pub const DEFAULT_BLOCK_BYTES: u32 = 64 << 10;

/// Options for creating or opening an array.
///
/// ```no_run
/// # fn main() -> iomill::Result<()> {
/// let array = iomill::ArrayOptions::new().depth(64).read_only(true).open("/mnt/ssd0")?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct ArrayOptions {
    pub(crate) platform: Arc<dyn Platform>,
    pub(crate) weights: Option<Vec<u32>>,
    pub(crate) read_only: bool,
    pub(crate) engine: Option<EngineKind>,
    /// As it was given; `mode_in_force` is what counts. So with the depth and the plug.
    pub(crate) mode: Option<Mode>,
    pub(crate) depth: Option<u32>,
    pub(crate) plug: Option<u32>,
    /// Its `plug` does not count.
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
            read_only: false,
            engine: None,
            mode: None,
            depth: None,
            plug: None,
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

    /// Opens for reading only, beside other readers.
    pub fn read_only(mut self, read_only: bool) -> Self {
        self.read_only = read_only;
        self
    }

    /// Asks for one engine and no other; opening fails where a drive cannot have it.
    pub fn engine(mut self, engine: EngineKind) -> Self {
        self.engine = Some(engine);
        self
    }

    /// Who drives the I/O of blocking calls.
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = Some(mode);
        self
    }

    /// Most I/Os in flight per drive (and, inline, per thread): 1 to 1,024.
    pub fn depth(mut self, depth: u32) -> Self {
        self.depth = Some(depth);
        self
    }

    /// Whether each drive's queue uses as many of its `depth` slots as its throughput asks for, instead of all of them. Give it room:
    /// [`ADAPTIVE_DEPTH`] is a good depth for this. Off by default.
    pub fn adaptive_depth(mut self, adaptive: bool) -> Self {
        self.batching.adaptive = adaptive;
        self
    }

    /// Whether each drive's queue orders what waits by offset, where neighbours are in sight. On by default.
    pub fn sort(mut self, sort: bool) -> Self {
        self.batching.sort = sort;
        self
    }

    /// Whether each drive's queue merges neighbours into one I/O, up to 256 KiB and 64 stretches of memory. On by default.
    pub fn merge(mut self, merge: bool) -> Self {
        self.batching.merge = merge;
        self
    }

    /// While neighbours are in sight, asynchronous requests to a drive wait until there are as many of their class as are in flight, and at
    /// most until there are so many, or so many I/Os have ended: so they can be merged. 1 to 1,024, 32 by default. 1: nothing waits.
    /// Blocking calls never wait for others.
    pub fn plug(mut self, pieces: u32) -> Self {
        self.plug = Some(pieces);
        self
    }

    /// Polls for completions instead of taking interrupts, where engine and device can: io_uring and posix, on devices with
    /// polling queues. What cannot be polled is served as without this.
    pub fn poll(mut self, poll: bool) -> Self {
        self.poll = poll;
        self
    }

    /// The CPUs of each drive's thread, by drive index, instead of those near the drive.
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

    /// How far [`super::Array::resize_cache`] may grow the cache, in bytes: at least what it begins with. It costs address space, and memory
    /// only when the cache grows. By default it is four times the size that the cache begins with, or twice, or the same, as far as
    /// the process may use so much memory.
    pub fn cache_bytes_max(mut self, bytes: u64) -> Self {
        self.cache_bytes_max = Some(bytes);
        self
    }

    /// Pages of a set of the cache, among which a page that comes in takes the place of another: a multiple of 4 from 4 to 32, 12
    /// by default.
    pub fn set_size(mut self, pages: usize) -> Self {
        self.set_size = pages;
        self
    }

    /// Which page goes when another comes.
    pub fn policy(mut self, policy: PolicyKind) -> Self {
        self.policy = policy;
        self
    }

    /// How far ahead of a sequential reader the cache reads, in bytes: windows begin with 16 KiB and double up to this, 1 MiB by default
    /// and at most 4 MiB, and to a 16th of the cache at most. 0 for no read-ahead.
    pub fn read_ahead_bytes(mut self, bytes: u64) -> Self {
        self.read_ahead_bytes = bytes;
        self
    }

    /// Only these bits of the cache's hash count. For tests, which want a bad hash, so that sets really fill.
    #[cfg(feature = "internals")]
    pub fn cache_hash_mask(mut self, mask: u64) -> Self {
        self.hash_mask = mask;
        self
    }

    /// How the machine's NUMA nodes are looked at: as they are, as one, or as so many that are emulated. With several nodes each that
    /// caches has a cache of its own in its own memory, with an even share of the pages.
    pub fn topology(mut self, topology: Topology) -> Self {
        self.topology = topology;
        self
    }

    /// The nodes that cache, by their numbers; all by default. Where one of them owns no drives ([`ArrayOptions::io_nodes`]), all reads
    /// and writes of drives are left to the drives' threads.
    pub fn cache_nodes(mut self, nodes: impl Into<Vec<usize>>) -> Self {
        self.cache_nodes = Some(nodes.into());
        self
    }

    /// The nodes that own drives, by their numbers; all by default. A drive's thread runs on the drive's node if that is among them,
    /// or else on one of them in turn.
    pub fn io_nodes(mut self, nodes: impl Into<Vec<usize>>) -> Self {
        self.io_nodes = Some(nodes.into());
        self
    }

    /// How blocking calls get at pages of other nodes' caches.
    pub fn remote(mut self, remote: Remote) -> Self {
        self.remote = remote;
        self
    }

    /// The world the array lives in: the machine, or a simulation.
    #[cfg(feature = "internals")]
    pub fn platform(mut self, platform: Arc<dyn Platform>) -> Self {
        self.platform = platform;
        self
    }

    /// What nodes do.
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
    /// What was measured of the array's drives. It says depth, plug and mode where no option does, and the weights of new files. What
    /// of it does not fit the array is told by [`super::Array::notices`].
    pub fn profile(mut self, profile: Profile) -> Self {
        self.profile = Some(Arc::new(profile));
        self
    }

    pub(super) fn mode_in_force(&self) -> Mode {
        self.mode.or_else(|| self.profile.as_ref()?.mode).unwrap_or_default()
    }

    pub(super) fn batching_in_force(&self) -> Batching {
        let plug = self.plug.or_else(|| self.profile.as_ref()?.plug).unwrap_or(DEFAULT_PLUG);
        Batching { plug, ..self.batching }
    }

    /// The depth of a drive; without one, of a drive that no profile knows.
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

/// How a new file is laid out: the function from its blocks to the drives.
///
/// ```
/// let layout = iomill::Layout::hash().block_bytes(16 << 10).drives([2, 0, 1]);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    pub(crate) kind: LayoutKind,
    pub(crate) block_bytes: u32,
    pub(crate) drives: Option<Vec<u16>>,
}

impl Default for Layout {
    fn default() -> Self {
        Layout::striping()
    }
}

impl Layout {
    /// A layout of the given kind with blocks of 64 KiB over all drives.
    pub fn new(kind: LayoutKind) -> Layout {
        Layout { kind, block_bytes: DEFAULT_BLOCK_BYTES, drives: None }
    }

    /// Block b on drive b mod n.
    pub fn striping() -> Layout {
        Layout::new(LayoutKind::Striping)
    }

    /// Striping whose first drive moves by one from stripe to stripe.
    pub fn rotated() -> Layout {
        Layout::new(LayoutKind::Rotated)
    }

    /// A keyed permutation in proportion to the drives' weights.
    pub fn hash() -> Layout {
        Layout::new(LayoutKind::Hash)
    }

    /// The kind.
    pub fn kind(&self) -> LayoutKind {
        self.kind
    }

    /// Block size in bytes: a multiple of 4,096, at most 64 MiB.
    pub fn block_bytes(mut self, block_bytes: u32) -> Layout {
        self.block_bytes = block_bytes;
        self
    }

    /// Only these drives of the array, by index and in this order.
    pub fn drives(mut self, drives: impl Into<Vec<u16>>) -> Layout {
        self.drives = Some(drives.into());
        self
    }
}

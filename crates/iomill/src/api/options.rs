//! [`ArrayOptions`]: options for creating or opening an array. Non-goals: checks of options (`setup`), options of files
//! (`file_options`).

use std::sync::Arc;

use super::cache_options::CacheOptions;
use super::profile::Profile;
use super::tuning::Tuning;
use crate::catalog::{Catalog, Id};
use crate::engine::EngineKind;
use crate::engine::platform::Platform;
use crate::engine::real::RealPlatform;
use crate::error::Result;
use crate::exec::roles::NodeRoles;
use crate::pager::PagerOptions;

/// Slots per drive by default: enough for the best throughput of every SSD in the original's measurements.
pub const DEFAULT_DEPTH: u32 = 32;

/// Slots per drive for an adaptive depth: enough on every measured drive.
#[cfg(feature = "internals")]
pub const ADAPTIVE_DEPTH: u32 = 256;

/// Options for creating or opening an array. [`CacheOptions`] has those of the cache, [`CreateOptions`] those of a new
/// array, and [`Tuning`] those that need a measurement.
///
/// ```no_run
/// # fn main() -> iomill::Result<()> {
/// let array = iomill::ArrayOptions::new().cache_bytes(4 << 30).read_only(true).open("/mnt/ssd0")?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "options do nothing until an array is created or opened with them"]
pub struct ArrayOptions {
    pub(super) platform: Arc<dyn Platform>,
    pub(super) read_only: bool,
    pub(super) sync_changes: bool,
    pub(super) on_root: bool,
    pub(super) engine: Option<EngineKind>,
    /// The option as given; `depth_of` is the depth in force.
    pub(super) depth: Option<u32>,
    pub(super) profile: Option<Arc<Profile>>,
    pub(super) cache_bytes: Option<u64>,
    pub(super) cache: CacheOptions,
    pub(super) tuning: Tuning,
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
            read_only: false,
            sync_changes: true,
            on_root: false,
            engine: None,
            depth: None,
            profile: None,
            cache_bytes: None,
            cache: CacheOptions::new(),
            tuning: Tuning::new(),
        }
    }

    /// Opens the array for reading only. Other processes may read it too. Not for new arrays.
    pub fn read_only(mut self, read_only: bool) -> Self {
        self.read_only = read_only;
        self
    }

    /// Whether creating, deleting, renaming, publishing and setting attributes wait until the change is durable. On by
    /// default. If off, a change costs a few microseconds. Changes become durable in their order: at the next
    /// [`File::sync`](super::File::sync) or [`Array::sync`](super::Array::sync), when the last handle of a written file
    /// is closed, and when the array is closed. Before that, a crash or a kill may lose a change, and with it all later
    /// changes. An error of the log is reported only at that sync or close.
    ///
    /// The content of a file is still durable before its name, so a put syncs its content. The space of a deleted
    /// file is free when the deletion is durable.
    pub fn sync_changes(mut self, sync_changes: bool) -> Self {
        self.sync_changes = sync_changes;
        self
    }

    /// Whether [`open_or_create`](ArrayOptions::open_or_create) may make an array on the file system of `/`. By default
    /// it may not. A mount point without its drive is an empty directory on that file system: a new array there would
    /// look like the old one without its files, fill the disk of the system, and be hidden by the next mount. Switch
    /// this on for directories that are not mount points, as on a machine with one disk. An array that exists is opened
    /// anywhere, and [`create`](ArrayOptions::create) makes one anywhere.
    pub fn on_root(mut self, on_root: bool) -> Self {
        self.on_root = on_root;
        self
    }

    /// The engine for all drives. Opening fails if a drive does not support it.
    pub fn engine(mut self, engine: EngineKind) -> Self {
        self.engine = Some(engine);
        self
    }

    /// The most I/Os in flight on each drive for each calling thread: 1 to 1,024, 32 by default. With [drive
    /// threads](Tuning::drive_threads) it is the most for all threads together.
    pub fn depth(mut self, depth: u32) -> Self {
        self.depth = Some(depth);
        self
    }

    /// Memory for cached pages in bytes; 0 for no cache. The default is 512 MiB, and at most a quarter of the memory
    /// that the process may use. Memory is allocated as pages are read.
    pub fn cache_bytes(mut self, bytes: u64) -> Self {
        self.cache_bytes = Some(bytes);
        self
    }

    /// The other options of the cache.
    pub fn cache(mut self, cache: CacheOptions) -> Self {
        self.cache = cache;
        self
    }

    /// The service of the drives, for programs that measure.
    pub fn tuning(mut self, tuning: Tuning) -> Self {
        self.tuning = tuning;
        self
    }

    /// Changes the present options of the cache.
    #[cfg(feature = "internals")]
    pub fn with_cache(mut self, change: impl FnOnce(CacheOptions) -> CacheOptions) -> Self {
        self.cache = change(self.cache);
        self
    }

    /// Changes the present tuning.
    #[cfg(feature = "internals")]
    pub fn with_tuning(mut self, change: impl FnOnce(Tuning) -> Tuning) -> Self {
        self.tuning = change(self.tuning);
        self
    }

    /// The platform of the array: the machine, or a simulation.
    #[cfg(feature = "internals")]
    pub fn platform(mut self, platform: Arc<dyn Platform>) -> Self {
        self.platform = platform;
        self
    }

    /// The nodes that cache, and the nodes that own drives.
    pub(super) fn roles(&self) -> Result<NodeRoles> {
        NodeRoles::new(self.tuning.topology, &self.tuning.cache_nodes, &self.tuning.io_nodes, self.platform.threads())
    }

    /// The options of the pager.
    pub(super) fn pager(&self) -> PagerOptions {
        PagerOptions {
            cache_bytes: self.cache_bytes,
            cache_max_bytes: self.cache.max_bytes,
            set_pages: self.cache.set_pages,
            policy: self.cache.policy,
            hash_mask: self.cache.hash_mask,
            remote: self.tuning.remote,
            has_threads: self.platform.threads(),
        }
    }
}

impl ArrayOptions {
    /// Measurements of the array's drives: depth and drive threads, unless an option sets them, and the weights of new
    /// files. [`Array::notices`](super::Array::notices) report entries that do not fit the array.
    pub fn profile(mut self, profile: Profile) -> Self {
        self.profile = Some(Arc::new(profile));
        self
    }

    pub(super) fn drive_threads_in_force(&self) -> bool {
        self.tuning.drive_threads.or_else(|| self.profile.as_ref()?.drive_threads).unwrap_or_default()
    }

    /// The depth of a drive. `None` is a drive without a profile.
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

/// Options of a new array, for [`ArrayOptions::create_with`] and [`ArrayOptions::open_or_create_with`].
///
/// ```no_run
/// use iomill::{ArrayOptions, CreateOptions};
///
/// # fn main() -> iomill::Result<()> {
/// let options = CreateOptions::new().weights([2, 1]);
/// let array = ArrayOptions::new().create_with(["/mnt/large", "/mnt/small"], &options)?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "options do nothing until an array is created with them"]
pub struct CreateOptions {
    pub(super) weights: Option<Vec<u32>>,
    pub(super) copies: Option<usize>,
}

impl CreateOptions {
    /// The defaults.
    pub fn new() -> CreateOptions {
        CreateOptions::default()
    }

    /// Weights of the drives, in their order: a drive of weight 2 takes twice the share of one of weight 1 in files
    /// with the layout [`Hash`](super::Layout::Hash). From 1 to 1,000; all 1 by default. The labels of the drives keep
    /// them, for all files to come.
    pub fn weights(mut self, weights: impl Into<Vec<u32>>) -> Self {
        self.weights = Some(weights.into());
        self
    }

    /// The number of copies of the catalog, each on its own drive: 1 to 3, and at most one for each drive. The default
    /// is the largest such number. Each copy costs every change a write and an fsync. The array survives the loss of
    /// copies as long as one is left.
    pub fn copies(mut self, copies: usize) -> Self {
        self.copies = Some(copies);
        self
    }
}

//! [`CacheOptions`]: how the cache of an array or a runtime works. Non-goals: its size, which most users choose
//! ([`ArrayOptions::cache_bytes`](super::ArrayOptions::cache_bytes)).

use crate::cache::policy::PolicyKind;
use crate::cache::set::WAYS_DEFAULT;

/// How a cache works, apart from its size. Without a cache these options have no effect, except that `max_bytes` is
/// refused: a program may set them once, and let its users choose a size of 0.
///
/// ```no_run
/// use iomill::{ArrayOptions, CacheOptions, PolicyKind};
///
/// # fn main() -> iomill::Result<()> {
/// let cache = CacheOptions::new().policy(PolicyKind::S3Fifo).read_ahead_bytes(0);
/// let array = ArrayOptions::new().cache_bytes(8 << 30).cache(cache).open("/mnt/ssd0")?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "options do nothing until an array or a runtime has them"]
pub struct CacheOptions {
    pub(super) max_bytes: Option<u64>,
    pub(super) policy: PolicyKind,
    pub(super) read_ahead_bytes: u64,
    pub(super) set_pages: usize,
    pub(super) hash_mask: u64,
}

impl Default for CacheOptions {
    fn default() -> Self {
        CacheOptions::new()
    }
}

impl CacheOptions {
    /// The defaults.
    pub fn new() -> CacheOptions {
        CacheOptions {
            max_bytes: None,
            policy: PolicyKind::default(),
            read_ahead_bytes: 1 << 20,
            set_pages: WAYS_DEFAULT,
            hash_mask: u64::MAX,
        }
    }

    /// The largest size of the cache after `resize_cache` of an [`Array`](super::Array::resize_cache) or a
    /// [`Runtime`](super::Runtime::resize_cache), in bytes. It is at least the first size. It reserves address space,
    /// and memory only when the cache grows. The default is four times the first size. If the process may not use that
    /// much memory, it is twice the first size, or the first size. It needs a cache.
    pub fn max_bytes(mut self, bytes: u64) -> Self {
        self.max_bytes = Some(bytes);
        self
    }

    /// The policy that chooses the page to evict.
    pub fn policy(mut self, policy: PolicyKind) -> Self {
        self.policy = policy;
        self
    }

    /// The largest window of read-ahead for a sequential reader, in bytes: 1 MiB by default, at most 4 MiB, and at most
    /// a 16th of the cache. Windows begin with 16 KiB and double. 0 for no read-ahead.
    pub fn read_ahead_bytes(mut self, bytes: u64) -> Self {
        self.read_ahead_bytes = bytes;
        self
    }

    /// The number of pages in a set of the cache. A new page replaces a page of its set. A multiple of 4 from 4 to 32,
    /// 12 by default.
    pub fn set_pages(mut self, pages: usize) -> Self {
        self.set_pages = pages;
        self
    }

    /// A mask for the cache's hash. For tests that need a bad hash, so that sets fill up.
    #[cfg(feature = "internals")]
    pub fn hash_mask(mut self, mask: u64) -> Self {
        self.hash_mask = mask;
        self
    }
}

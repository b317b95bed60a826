//! Page sets: the directory of iomill's cache, with its policies, without memory for pages and without I/O.

use iomill::Error;
use iomill::cache::directory::{Directory, DirectoryConfig};
use iomill::cache::feeder::Feeder;
use iomill::cache::key::{Key, KeyHash};

use crate::error::Result;
use crate::pages::{Access, DEVICE_SHIFT};
use crate::simulated::Simulated;

/// The policies within a set.
pub use iomill::cache::policy::PolicyKind as SetPolicy;

/// Accesses with headers that are prefetched at a time.
const AHEAD: usize = 16;

/// A directory, and the last hits of its one thread.
#[derive(Debug)]
pub(crate) struct Sets {
    directory: Directory,
    feeder: Feeder,
}

impl Sets {
    /// Empty sets.
    pub(crate) fn new(policy: SetPolicy, sets: u64, set_size: u32) -> Result<Sets> {
        let Ok(sets) = u32::try_from(sets) else {
            let what = format!("a cache of {sets} sets");
            return Err(Error::invalid(what, "a simulated cache has at most 2^32 sets; give fewer pages").into());
        };
        // Not `DirectoryConfig::fixed`, which rounds up: the cache has no more pages than its bytes hold.
        let config = DirectoryConfig { sets, sets_max: sets, ways: set_size as usize, policy, hash_mask: u64::MAX };
        Ok(Sets { directory: Directory::new(config)?, feeder: Feeder::default() })
    }
}

/// The name of the page of an access. Devices stand for files, and their numbers begin at 1.
#[inline]
fn key_of(access: Access) -> Option<Key> {
    let (device, page) = (access.page >> DEVICE_SHIFT, access.page & ((1 << DEVICE_SHIFT) - 1));
    Key::new(1 + device as u32, page)
}

impl Simulated for Sets {
    #[inline]
    fn access(&mut self, access: Access) -> bool {
        // A page that is too far out is never cached.
        key_of(access).is_some_and(|key| self.directory.touch(&mut self.feeder, key))
    }

    /// The next accesses of a trace are known, so the headers of large caches are prefetched.
    fn hits(&mut self, accesses: impl Iterator<Item = Access>) -> usize {
        let mut keys = accesses.filter_map(key_of).peekable();
        let (mut ahead, mut hits) = ([(Key::NOTHING, KeyHash(0)); AHEAD], 0);
        while keys.peek().is_some() {
            let mut len = 0;
            for (place, key) in ahead.iter_mut().zip(&mut keys) {
                *place = (key, self.directory.hash(key));
                self.directory.prefetch(place.1);
                len += 1;
            }
            for &(key, hash) in &ahead[..len] {
                hits += usize::from(self.directory.touch_hashed(&mut self.feeder, key, hash));
            }
        }
        hits
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pages;
    use crate::global;

    #[test]
    fn one_set_is_nearly_global_and_so_are_many() {
        let mut random = fastrand::Rng::with_seed(11);
        let pages = Pages::of((0..100_000).map(|_| random.u64(0..random.clone().u64(1..5000))));
        let hits = |cache: &mut dyn Simulated| pages.accesses().filter(|access| cache.access(*access)).count() as f64;
        for (sets, size) in [(1, 32), (50, 12)] {
            let global = hits(&mut global::Lru::new(pages.unique(), sets * size));
            let ours = hits(&mut Sets::new(SetPolicy::Lru, sets as u64, size as u32).unwrap());
            let looking_ahead = Sets::new(SetPolicy::Lru, sets as u64, size as u32).unwrap().hits(pages.accesses());
            assert_eq!(looking_ahead as f64, ours);
            assert!((ours / global - 1.0).abs() < 0.05, "{sets} sets of {size}: {ours} {global}");
        }
    }

    #[test]
    fn pages_of_devices_differ() {
        let mut sets = Sets::new(SetPolicy::Duel, 10, 4).unwrap();
        let mut access = |page| sets.access(Access { index: 0, page, write: false });
        assert!(!access(7) && !access(1 << DEVICE_SHIFT | 7) && access(7) && access(1 << DEVICE_SHIFT | 7));
    }

    #[test]
    fn what_no_cache_can_be_is_refused() {
        assert!(Sets::new(SetPolicy::Lru, u64::MAX / 2, 12).unwrap_err().to_string().contains("2^32"));
        assert!(Sets::new(SetPolicy::Lru, 10, 6).unwrap_err().to_string().contains("multiple of 4"));
    }
}

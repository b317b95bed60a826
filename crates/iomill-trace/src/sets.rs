//! Page sets: a page may be kept in one small set only, which its hash names.

use iomill::Error;

use crate::error::Result;
use crate::pages::Access;
use crate::simulate::Simulated;

/// Free.
const NONE: u64 = u64::MAX;

/// What goes within a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SetPolicy {
    /// The page not used for longest.
    Lru,
}

impl SetPolicy {
    /// All of them.
    pub const ALL: [SetPolicy; 1] = [SetPolicy::Lru];

    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            SetPolicy::Lru => "lru",
        }
    }
}

/// Sets in which the least recently used page goes.
#[derive(Debug)]
pub(crate) struct Sets {
    /// The sets, one after the other; in each the page used last is first, and free places are last.
    pages: Vec<u64>,
    set_size: usize,
}

impl Sets {
    /// Empty sets.
    pub(crate) fn new(policy: SetPolicy, sets: u64, set_size: u32) -> Result<Sets> {
        let SetPolicy::Lru = policy;
        let (len, mut pages) = (sets.saturating_mul(set_size.into()), Vec::new());
        let reserved = usize::try_from(len).ok().and_then(|len| pages.try_reserve_exact(len).ok().map(|()| len));
        let Some(len) = reserved else {
            let (what, why) =
                (format!("a cache of {len} pages"), "there is not enough memory to simulate it".to_owned());
            return Err(Error::Machine { what, why }.into());
        };
        pages.resize(len, NONE);
        Ok(Sets { pages, set_size: set_size as usize })
    }
}

impl Simulated for Sets {
    #[inline]
    fn access(&mut self, access: Access) -> bool {
        let sets = (self.pages.len() / self.set_size) as u64;
        let set = ((u128::from(mixed(access.page)) * u128::from(sets)) >> 64) as usize;
        let set = &mut self.pages[set * self.set_size..][..self.set_size];
        let found = set.iter().position(|page| *page == access.page);
        set[..=found.unwrap_or(self.set_size - 1)].rotate_right(1);
        set[0] = access.page;
        found.is_some()
    }
}

/// A number whose every bit depends on every bit of the page's.
#[inline]
fn mixed(page: u64) -> u64 {
    let mut hash = page.wrapping_add(0x9e37_79b9_7f4a_7c15);
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pages;
    use crate::global;

    #[test]
    fn one_set_is_global_and_many_are_nearly() {
        let mut random = fastrand::Rng::with_seed(11);
        let pages = Pages::of((0..100_000).map(|_| random.u64(0..random.clone().u64(1..5000))));
        let hits = |cache: &mut dyn Simulated| pages.accesses().filter(|access| cache.access(*access)).count() as f64;
        let sets = |sets, size| Sets::new(SetPolicy::Lru, sets, size).unwrap();
        let global = hits(&mut global::Lru::new(pages.unique(), 600));
        assert_eq!(hits(&mut sets(1, 600)), global);
        let many = hits(&mut sets(50, 12));
        assert!((many / global - 1.0).abs() < 0.05 && many != global, "{many} {global}");
    }

    #[test]
    fn what_no_memory_holds_is_refused() {
        let error = Sets::new(SetPolicy::Lru, u64::MAX / 2, 12).unwrap_err().to_string();
        assert!(error.contains("not enough memory"), "{error}");
    }
}

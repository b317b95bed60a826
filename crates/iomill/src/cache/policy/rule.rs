//! [`Policy`]: what a policy does at each event of a set. Non-goals: the policies themselves, and their names.

use std::fmt;

use super::super::key::KeyHash;
use super::super::set::{HitRule, Locked};

/// The size of the directory for which a policy is made.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// The number of sets at the beginning.
    pub sets: u32,
    /// The number of first sets of linear hashing (`key::first_sets`).
    pub first_sets: u32,
    /// Ways of a set.
    pub ways: usize,
    /// The most pages after a resize.
    pub pages_max: u64,
    /// The bits of a hash that are used, as in `DirectoryConfig::hash_mask`.
    pub hash_mask: u64,
}

/// Chooses the page to evict. Calls with a set are made under the set's lock, so a policy synchronises only the state
/// that sets share. `index` is the number of the set.
pub trait Policy: fmt::Debug + Send + Sync {
    /// How a hit changes the way's metadata.
    fn on_hit(&self) -> HitRule;

    /// Whether the policy wants `feed`.
    fn wants_feed(&self) -> bool {
        false
    }

    /// Takes in the hashes of pages that were asked for, hits and misses, in their order.
    fn feed(&self, _hashes: &[KeyHash]) {}

    /// Takes in a number of hits, older than those that `feed` brings next. Their pages are not known, because the
    /// notes were overwritten.
    fn unseen(&self, _hits: u64) {}

    /// Follows a resize of the directory to `sets` sets. The call may come late.
    fn resized(&self, _sets: u32, _ways: usize) {}

    /// Notes a miss: the page `incoming` is about to be filled. Called once per miss, before `victim` and `inserted`.
    fn missed(&self, _index: u32, _set: &mut Locked<'_>, _incoming: KeyHash) {}

    /// Whether the page about to be filled should go past its set, which is full. Called at most once per miss, before
    /// `victim`, if the caller needs the page for one read only.
    fn passes(&self, _index: u32, _set: &mut Locked<'_>, _incoming: KeyHash) -> bool {
        false
    }

    /// Chooses the way to evict among `candidates`, a mask of present ways that is not empty. A call may change the
    /// notes of other pages, for example by moving the hand. So it is made once for each page that is evicted, and
    /// again only if the choice was a dirty page.
    fn victim(&self, index: u32, set: &mut Locked<'_>, candidates: u32, incoming: KeyHash) -> usize;

    /// Notes that the page of a way is evicted; the way still has it. Not called for pages that are dropped because
    /// their file is cut or removed.
    fn evicted(&self, _index: u32, _set: &mut Locked<'_>, _way: usize) {}

    /// Notes a new page in a way. The way's metadata still describes the page before it.
    fn inserted(&self, index: u32, set: &mut Locked<'_>, way: usize, incoming: KeyHash);

    /// Moves the notes of a page from a way of one set to a way of another, during a resize. The call comes before or
    /// after the move of the page itself. Ghosts are not moved.
    fn moved(&self, from: &mut Locked<'_>, from_way: usize, to: &mut Locked<'_>, to_way: usize) {
        let (meta, aux) = (from.meta(from_way), from.aux(from_way));
        to.set_meta(to_way, meta);
        to.set_aux(to_way, aux);
    }
}

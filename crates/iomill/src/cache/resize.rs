//! Resizes: sets are split and joined one at a time, while other threads read and write. Pages then move out of the
//! frames that are to be released.
//!
//! Goals: every page stays findable with its bytes and its state, dirty or being filled. Steps are so small that no
//! call waits noticeably. Non-goals: I/O (a step names the dirty pages that are in its way, and the caller flushes
//! them), and registrations of memory.
//!
//! Rules:
//! 1. A set is split or joined under its own lock and its origin's lock, the origin's first. The number of sets changes
//!    before either lock is released. A reader without a lock may miss a page that moves; a frame that it finds proves
//!    itself (`occupants`). When it then locks the set, it finds that the page has another set, and goes there
//!    (`Directory::lock`).
//! 2. A thread that works on a page (a fill, a flush) finds the page again by its key. A frame that is being filled
//!    stays the page's frame.
//! 3. The limit of frames is raised before sets are added, and lowered after sets were removed. So there are always
//!    more frames below the limit than pages. A page's frame above the limit is exchanged under the lock of the page's
//!    set. A frame that may be pinned stays as it is until its pins end, and the page gets another one (rule 2 of the
//!    cache).

use super::directory::SetIndex;
use super::key::Key;
use super::lanes::ways_of;
use super::set::Locked;
use super::{Cache, sets_of, with_spare};
use crate::drive::PAGE_BYTES;
use crate::sys::sync::{MutexGuard, lock, write};

/// The progress of a resize.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The resize is done.
    Done,
    /// There is more to do.
    More,
    /// The resize cannot go on until the caller has flushed dirty pages, or other threads have ended fills or flushes.
    Blocked,
}

/// A resize under way. There is one at a time. A drop leaves the cache at the size that it has by then.
#[derive(Debug)]
pub struct CacheResize<'a> {
    cache: &'a Cache,
    /// The number of sets at the end.
    target: u32,
    /// The next set to search for frames above the limit, once there are `target` sets.
    cursor: u32,
    /// Whether the present round over all sets has left a page in a frame above the limit.
    left: bool,
    _one: MutexGuard<'a, ()>,
}

impl Cache {
    /// Begins a resize to `bytes` bytes, at most to `CacheConfig::max_bytes`. Waits for the end of an earlier resize.
    pub fn begin_resize(&self, bytes: u64) -> CacheResize<'_> {
        let one = lock(&self.resizing);
        let ways = self.directory.ways() as u64;
        let target = self.directory.even_sets(sets_of(bytes, ways).min(u64::from(self.directory.sets_max())) as u32);
        let limit = self.frames.start() + with_spare(u64::from(target) * ways);
        if limit > self.frames.limit() {
            self.frames.set_limit(limit);
        }
        CacheResize { cache: self, target, cursor: 0, left: false, _one: one }
    }

    /// The bytes from the first frame to the last one that may be in use.
    pub fn used_bytes(&self) -> usize {
        (self.frames.limit() - self.frames.start()) as usize * PAGE_BYTES
    }

    /// The size of the cache now: the bytes of all pages that fit.
    pub fn bytes(&self) -> u64 {
        self.directory.pages() * PAGE_BYTES as u64
    }
}

impl CacheResize<'_> {
    /// Changes at most `sets` more sets. Appends the dirty pages that are in the way to `dirty`.
    pub fn go_on(&mut self, sets: u32, dirty: &mut Vec<Key>) -> Progress {
        let cache = self.cache;
        for _ in 0..sets {
            let now = cache.directory.sets();
            let gone_on = match now.cmp(&self.target) {
                std::cmp::Ordering::Less => {
                    cache.split(now);
                    true
                }
                std::cmp::Ordering::Greater => cache.join(now - 1, dirty),
                std::cmp::Ordering::Equal => return self.settle(sets, dirty),
            };
            if !gone_on {
                return Progress::Blocked;
            }
        }
        Progress::More
    }

    /// Moves the pages of at most `sets` sets out of frames above the limit, once there are `target` sets.
    fn settle(&mut self, sets: u32, dirty: &mut Vec<Key>) -> Progress {
        let cache = self.cache;
        if self.cursor == 0 {
            let limit = cache.frames.start() + with_spare(cache.directory.pages());
            cache.frames.set_limit(limit);
            self.left = false;
        }
        let end = self.cursor.saturating_add(sets).min(self.target);
        for index in self.cursor..end {
            self.left |= !cache.vacate(SetIndex(index), dirty);
        }
        self.cursor = if end == self.target { 0 } else { end };
        match (end == self.target, self.left) {
            (false, _) => Progress::More,
            (true, true) => Progress::Blocked,
            (true, false) => Progress::Done,
        }
    }

    /// Returns the memory of unused chunks to the system (`Frames::release`). Memory in use by pins stays until the
    /// next resize.
    pub fn release(&self, chunk_bytes: usize, let_go: impl Fn(std::ops::Range<usize>)) -> std::io::Result<u64> {
        self.cache.frames.release(chunk_bytes, let_go)
    }
}

impl Drop for CacheResize<'_> {
    fn drop(&mut self) {
        let directory = &self.cache.directory;
        directory.policy().resized(directory.sets(), directory.ways());
    }
}

/// The ways of a set that are present or filling.
fn taken(set: &Locked<'_>) -> u32 {
    set.present() | set.filling()
}

impl Cache {
    /// Adds the set `new`, and moves the pages that belong there out of its origin.
    fn split(&self, new: u32) {
        let _moves = write(&self.moves);
        let directory = &self.directory;
        let origin = directory.origin(new);
        let mut from = directory.set(origin).lock();
        let mut to = directory.set(SetIndex(new)).lock();
        debug_assert!(taken(&to) == 0 && to.waiters() == 0 && to.transit() == 0);
        // The header may have notes from an earlier life, before the cache shrank.
        to.set_clock(0);
        to.set_hand(0);
        to.set_scratch(0);
        (0..to.ways()).for_each(|index| to.set_ghost(index, 0));
        let goes = |key: Key| directory.set_index_of(directory.hash(key), new + 1) == SetIndex(new);
        for (free, way) in ways_of(taken(&from)).filter(|&way| goes(from.key(way))).enumerate().collect::<Vec<_>>() {
            self.move_page(&mut from, way, &mut to, free);
        }
        if from.waiters() > 0 || from.transit() > 0 {
            let (waiters, transit) = self.waiters.count(goes);
            to.set_waiters(waiters);
            to.set_transit(transit);
            from.set_waiters(from.waiters() - waiters);
            from.set_transit(from.transit() - transit);
        }
        self.dirty_sets.note(origin, &from);
        self.dirty_sets.note(SetIndex(new), &to);
        directory.set_sets(new + 1);
    }

    /// Removes the last set. Its pages move to its origin, and pages for which there is no room are dropped. If too few
    /// pages can be dropped, no set changes, `dirty` gets the pages to flush first, and the result is `false`.
    fn join(&self, last: u32, dirty: &mut Vec<Key>) -> bool {
        let _moves = write(&self.moves);
        let origin = self.directory.origin(last);
        let mut to = self.directory.set(origin).lock();
        let mut from = self.directory.set(SetIndex(last)).lock();
        let (Some(waiters), Some(transit)) =
            (to.waiters().checked_add(from.waiters()), to.transit().checked_add(from.transit()))
        else {
            return false;
        };
        let may_go = |set: &Locked<'_>| set.present() & !set.dirty() & !set.flushing();
        let count = taken(&from).count_ones() + taken(&to).count_ones();
        let over = count.saturating_sub(to.ways() as u32);
        if (may_go(&from).count_ones() + may_go(&to).count_ones()) < over {
            for set in [&from, &to] {
                dirty.extend(ways_of(set.dirty() & !set.flushing()).map(|way| set.key(way)));
            }
            return false;
        }
        for _ in 0..over {
            let of_from =
                may_go(&to) == 0 || may_go(&from) != 0 && taken(&from).count_ones() >= taken(&to).count_ones();
            let (set_index, set) = if of_from { (SetIndex(last), &mut from) } else { (origin, &mut to) };
            let candidates = may_go(set);
            self.let_go(set_index, set, candidates);
        }
        for way in ways_of(taken(&from)) {
            let free = to.free().trailing_zeros() as usize;
            self.move_page(&mut from, way, &mut to, free);
        }
        to.set_waiters(waiters);
        to.set_transit(transit);
        from.set_waiters(0);
        from.set_transit(0);
        self.dirty_sets.note(origin, &to);
        self.dirty_sets.note(SetIndex(last), &from);
        self.directory.set_sets(last);
        true
    }

    /// Drops the page that the policy chooses among the `candidates`, which are clean. A page that cannot be pinned is
    /// preferred.
    fn let_go(&self, SetIndex(index): SetIndex, set: &mut Locked<'_>, candidates: u32) {
        let unmarked = candidates & !set.marked();
        let candidates = if unmarked != 0 { unmarked } else { candidates };
        let policy = self.directory.policy();
        let some = self.directory.hash(set.key(candidates.trailing_zeros() as usize));
        let way = policy.victim(index, set, candidates, some);
        policy.evicted(index, set, way);
        self.drop_page(set, way);
    }

    /// Moves a page, whatever its state (rule 2), to a free way of another set.
    fn move_page(&self, from: &mut Locked<'_>, way: usize, to: &mut Locked<'_>, free: usize) {
        let key = from.key(way);
        to.set_frame(free, from.frame(way));
        if Locked::has(from.filling(), way) {
            to.begin_filling(free, key);
        } else {
            to.set_present(free, key, self.directory.hash(key));
        }
        to.set_dirty(free, Locked::has(from.dirty(), way));
        to.set_flushing(free, Locked::has(from.flushing(), way));
        to.set_marked(free, Locked::has(from.marked(), way));
        self.directory.policy().moved(from, way, to, free);
        from.set_free(way);
    }

    /// Moves the pages of a set to frames below the limit (rule 3). Whether all of them have such frames now.
    fn vacate(&self, set_index: SetIndex, dirty: &mut Vec<Key>) -> bool {
        let mut set = self.directory.set(set_index).lock();
        let limit = self.frames.limit();
        let mut all = true;
        for way in ways_of(taken(&set)) {
            let old = set.frame(way);
            if old < limit {
                continue;
            }
            if Locked::has(set.filling(), way) {
                all = false;
                continue;
            }
            if let Some(new) = self.frames.take() {
                // SAFETY: both are frames. The set is locked, so no other thread writes to the old one. The new one is
                // ours.
                unsafe { self.frames.copy_frame(old, new) };
                let marked = Locked::has(set.marked(), way);
                self.publish(new, set.key(way));
                set.set_marked(way, false);
                set.set_frame(way, new);
                self.memory.occupants.begin_change(old);
                if marked { self.frames.give_marked(old) } else { self.frames.give(old) }
            } else if !Locked::has(set.dirty() | set.flushing(), way) {
                // Pins hold all spare frames.
                self.let_go(set_index, &mut set, 1 << way);
            } else {
                all = false;
                dirty.push(set.key(way));
            }
        }
        all
    }
}

#[cfg(all(test, not(iomill_models)))]
mod tests;

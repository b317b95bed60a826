//! Writes to cached pages, and the flushes that follow (rules 2 and 3 of the cache).

use super::key::{Key, KeyHash};
use super::lanes::ways_of;
use super::set::Locked;
use super::{Cache, Flush, Outcome, SetIndex, Wrote};
use crate::drive::PAGE_BYTES;
use crate::sys::sync::{Ordering, read};

impl Cache {
    /// Writes to a page.
    ///
    /// `fresh` returns whether the drive holds only zeroes of the page. If so, the page need not be read first. It is
    /// called under the set's lock if the page is not in the cache. So it knows of every earlier write to the page: if
    /// there was one, it returns `false`.
    ///
    /// # Safety
    /// `within + len` is at most a page, and `from` is readable for `len` bytes.
    #[inline]
    pub unsafe fn write(
        &self,
        key: Key,
        hash: KeyHash,
        within: usize,
        from: *const u8,
        len: usize,
        fresh: impl FnOnce() -> bool,
    ) -> Wrote {
        let (set_index, mut set) = self.directory.lock(hash);
        if let Some(way) = set.find(key, hash) {
            if Locked::has(set.filling(), way) {
                return Wrote::Busy;
            }
            // SAFETY: the caller's promise.
            let written = unsafe { self.write_way((set_index, &mut set, way), (key, hash), within, from, len) };
            if let Some(dirty) = written {
                return Wrote::Done { dirty, came: None };
            }
            // Pins leave no frame. Once the page is clean, it leaves the cache, and the write goes past the cache
            // (rule 2).
            if !Locked::has(set.dirty() | set.flushing(), way) {
                self.drop_page(&mut set, way);
            }
            return Wrote::Full;
        }
        if self.waiters.in_transit(&set, key) {
            return Wrote::Busy;
        }
        self.directory.missed(set_index, &mut set, hash);
        let Some(room) = self.room(set_index, &mut set, hash) else { return Wrote::Full };
        if len < PAGE_BYTES && !fresh() {
            return Wrote::Yours(self.fill(set_index, &mut set, key, hash, room));
        }
        let (way, frame) = (room.way, set.frame(room.way));
        // SAFETY: as above. The frame of a way that is not present belongs to the lock's holder.
        unsafe {
            self.frames.zero(frame, 0, within);
            self.frames.copy_in(frame, within, from, len);
            self.frames.zero(frame, within + len, PAGE_BYTES - within - len);
        }
        self.publish(frame, key);
        set.set_present(way, key, hash);
        self.directory.policy().inserted(set_index.0, &mut set, way, hash);
        self.soil(set_index, &mut set, way);
        Wrote::Done { dirty: set.dirty().count_ones(), came: Some(room.came) }
    }

    /// Writes to a page that is in the cache. Returns the number of dirty pages in the set. `None` changes nothing: the
    /// page is not there, or another thread works on it, or pins leave no frame.
    ///
    /// # Safety
    /// As for `write`.
    pub unsafe fn write_present(
        &self,
        key: Key,
        hash: KeyHash,
        within: usize,
        from: *const u8,
        len: usize,
    ) -> Option<u32> {
        let (set_index, mut set) = self.directory.lock(hash);
        let way = set.find(key, hash).filter(|&way| !Locked::has(set.filling(), way))?;
        // SAFETY: the caller's promise.
        unsafe { self.write_way((set_index, &mut set, way), (key, hash), within, from, len) }
    }

    /// Writes to a present page. Returns the number of dirty pages in the set. `None` changes nothing: pins leave no
    /// frame.
    ///
    /// # Safety
    /// As for `write`.
    #[inline(always)]
    unsafe fn write_way(
        &self,
        (set_index, set, way): (SetIndex, &mut Locked<'_>, usize),
        (key, hash): (Key, KeyHash),
        within: usize,
        from: *const u8,
        len: usize,
    ) -> Option<u32> {
        let frame = self.writable(set_index, set, way, hash)?;
        // SAFETY: the caller's promise. The set is locked, so no other thread writes to its frames.
        unsafe { self.frames.copy_in(frame, within, from, len) };
        self.publish(frame, key);
        self.soil(set_index, set, way);
        Some(set.dirty().count_ones())
    }

    /// Zeroes a page from byte `within` on, if it is in the cache. The page does not become dirty, because the caller
    /// has the drive zero the same bytes. No fill or flush of it is in flight. `false` if pins leave no frame for it.
    pub fn zero_end(&self, key: Key, within: usize) -> bool {
        let hash = self.directory.hash(key);
        let (set_index, mut set) = self.directory.lock(hash);
        let Some(way) = set.find(key, hash) else { return true };
        let Some(frame) = self.writable(set_index, &mut set, way, hash) else { return false };
        // SAFETY: the range ends with the page. The set is locked, so no other thread writes to its frames.
        unsafe { self.frames.zero(frame, within, PAGE_BYTES - within) };
        self.publish(frame, key);
        true
    }

    /// The frame of a present way, made changing for a write. A pinned page gets another frame (rule 2). `None` if
    /// there is none.
    fn writable(&self, set_index: SetIndex, set: &mut Locked<'_>, way: usize, hash: KeyHash) -> Option<u32> {
        let old = set.frame(way);
        if !Locked::has(set.marked(), way) || self.unmark(set, 1 << way) != 0 {
            self.memory.occupants.begin_change(old);
            return Some(old);
        }
        let new = self.frames.take().or_else(|| self.evict_for_frame(set_index, set, way, hash))?;
        // SAFETY: both are frames. The old one is pinned, so no thread writes to it, and the new one is ours.
        unsafe { self.frames.copy_frame(old, new) };
        set.set_marked(way, false);
        set.set_frame(way, new);
        self.memory.occupants.begin_change(old);
        self.frames.give_marked(old);
        Some(new)
    }

    /// The frame of another page, evicted from this set or from any set. Never that of `way` itself, although its pin
    /// may have ended by now.
    fn evict_for_frame(&self, set_index: SetIndex, set: &mut Locked<'_>, way: usize, hash: KeyHash) -> Option<u32> {
        if let Some((victim, _)) = self.evict(set_index, set, set.all() & !(1 << way), hash) {
            return Some(set.frame(victim));
        }
        let sets = self.directory.sets();
        (1..sets).find_map(|step| {
            let other = SetIndex((set_index.0 + step) % sets);
            // Only tries to lock, because this thread holds a lock already.
            let mut other_set = self.directory.set(other).try_lock()?;
            let all = other_set.all();
            let (victim, _) = self.evict(other, &mut other_set, all, hash)?;
            Some(other_set.frame(victim))
        })
    }

    /// Makes a present page dirty.
    pub(super) fn soil(&self, set_index: SetIndex, set: &mut Locked<'_>, way: usize) {
        if !Locked::has(set.dirty() | set.flushing(), way) {
            self.dirty.fetch_add(1, Ordering::Relaxed);
        }
        set.set_dirty(way, true);
        self.dirty_sets.note(set_index, set);
    }

    /// Begins a flush: copies a dirty page for the caller to write. Copies nothing if the page is clean, or is being
    /// flushed already (rules 2 and 3). The page is clean from here on, not from the end of the flush: a later write is
    /// not in the copy, and makes it dirty again.
    ///
    /// # Safety
    /// `to` is writable for a page, and no other thread uses it.
    pub unsafe fn begin_flush(&self, key: Key, to: *mut u8) -> Flush {
        let hash = self.directory.hash(key);
        let (_, mut set) = self.directory.lock(hash);
        let Some(way) = set.find(key, hash) else { return Flush::Clean };
        if Locked::has(set.flushing(), way) {
            return Flush::Busy;
        }
        if !Locked::has(set.dirty(), way) {
            return Flush::Clean;
        }
        // SAFETY: a whole frame; `to` by the caller's promise.
        unsafe { self.frames.copy_out(set.frame(way), 0, to, PAGE_BYTES) };
        set.set_dirty(way, false);
        set.set_flushing(way, true);
        Flush::Begun
    }

    /// Ends a flush. If the page was written to meanwhile, or if the flush failed, the page is dirty.
    pub fn end_flush(&self, key: Key, outcome: Outcome) {
        let hash = self.directory.hash(key);
        let (set_index, mut set) = self.directory.lock(hash);
        let Some(way) = set.find(key, hash) else { unreachable!("a page stays until its flush has ended (rule 3)") };
        set.set_flushing(way, false);
        if outcome.is_err() {
            set.set_dirty(way, true);
        }
        if !Locked::has(set.dirty(), way) {
            // Release: pairs with the Acquire in `dirty`.
            self.dirty.fetch_sub(1, Ordering::Release);
            self.dirty_sets.note(set_index, &set);
        }
        self.waiters.tell(&mut set, key, outcome);
    }

    /// Whether a page is dirty. Looks without a lock, so the answer may be out of date.
    pub fn is_dirty(&self, key: Key) -> bool {
        let hash = self.directory.hash(key);
        let set = self.directory.set_of(hash);
        set.find(key, hash).is_some_and(|seen| set.is_dirty(seen))
    }

    /// Appends the dirty pages of one set to `keys`, and with `flushing_too` also those that are being flushed.
    pub fn dirty_in(&self, set_index: SetIndex, flushing_too: bool, keys: &mut Vec<Key>) {
        let set = self.directory.set(set_index);
        if !set.is_any_dirty() {
            return;
        }
        let set = set.lock();
        let mask = set.dirty() | if flushing_too { set.flushing() } else { 0 };
        keys.extend(ways_of(mask).map(|way| set.key(way)));
    }

    /// All pages of a file that are dirty or being flushed, in the file's order.
    pub fn dirty_of(&self, file: u32) -> Vec<Key> {
        let (mut keys, mut set) = (Vec::new(), Vec::new());
        if self.dirty() == 0 {
            return keys;
        }
        let _all = read(&self.moves);
        for set_index in self.dirty_sets.all(self.directory.sets()) {
            self.dirty_in(set_index, true, &mut set);
            keys.extend(set.drain(..).filter(|key| key.file() == file));
        }
        keys.sort_unstable();
        keys
    }

    /// Drops the pages of a file from `page` on, dirty ones too. No other thread works on them.
    pub fn discard(&self, file: u32, page: u64) {
        let _all = read(&self.moves);
        for index in 0..self.directory.sets() {
            let set = self.directory.set(SetIndex(index));
            // A look without the lock finds every page, because no other thread works on these pages now.
            if !set.may_hold(file) {
                continue;
            }
            let mut set = set.lock();
            for way in ways_of(set.present()) {
                let key = set.key(way);
                if key.file() == file && key.page() >= page {
                    self.drop_page(&mut set, way);
                }
            }
            self.dirty_sets.note(SetIndex(index), &set);
        }
    }

    /// Drops a present page: frees its way and its frame. If the page may be dirty, the caller then notes the set in
    /// `dirty_sets`.
    pub(super) fn drop_page(&self, set: &mut Locked<'_>, way: usize) {
        if Locked::has(set.dirty() | set.flushing(), way) {
            // Release: pairs with the Acquire in `dirty`.
            self.dirty.fetch_sub(1, Ordering::Release);
        }
        let (frame, marked) = (set.frame(way), Locked::has(set.marked(), way));
        self.memory.occupants.begin_change(frame);
        set.set_free(way);
        if marked { self.frames.give_marked(frame) } else { self.frames.give(frame) }
    }
}

#[cfg(all(test, not(iomill_models)))]
// Helpers of tests may unwrap, as tests do.
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::cache::policy::PolicyKind;
    use crate::cache::{Begun, CacheConfig, Came};

    const BYTES: [u8; PAGE_BYTES] = [7; PAGE_BYTES];

    fn page(number: u64) -> (Key, KeyHash) {
        let key = Key::new(1, number).unwrap();
        (key, key.hash())
    }

    fn fill(cache: &Cache, number: u64) -> Came {
        let (key, hash) = page(number);
        let Begun::Yours(fill) = cache.begin_fill(key, hash) else { panic!("page {number} is not ours") };
        let came = fill.came;
        cache.end_fill(fill, Ok(()), false);
        came
    }

    fn write(cache: &Cache, number: u64) -> Wrote {
        let (key, hash) = page(number);
        // SAFETY: a whole page.
        unsafe { cache.write(key, hash, 0, BYTES.as_ptr(), PAGE_BYTES, || true) }
    }

    fn is_there(cache: &Cache, number: u64) -> bool {
        let (key, hash) = page(number);
        cache.directory.find(key, hash).is_some()
    }

    /// If all frames are pinned or dirty, a write to a pinned page goes past the cache, and pins keep their bytes.
    #[test]
    fn a_write_never_waits_for_pins() {
        let bytes = 64 * PAGE_BYTES as u64;
        let config =
            CacheConfig { bytes, max_bytes: bytes, set_pages: 4, policy: PolicyKind::Lru, hash_mask: u64::MAX };
        let cache = Cache::new(config).unwrap();
        let set_of = |number| cache.directory.set_index(page(number).1);
        let full: Vec<u64> = (0..).filter(|&number| set_of(number) == set_of(0)).take(4).collect();
        let mut held = Vec::new();
        assert_eq!(cache.memory.pins_max(), 8, "slots of one pin each");
        let blocks: Vec<_> = (0..8).map(|_| cache.memory.pin_block().unwrap()).collect();
        for round in blocks.chunks(4) {
            for (&number, block) in full.iter().zip(round) {
                assert!(matches!(write(&cache, number), Wrote::Done { .. }));
                let (key, hash) = page(number);
                // SAFETY: the blocks are this thread's.
                held.push(unsafe { cache.pin(key, hash, (block, block.empty().unwrap())) }.unwrap().unwrap());
            }
        }
        // All other pages are dirty.
        (0..1000).filter(|&number| set_of(number) != set_of(0)).for_each(|number| _ = write(&cache, number));
        let number = full[0];
        let (key, hash) = page(number);
        assert!(matches!(write(&cache, number), Wrote::Full) && !cache.begin_bypass(key, hash), "it is dirty");
        let mut copy = [0; PAGE_BYTES];
        // SAFETY: a whole page, and ours.
        assert_eq!(unsafe { cache.begin_flush(key, copy.as_mut_ptr()) }, Flush::Begun);
        assert!(matches!(write(&cache, number), Wrote::Full) && !cache.begin_bypass(key, hash), "it is being flushed");
        cache.end_flush(key, Ok(()));
        assert!(matches!(write(&cache, number), Wrote::Full) && cache.begin_bypass(key, hash));
        cache.end_bypass(key, hash, Ok(()));
        assert!(held.iter().all(|held| held.bytes() == BYTES));
    }

    /// If the policy chooses a dirty page, a clean one is evicted in its place, and a flush is asked for. After the
    /// flush the page itself is evicted.
    #[test]
    fn dirty_pages_stay_until_they_are_flushed_and_no_longer() {
        let bytes = 4 * PAGE_BYTES as u64;
        let config =
            CacheConfig { bytes, max_bytes: bytes, set_pages: 4, policy: PolicyKind::Lru, hash_mask: u64::MAX };
        let cache = Cache::new(config).unwrap();
        assert!(matches!(
            write(&cache, 0),
            Wrote::Done { dirty: 1, came: Some(Came { evicted: false, is_pressed: false }) }
        ));
        for number in 1..4 {
            fill(&cache, number);
        }
        assert_eq!(fill(&cache, 4), Came { evicted: true, is_pressed: true });
        assert!(is_there(&cache, 0) && !is_there(&cache, 1));
        let mut copy = [0; PAGE_BYTES];
        // SAFETY: a whole page, and ours.
        assert_eq!(unsafe { cache.begin_flush(page(0).0, copy.as_mut_ptr()) }, Flush::Begun);
        assert_eq!(copy, BYTES);
        // While it is being flushed, it is not evicted, and no other flush is asked for.
        assert_eq!(fill(&cache, 5), Came { evicted: true, is_pressed: false });
        assert!(is_there(&cache, 0) && !is_there(&cache, 2));
        cache.end_flush(page(0).0, Ok(()));
        assert_eq!(fill(&cache, 6), Came { evicted: true, is_pressed: false });
        assert!(!is_there(&cache, 0));
    }
}

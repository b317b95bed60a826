//! The occupant of each frame: the key of its page, and a version. A reader without a lock proves its copy by them.
//!
//! Non-goals: finding the frame. A hint (`hints`) or a set (`set`) proposes it, and may be wrong.
//!
//! Rules, a sequence lock per frame (Lameter 2005; Boehm 2012 has the fences):
//! 1. A reader loads the version (Acquire), and checks that the frame is not *changing* and that its key is the page's.
//!    The reader copies, fences (Acquire), and loads the version again. It believes the copy if both versions are
//!    equal.
//! 2. A thread that changes a frame owns it: by the lock of its set, by its fill, or by the list of free frames. The
//!    thread makes the frame changing, fences (Release), and changes bytes or key. Then it stores the next version
//!    (Release). A frame is changing from its eviction to the end of its next fill, and while it is free, above the
//!    limit, or in limbo.
//! 3. A hint is stored, relaxed, only by a thread that has just seen the page in the frame: by rule 1, or under the
//!    lock of the page's set. No thread needs to clear a hint.
//! 4. Pins (`pins`) need a frame that is *marked* here. Only the holder of the set's lock marks and unmarks. Before a
//!    change of a marked frame, it makes the frame changing, and looks for pins. If there is one, it restores the
//!    version.
//! 5. A reader that found the frame by its set proves the copy by rule 1, too. So the set's own version protects no
//!    bytes.
//! 6. The memory of keys and versions never returns to the system: a late reader may still load them.

use std::io;

use super::hints::Hint;
use super::key::Key;
use super::words::Words;
use crate::sys::sync::{AtomicU64, Ordering, fence};

/// The frame is changing (rule 2).
const CHANGING: u64 = 1;
/// The frame may be pinned (rule 4).
const MARKED: u64 = 2;
/// The difference between a version and the next.
const STEP: u64 = 4;

/// The keys and versions of all frames.
#[derive(Debug)]
pub struct Occupants(Words);

/// The version that a reader saw before its copy.
#[derive(Clone, Copy, Debug)]
pub struct Proof<'a> {
    version: &'a AtomicU64,
    seen: u64,
}

impl Proof<'_> {
    /// Whether the frame has not changed since the version was loaded (rule 1).
    #[inline(always)]
    pub fn holds(&self) -> bool {
        // Acquire: pairs with the Release fence in `begin_change`.
        fence(Ordering::Acquire);
        self.version.load(Ordering::Relaxed) == self.seen
    }

    /// Whether the frame may be pinned.
    pub fn is_marked(&self) -> bool {
        self.seen & MARKED != 0
    }
}

impl Occupants {
    /// The occupants of `frames` empty frames.
    pub fn new(frames: u32) -> io::Result<Occupants> {
        Ok(Occupants(Words::new(2 * frames as usize)?))
    }

    /// The key and the version of a frame.
    #[inline(always)]
    fn at(&self, hint: Hint) -> (&AtomicU64, &AtomicU64) {
        let all = self.0.all();
        debug_assert!(hint.doubled() + 1 < all.len());
        // SAFETY: hints and sets hold only numbers below the number of frames, and there are two words per frame
        // (`new`). An array of two has the layout of two adjacent words.
        let [holds, version] = unsafe { &*all.as_ptr().add(hint.doubled()).cast::<[AtomicU64; 2]>() };
        (holds, version)
    }

    fn of(&self, frame: u32) -> (&AtomicU64, &AtomicU64) {
        self.at(Hint::of(frame))
    }

    /// Begins a read of a frame (rule 1). `None` if the frame does not hold the page, or is changing.
    #[inline(always)]
    pub fn look(&self, hint: Hint, key: Key) -> Option<Proof<'_>> {
        self.look_if(hint, key, CHANGING, 0)
    }

    /// Begins a read of a frame that is marked; else `None`.
    #[inline(always)]
    pub fn look_marked(&self, hint: Hint, key: Key) -> Option<Proof<'_>> {
        self.look_if(hint, key, CHANGING | MARKED, MARKED)
    }

    /// Begins a read of a frame if the `bits` of its version have the values in `wanted`.
    #[inline(always)]
    fn look_if(&self, hint: Hint, key: Key, bits: u64, wanted: u64) -> Option<Proof<'_>> {
        let (holds, version) = self.at(hint);
        // Acquire: pairs with the Release in `publish` and `restore`.
        let seen = version.load(Ordering::Acquire);
        // Two branches take fewer instructions and registers than one condition.
        if seen & bits != wanted {
            return None;
        }
        (holds.load(Ordering::Relaxed) == key.word()).then_some(Proof { version, seen })
    }

    /// Makes a frame changing (rule 2).
    #[inline]
    pub fn begin_change(&self, frame: u32) {
        let (_, version) = self.of(frame);
        // Relaxed: only this thread stores to the version now.
        version.store(version.load(Ordering::Relaxed) | CHANGING, Ordering::Relaxed);
        // Release: pairs with the Acquire fence in `Proof::holds`.
        fence(Ordering::Release);
    }

    /// Ends a change: the frame now holds the page of `key`, and is not marked.
    #[inline]
    pub fn publish(&self, frame: u32, key: Key) {
        let (holds, version) = self.of(frame);
        let seen = version.load(Ordering::Relaxed);
        debug_assert!(seen & CHANGING != 0, "frame {frame} was not changing");
        holds.store(key.word(), Ordering::Relaxed);
        // Release: pairs with the Acquire in `look`.
        version.store((seen & !(CHANGING | MARKED)).wrapping_add(STEP), Ordering::Release);
    }

    /// Ends a change that did not take place, and restores the version (rule 4).
    #[inline]
    pub fn restore(&self, frame: u32) {
        let (_, version) = self.of(frame);
        // Release: pairs with the Acquire in `look`.
        version.store(version.load(Ordering::Relaxed) & !CHANGING, Ordering::Release);
    }

    /// Marks a frame, or unmarks it and ends its change (rule 4). The caller holds the lock of the frame's set.
    #[inline]
    pub fn set_marked(&self, frame: u32, on: bool) {
        let (_, version) = self.of(frame);
        let seen = version.load(Ordering::Relaxed) & !(CHANGING | MARKED);
        // Release: pairs with the Acquire in `look`.
        version.store(seen | if on { MARKED } else { 0 }, Ordering::Release);
    }

    /// The line of a frame's key and version, for a prefetch.
    #[inline(always)]
    pub fn line(&self, hint: Hint) -> *const u8 {
        self.0.all().as_ptr().wrapping_add(hint.doubled()).cast()
    }
}

#[cfg(all(test, not(iomill_models)))]
mod tests {
    use crate::cache::hints::Hint;
    use crate::cache::key::{Key, KeyHash};
    use crate::cache::policy::PolicyKind;
    use crate::cache::{Begun, Cache, CacheConfig, Wrote};
    use crate::drive::PAGE_BYTES;

    /// One set of four pages.
    fn cache() -> Cache {
        let bytes = 4 * PAGE_BYTES as u64;
        let config =
            CacheConfig { bytes, max_bytes: bytes, set_pages: 4, policy: PolicyKind::Lru, hash_mask: u64::MAX };
        Cache::new(config).expect("there is memory for four pages")
    }

    fn page(number: u64) -> (Key, KeyHash) {
        let key = Key::new(1, number).expect("small pages have keys");
        (key, key.hash())
    }

    fn fill(cache: &Cache, number: u64, value: u8) {
        let (key, hash) = page(number);
        let Begun::Yours(fill) = cache.begin_fill(key, hash) else { panic!("page {number} is not ours") };
        // SAFETY: a whole page.
        unsafe { cache.put(&fill, 0, [value; PAGE_BYTES].as_ptr(), PAGE_BYTES) };
        cache.end_fill(fill, Ok(()), false);
    }

    fn write(cache: &Cache, number: u64, value: u8) {
        let (key, hash) = page(number);
        // SAFETY: a whole page.
        let wrote = unsafe { cache.write(key, hash, 0, [value; PAGE_BYTES].as_ptr(), PAGE_BYTES, || true) };
        assert!(matches!(wrote, Wrote::Done { .. }));
    }

    /// The value that a reader gets by a page's hint.
    fn hinted(cache: &Cache, number: u64) -> Option<u8> {
        let mut bytes = [0; 8];
        // SAFETY: 8 bytes.
        let found = unsafe {
            cache.memory().read(
                page(number).0,
                (cache.memory().hint_base(1), number),
                100,
                bytes.as_mut_ptr(),
                bytes.len(),
            )
        };
        found.then_some(bytes[0])
    }

    fn frame(cache: &Cache, number: u64) -> u32 {
        cache.memory().hints.get(cache.memory().hint_base(1), number).frame()
    }

    /// A hint that is stored late names a frame that the page has left. Whatever became of the page, the reader gets
    /// nothing.
    #[test]
    fn a_late_hint_never_gives_old_bytes() {
        type CacheChange = fn(&Cache);
        let changes: [(&str, CacheChange); 4] = [
            ("another page has its frame", |cache| fill(cache, 4, 14)),
            ("it was dropped", |cache| cache.discard(1, 0)),
            ("it was forgotten", |cache| assert_eq!(cache.forget(1, 0..1), 1)),
            ("a pin keeps its old frame", |cache| {
                let ((key, hash), block) = (page(0), cache.memory().pin_block().unwrap());
                // SAFETY: the block is this thread's.
                let held = unsafe { cache.pin(key, hash, (&block, block.empty().unwrap())) }.unwrap().unwrap();
                write(cache, 0, 20);
                assert_eq!(held.bytes()[0], 10);
                assert_eq!(hinted(cache, 0), Some(20));
            }),
        ];
        for (what, change) in changes {
            let cache = cache();
            (0..4).for_each(|number| fill(&cache, number, 10 + number as u8));
            let (before, (key, _)) = (frame(&cache, 0), page(0));
            assert_eq!(hinted(&cache, 0), Some(10));
            let proof = cache.memory().occupants.look(Hint::of(before), key).unwrap();
            change(&cache);
            cache.memory().hints.set(key, before);
            assert_eq!(hinted(&cache, 0), None, "{what}");
            assert!(!proof.holds(), "{what}");
        }
    }

    /// A page that leaves its frame and returns to it does not deceive a reader that began before.
    #[test]
    fn a_page_that_returns_to_its_frame_has_another_version() {
        let cache = cache();
        fill(&cache, 0, 1);
        let (before, (key, _)) = (frame(&cache, 0), page(0));
        let proof = cache.memory().occupants.look(Hint::of(before), key).unwrap();
        cache.discard(1, 0);
        fill(&cache, 0, 2);
        assert_eq!((frame(&cache, 0), hinted(&cache, 0)), (before, Some(2)));
        assert!(!proof.holds());
    }
}

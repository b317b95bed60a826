//! Models of the cache's protocols. Loom runs every interleaving, up to a number of preemptions, and tries every value
//! that a relaxed load may return.
//!
//! A frame has only two words here. Loom may separate the copies of the two, so that a test sees a mixture. Each model
//! names its rules, and the changes that made it fail.

use std::sync::Arc;

use loom::thread;

use super::key::{Key, KeyHash};
use super::policy::PolicyKind;
use super::{Begun, Cache, CacheConfig, Fill, Flush, Wrote};
use crate::drive::{Failure, Fault, PAGE_BYTES};
use crate::engine::Op;
use crate::sys::sync::Ordering::Relaxed;
use crate::sys::sync::{AtomicU32, AtomicU64};

/// Explores up to three preemptions, with room for calls to the cache, each of some hundred steps.
fn model(body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.max_branches = 20_000;
    builder.check(body);
}

/// A cache of one set of four pages.
fn cache() -> Arc<Cache> {
    let bytes = 4 * PAGE_BYTES as u64;
    let config = CacheConfig { bytes, max_bytes: bytes, set_pages: 4, policy: PolicyKind::Lru, hash_mask: u64::MAX };
    Arc::new(Cache::new(config).unwrap())
}

fn page(number: u64) -> (Key, KeyHash) {
    let key = Key::new(1, number).unwrap();
    (key, key.hash())
}

/// A page with `value` in both words.
struct Words([u64; 2]);

impl Words {
    fn of(value: u64) -> Words {
        Words([value; 2])
    }

    fn bytes(&self) -> *const u8 {
        self.0.as_ptr().cast()
    }

    /// The value, if the page is whole.
    fn value(&self) -> u64 {
        assert_eq!(self.0[0], self.0[1], "a mixture");
        self.0[0]
    }
}

impl Cache {
    fn m_write(&self, number: u64, value: u64) -> Wrote {
        let (key, hash) = page(number);
        // SAFETY: a model's frame has two words, and only they are copied.
        unsafe { self.write(key, hash, 0, Words::of(value).bytes(), PAGE_BYTES, || true) }
    }

    fn m_read(&self, number: u64) -> Option<u64> {
        let (key, hash) = page(number);
        let mut words = Words::of(u64::MAX);
        let (hint, to) = ((self.memory.hint_base(1), number), words.0.as_mut_ptr().cast());
        // SAFETY: as above.
        let found =
            unsafe { self.memory.read(key, hint, 0, to, PAGE_BYTES) || self.read(key, hash, 0, to, PAGE_BYTES) };
        found.then(|| words.value())
    }

    fn m_put(&self, fill: &Fill, value: u64) {
        // SAFETY: as above.
        unsafe { self.put(fill, 0, Words::of(value).bytes(), PAGE_BYTES) };
    }

    /// Fills a page.
    fn m_fill(&self, number: u64, value: u64) {
        let (key, hash) = page(number);
        let Begun::Yours(fill) = self.begin_fill(key, hash) else { panic!("page {number} is not ours") };
        self.m_put(&fill, value);
        self.end_fill(fill, Ok(()), false);
    }

    /// Begins a flush. Returns the copied value, or `None` if no flush began.
    fn m_begin_flush(&self, number: u64) -> Option<u64> {
        let mut words = Words::of(u64::MAX);
        // SAFETY: as above.
        let begun = unsafe { self.begin_flush(page(number).0, words.0.as_mut_ptr().cast()) };
        (begun == Flush::Begun).then(|| words.value())
    }
}

impl Cache {
    /// Evicts a page, if it is clean.
    fn m_drop_clean(&self, number: u64) {
        let (key, hash) = page(number);
        let (set_index, mut set) = self.directory.lock(hash);
        if let Some(way) = set.find(key, hash)
            && let Some((way, _)) = self.evict(set_index, &mut set, 1 << way, hash)
        {
            self.frames.give(set.frame(way));
        }
    }
}

fn failure() -> Failure {
    Failure { op: Op::Read, key: 0, offset: 0, fault: Fault::Errno(5) }
}

/// Rules 1, 2 and 5 of `occupants`, rule 1 of the cache. A reader that believes its copy, made by hint or by set, has
/// the page's own bytes, whole. Meanwhile another page gets the page's frame, and a thread fills it without a lock.
///
/// Seen to fail without the fence of `Proof::holds`, and without that of `begin_change`. Seen to fail when a version
/// was loaded or stored with Relaxed, and when a version was used twice. Seen to fail when a reader did not check the
/// key, or whether the frame is changing.
#[test]
fn loom_cache_look_up_against_refill() {
    model(|| {
        let cache = cache();
        (0..4).for_each(|number| cache.m_fill(number, 10 + number));
        let evictor = thread::spawn({
            let cache = Arc::clone(&cache);
            // The oldest page, 0, goes.
            move || cache.m_fill(4, 14)
        });
        if let Some(value) = cache.m_read(0) {
            assert_eq!(value, 10);
        }
        evictor.join().unwrap();
        assert_eq!(cache.m_read(0), None);
        assert_eq!(cache.m_read(4), Some(14));
    });
}

/// The same against a write to the page: the reader gets the bytes from before or after the write, never some of each.
/// Seen to fail as above.
#[test]
fn loom_cache_look_up_against_write() {
    model(|| {
        let cache = cache();
        cache.m_fill(0, 1);
        let writer = thread::spawn({
            let cache = Arc::clone(&cache);
            move || assert!(matches!(cache.m_write(0, 2), Wrote::Done { dirty: 1, .. }))
        });
        let seen = cache.m_read(0);
        assert!(matches!(seen, None | Some(1 | 2)), "{seen:?}");
        writer.join().unwrap();
        assert_eq!(cache.m_read(0), Some(2));
    });
}

/// Rules 1 and 2 of `wait`, rule 3 of the cache. Of two threads that ask for a page, one fills it. The other is told
/// the outcome, also a failure, and neither hangs (loom would report it).
///
/// Seen to fail when one hold of the set's lock found the page busy and a later hold entered the waiter.
#[test]
fn loom_cache_fill_and_follower() {
    for outcome in [Ok(()), Err(failure())] {
        model(move || {
            let cache = cache();
            let ask = move |cache: Arc<Cache>| {
                let (key, hash) = page(7);
                match cache.begin_fill(key, hash) {
                    Begun::Yours(fill) => {
                        cache.m_put(&fill, 17);
                        cache.end_fill(fill, outcome, false);
                        1
                    }
                    Begun::Present => 0,
                    Begun::Busy => {
                        if let Some(waiter) = cache.waiter(key, hash, false) {
                            assert_eq!(waiter.wait().is_ok(), outcome.is_ok());
                        }
                        0
                    }
                    Begun::Full => panic!("three ways are free"),
                }
            };
            let other = thread::spawn({
                let cache = Arc::clone(&cache);
                move || ask(cache)
            });
            let fills = ask(Arc::clone(&cache)) + other.join().unwrap();
            assert!(fills == 1 || (fills == 2 && outcome.is_err()), "{fills} fills");
            assert_eq!(cache.m_read(7), outcome.is_ok().then_some(17));
        });
    }
}

/// Rule 4 of `wait`: while a thread reads a page past its set, no other thread works on the page. Seen to fail as
/// above.
#[test]
fn loom_cache_bypass_and_follower() {
    model(|| {
        let cache = cache();
        let at_it = Arc::new(AtomicU32::new(0));
        let ask = move |cache: Arc<Cache>, at_it: Arc<AtomicU32>| {
            let (key, hash) = page(7);
            if cache.begin_bypass(key, hash) {
                assert_eq!(at_it.fetch_add(1, Relaxed), 0);
                at_it.fetch_sub(1, Relaxed);
                cache.end_bypass(key, hash, Ok(()));
            } else if let Some(waiter) = cache.waiter(key, hash, false) {
                waiter.wait().unwrap();
            }
        };
        let other = thread::spawn({
            let (cache, at_it) = (Arc::clone(&cache), Arc::clone(&at_it));
            move || ask(cache, at_it)
        });
        ask(Arc::clone(&cache), at_it);
        other.join().unwrap();
        let (key, hash) = page(7);
        assert!(matches!(cache.begin_fill(key, hash), Begun::Yours(_)), "the page is in transit for ever");
    });
}

/// Rule 2 of the cache. A page that is written to during its flush is dirty afterwards, unless the flush wrote the new
/// bytes.
///
/// Seen to fail when the end of the flush cleared the dirty bit.
#[test]
fn loom_cache_write_against_flush() {
    for outcome in [Ok(()), Err(failure())] {
        model(move || {
            let cache = cache();
            assert!(matches!(cache.m_write(3, 1), Wrote::Done { dirty: 1, .. }));
            let flusher = thread::spawn({
                let cache = Arc::clone(&cache);
                move || {
                    let copied = cache.m_begin_flush(3).unwrap();
                    cache.end_flush(page(3).0, outcome);
                    if outcome.is_ok() { copied } else { 0 }
                }
            });
            assert!(matches!(cache.m_write(3, 2), Wrote::Done { dirty: 1, .. }));
            let drive = flusher.join().unwrap();
            assert_eq!(cache.m_read(3), Some(2));
            let left = cache.m_begin_flush(3);
            assert_eq!(left, (drive != 2).then_some(2), "the drive has {drive}");
            assert_eq!(cache.dirty(), u64::from(left.is_some()));
        });
    }
}

/// A sync that finds no dirty page sees the flusher's earlier note that a drive must make bytes durable.
///
/// Seen to fail when the count of dirty pages or the list of dirty sets was read with Relaxed, and when a set's masks
/// were read without its version.
#[test]
fn loom_cache_sync_sees_the_flush() {
    model(|| {
        let cache = cache();
        let noted = Arc::new(AtomicU32::new(0));
        assert!(matches!(cache.m_write(3, 1), Wrote::Done { dirty: 1, .. }));
        let flusher = thread::spawn({
            let (cache, noted) = (Arc::clone(&cache), Arc::clone(&noted));
            move || {
                cache.m_begin_flush(3).unwrap();
                noted.store(1, Relaxed);
                cache.end_flush(page(3).0, Ok(()));
            }
        });
        if cache.dirty_of(1).is_empty() {
            assert_eq!(noted.load(Relaxed), 1);
        }
        flusher.join().unwrap();
    });
}

/// Two threads sync. At the end of each the drive has the page, whichever of them flushed it. Seen to fail as the two
/// tests above.
#[test]
fn loom_cache_two_flushers() {
    model(|| {
        let cache = cache();
        let drive = Arc::new(AtomicU64::new(0));
        assert!(matches!(cache.m_write(3, 1), Wrote::Done { dirty: 1, .. }));
        let flush = |cache: &Cache, drive: &AtomicU64| {
            let mut words = Words::of(0);
            let (key, hash) = page(3);
            // As `flush_all` does.
            loop {
                // SAFETY: two words are all that is copied.
                match unsafe { cache.begin_flush(key, words.0.as_mut_ptr().cast()) } {
                    Flush::Begun => {
                        drive.fetch_max(words.value(), Relaxed);
                        cache.end_flush(key, Ok(()));
                        break;
                    }
                    Flush::Clean => break,
                    Flush::Busy => {
                        if let Some(waiter) = cache.waiter(key, hash, true) {
                            waiter.wait().unwrap();
                        }
                    }
                }
            }
        };
        let other = thread::spawn({
            let (cache, drive) = (Arc::clone(&cache), Arc::clone(&drive));
            move || flush(&cache, &drive)
        });
        assert!(matches!(cache.m_write(3, 2), Wrote::Done { dirty: 1, .. }));
        flush(&cache, &drive);
        assert_eq!(drive.load(Relaxed), 2);
        other.join().unwrap();
    });
}

/// Two threads each write a word of a page that was never on its drive. The page leaves the cache between the two
/// writes. The second thread does not take its other word for zeroes.
///
/// Seen to fail when `fresh` was asked before the lock.
#[test]
fn loom_cache_fresh_page_of_two_writers() {
    model(|| {
        let cache = cache();
        let (fresh, drive) = (Arc::new(AtomicU64::new(1)), Arc::new([AtomicU64::new(0), AtomicU64::new(0)]));
        let write = |cache: &Cache, fresh: &AtomicU64, drive: &[AtomicU64; 2], word: usize| {
            let (key, hash) = page(3);
            let value = [8u64];
            loop {
                // SAFETY: a word of a frame.
                let wrote =
                    unsafe { cache.write(key, hash, word * 8, value.as_ptr().cast(), 8, || fresh.load(Relaxed) == 1) };
                match wrote {
                    Wrote::Done { .. } => return,
                    Wrote::Yours(fill) => {
                        let words = [0, 1].map(|index: usize| drive[index].load(Relaxed));
                        // SAFETY: two words are all that is copied.
                        unsafe {
                            cache.put(&fill, 0, words.as_ptr().cast(), PAGE_BYTES);
                            cache.put(&fill, word * 8, value.as_ptr().cast(), 8);
                        }
                        cache.end_fill(fill, Ok(()), true);
                        return;
                    }
                    Wrote::Busy => thread::yield_now(),
                    Wrote::Full => panic!("three ways are free"),
                }
            }
        };
        let other = thread::spawn({
            let (cache, fresh, drive) = (Arc::clone(&cache), Arc::clone(&fresh), Arc::clone(&drive));
            move || {
                write(&cache, &fresh, &drive, 0);
                // The page is flushed and evicted.
                let mut words = Words::of(0);
                // SAFETY: two words are all that is copied.
                if unsafe { cache.begin_flush(page(3).0, words.0.as_mut_ptr().cast()) } == Flush::Begun {
                    fresh.store(0, Relaxed);
                    (0..2).for_each(|index| drive[index].store(words.0[index], Relaxed));
                    cache.end_flush(page(3).0, Ok(()));
                }
                cache.m_drop_clean(3);
            }
        });
        write(&cache, &fresh, &drive, 1);
        other.join().unwrap();
        let frame = cache.directory.find(page(3).0, page(3).1).map(|seen| seen.frame);
        let words = [0, 1].map(|index| match frame {
            Some(frame) => cache.memory.word(frame, index),
            None => drive[index].load(Relaxed),
        });
        assert_eq!(words, [8, 8]);
    });
}

/// Rules 1 and 2 of `pins`: the bytes of a pin stay the same when the page is written to.
///
/// Seen to fail without the light fence, without the heavy one, and when ways were unmarked without a look at the
/// slots.
#[test]
fn loom_cache_pin_against_write() {
    pin_against(|cache| assert!(matches!(cache.m_write(0, 2), Wrote::Done { dirty: 4, .. })));
}

/// The same when room is needed. The set's other pages are dirty, so only the page that may be pinned can be evicted.
/// Seen to fail as above.
#[test]
fn loom_cache_pin_against_eviction() {
    pin_against(|cache| {
        let (key, hash) = page(4);
        match cache.begin_fill(key, hash) {
            Begun::Yours(fill) => {
                cache.m_put(&fill, 14);
                cache.end_fill(fill, Ok(()), false);
            }
            Begun::Full => {}
            other => panic!("{other:?}"),
        }
    });
}

fn pin_against(what: fn(&Cache)) {
    model(move || {
        let cache = cache();
        cache.m_fill(0, 1);
        (1..4).for_each(|number| assert!(matches!(cache.m_write(number, 9), Wrote::Done { .. })));
        let (key, hash) = page(0);
        cache.mark(key, hash);
        let block = cache.memory.pin_block().unwrap();
        let other = thread::spawn({
            let cache = Arc::clone(&cache);
            move || what(&cache)
        });
        // SAFETY: the block is ours.
        let pinned = unsafe { cache.pin(key, hash, (&block, block.empty().unwrap())) };
        if let Ok(Some(held)) = pinned {
            let frame = held.page.addr() as u32;
            let words = [0, 1].map(|index| cache.memory.word(frame, index));
            assert!(words == [1, 1] || words == [2, 2], "{words:?}");
            assert_eq!([0, 1].map(|index| cache.memory.word(frame, index)), words, "it changed");
        }
        other.join().unwrap();
    });
}

/// Rule 5 of `pins`: one thread pins a page in its block, while another takes the block away and then changes the page.
/// The pin's frame stays the same, or there is no pin.
///
/// Seen to fail when a pin did not check whether its block was gone, and without the heavy fence of `take_away`.
#[test]
fn loom_cache_pin_against_taking_away() {
    model(|| {
        let cache = cache();
        cache.m_fill(0, 1);
        (1..4).for_each(|number| assert!(matches!(cache.m_write(number, 9), Wrote::Done { .. })));
        let (key, hash) = page(0);
        cache.mark(key, hash);
        assert_eq!(cache.memory.pins_max(), 1, "no other slot is to be had");
        let block = cache.memory.pin_block().unwrap();
        let other = thread::spawn({
            let cache = Arc::clone(&cache);
            move || {
                let taken = cache.memory.pin_block();
                // The new block is empty, so a pinned frame can only be in the block that was taken away.
                assert!(matches!(cache.m_write(0, 2), Wrote::Done { .. } | Wrote::Full));
                drop(taken);
            }
        });
        // SAFETY: the block is ours.
        let pinned = unsafe { cache.pin(key, hash, (&block, block.empty().unwrap())) };
        if let Ok(Some(held)) = pinned {
            let frame = held.page.addr() as u32;
            let words = [0, 1].map(|index| cache.memory.word(frame, index));
            assert!(words == [1, 1] || words == [2, 2], "{words:?}");
            assert_eq!([0, 1].map(|index| cache.memory.word(frame, index)), words, "a pinned page changed");
        }
        other.join().unwrap();
    });
}

/// A page is written to while its pin ends, and no frame is free. The write does not take the page's own frame for
/// another page's.
///
/// Seen to fail when `evict_for_frame` looked among all ways.
#[test]
fn loom_cache_write_while_a_pin_ends() {
    model(|| {
        let cache = cache();
        cache.m_fill(0, 1);
        (1..4).for_each(|number| assert!(matches!(cache.m_write(number, 9), Wrote::Done { .. })));
        while cache.frames.take().is_some() {}
        let (key, hash) = page(0);
        let block = cache.memory.pin_block().unwrap();
        let slot = block.empty().unwrap();
        // SAFETY: the block is ours.
        let held = unsafe { cache.pin(key, hash, (&block, slot)) }.unwrap().unwrap();
        std::mem::forget(held);
        let writer = thread::spawn({
            let cache = Arc::clone(&cache);
            move || matches!(cache.m_write(0, 2), Wrote::Done { .. })
        });
        super::pins::end(slot);
        let wrote = writer.join().unwrap();
        // If the frame was pinned, the page has left the cache, and the write goes past the cache. The frame is freed
        // once.
        assert_eq!(cache.m_read(0), wrote.then_some(2));
        assert_eq!(cache.frames.take().is_some(), !wrote, "a frame is in a set and free");
        assert_eq!(cache.frames.take(), None, "a frame is in a set and free");
    });
}

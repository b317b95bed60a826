//! Pages during splits and joins, and the frames that they leave.

#![allow(clippy::unwrap_used)]

use super::*;
use crate::cache::key::KeyHash;
use crate::cache::policy::PolicyKind;
use crate::cache::{Begun, CacheConfig, Flush, Wrote};

const SET_BYTES: u64 = 4 * PAGE_BYTES as u64;

/// A cache of sets of 4. It may have up to 200 sets.
fn cache(sets: u64, policy: PolicyKind) -> Cache {
    let config =
        CacheConfig { bytes: sets * SET_BYTES, max_bytes: 200 * SET_BYTES, set_pages: 4, policy, hash_mask: u64::MAX };
    Cache::new(config).unwrap()
}

fn key(page: u64) -> (Key, KeyHash) {
    let key = Key::new(1, page).unwrap();
    (key, key.hash())
}

fn bytes(page: u64) -> [u8; PAGE_BYTES] {
    let mut bytes = [page as u8 ^ 0x5A; PAGE_BYTES];
    bytes[..8].copy_from_slice(&page.to_le_bytes());
    bytes[PAGE_BYTES - 8..].copy_from_slice(&page.to_le_bytes());
    bytes
}

fn write(cache: &Cache, page: u64) -> Wrote {
    let (key, hash) = key(page);
    let from = bytes(page);
    // SAFETY: a whole page of ours.
    unsafe { cache.write(key, hash, 0, from.as_ptr(), PAGE_BYTES, || true) }
}

fn flush(cache: &Cache, key: Key) {
    let mut copy = [0; PAGE_BYTES];
    // SAFETY: a whole page of ours.
    assert_eq!(unsafe { cache.begin_flush(key, copy.as_mut_ptr()) }, Flush::Begun);
    assert_eq!(copy, bytes(key.page()));
    cache.end_flush(key, Ok(()));
}

fn write_clean(cache: &Cache, page: u64) {
    assert!(matches!(write(cache, page), Wrote::Done { .. }), "page {page}");
    flush(cache, key(page).0);
}

/// Whether a page is in the cache. Checks its bytes if it is.
fn is_there(cache: &Cache, page: u64) -> bool {
    let (key, hash) = key(page);
    let mut to = [0; PAGE_BYTES];
    // SAFETY: a whole page of ours.
    let found = unsafe { cache.read(key, hash, 0, to.as_mut_ptr(), PAGE_BYTES) };
    assert!(!found || to == bytes(page), "page {page}");
    found
}

fn resize(cache: &Cache, sets: u64) {
    let (mut resize, mut dirty) = (cache.begin_resize(sets * SET_BYTES), Vec::new());
    loop {
        match resize.go_on(3, &mut dirty) {
            Progress::Done => break,
            Progress::More => assert!(dirty.is_empty()),
            Progress::Blocked => {
                assert!(!dirty.is_empty(), "no other thread is here");
                dirty.drain(..).for_each(|key| flush(cache, key));
            }
        }
    }
    assert_eq!(u64::from(cache.directory.sets()), sets);
}

/// Each cached page has a frame below the limit, and is in its place. No two pages have the same frame.
fn check_frames(cache: &Cache) -> usize {
    let mut frames = Vec::new();
    for index in 0..cache.directory.sets_max() {
        let set = cache.directory.set(SetIndex(index)).lock();
        for way in ways_of(taken(&set)) {
            assert_eq!(cache.directory.set_index(cache.directory.hash(set.key(way))), SetIndex(index));
            frames.push(set.frame(way));
        }
    }
    let count = frames.len();
    frames.sort_unstable();
    frames.dedup();
    assert_eq!(frames.len(), count);
    assert!(frames.last().is_none_or(|frame| *frame < cache.frames.limit()));
    count
}

#[test]
fn pages_stay_through_growing_and_shrinking() {
    for policy in PolicyKind::all() {
        for sets in [1, 7, 40] {
            let cache = cache(sets, policy);
            (0..1000).for_each(|page| write_clean(&cache, page));
            let there = |cache: &Cache| (0..2000).filter(|&page| is_there(cache, page)).collect::<Vec<_>>();
            let before = there(&cache);
            for to in [sets + 1, sets + 2, 3 * sets, 111, 200] {
                resize(&cache, to);
                assert_eq!(there(&cache), before, "{policy}: {sets} -> {to}");
                check_frames(&cache);
            }
            // Pages go to the new sets, too.
            (1000..2000).for_each(|page| write_clean(&cache, page));
            assert!(check_frames(&cache) > 500, "{policy}");
            let mut before = there(&cache);
            for to in [199, 120, 39, 6, 2, 1, 200] {
                resize(&cache, to);
                let after = there(&cache);
                assert!(after.iter().all(|page| before.contains(page)));
                assert!(after.len() >= (to as usize * 4).min(before.len()) / 2, "{policy}: {} at {to}", after.len());
                assert_eq!(check_frames(&cache), after.len());
                before = after;
            }
        }
    }
}

/// Dirty pages stay dirty, or are named as ones to flush.
#[test]
fn dirty_pages_are_not_lost() {
    let cache = cache(50, PolicyKind::Lru);
    let mut written = Vec::new();
    for page in 0..200 {
        match write(&cache, page) {
            Wrote::Done { .. } => written.push(page),
            Wrote::Full => {}
            other => panic!("{other:?}"),
        }
    }
    let dirty = |cache: &Cache| cache.dirty_of(1).iter().map(|key| key.page()).collect::<Vec<_>>();
    assert_eq!((dirty(&cache), cache.dirty()), (written.clone(), written.len() as u64));
    resize(&cache, 173);
    assert_eq!((dirty(&cache), cache.dirty()), (written.clone(), written.len() as u64));
    // `resize` flushes only the pages that are in its way.
    resize(&cache, 20);
    let left = dirty(&cache);
    assert!(!left.is_empty() && left.len() < written.len());
    assert_eq!(left.len() as u64, cache.dirty());
    assert!(left.iter().all(|&page| is_there(&cache, page)));
    cache.discard(1, 0);
    assert_eq!((cache.dirty(), check_frames(&cache)), (0, 0));
}

/// Fills, flushes and bypasses go on through a resize, and every waiter is told.
#[test]
fn work_under_way_ends_well() {
    for (from, to) in [(1, 150), (150, 9), (5, 90), (90, 5)] {
        let cache = cache(from, PolicyKind::Duel);
        let mut dirty = Vec::new();
        let fills: Vec<_> = (0..4)
            .filter_map(|page| match cache.begin_fill(key(page).0, key(page).1) {
                Begun::Yours(fill) => Some((page, fill)),
                _ => None,
            })
            .collect();
        let passing: Vec<_> = (10..20).filter(|&page| cache.begin_bypass(key(page).0, key(page).1)).collect();
        let flushing = (20..40).find(|&page| matches!(write(&cache, page), Wrote::Done { .. }));
        let mut copy = [0; PAGE_BYTES];
        if let Some(page) = flushing {
            // SAFETY: a whole page of ours.
            assert_eq!(unsafe { cache.begin_flush(key(page).0, copy.as_mut_ptr()) }, Flush::Begun);
        }
        let pages = fills.iter().map(|(page, _)| *page).chain(passing.iter().copied()).chain(flushing);
        let waiters: Vec<_> = pages.map(|page| cache.waiter(key(page).0, key(page).1, true).unwrap()).collect();
        assert_eq!(passing.len(), 10);

        let mut resize = cache.begin_resize(to * SET_BYTES);
        for _ in 0..100 {
            if resize.go_on(10, &mut dirty) == Progress::Done {
                break;
            }
        }
        assert_eq!(dirty, [], "nothing is dirty and not flushing");
        assert!(u64::from(cache.directory.sets()) == to, "{from} -> {to}: there is room for all");
        for (page, fill) in fills {
            // SAFETY: the frame is a page, and ours.
            unsafe { std::ptr::copy_nonoverlapping(bytes(page).as_ptr(), cache.filling(&fill), PAGE_BYTES) };
            cache.end_fill(fill, Ok(()), false);
            assert!(is_there(&cache, page));
        }
        for page in passing {
            assert!(!cache.begin_bypass(key(page).0, key(page).1), "it is in transit");
            cache.end_bypass(key(page).0, key(page).1, Ok(()));
            assert!(cache.waiter(key(page).0, key(page).1, true).is_none());
        }
        flushing.into_iter().for_each(|page| cache.end_flush(key(page).0, Ok(())));
        assert!(waiters.iter().all(|waiter| waiter.outcome() == Some(Ok(()))));
        while resize.go_on(100, &mut dirty) != Progress::Done {}
        for index in 0..cache.directory.sets_max() {
            let set = cache.directory.set(SetIndex(index)).lock();
            assert_eq!((set.waiters(), set.transit(), set.filling() | set.flushing()), (0, 0, 0));
        }
        check_frames(&cache);
    }
}

/// A pin keeps its bytes, also when its page moves to another frame. The old frame is free once the pin has ended.
#[test]
fn pinned_pages_leave_their_frames() {
    const CHUNK: usize = 16 * PAGE_BYTES;
    let cache = cache(100, PolicyKind::Lru);
    (0..300).for_each(|page| write_clean(&cache, page));
    let blocks: Vec<_> = (0..10).map(|_| cache.memory.pin_block().unwrap()).collect();
    let pinned = (0..300).rev().filter(|&page| is_there(&cache, page)).take(10).collect::<Vec<_>>();
    let pins: Vec<_> = (pinned.iter().zip(&blocks))
        // SAFETY: the blocks are ours.
        .map(|(&page, block)| unsafe { cache.pin(key(page).0, key(page).1, (block, block.empty().unwrap())) })
        .map(|pinned| pinned.unwrap().unwrap())
        .collect();
    resize(&cache, 4);
    check_frames(&cache);
    let resizing = cache.begin_resize(4 * SET_BYTES);
    let let_go = |range: std::ops::Range<usize>| assert!(range.start >= cache.used_bytes());
    let before = resizing.release(CHUNK, let_go).unwrap();
    for (pin, &page) in pins.iter().zip(&pinned) {
        assert_eq!(*pin.bytes(), bytes(page));
        is_there(&cache, page);
    }
    drop(pins);
    let after = resizing.release(CHUNK, let_go).unwrap();
    assert!(before > 0 && after > before, "{before} {after}: the chunk that was pinned is free now");
    assert_eq!(resizing.release(CHUNK, let_go).unwrap(), 0, "it is free once");
    drop(resizing);
    resize(&cache, 100);
    (0..300).for_each(|page| write_clean(&cache, page));
    assert!(check_frames(&cache) > 250);
}

/// The numbers of all frames fit their words, those of spare frames too.
#[test]
fn frames_have_numbers_of_31_bits() {
    for ways in [4, 12, 32] {
        let set_bytes = ways * PAGE_BYTES as u64;
        let (mut fits, mut refused) = (1u64, 1u64 << 40);
        while refused - fits > 1 {
            let middle = (fits + refused) / 2;
            *if super::super::most_sets(middle * set_bytes, ways).is_ok() { &mut fits } else { &mut refused } = middle;
        }
        let frames = fits * ways + (fits * ways / u64::from(super::super::SPARE_SHARE)).max(4);
        assert!(frames < 1 << 31, "{frames} frames in sets of {ways}");
        assert_eq!(u64::from(with_spare(fits * ways)), frames + 1, "they are counted from 1");
        assert!(fits * set_bytes > 7 << 40, "{fits} sets of {ways}");
    }
}

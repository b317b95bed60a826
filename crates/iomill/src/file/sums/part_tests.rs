//! The sums of a part beside its zones and heads.

#![allow(clippy::unwrap_used)]
// A list of zones may have one range.
#![allow(clippy::single_range_in_vec_init)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use super::memory::SumsMemory;
use super::page::{CHUNK_PAGES, Identity, NONE};
use super::part::{OpenSums, Opening, PartSums, Settling};
use super::zones::{Head, ZONE_CHUNKS, ZONE_PAGES};
use crate::catalog::Id;
use crate::drive::PAGE_BYTES;
use crate::sys::fs::DriveFs;
use crate::sys::real_fs::RealFs;
use crate::sys::real_fs::tests::scratch;

const PATH: &str = "some.sums";

fn identity() -> Identity {
    Identity::new(Id([9; 16]), 7)
}

/// The sums of a part of 20 zones, all of them in use.
fn opened(dir: &Path) -> OpenSums {
    opened_in(dir, PATH, &SumsMemory::beside_cache(0))
}

fn opened_in(dir: &Path, path: &str, memory: &Arc<SumsMemory>) -> OpenSums {
    opened_with(dir, path, memory, 20 * ZONE_PAGES)
}

fn opened_with(dir: &Path, path: &str, memory: &Arc<SumsMemory>, pages: u64) -> OpenSums {
    let fs: Arc<dyn DriveFs> = Arc::new(RealFs::attach(dir, true).unwrap());
    let used = if fs.open(path, crate::sys::fs::Access::READ).is_ok() { pages } else { 0 };
    PartSums::open(identity(), 0, None, &Opening { fs: &fs, path, is_writer: true, used, pages, memory }).unwrap()
}

fn none(_: u64, _: &[u8]) -> u32 {
    0
}

/// A write of a page in this epoch, with this sum.
fn write(sums: &Arc<PartSums>, page: u64, sum: u32, epoch: u64) {
    let zones = BTreeSet::from([page / ZONE_PAGES]);
    let chunk = sums.chunk(page / CHUNK_PAGES, none).unwrap();
    sums.begin(&zones, || epoch, || true).unwrap();
    chunk.set(page % CHUNK_PAGES, sum);
    sums.end(&zones, || epoch);
}

/// The heads in their two places.
fn heads(dir: &Path) -> [Option<Head>; 2] {
    let bytes = std::fs::read(dir.join("iomill").join(PATH)).unwrap();
    [0, PAGE_BYTES].map(|at| Head::decode(&identity(), 0, 20, &bytes[at..at + PAGE_BYTES]))
}

/// The marked zones of the newest head.
fn marked(dir: &Path) -> Vec<u64> {
    let newest = heads(dir).into_iter().flatten().max_by_key(|head| head.version);
    newest.unwrap().marked.into_iter().flatten().collect()
}

/// A sync makes a zone clean only if the last write to it has ended before the sync began (rule 5).
#[test]
fn a_zone_that_was_written_to_meanwhile_stays_marked() {
    let dir = scratch();
    let sums = opened(dir.path());
    write(&sums, 1, 77, 4);
    write(&sums, ZONE_PAGES + 1, 78, 5);
    assert_eq!(marked(dir.path()), [0, 1]);
    sums.settle(Settling { before: 5 }, 20 * ZONE_PAGES, none).unwrap();
    assert_eq!(marked(dir.path()), [1], "the sync of epoch 5 does not cover a write that ended in it");
    // One that has begun keeps its zone, whatever its epoch.
    let zones = BTreeSet::from([1]);
    sums.begin(&zones, || 5, || true).unwrap();
    sums.settle(Settling { before: 6 }, 20 * ZONE_PAGES, none).unwrap();
    assert_eq!(marked(dir.path()), [1]);
    sums.end(&zones, || 5);
    sums.settle(Settling { before: 6 }, 20 * ZONE_PAGES, none).unwrap();
    assert_eq!(marked(dir.path()), []);
    drop(sums);
    let sums = opened(dir.path());
    assert_eq!((sums.loaded(1, none).unwrap(), sums.loaded(ZONE_PAGES + 1, none).unwrap()), (77, 78));
}

/// A write that began before a sync and ended after its begin is not covered by it (rule 5).
#[test]
fn a_write_across_the_begin_of_a_sync_keeps_its_zone() {
    let dir = scratch();
    let sums = opened(dir.path());
    let zones = BTreeSet::from([0]);
    sums.begin(&zones, || 4, || true).unwrap();
    sums.end(&zones, || 5);
    sums.settle(Settling { before: 5 }, 20 * ZONE_PAGES, none).unwrap();
    assert_eq!(marked(dir.path()), [0]);
}

/// Sums behind the present length are written with their zone: their write may not have made the file longer yet.
#[test]
fn sums_behind_the_length_are_written_too() {
    let dir = scratch();
    let sums = opened(dir.path());
    let pages = [5, 3 * CHUNK_PAGES, ZONE_PAGES + 9];
    pages.iter().for_each(|page| write(&sums, *page, 77, 4));
    sums.settle(Settling { before: 5 }, 6, none).unwrap();
    drop(sums);
    let sums = opened(dir.path());
    for page in pages {
        assert_eq!(sums.loaded(page, none).unwrap(), 77, "page {page}");
    }
}

/// A zone that an earlier opening has left marked is clean once its pages of sums on the drive are those of its pages,
/// also if none was loaded, and if they have no sums any more.
#[test]
fn a_doubtful_zone_has_its_sums_made_anew() {
    let dir = scratch();
    let sums = opened(dir.path());
    write(&sums, 1, 77, 1);
    sums.settle(Settling { before: 2 }, 20 * ZONE_PAGES, none).unwrap();
    write(&sums, 2, 78, 3);
    drop(sums);
    let sums = opened(dir.path());
    assert!(sums.is_stale());
    // There is no part, so its pages are zeros.
    sums.settle(Settling { before: 1 }, 20 * ZONE_PAGES, none).unwrap();
    assert_eq!(marked(dir.path()), []);
    drop(sums);
    assert_eq!(opened(dir.path()).loaded(1, none).unwrap(), NONE);
}

/// Of the two heads, one is durable at any moment. A head that no fsync has covered is written over by the next one.
#[test]
fn a_durable_head_stays_until_another_is() {
    let dir = scratch();
    let sums = opened(dir.path());
    for zone in 0..5 {
        write(&sums, zone * ZONE_PAGES, 77, 2 * zone);
    }
    for round in 0..6 {
        // Makes a zone clean, without an fsync of its head.
        sums.settle(Settling { before: 2 * round + 1 }, 20 * ZONE_PAGES, none).unwrap();
        let durable = heads(dir.path()).into_iter().flatten().min_by_key(|head| head.version).unwrap();
        write(&sums, (10 + round) * ZONE_PAGES, 77, 2 * round + 10);
        let [first, second] = heads(dir.path()).map(|head| head.unwrap());
        assert!(first == durable || second == durable, "round {round}: {durable:?}, {first:?}, {second:?}");
        assert!(first.version % 2 == 0 && second.version % 2 == 1);
    }
}

/// Few pages of sums in memory, and many in use, of two parts. Those that leave memory are on the drive, so no sum is
/// lost, whenever a part is opened again.
#[test]
fn sums_that_leave_memory_are_kept() {
    const MOST: usize = 8;
    let dir = scratch();
    let mut random = fastrand::Rng::with_seed(5);
    let mut wanted = BTreeMap::new();
    for opening in 0..4 {
        let memory = SumsMemory::new(MOST);
        let parts = ["one.sums", "two.sums"].map(|path| opened_in(dir.path(), path, &memory));
        let settle = |before| {
            for part in &parts {
                part.settle(Settling { before }, 20 * ZONE_PAGES, none).unwrap();
            }
        };
        for step in 1..4000 {
            let (part, chunk) = (random.usize(0..2), random.u64(0..20 * ZONE_CHUNKS));
            let page = chunk * CHUNK_PAGES + random.u64(0..3);
            if random.bool() {
                let sum = random.u32(2..);
                write(&parts[part], page, sum, step);
                wanted.insert((part, page), sum);
            }
            let sum = parts[part].loaded(page, none).unwrap();
            assert_eq!(sum, wanted.get(&(part, page)).copied().unwrap_or(NONE), "page {page} in opening {opening}");
            let there: usize = parts.iter().map(|part| part.in_memory()).sum();
            assert!(there <= MOST, "{there} pages of sums in memory");
            if random.u8(..) == 0 {
                settle(step);
            }
        }
        settle(4000);
    }
    assert!(wanted.len() > 1000);
}

/// A page of sums that an operation holds stays in memory, and stays the one that others find.
#[test]
fn a_page_of_sums_in_use_stays() {
    let dir = scratch();
    let sums = opened_in(dir.path(), PATH, &SumsMemory::new(2));
    let held = sums.chunk(0, none).unwrap();
    for chunk in 1..100 {
        write(&sums, chunk * CHUNK_PAGES, 77, 1);
    }
    held.set(5, 78);
    assert_eq!(sums.sum(5), Some(78));
    drop(held);
    for chunk in 1..100 {
        assert_eq!(sums.loaded(chunk * CHUNK_PAGES, none).unwrap(), 77);
    }
    assert_eq!((sums.sum(5), sums.loaded(5, none).unwrap()), (None, 78));
}

/// A page of sums that was cut and loaded again has one entry in memory, however often that happens.
#[test]
fn cuts_do_not_crowd_the_memory_of_sums() {
    let dir = scratch();
    let memory = SumsMemory::new(8);
    let sums = opened_in(dir.path(), PATH, &memory);
    for round in 0..50 {
        write(&sums, 3, 77, round);
        sums.end_cut(&[0..20 * ZONE_PAGES], none).unwrap();
    }
    for chunk in 0..8 {
        write(&sums, chunk * CHUNK_PAGES, 77, 50);
    }
    (0..8).for_each(|chunk| assert_eq!(sums.loaded(chunk * CHUNK_PAGES, none).unwrap(), 77));
    assert_eq!(sums.in_memory(), 8);
}

/// A part may claim to be 4 PiB long, and each of its zones to be marked. Nothing is done or kept for each zone.
#[test]
fn a_part_of_4_pib_takes_little_memory() {
    let dir = scratch();
    let pages = (4 << 50) / PAGE_BYTES as u64;
    let memory = SumsMemory::beside_cache(0);
    drop(opened_with(dir.path(), PATH, &memory, 0));
    let all = Head { version: 9, marked: vec![0..pages / ZONE_PAGES] }.encode(&identity(), 0);
    std::fs::write(dir.path().join("iomill").join(PATH), all).unwrap();
    let sums = opened_with(dir.path(), PATH, &memory, pages);
    assert!(sums.is_stale());
    assert_eq!(sums.loaded(pages - 1, none).unwrap(), NONE);
    write(&sums, 7, 77, 1);
    // A writer of a short file clears what is past its end.
    let zones = sums.zones_of_cut(&[10..10, 20..pages], none).unwrap().unwrap();
    assert_eq!(zones, BTreeSet::from([0]));
    sums.end_cut(&[10..10, 20..pages], none).unwrap();
    assert_eq!(sums.loaded(7, none).unwrap(), 77);
}

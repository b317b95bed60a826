//! Gathers and streams return the bytes of the origin, for any state of the cache.

use std::sync::Arc;

use futures_util::StreamExt;
use proptest::prelude::*;

use super::object_store::memory::InMemory;
use super::object_store::path::Path;
use super::object_store::{GetOptions, GetRange, ObjectStore, ObjectStoreExt};
use super::{GRANULE, Rig, expected, random, rows};

const LEN: u64 = 300_001;

fn a_range() -> impl Strategy<Value = std::ops::Range<u64>> {
    // Empty ones, within pages, across pages and granules, and up to the end.
    (0..=LEN, prop_oneof![Just(0), 1..100u64, 1..9000u64, 1..LEN])
        .prop_map(|(start, len)| start..(start + len).min(LEN))
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    futures_executor::block_on(future)
}

/// Each granule length, on an executor without a runtime. More granules are cached from case to case.
#[test]
fn gathers_are_those_of_the_origin() {
    for granule in [4096, 16_384, 65_536] {
        let rig = Rig::with(|options| options.granule_bytes(granule));
        let (path, bytes) = (Path::from("object"), random(LEN as usize, 5));
        block_on(rig.behind("object", bytes.clone()));
        let config = ProptestConfig { cases: 40, failure_persistence: None, ..Default::default() };
        proptest!(config, |(ranges in prop::collection::vec(a_range(), 0..20), flush in any::<bool>())| {
            let got = block_on(rig.store.get_ranges(&path, &ranges)).unwrap();
            prop_assert_eq!(got, expected(&bytes, &ranges));
            if flush {
                rig.cache.flush();
            }
            for range in ranges.iter().filter(|range| !range.is_empty()).take(3) {
                let got = block_on(rig.store.get_range(&path, range.clone())).unwrap();
                prop_assert_eq!(&got[..], &bytes[range.start as usize..range.end as usize]);
                for wanted in [GetRange::Offset(range.start), GetRange::Suffix(range.end)] {
                    let options = GetOptions::new().with_range(Some(wanted));
                    let got = block_on(block_on(rig.store.get_opts(&path, options.clone())).unwrap().bytes()).unwrap();
                    let origin = block_on(block_on(rig.memory.get_opts(&path, options)).unwrap().bytes()).unwrap();
                    prop_assert_eq!(got, origin);
                }
            }
        });
        assert!(rig.cache.counters().hits > 0);
        assert_eq!(rig.cache.counters().misses_wrong, 0);
    }
}

#[tokio::test]
async fn what_was_read_once_comes_from_the_drives_also_after_a_new_opening() {
    let rig = Rig::immutable();
    let bytes = random(4 << 20, 1);
    rig.behind("a", bytes.clone()).await;
    let wanted = rows(bytes.len() as u64);
    assert_eq!(rig.ranges("a", &wanted).await.unwrap(), expected(&bytes, &wanted));
    rig.cache.flush();
    let (before, asked) = (rig.cache.counters(), rig.scripted.counts());
    assert_eq!(rig.ranges("a", &wanted).await.unwrap(), expected(&bytes, &wanted));
    assert_eq!(rig.since(&before).hits, wanted.len() as u64);
    assert_eq!(rig.scripted.counts(), asked, "a hit asks the origin for nothing");

    // With the earlier index, and then with one that is made from the summaries.
    let rig = rig.reopened(|options| options, |_| {});
    let asked = rig.scripted.counts();
    assert_eq!(rig.ranges("a", &wanted).await.unwrap(), expected(&bytes, &wanted));
    assert_eq!(rig.scripted.counts(), (asked.0, asked.1 + 1), "only the version is asked for");
    let rig = rig.reopened(|options| options, super::forget_index);
    let before = rig.cache.counters();
    assert_eq!(rig.ranges("a", &wanted).await.unwrap(), expected(&bytes, &wanted));
    assert!(rig.since(&before).hits as usize >= wanted.len() - (2 << 20) / GRANULE as usize);
    assert_eq!(rig.since(&before).gets, 1, "the first GET learns the version, and all else is there");
}

#[tokio::test]
async fn only_granules_that_were_asked_for_are_fetched() {
    let rig = Rig::immutable();
    let bytes = random(8 << 20, 1);
    rig.behind("a", bytes.clone()).await;
    let wanted: Vec<_> = (0..40u64).map(|n| n * 200_000..n * 200_000 + 512).collect();
    assert_eq!(rig.ranges("a", &wanted).await.unwrap(), expected(&bytes, &wanted));
    let counters = rig.cache.counters();
    assert!(counters.bytes_fetched <= 41 * 2 * GRANULE, "{counters:?}");
    assert_eq!(counters.bytes_asked, 40 * 512);
    assert!(counters.gets <= 41, "{counters:?}");
}

#[tokio::test]
async fn neighbours_are_one_get() {
    let rig = Rig::immutable();
    rig.behind("a", random(8 << 20, 1)).await;
    // What is known of the object comes first.
    rig.ranges("a", &[0..1]).await.unwrap();
    rig.scripted.asked();
    rig.ranges("a", &[20 * GRANULE..20 * GRANULE + 5, 21 * GRANULE..22 * GRANULE, 23 * GRANULE..23 * GRANULE + 1])
        .await
        .unwrap();
    assert_eq!(rig.scripted.asked(), [20 * GRANULE..24 * GRANULE]);
}

#[tokio::test]
async fn a_range_that_ends_behind_the_object_is_cut_and_one_behind_it_is_an_error() {
    let rig = Rig::new();
    rig.behind("a", random(LEN as usize, 2)).await;
    rig.behind("empty", Vec::new()).await;
    for _ in 0..2 {
        let got = rig.ranges("a", &[LEN - 1..LEN + 5, 0..3]).await.unwrap();
        assert_eq!(got.iter().map(|bytes| bytes.len()).collect::<Vec<_>>(), [1, 3]);
        assert_eq!(rig.ranges("a", &[]).await.unwrap().len(), 0);
        #[expect(clippy::reversed_empty_ranges, reason = "the range is wrong on purpose")]
        let wrong = [LEN..LEN + 1, 1 << 40..1 << 41, 7..6];
        for wrong in wrong {
            assert!(rig.ranges("a", &[0..1, wrong.clone()]).await.is_err(), "{wrong:?}");
            assert!(rig.ranges("a", std::slice::from_ref(&wrong)).await.is_err(), "{wrong:?}");
        }
        assert_eq!(rig.store.get(&Path::from("empty")).await.unwrap().bytes().await.unwrap().len(), 0);
        assert!(rig.ranges("none", &[0..1]).await.is_err());
        rig.cache.flush();
    }
}

/// A long object is read in pieces, all of one content.
#[tokio::test]
async fn a_long_object_comes_in_pieces() {
    let rig = Rig::immutable();
    let bytes = random(11_000_001, 9);
    rig.behind("long", bytes.clone()).await;
    for range in [0..bytes.len(), 4_000_001..bytes.len() - 3, 5..8 << 20] {
        let options = GetOptions::new().with_range(Some(range.start as u64..range.end as u64));
        let got = rig.store.get_opts(&Path::from("long"), options).await.unwrap();
        assert_eq!(got.range, range.start as u64..range.end as u64);
        let mut stream = got.into_stream();
        let mut at = range.start;
        while let Some(piece) = stream.next().await {
            let piece = piece.unwrap();
            assert!(piece.len() <= 2 << 20 && bytes[at..][..piece.len()] == piece);
            at += piece.len();
        }
        assert_eq!(at, range.end);
    }
}

/// Two origins over one cache do not see each other's objects.
#[tokio::test]
async fn origins_are_kept_apart() {
    let rig = Rig::immutable();
    let other = Arc::new(InMemory::new());
    let (one, two) = (random(100_000, 1), random(100_000, 2));
    rig.behind("a", one.clone()).await;
    other.put(&Path::from("a"), two.clone().into()).await.unwrap();
    // Both have the same key, length and etag.
    let store = rig.cache.over(other as Arc<dyn ObjectStore>, "other://");
    for _ in 0..2 {
        assert_eq!(rig.ranges("a", &[5..90_000]).await.unwrap()[0], one[5..90_000]);
        assert_eq!(store.get_range(&Path::from("a"), 5..90_000).await.unwrap(), two[5..90_000]);
        rig.cache.flush();
    }
}

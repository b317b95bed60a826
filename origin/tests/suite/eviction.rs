//! A cache that is smaller than the data: it keeps granules in use, and writes few bytes twice.

use iomill_origin::Revalidate;

use super::{GRANULE, Rig, expected, random};

/// Two drives of 4 regions of 1 MiB.
fn small() -> Rig {
    Rig::with(|options| options.bytes(8 << 20).revalidate("", Revalidate::Never))
}

/// Reads a row of each granule, a few at a time.
async fn read_all(rig: &Rig, bytes: &[u8], path: &str) {
    for begin in (0..bytes.len() as u64).step_by(1 << 20) {
        let wanted: Vec<_> = (begin..begin + (1 << 20)).step_by(GRANULE as usize).map(|at| at..at + 100).collect();
        assert_eq!(rig.ranges(path, &wanted).await.unwrap(), expected(bytes, &wanted));
        rig.cache.flush();
    }
}

/// A few granules of each region are in use. They are written again with each region that is emptied, and stay.
#[tokio::test]
async fn what_is_in_use_stays_while_more_passes_than_the_cache_holds() {
    let rig = small();
    let bytes = random(40 << 20, 2);
    rig.behind("a", bytes.clone()).await;
    let rows_of = |range: std::ops::Range<u64>, step: u64| -> Vec<_> {
        range.step_by((step * GRANULE) as usize).map(|at| at..at + 100).collect()
    };
    let hot = rows_of(0..6 << 20, 24);
    let (mut hits, mut reads) = (0, 0);
    let before = rig.cache.counters();
    for begin in (0..40u64 << 20).step_by(1 << 19) {
        let cold = rows_of(begin..begin + (1 << 19), 1);
        assert_eq!(rig.ranges("a", &cold).await.unwrap(), expected(&bytes, &cold));
        rig.cache.flush();
        if begin >= 6 << 20 {
            let earlier = rig.cache.counters();
            assert_eq!(rig.ranges("a", &hot).await.unwrap(), expected(&bytes, &hot));
            hits += rig.since(&earlier).hits;
            reads += hot.len() as u64;
        }
    }
    assert!(hits * 100 >= reads * 90, "{hits} of {reads} reads of what is in use were hits");
    let done = rig.since(&before);
    assert!(done.carried > 0 && done.emptied > 20, "{done:?}");
    // Bytes written over bytes cached.
    assert!(done.carried * 5 <= done.filled, "{done:?}");
}

#[tokio::test]
async fn a_region_that_is_filled_again_has_no_old_granule() {
    let rig = small();
    for (n, seed) in (0..6u64).enumerate() {
        let (path, bytes) = (format!("{n}"), random(6 << 20, seed));
        rig.behind(&path, bytes.clone()).await;
        read_all(&rig, &bytes, &path).await;
        // Hits, with pages in memory that were read before their places were written again.
        read_all(&rig, &bytes, &path).await;
    }
    let counters = rig.cache.counters();
    assert!(counters.emptied > 10 && counters.hits > 1000, "{counters:?}");
    assert_eq!(counters.misses_wrong, 0, "the page cache forgets what a place had before");
}

/// Epochs over four times the size of the cache: with a small share of admission a part of the data stays.
#[tokio::test]
async fn a_share_of_admission_keeps_a_part_of_what_is_read_again_and_again() {
    let hits = async |share: f64| {
        let rig = Rig::with(|options| options.bytes(8 << 20).admit(share).revalidate("", Revalidate::Never));
        let bytes = random(32 << 20, 3);
        rig.behind("a", bytes.clone()).await;
        read_all(&rig, &bytes, "a").await;
        let before = rig.cache.counters();
        read_all(&rig, &bytes, "a").await;
        (rig.since(&before).hits, rig.cache.counters().refused)
    };
    let ((all, none), (few, refused)) = (hits(1.0).await, hits(0.02).await);
    assert_eq!(none, 0);
    assert!(refused > 1000);
    // A quarter of 2048 rows fits.
    assert!(few > 300 && all < few / 2, "{few} hits with a share, {all} without");
}

/// The memory of waiting granules is bounded, and no call waits for a drive that writes.
#[tokio::test]
async fn fills_beyond_the_bound_are_dropped_and_counted() {
    let rig = Rig::with(|options| options.fill_bytes(64 << 10).revalidate("", Revalidate::Never));
    let bytes = random(6 << 20, 1);
    rig.behind("a", bytes.clone()).await;
    assert_eq!(rig.ranges("a", &[0..bytes.len() as u64]).await.unwrap()[0], bytes);
    rig.cache.flush();
    let counters = rig.cache.counters();
    assert!(counters.dropped > 0, "{counters:?}");
    assert_eq!(counters.dropped + counters.filled, (6 << 20) / GRANULE);
    assert_eq!(rig.ranges("a", &[0..bytes.len() as u64]).await.unwrap()[0], bytes);
}

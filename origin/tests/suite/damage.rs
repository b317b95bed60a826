//! Bits that flip in regions, summaries, indexes and labels, files that are cut, drives that are exchanged: never a
//! wrong byte.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use iomill_origin::{Cache, Error, Revalidate};
use tempfile::TempDir;

use super::{GRANULE, Rig, drives, expected, forget_index, options, random, rounds, rows};

const LEN: usize = 4 << 20;

fn data(dir: &TempDir, drive: usize) -> PathBuf {
    dir.path().join(format!("ssd{drive}/iomill-origin/data"))
}

fn label(dir: &TempDir, drive: usize) -> PathBuf {
    dir.path().join(format!("ssd{drive}/iomill-origin/label"))
}

fn open(path: &Path) -> fs::File {
    fs::OpenOptions::new().read(true).write(true).open(path).unwrap()
}

/// A cache that has all of an object, with its rows.
async fn filled() -> (Rig, Vec<u8>) {
    let rig = Rig::immutable();
    let bytes = random(LEN, 1);
    rig.behind("a", bytes.clone()).await;
    assert_eq!(rig.ranges("a", &rows(LEN as u64)).await.unwrap(), expected(&bytes, &rows(LEN as u64)));
    rig.cache.flush();
    assert_eq!(rig.cache.counters().filled, LEN as u64 / GRANULE);
    (rig, bytes)
}

async fn assert_right(rig: &Rig, bytes: &[u8]) {
    let wanted: Vec<_> = rows(LEN as u64).into_iter().chain([0..LEN as u64]).collect();
    assert_eq!(rig.ranges("a", &wanted).await.unwrap(), expected(bytes, &wanted));
}

fn never(options: iomill_origin::Options) -> iomill_origin::Options {
    options.revalidate("", Revalidate::Never)
}

/// One bit of each page with bytes flips, on the drive itself. The page is fetched again, counted, and right from then
/// on.
#[tokio::test]
async fn a_flipped_bit_on_a_drive_is_a_miss() {
    let (rig, bytes) = filled().await;
    let rig = rig.reopened(never, |dir| {
        let mut rng = fastrand::Rng::with_seed(3);
        for drive in 0..2 {
            let file = open(&data(dir, drive));
            // All of the file but its holes.
            for page in 0..file.metadata().unwrap().len() / 4096 {
                let mut buffer = [0; 4096];
                file.read_exact_at(&mut buffer, page * 4096).unwrap();
                // Summaries are for another test.
                let is_summary = &buffer[8..16] == b"iomill/1";
                if buffer != [0; 4096] && !is_summary {
                    let bit = rng.usize(..4096 * 8);
                    buffer[bit / 8] ^= 1 << (bit % 8);
                    file.write_all_at(&buffer, page * 4096).unwrap();
                }
            }
        }
    });
    assert_right(&rig, &bytes).await;
    let counters = rig.cache.counters();
    assert!(counters.misses_wrong >= LEN as u64 / GRANULE, "{counters:?}");
    rig.cache.flush();
    let before = rig.cache.counters();
    assert_right(&rig, &bytes).await;
    assert_eq!(rig.since(&before).gets, 0, "what was wrong is right now");
    assert_eq!(rig.since(&before).misses_wrong, 0);
}

/// The same behind a running cache, which may have pages in memory.
#[tokio::test]
async fn pages_that_are_overwritten_under_a_running_cache_are_misses() {
    let (rig, bytes) = filled().await;
    for round in 0..3 {
        for drive in 0..2 {
            let file = open(&data(&rig.dir, drive));
            file.write_all_at(&random(3 << 20, round), 0).unwrap();
            file.sync_all().unwrap();
        }
        assert_right(&rig, &bytes).await;
        rig.cache.flush();
    }
    assert!(rig.cache.counters().misses_wrong > 0);
}

/// Summaries are read when there is no index.
#[tokio::test]
async fn a_damaged_summary_is_a_miss() {
    let (mut rig, bytes) = filled().await;
    for round in 0..4 {
        rig = rig.reopened(never, |dir| {
            forget_index(dir);
            let mut rng = fastrand::Rng::with_seed(round);
            for drive in 0..2 {
                let file = open(&data(dir, drive));
                for region in 0..file.metadata().unwrap().len() >> 20 {
                    let (at, mut byte) = ((region << 20) + rng.u64(..4096), [0]);
                    file.read_exact_at(&mut byte, at).unwrap();
                    byte[0] ^= 1 << rng.u8(..8);
                    file.write_all_at(&byte, at).unwrap();
                }
            }
        });
        let before = rig.cache.counters();
        assert_right(&rig, &bytes).await;
        assert_eq!(rig.since(&before).hits, 0, "a page of a summary with a wrong bit says nothing");
    }
}

/// Any word of the index may have any bits, also while processes use it.
#[tokio::test]
async fn a_damaged_index_is_a_miss() {
    for round in 0..rounds(6) {
        let (rig, bytes) = filled().await;
        let mut rng = fastrand::Rng::with_seed(round);
        for entry in fs::read_dir(rig.dir.path()).unwrap() {
            let path = entry.unwrap().path();
            if !path.is_file() {
                continue;
            }
            let file = open(&path);
            let len = file.metadata().unwrap().len();
            for _ in 0..len / 64 {
                // Not the head, which names the index, and which another test damages.
                let at = rng.u64(128..len);
                file.write_all_at(&[rng.u8(..)], at).unwrap();
            }
        }
        assert_right(&rig, &bytes).await;
        rig.cache.flush();
        assert_right(&rig, &bytes).await;
        let rig = rig.reopened(never, |_| {});
        assert_right(&rig, &bytes).await;
        let rig = rig.reopened(never, forget_index);
        assert_right(&rig, &bytes).await;
    }
}

#[tokio::test]
async fn a_damaged_label_leaves_its_drive_out_and_the_rest_goes_on() {
    let (rig, bytes) = filled().await;
    let flip = |path: &Path| {
        let mut text = fs::read(path).unwrap();
        text[40] ^= 1;
        fs::write(path, text).unwrap();
    };
    let rig = rig.reopened(never, |dir| flip(&label(dir, 0)));
    let notices = rig.cache.notices();
    assert!(notices.len() == 1 && notices[0].contains("label"), "{notices:?}");
    let before = rig.cache.counters();
    assert_right(&rig, &bytes).await;
    assert!(rig.since(&before).hits > 0, "the other drive has its share");
    rig.cache.flush();
    // Without any drive there is no cache.
    flip(&label(&rig.dir, 1));
    let error = Cache::open(drives(&rig.dir), options(&rig.dir)).unwrap_err();
    assert!(matches!(error, Error::Label { .. }), "{error}");
    assert!(error.to_string().contains("remove"), "{error}");
}

/// A cut data file gets its length again when it is opened. Under a running cache a read past the cut fails, and is a
/// miss.
#[tokio::test]
async fn regions_that_are_cut_off_are_misses() {
    for running in [false, true] {
        for keep in [0, 5000, 700_000, (1 << 20) + 9000] {
            let (rig, bytes) = filled().await;
            let cut = |dir: &TempDir| (0..2).for_each(|drive| open(&data(dir, drive)).set_len(keep).unwrap());
            let rig = if running {
                cut(&rig.dir);
                rig
            } else {
                rig.reopened(never, cut)
            };
            assert_right(&rig, &bytes).await;
            rig.cache.flush();
            assert_right(&rig, &bytes).await;
        }
    }
}

/// Both caches know the same object, but the two origins have different bytes of it.
#[tokio::test]
async fn drives_of_two_caches_that_are_exchanged_are_never_believed() {
    let (one, bytes) = filled().await;
    let (two, _) = filled().await;
    let other = random(LEN, 2);
    // The labels say to which cache a directory belongs.
    let mixed = [drives(&one.dir)[0].clone(), drives(&two.dir)[1].clone()];
    let error = Cache::open(&mixed, options(&one.dir)).unwrap_err();
    assert!(matches!(error, Error::Foreign { .. }), "{error}");
    let Rig { store, cache, memory, dir: two_dir, .. } = two;
    cache.flush();
    drop((store, cache, memory));
    // Only the data files are exchanged, and the indexes are kept or not.
    for forget in [false, true] {
        let rig = Rig::immutable();
        rig.behind("a", other.clone()).await;
        assert_eq!(rig.ranges("a", &rows(LEN as u64)).await.unwrap(), expected(&other, &rows(LEN as u64)));
        let rig = rig.reopened(never, |dir| {
            for drive in 0..2 {
                fs::copy(data(&two_dir, drive), data(dir, 1 - drive)).unwrap();
            }
            if forget {
                forget_index(dir);
            }
        });
        assert_right(&rig, &other).await;
        rig.cache.flush();
        assert_right(&rig, &other).await;
    }
    assert_right(&one, &bytes).await;
}

/// A drive is exchanged with an older copy of itself.
#[tokio::test]
async fn a_drive_from_a_backup_is_old_and_never_wrong() {
    let (rig, bytes) = filled().await;
    let backup: Vec<Vec<u8>> = (0..2).map(|drive| fs::read(data(&rig.dir, drive)).unwrap()).collect();
    let new = random(LEN, 9);
    rig.store.put(&super::Path::from("a"), new.clone().into()).await.unwrap();
    use super::object_store::ObjectStoreExt;
    assert_right(&rig, &new).await;
    let rig = rig.reopened(never, |dir| {
        backup.iter().enumerate().for_each(|(drive, bytes)| fs::write(data(dir, drive), bytes).unwrap());
    });
    assert_right(&rig, &new).await;
    rig.store.put(&super::Path::from("a"), bytes.clone().into()).await.unwrap();
    assert_right(&rig, &bytes).await;
}

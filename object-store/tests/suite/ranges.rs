//! Gathers and streams give the bytes that `LocalFileSystem` gives.

use std::ops::Range;

use futures_util::StreamExt;
use proptest::prelude::*;

use super::object_store::local::LocalFileSystem;
use super::object_store::path::Path;
use super::object_store::{GetOptions, ObjectStore, ObjectStoreExt};
use super::{IomillStore, fresh, random};

const LEN: u64 = 300_000;

/// The same object in three stores: an array, ordinary files through iomill, and `LocalFileSystem`.
fn three() -> ([tempfile::TempDir; 2], IomillStore, IomillStore, LocalFileSystem) {
    let (dir, array) = fresh();
    let files = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    std::fs::write(files.path().join("object"), random(LEN as usize, 5)).unwrap();
    iomill::block_on(array.put(&Path::from("object"), random(LEN as usize, 5).into())).unwrap().unwrap();
    let (plain, local) = (IomillStore::plain(files.path()), LocalFileSystem::new_with_prefix(files.path()));
    ([dir, files], array, plain.unwrap(), local.unwrap())
}

fn a_range() -> impl Strategy<Value = Range<u64>> {
    // Empty ones, within pages, across them, and up to the end.
    (0..=LEN, prop_oneof![Just(0), 1..100u64, 1..9000u64, 1..LEN])
        .prop_map(|(start, len)| start..(start + len).min(LEN))
}

#[test]
fn gathers_are_those_of_local_files() {
    let (_dirs, array, plain, local) = three();
    let path = Path::from("object");
    proptest!(ProptestConfig { cases: 100, failure_persistence: None, ..Default::default() }, |(ranges in prop::collection::vec(a_range(), 0..40))| {
        let wanted = iomill::block_on(local.get_ranges(&path, &ranges)).unwrap().unwrap();
        for store in [&array, &plain] {
            let got = iomill::block_on(store.get_ranges(&path, &ranges)).unwrap().unwrap();
            prop_assert_eq!(&got, &wanted);
        }
        for range in ranges.iter().filter(|range| !range.is_empty()) {
            let got = iomill::block_on(array.get_range(&path, range.clone())).unwrap().unwrap();
            prop_assert_eq!(got, iomill::block_on(local.get_range(&path, range.clone())).unwrap().unwrap());
        }
    });
}

#[test]
fn a_gather_reads_no_page_that_was_not_asked_for() {
    let (dir, store) = super::fresh_array();
    store.put("object", &random(8 << 20, 1), &Default::default()).unwrap();
    store.close().unwrap();
    let array = super::options().open(dir.path().join("ssd0")).unwrap();
    let ranges: Vec<_> = (0..100u64).map(|n| n * 81_920..n * 81_920 + 4096).collect();
    let store = IomillStore::array(array.clone());
    let before = array.counters();
    let got = iomill::block_on(store.get_ranges(&Path::from("object"), &ranges)).unwrap().unwrap();
    let read = array.counters().since(&before);
    assert_eq!(got.len(), 100);
    let bytes: u64 = read.drives.iter().map(|drive| drive.read_bytes).sum();
    assert_eq!(bytes, 100 * 4096, "the default of the trait would join ranges up to 1 MiB apart");
}

#[test]
fn a_range_that_ends_behind_the_object_is_cut_and_one_behind_it_is_an_error() {
    let (_dirs, array, plain, _) = three();
    let path = Path::from("object");
    for store in [array, plain] {
        let get = |ranges: &[Range<u64>]| iomill::block_on(store.get_ranges(&path, ranges)).unwrap();
        assert_eq!(get(&[LEN - 1..LEN + 5, 0..3]).unwrap().iter().map(|bytes| bytes.len()).collect::<Vec<_>>(), [1, 3]);
        assert_eq!(get(&[]).unwrap().len(), 0);
        #[expect(clippy::reversed_empty_ranges, reason = "the range is wrong on purpose")]
        let wrong = [LEN..LEN + 1, 7..6];
        for wrong in wrong {
            assert!(get(&[0..1, wrong.clone()]).is_err(), "{wrong:?}");
        }
        assert!(iomill::block_on(store.get_ranges(&Path::from("none"), &[0..1])).unwrap().is_err());
    }
}

/// A long object comes in pieces, and the memory of a gather is not copied.
#[tokio::test]
async fn a_long_object_comes_in_pieces() {
    let (_dir, store) = fresh();
    let (path, bytes) = (Path::from("long"), random(21_000_001, 9));
    store.put(&path, bytes.clone().into()).await.unwrap();
    for range in [0..bytes.len(), 4_000_001..bytes.len() - 3, 5..8 << 20] {
        let options = GetOptions::new().with_range(Some(range.start as u64..range.end as u64));
        let mut stream = store.get_opts(&path, options).await.unwrap().into_stream();
        let mut at = range.start;
        while let Some(piece) = stream.next().await {
            let piece = piece.unwrap();
            assert!(range.len() <= 8 << 20 || piece.len() <= 2 << 20, "{} bytes at once", piece.len());
            assert!(bytes[at..][..piece.len()] == piece);
            at += piece.len();
        }
        assert_eq!(at, range.end);
    }
    let parts = store.get_ranges(&path, &[0..100, 100..200]).await.unwrap();
    assert_eq!(parts[0].as_ptr().wrapping_add(100), parts[1].as_ptr(), "one memory");
}

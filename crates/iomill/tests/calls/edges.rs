//! Extreme arguments, on real files. They are refused or granted, and leave no unwanted trace.

use std::io::IoSlice;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use iomill::engine::EngineKind;
use iomill::{Array, ArrayOptions, CacheOptions, Error, FileOptions, Layout, Topology, Tuning};
use tempfile::TempDir;

fn drives(count: usize) -> (TempDir, Vec<PathBuf>) {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let drives: Vec<PathBuf> = (0..count).map(|drive| dir.path().join(drive.to_string())).collect();
    drives.iter().for_each(|drive| std::fs::create_dir(drive).unwrap());
    (dir, drives)
}

/// An option that cannot be granted leaves nothing that would stop a second try.
#[test]
fn a_refused_creation_leaves_the_drives_free() {
    let (_dir, drives) = drives(2);
    let options = [
        ArrayOptions::new().depth(0),
        ArrayOptions::new().depth(1025),
        ArrayOptions::new().engine(EngineKind::Null),
        ArrayOptions::new().tuning(Tuning::new().drive_threads(true).cpu_map(vec![vec![0]])),
        ArrayOptions::new().read_only(true),
    ];
    for options in options {
        let what = format!("{options:?}");
        assert!(matches!(options.create(&drives), Err(Error::Invalid { .. })), "{what}");
    }
    Array::create(&drives).unwrap().close().unwrap();
}

/// An option without an effect beside the others is refused, and the error names the option that gives it one.
#[test]
fn options_without_an_effect_are_refused() {
    let (_dir, drives) = drives(2);
    Array::create(&drives).unwrap().close().unwrap();
    let tuned = |tuning| ArrayOptions::new().tuning(tuning);
    let nodes = || Tuning::new().topology(Topology::Emulate(2));
    let map = vec![vec![0], vec![0]];
    for (options, what, advice) in [
        (tuned(Tuning::new().cpu_map(map.clone())), "a CPU map", "`Tuning::drive_threads`"),
        (tuned(nodes().io_nodes([0])).cache_bytes(0), "a list of I/O nodes", "`Tuning::drive_threads`"),
        (tuned(nodes().cache_nodes([0]).io_nodes([0])), "a list of I/O nodes", "`Tuning::drive_threads`"),
        (tuned(nodes().cache_nodes([1])).cache_bytes(0), "a list of cache nodes", "give it a cache"),
        (tuned(Tuning::new().merge(false).plug(7)), "a plug of 7", "`Tuning::merge`"),
        (tuned(Tuning::new().adaptive_depth(true)).depth(1), "an adaptive depth", "a larger `depth`"),
        (ArrayOptions::new().cache_bytes(0).cache(CacheOptions::new().max_bytes(1 << 20)), "may grow", "`max_bytes`"),
        (ArrayOptions::new().read_only(true).sync_changes(false), "`sync_changes(false)`", "for writing"),
    ] {
        let error = options.open(&drives[0]).unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }) && error.to_string().contains(what), "{error}");
        assert!(error.advice().is_some_and(|told| told.contains(advice)), "{error}");
    }
    for options in [
        tuned(Tuning::new().drive_threads(true).cpu_map(map)),
        tuned(nodes().io_nodes([0])),
        tuned(nodes().io_nodes([0]).drive_threads(true)).cache_bytes(0),
        tuned(nodes().cache_nodes([0])),
        tuned(Tuning::new().merge(false).plug(1)),
        tuned(Tuning::new().adaptive_depth(true)).depth(2),
        ArrayOptions::new().sync_changes(false),
    ] {
        options.open(&drives[0]).unwrap().close().unwrap();
    }
}

/// A resource that the machine refuses is an error that names the resource and the amount.
#[test]
fn memory_that_is_not_there_is_an_error_of_its_own() {
    let (_dir, drives) = drives(1);
    let array = Array::create(&drives).unwrap();
    let much = 1 << 60;
    let error = array.buffer(much).unwrap_err();
    assert!(
        matches!(&error, Error::Memory { what: "a buffer", len_bytes, .. } if *len_bytes == much as u64),
        "{error}"
    );
    assert!(error.errno().is_some(), "{error}");
    assert_eq!(std::io::Error::from(error).kind(), std::io::ErrorKind::OutOfMemory);
}

#[test]
fn writing_nothing_far_out_takes_no_room() {
    let (_dir, drives) = drives(1);
    let array = Array::create(&drives).unwrap();
    let file = array.create_file("file", &FileOptions::new()).unwrap();
    let far = 64 << 20;
    file.write_at(&[], far).unwrap();
    file.write_vectored_at(&[], far).unwrap();
    file.write_vectored_at(&[IoSlice::new(&[]), IoSlice::new(&[])], far).unwrap();
    file.write_many(&[], &[far, 2 * far], 0).unwrap();
    assert_eq!(file.len(), 0);
    // A file gets its parts with its first bytes.
    assert_eq!(std::fs::read_dir(drives[0].join("iomill/parts")).unwrap().count(), 0);
}

/// A write far past the end leaves a hole: a sparse file may be longer than its drives are large.
#[test]
fn a_write_far_out_takes_room_for_itself_only() {
    let (_dir, drives) = drives(3);
    let array = Array::create(&drives).unwrap();
    for layout in
        [FileOptions::new(), FileOptions::new().layout(Layout::Rotated), FileOptions::new().layout(Layout::Hash)]
    {
        let file = array.create_file("sparse", &layout).unwrap();
        let far = (8 << 40) + 12_345;
        file.write_at(&[7; 10_000], far).unwrap();
        file.write_at(&[3; 10], 5).unwrap();
        let mut got = [1; 20_000];
        assert_eq!(file.read_at(&mut got, far - 5_000).unwrap(), 15_000);
        assert!(got[..5_000].iter().all(|&byte| byte == 0) && got[5_000..15_000].iter().all(|&byte| byte == 7));
        assert_eq!(file.read_at(&mut got, 1 << 40).unwrap(), got.len());
        assert!(got.iter().all(|&byte| byte == 0));
        file.close().unwrap();
        let parts = array.stat("sparse").unwrap().parts;
        let taken: u64 = parts.iter().map(|(path, _)| path.metadata().unwrap().blocks() * 512).sum();
        assert!(taken < 64 << 20, "{taken} bytes are taken");
        array.delete("sparse").unwrap();
    }
    array.close().unwrap();
}

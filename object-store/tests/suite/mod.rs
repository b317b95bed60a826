//! Tests that are compiled for each version of `object_store`, with what they share.

// Helpers of tests may unwrap as tests do. A gather may well have one range.
#![allow(clippy::unwrap_used, clippy::single_range_in_vec_init)]

use std::path::PathBuf;
use std::time::{Duration, Instant};

use iomill::{Array, ArrayOptions};
use tempfile::TempDir;

use super::{IomillStore, object_store};

mod attributes;
mod cancelled;
mod changes;
mod conditions;
mod crash;
mod executors;
mod integration;
mod plain;
mod ranges;
mod uploads;
mod views;

/// The directories of four drives.
pub fn drives(dir: &TempDir) -> Vec<PathBuf> {
    let drives: Vec<_> = (0..4).map(|n| dir.path().join(format!("ssd{n}"))).collect();
    drives.iter().for_each(|drive| std::fs::create_dir(drive).unwrap());
    drives
}

pub fn options() -> ArrayOptions {
    ArrayOptions::new().cache_bytes(16 << 20)
}

/// An empty array of four directories.
pub fn fresh_array() -> (TempDir, Array) {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let array = options().create(drives(&dir)).unwrap();
    (dir, array)
}

pub fn fresh() -> (TempDir, IomillStore) {
    let (dir, array) = fresh_array();
    (dir, IomillStore::array(array))
}

pub fn random(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fastrand::Rng::with_seed(seed).fill(&mut bytes);
    bytes
}

/// Closes the array, and looks at everything on its drives: there is no problem, and no part that belongs to no file.
pub fn assert_clean(dir: &TempDir, array: Array) {
    let files: Vec<_> = array.list("").names().unwrap().iter().map(|name| array.stat(name).unwrap()).collect();
    let named: Vec<PathBuf> = files.iter().flat_map(|file| file.parts.iter().map(|(path, _)| path.clone())).collect();
    eventually("parts of dropped files are removed", || parts(dir).iter().all(|part| named.contains(part)));
    array.close().unwrap();
    let drives: Vec<_> = (0..4).map(|n| dir.path().join(format!("ssd{n}"))).collect();
    let report = Array::check(&drives).unwrap();
    assert!(report.problems.is_empty(), "{report:?}");
}

/// The parts of long files.
pub fn parts(dir: &TempDir) -> Vec<PathBuf> {
    let of_drive = |n| std::fs::read_dir(dir.path().join(format!("ssd{n}/iomill/parts"))).unwrap();
    (0..4).flat_map(of_drive).map(|part| part.unwrap().path()).collect()
}

/// The bound of a wait. No machine is that slow.
pub const PATIENCE: Duration = Duration::from_secs(600);

/// Waits for what another thread does soon.
pub fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

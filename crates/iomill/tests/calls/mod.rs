//! The calls on files, through the public interface: one file for each kind of call.

mod abandoned;
mod ahead;
mod answers;
mod array_files;
mod array_held;
mod async_cursor;
mod begun;
mod child;
mod counters;
pub mod disks;
mod drafts;
mod edges;
mod errors;
mod futures;
mod gathers;
mod listing;
mod mapped;
mod openings;
mod owned;
mod pins;
mod plain;
mod plain_full;
mod plain_held;
mod plain_limits;
mod plain_places;
mod plain_versions;
mod plain_writes;
mod positions;
mod rows;
mod runtimes;
mod small;
mod stress;
mod whole;

use std::path::Path;

use fastrand::Rng;
use tempfile::TempDir;

const PAGE: usize = 4096;

/// On a disk, where there is direct I/O, and in memory, where there is none.
fn places() -> Vec<TempDir> {
    let in_memory = Path::new("/dev/shm").is_dir().then(|| tempfile::tempdir_in("/dev/shm").ok()).flatten();
    [tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).ok(), in_memory].into_iter().flatten().collect()
}

/// `len` bytes, the same for the same seed.
fn random(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Rng::with_seed(seed).fill(&mut bytes);
    bytes
}

//! Each rival reads what was written, and fails when the bytes are wrong.

#![allow(clippy::unwrap_used)]

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use iomill_bench::contender::{Slice, UNCACHED};
use iomill_bench::flat::FlatFile;
use iomill_bench::pattern::PAGE_BYTES;
use iomill_bench::records::Skew;
use iomill_bench::warm;
use iomill_bench::workload::Workload;

use super::*;

static NEVER: AtomicBool = AtomicBool::new(false);

const PAGES: u64 = 512;
const SEED: u64 = 7;

/// The rivals over data that was written with [`SEED`].
fn rivals(dir: &tempfile::TempDir, seed_read: u64) -> (FlatFile, Vec<Box<dyn Contender<RecordReads>>>) {
    let len_bytes = PAGES * PAGE_BYTES as u64;
    let flat = FlatFile::write(dir.path().join("f"), len_bytes, SEED, &NEVER, &mut |_, _| ()).unwrap();
    let data = Arc::new(Data::new(flat.path().to_owned(), PAGES, seed_read).unwrap());
    (flat, Brought.warm(&data))
}

fn slice(verify: bool) -> Slice<'static> {
    Slice { threads: 2, duration: Duration::from_millis(60), verify, cancel: &NEVER }
}

#[test]
fn each_reads_the_right_records() {
    let dir = tempfile::tempdir().unwrap();
    let (_flat, mut rivals) = rivals(&dir, SEED);
    assert_eq!(rivals.iter().map(|rival| rival.name()).collect::<Vec<_>>(), warm::RIVALS.brought);
    for skew in [Skew::Uniform, Skew::Zipf] {
        for rival in &mut rivals {
            assert_eq!(rival.prepare(&RecordReads { skew, batch: 100 }).unwrap(), None);
            for verify in [true, false] {
                let sample = rival.run(&slice(verify)).unwrap();
                assert!(sample.ops >= 100 && sample.bytes == sample.ops * 128, "{}: {sample:?}", rival.name());
                assert!(sample.cpu_us > 0.0, "{}", rival.name());
            }
        }
    }
}

#[test]
fn each_notices_wrong_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let (_flat, mut rivals) = rivals(&dir, SEED + 1);
    for rival in &mut rivals {
        rival.prepare(&RecordReads { skew: Skew::Uniform, batch: 1 }).unwrap();
        let error = rival.run(&slice(true)).unwrap_err().to_string();
        assert!(error.contains("is not what was written"), "{}: {error}", rival.name());
    }
}

/// The rivals over pages that were written with [`SEED`], and are read as those of another seed.
fn uncached(dir: &tempfile::TempDir, seed_read: u64) -> Vec<Box<dyn Contender>> {
    let dirs = [dir.path().join("0"), dir.path().join("1")];
    dirs.iter().for_each(|dir| std::fs::create_dir_all(dir).unwrap());
    let part_bytes = PAGES * PAGE_BYTES as u64;
    let target = Target::write(&dirs, "f", part_bytes, SEED, &NEVER, &mut |_, _| ()).unwrap();
    let target = Target::new(target.parts().to_vec(), seed_read, Target::striped(2, 16)).unwrap();
    Brought.uncached(&target)
}

#[test]
fn each_runtime_reads_the_right_pages() {
    // In the build's directory: direct I/O takes a disk.
    let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let mut rivals = uncached(&dir, SEED);
    assert_eq!(rivals.iter().map(|rival| rival.name()).collect::<Vec<_>>(), UNCACHED);
    for rival in &mut rivals {
        assert_eq!(rival.prepare(&Workload::RANDOM_READ).unwrap(), None);
        for verify in [true, false] {
            let sample = rival.run(&slice(verify)).unwrap();
            assert!(sample.ops > 1 && sample.bytes == sample.ops * PAGE_BYTES as u64, "{}: {sample:?}", rival.name());
        }
    }
    for rival in &mut uncached(&dir, SEED + 1) {
        rival.prepare(&Workload::RANDOM_READ).unwrap();
        let error = rival.run(&slice(true)).unwrap_err().to_string();
        assert!(error.contains("is not what was written"), "{}: {error}", rival.name());
    }
}

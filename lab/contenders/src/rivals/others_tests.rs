//! Each rival reads the written bytes, and fails when they are wrong.

#![allow(clippy::unwrap_used)]

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::contender::{Slice, UNCACHED};
use crate::pattern::PAGE_BYTES;
use crate::workload::Workload;

use super::*;

static NEVER: AtomicBool = AtomicBool::new(false);

const PAGES: u64 = 512;
const SEED: u64 = 7;

fn slice(verify: bool) -> Slice<'static> {
    Slice { threads: 2, duration: Duration::from_millis(60), verify, cancel: &NEVER }
}

/// The rivals over pages of the pattern of [`SEED`], read as those of another seed.
fn uncached_rivals(dir: &tempfile::TempDir, seed_read: u64) -> Vec<Box<dyn Contender>> {
    let dirs = [dir.path().join("0"), dir.path().join("1")];
    dirs.iter().for_each(|dir| std::fs::create_dir_all(dir).unwrap());
    let part_bytes = PAGES * PAGE_BYTES as u64;
    let target = Target::write(&dirs, "f", part_bytes, SEED, &NEVER, &mut |_, _| ()).unwrap();
    let target = Target::new(target.parts().to_vec(), seed_read, Target::striped(2, 16)).unwrap();
    uncached::all(&target)
}

#[test]
fn each_runtime_reads_the_right_pages() {
    // In the build's directory, because direct I/O needs a disk.
    let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let mut rivals = uncached_rivals(&dir, SEED);
    assert_eq!(rivals.iter().map(|rival| rival.name()).collect::<Vec<_>>(), UNCACHED);
    for rival in &mut rivals {
        assert_eq!(rival.prepare(&Workload::RANDOM_READ).unwrap(), None);
        for verify in [true, false] {
            let sample = rival.run(&slice(verify)).unwrap();
            assert!(sample.ops > 1 && sample.bytes == sample.ops * PAGE_BYTES as u64, "{}: {sample:?}", rival.name());
        }
    }
    for rival in &mut uncached_rivals(&dir, SEED + 1) {
        rival.prepare(&Workload::RANDOM_READ).unwrap();
        let error = rival.run(&slice(true)).unwrap_err().to_string();
        assert!(error.contains("is not what was written"), "{}: {error}", rival.name());
    }
}

use std::collections::HashSet;
use std::path::Path;
use std::time::Duration;

use iomill::{ArrayOptions, RuntimeOptions};

use super::*;
use crate::contender::Contender;
use crate::rounds::{self, Plan};

static NEVER: AtomicBool = AtomicBool::new(false);

const LEN_BYTES: u64 = (12 << 20) + 777;

const READS: RowReads = RowReads { row_bytes: 1000, batch: 64, len_bytes: LEN_BYTES, cache_bytes: 2 << 20 };

/// A file of bytes that are no pattern of this crate.
fn file() -> (tempfile::TempDir, std::path::PathBuf) {
    let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let path = dir.path().join("f");
    let mut rng = crate::pattern::Rng::new(8);
    std::fs::write(&path, (0..LEN_BYTES).map(|_| rng.draw() as u8).collect::<Vec<u8>>()).unwrap();
    (dir, path)
}

fn gathers(path: &Path, cache: Cache) -> Box<dyn Contender<RowReads>> {
    Box::new(ReadRows::new(path.to_owned(), RuntimeOptions::like(ArrayOptions::new()), cache))
}

#[test]
fn a_list_has_each_row_once() {
    let list = READS.list();
    assert_eq!((list.len() as u64, list.iter().collect::<HashSet<_>>().len()), (READS.rows(), list.len()));
    assert!(list.iter().all(|&row| row < READS.rows()) && READS.rows() == LEN_BYTES / 1000);
    let filled: u64 = READS.stretches().map(|(_, len)| len as u64).sum();
    assert_eq!(filled, READS.cache_bytes * 5 / 4);
    assert!(READS.stretches().all(|(offset, len)| offset + len as u64 <= LEN_BYTES));
}

#[test]
fn all_ways_read_the_file_s_bytes_in_every_state() {
    let (_dir, path) = file();
    let before = std::fs::read(&path).unwrap();
    for (cache, cache_bytes) in [(Cache::Held, 2 << 20), (Cache::Cold, 2 << 20), (Cache::Warm, 4 * LEN_BYTES)] {
        let ways = [Way::Mapped, Way::MappedRandom, Way::Called];
        let mut contenders: Vec<Box<dyn Contender<RowReads>>> =
            ways.map(|way| Box::new(Loops::new(way, path.clone(), cache)) as Box<dyn Contender<RowReads>>).into();
        contenders.push(gathers(&path, cache));
        for contender in &mut contenders {
            for row_bytes in [1000, 5000] {
                let reads = RowReads { row_bytes, cache_bytes, ..READS };
                if contender.prepare(&reads).unwrap().is_some() {
                    continue;
                }
                for verify in [true, false] {
                    let duration = Duration::from_millis(20);
                    let slice = Slice { threads: 2, duration, verify, cancel: &NEVER };
                    let sample = contender.run(&slice).unwrap();
                    assert!(
                        sample.ops > 0 && sample.bytes == sample.ops * u64::from(row_bytes),
                        "{}: {sample:?}",
                        contender.name()
                    );
                }
            }
        }
    }
    assert!(std::fs::read(&path).unwrap() == before);
}

#[test]
fn iomill_is_in_the_state_that_it_claims() {
    let (_dir, path) = file();
    let time = Duration::from_millis(50);
    for (cache, cache_bytes) in [(Cache::Held, 2 << 20), (Cache::Warm, 4 * LEN_BYTES)] {
        let workload = RowReads { cache_bytes, ..READS };
        let plan = Plan { workload, threads: 1, rounds: 1, slice: time, warm_up: time };
        let measured = rounds::run(&mut [gathers(&path, cache)], &plan, &mut |_| (), &NEVER).unwrap();
        assert!(measured.outcomes.len() + measured.left_out.len() == 1, "{measured:?}");
    }
    // A cache that holds a part of the file is not warm.
    let plan = Plan { workload: READS, threads: 1, rounds: 1, slice: time, warm_up: time };
    let error = rounds::run(&mut [gathers(&path, Cache::Warm)], &plan, &mut |_| (), &NEVER).unwrap_err().to_string();
    assert!(error.contains("it was not warm"), "{error}");
}

/// Sleeps at each row, like a mapping that reads far ahead.
struct Slow;

impl Gather for Slow {
    fn gather(&mut self, ids: &[u64], out: &mut [u8]) -> Result<()> {
        out.fill(0);
        std::thread::sleep(Duration::from_millis(ids.len() as u64));
        Ok(())
    }
}

#[test]
fn a_slow_loop_ends_with_its_slice_and_counts_what_it_did() {
    let (_dir, path) = file();
    let target = Target::plain(path, LEN_BYTES).unwrap();
    let reads = RowReads { batch: 60_000, row_bytes: 100, ..READS };
    let list = reads.list();
    let course = Course { target: &target, reads: &reads, list: &list, cache: Cache::Held, step: 8 };
    let slice = Slice { threads: 1, duration: Duration::from_millis(1), verify: false, cancel: &NEVER };
    let sample = course.run(&slice, &mut || Ok(()), || Ok(Slow)).unwrap();
    assert!(sample.ops >= 8 && sample.ops < 60_000 && sample.bytes == sample.ops * 100, "{sample:?}");
    assert!(sample.latency_ns.is_empty(), "no call was complete");
}

#[test]
fn nonsense_is_refused() {
    READS.check().unwrap();
    let name = |row_bytes| RowReads { row_bytes, ..READS }.to_string();
    assert_eq!([1000, 3000, 3072].map(name), ["random-rows-1000B", "random-rows-3000B", "random-rows-3KiB"]);
    assert_eq!((READS.pages_bytes(), RowReads { row_bytes: 4097, ..READS }.pages_bytes()), (4096, 8192));
    for bad in [
        RowReads { row_bytes: 0, ..READS },
        RowReads { row_bytes: 17 << 20, ..READS },
        RowReads { batch: 0, ..READS },
        RowReads { batch: 2 << 20, ..READS },
        RowReads { len_bytes: 1999, ..READS },
    ] {
        assert!(bad.check().is_err(), "{bad:?}");
    }
}

//! Each loop reads what was written, goes on to the end of its time, and ends by an error where a read fails.

use super::super::draw::PAGE_BYTES;
use super::*;

static NEVER: AtomicBool = AtomicBool::new(false);

const LOOPS: [Loop; 3] = [Loop::Uring, Loop::Aio, Loop::Pread];

/// The first bytes of a page of the parts below.
pub(super) fn stamp(part: usize, page: u64) -> [u8; 8] {
    ((part as u64 + 1) << 32 | page).to_le_bytes()
}

/// Longer than any test waits, so that a run which does not end early is noticed.
const LONG: Duration = Duration::from_secs(600);

/// Files on the real disk, beside the test's executable. `/tmp` may be a tmpfs, which demands no alignment.
pub(super) fn parts(drives: usize, len_bytes: u64) -> (tempfile::TempDir, Vec<Part>) {
    let executable = std::env::current_exe().unwrap();
    let dir = tempfile::tempdir_in(executable.parent().unwrap()).unwrap();
    let mut parts = Vec::new();
    for drive in 0..drives {
        let mut bytes = vec![0; len_bytes as usize];
        bytes.chunks_mut(PAGE_BYTES).zip(0..).for_each(|(page, at)| page[..8].copy_from_slice(&stamp(drive, at)));
        let path = dir.path().join(drive.to_string());
        std::fs::write(&path, bytes).unwrap();
        std::fs::File::open(&path).unwrap().sync_all().unwrap();
        parts.push(Part { path, len_bytes });
    }
    (dir, parts)
}

fn work(threads: usize, depth: u32, request_bytes: u32) -> Work {
    Work { threads, depth, request_bytes }
}

/// Runs a loop; `None` where this machine refuses it, with a reason.
fn ran(by: Loop, parts: &[Part], work: &Work, ms: u64) -> Option<Sample> {
    match by.run(parts, work, Duration::from_millis(ms), &NEVER) {
        Ok(sample) => Some(sample),
        Err(Failed::Refused(why)) => {
            let known = ["io_uring", "registered", "libaio", "no direct I/O", "page cache"];
            assert!(known.iter().any(|known| why.contains(known)), "{by:?}: {why}");
            None
        }
        Err(Failed::Error(error)) => panic!("{by:?}: {error}"),
    }
}

#[test]
fn each_slot_gets_the_block_that_was_asked_for() {
    let (_dir, parts) = parts(3, 1 << 20);
    for request_bytes in [4096, 16384] {
        let work = work(1, 8, request_bytes);
        let slots = || Slots::new(&parts, &work, 0).unwrap();
        if let Ok(mut uring) = uring::Uring::new(slots()) {
            assert!(uring.read(&AtomicBool::new(true)).unwrap() >= 24);
            assert!(uring.slots.hold_what_was_read());
        }
        if let Ok(mut aio) = aio::Aio::new(slots()) {
            assert!(aio.read(&AtomicBool::new(true)).unwrap() >= 24);
            assert!(aio.slots.hold_what_was_read());
        }
    }
}

/// A batch may be as large as the number of reads in flight. The queue is then full after every batch.
#[test]
fn a_loop_goes_on_to_the_end_of_its_time() {
    for drives in [1, 5] {
        let (_dir, parts) = parts(drives, 1 << 20);
        for by in [Loop::Uring, Loop::Aio] {
            for depth in [1, 32] {
                // A loop that stops when its queue has emptied once never does that many. A slow disk takes longer for
                // them.
                let enough = 3 * u64::from(depth) * drives as u64;
                let did_enough = [50, 500, 5000, 50_000].into_iter().any(|ms| {
                    ran(by, &parts, &work(1, depth, 4096), ms).is_none_or(|sample| {
                        assert!(sample.wall >= Duration::from_millis(ms), "{by:?} ended early: {sample:?}");
                        assert!(sample.cpus_used() > 0.0, "{by:?}: {sample:?}");
                        sample.reads > enough
                    })
                });
                assert!(did_enough, "{by:?} on {drives} drives, depth {depth}");
            }
        }
    }
}

#[test]
fn all_threads_count_and_a_run_without_time_reads_a_batch_each() {
    let (_dir, parts) = parts(2, 1 << 20);
    for by in LOOPS {
        if let Some(sample) = ran(by, &parts, &work(3, 8, 4096), 0) {
            let least = if by == Loop::Pread { 3 } else { 3 * 16 };
            assert!(sample.reads >= least && !sample.wall.is_zero(), "{by:?}: {sample:?}");
        }
    }
}

#[test]
fn cold_reads_end_with_the_last_block() {
    let (_dir, parts) = parts(2, 64 * 4096);
    if let Some(sample) = ran(Loop::Pread, &parts, &work(1, 1, 4096), 600_000) {
        assert!(sample.reads == 128 && sample.wall < LONG / 2, "{sample:?}");
    }
}

#[test]
fn one_failure_ends_all_threads() {
    let (_dir, mut parts) = parts(2, 1 << 20);
    // The file is shorter than is said, so that some read meets its end.
    parts[1].len_bytes += 1 << 20;
    let name = parts[1].path.display().to_string();
    for by in LOOPS {
        let begun = Instant::now();
        let outcome = by.run(&parts, &work(2, 8, 4096), LONG, &NEVER);
        assert!(begun.elapsed() < LONG / 2, "{by:?}: {outcome:?}");
        match outcome {
            Err(Failed::Error(error)) => assert!(error.to_string().contains(&name), "{by:?}: {error}"),
            Err(Failed::Refused(_)) => {}
            Ok(sample) => panic!("{by:?}: {sample:?}"),
        }
    }
}

#[test]
fn a_cancelled_run_ends_soon() {
    let (_dir, parts) = parts(1, 1 << 20);
    let cancel = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(30));
            cancel.store(true, Ordering::Relaxed);
        });
        let first = Loop::Aio.run(&parts, &work(2, 8, 4096), LONG, &cancel);
        match first {
            Ok(sample) => assert!(sample.wall < LONG / 2, "{sample:?}"),
            Err(error) => assert!(matches!(error, Failed::Refused(_)), "{error:?}"),
        }
    });
    let later = Loop::Aio.run(&parts, &work(2, 8, 4096), LONG, &cancel).unwrap();
    assert_eq!(later.reads, 0);
}

//! Every rival on small files of the real disk reads the written bytes, or fails when they are wrong.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::*;
use crate::contender::{
    AIO_BY_HAND, FIO_IO_URING, FIO_IO_URING_TUNED, MMAP, PREAD, Slice, URING_BY_HAND, URING_BY_HAND_PLAIN,
};
use crate::workload::{Order, Workload};

static NEVER: AtomicBool = AtomicBool::new(false);

/// Files on the real disk, beside the test's executable. `/tmp` may be a tmpfs, which demands no alignment.
fn setting(drives: usize) -> (tempfile::TempDir, Target) {
    let executable = std::env::current_exe().unwrap();
    let dir = tempfile::tempdir_in(executable.parent().unwrap()).unwrap();
    let dirs: Vec<_> = (0..drives).map(|drive| dir.path().join(drive.to_string())).collect();
    dirs.iter().for_each(|dir| std::fs::create_dir(dir).unwrap());
    let target = Target::write(&dirs, "f", 1 << 20, 11, &AtomicBool::new(false), &mut |_, _| ()).unwrap();
    (dir, target)
}

fn slice(threads: usize, verify: bool) -> Slice<'static> {
    Slice { threads, duration: Duration::from_millis(150), verify, cancel: &NEVER }
}

fn workload(order: Order, read_percent: u8, block_bytes: u32) -> Workload {
    Workload { order, read_percent, block_bytes, depth: 8 }
}

/// Whether the rival needs io_uring where it is forbidden, as in containers. The rival is then left out with a reason.
fn is_forbidden(rival: &mut dyn Contender) -> bool {
    let is_fio = rival.name().starts_with(FIO_IO_URING);
    let is_out = uring::why_not().is_some() && (is_fio || rival.name().starts_with(URING_BY_HAND));
    if is_out {
        let why = rival.prepare(&Workload::RANDOM_READ).unwrap().unwrap();
        assert!(why.contains("io_uring") || is_fio, "{why}");
    }
    is_out
}

#[test]
fn every_rival_reads_the_right_bytes() {
    let (_dir, target) = setting(3);
    for block_bytes in [4096, 16384] {
        for order in [Order::Random, Order::Sequential] {
            for mut rival in all(&target) {
                let label = format!("{} {} {order:?} {block_bytes}", rival.name(), rival.cache().name());
                if is_forbidden(rival.as_mut()) {
                    continue;
                }
                if let Some(why) = rival.prepare(&workload(order, 100, block_bytes)).unwrap() {
                    assert!([FIO_IO_URING, FIO_IO_URING_TUNED].contains(&rival.name()), "{label}: {why}");
                    assert!(why == fio::NOT_INSTALLED || why.ends_with(fio::NO_IO_URING), "{label}: {why}");
                    continue;
                }
                let sample = rival.run(&slice(2, true)).unwrap();
                assert!(sample.ops > 0 && sample.bytes == sample.ops * u64::from(block_bytes), "{label}: {sample:?}");
                assert!(sample.cpu_us > 0.0 && !sample.wall.is_zero(), "{label}: {sample:?}");
                // The state is not judged, because other tests of this process also read from drives.
                assert!(sample.seen.is_some() || rival.cache() != Cache::Warm, "{label}: {sample:?}");
                if !rival.name().starts_with(FIO_IO_URING) {
                    // On a busy machine a slice may end before its threads start.
                    let none = Slice { duration: Duration::ZERO, ..slice(2, false) };
                    assert!(rival.run(&none).unwrap().ops >= 2, "{label}");
                }
                if rival.cache() == Cache::Cold {
                    let blocks = target.total_bytes() / u64::from(block_bytes);
                    assert!(sample.ops <= blocks, "{label}: {} of {blocks} blocks", sample.ops);
                }
            }
        }
    }
}

/// A batch may be as large as the number of I/Os in flight. The queue is then full after every batch.
#[test]
fn work_goes_on_to_the_end_of_the_slice() {
    for drives in [1, 2, 5] {
        let (_dir, target) = setting(drives);
        for mut rival in all(&target).into_iter().filter(|rival| rival.cache() == Cache::Direct) {
            for depth in [1, 8, 32] {
                let workload = Workload { depth, ..Workload::RANDOM_READ };
                if rival.prepare(&workload).unwrap().is_some() {
                    continue;
                }
                // A contender that stops when its queue is empty for the first time never does this many. A slow disk
                // needs a longer slice for them.
                let enough = 3 * u64::from(depth) * drives as u64;
                let mut seen = Vec::new();
                let did_enough = [150, 600, 2400, 9600].into_iter().any(|ms| {
                    let duration = Duration::from_millis(ms);
                    let sample = rival.run(&Slice { duration, ..slice(1, false) }).unwrap();
                    let (ops, wall) = (sample.ops, sample.wall);
                    seen.push(sample);
                    // The time of fio starts at its first operation, in milliseconds.
                    assert!(wall >= duration - Duration::from_millis(20), "{} ended early: {seen:?}", rival.name());
                    ops > enough
                });
                assert!(did_enough, "{} on {drives} drives, depth {depth}: {seen:?}", rival.name());
            }
        }
    }
}

#[test]
fn every_rival_that_verifies_notices_wrong_bytes() {
    let (_dir, target) = setting(2);
    let wrong = Target::new(target.parts().to_vec(), 12, Target::striped(2, 16)).unwrap();
    let mut noticed = Vec::new();
    for mut rival in all(&wrong) {
        rival.prepare(&workload(Order::Random, 100, 4096)).unwrap();
        if rival.name().starts_with(FIO_IO_URING) || is_forbidden(rival.as_mut()) {
            continue;
        }
        let error = rival.run(&slice(1, true)).unwrap_err().to_string();
        assert!(error.contains("is not what was written"), "{error}");
        noticed.push(rival.name());
    }
    let uring: &[&str] = if uring::why_not().is_none() { &[URING_BY_HAND, URING_BY_HAND_PLAIN] } else { &[] };
    let expected: Vec<&str> = uring.iter().copied().chain([AIO_BY_HAND, PREAD, MMAP, PREAD, MMAP]).collect();
    assert_eq!(noticed, expected);
}

#[test]
fn writes_by_hand_keep_the_pattern() {
    let (_dir, target) = setting(2);
    let rivals: [Box<dyn Contender>; 2] =
        [Box::new(uring::Uring::new(target.clone())), Box::new(aio::Aio::new(target.clone()))];
    for mut rival in rivals {
        if is_forbidden(rival.as_mut()) {
            continue;
        }
        for (order, percent) in [(Order::Random, 50), (Order::Sequential, 0)] {
            assert_eq!(rival.prepare(&workload(order, percent, 8192)).unwrap(), None);
            // Reads in the mix are checked while other threads write. The stamp of a page never changes.
            let sample = rival.run(&slice(2, true)).unwrap();
            assert!(sample.ops > 0, "{sample:?}");
            for (index, part) in target.parts().iter().enumerate() {
                target.verify(index, 0, &std::fs::read(&part.path).unwrap()).unwrap();
            }
        }
    }
    let before = std::fs::read(&target.parts()[0].path).unwrap();
    let (_other, fresh) = setting(2);
    assert!(before != std::fs::read(&fresh.parts()[0].path).unwrap(), "something was written");
}

#[test]
fn buffered_rivals_leave_writes_out() {
    let (_dir, target) = setting(1);
    for mut rival in all(&target) {
        let why = rival.prepare(&workload(Order::Random, 70, 4096)).unwrap();
        if [PREAD, MMAP].contains(&rival.name()) {
            assert!(why.unwrap().contains("without touching a drive"));
        }
        assert_eq!(rival.spoils(), rival.name().starts_with(FIO_IO_URING));
    }
}

#[test]
fn a_part_cut_behind_our_back_is_an_error() {
    let (_dir, target) = setting(1);
    let file = std::fs::OpenOptions::new().write(true).open(&target.parts()[0].path).unwrap();
    file.set_len(8192).unwrap();
    for mut rival in all(&target) {
        // Reading a mapped file that was cut raises SIGBUS. Every program that maps has this risk.
        if rival.name() == MMAP {
            continue;
        }
        if rival.prepare(&workload(Order::Random, 100, 4096)).unwrap().is_none() {
            assert!(rival.run(&slice(1, false)).is_err(), "{}", rival.name());
        }
    }
}

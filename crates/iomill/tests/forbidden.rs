//! An array where the kernel's barrier, the placement of threads and memory, and the fast engines are forbidden, as in
//! strict sandboxes. The test has its own process, because a filter of system calls stays.

use std::thread;

use iomill::{Advice, ArrayOptions, EngineKind, FileOptions, Topology, Tuning};

use crate::executor::block_on;
use crate::forbid;

const FORBIDDEN: [libc::c_long; 7] = [
    libc::SYS_io_uring_setup,
    libc::SYS_io_setup,
    libc::SYS_membarrier,
    libc::SYS_sched_setaffinity,
    libc::SYS_mbind,
    libc::SYS_openat2,
    libc::SYS_statx,
];

const PAGE: usize = 4096;
const PAGES: usize = 256;

#[test]
fn an_array_works_without_them_and_says_so() {
    alone!();
    forbid::install(&forbid::filter(&FORBIDDEN, libc::EPERM)).unwrap();
    assert!(!iomill::sys::barrier::available());
    for engine in [None, Some(EngineKind::Mmap)] {
        for drive_threads in [false, true] {
            // Beside the build, because `/tmp` may be in memory, where libaio is not used in any case.
            let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
            let options = ArrayOptions::new()
                .tuning(Tuning::new().drive_threads(drive_threads).topology(Topology::Emulate(2)))
                .cache_bytes((PAGES / 4 * PAGE) as u64);
            let options =
                if drive_threads { options.with_tuning(|tuning| tuning.cpu_map(vec![vec![0]])) } else { options };
            let options = if let Some(engine) = engine { options.engine(engine) } else { options };
            let array = options.create([place.path()]).unwrap();
            let file = array.create_file("file", &FileOptions::new()).unwrap();
            let page = |number: usize| vec![number as u8; PAGE];
            // Writes to pinned pages and evictions both use the heavy fence.
            thread::scope(|scope| {
                for first in 0..2 {
                    let file = &file;
                    scope.spawn(move || {
                        for number in (first..PAGES).step_by(2) {
                            file.write_at(&page(number), (number * PAGE) as u64).unwrap();
                            let pinned = file.pin(number as u64);
                            file.write_at(&page(number + 1), (number * PAGE) as u64).unwrap();
                            drop(pinned);
                        }
                    });
                }
            });
            file.sync().unwrap();
            let mut bytes = vec![0; PAGE];
            for number in 0..PAGES {
                file.read_at(&mut bytes, (number * PAGE) as u64).unwrap();
                assert_eq!(bytes, page(number + 1), "{engine:?} drive threads {drive_threads} {number}");
            }
            let notices = array.notices().join("\n");
            let said = |words: &str| {
                assert!(
                    notices.contains(words),
                    "{engine:?} drive threads {drive_threads}: {words:?} is not in {notices}"
                )
            };
            if engine.is_none() {
                said("io_uring is forbidden here");
                said("libaio is forbidden here (by a seccomp filter), using posix");
            }
            if drive_threads {
                said("the thread of drive 0 runs on any CPU");
            }
            drop(file);
            array.close().unwrap();
        }
    }
}

/// A filter may allow a ring's setup, and forbid registration with it.
///
/// Seen to fail when every refusal of the probe meant a kernel that is too old.
#[test]
fn a_ring_that_is_refused_in_part_is_called_forbidden() {
    alone!();
    forbid::install(&forbid::filter(&[libc::SYS_io_uring_register], libc::EPERM)).unwrap();
    let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let array = ArrayOptions::new().create([place.path()]).unwrap();
    let notices = array.notices().join("\n");
    assert!(notices.contains("io_uring is forbidden here (by a seccomp filter"), "{notices}");
    array.close().unwrap();
}

/// A sandbox may be closed after its files are open. The thread then has an engine that it may not use.
#[test]
fn an_engine_that_is_refused_later_is_replaced_by_calls() {
    alone!();
    let ring = (EngineKind::Uring, &[libc::SYS_io_uring_enter][..]);
    let aio = (EngineKind::Aio, &[libc::SYS_io_submit, libc::SYS_io_getevents][..]);
    let cases = [
        (ring, 0, libc::EPERM),
        (ring, 1 << 20, libc::EPERM),
        (ring, 0, libc::ENOSYS),
        (ring, 1 << 20, libc::EACCES),
        (aio, 0, libc::EPERM),
        (aio, 1 << 20, libc::ENOSYS),
    ];
    for ((engine, forbidden), cache_bytes, errno) in cases {
        let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let options = ArrayOptions::new().cache_bytes(cache_bytes).engine(engine);
        let array = match options.create([place.path()]) {
            Ok(array) => array,
            Err(error) => {
                println!("skipped: {engine} does not work here in any case: {error}");
                continue;
            }
        };
        let file = array.create_file("file", &FileOptions::new()).unwrap();
        file.write_at(&[7; 100 * PAGE], 0).unwrap();
        file.sync().unwrap();
        file.advise(.., Advice::DontNeed).unwrap();
        thread::scope(|scope| {
            let file = &file;
            scope.spawn(move || {
                let mut page = [0; PAGE];
                file.read_at(&mut page, 0).unwrap();
                block_on(file.read_async(50 * PAGE as u64, PAGE)).unwrap();
                forbid::install(&forbid::filter(forbidden, errno)).unwrap();
                for number in 20..30 {
                    file.read_at(&mut page, number * PAGE as u64).unwrap();
                    assert_eq!(page, [7; PAGE]);
                }
                let mut many = [0; 5 * PAGE];
                file.read_many(&mut many, &[33, 31, 35, 39, 37].map(|number| number * PAGE as u64), PAGE).unwrap();
                assert_eq!(many, [7; 5 * PAGE]);
                assert_eq!(block_on(file.read_async(60 * PAGE as u64, PAGE)).unwrap(), [7; PAGE]);
                file.write_at(&[8; PAGE], 0).unwrap();
                file.write_at(&[8; 10], 99 * PAGE as u64 + 1).unwrap();
                file.sync().unwrap();
            });
        });
        let notices = array.notices().join("\n");
        assert!(notices.contains(&format!("the kernel no longer serves {engine}")), "{notices}");
        // Other threads have engines of their own.
        let mut bytes = vec![0; 100 * PAGE];
        assert_eq!(file.read_at(&mut bytes, 0).unwrap(), bytes.len());
        let mut written = vec![7; 100 * PAGE];
        written[..PAGE].fill(8);
        written[99 * PAGE + 1..][..10].fill(8);
        assert!(bytes == written);
        file.write_at(&[9; PAGE], 0).unwrap();
        file.sync().unwrap();
        file.close().unwrap();
        array.close().unwrap();
    }
}

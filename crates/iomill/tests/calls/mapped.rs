//! Arrays with mapped parts (`EngineKind::Mmap`). Parts that are cut or fail are errors of calls. Growth and cuts go on
//! under readers. Without address space there are system calls.
//!
//! Non-goals: the behaviour of all engines (`engines.rs`), and kills (`kill.rs`).

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use iomill::{Array, ArrayOptions, EngineKind, Error, FileOptions, PutOptions, Tuning};
use tempfile::TempDir;

use crate::alone;

const MIB: u64 = 1 << 20;

fn drives(count: usize) -> (TempDir, Vec<PathBuf>) {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let drives: Vec<PathBuf> = (0..count).map(|drive| dir.path().join(format!("ssd{drive}"))).collect();
    drives.iter().for_each(|drive| std::fs::create_dir(drive).unwrap());
    (dir, drives)
}

/// Mapped, and without a cache above, which would serve calls before they reach the engine.
fn options(drive_threads: bool) -> ArrayOptions {
    ArrayOptions::new().engine(EngineKind::Mmap).cache_bytes(0).tuning(Tuning::new().drive_threads(drive_threads))
}

/// Whether this process has any of the drive's files mapped.
fn has_mapped(drive: &Path) -> bool {
    std::fs::read_to_string("/proc/self/maps").unwrap().contains(&*drive.to_string_lossy())
}

#[test]
fn a_part_that_is_cut_is_an_error_that_names_it() {
    for drive_threads in [false, true] {
        let (_dir, drives) = drives(2);
        let array = options(drive_threads).create(&drives).unwrap();
        let file = array.create_file("file", &FileOptions::new().block_bytes(65536)).unwrap();
        file.write_at(&vec![7; 4 * MIB as usize], 0).unwrap();
        file.sync().unwrap();
        let mut read = vec![0; 4 * MIB as usize];
        assert_eq!(file.read_at(&mut read, 0).unwrap(), read.len());
        assert!(has_mapped(&drives[1]), "drive threads {drive_threads}");
        let path = array.stat("file").unwrap().parts[1].0.clone();
        let part = OpenOptions::new().write(true).open(&path).unwrap();
        part.set_len(MIB).unwrap();
        // The read misses several blocks of the second part, and any of them may end first.
        let error = file.read_at(&mut read, 0).unwrap_err();
        assert!(
            matches!(&error, Error::PartCut { path: named, offset, .. } if *named == path && *offset >= MIB),
            "{error}"
        );
        for _ in 0..2 {
            let error = file.read_at(&mut read[..65536], 33 * 65536).unwrap_err();
            let Error::PartCut { path: named, offset, .. } = &error else {
                panic!("drive threads {drive_threads}: {error}")
            };
            assert_eq!((named, *offset), (&path, MIB), "{error}");
        }
        // The process goes on. The other part, and the rest of this one, still work.
        assert_eq!(file.read_at(&mut read[..MIB as usize], 0).unwrap(), MIB as usize);
        assert!(read[..MIB as usize].iter().all(|&byte| byte == 7));
        part.set_len(2 * MIB).unwrap();
        assert_eq!(file.read_at(&mut read, 0).unwrap(), read.len());
        drop(file);
        array.close().unwrap();
        assert!(!has_mapped(&drives[1]), "drive threads {drive_threads}: a closed array has its parts mapped");
    }
}

#[test]
fn files_grow_and_are_cut_while_others_read() {
    let (_dir, drives) = drives(2);
    let array = options(false).create(&drives).unwrap();
    let file = array.create_file("file", &FileOptions::new()).unwrap();
    file.write_at(&vec![1; MIB as usize], 0).unwrap();
    let (stop, reads) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut read = vec![0; 300_000];
                while !stop.load(Ordering::Relaxed) {
                    // Bytes that are always there, and bytes that come and go.
                    assert_eq!(file.read_at(&mut read, 1000).unwrap(), read.len());
                    assert!(read.iter().all(|&byte| byte == 1));
                    let len = file.read_at(&mut read, 3 * MIB + 100).unwrap();
                    assert!(read[..len].iter().all(|&byte| byte == 2), "what was never written");
                    reads.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let chunk = vec![2; MIB as usize];
        let mut round = 0;
        while round < 20 || reads.load(Ordering::Relaxed) < 100 {
            for at in 1..8 {
                file.write_at(&chunk, at * MIB).unwrap();
            }
            file.set_len(MIB).unwrap();
            round += 1;
        }
        stop.store(true, Ordering::Relaxed);
    });
    file.write_at(&[3; 10], 5 * MIB + 5).unwrap();
    file.close().unwrap();
    array.close().unwrap();
    // Another engine finds the same bytes.
    let array = Array::open(&drives[0]).unwrap();
    let file = array.open_file("file").unwrap();
    let mut read = vec![9; 6 * MIB as usize];
    assert_eq!(file.read_at(&mut read, 0).unwrap() as u64, 5 * MIB + 15);
    let (first, rest) = read[..5 * MIB as usize + 15].split_at(MIB as usize);
    let (hole, last) = rest.split_at(rest.len() - 10);
    assert!(first.iter().all(|&b| b == 1) && hole.iter().all(|&b| b == 0) && last == [3; 10]);
}

/// Several arrays of one set of options share a platform, but not their parts.
#[test]
fn arrays_of_one_platform_keep_their_parts_apart() {
    let ((_first_dir, first), (_second_dir, second)) = (drives(1), drives(1));
    let options = options(false);
    let arrays = [(&first, 1u8), (&second, 2)].map(|(drives, byte)| {
        let array = options.clone().create(drives).unwrap();
        let file = array.create_file("file", &FileOptions::new()).unwrap();
        file.write_at(&vec![byte; MIB as usize], 0).unwrap();
        (array, file, byte)
    });
    for (_, file, byte) in &arrays {
        let mut read = vec![0; MIB as usize];
        assert_eq!(file.read_at(&mut read, 0).unwrap(), read.len());
        assert!(read.iter().all(|b| b == byte));
    }
}

const TEST: &str = "calls::mapped::without_address_space_there_are_system_calls";

/// The variable with the drive's path, for the process with the limit.
const DRIVE: &str = "IOMILL_TEST_MAPPED_DRIVE";

#[test]
fn without_address_space_there_are_system_calls() {
    if let Some(drive) = std::env::var_os(DRIVE) {
        let drive = PathBuf::from(drive);
        let array = options(false).open(&drive).unwrap();
        let file = array.open_file("file").unwrap();
        let mut read = vec![0; 4096];
        for offset in [0, 100, 4000 * MIB - 4096] {
            assert_eq!(file.read_at(&mut read, offset).unwrap(), 4096);
        }
        file.write_at(&[5; 100], 70).unwrap();
        assert_eq!(file.read_at(&mut read, 0).unwrap(), 4096);
        assert!(read[70..170].iter().all(|&byte| byte == 5) && read[170..].iter().all(|&byte| byte == 0));
        println!("mapped={}", has_mapped(&drive));
        return;
    }
    let (_dir, drives) = drives(1);
    let array = options(false).create(&drives).unwrap();
    let file = array.create_file("file", &FileOptions::new()).unwrap();
    file.set_len(4000 * MIB).unwrap();
    file.close().unwrap();
    array.close().unwrap();
    // Less than the part; more than the part but less than its reservation; enough.
    let gib = 1 << 30;
    for (bytes, expected) in [(Some(2 * gib), false), (Some(7 * gib), true), (None, true)] {
        let mut command = alone::command(TEST);
        command.env(DRIVE, &drives[0]);
        bytes.into_iter().for_each(|bytes| alone::limit_addresses(&mut command, bytes));
        let told = alone::run(command);
        assert!(told.contains(&format!("mapped={expected}")), "{bytes:?}: {told}");
    }
}

/// The options of the queues serve mapped parts, too: a copy of neighbours is one request, unless merging is off.
#[test]
fn copies_of_neighbours_are_merged_unless_merging_is_off() {
    let (_dir, drives) = drives(1);
    let array = options(false).create(&drives).unwrap();
    array.put("file", &vec![7; 4 * MIB as usize], &PutOptions::new()).unwrap();
    array.close().unwrap();
    // The requests that were timed: one in 17 of those that reach the engine.
    let timed = |tuning: Tuning| {
        let array = options(false).tuning(tuning).open(&drives[0]).unwrap();
        let offsets: Vec<u64> = (0..1024).map(|page| page * 4096).collect();
        let mut out = vec![0; 4 * MIB as usize];
        array.open_file("file").unwrap().read_many(&mut out, &offsets, 4096).unwrap();
        array.counters().drives[0].latency.count()
    };
    let apart = timed(Tuning::new().merge(false));
    let merged = timed(Tuning::new());
    assert!(apart >= 50 && merged <= apart / 4, "{apart} timed requests without merging, {merged} with it");
}

//! Arrays opened where address space is limited.

use std::path::Path;

use iomill::{ArrayOptions, FileOptions};

use crate::alone;

/// The variable with the drive's path, for the process with the limit.
const DRIVE: &str = "IOMILL_TEST_DRIVE";

const TEST: &str = "address_space::a_default_cache_is_as_large_as_there_is_room_for";

/// Runs this test again in a process of its own, with a bound on its address space in bytes.
fn run_limited(bytes: Option<u64>, drive: &Path) -> String {
    let mut command = alone::command(TEST);
    command.env(DRIVE, drive);
    bytes.into_iter().for_each(|bytes| alone::limit_addresses(&mut command, bytes));
    alone::run(command)
}

fn limited(drive: &Path) {
    let array = ArrayOptions::new().open(drive).unwrap();
    println!("cache_bytes={}", array.counters().cache_bytes);
    println!("notices={:?}", array.notices());
    let file = array.open_file("file").unwrap();
    let mut bytes = vec![0; 1 << 20];
    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), 1 << 20);
    assert!(bytes.iter().all(|byte| *byte == 7));
    array.close().unwrap();
    // The requested size is granted, or refused in words.
    match ArrayOptions::new().cache_bytes(1 << 30).open(drive) {
        Ok(array) => println!("given={}", array.counters().cache_bytes),
        Err(error) => println!("refused={error}"),
    }
}

#[test]
fn a_default_cache_is_as_large_as_there_is_room_for() {
    if let Some(drive) = std::env::var_os(DRIVE) {
        return limited(Path::new(&drive));
    }
    let drive = tempfile::tempdir().unwrap();
    let array = ArrayOptions::new().cache_bytes(0).create([drive.path()]).unwrap();
    let file = array.create_file("file", &FileOptions::new()).unwrap();
    file.write_at(&vec![7; 1 << 20], 0).unwrap();
    file.close().unwrap();
    array.close().unwrap();
    let free = run_limited(None, drive.path());
    assert!(!free.contains("ulimit") && free.contains("given=1073"), "{free}");
    let held = run_limited(Some(400 << 20), drive.path());
    let bytes: u64 = held.split("cache_bytes=").nth(1).unwrap().lines().next().unwrap().parse().unwrap();
    assert!(bytes > 1 << 20 && bytes <= 100 << 20, "{held}");
    assert!(held.contains("address space is limited (`ulimit -v`)"), "{held}");
    assert!(held.contains("refused=no memory for a cache of"), "{held}");
}

//! All loops on the same parts.

use std::fs::{self, File};
use std::path::Path;

use iomill::{Array, ArrayOptions, FileOptions};

use super::*;

const PAGES: u32 = 256;
static NEVER: AtomicBool = AtomicBool::new(false);

fn limits(pages_max: u64) -> Limits<'static> {
    Limits { duration: Duration::from_secs(600), pages_max, stop: &NEVER }
}

/// An array with a file of all pages, and its parts.
fn array(dir: &Path) -> (Array, iomill::File, Vec<std::path::PathBuf>) {
    let drives: Vec<_> = (0..DRIVES).map(|index| dir.join(index.to_string())).collect();
    drives.iter().for_each(|drive| fs::create_dir(drive).unwrap());
    let array = ArrayOptions::new().cache_bytes(4 << 20).create(&drives).unwrap();
    let file = array.create_file("f", &FileOptions::new().block_bytes(BLOCK_BYTES)).unwrap();
    let mut bytes = vec![0; PAGES as usize * PAGE_BYTES];
    fill(0, &mut bytes);
    file.write_at(&bytes, 0).unwrap();
    file.sync().unwrap();
    let parts = array.stat("f").unwrap().parts.into_iter().map(|(path, _)| path).collect();
    (array, file, parts)
}

/// The loops by hand do without direct I/O here: the test may run on any file system.
fn all(array: &Array, file: &iomill::File, parts: &[std::path::PathBuf]) -> Vec<Box<dyn Reads>> {
    let open = || parts.iter().map(|part| File::open(part).unwrap()).collect::<Vec<_>>();
    let mapped = OneByOne::mapped(&open(), PAGES as usize / DRIVES * PAGE_BYTES, true, 1).unwrap();
    let mut loops: Vec<Box<dyn Reads>> = vec![
        Box::new(Gather::new(array, file, 8, 64).unwrap()),
        Box::new(OneByOne::read_at(array, file, 1).unwrap()),
        Box::new(OneByOne::pread(open(), 1).unwrap()),
        Box::new(mapped),
    ];
    // Containers often forbid io_uring.
    for depth in [1, 40] {
        loops.extend(Ring::new(open(), depth).ok().map(|ring| Box::new(ring) as Box<dyn Reads>));
    }
    loops
}

#[test]
fn each_loop_reads_each_page_and_times_single_reads() {
    let dir = tempfile::tempdir().unwrap();
    let (array, file, parts) = array(dir.path());
    for (index, mut reads) in all(&array, &file, &parts).into_iter().enumerate() {
        let (mut deck, mut count) = (Deck::shuffled(0..PAGES), Count::default());
        reads.run(&mut deck, &limits(PAGES.into()), &mut count).unwrap();
        let timed = if matches!(index, 0 | 5) { 0 } else { PAGES as usize };
        assert_eq!((count.pages, count.latencies_ns.len()), (PAGES.into(), timed), "loop {index}");
        reads.run(&mut deck, &limits(7), &mut count).unwrap();
        assert_eq!(count.pages, u64::from(PAGES) + 7, "loop {index} runs again, and only so far");
    }
}

#[test]
fn each_loop_notices_a_page_in_another_place() {
    let dir = tempfile::tempdir().unwrap();
    let (array, file, parts) = array(dir.path());
    for (index, mut reads) in all(&array, &file, &parts).into_iter().enumerate() {
        let mut wrong = vec![0; PAGE_BYTES];
        fill(99, &mut wrong);
        file.write_at(&wrong, 5 * PAGE_BYTES as u64).unwrap();
        file.sync().unwrap();
        let (mut deck, mut count) = (Deck::shuffled(0..PAGES), Count::default());
        let error = reads.run(&mut deck, &limits(PAGES.into()), &mut count).unwrap_err();
        assert!(error.to_string().contains("page 5 "), "loop {index}: {error}");
        fill(5, &mut wrong);
        file.write_at(&wrong, 5 * PAGE_BYTES as u64).unwrap();
        file.sync().unwrap();
        reads.run(&mut deck, &limits(PAGES.into()), &mut count).unwrap();
    }
}

#[test]
fn each_loop_ends_in_time_and_when_told_to() {
    let dir = tempfile::tempdir().unwrap();
    let (array, file, parts) = array(dir.path());
    let stop = AtomicBool::new(true);
    for (index, mut reads) in all(&array, &file, &parts).into_iter().enumerate() {
        for limits in
            [Limits { stop: &stop, ..limits(u64::MAX) }, Limits { duration: Duration::ZERO, ..limits(u64::MAX) }]
        {
            let mut count = Count::default();
            reads.run(&mut Deck::shuffled(0..PAGES), &limits, &mut count).unwrap();
            assert!((1..=64).contains(&count.pages), "loop {index}: {}", count.pages);
        }
    }
}

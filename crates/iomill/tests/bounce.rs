//! The memory through which unaligned I/O goes to and from the drives. The test has its own process, because it
//! measures the memory of all its threads.

use std::sync::Barrier;
use std::thread;

use iomill::{ArrayOptions, FileOptions};

const PAGE: usize = 4096;

/// Without a bound each of these threads would have 8 MiB of its own.
const THREADS: usize = 64;
const DRIVES: usize = 4;
const DEPTH: u32 = 128;

/// Rows of a thread's call: more than all slots of all drives.
const ROWS: usize = 1500;
const ROW: usize = 100;

/// Memory besides bounce memory: the threads' stacks, the bytes that they read, the allocator's arenas, in huge pages
/// too. Without a bound there would be 512 MiB.
const REST_BYTES: usize = 192 << 20;

fn anonymous_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}

/// Threads that have done unaligned I/O, and live on, keep a bounded amount of memory, for any number of threads.
#[test]
fn threads_share_the_memory_that_bounces() {
    alone!();
    let places: Vec<_> = (0..DRIVES).map(|_| tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()).collect();
    let array =
        ArrayOptions::new().cache_bytes(0).depth(DEPTH).create(places.iter().map(|place| place.path())).unwrap();
    let file = array.create_file("file", &FileOptions::new().block_bytes(64 << 10)).unwrap();
    let len = 4096 * PAGE;
    let content: Vec<u8> = (0..len / 8).flat_map(|word| (word as u64).to_le_bytes()).collect();
    file.write_at(&content, 0).unwrap();
    let before = anonymous_bytes();
    let (done, looked) = (Barrier::new(THREADS + 1), Barrier::new(THREADS + 1));
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (file, content, done, looked) = (&file, &content, &done, &looked);
            scope.spawn(move || {
                let offset = |row: usize| ((row * 7919 + thread * 31) % (len / ROW - 1) * ROW) as u64;
                let offsets: Vec<u64> = (0..ROWS).map(offset).collect();
                let mut bytes = vec![0; ROWS * ROW];
                file.read_many(&mut bytes, &offsets, ROW).unwrap();
                for (offset, row) in offsets.iter().zip(bytes.chunks(ROW)) {
                    assert!(row == &content[*offset as usize..][..ROW], "{offset}");
                }
                // The same bytes again, so that other threads may read them.
                let at = thread * ROW;
                file.write_at(&content[at..][..ROW], at as u64).unwrap();
                done.wait();
                looked.wait();
            });
        }
        done.wait();
        let taken = anonymous_bytes().saturating_sub(before);
        looked.wait();
        assert!(taken <= (128 << 20) + REST_BYTES, "{} MiB", taken >> 20);
    });
    drop(file);
    array.close().unwrap();
}

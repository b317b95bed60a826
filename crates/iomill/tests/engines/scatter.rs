//! Scattered memory: one request, many frames.

use iomill::engine::{MAX_SEGMENTS, Segment};

use super::*;

/// `count` segments of `pages` pages each, apart from each other, not in the order of their addresses.
fn frames(memory: &mut PageBuf, count: usize, pages: usize) -> Vec<Segment> {
    let start = memory.as_mut_ptr();
    // Seven has no divisor in common with the tested powers of two. One frame in two is left out.
    let at = |i: usize| start.wrapping_add((i * 7 % count) * 2 * pages * PAGE);
    (0..count).map(|i| Segment { buf: at(i), len: pages * PAGE }).collect()
}

fn scattered(slot: u32, op: Op, file: FileRef, offset: u64, list: &[Segment]) -> IoRequest {
    let len = list.iter().map(|at| at.len as u32).sum();
    IoRequest { slot, op, len, file, offset, memory: Memory::scatter(list) }
}

/// Whether a list's memory holds the pages from `number` on, and the frames between are zero.
fn holds(memory: &PageBuf, list: &[Segment], number: u64) -> bool {
    let mut rest = memory.as_slice().to_vec();
    let mut expected = number;
    let mut right = true;
    for segment in list {
        let at = segment.buf as usize - memory.as_slice().as_ptr() as usize;
        for page in rest[at..at + segment.len].chunks_mut(PAGE) {
            right &= page == page_bytes(expected);
            page.fill(0);
            expected += 1;
        }
    }
    right && rest.iter().all(|&byte| byte == 0)
}

#[test]
fn scattered_memory_reads_and_writes() {
    let dir = scratch();
    for (name, mut engine) in engines(&config(8)) {
        for (count, pages) in [(1, 1), (2, 3), (8, 2), (MAX_SEGMENTS, 1), (MAX_SEGMENTS, 4)] {
            let whole = count * pages;
            let file = paged_file(&dir, "pages", 8 * whole, 5);
            let mut memories: Vec<_> = (0..8).map(|_| PageBuf::new(2 * whole * PAGE).unwrap()).collect();
            let lists: Vec<_> = memories.iter_mut().map(|memory| frames(memory, count, pages)).collect();
            let offset = |slot: usize| ((7 - slot) * whole * PAGE) as u64;
            let batch = |op: Op| -> Vec<IoRequest> {
                let requests = lists.iter().enumerate();
                requests.map(|(i, list)| scattered(i as u32, op, named(&file, 1), offset(i), list)).collect()
            };
            let full = vec![(whole * PAGE) as i32; 8];
            assert_eq!(run(&mut *engine, &batch(Op::Read)), full, "{name}, {count} of {pages}");
            for (slot, memory) in memories.iter().enumerate() {
                let number = ((7 - slot) * whole + 5) as u64;
                assert!(holds(memory, &lists[slot], number), "{name}, {count} of {pages}, slot {slot}");
            }
            for (slot, list) in lists.iter().enumerate() {
                let mut number = (slot * 1000) as u64;
                for segment in list {
                    for page in 0..pages {
                        let bytes = page_bytes(number);
                        let place = segment.buf.wrapping_add(page * PAGE);
                        // SAFETY: the page is within the segment, and nothing is in flight.
                        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), place, PAGE) };
                        number += 1;
                    }
                }
            }
            assert_eq!(run(&mut *engine, &batch(Op::Write)), full, "{name}, {count} of {pages}");
            let written = fs::read(dir.path().join("pages")).unwrap();
            for slot in 0..8 {
                for page in 0..whole {
                    let found = &written[offset(slot) as usize + page * PAGE..][..PAGE];
                    let expected = page_bytes((slot * 1000 + page) as u64);
                    assert!(found == expected, "{name}, {count} of {pages}, slot {slot}, page {page}");
                }
            }
            engine.forget(1);
        }
    }
}

#[test]
fn scattered_memory_goes_with_memory_in_one_place_and_with_errors() {
    let dir = scratch();
    for (name, mut engine) in engines(&config(8)) {
        let file = paged_file(&dir, "pages", 8, 0);
        let mut memory = PageBuf::new(16 * PAGE).unwrap();
        let mut one = PageBuf::new(8 * PAGE).unwrap();
        let list = frames(&mut memory, 8, 1);
        let nothing = FileRef { handle: Handle(999_999), key: 2 };
        let mut askew = list.clone();
        askew[1].buf = askew[1].buf.wrapping_add(1);
        let end_of_file = scattered(0, Op::Read, named(&file, 1), 3 * PAGE as u64, &list);
        let bad_file = scattered(1, Op::Read, nothing, 0, &list[..2]);
        let bad_write = scattered(2, Op::Write, nothing, 0, &list[..2]);
        // A copy needs no alignment. For that engine the test uses an offset that no file has.
        let at = if name == "mmap" { u64::MAX - 4095 } else { 0 };
        let misaligned = scattered(3, Op::Write, named(&file, 1), at, &askew[1..3]);
        let plain = request(4, Op::Read, named(&file, 1), PAGE as u64, &mut one);
        let sync = IoRequest { len: 0, memory: Memory::NONE, ..request(5, Op::Sync, named(&file, 1), 0, &mut one) };
        let expected = [5 * PAGE as i32, -libc::EBADF, -libc::EBADF, -libc::EINVAL, PAGE as i32, 0];
        // Twice: an error must leave nothing behind.
        for _ in 0..2 {
            let batch = [bad_write, end_of_file, plain, misaligned, sync, bad_file];
            assert_eq!(run(&mut *engine, &batch), expected, "{name}");
        }
        assert!(one.as_slice()[4 * PAGE..5 * PAGE] == page_bytes(1), "{name}");
        assert!(holds(&memory, &list[..5], 3), "{name}: a read that ends with the file");
    }
}

#[test]
fn scattered_memory_works_where_nothing_need_be_aligned() {
    let dir = scratch();
    let path = dir.path().join("pages");
    for (name, mut engine) in engines(&config(4)) {
        let bytes: Vec<u8> = (0..100_000u32).map(|i| ((i * 7) >> 3) as u8).collect();
        fs::write(&path, &bytes).unwrap();
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let mut memory = PageBuf::new(2 * 64 * PAGE).unwrap();
        // A list such as a short transfer may leave.
        let mut list = frames(&mut memory, 16, 1);
        list[0] = Segment { buf: list[0].buf.wrapping_add(1234), len: PAGE - 1234 };
        let read = scattered(0, Op::Read, named(&file, 1), 1234, &list);
        assert_eq!(run(&mut *engine, &[read]), [16 * PAGE as i32 - 1234], "{name}");
        let mut at = 1234;
        for segment in &list {
            let first = segment.buf as usize - memory.as_slice().as_ptr() as usize;
            assert!(memory.as_slice()[first..first + segment.len] == bytes[at..at + segment.len], "{name}");
            at += segment.len;
        }
        let write = scattered(0, Op::Write, named(&file, 1), 20_001, &list);
        assert_eq!(run(&mut *engine, &[write]), [16 * PAGE as i32 - 1234], "{name}");
        let len = 16 * PAGE - 1234;
        assert!(fs::read(&path).unwrap()[20_001..20_001 + len] == bytes[1234..1234 + len], "{name}");
        engine.forget(1);
    }
}

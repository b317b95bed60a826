//! The queue over an engine that does what a test says: lists of scattered memory, the background's share, and merging.

// Helpers of tests may unwrap as tests do.
#![allow(clippy::unwrap_used)]

mod merging;
mod waits;

use std::io;
use std::time::Duration;

use super::*;
use crate::drive::Failure;
use crate::engine::{EngineKind, EngineWake, NO_REGION, NOT_BEGUN};
use crate::sys::memory::PageBuf;

const PART: FileRef = FileRef { handle: Handle(0), key: 7 };

/// A drive that takes requests; the test ends them.
#[derive(Default)]
struct Drive {
    bytes: Vec<u8>,
    requests: VecDeque<IoRequest>,
}

/// The segments of a request.
fn segments(request: &IoRequest) -> Vec<Segment> {
    match request.memory {
        Memory::One { buf, .. } => vec![Segment { buf, len: request.len as usize }],
        // SAFETY: the request is in flight, so its list is valid.
        Memory::Scatter { list, count } => unsafe { std::slice::from_raw_parts(list, usize::from(count)).to_vec() },
    }
}

impl Drive {
    /// Transfers the first `len` bytes of a request.
    fn transfer(&mut self, request: &IoRequest, len: usize) -> Completion {
        let mut at = request.offset as usize;
        let mut rest = len;
        for Segment { buf, len } in segments(request) {
            let now = len.min(rest);
            let bytes = &mut self.bytes[at..at + now];
            // SAFETY: the request is in flight, so its memory is valid. For a read, nothing else uses it.
            unsafe {
                match request.op {
                    Op::Read => std::ptr::copy_nonoverlapping(bytes.as_ptr(), buf, now),
                    _ => std::ptr::copy_nonoverlapping(buf, bytes.as_mut_ptr(), now),
                }
            }
            at += now;
            rest -= now;
        }
        assert_eq!(rest, 0, "the list names what is transferred");
        Completion { slot: request.slot, result: len as i32 }
    }
}

impl Engine for Drive {
    fn kind(&self) -> EngineKind {
        EngineKind::Simulated
    }
    unsafe fn push(&mut self, requests: &[IoRequest]) {
        self.requests.extend(requests);
    }
    fn wait(&mut self, _: usize, _: Option<Duration>, _: &mut Vec<Completion>) -> io::Result<()> {
        unreachable!("the tests end requests themselves")
    }
    fn waker(&self) -> Arc<dyn EngineWake> {
        unreachable!("no thread sleeps")
    }
}

/// A queue that looks like a lane's.
fn queue(depth: u32, unit: u32) -> Queue {
    let align = Alignment { offset: unit, memory: unit.min(512) };
    // SAFETY: the tests' drives do nothing by themselves.
    unsafe { Queue::new(depth, 100, align, Arc::default(), Bounce::new(depth).unwrap()) }
}

/// The end of a completion that ends one piece.
fn complete(queue: &mut Queue, completion: Completion) -> Option<Done> {
    let mut ends = Vec::new();
    queue.complete(completion, &mut ends);
    assert!(ends.len() <= 1, "{ends:?}");
    ends.pop()
}

/// Lengths in pages of the segments of every list here.
const PAGES: [usize; 4] = [1, 2, 1, 3];
const TOTAL: usize = 7 * PAGE_BYTES;

/// Memory for one list, and the list: the segments lie apart, and in another order than that of the file.
fn scattered(memory: &mut PageBuf) -> Vec<Segment> {
    let mut page = 1;
    let mut list: Vec<Segment> = Vec::new();
    for pages in PAGES.into_iter().rev() {
        let buf = memory.as_mut_slice()[page * PAGE_BYTES..].as_mut_ptr();
        list.push(Segment { buf, len: pages * PAGE_BYTES });
        page += pages + 1;
    }
    list.reverse();
    list
}

/// The bytes of a list's memory, in order.
fn gathered(list: &[Segment]) -> Vec<u8> {
    // SAFETY: the memory is a test's, which is not writing to it now.
    list.iter().flat_map(|at| unsafe { std::slice::from_raw_parts(at.buf, at.len) }.to_vec()).collect()
}

fn pattern(seed: usize) -> Vec<u8> {
    (0..TOTAL).map(|i| (i.wrapping_mul(31) + (i >> 9) * 7 + seed) as u8).collect()
}

fn piece(op: Op, list: &[Segment], offset: u64, tag: u32) -> Piece {
    let len = list.iter().map(|at| at.len as u32).sum();
    Piece { op, len, offset, tag, memory: Memory::scatter(list), ..Piece::sync(PART) }
}

/// Runs two scattered pieces side by side. Their transfers stop after a number of bytes, and the rest follows.
fn run_short(op: Op, unit: u32, stops: &[usize]) {
    let mut queue = queue(4, unit);
    let mut drive = Drive { bytes: [vec![0; PAGE_BYTES], pattern(1), pattern(2)].concat(), ..Drive::default() };
    let mut memories: Vec<_> = (0..2).map(|_| PageBuf::new(16 * PAGE_BYTES).unwrap()).collect();
    let lists: Vec<_> = memories.iter_mut().map(scattered).collect();
    let offsets = [PAGE_BYTES, PAGE_BYTES + TOTAL];
    for (tag, list) in lists.iter().enumerate() {
        if op == Op::Write {
            let bytes = pattern(tag + 5);
            let mut at = 0;
            for &Segment { buf, len } in list {
                // SAFETY: the memory is this test's and nothing is in flight.
                unsafe { std::ptr::copy_nonoverlapping(bytes[at..].as_ptr(), buf, len) };
                at += len;
            }
        }
        // SAFETY: memory and lists outlive the pieces, which end below.
        unsafe { queue.push(piece(op, list, offsets[tag] as u64, tag as u32)) };
    }
    let mut stops_left = [stops.iter(), stops.iter()];
    let mut moved = [0; 2];
    let mut done = Vec::new();
    while queue.in_flight() + queue.parked() > 0 {
        queue.dispatch(&mut drive);
        let request = drive.requests.pop_front().unwrap();
        let which = usize::from(request.offset as usize >= offsets[1]);
        assert_eq!(request.offset as usize, offsets[which] + moved[which], "{op:?} {unit} {stops:?}");
        assert_eq!(segments(&request).iter().map(|at| at.len).sum::<usize>(), TOTAL - moved[which]);
        assert_eq!(request.len as usize, TOTAL - moved[which]);
        let len = stops_left[which].next().map_or(TOTAL, |&stop| stop).min(request.len as usize);
        let completion = drive.transfer(&request, len);
        moved[which] += len;
        moved[which] -= if moved[which] < TOTAL { moved[which] % unit as usize } else { 0 };
        done.extend(complete(&mut queue, completion));
    }
    done.sort_by_key(|done| done.tag);
    assert!(done.iter().all(|done| done.result.is_ok()), "{op:?} {unit} {stops:?}: {done:?}");
    assert_eq!(done.iter().map(|done| done.tag).collect::<Vec<_>>(), [0, 1]);
    for which in 0..2 {
        let on_drive = &drive.bytes[offsets[which]..][..TOTAL];
        assert!(gathered(&lists[which]) == on_drive, "{op:?} {unit} {stops:?}");
        assert!(on_drive == pattern(if op == Op::Write { which + 5 } else { which + 1 }), "{op:?} {unit} {stops:?}");
    }
    let apart = memories.iter_mut().all(|memory| memory.as_slice()[..PAGE_BYTES].iter().all(|&byte| byte == 0));
    assert!(apart, "memory between the segments was touched");
}

#[test]
fn short_transfers_of_scattered_pieces_go_on_where_they_stopped() {
    let page = PAGE_BYTES;
    // Within a segment, at its end and about it, at a page's edge within one, at sectors, within the last page.
    let stops = [511, 512, 513, page - 1, page, page + 1, 2 * page, 3 * page, 4 * page, 4 * page + 512, TOTAL - 1];
    for op in [Op::Read, Op::Write] {
        for unit in [1, 512, page as u32] {
            for first in stops.into_iter().filter(|&stop| stop >= unit as usize) {
                run_short(op, unit, &[first]);
                for second in stops.into_iter().filter(|&stop| stop >= unit as usize) {
                    run_short(op, unit, &[first, second]);
                }
            }
        }
        run_short(op, 1, &[1; 100]);
        run_short(op, 512, &[512; 55]);
        run_short(op, page as u32, &[page; 6]);
    }
}

#[test]
fn a_scattered_piece_fails_where_it_stopped_and_passing_errors_do_not_disturb_it() {
    let mut queue = queue(1, 512);
    let mut drive = Drive { bytes: [vec![0; PAGE_BYTES], pattern(1)].concat(), ..Drive::default() };
    let mut memory = PageBuf::new(16 * PAGE_BYTES).unwrap();
    let list = scattered(&mut memory);
    for (result, fault) in [(-libc::EIO, Fault::Errno(libc::EIO)), (0, Fault::Cut((TOTAL - PAGE_BYTES - 512) as u64))] {
        // SAFETY: memory and list outlive the piece, which ends below.
        unsafe { queue.push(piece(Op::Read, &list, PAGE_BYTES as u64, 77)) };
        queue.dispatch(&mut drive);
        let request = drive.requests.pop_front().unwrap();
        let completion = drive.transfer(&request, PAGE_BYTES + 512);
        assert!(complete(&mut queue, completion).is_none());
        for _ in 0..3 {
            queue.dispatch(&mut drive);
            let request = drive.requests.pop_front().unwrap();
            let rest = segments(&request);
            assert_eq!(rest[0], Segment { buf: list[1].buf.wrapping_add(512), len: 2 * PAGE_BYTES - 512 });
            assert_eq!(rest[1..], list[2..]);
            assert!(complete(&mut queue, Completion { slot: 100, result: -libc::EAGAIN }).is_none());
        }
        queue.dispatch(&mut drive);
        drive.requests.pop_front().unwrap();
        let done = complete(&mut queue, Completion { slot: 100, result }).unwrap();
        let offset = (2 * PAGE_BYTES + 512) as u64;
        assert_eq!(done.result, Err(Failure { op: Op::Read, key: 7, offset, fault }));
        assert_eq!((done.tag, queue.in_flight()), (77, 0));
    }
}

/// A file system may answer a sync with any errno that a write behind it met, and only once: FUSE and SMB pass on what
/// the server says.
///
/// Seen to fail when a sync that ended with `EAGAIN` was tried again: the second one succeeds, and the loss is not
/// reported.
#[test]
fn a_sync_that_failed_is_not_tried_again() {
    let mut queue = queue(1, 512);
    let mut drive = Drive::default();
    for errno in [libc::EAGAIN, libc::EINTR, libc::ENOMEM, libc::ECANCELED, libc::EIO] {
        // SAFETY: a sync has no memory, and the engine touches no file.
        unsafe { queue.push(Piece::sync(FileRef { handle: Handle(1), key: 7 })) };
        queue.dispatch(&mut drive);
        drive.requests.pop_front().unwrap();
        let done = complete(&mut queue, Completion { slot: 100, result: -errno }).expect("it has ended");
        assert_eq!(done.result.map_err(|failure| failure.fault), Err(Fault::Errno(errno)));
    }
    // SAFETY: as above.
    unsafe { queue.push(Piece::sync(FileRef { handle: Handle(1), key: 7 })) };
    for _ in 0..3 {
        queue.dispatch(&mut drive);
        drive.requests.pop_front().unwrap();
        assert!(complete(&mut queue, Completion { slot: 100, result: NOT_BEGUN }).is_none(), "the kernel never had it");
    }
    queue.dispatch(&mut drive);
    assert_eq!(complete(&mut queue, Completion { slot: 100, result: 0 }).map(|done| done.result), Some(Ok(())));
}

/// The kernel gives up a buffered transfer when the thread that began it has ended. Writes failed then.
#[test]
fn a_transfer_of_a_thread_that_has_ended_is_begun_again() {
    let mut memory = PageBuf::new(PAGE_BYTES).unwrap();
    for op in [Op::Read, Op::Write] {
        let mut queue = queue(1, 512);
        let mut drive = Drive { bytes: vec![0; PAGE_BYTES], ..Drive::default() };
        let file = Piece::sync(FileRef { handle: Handle(1), key: 7 });
        let memory = Memory::one(memory.as_mut_ptr());
        // SAFETY: the memory outlives the piece, which ends below.
        unsafe { queue.push(Piece { op, len: PAGE_BYTES as u32, memory, ..file }) };
        for errno in [libc::EFAULT, libc::ECANCELED] {
            queue.dispatch(&mut drive);
            assert_eq!(drive.requests.pop_front().unwrap().op, op);
            assert!(complete(&mut queue, Completion { slot: 100, result: -errno }).is_none(), "{op:?}");
        }
        queue.dispatch(&mut drive);
        drive.requests.pop_front().unwrap();
        let done = complete(&mut queue, Completion { slot: 100, result: PAGE_BYTES as i32 }).unwrap();
        assert_eq!(done.result, Ok(()));
    }
}

#[test]
fn a_full_list_goes_on_too() {
    let mut queue = queue(2, 4096);
    let mut memory = PageBuf::new(2 * MAX_SEGMENTS * PAGE_BYTES).unwrap();
    let start = memory.as_mut_ptr();
    let at = |page: usize| Segment { buf: start.wrapping_add(2 * page * PAGE_BYTES), len: PAGE_BYTES };
    let list: Vec<_> = (0..MAX_SEGMENTS).map(at).collect();
    let mut drive = Drive { bytes: vec![9; MAX_SEGMENTS * PAGE_BYTES], ..Drive::default() };
    // SAFETY: memory and list outlive the piece, which ends below.
    unsafe { queue.push(piece(Op::Read, &list, 0, 1)) };
    for left in (1..=MAX_SEGMENTS).rev() {
        queue.dispatch(&mut drive);
        let request = drive.requests.pop_front().unwrap();
        assert_eq!(segments(&request), list[MAX_SEGMENTS - left..]);
        let completion = drive.transfer(&request, PAGE_BYTES);
        assert_eq!(complete(&mut queue, completion).is_some(), left == 1);
    }
    assert!(gathered(&list).iter().all(|&byte| byte == 9));
}

#[test]
#[should_panic(expected = "a list of 65 segments")]
fn a_list_that_is_too_long_is_refused() {
    let mut queue = queue(1, 4096);
    let nothing = Segment { buf: std::ptr::null_mut(), len: 0 };
    let list = [nothing; MAX_SEGMENTS + 1];
    let memory = Memory::Scatter { list: list.as_ptr(), count: list.len() as u16 };
    // SAFETY: the piece is refused.
    unsafe { queue.push(Piece { memory, op: Op::Read, ..Piece::sync(PART) }) };
}

/// Ends the oldest request and starts what fits. Returns the class of the ended piece (its tag says it), and how many
/// slots the background then holds.
fn turn(queue: &mut Queue, drive: &mut Drive) -> (u32, usize) {
    let request = drive.requests.pop_front().unwrap();
    let done = complete(queue, Completion { slot: request.slot, result: 0 }).unwrap();
    queue.dispatch(drive);
    (done.tag, queue.slots.iter().filter(|slot| slot.phase != Phase::Free && slot.piece.tag == 1).count())
}

fn push(queue: &mut Queue, class: Class, count: usize) {
    for _ in 0..count {
        let tag = u32::from(class == Class::Background);
        // SAFETY: a sync has no memory, and the drive of a test no files.
        unsafe { queue.push(Piece { class, tag, ..Piece::sync(PART) }) };
    }
}

#[test]
fn the_background_never_holds_more_than_its_share() {
    for (depth, share) in [(1, 1), (2, 1), (4, 1), (7, 1), (8, 2), (32, 8)] {
        let mut queue = queue(depth, 4096);
        let mut drive = Drive::default();
        push(&mut queue, Class::Background, 100);
        queue.dispatch(&mut drive);
        assert_eq!(queue.in_flight(), share, "depth {depth}: alone");
        let held = if depth > 1 { 100 - share } else { 0 };
        assert_eq!(queue.held_back(), held, "depth {depth}");
        push(&mut queue, Class::Foreground, 400);
        queue.dispatch(&mut drive);
        assert_eq!(queue.in_flight(), depth as usize, "depth {depth}: the rest of the slots is the foreground's");
        let mut since = 0;
        while !queue.foreground.is_empty() {
            let (class, held) = turn(&mut queue, &mut drive);
            assert!(held <= share, "depth {depth}: {held} slots");
            assert_eq!(queue.in_flight(), depth as usize, "depth {depth}: no slot is idle");
            since = if class == 1 { 0 } else { since + 1 };
            // A turn in eight, and what else was in flight then.
            assert!(since < 8 + depth, "depth {depth}: the background starves");
        }
        while queue.in_flight() > 0 {
            turn(&mut queue, &mut drive);
        }
        assert_eq!(queue.parked(), 0);
    }
}

#[test]
fn background_pieces_that_were_blocked_keep_to_the_share() {
    let mut queue = queue(8, 4096);
    let mut drive = Drive::default();
    let mut memory = PageBuf::new(PAGE_BYTES).unwrap();
    let locks = Arc::clone(&queue.locks);
    assert!(locks.try_exclusive(3));
    let write = Piece {
        op: Op::Write,
        class: Class::Background,
        tag: 1,
        lock: 3,
        len: PAGE_BYTES as u32,
        memory: Memory::one(memory.as_mut_ptr()),
        ..Piece::sync(PART)
    };
    // SAFETY: the memory outlives the pieces.
    (0..10).for_each(|_| unsafe { queue.push(write) });
    queue.dispatch(&mut drive);
    assert_eq!((queue.in_flight(), queue.blocked()), (0, 10));
    locks.release_exclusive(3);
    let mut ended = 0;
    queue.dispatch(&mut drive);
    while let Some(request) = drive.requests.pop_front() {
        assert!(queue.in_flight() <= 2, "{}", queue.in_flight());
        let done = complete(&mut queue, Completion { slot: request.slot, result: PAGE_BYTES as i32 }).unwrap();
        assert!(done.result.is_ok());
        ended += 1;
        queue.dispatch(&mut drive);
    }
    assert_eq!((ended, queue.in_flight(), queue.parked()), (10, 0, 0));
}

//! Order, merging, and what a merged I/O's end means for its pieces.

use super::*;
use crate::drive::locks::BlockLocks;

pub(super) const PAGE: u64 = PAGE_BYTES as u64;

#[derive(Debug)]
struct Still;

impl Clock for Still {
    fn now_ns(&self) -> u64 {
        0
    }
    fn sleep(&self, _: Duration) {}
}

/// A queue that merges, its drive, and memory of `pages` pages that do not touch.
pub(super) struct Bench {
    pub(super) queue: Queue,
    pub(super) drive: Drive,
    memory: PageBuf,
    pub(super) ends: Vec<Done>,
}

pub(super) fn bench(depth: u32, batching: Batching, pages: usize) -> Bench {
    let mut queue = queue(depth, 512);
    queue.batch(batching, Arc::new(Still));
    let drive =
        Drive { bytes: (0..pages * PAGE_BYTES).map(|at| (at / PAGE_BYTES + 1) as u8).collect(), ..Drive::default() };
    let memory = PageBuf::new(2 * pages * PAGE_BYTES).unwrap();
    Bench { queue, drive, memory, ends: Vec::new() }
}

impl Bench {
    pub(super) fn buf(&mut self, page: u64) -> *mut u8 {
        self.memory.as_mut_ptr().wrapping_add(2 * page as usize * PAGE_BYTES)
    }

    /// One page; its tag is its number.
    pub(super) fn page(&mut self, op: Op, page: u64) -> Piece {
        let memory = Memory::one(self.buf(page));
        Piece { op, len: PAGE as u32, offset: page * PAGE, tag: page as u32, memory, ..Piece::sync(PART) }
    }

    pub(super) fn push(&mut self, pieces: impl IntoIterator<Item = Piece>) {
        // SAFETY: the memory is the bench's, which outlives its queue's use of it.
        pieces.into_iter().for_each(|piece| unsafe { self.queue.push(piece) });
    }

    pub(super) fn push_pages(&mut self, op: Op, pages: impl IntoIterator<Item = u64>) {
        let pieces: Vec<_> = pages.into_iter().map(|page| self.page(op, page)).collect();
        self.push(pieces);
    }

    /// First page and number of pages of what is dispatched.
    pub(super) fn dispatched(&mut self) -> Vec<(u64, u64)> {
        let before = self.drive.requests.len();
        self.queue.dispatch(&mut self.drive);
        let shape = |request: &IoRequest| (request.offset / PAGE, u64::from(request.len) / PAGE);
        self.drive.requests.iter().skip(before).map(shape).collect()
    }

    /// Ends the oldest request, after a number of bytes or after all.
    pub(super) fn end(&mut self, len: Option<usize>) {
        let request = self.drive.requests.pop_front().unwrap();
        let completion = self.drive.transfer(&request, len.unwrap_or(request.len as usize));
        self.queue.complete(completion, &mut self.ends);
    }

    fn fail(&mut self, errno: i32) {
        let request = self.drive.requests.pop_front().unwrap();
        self.queue.complete(Completion { slot: request.slot, result: -errno }, &mut self.ends);
    }

    /// Tags of what has ended well, and of what has failed, in order.
    fn outcomes(&mut self) -> (Vec<u32>, Vec<u32>) {
        self.ends.sort_by_key(|end| end.tag);
        let (well, failed): (Vec<_>, Vec<_>) = self.ends.drain(..).partition(|end| end.result.is_ok());
        let tags = |ends: Vec<Done>| ends.iter().map(|end| end.tag).collect();
        (tags(well), tags(failed))
    }
}

#[test]
fn shuffled_neighbours_travel_as_one_and_each_gets_its_bytes() {
    let mut bench = bench(2, Batching::default(), 8);
    bench.push_pages(Op::Read, [5, 2, 7, 0, 4, 6, 1, 3]);
    assert_eq!(bench.dispatched(), [(0, 8)]);
    assert_eq!(bench.queue.in_flight(), 1, "a slot is taken for what is dispatched, not for a piece");
    bench.end(None);
    assert_eq!(bench.outcomes(), ((0..8).collect(), vec![]));
    for page in 0..8 {
        let start = 2 * page * PAGE_BYTES;
        assert!(bench.memory.as_slice()[start..][..PAGE_BYTES].iter().all(|&byte| byte == page as u8 + 1));
        assert!(bench.memory.as_slice()[start + PAGE_BYTES..][..PAGE_BYTES].iter().all(|&byte| byte == 0));
    }
}

#[test]
fn each_switch_switches_its_part() {
    let shuffled = [2, 3, 0, 1, 9];
    for (batching, expected) in [
        (Batching::NONE, vec![(2, 1), (3, 1), (0, 1), (1, 1), (9, 1)]),
        (Batching { sort: true, ..Batching::NONE }, vec![(0, 1), (1, 1), (2, 1), (3, 1), (9, 1)]),
        (Batching { merge: true, ..Batching::NONE }, vec![(2, 2), (0, 2), (9, 1)]),
        (Batching::default(), vec![(0, 4), (9, 1)]),
    ] {
        let mut bench = bench(8, batching, 10);
        bench.push_pages(Op::Read, shuffled);
        assert_eq!(bench.dispatched(), expected, "{batching:?}");
    }
}

#[test]
fn what_has_no_neighbours_keeps_its_order() {
    let mut bench = bench(64, Batching::default(), 200);
    let apart: Vec<u64> = (0..64).map(|at| (at * 37 % 64) * 3).collect();
    bench.push_pages(Op::Read, apart.clone());
    let expected: Vec<_> = apart.into_iter().map(|page| (page, 1)).collect();
    assert_eq!(bench.dispatched(), expected);
}

#[test]
fn merging_is_bounded_by_segments_bytes_and_windows() {
    let mut bench = bench(8, Batching::default(), 100);
    bench.push_pages(Op::Read, 0..100);
    assert_eq!(bench.dispatched(), [(0, 64), (64, 36)]);
    // 96 KiB each: three would be more than a piece may be.
    let mut bench = self::bench(8, Batching::default(), 120);
    let long: Vec<_> = (0..5).map(|at| Piece { len: 24 * PAGE as u32, ..bench.page(Op::Read, at * 24) }).collect();
    bench.push(long);
    assert_eq!(bench.dispatched(), [(0, 48), (48, 48), (96, 24)]);
}

#[test]
fn nothing_is_merged_across_classes_operations_parts_and_syncs() {
    let mut bench = bench(32, Batching::default(), 20);
    let mut pieces: Vec<_> = (0..20).map(|page| bench.page(Op::Read, page)).collect();
    pieces[2..4].iter_mut().for_each(|piece| piece.class = Class::Background);
    pieces[6..8].iter_mut().for_each(|piece| piece.op = Op::Write);
    pieces[10..12].iter_mut().for_each(|piece| piece.file.key = 8);
    pieces.insert(14, Piece { tag: 99, ..Piece::sync(PART) });
    bench.push(pieces);
    let mut found = bench.dispatched();
    let sync = bench.drive.requests.iter().position(|request| request.op == Op::Sync).unwrap();
    let before: Vec<u64> = found[..sync].iter().filter(|at| at.0 != 2).map(|at| at.0).collect();
    assert!(before.iter().all(|&page| page < 14), "{found:?}");
    assert!(found[sync + 1..].iter().all(|at| at.0 >= 14 || at.0 == 2), "{found:?}");
    found.remove(sync);
    found.sort_unstable();
    assert_eq!(found, [(0, 2), (2, 2), (4, 2), (6, 2), (8, 2), (10, 2), (12, 2), (14, 6)]);
}

#[test]
fn memory_that_touches_stays_in_one_place_and_registered() {
    let mut bench = bench(4, Batching::default(), 12);
    let start = bench.memory.as_mut_ptr();
    let at = |page: u64, region| Memory::One { buf: start.wrapping_add(page as usize * PAGE_BYTES), region };
    let regions = [3, 3, 3, 3, 3, 3, 4, 4];
    let pieces: Vec<_> =
        (0..8).map(|page| Piece { memory: at(page, regions[page as usize]), ..bench.page(Op::Read, page) }).collect();
    bench.push(pieces[..4].iter().copied());
    bench.queue.dispatch(&mut bench.drive);
    bench.push(pieces[4..].iter().copied());
    bench.queue.unplug();
    bench.queue.dispatch(&mut bench.drive);
    let memories: Vec<_> = bench.drive.requests.iter().map(|request| request.memory).collect();
    assert!(matches!(memories[0], Memory::One { buf, region: 3 } if buf == start), "{memories:?}");
    assert!(matches!(memories[1], Memory::One { region: NO_REGION, .. }), "{memories:?}");
    bench.end(None);
    bench.end(None);
    assert_eq!(bench.outcomes().0.len(), 8);
}

#[test]
fn only_the_pieces_concerned_fail() {
    for op in [Op::Read, Op::Write] {
        let mut bench = bench(4, Batching::default(), 8);
        bench.push_pages(op, 0..8);
        assert_eq!(bench.dispatched(), [(0, 8)]);
        // It stops within the third page, and then fails.
        bench.end(Some(2 * PAGE_BYTES + 700));
        assert_eq!(bench.outcomes(), (vec![], vec![]));
        bench.queue.dispatch(&mut bench.drive);
        assert_eq!(bench.drive.requests[0].offset, 2 * PAGE + 512, "it goes on at a sector");
        bench.fail(libc::EIO);
        assert_eq!(bench.outcomes(), (vec![0, 1], vec![]), "{op:?}");
        // The other pieces go by themselves, four at a time, although they are neighbours.
        let mut failed = Vec::new();
        let mut well = Vec::new();
        while bench.queue.parked() + bench.queue.in_flight() > 0 {
            let again = bench.dispatched();
            assert!(again.iter().all(|&(_, pages)| pages == 1), "{again:?}");
            match bench.drive.requests[0].offset / PAGE {
                2 | 5 => bench.fail(libc::EIO),
                _ => bench.end(None),
            }
            let now = bench.outcomes();
            well.extend(now.0);
            failed.extend(now.1);
        }
        assert_eq!((well, failed), (vec![3, 4, 6, 7], vec![2, 5]), "{op:?}");
        assert!(bench.queue.locks.try_exclusive(0), "{op:?}: a lock was kept");
        assert_eq!((bench.queue.pieces_in_flight, bench.queue.background_slots), ([0, 0], 0));
    }
}

#[test]
fn a_part_that_ends_early_fails_the_pieces_beyond_its_end() {
    let mut bench = bench(8, Batching::default(), 4);
    bench.push_pages(Op::Read, 0..4);
    bench.queue.dispatch(&mut bench.drive);
    bench.end(Some(PAGE_BYTES + 100));
    let mut cut = Vec::new();
    while bench.queue.parked() + bench.queue.in_flight() > 0 {
        bench.queue.dispatch(&mut bench.drive);
        let request = bench.drive.requests.pop_front().unwrap();
        bench.queue.complete(Completion { slot: request.slot, result: 0 }, &mut bench.ends);
    }
    cut.extend(
        bench.ends.iter().filter_map(|end| end.result.err()).map(|failure| (failure.offset / PAGE, failure.fault)),
    );
    assert_eq!(cut, [1, 2, 3].map(|page| (page, Fault::Cut(PAGE))));
    assert_eq!(bench.outcomes(), (vec![0], vec![1, 2, 3]));
}

#[test]
fn a_locked_block_ends_a_run_and_locks_are_given_back() {
    let locks = Arc::new(BlockLocks::default());
    let mut bench = bench(8, Batching::default(), 8);
    bench.queue.locks = Arc::clone(&locks);
    let mut pieces: Vec<_> = (0..8).map(|page| bench.page(Op::Write, page)).collect();
    pieces.iter_mut().for_each(|piece| piece.lock = piece.tag / 2);
    assert!(locks.try_exclusive(2));
    bench.push(pieces);
    assert_eq!(bench.dispatched(), [(0, 4), (6, 2)]);
    assert_eq!(bench.queue.blocked(), 2);
    assert!(!locks.try_exclusive(0) && locks.try_shared(3), "held while they are in flight");
    locks.release_shared(3);
    locks.release_exclusive(2);
    assert_eq!(bench.dispatched(), [(4, 1), (5, 1)], "what was blocked goes by itself");
    (0..4).for_each(|_| bench.end(None));
    assert_eq!(bench.outcomes().0.len(), 8);
    assert!((0..4).all(|lock| locks.try_exclusive(lock)), "all are given back");
}

#[test]
fn a_stream_gathers_while_the_drive_is_busy_and_no_other_piece_waits() {
    let mut bench = bench(32, Batching { plug: 4, ..Batching::default() }, 64);
    bench.push_pages(Op::Read, [0]);
    assert_eq!(bench.dispatched(), [(0, 1)], "nothing is known of it yet");
    bench.push_pages(Op::Read, [1]);
    assert_eq!(bench.dispatched(), [(1, 1)]);
    // Now it is a stream: two are in flight, so two are worth waiting for.
    bench.push_pages(Op::Read, [2]);
    assert_eq!((bench.dispatched(), bench.queue.held_back()), (vec![], 1));
    bench.push_pages(Op::Read, [3]);
    assert_eq!((bench.dispatched(), bench.queue.held_back()), (vec![(2, 2)], 0));
    bench.push_pages(Op::Read, [4, 5, 6]);
    assert_eq!(bench.dispatched(), []);
    bench.push_pages(Op::Read, [7]);
    assert_eq!(bench.dispatched(), [(4, 4)], "never more than the plug");
    bench.push_pages(Op::Read, [8]);
    assert_eq!(bench.dispatched(), []);
    bench.queue.unplug();
    assert_eq!(bench.dispatched(), [(8, 1)], "a caller waits");
    bench.push_pages(Op::Read, [9]);
    assert_eq!(bench.dispatched(), []);
    while bench.queue.in_flight() > 0 {
        bench.end(None);
    }
    assert_eq!(bench.dispatched(), [(9, 1)], "the drive does not idle");
    bench.push_pages(Op::Read, [40]);
    bench.end(None);
    assert_eq!(bench.dispatched(), [(40, 1)]);
    bench.push_pages(Op::Read, [20]);
    assert_eq!(bench.dispatched(), [(20, 1)], "the stream is over");
}

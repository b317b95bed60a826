//! How long a piece waits at most, whatever else comes: for neighbours, for its turn, and for its block's lock.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use super::merging::{Bench, PAGE, bench};
use super::*;
use crate::drive::bounce::Purse;

/// Pages of a file that the tests read without ever meeting a neighbour.
const FAR: u64 = 1000;

impl Bench {
    fn push_as(&mut self, class: Class, pages: impl IntoIterator<Item = u64>) {
        // What is far out needs no memory of its own: the drive transfers nothing.
        let buf = self.buf(0);
        let pieces: Vec<_> = pages
            .into_iter()
            .map(|page| Piece { class, offset: page * PAGE, memory: Memory::one(buf), ..self.page(Op::Read, 0) })
            .collect();
        self.push(pieces);
    }

    /// Ends a request by its place, without a transfer.
    fn end_at(&mut self, place: usize) {
        let request = self.drive.requests.remove(place).unwrap();
        self.queue.complete(Completion { slot: request.slot, result: request.len as i32 }, &mut self.ends);
    }

    /// Lets neighbours of a class come and go. After that the queue waits for neighbours of that class.
    fn expect_company(&mut self, class: Class) {
        self.push_as(class, 0..4);
        self.queue.dispatch(&mut self.drive);
        assert_eq!(self.drive.requests.len(), 1, "they travel as one");
        self.end_at(0);
        assert_eq!((self.queue.in_flight(), self.queue.parked()), (0, 0));
    }
}

/// How many I/Os end before the pieces of `class` no longer wait, while the other class always has so many pieces in
/// flight.
fn ends_before(class: Class, waits: u64, other: u64) -> usize {
    let mut bench = bench(128, Batching::default(), 8);
    bench.expect_company(class);
    let company = if class == Class::Foreground { Class::Background } else { Class::Foreground };
    bench.push_as(company, (0..other).map(|at| FAR + 3 * at));
    bench.queue.dispatch(&mut bench.drive);
    assert_eq!(bench.queue.in_flight() as u64, other);
    bench.push_as(class, (0..waits).map(|at| 10 + at));
    for ends in 0..10_000 {
        bench.queue.dispatch(&mut bench.drive);
        if bench.queue.waiting(class).is_empty() {
            return ends;
        }
        bench.end_at(0);
        bench.push_as(company, [FAR + 3 * (other + ends as u64)]);
    }
    10_000
}

#[test]
fn no_class_waits_for_company_of_the_other() {
    for other in [6, 12, 32] {
        assert_eq!(ends_before(Class::Background, 4, other), 0, "{other} foreground reads in flight");
        assert_eq!(ends_before(Class::Foreground, 1, other), 0, "{other} pieces of the background in flight");
    }
}

/// Rule 4: also where the drive is slow with the pieces in flight by which the batch is measured.
#[test]
fn company_is_waited_for_while_so_many_ios_end_and_no_longer() {
    for class in [Class::Foreground, Class::Background] {
        let other = if class == Class::Foreground { Class::Background } else { Class::Foreground };
        let mut bench = bench(64, Batching { plug: 16, ..Batching::default() }, 8);
        bench.expect_company(class);
        bench.push_as(class, 100..140);
        bench.push_as(other, [FAR]);
        bench.queue.dispatch(&mut bench.drive);
        assert_eq!(bench.drive.requests.len(), 2);
        bench.push_as(class, [10]);
        for ends in 0..16 {
            bench.queue.dispatch(&mut bench.drive);
            assert_eq!(bench.queue.waiting(class).len(), 1, "{class:?} after {ends} ends: forty are in flight");
            assert_eq!(bench.queue.held_back(), 1);
            // The long request stays.
            let short = bench.drive.requests.iter().position(|request| request.offset >= FAR * PAGE).unwrap();
            bench.end_at(short);
            bench.push_as(other, [FAR + 3 * (ends + 1)]);
        }
        bench.queue.dispatch(&mut bench.drive);
        assert_eq!(bench.queue.waiting(class).len(), 0, "{class:?}");
    }
}

/// Rule 5: a batch is sent on whole.
#[test]
fn what_is_sent_on_goes_whole_as_slots_become_free() {
    let mut bench = bench(3, Batching::default(), 8);
    bench.push_as(Class::Foreground, [0, 1, 2, 3, 10, 11, 12, 13, 20, 21, 22, 23, 30, 31]);
    assert_eq!(bench.dispatched(), [(0, 4), (10, 4), (20, 4)]);
    bench.end_at(0);
    assert_eq!(bench.dispatched(), [(30, 2)], "two of fourteen, though eight are in flight");
    bench.end_at(0);
    bench.push_as(Class::Foreground, [32]);
    assert_eq!(bench.dispatched(), [], "what comes later waits for neighbours of its own");
}

/// Pieces that do not get their locks keep the order in which they came, also where there is room for some of them
/// only.
#[test]
fn blocked_pieces_keep_their_order() {
    let mut bench = bench(2, Batching::NONE, 8);
    let locks = Arc::clone(&bench.queue.locks);
    (0..3).for_each(|lock| assert!(locks.try_exclusive(lock)));
    let pieces: Vec<_> =
        [0, 1, 2, 1].into_iter().zip(0..).map(|(lock, page)| Piece { lock, ..bench.page(Op::Write, page) }).collect();
    bench.push(pieces);
    assert_eq!(bench.dispatched(), []);
    locks.release_exclusive(1);
    locks.release_exclusive(2);
    assert_eq!(bench.dispatched(), [(1, 1), (2, 1)]);
    locks.release_exclusive(0);
    bench.end_at(0);
    assert_eq!(bench.dispatched(), [(0, 1)], "it came before the one on lock 1");
}

#[derive(Debug, Default)]
struct Ticks(AtomicU64);

impl Clock for Ticks {
    fn now_ns(&self) -> u64 {
        self.0.fetch_add(50_000, Ordering::Relaxed)
    }
    fn sleep(&self, _: Duration) {}
}

/// What the pieces of a class are like.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// One page after the other.
    Near,
    Far,
    /// Reads and writes, near and far, of whole pages and of parts of some, on few locks.
    Mixed,
}

/// A queue under a closed load of both classes.
struct Load {
    queue: Queue,
    drive: Drive,
    depth: usize,
    plug: usize,
    kinds: [Kind; 2],
    /// Pieces outstanding at most, by class.
    most: [usize; 2],
    out: [usize; 2],
    /// Pieces pushed, by class.
    next: [u64; 2],
    /// By tag: the class, how many were parked when it came, and how many I/Os had ended.
    pieces: HashMap<u32, (Class, usize, usize)>,
    ended: usize,
    random: u64,
}

impl Load {
    fn random(&mut self, below: u64) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % below
    }

    /// The bound of rule 8. A window is not longer than the number of outstanding pieces.
    fn bound(&self, parked: usize) -> usize {
        let window = (self.most[0] + self.most[1]).min(waiting::WINDOW);
        self.plug + 2 * (parked + window) * (self.depth + BACKGROUND_TURN as usize)
    }

    fn check(&self, tag: u32) {
        let (class, parked, came) = self.pieces[&tag];
        let (waited, bound) = (self.ended - came, self.bound(parked));
        assert!(waited <= bound, "{class:?} waited for {waited} ends, {parked} before it: {bound} at most");
    }

    fn push(&mut self, class: Class, memory: *mut u8, tag: u32) {
        let lock = self.random(2) as u32;
        let near = self.next[class as usize] % 512;
        self.next[class as usize] += 1;
        let kind = match self.kinds[class as usize] {
            Kind::Near => 2,
            Kind::Far => 0,
            Kind::Mixed => self.random(8),
        };
        let (op, page, within, len) = match kind {
            0 | 1 => (Op::Read, FAR + self.random(1 << 20) * 3, 0, PAGE as u32),
            2..5 => (Op::Read, near, 0, PAGE as u32),
            5 | 6 => (Op::Write, near, 0, PAGE as u32),
            _ => (Op::Write, near, 8, 100),
        };
        let parked = self.queue.parked();
        let offset = page * PAGE + within;
        let piece = Piece { op, class, tag, lock, len, offset, memory: Memory::one(memory), ..Piece::sync(PART) };
        self.pieces.insert(tag, (class, parked, self.ended));
        self.out[class as usize] += 1;
        // SAFETY: the memory is the test's, which outlives the queue's use of it, and the drive transfers nothing.
        unsafe { self.queue.push(piece) };
    }

    fn run(&mut self, memory: *mut u8, ends: usize) {
        let mut tag = 0;
        let mut done = Vec::new();
        while self.ended < ends {
            for class in [Class::Foreground, Class::Background] {
                // Now and then all at once, mostly one by one.
                let eager = self.random(4) > 0;
                while self.out[class as usize] < self.most[class as usize] && (eager || self.drive.requests.is_empty())
                {
                    self.push(class, memory, tag);
                    tag += 1;
                }
            }
            self.queue.dispatch(&mut self.drive);
            let Some(request) = self.drive.requests.pop_front() else { panic!("a drive with work idles") };
            let fails = request.op == Op::Read && self.random(100) == 0;
            let result = if fails { -libc::EIO } else { request.len as i32 };
            self.queue.complete(Completion { slot: request.slot, result }, &mut done);
            self.ended += 1;
            for end in done.drain(..) {
                self.check(end.tag);
                if let Some((class, ..)) = self.pieces.remove(&end.tag) {
                    self.out[class as usize] -= 1;
                }
            }
        }
        self.pieces.keys().for_each(|&tag| self.check(tag));
    }
}

#[test]
fn every_piece_has_its_turn_within_the_bound() {
    let mut memory = PageBuf::new(PAGE_BYTES).unwrap();
    let kinds = [[Kind::Far, Kind::Near], [Kind::Near, Kind::Far], [Kind::Near; 2], [Kind::Mixed; 2]];
    for (seed, depth) in [1_usize, 4, 32].into_iter().enumerate() {
        for (kinds, most) in kinds.into_iter().flat_map(|kinds| [[6, 4], [1, 12], [12, 12]].map(|most| (kinds, most))) {
            let batching = Batching { adaptive: seed % 2 == 1, ..Batching::default() };
            let mut queue = queue(depth as u32, 512);
            queue.batch(batching, Arc::new(Ticks::default()));
            let mut load = Load {
                queue,
                drive: Drive::default(),
                depth,
                plug: batching.plug as usize,
                kinds,
                most,
                out: [0; 2],
                next: [0; 2],
                pieces: HashMap::new(),
                ended: 0,
                random: seed as u64,
            };
            load.run(memory.as_mut_ptr(), 4_000);
        }
    }
}

/// A queue that is never idle kept the chunks that its pieces had used once, and pieces of other queues waited for
/// ever.
#[test]
fn a_busy_queue_keeps_no_bounce_memory_that_it_does_not_use() {
    static PURSE: Purse = Purse::of(4);
    let mut memory = PageBuf::new(PAGE_BYTES).unwrap();
    let buf = memory.as_mut_slice().as_mut_ptr();
    let read = |len: u32| Piece { op: Op::Read, len, memory: Memory::one(buf), ..Piece::sync(PART) };
    let queue = |depth| {
        let align = Alignment { offset: 512, memory: 512 };
        // SAFETY: the tests' drives do nothing by themselves.
        unsafe { Queue::new(depth, 0, align, Arc::default(), Bounce::of(&PURSE, depth).unwrap()) }
    };
    let begin = |queue: &mut Queue, drive: &mut Drive, pieces: &[u32]| {
        // SAFETY: the drives transfer nothing.
        pieces.iter().for_each(|&len| unsafe { queue.push(read(len)) });
        queue.dispatch(drive);
        drive.requests.len()
    };
    // Nine pieces bounce, and need two chunks. One more is direct, and stays in flight.
    let (mut busy, mut others) = ((queue(16), Drive::default()), [(); 3].map(|()| (queue(8), Drive::default())));
    let pieces: Vec<u32> = std::iter::once(512).chain([100; 9]).collect();
    assert_eq!(begin(&mut busy.0, &mut busy.1, &pieces), 10);
    for (place, (queue, drive)) in others.iter_mut().enumerate() {
        assert_eq!(begin(queue, drive, &[100]), usize::from(place < 2), "two more chunks are left");
    }
    for request in busy.1.requests.drain(1..) {
        busy.0.complete(Completion { slot: request.slot, result: request.len as i32 }, &mut Vec::new());
    }
    busy.0.dispatch(&mut busy.1);
    assert_eq!(busy.0.in_flight(), 1);
    let (queue, drive) = &mut others[2];
    assert_eq!(begin(queue, drive, &[]), 1, "a busy queue keeps what it does not use");
}

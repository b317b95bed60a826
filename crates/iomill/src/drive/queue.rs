//! The queue of one drive: plain state, advanced by `dispatch` and `complete` over whatever engine its owner brings.
//!
//! Goals: at most `depth` slots in flight and the rest parked; every result checked; short transfers continued; unaligned
//! ends taken through bounce pages; the background never in the foreground's way. Non-goals: knowing who waits (the owner
//! does, by token and tag), choosing an engine.
//!
//! A slot's life:
//!
//! ```text
//! parked --lock--> Direct ------------------------------> done
//!             \--> BounceRead  --copy out---------------> done
//!             \--> BounceWrite (copied in before) ------> done
//!             \--> ModifyRead --copy in--> BounceWrite -> done
//! ```

use std::collections::VecDeque;
use std::sync::Arc;

use super::locks::BlockLocks;
use super::{BOUNCE_BYTES, Class, Done, Failure, Fault, PAGE_BYTES, Piece};
use crate::counters::Probe;
use crate::engine::{Completion, Engine, FileRef, MAX_SEGMENTS, Memory, Op, Request, Segment};
use crate::sys::errno::{self, classify};
use crate::sys::fs::{Alignment, Handle};

/// How often one transfer is tried again after a passing error before the error is handed up.
const RETRIES: u16 = 1000;

/// One background piece is served at least once in so many turns, as long as the background has a slot left.
const BACKGROUND_TURN: u32 = 8;

/// The background holds at most one slot in so many (but one in any case): also while nobody else is there, because a slot
/// that it holds cannot be taken back when somebody comes.
const BACKGROUND_SHARE: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Free,
    Direct,
    BounceRead,
    ModifyRead,
    BounceWrite,
}

/// What a piece holds of its block's lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hold {
    Nothing,
    Shared,
    Exclusive,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    piece: Piece,
    phase: Phase,
    hold: Hold,
    retries: u16,
    /// Bytes of this phase's transfer that are done; below `want`.
    moved: u32,
    /// Bytes this phase transfers in all.
    want: u32,
    /// When it started, if it is timed (`Probe::start`).
    stamp: u64,
}

/// The queue of one drive.
pub struct Queue {
    align: Alignment,
    locks: Arc<BlockLocks>,
    /// Number of slot 0 in the engine's numbering.
    first_slot: u32,
    slots: Box<[Slot]>,
    /// Free slots, the last freed on top, so that few bounce buffers stay warm.
    free: Vec<u32>,
    foreground: VecDeque<Piece>,
    background: VecDeque<Piece>,
    /// Pieces whose block was locked when their turn came; tried first at every dispatch.
    blocked: VecDeque<Piece>,
    /// Foreground pieces whose turn came since that of a background piece.
    passed: u32,
    /// Slots that background pieces hold; at most `background_share()`.
    background_slots: usize,
    /// Requests to hand to the engine at the next dispatch.
    ready: Vec<Request>,
    /// What short transfers left of their pieces' lists: `MAX_SEGMENTS` for each slot, or nothing before the first such
    /// transfer. Then it never moves, and a slot's places change only while the slot has no request in flight.
    rests: Vec<Segment>,
    /// `BOUNCE_BYTES` for each slot; owned by the owner of the engine, which outlives the I/O.
    bounce: *mut u8,
    bounce_region: u16,
    probe: Option<Probe>,
}

// SAFETY: the queue owns what it points to as far as threads go: `bounce` belongs to the same owner as the queue
// (`Queue::new`), and pieces are `Send`.
unsafe impl Send for Queue {}

impl Queue {
    /// A queue with slots `first_slot .. first_slot + depth`.
    ///
    /// # Safety
    /// `bounce` is page-aligned memory of `depth * BOUNCE_BYTES` bytes that nobody else uses and that outlives both
    /// the queue and every I/O it starts. The queue outlives those too.
    pub unsafe fn new(
        depth: u32,
        first_slot: u32,
        align: Alignment,
        locks: Arc<BlockLocks>,
        bounce: *mut u8,
        bounce_region: u16,
    ) -> Queue {
        // A slot that is free holds a piece that nobody looks at.
        let nothing = Piece::sync(FileRef { handle: Handle(-1), key: 0 });
        let slot =
            Slot { piece: nothing, phase: Phase::Free, hold: Hold::Nothing, retries: 0, moved: 0, want: 0, stamp: 0 };
        Queue {
            align,
            locks,
            first_slot,
            slots: vec![slot; depth as usize].into_boxed_slice(),
            free: (0..depth).rev().collect(),
            foreground: VecDeque::new(),
            background: VecDeque::new(),
            blocked: VecDeque::new(),
            passed: 0,
            background_slots: 0,
            ready: Vec::with_capacity(depth as usize),
            rests: Vec::new(),
            bounce,
            bounce_region,
            probe: None,
        }
    }

    /// Counts from now on what it does.
    pub fn count(&mut self, probe: Probe) {
        self.probe = Some(probe);
    }

    /// Parks a piece.
    ///
    /// # Safety
    /// The piece's memory stays valid, its list (if it has one) stays as it is and adds up to the piece's length, its file
    /// stays open, and for reads nobody else touches the memory, until the piece's end has come out of `complete`.
    pub unsafe fn push(&mut self, piece: Piece) {
        if let Memory::Scatter { count, .. } = piece.memory {
            assert!((1..=MAX_SEGMENTS).contains(&usize::from(count)), "a list of {count} segments");
        }
        match piece.class {
            Class::Foreground => self.foreground.push_back(piece),
            Class::Background => self.background.push_back(piece),
        }
    }

    /// Slots in flight.
    pub fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Pieces parked, those that wait for a block lock included.
    pub fn parked(&self) -> usize {
        self.foreground.len() + self.background.len() + self.blocked.len()
    }

    /// Pieces parked because their block is locked.
    pub fn blocked(&self) -> usize {
        self.blocked.len()
    }

    /// Pieces parked with slots free, because the background holds its share of them; some of its pieces are then in flight.
    pub fn held_back(&self) -> usize {
        let held = !self.free.is_empty() && self.background_slots >= self.background_share();
        if held { self.background.len() } else { 0 }
    }

    fn background_share(&self) -> usize {
        (self.slots.len() / BACKGROUND_SHARE).max(1)
    }

    /// Whether a piece may have one of the free slots.
    fn may_start(&self, class: Class) -> bool {
        class == Class::Foreground || self.background_slots < self.background_share()
    }

    /// Starts as many parked pieces as there are free slots.
    pub fn dispatch(&mut self, engine: &mut dyn Engine) {
        for _ in 0..self.blocked.len() {
            if self.free.is_empty() {
                break;
            }
            match self.blocked.pop_front() {
                Some(piece) if self.may_start(piece.class) => self.start(piece),
                Some(piece) => self.blocked.push_back(piece),
                None => break,
            }
        }
        while !self.free.is_empty() {
            match self.next() {
                Some(piece) => self.start(piece),
                None => break,
            }
        }
        if !self.ready.is_empty() {
            // SAFETY: the memory of each request is a piece's, valid by the contract of `push`, or the bounce buffer
            // of a slot, valid by that of `new` and used by one request at a time because a slot has one. A list is a
            // piece's too, or the slot's place in `rests`, which the queue keeps for as long. The owner made the engine
            // for at least as many requests as there are slots.
            unsafe { engine.push(&self.ready) };
            self.ready.clear();
            if let Some(probe) = &self.probe {
                probe.tally.set_in_flight(self.in_flight());
            }
        }
    }

    fn next(&mut self) -> Option<Piece> {
        let due = self.foreground.is_empty() || self.passed + 1 >= BACKGROUND_TURN;
        if due
            && self.may_start(Class::Background)
            && let Some(piece) = self.background.pop_front()
        {
            self.passed = 0;
            return Some(piece);
        }
        let piece = self.foreground.pop_front()?;
        self.passed = (self.passed + 1).min(BACKGROUND_TURN);
        Some(piece)
    }

    /// Whether the drive takes the piece as it is.
    fn is_direct(&self, piece: &Piece) -> bool {
        let unit = u64::from(self.align.offset);
        let memory = match piece.memory {
            Memory::One { buf, .. } => buf as usize,
            // Whole pages at pages' edges, by what `Piece` demands.
            Memory::Scatter { .. } => return true,
        };
        piece.op == Op::Sync
            || ((piece.offset | u64::from(piece.len)) & (unit - 1) == 0
                && memory & (self.align.memory as usize - 1) == 0)
    }

    fn start(&mut self, piece: Piece) {
        let direct = self.is_direct(&piece);
        let whole_pages = (piece.offset | u64::from(piece.len)).is_multiple_of(PAGE_BYTES as u64);
        let modify = piece.op == Op::Write && !direct && !whole_pages;
        let hold = match piece.op {
            Op::Write if modify && self.locks.try_exclusive(piece.lock) => Hold::Exclusive,
            Op::Write if !modify && self.locks.try_shared(piece.lock) => Hold::Shared,
            Op::Write => return self.blocked.push_back(piece),
            Op::Read | Op::Sync => Hold::Nothing,
        };
        let Some(index) = self.free.pop() else { unreachable!("start is called with a free slot") };
        let (phase, want) = match piece.op {
            _ if direct => (Phase::Direct, piece.len),
            Op::Write if modify => (Phase::ModifyRead, bounced_len(&piece)),
            Op::Write => {
                self.copy_in(index, &piece);
                (Phase::BounceWrite, piece.len)
            }
            Op::Read | Op::Sync => (Phase::BounceRead, bounced_len(&piece)),
        };
        assert!(phase == Phase::Direct || want as usize <= BOUNCE_BYTES, "a piece that must bounce fits its buffer");
        self.background_slots += usize::from(piece.class == Class::Background);
        let stamp = self.probe.as_mut().map_or(0, Probe::start);
        self.slots[index as usize] = Slot { piece, phase, hold, retries: 0, moved: 0, want, stamp };
        self.request(index);
    }

    fn bounce(&self, index: u32) -> *mut u8 {
        // SAFETY: `index` is below the depth, and the memory has `BOUNCE_BYTES` for each slot (`Queue::new`).
        unsafe { self.bounce.add(index as usize * BOUNCE_BYTES) }
    }

    /// The offset in the part at which the bounced pages begin.
    fn bounced_offset(piece: &Piece) -> u64 {
        piece.offset & !(PAGE_BYTES as u64 - 1)
    }

    fn copy_in(&mut self, index: u32, piece: &Piece) {
        let within = (piece.offset - Self::bounced_offset(piece)) as usize;
        assert!(within + piece.len as usize <= BOUNCE_BYTES, "a piece that must bounce fits its buffer");
        // SAFETY: the piece's memory is readable for `len` bytes (contract of `push`); the bounce buffer of a slot
        // without a request in flight is ours, and the range fits it by the assertion.
        unsafe { std::ptr::copy_nonoverlapping(whole(piece), self.bounce(index).add(within), piece.len as usize) };
    }

    fn copy_out(&mut self, index: u32, piece: &Piece) {
        let within = (piece.offset - Self::bounced_offset(piece)) as usize;
        assert!(within + piece.len as usize <= BOUNCE_BYTES, "a piece that must bounce fits its buffer");
        // SAFETY: as in `copy_in`, with the piece's memory writable because it is a read.
        unsafe { std::ptr::copy_nonoverlapping(self.bounce(index).add(within), whole(piece), piece.len as usize) };
    }

    /// Queues the request for what the slot's phase has still to transfer.
    fn request(&mut self, index: u32) {
        let slot = &self.slots[index as usize];
        let (piece, moved) = (&slot.piece, slot.moved);
        let from = |buf: *mut u8, region| Memory::One { buf: buf.wrapping_add(moved as usize), region };
        let (start, memory) = match (slot.phase, piece.memory) {
            (Phase::Direct, Memory::One { buf, region }) => (piece.offset, from(buf, region)),
            (Phase::Direct, list) if moved == 0 => (piece.offset, list),
            (Phase::Direct, Memory::Scatter { list, count }) => {
                if self.rests.is_empty() {
                    let nothing = Segment { buf: std::ptr::null_mut(), len: 0 };
                    self.rests = vec![nothing; self.slots.len() * MAX_SEGMENTS];
                }
                // SAFETY: `index` is below the depth, so these are the slot's own places, and it has no request in flight.
                // No reference to the places is made, because an engine may be reading those of other slots. The piece's
                // list is valid by the contract of `push`.
                let rest = unsafe {
                    let places = self.rests.as_mut_ptr().add(index as usize * MAX_SEGMENTS);
                    rest_of(list, count, moved as usize, places)
                };
                (piece.offset, rest)
            }
            _ => (Self::bounced_offset(piece), from(self.bounce(index), self.bounce_region)),
        };
        let op = if slot.phase == Phase::ModifyRead { Op::Read } else { piece.op };
        self.ready.push(Request {
            slot: self.first_slot + index,
            op,
            len: slot.want - moved,
            file: piece.file,
            offset: start + u64::from(moved),
            memory,
        });
    }

    /// Takes in a completion of one of this queue's slots; the end of its piece, if it is that.
    pub fn complete(&mut self, completion: Completion) -> Option<Done> {
        let index = completion.slot - self.first_slot;
        let slot = &mut self.slots[index as usize];
        assert!(slot.phase != Phase::Free, "an engine completed a slot that was not in flight");
        let outcome = slot.advance(completion.result, self.align);
        match outcome {
            Outcome::Again => {
                self.request(index);
                None
            }
            Outcome::Failed(fault) => Some(self.finish(index, Some(fault))),
            Outcome::Whole => match self.slots[index as usize].phase {
                Phase::ModifyRead => {
                    let piece = self.slots[index as usize].piece;
                    self.copy_in(index, &piece);
                    let slot = &mut self.slots[index as usize];
                    slot.phase = Phase::BounceWrite;
                    slot.moved = 0;
                    self.request(index);
                    None
                }
                Phase::BounceRead => {
                    let piece = self.slots[index as usize].piece;
                    self.copy_out(index, &piece);
                    Some(self.finish(index, None))
                }
                _ => Some(self.finish(index, None)),
            },
        }
    }

    fn finish(&mut self, index: u32, fault: Option<Fault>) -> Done {
        let slot = &mut self.slots[index as usize];
        match slot.hold {
            Hold::Shared => self.locks.release_shared(slot.piece.lock),
            Hold::Exclusive => self.locks.release_exclusive(slot.piece.lock),
            Hold::Nothing => {}
        }
        slot.phase = Phase::Free;
        self.background_slots -= usize::from(slot.piece.class == Class::Background);
        let (piece, moved, stamp) = (slot.piece, slot.moved, slot.stamp);
        self.free.push(index);
        if let Some(probe) = &self.probe {
            probe.tally.set_in_flight(self.in_flight());
            match piece.op {
                _ if fault.is_some() => probe.tally.failed(),
                Op::Read => probe.tally.read(piece.len.into()),
                Op::Write => probe.tally.wrote(piece.len.into()),
                Op::Sync => probe.tally.synced(),
            }
            if fault.is_none() && piece.op != Op::Sync {
                probe.stop(stamp);
            }
        }
        let failure =
            |fault| Failure { op: piece.op, key: piece.file.key, offset: piece.offset + u64::from(moved), fault };
        Done { token: piece.token, tag: piece.tag, result: fault.map_or(Ok(()), |fault| Err(failure(fault))) }
    }
}

/// The memory of a piece that is bounced.
fn whole(piece: &Piece) -> *mut u8 {
    match piece.memory {
        Memory::One { buf, .. } => buf,
        Memory::Scatter { .. } => unreachable!("scattered memory is whole pages and never bounced"),
    }
}

/// Writes to `places` what is left of a list after `moved` bytes.
///
/// # Safety
/// The list is valid and names more bytes than `moved`; `places` has room for as many segments.
unsafe fn rest_of(list: *const Segment, count: u16, moved: usize, places: *mut Segment) -> Memory {
    let mut skip = moved;
    let mut left = 0;
    for i in 0..usize::from(count) {
        // SAFETY: `i` is within the list.
        let Segment { buf, len } = unsafe { list.add(i).read() };
        if skip >= len {
            skip -= len;
            continue;
        }
        // SAFETY: `left` is at most `i`, and there is room for the whole list.
        unsafe { places.add(usize::from(left)).write(Segment { buf: buf.wrapping_add(skip), len: len - skip }) };
        skip = 0;
        left += 1;
    }
    assert!(left > 0, "a list adds up to the length of its piece");
    Memory::Scatter { list: places, count: left }
}

/// Length of the whole pages that a piece touches.
fn bounced_len(piece: &Piece) -> u32 {
    let page = PAGE_BYTES as u64;
    let end = (piece.offset + u64::from(piece.len)).next_multiple_of(page);
    (end - (piece.offset & !(page - 1))) as u32
}

enum Outcome {
    Whole,
    Again,
    Failed(Fault),
}

impl Slot {
    /// Takes in what the kernel said.
    fn advance(&mut self, result: i32, align: Alignment) -> Outcome {
        if result < 0 {
            let errno = -result;
            // A sync that was begun is not tried again: the kernel reports the loss of a page once, perhaps to the call that
            // ended with another error. Only EAGAIN says that nothing was begun.
            let passing = match self.piece.op {
                Op::Sync => errno == libc::EAGAIN,
                Op::Read | Op::Write => classify(errno) == errno::Class::Retry,
            };
            if passing && self.retries < RETRIES {
                self.retries += 1;
                return Outcome::Again;
            }
            return Outcome::Failed(Fault::Errno(errno));
        }
        if self.piece.op == Op::Sync {
            return Outcome::Whole;
        }
        let moved = self.moved.saturating_add(result as u32);
        // A part that is only read may end within its last page; what the piece asks for is there all the same.
        let enough = match self.phase {
            Phase::BounceRead => (self.piece.offset % PAGE_BYTES as u64) as u32 + self.piece.len,
            _ => self.want,
        };
        if moved >= enough {
            return Outcome::Whole;
        }
        // Direct I/O goes on at a multiple of its unit; what lies beyond the last multiple is transferred again.
        let resume = moved - moved % align.offset;
        if resume > self.moved {
            self.moved = resume;
            return Outcome::Again;
        }
        // No progress. A read has met the end of the part, where the part is known to go on. A write that moves
        // nothing and reports nothing is a failed device.
        if self.piece.op == Op::Read || self.phase == Phase::ModifyRead {
            Outcome::Failed(Fault::Cut(u64::from(self.want - moved)))
        } else {
            Outcome::Failed(Fault::Errno(libc::EIO))
        }
    }
}

#[cfg(all(test, not(iomill_models)))]
mod tests;

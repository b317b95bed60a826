//! The queue of one drive: plain state, advanced by `dispatch` and `complete` over whatever engine its owner brings.
//!
//! Goals: at most `depth` slots in flight and the rest parked; every result checked; short transfers continued; unaligned
//! ends taken through bounce pages. Non-goals: knowing who waits (the owner does, by token), choosing an engine.
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
use crate::engine::{Completion, Engine, FileRef, Op, Request};
use crate::sys::errno::{self, classify};
use crate::sys::fs::{Alignment, Handle};

/// How often one transfer is tried again after a passing error before the error is handed up.
const RETRIES: u16 = 1000;

/// One background piece is served at least once in so many turns.
const BACKGROUND_TURN: u32 = 8;

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
    turn: u32,
    /// Requests to hand to the engine at the next dispatch.
    ready: Vec<Request>,
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
    /// the queue and every I/O it starts.
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
            turn: 0,
            ready: Vec::with_capacity(depth as usize),
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
    /// The piece's memory stays valid, its file stays open, and for reads nobody else touches the memory, until the
    /// piece's end has come out of `complete`.
    pub unsafe fn push(&mut self, piece: Piece) {
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

    /// Starts as many parked pieces as there are free slots.
    pub fn dispatch(&mut self, engine: &mut dyn Engine) {
        for _ in 0..self.blocked.len() {
            if self.free.is_empty() {
                break;
            }
            if let Some(piece) = self.blocked.pop_front() {
                self.start(piece);
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
            // of a slot, valid by that of `new` and used by one request at a time because a slot has one. The owner
            // made the engine for at least as many requests as there are slots.
            unsafe { engine.push(&self.ready) };
            self.ready.clear();
            if let Some(probe) = &self.probe {
                probe.tally.set_in_flight(self.in_flight());
            }
        }
    }

    fn next(&mut self) -> Option<Piece> {
        self.turn = self.turn.wrapping_add(1);
        if self.turn.is_multiple_of(BACKGROUND_TURN) && !self.background.is_empty() {
            return self.background.pop_front();
        }
        self.foreground.pop_front().or_else(|| self.background.pop_front())
    }

    /// Whether the drive takes the piece as it is.
    fn is_direct(&self, piece: &Piece) -> bool {
        let unit = u64::from(self.align.offset);
        piece.op == Op::Sync
            || ((piece.offset | u64::from(piece.len)) & (unit - 1) == 0
                && piece.buf as usize & (self.align.memory as usize - 1) == 0)
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
        unsafe { std::ptr::copy_nonoverlapping(piece.buf, self.bounce(index).add(within), piece.len as usize) };
    }

    fn copy_out(&mut self, index: u32, piece: &Piece) {
        let within = (piece.offset - Self::bounced_offset(piece)) as usize;
        assert!(within + piece.len as usize <= BOUNCE_BYTES, "a piece that must bounce fits its buffer");
        // SAFETY: as in `copy_in`, with the piece's memory writable because it is a read.
        unsafe { std::ptr::copy_nonoverlapping(self.bounce(index).add(within), piece.buf, piece.len as usize) };
    }

    /// Queues the request for what the slot's phase has still to transfer.
    fn request(&mut self, index: u32) {
        let slot = &self.slots[index as usize];
        let piece = &slot.piece;
        let (start, buf, region) = match slot.phase {
            Phase::Direct => (piece.offset, piece.buf, piece.region),
            _ => (Self::bounced_offset(piece), self.bounce(index), self.bounce_region),
        };
        let op = if slot.phase == Phase::ModifyRead { Op::Read } else { piece.op };
        self.ready.push(Request {
            slot: self.first_slot + index,
            op,
            region,
            len: slot.want - slot.moved,
            file: piece.file,
            offset: start + u64::from(slot.moved),
            buf: buf.wrapping_add(slot.moved as usize),
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
        Done { token: piece.token, result: fault.map_or(Ok(()), |fault| Err(failure(fault))) }
    }
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

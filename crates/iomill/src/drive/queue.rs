//! The queue of one drive: plain state, advanced by `dispatch` and `complete` over the engine of its owner.
//!
//! Goals: at most `depth` slots in flight, and the rest parked. Adjacent parked pieces become one I/O. Every result is
//! checked. Short transfers are continued. Unaligned ends go through bounce pages. The background never delays the
//! foreground.
//!
//! Non-goals: the owner of a piece, which token and tag identify; the choice of an engine.
//!
//! A slot's life:
//!
//! ```text
//! parked --lock--> Direct (with its neighbours) ---------> done
//!             \--> BounceRead  --copy out---------------> done
//!             \--> BounceWrite (copied in before) ------> done
//!             \--> ModifyRead --copy in--> BounceWrite -> done
//! ```
//!
//! A slot is taken only when a request is dispatched. The rules of the order are in `waiting.rs`, of merging in
//! `merge.rs`, of the depth in `pace.rs`. These rules say when a class sends its batch on:
//!
//! 1. At once, while no neighbours are in sight: waiting would win nothing.
//! 2. With neighbours in sight, when as many of its pieces wait as are in flight, and at the latest at `plug`. So a
//!    class with little demand waits for few pieces, and the drive never idles. Pieces of the other class do not count:
//!    they cannot merge with these.
//! 3. At once, when the owner says that no more will come (`Queue::unplug`), and when a sync comes.
//! 4. When `plug` I/Os of any class have ended since the class began to wait.
//! 5. A batch is sent on whole: its pieces then wait for slots only.
//!
//! So every piece has a slot after a number of ends that does not depend on what comes later:
//!
//! 6. Pieces that found their block locked or no bounce memory are tried before all others, in the order in which
//!    they came. Locks are fair (`locks.rs`). Bounce memory comes back when other threads' I/O ends (`bounce.rs`).
//! 7. The background has one of `BACKGROUND_TURN` turns, unless its share of the slots is taken.
//! 8. Take a drive that ends I/Os in the order in which they began, each after at most two requests. A piece finds `p`
//!    others parked when it comes. The piece ends within `plug + 2 (p + WINDOW) (depth + BACKGROUND_TURN)` ends. It
//!    waits once for neighbours. Each piece that may go before it (`waiting.rs`, rule 1) takes a turn and, in the
//!    background, a slot of the share.

mod merge;
mod pace;
mod slot;
mod waiting;

use std::collections::VecDeque;
use std::sync::Arc;

use super::bounce::Bounce;
use super::locks::BlockLocks;
use super::{BOUNCE_BYTES, Batching, Class, Done, Fault, PAGE_BYTES, PIECE_BYTES, Piece};
use crate::counters::Probe;
use crate::engine::{Completion, Engine, FileRef, IoRequest, MAX_SEGMENTS, Memory, Op, Segment};
use crate::sys::clock::Clock;
use crate::sys::copy::copy_bytes;
use crate::sys::fs::{Alignment, Handle};
use pace::Pace;
use slot::{Hold, Phase, Slot, Verdict, bounced_len, bounced_offset, rest_of};
use waiting::Waiting;

/// At least one of this many turns serves a background piece, as long as the background has a slot left.
const BACKGROUND_TURN: u32 = 8;

/// The background holds at most 1/`BACKGROUND_SHARE` of the slots, but always one. The bound also holds while the
/// foreground is idle, because a slot of the background cannot be taken back for a foreground piece.
const BACKGROUND_SHARE: usize = 4;

/// The queue of one drive.
pub struct Queue {
    align: Alignment,
    locks: Arc<BlockLocks>,
    /// Number of slot 0 in the engine's numbering.
    first_slot: u32,
    slots: Box<[Slot]>,
    /// Free slots, the last freed on top, so that few bounce buffers stay warm.
    free: Vec<u32>,
    batching: Batching,
    foreground: Waiting,
    background: Waiting,
    /// Pieces of merged I/O that failed; each is tried by itself, before all others.
    alone: VecDeque<Piece>,
    /// Pieces that found their block locked or no bounce memory when their turn came, in the order of their turns.
    /// Every dispatch tries them first.
    blocked: VecDeque<Piece>,
    /// Pieces of `blocked` that this dispatch has tried without success.
    tried: VecDeque<Piece>,
    /// Foreground pieces that had a turn since the last background piece.
    passed: u32,
    /// Slots that background pieces hold; at most `background_share()`.
    background_slots: usize,
    /// Pieces in flight by class: more than slots if pieces are merged.
    pieces_in_flight: [usize; 2],
    /// Which slots may be used, if that is not all of them.
    pace: Option<Pace>,
    /// Per slot, the pieces of a merged I/O; empty where there is but one.
    members: Box<[Vec<Piece>]>,
    /// Lists of merged I/O, as `rests`.
    lists: Vec<Segment>,
    /// Requests to hand to the engine at the next dispatch.
    ready: Vec<IoRequest>,
    /// What short transfers left of their pieces' lists: `MAX_SEGMENTS` for each slot, or nothing before the first such
    /// transfer. Then it never moves, and a slot's places change only while the slot has no request in flight.
    rests: Vec<Segment>,
    /// Bounce memory for each slot. The owner of the queue drops the engine first.
    bounce: Bounce,
    probe: Option<Probe>,
}

// SAFETY: no other thread uses what the queue points to, and pieces are `Send`.
unsafe impl Send for Queue {}

impl Queue {
    /// A queue with slots `first_slot .. first_slot + depth`.
    ///
    /// # Safety
    /// `bounce` is for as many slots. The queue outlives every I/O that it starts, and the engine that runs them.
    pub unsafe fn new(depth: u32, first_slot: u32, align: Alignment, locks: Arc<BlockLocks>, bounce: Bounce) -> Queue {
        // Nothing reads the piece of a free slot.
        let nothing = Piece::sync(FileRef { handle: Handle(-1), key: 0 });
        let slot =
            Slot { piece: nothing, phase: Phase::Free, hold: Hold::Nothing, retries: 0, moved: 0, want: 0, stamp: 0 };
        Queue {
            align,
            locks,
            first_slot,
            slots: vec![slot; depth as usize].into_boxed_slice(),
            free: (0..depth).rev().collect(),
            batching: Batching::NONE,
            foreground: Waiting::new(),
            background: Waiting::new(),
            alone: VecDeque::new(),
            blocked: VecDeque::new(),
            tried: VecDeque::new(),
            passed: 0,
            background_slots: 0,
            pieces_in_flight: [0; 2],
            pace: None,
            members: vec![Vec::new(); depth as usize].into_boxed_slice(),
            lists: Vec::new(),
            ready: Vec::with_capacity(depth as usize),
            rests: Vec::new(),
            bounce,
            probe: None,
        }
    }

    /// Counts in `probe` from now on.
    pub fn count(&mut self, probe: Probe) {
        self.probe = Some(probe);
    }

    /// Orders, merges, gathers and paces from now on as `batching` says. Without this call the queue does none of it.
    pub fn batch(&mut self, batching: Batching, clock: Arc<dyn Clock>) {
        self.batching = batching;
        self.pace = batching.adaptive.then(|| Pace::new(clock, self.slots.len() as u32));
    }

    /// Tells the queue that no more pieces follow for now: parked pieces do not wait for neighbours (rule 3).
    pub fn unplug(&mut self) {
        self.foreground.send_on();
        self.background.send_on();
    }

    /// Parks a piece.
    ///
    /// # Safety
    /// Until the piece's end has come out of `complete`:
    /// - the piece's memory stays valid, and its file stays open;
    /// - its list (if it has one) does not change, and adds up to the piece's length;
    /// - for a read, nothing else touches the memory.
    pub unsafe fn push(&mut self, piece: Piece) {
        if let Memory::Scatter { count, .. } = piece.memory {
            assert!((1..=MAX_SEGMENTS).contains(&usize::from(count)), "a list of {count} segments");
        }
        self.waiting_mut(piece.class).push(piece);
    }

    /// Slots in flight.
    pub fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Pieces parked, those that wait for a block lock or for bounce memory included.
    pub fn parked(&self) -> usize {
        self.foreground.len() + self.background.len() + self.alone.len() + self.blocked.len()
    }

    /// Pieces parked because their block is locked, or because they found no bounce memory.
    pub fn blocked(&self) -> usize {
        self.blocked.len()
    }

    /// Pieces parked with slots free, because the background holds its share of them or because they wait for
    /// neighbours. Something is then in flight, and more may come.
    pub fn held_back(&self) -> usize {
        if !self.has_room() {
            return 0;
        }
        let held = |class| match self.may_start(class) && !self.is_plugged(class) {
            true => 0,
            false => self.waiting(class).len(),
        };
        let alone = self.alone.iter().filter(|piece| !self.may_start(piece.class)).count();
        alone + held(Class::Foreground) + held(Class::Background)
    }

    /// Whether a dispatch would start something.
    pub fn has_more(&self) -> bool {
        !self.ready.is_empty() || (self.has_room() && self.parked() > self.blocked() + self.held_back())
    }

    fn waiting(&self, class: Class) -> &Waiting {
        match class {
            Class::Foreground => &self.foreground,
            Class::Background => &self.background,
        }
    }

    fn waiting_mut(&mut self, class: Class) -> &mut Waiting {
        match class {
            Class::Foreground => &mut self.foreground,
            Class::Background => &mut self.background,
        }
    }

    /// Slots that may be used.
    fn limit(&self) -> usize {
        self.pace.as_ref().map_or(self.slots.len(), Pace::limit)
    }

    fn has_room(&self) -> bool {
        !self.free.is_empty() && self.in_flight() < self.limit()
    }

    fn background_share(&self) -> usize {
        (self.limit() / BACKGROUND_SHARE).max(1)
    }

    /// Whether a piece may have one of the free slots.
    fn may_start(&self, class: Class) -> bool {
        class == Class::Foreground || self.background_slots < self.background_share()
    }

    /// Whether pieces of a class wait for neighbours (rules 1 to 5).
    fn is_plugged(&self, class: Class) -> bool {
        let (waiting, plug) = (self.waiting(class), self.batching.plug as usize);
        let enough = self.pieces_in_flight[class as usize].min(plug);
        self.batching.merge && waiting.len() < enough && waiting.is_held(plug)
    }

    /// Starts as many parked pieces as there are slots for.
    #[inline]
    pub fn dispatch(&mut self, engine: &mut dyn Engine) {
        // A call asks the queues of all drives, and most of them have nothing to start.
        if self.parked() > 0 || !self.tried.is_empty() {
            self.start_parked(engine);
        }
        let full = self.pace.is_some() && self.in_flight() >= self.limit() && self.parked() > self.blocked();
        if let Some(pace) = &mut self.pace {
            pace.turn(full);
        }
        if !self.ready.is_empty() {
            // SAFETY: the memory of each request is a piece's or the bounce buffer of a slot. The first is valid by the
            // contract of `push`, the second by that of `new`. One request at a time uses the buffer, because a slot
            // has one request. A list is a piece's too, or the slot's place in `rests` or `lists`, which the queue
            // keeps for as long. The owner made the engine for at least as many requests as there are slots.
            unsafe { engine.push(&self.ready) };
            self.ready.clear();
            if let Some(probe) = &self.probe {
                probe.tally.set_in_flight(self.in_flight());
            }
        }
        // Others may wait for bounce memory that this queue keeps: even queues for which pieces of this one wait.
        self.bounce.settle(engine);
    }

    #[inline(never)]
    fn start_parked(&mut self, engine: &mut dyn Engine) {
        self.dispatch_again(engine);
        while self.has_room() {
            match self.next() {
                Some(piece) => self.start(piece, self.batching.merge, engine),
                None => break,
            }
        }
        self.put_back_tried();
    }

    /// Starts pieces that have had their turn and were blocked, or that failed together with others (rule 6).
    fn dispatch_again(&mut self, engine: &mut dyn Engine) {
        while self.has_room() {
            match self.alone.pop_front().or_else(|| self.blocked.pop_front()) {
                Some(piece) if self.may_start(piece.class) => self.start(piece, false, engine),
                Some(piece) => self.tried.push_back(piece),
                None => break,
            }
        }
    }

    /// Blocked pieces that were tried without success precede those that were not tried.
    fn put_back_tried(&mut self) {
        if self.blocked.is_empty() {
            return std::mem::swap(&mut self.blocked, &mut self.tried);
        }
        while let Some(piece) = self.tried.pop_back() {
            self.blocked.push_front(piece);
        }
    }

    /// Whether a piece of a class that waits may have its turn now. If so, the pieces that wait with it may have theirs
    /// too (rule 5).
    fn is_ready(&mut self, class: Class) -> bool {
        if self.waiting(class).is_empty() || !self.may_start(class) || self.is_plugged(class) {
            return false;
        }
        if !self.waiting(class).is_sent_on() {
            self.waiting_mut(class).send_on();
        }
        true
    }

    fn next(&mut self) -> Option<Piece> {
        let foreground = self.is_ready(Class::Foreground);
        if (!foreground || self.passed + 1 >= BACKGROUND_TURN)
            && self.is_ready(Class::Background)
            && let Some(piece) = self.background.pop(&self.batching)
        {
            self.passed = 0;
            return Some(piece);
        }
        if !foreground {
            return None;
        }
        let piece = self.foreground.pop(&self.batching)?;
        self.passed = (self.passed + 1).min(BACKGROUND_TURN);
        Some(piece)
    }

    /// Whether the drive takes the piece as it is.
    fn is_direct(&self, piece: &Piece) -> bool {
        let unit = u64::from(self.align.offset);
        let memory = match piece.memory {
            Memory::One { buf, .. } => buf as usize,
            // `Piece` demands that scattered memory is whole pages at a page's edge.
            Memory::Scatter { .. } => return true,
        };
        piece.op == Op::Sync
            || ((piece.offset | u64::from(piece.len)) & (unit - 1) == 0
                && memory & (self.align.memory as usize - 1) == 0)
    }

    /// Gives a piece a slot, with `merge` together with its neighbours. A piece without its lock or bounce memory is
    /// added to `tried`.
    fn start(&mut self, piece: Piece, merge: bool, engine: &mut dyn Engine) {
        let direct = self.is_direct(&piece);
        if !direct && !self.bounce_is_ready(engine) {
            return self.tried.push_back(piece);
        }
        let whole_pages = (piece.offset | u64::from(piece.len)).is_multiple_of(PAGE_BYTES as u64);
        let modify = piece.op == Op::Write && !direct && !whole_pages;
        let hold = match piece.op {
            Op::Write if modify && self.locks.try_exclusive(piece.lock) => Hold::Exclusive,
            Op::Write if !modify && self.locks.try_shared(piece.lock) => Hold::Shared,
            Op::Write => return self.tried.push_back(piece),
            Op::Read | Op::Sync => Hold::Nothing,
        };
        let Some(index) = self.free.pop() else { unreachable!("start is called with a free slot") };
        let piece = if merge && direct { self.merge(index, piece) } else { piece };
        let (phase, want) = match piece.op {
            _ if direct => (Phase::Direct, piece.len),
            Op::Write if modify => (Phase::ModifyRead, bounced_len(&piece)),
            Op::Write => {
                self.copy_in(index, &piece);
                (Phase::BounceWrite, piece.len)
            }
            Op::Read | Op::Sync => (Phase::BounceRead, bounced_len(&piece)),
        };
        if !direct {
            assert!(want as usize <= BOUNCE_BYTES, "a piece that must bounce fits its buffer");
            self.bounce.begin(index);
        }
        self.background_slots += usize::from(piece.class == Class::Background);
        self.pieces_in_flight[piece.class as usize] += self.members[index as usize].len().max(1);
        let stamp = self.probe.as_mut().map_or(0, Probe::start);
        self.slots[index as usize] = Slot { piece, phase, hold, retries: 0, moved: 0, want, stamp };
        self.request(index);
    }

    /// Chooses the slot that is taken next so that it has bounce memory (rule 3 of `bounce`). False: there is none.
    fn bounce_is_ready(&mut self, engine: &mut dyn Engine) -> bool {
        let Some(&next) = self.free.last() else { return false };
        if self.bounce.get_ready(next, engine) {
            return true;
        }
        let Some(other) = self.free.iter().rposition(|slot| self.bounce.is_ready(*slot)) else { return false };
        let last = self.free.len() - 1;
        self.free.swap(other, last);
        true
    }

    fn bounce(&self, index: u32) -> *mut u8 {
        self.bounce.at(index).0
    }

    fn copy_in(&mut self, index: u32, piece: &Piece) {
        let within = (piece.offset - bounced_offset(piece)) as usize;
        assert!(within + piece.len as usize <= BOUNCE_BYTES, "a piece that must bounce fits its buffer");
        // SAFETY: the piece's memory is readable for `len` bytes (contract of `push`). A slot without a request in
        // flight uses its bounce buffer alone. The range fits the buffer by the assertion.
        unsafe { copy_bytes(whole(piece), self.bounce(index).add(within), piece.len as usize) };
    }

    fn copy_out(&mut self, index: u32, piece: &Piece) {
        let within = (piece.offset - bounced_offset(piece)) as usize;
        assert!(within + piece.len as usize <= BOUNCE_BYTES, "a piece that must bounce fits its buffer");
        // SAFETY: as in `copy_in`, with the piece's memory writable because it is a read.
        unsafe { copy_bytes(self.bounce(index).add(within), whole(piece), piece.len as usize) };
    }

    /// Queues the request for the remaining transfer of the slot's phase.
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
                // SAFETY: `index` is below the depth, so these are the slot's own places, and it has no request in
                // flight. No reference to the places is made, because an engine may be reading those of other slots.
                // The piece's list is valid by the contract of `push`.
                let rest = unsafe {
                    let places = self.rests.as_mut_ptr().add(index as usize * MAX_SEGMENTS);
                    rest_of(list, count, moved as usize, places)
                };
                (piece.offset, rest)
            }
            _ => {
                let (place, region) = self.bounce.at(index);
                (bounced_offset(piece), from(place, region))
            }
        };
        let op = if slot.phase == Phase::ModifyRead { Op::Read } else { piece.op };
        self.ready.push(IoRequest {
            slot: self.first_slot + index,
            op,
            len: slot.want - moved,
            file: piece.file,
            offset: start + u64::from(moved),
            memory,
        });
    }

    /// Takes in a completion of one of this queue's slots, and adds the ends of the pieces that it ends.
    pub fn complete(&mut self, completion: Completion, ends: &mut Vec<Done>) {
        let index = completion.slot - self.first_slot;
        let slot = &mut self.slots[index as usize];
        assert!(slot.phase != Phase::Free, "an engine completed a slot that was not in flight");
        match slot.advance(completion.result, self.align) {
            Verdict::Again => self.request(index),
            Verdict::Failed(fault) => self.finish(index, Some(fault), ends),
            Verdict::Whole => match slot.phase {
                Phase::ModifyRead => {
                    let piece = slot.piece;
                    self.copy_in(index, &piece);
                    let slot = &mut self.slots[index as usize];
                    slot.phase = Phase::BounceWrite;
                    slot.moved = 0;
                    self.request(index);
                }
                Phase::BounceRead => {
                    let piece = slot.piece;
                    self.copy_out(index, &piece);
                    self.finish(index, None, ends);
                }
                _ => self.finish(index, None, ends),
            },
        }
    }

    fn finish(&mut self, index: u32, fault: Option<Fault>, ends: &mut Vec<Done>) {
        let slot = self.slots[index as usize];
        let piece = slot.piece;
        let result = fault.map_or(Ok(()), |fault| Err(self.slots[index as usize].failure(fault)));
        self.slots[index as usize].phase = Phase::Free;
        self.free.push(index);
        if slot.phase != Phase::Direct {
            self.bounce.end(index);
        }
        self.background_slots -= usize::from(piece.class == Class::Background);
        let pieces = self.members[index as usize].len();
        self.pieces_in_flight[piece.class as usize] -= pieces.max(1);
        self.foreground.ended();
        self.background.ended();
        if let Some(pace) = &mut self.pace {
            pace.ended(piece.len);
        }
        if let Some(probe) = &self.probe {
            probe.tally.set_in_flight(self.in_flight());
            if fault.is_none() && piece.op != Op::Sync {
                probe.stop(slot.stamp);
            }
        }
        if pieces > 0 {
            return self.finish_merged(slot, index, fault, ends);
        }
        match slot.hold {
            Hold::Shared => self.locks.release_shared(piece.lock),
            Hold::Exclusive => self.locks.release_exclusive(piece.lock),
            Hold::Nothing => {}
        }
        self.tally(&piece, fault.is_none());
        ends.push(Done { token: piece.token, tag: piece.tag, result });
    }

    /// Counts the end of a piece.
    fn tally(&self, piece: &Piece, well: bool) {
        let Some(probe) = &self.probe else { return };
        match piece.op {
            _ if !well => probe.tally.failed(),
            Op::Read => probe.tally.read(piece.len.into()),
            Op::Write => probe.tally.wrote(piece.len.into()),
            Op::Sync => probe.tally.synced(),
        }
    }
}

/// The memory of a piece that is bounced.
fn whole(piece: &Piece) -> *mut u8 {
    match piece.memory {
        Memory::One { buf, .. } => buf,
        Memory::Scatter { .. } => unreachable!("scattered memory is whole pages and never bounced"),
    }
}

#[cfg(all(test, not(iomill_models)))]
mod tests;

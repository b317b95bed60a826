//! Pieces of one class that wait for a slot, and the order in which they get one.
//!
//! Goals: neighbours follow each other; nothing waits for ever; pieces that cannot gain from order are not sorted.
//! Non-goals: merging neighbours, which happens when they get their slot.
//!
//! Rules:
//! 1. Pieces are served in windows of the `WINDOW` oldest at most. A window is served whole before the next begins. So
//!    fewer than `WINDOW` others overtake a piece.
//! 2. A sync is a window of its own: pieces that came before it start before it, pieces that came after it start after
//!    it.
//! 3. A window that is being served does not wait for neighbours: others of the window may have passed its first piece
//!    already.
//! 4. A window is ordered only when enough of its pieces seem to have a neighbour in it (`is_near`). A drive without
//!    moving parts gains from order only by merging.

use std::collections::VecDeque;

use super::super::{Batching, PIECE_BYTES, Piece};
use crate::engine::Op;

/// Most pieces in a window: four of the longest merged I/O of single pages.
pub(super) const WINDOW: usize = 256;

/// Where the ring of pieces wraps round within this many pieces, they are first moved to be in one stretch.
const UNBROKEN: usize = 32;

/// A window is ordered when at least one of this many pieces seems to have a neighbour.
const ONE_IN: usize = 16;

/// Words of the filter, of 64 bits each. With a word for each piece, one piece in 64 seems to have a neighbour and has
/// none.
const FILTER_WORDS: usize = WINDOW;

/// Below this number all pairs are compared: cheaper than the filter.
const FEW: usize = 8;

/// See the module.
pub(super) struct Waiting {
    pieces: VecDeque<Piece>,
    /// So many at the front are the window that is being served.
    window: usize,
    /// So many at the front, the window among them, do not wait for neighbours.
    sent_on: usize,
    /// I/Os that have ended since the other pieces began to wait for neighbours.
    ended: usize,
    /// Syncs among the pieces.
    syncs: usize,
    /// Neighbours are likely in the window, or with windows of one piece in the stream.
    near: bool,
    /// File, operation and end of the last piece of the last window.
    last: Option<(u64, Op, u64)>,
    filter: Box<[u64]>,
}

impl Waiting {
    pub fn new() -> Waiting {
        let filter = vec![0; FILTER_WORDS].into_boxed_slice();
        Waiting { pieces: VecDeque::new(), window: 0, sent_on: 0, ended: 0, syncs: 0, near: false, last: None, filter }
    }

    pub fn len(&self) -> usize {
        self.pieces.len()
    }

    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    pub fn push(&mut self, piece: Piece) {
        self.pieces.push_back(piece);
        self.syncs += usize::from(piece.op == Op::Sync);
    }

    /// Whether the first piece may wait for neighbours: it was not sent on, the next pieces are likely to have
    /// neighbours, no sync waits, and fewer than `most` I/Os have ended meanwhile.
    pub fn is_held(&self, most: usize) -> bool {
        !self.is_sent_on() && self.near && self.syncs == 0 && self.ended < most
    }

    /// Whether the first piece no longer waits for neighbours.
    pub fn is_sent_on(&self) -> bool {
        self.sent_on > 0
    }

    /// The pieces that are here no longer wait for neighbours.
    pub fn send_on(&mut self) {
        self.sent_on = self.pieces.len();
    }

    /// An I/O of any class has ended.
    pub fn ended(&mut self) {
        if self.sent_on == 0 && !self.pieces.is_empty() {
            self.ended += 1;
        }
    }

    /// The first piece has left.
    fn left(&mut self) {
        self.window = self.window.saturating_sub(1);
        self.sent_on = self.sent_on.saturating_sub(1);
        self.ended = 0;
    }

    /// The next piece.
    #[inline]
    pub fn pop(&mut self, batching: &Batching) -> Option<Piece> {
        if self.window == 0 && (batching.sort || batching.merge) {
            self.plan(batching.sort);
            self.sent_on = self.sent_on.max(self.window);
        }
        let piece = self.pieces.pop_front()?;
        self.left();
        self.syncs -= usize::from(piece.op == Op::Sync);
        Some(piece)
    }

    /// The piece after the one that came last, if both are of one window and may be neighbours.
    #[inline]
    pub fn beside(&self) -> Option<&Piece> {
        if self.near && self.window > 0 { self.pieces.front() } else { None }
    }

    /// Takes the piece that `beside` shows.
    pub fn take_beside(&mut self) -> Option<Piece> {
        self.left();
        self.pieces.pop_front()
    }

    /// Begins a window.
    fn plan(&mut self, sort: bool) {
        let all = self.pieces.len();
        if all > UNBROKEN && self.pieces.as_slices().0.len() < UNBROKEN {
            self.pieces.make_contiguous();
        }
        let (front, _) = self.pieces.as_mut_slices();
        let longest = front.len().min(WINDOW);
        let count = front[..longest].iter().position(|piece| piece.op == Op::Sync).unwrap_or(longest);
        if count == 0 {
            self.window = longest.min(1);
            return;
        }
        let window = &mut front[..count];
        self.window = count;
        self.near = match &*window {
            [piece] => self.last == Some((piece.file.key, piece.op, piece.offset)),
            few if few.len() <= FEW => any_pair(few),
            many => is_near(many, &mut self.filter),
        };
        if sort && self.near {
            window.sort_unstable_by_key(|piece| (piece.file.key, piece.op as u8, piece.offset));
        }
        self.last = window.last().map(|piece| (piece.file.key, piece.op, end(piece)));
    }
}

fn end(piece: &Piece) -> u64 {
    piece.offset + u64::from(piece.len)
}

/// Whether `after` begins where `before` ends.
pub(super) fn follows(before: &Piece, after: &Piece) -> bool {
    end(before) == after.offset && before.file.key == after.file.key && before.op == after.op
}

fn any_pair(window: &[Piece]) -> bool {
    window.iter().any(|before| window.iter().any(|after| follows(before, after)))
}

/// Whether enough pieces seem to begin where others end. The pieces need not be sorted: their ends are added to a
/// filter, and their begins looked up in it.
fn is_near(window: &[Piece], filter: &mut [u64]) -> bool {
    let words = window.len().next_power_of_two().min(filter.len());
    let filter = &mut filter[..words];
    filter.fill(0);
    let place = |piece: &Piece, offset: u64| {
        let mixed =
            (offset ^ piece.file.key.rotate_left(40) ^ ((piece.op as u64) << 63)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        ((mixed >> 40) as usize & (words - 1), 1_u64 << (mixed >> 34 & 63))
    };
    for piece in window.iter().filter(|piece| (piece.len as usize) < PIECE_BYTES) {
        let (word, bit) = place(piece, end(piece));
        filter[word] |= bit;
    }
    let marked = |piece: &&Piece| {
        let (word, bit) = place(piece, piece.offset);
        filter[word] & bit != 0
    };
    window.iter().filter(marked).count() >= window.len().div_ceil(ONE_IN)
}

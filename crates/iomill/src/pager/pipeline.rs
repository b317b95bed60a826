//! [`Pipeline`]: the waves of a blocking call with many missing pages. While half a wave drains, the other half begins,
//! so no drive is idle while the call waits for the last page of a wave. Non-goals: spawned operations, which complete
//! two lists at a time (`complete`).
//!
//! Rules:
//! 1. At most two halves are in flight. So the call owns no more pages than a wave has.
//! 2. A half begins when all pieces of the other half are in the queues of the drives. Its own earlier fills have all
//!    ended, so its lists can be reused.
//! 3. No half begins after a half with busy pages or full sets. The call waits for these when all its fills have ended
//!    (rule 4 of the cache). Sets that only need a flush wait until then, too: those of half a wave if the call reads,
//!    and none if it writes.

use std::cell::RefCell;

use super::Paged;
use super::fill::{Fills, PiecesAt};
use super::open::OpenFile;
use super::span::Want;
use super::todo::Todo;
use super::wave::Sorted;
use crate::cache::Outcome;
use crate::drive::Class;
use crate::drive::inline::{Source, Supply};
use crate::error::Result;
use crate::exec::{FirstFailure, Io};

/// The half that a piece is of, in its tag.
const SECOND: u32 = 1 << 31;

/// See the module. One thread uses it: completions are delivered on the thread that waits for them.
pub(super) struct Pipeline<'a> {
    file: &'a OpenFile,
    paged: &'a Paged,
    class: Class,
    /// Pages of a half.
    most: usize,
    state: RefCell<State<'a>>,
    first: FirstFailure,
}

struct State<'a> {
    todo: &'a mut Todo,
    halves: [Half<'a>; 2],
    /// The half that is submitting its pieces.
    now: usize,
    sorted: Sorted,
}

struct Half<'a> {
    fills: Fills<&'a Paged>,
    at: PiecesAt,
    /// The number of its pieces in flight.
    left: usize,
}

impl<'a> Pipeline<'a> {
    /// Fills pages of `todo`, at most `most` for each half, at least 1, until nothing is left, or a half leaves
    /// something to do.
    ///
    /// # Safety
    /// The spans' memory is valid until this returns. For reads nothing else uses it.
    pub unsafe fn run(
        file: &'a OpenFile,
        io: &Io<'_>,
        paged: &'a Paged,
        want: Want,
        class: Class,
        todo: &'a mut Todo,
        most: usize,
    ) -> Result<Sorted> {
        let half = || Half { fills: Fills::new(want, paged), at: PiecesAt::default(), left: 0 };
        let state = State { todo, halves: [half(), half()], now: 0, sorted: Sorted::default() };
        let (state, first) = (RefCell::new(state), FirstFailure::default());
        let pipeline = Pipeline { file, paged, class, most, state, first };
        // SAFETY: the memory is frames, which the fills own until their ends, and lists in `fills`. Neither changes
        // before the ends of their pieces (rule 2), and `pipeline` is dropped after them.
        unsafe { io.run_fed(&pipeline, |tag, outcome| pipeline.end(tag, outcome))? };
        match pipeline.first.take() {
            Some(failure) => Err(file.file.error(failure)),
            None => Ok(pipeline.state.into_inner().sorted),
        }
    }

    /// Rule 3.
    fn is_last(&self, state: &State<'_>) -> bool {
        let Sorted { busy, full, over } = &state.sorted;
        let flushes = if state.halves[0].fills.want() == Want::Read { self.most } else { 0 };
        !busy.is_empty() || !full.is_empty() || over.many.len() + over.pressed.len() > flushes
    }

    fn end(&self, tag: u32, outcome: Outcome) {
        let mut state = self.state.borrow_mut();
        let State { halves, sorted, .. } = &mut *state;
        let half = &mut halves[usize::from(tag & SECOND != 0)];
        half.left -= 1;
        self.first.keep(half.fills.end_run(tag & !SECOND, outcome, &mut sorted.over.many));
    }
}

impl State<'_> {
    /// Begins a half with the next pages of `todo`.
    fn begin(&mut self, half: usize, pipeline: &Pipeline<'_>) {
        self.now = half;
        let Half { fills, at, .. } = &mut self.halves[half];
        fills.clear();
        *at = PiecesAt::default();
        // SAFETY: the caller of `run` keeps the spans' memory until the fills have ended.
        self.sorted.extend(unsafe { pipeline.paged.begin_wave(self.todo.next(pipeline.most), fills) });
        fills.plan(&pipeline.file.file);
    }
}

impl Source for &Pipeline<'_> {
    fn supply(&mut self) -> Supply {
        let mut state = self.state.borrow_mut();
        loop {
            let (now, other) = (state.now, 1 - state.now);
            let half = &mut state.halves[now];
            if let Some((drive, mut piece)) = half.fills.next_piece(&mut half.at, &self.file.file, self.class) {
                half.left += 1;
                piece.tag |= if now == 1 { SECOND } else { 0 };
                return Supply::Piece(drive, piece);
            }
            if state.todo.is_empty() || self.is_last(&state) || !self.first.is_none() {
                return Supply::Nothing;
            }
            if state.halves[other].left > 0 {
                return Supply::Later;
            }
            state.begin(other, self);
        }
    }
}

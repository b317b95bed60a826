//! Running pieces and hearing of each one's end, inline or on the drive threads.

use std::sync::Arc;

use crate::api::array::ArrayInner;
use crate::cache::Outcome;
use crate::drive::serve::{Owner, Share};
use crate::drive::{Failure, Fault, Piece};
use crate::engine::Op;
use crate::error::Result;
use crate::sys::sync::{Condvar, Mutex, lock, wait};

/// Collects the ends of pieces that drive threads run.
#[derive(Default)]
struct Ends {
    state: Mutex<State>,
    told: Condvar,
}

#[derive(Default)]
struct State {
    ends: Vec<(u32, Outcome)>,
    /// Shares that have not ended.
    shares: usize,
}

impl Owner for Ends {
    fn piece_done(&self, tag: u32, result: std::result::Result<(), Failure>) {
        lock(&self.state).ends.push((tag, result));
    }

    fn share_done(self: Arc<Self>, _failure: Option<Failure>) {
        lock(&self.state).shares -= 1;
        self.told.notify_all();
    }
}

/// A failure that stands for an error before the drives were asked.
pub fn failure(op: Op, errno: i32) -> Failure {
    Failure { op, key: 0, offset: 0, fault: Fault::Errno(errno) }
}

impl ArrayInner {
    /// Runs pieces to their ends, all of them whatever becomes of some, and tells `done` of each end by the piece's tag. An error
    /// means that none was begun.
    ///
    /// # Safety
    /// The pieces' memory and files are valid until this returns; memory that is read into is touched by nobody else.
    pub unsafe fn run_each(
        &self,
        span: (*const u8, usize),
        pieces: impl Iterator<Item = (u16, Piece)>,
        mut done: impl FnMut(u32, Outcome),
    ) -> Result<()> {
        if !self.blocks_on_threads() {
            // SAFETY: the caller's promise.
            return unsafe { self.run_inline(span, pieces, |end| done(end.tag, end.result)) };
        }
        self.fleet()?;
        // SAFETY: as above.
        unsafe { self.run_on_drives(span, pieces, true, done) };
        Ok(())
    }

    /// [`ArrayInner::run_each`] for what nobody waits for: by the drive threads, who have a class for it, unless the array has none.
    ///
    /// # Safety
    /// As for `run_each`.
    pub unsafe fn run_behind(
        &self,
        span: (*const u8, usize),
        pieces: impl Iterator<Item = (u16, Piece)>,
        mut done: impl FnMut(u32, Outcome),
    ) -> Result<()> {
        if self.runs_inline() || self.fleet().is_err() {
            // SAFETY: the caller's promise.
            return unsafe { self.run_inline(span, pieces, |end| done(end.tag, end.result)) };
        }
        // SAFETY: as above.
        unsafe { self.run_on_drives(span, pieces, false, done) };
        Ok(())
    }

    /// # Safety
    /// As for `run_each`.
    unsafe fn run_on_drives(
        &self,
        span: (*const u8, usize),
        pieces: impl Iterator<Item = (u16, Piece)>,
        flush: bool,
        mut done: impl FnMut(u32, Outcome),
    ) {
        let mut shares: Vec<Vec<Piece>> = vec![Vec::new(); self.catalog.drives().len()];
        for (drive, piece) in pieces {
            shares[usize::from(drive)].push(piece);
        }
        let ends = Arc::new(Ends::default());
        let _out = Out { array: self, ends: &ends };
        for (drive, pieces) in shares.into_iter().enumerate().filter(|(_, pieces)| !pieces.is_empty()) {
            let owner = Arc::clone(&ends) as Arc<dyn Owner>;
            lock(&ends.state).shares += 1;
            self.send_share(drive, Share { owner, pieces, span, flush });
        }
        loop {
            let (over, now) = {
                let mut state = lock(&ends.state);
                (state.shares == 0, std::mem::take(&mut state.ends))
            };
            let none = now.is_empty();
            now.into_iter().for_each(|(tag, outcome)| done(tag, outcome));
            if over {
                return;
            }
            if none {
                ends.pause(self);
            }
        }
    }
}

/// Shares that may be out. Dropping it, by a panic too, waits for their ends: their memory is the caller's.
struct Out<'a> {
    array: &'a ArrayInner,
    ends: &'a Ends,
}

impl Drop for Out<'_> {
    fn drop(&mut self) {
        loop {
            let mut state = lock(&self.ends.state);
            if state.shares == 0 {
                return;
            }
            // Nobody hears of them any more.
            state.ends.clear();
            drop(state);
            self.ends.pause(self.array);
        }
    }
}

impl Ends {
    /// Waits for a share to end.
    fn pause(&self, array: &ArrayInner) {
        if !array.has_threads() {
            return array.pause_for_drives();
        }
        let state = lock(&self.state);
        if state.shares > 0 && state.ends.is_empty() {
            drop(wait(&self.told, state));
        }
    }
}

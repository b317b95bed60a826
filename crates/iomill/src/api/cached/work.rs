//! The cached part of an operation that drive threads work on: what could not be done at once.
//!
//! The pages that are the operation's to fill go to the drive threads; each page is finished where its read ends. What somebody else
//! is at, and what found its set full, is done when those have ended, by a blocking call on a thread of its own (`ArrayInner::rests`): a drive
//! thread must not wait.

use std::sync::Arc;

use super::{Fills, Paged, Span};
use crate::api::state::FileState;
use crate::cache::Outcome;
use crate::drive::{Class, Piece};
use crate::engine::Op;
use crate::error::Result;

/// See the head of this file.
#[derive(Debug)]
pub struct Work {
    paged: Arc<Paged>,
    /// Reads and writes, each with fills of its own: (what to do, fills).
    fills: [(Op, Fills); 2],
    /// What is left for later.
    rest: [Vec<Span>; 2],
    class: Class,
}

/// Tags below it are runs of the reads, the others of the writes.
const WRITES: u32 = 1 << 31;

impl Work {
    /// Does what can be done at once, and begins the rest; `None` if that was all.
    ///
    /// # Safety
    /// The spans' memory is valid until the work has been finished, and (for reads) nobody else's.
    pub unsafe fn begin(
        file: &FileState,
        paged: &Arc<Paged>,
        reads: Vec<Span>,
        writes: Vec<Span>,
        class: Class,
    ) -> Option<Work> {
        let mut fills = [(Op::Read, Fills::new(Op::Read)), (Op::Write, Fills::new(Op::Write))];
        let mut rest = [Vec::new(), Vec::new()];
        for (((op, fills), rest), spans) in fills.iter_mut().zip(&mut rest).zip([reads, writes]) {
            let first = spans.len().min(paged.cached.limits().wave_pages);
            // SAFETY: the caller's promise.
            *rest = unsafe { file.begin_some(paged, *op, spans[..first].iter().copied(), fills) };
            rest.extend_from_slice(&spans[first..]);
            fills.plan(file, paged);
        }
        let all = fills.iter().all(|(_, fills)| fills.is_empty()) && rest.iter().all(Vec::is_empty);
        (!all).then(|| Work { paged: Arc::clone(paged), fills, rest, class })
    }

    /// The pieces that fill its pages.
    pub fn pieces<'a>(&'a self, file: &'a FileState) -> impl Iterator<Item = (u16, Piece)> + 'a {
        let [(_, reads), (_, writes)] = &self.fills;
        let writes = writes.pieces(file, self.class);
        let writes = writes.map(|(drive, piece)| (drive, Piece { tag: piece.tag | WRITES, ..piece }));
        reads.pieces(file, self.class).chain(writes)
    }

    /// Takes in the end of a piece.
    pub fn piece_done(&self, tag: u32, outcome: Outcome) {
        let [(_, reads), (_, writes)] = &self.fills;
        // Sets that want to be flushed now say so again when the next page comes: this may be a drive thread.
        let mut over = Vec::new();
        if tag & WRITES == 0 {
            reads.end_run(&self.paged, tag, outcome, &mut over);
        } else {
            writes.end_run(&self.paged, tag & !WRITES, outcome, &mut over);
        }
    }

    /// Ends the fills that could not be begun, because nobody takes their pieces any more.
    pub fn fail(&self, outcome: Outcome) {
        self.fills.iter().for_each(|(_, fills)| fills.fail(&self.paged, outcome));
    }

    /// Whether something is left to be done by a blocking call.
    pub fn has_rest(&self) -> bool {
        self.rest.iter().any(|rest| !rest.is_empty())
    }

    /// Does what is left.
    ///
    /// # Safety
    /// As for `begin`.
    pub unsafe fn finish(&self, file: &FileState) -> Result<()> {
        for ((op, _), rest) in self.fills.iter().zip(&self.rest) {
            // SAFETY: the caller's promise.
            unsafe { file.complete(&self.paged, *op, rest.clone(), self.class)? };
        }
        Ok(())
    }
}

//! The cached part of an operation that drive threads work on: what could not be done at once.
//!
//! The pages that are the operation's to fill go to the drive threads; each page is finished where its read ends. What somebody else
//! is at, and what found its set full, is done when those have ended, by a blocking call on a thread of its own (`ArrayInner::rests`): a drive
//! thread must not wait.

use std::sync::Arc;

use super::ahead::Share;
use super::read::Sorted;
use super::{Fills, Paged, Span, Want};
use crate::api::state::FileState;
use crate::cache::Outcome;
use crate::drive::{Class, Piece};
use crate::error::Result;

/// See the head of this file.
#[derive(Debug)]
pub struct Work {
    paged: Arc<Paged>,
    /// Reads or what is only touched, and writes, each with fills of its own.
    fills: [Fills<Arc<Paged>>; 2],
    /// What is left for later.
    rest: [Vec<Span>; 2],
    class: Class,
    /// What it takes of the pages that may be on their way before they are asked for, until it is gone.
    _share: Option<Share>,
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
        let spans = [(Want::Read, reads), (Want::Write, writes)];
        // SAFETY: the caller's promise.
        unsafe { Work::new(file, paged, spans, class, None) }
    }

    /// The same for pages that are to be in the cache.
    pub fn touch(file: &FileState, paged: &Arc<Paged>, pages: impl Iterator<Item = u64>, class: Class) -> Option<Work> {
        let spans = [(Want::Touch, pages.map(Span::of_page).collect()), (Want::Write, Vec::new())];
        // SAFETY: there is no memory.
        unsafe { Work::new(file, paged, spans, class, None) }
    }

    /// The same for pages that may be asked for soon, at most a wave of them.
    pub fn ahead(
        file: &FileState,
        paged: &Arc<Paged>,
        pages: impl Iterator<Item = u64>,
        class: Class,
        share: Share,
    ) -> Option<Work> {
        let spans = [(Want::Ahead, pages.map(Span::of_page).collect()), (Want::Write, Vec::new())];
        // SAFETY: there is no memory.
        unsafe { Work::new(file, paged, spans, class, Some(share)) }
    }

    /// # Safety
    /// As for `begin`.
    unsafe fn new(
        file: &FileState,
        paged: &Arc<Paged>,
        spans: [(Want, Vec<Span>); 2],
        class: Class,
        share: Option<Share>,
    ) -> Option<Work> {
        let mut fills = [Fills::new(spans[0].0, Arc::clone(paged)), Fills::new(spans[1].0, Arc::clone(paged))];
        let mut rest = [Vec::new(), Vec::new()];
        for ((fills, rest), (want, spans)) in fills.iter_mut().zip(&mut rest).zip(spans) {
            let first = spans.len().min(paged.cached.limits().wave_pages);
            // SAFETY: the caller's promise.
            let Sorted { busy, full, over } = unsafe { file.begin_wave(paged, &spans[..first], fills) };
            file.note_dirty_for_later(paged, &over);
            // Nobody waits for what nobody has asked for.
            if want != Want::Ahead {
                *rest = [&busy[..], &full, &spans[first..]].concat();
            }
            fills.plan(file);
        }
        let all = fills.iter().all(Fills::is_empty) && rest.iter().all(Vec::is_empty);
        (!all).then(|| Work { paged: Arc::clone(paged), fills, rest, class, _share: share })
    }

    /// The pieces that fill its pages.
    pub fn pieces<'a>(&'a self, file: &'a FileState) -> impl Iterator<Item = (u16, Piece)> + 'a {
        let [reads, writes] = &self.fills;
        let writes = writes.pieces(file, self.class);
        let writes = writes.map(|(drive, piece)| (drive, Piece { tag: piece.tag | WRITES, ..piece }));
        reads.pieces(file, self.class).chain(writes)
    }

    /// Takes in the end of a piece.
    pub fn piece_done(&self, tag: u32, outcome: Outcome) {
        let [reads, writes] = &self.fills;
        // Sets that want to be flushed now say so again when the next page comes: this may be a drive thread.
        let mut over = Vec::new();
        if tag & WRITES == 0 {
            reads.end_run(tag, outcome, &mut over);
        } else {
            writes.end_run(tag & !WRITES, outcome, &mut over);
        }
    }

    /// Ends the fills that have not ended: none of their pieces is in flight.
    pub fn abandon(&self) {
        self.fills.iter().for_each(Fills::abandon);
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
        for (fills, rest) in self.fills.iter().zip(&self.rest) {
            // SAFETY: the caller's promise.
            unsafe { file.complete(&self.paged, fills.want(), rest.clone(), self.class)? };
        }
        Ok(())
    }
}

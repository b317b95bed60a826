//! [`pieces`]: a long range, cut. Non-goals: reading it.

use std::ops::Range;

/// A range cut at multiples of the length of a piece, so that no page is read twice.
pub fn pieces(range: Range<u64>, piece_bytes: u64) -> impl Iterator<Item = Range<u64>> + Send {
    let mut at = range.start;
    std::iter::from_fn(move || {
        let end = (at / piece_bytes + 1).saturating_mul(piece_bytes).min(range.end);
        let piece = at..end;
        at = end;
        (!piece.is_empty()).then_some(piece)
    })
}

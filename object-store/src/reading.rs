//! Bytes of an open file as futures and streams of [`Bytes`], without a copy after the read. Non-goals: which file and
//! which range.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream::{self, BoxStream, StreamExt};

use crate::common::{Fault, Result, pieces};
use crate::handles::Handle;

/// A range up to this length is one read, and one `Bytes`.
const WHOLE_MAX_BYTES: u64 = 8 << 20;
/// A longer one comes in pieces of this length.
const PIECE_BYTES: u64 = 2 << 20;
/// The number of pieces that are read ahead of their reader.
const PIECES_AHEAD: usize = 4;

const PAGE_BYTES: u64 = 4096;

/// Reads a range within the file.
pub async fn read(file: &Handle, range: Range<u64>) -> Result<Bytes> {
    let len = length(&range)?;
    if range.start % PAGE_BYTES + len as u64 > PAGE_BYTES {
        return Ok(file.gather_async(&[(range.start, len)]).await?.into());
    }
    // A range within a page has a path of its own, which is the shortest one.
    let bytes = file.read_async(range.start, len).await?;
    if bytes.len() == len {
        return Ok(bytes.into());
    }
    let why = format!(
        "{:?} ended at {}, before the end of the range {range:?}: it was cut meanwhile; read it again",
        file.name(),
        range.start + bytes.len() as u64
    );
    Err(Fault::other(why))
}

/// The bytes of a range within the file. Nothing is read before the first poll.
pub fn stream(file: Arc<Handle>, range: Range<u64>) -> BoxStream<'static, Result<Bytes>> {
    let read = move |piece| {
        let file = Arc::clone(&file);
        async move { read(&file, piece).await }
    };
    if range.is_empty() {
        stream::empty().boxed()
    } else if range.end - range.start <= WHOLE_MAX_BYTES {
        stream::once(read(range)).boxed()
    } else {
        stream::iter(pieces(range, PIECE_BYTES)).map(read).buffered(PIECES_AHEAD).boxed()
    }
}

/// Reads ranges within the file by one gather, into memory that all of them share.
pub async fn gather(file: &Handle, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
    let places: Vec<(u64, usize)> =
        ranges.iter().map(|range| Ok((range.start, length(range)?))).collect::<Result<_>>()?;
    let mut all = Bytes::from(file.gather_async(&places).await?);
    Ok(places.iter().map(|(_, len)| all.split_to(*len)).collect())
}

fn length(range: &Range<u64>) -> Result<usize> {
    let len = range.end.saturating_sub(range.start);
    usize::try_from(len).map_err(|_| Fault::other(format!("the range {range:?} is longer than the address space")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_the_range() {
        for range in [0..1, 5..5, 0..3 * PIECE_BYTES, 7..PIECE_BYTES, PIECE_BYTES - 1..2 * PIECE_BYTES + 1] {
            let pieces: Vec<_> = pieces(range.clone(), PIECE_BYTES).collect();
            assert_eq!(pieces.iter().map(|piece| piece.end - piece.start).sum::<u64>(), range.end - range.start);
            assert_eq!(pieces.first().map_or(range.start, |piece| piece.start), range.start);
            assert_eq!(pieces.last().map_or(range.end, |piece| piece.end), range.end);
            assert!(pieces.windows(2).all(|pair| pair[0].end == pair[1].start && pair[1].start % PIECE_BYTES == 0));
        }
    }
}

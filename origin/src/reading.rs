//! Reading ranges of an object from the drives, and the missing parts from the origin. Rule R2 of `docs/origin.md`.
//! Non-goals: the choice of the content (`store`), proofs of pages (`pages`), and fetching (`fetch`).

use std::collections::HashMap;
use std::ops::Range;

use bytes::{Bytes, BytesMut};
use futures_util::future::{join, join_all};

use crate::cache::Inner;
use crate::common::{Fault, Result};
use crate::counters::add;
use crate::fetch::{self, Fetched};
use crate::identity::{ObjectId, PAGE_BYTES};
use crate::pages::{Planned, gathered};
use crate::source::Source;

/// The part of a range that lies in one granule.
struct Piece {
    range: usize,
    granule: u64,
    /// The pages of the granule that have it.
    pages: Range<usize>,
    bytes: Option<Bytes>,
    /// The bytes are a part of the memory of a GET.
    of_get: bool,
}

/// The result of a read.
pub struct Read {
    pub parts: Vec<Bytes>,
    /// The origin was asked, and had the expected content.
    pub validated: bool,
}

/// A shorter part is copied, so that it does not keep the memory of a whole GET.
const SHARED_LEAST: usize = 64 << 10;

/// A read of fewer bytes does not ask whether there is memory for them.
const LARGE: usize = 1 << 30;

/// Reads ranges within the object. `have` are the granules that are in memory already.
pub async fn read(source: &Source<'_>, id: ObjectId, ranges: &[Range<u64>], have: HashMap<u64, Bytes>) -> Result<Read> {
    let cache = source.cache;
    let granule_bytes = cache.granule_bytes;
    add(&cache.tally.bytes_asked, fitting(ranges)?);
    let mut pieces = pieces(ranges, granule_bytes);
    let (plans, mut missing) = plan(cache, id, &pieces, &have);
    let mut fetched = Fetched { granules: have, validated: false };

    let gathers = join_all(
        plans
            .into_iter()
            .enumerate()
            .filter(|(_, plan)| !plan.is_empty())
            .map(|(drive, plan)| async move { gathered(cache, &cache.drives[drive], plan).await }),
    );
    add(&cache.tally.misses_absent, missing.len() as u64);
    let first = std::mem::take(&mut missing);
    let (gathers, ended) = join(gathers, fetch::fetch(source, id, first, &mut fetched)).await;
    ended?;
    for (found, lost) in gathers {
        found.into_iter().for_each(|(piece, bytes)| pieces[piece].bytes = Some(bytes));
        missing.extend(lost.into_iter().map(|piece| pieces[piece].granule));
    }
    // Rule R2: a granule with a wrong sum is fetched, like a missing one.
    fetch::fetch(source, id, missing, &mut fetched).await?;

    for piece in pieces.iter_mut().filter(|piece| piece.bytes.is_none()) {
        let granule = fetched.granules.get(&piece.granule).ok_or_else(|| Fault::other("a granule was not fetched"))?;
        let begin = (piece.pages.start * PAGE_BYTES).min(granule.len());
        let end = (piece.pages.end * PAGE_BYTES).min(granule.len());
        piece.bytes = Some(granule.slice(begin..end));
        piece.of_get = true;
    }
    let parts = assembled(ranges, &pieces, granule_bytes)?;
    Ok(Read { parts, validated: fetched.validated })
}

/// The number of the bytes of ranges. An error if no memory has so many: the length of an object is what its origin
/// says, and the lists of a read grow with it.
fn fitting(ranges: &[Range<u64>]) -> Result<u64> {
    let total = ranges.iter().fold(0, |sum: u64, range| sum.saturating_add(range.end.saturating_sub(range.start)));
    let has_room = |total| std::hint::black_box(Vec::<u8>::new()).try_reserve_exact(total).is_ok();
    match usize::try_from(total) {
        Ok(len) if len < LARGE || has_room(len) => Ok(total),
        _ => Err(Fault::other(format!("{total} bytes by one call: this process has no memory for them; read fewer"))),
    }
}

fn pieces(ranges: &[Range<u64>], granule_bytes: u64) -> Vec<Piece> {
    let mut pieces = Vec::with_capacity(ranges.len());
    for (n, range) in ranges.iter().enumerate().filter(|(_, range)| !range.is_empty()) {
        for granule in range.start / granule_bytes..=(range.end - 1) / granule_bytes {
            let base = granule * granule_bytes;
            let (begin, end) = (range.start.max(base) - base, range.end.min(base + granule_bytes) - base);
            let pages = begin as usize / PAGE_BYTES..(end as usize).div_ceil(PAGE_BYTES);
            pieces.push(Piece { range: n, granule, pages, bytes: None, of_get: false });
        }
    }
    pieces
}

/// The reads from each drive, and the granules that no index has.
fn plan(cache: &Inner, id: ObjectId, pieces: &[Piece], have: &HashMap<u64, Bytes>) -> (Vec<Vec<Planned>>, Vec<u64>) {
    let shares = cache.shares();
    let mut plans: Vec<Vec<Planned>> = cache.drives.iter().map(|_| Vec::new()).collect();
    let mut missing = Vec::new();
    for (n, piece) in pieces.iter().enumerate() {
        if !have.is_empty() && have.contains_key(&piece.granule) {
            continue;
        }
        let granule = id.granule(piece.granule);
        let drive = shares.drive(granule.tag);
        match drive.and_then(|drive| Some((drive, cache.drives[drive].index.find(granule.tag)?))) {
            Some((drive, found)) => {
                cache.drives[drive].index.touch(found.place);
                plans[drive].push(Planned { piece: n, id: granule, pages: piece.pages.clone(), found });
            }
            None => missing.push(piece.granule),
        }
    }
    (plans, missing)
}

/// The bytes of each range, from those of its pieces.
fn assembled(ranges: &[Range<u64>], pieces: &[Piece], granule_bytes: u64) -> Result<Vec<Bytes>> {
    let mut rest = pieces;
    let mut parts = Vec::with_capacity(ranges.len());
    for (n, range) in ranges.iter().enumerate() {
        let count = rest.iter().take_while(|piece| piece.range == n).count();
        let (own, others) = rest.split_at(count);
        rest = others;
        let slices = own.iter().map(|piece| slice_of(range, piece, granule_bytes)).collect::<Result<Vec<_>>>()?;
        parts.push(match &slices[..] {
            [] => Bytes::new(),
            [(bytes, whole)] if bytes.len() >= *whole / 2 || bytes.len() >= SHARED_LEAST => bytes.clone(),
            [(bytes, _)] => Bytes::copy_from_slice(bytes),
            many => {
                let mut joined = BytesMut::with_capacity((range.end - range.start) as usize);
                many.iter().for_each(|(bytes, _)| joined.extend_from_slice(bytes));
                joined.freeze()
            }
        });
    }
    Ok(parts)
}

/// The bytes of a range in one piece, and the size of the memory that they keep.
fn slice_of(range: &Range<u64>, piece: &Piece, granule_bytes: u64) -> Result<(Bytes, usize)> {
    let bytes = piece.bytes.as_ref().ok_or_else(|| Fault::other("a piece has no bytes"))?;
    let base = piece.granule * granule_bytes + (piece.pages.start * PAGE_BYTES) as u64;
    let begin = range.start.max(base) - base;
    let end = range.end.min((piece.granule + 1) * granule_bytes) - base;
    if end > bytes.len() as u64 {
        return Err(Fault::other(format!("a granule ends {} bytes too early", end - bytes.len() as u64)));
    }
    let whole = if piece.of_get { usize::MAX } else { bytes.len() };
    Ok((bytes.slice(begin as usize..end as usize), whole))
}

//! [`pin`] and [`unpin`]: granules that eviction keeps. Rule W6 of `docs/origin.md`. Non-goals: what is brought before it is asked for, and may go
//! again (`prefetch`).

use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::cache::Inner;
use crate::common::{Fault, Result};
use crate::identity::ObjectId;
use crate::options::PATIENCE;
use crate::prefetch::{STEP_BYTES, prefetch};
use crate::source::Source;

/// How far a pin is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pinned {
    /// Objects of which all that was asked for is pinned.
    pub objects: u64,
    /// Bytes of whole granules that are pinned.
    pub bytes: u64,
    /// Those of them that came from the origin. The others were there.
    pub fetched: u64,
}

/// How often a granule is brought that is not on its drive afterwards.
const TRIES: u32 = 3;
/// How often a pin looks whether a granule was written.
const LOOK: Duration = Duration::from_millis(2);
/// One granule in this many of each drive may be pinned. So there is a region with no more of them, which eviction can empty.
const SHARE: u64 = 2;

/// Brings what lacks of a range, and pins all of it. `done` grows, and is told after each step.
pub async fn pin(
    source: &Source<'_>,
    range: Range<u64>,
    done: &mut Pinned,
    progress: &mut (dyn FnMut(Pinned) + Send),
) -> Result<()> {
    let (cache, object) = (source.cache, source.object);
    let id = object.id.ok_or_else(|| Fault::other(format!("{:?} has no version, so it is not cached", object.path)))?;
    let step = (STEP_BYTES / cache.granule_bytes).max(1) * cache.granule_bytes;
    let mut at = range.start / cache.granule_bytes * cache.granule_bytes;
    let end = range.end.min(object.meta.size);
    while at < end {
        let some = at..(at + step).min(end);
        at = some.end;
        if let Some((home, most)) = full_drive(cache, id, some.clone()) {
            let why = format!(
                "{:?} is not pinned: at most {most} bytes may be on {}, half of what the drive holds; unpin others",
                object.path,
                home.display()
            );
            return Err(Fault::other(why));
        }
        done.fetched += pin_some(source, id, some.clone()).await?;
        done.bytes += some.end - some.start;
        progress(*done);
    }
    Ok(())
}

/// A drive on which a range would pin too many granules, and how many bytes may be. What is pinned already is no more.
fn full_drive(cache: &Inner, id: ObjectId, some: Range<u64>) -> Option<(&Path, u64)> {
    let (shares, mut more) = (cache.shares(), vec![0; cache.drives.len()]);
    for granule in some.start / cache.granule_bytes..some.end.div_ceil(cache.granule_bytes) {
        let tag = id.granule(granule).tag;
        let Some(drive) = shares.drive(tag) else { continue };
        let index = &cache.drives[drive].index;
        more[drive] += u64::from(!index.find(tag).is_some_and(|found| index.is_pinned(found.place)));
    }
    cache.drives.iter().zip(more).find_map(|(drive, more)| {
        let most = drive.geometry().places() / SHARE;
        let is_full = more > 0 && drive.index.count_pinned() + more > most;
        is_full.then(|| (drive.home(), most * cache.granule_bytes))
    })
}

/// Pins granules, and brings those that lack. Returns the bytes that came from the origin.
async fn pin_some(source: &Source<'_>, id: ObjectId, some: Range<u64>) -> Result<u64> {
    let (cache, mut fetched) = (source.cache, 0);
    for _ in 0..TRIES {
        fetched += prefetch(source, some.clone()).await?.fetched;
        let begun = Instant::now();
        // What was fetched is written behind the fetch.
        while !mark(cache, id, some.clone(), true) {
            if begun.elapsed() > PATIENCE {
                break;
            }
            cache.timer.after(LOOK).await;
        }
        if mark(cache, id, some.clone(), true) {
            return Ok(fetched);
        }
    }
    let why = format!(
        "bytes {some:?} of {:?} are not pinned: its drive does not take them; see `Cache::notices`",
        source.object.path
    );
    Err(Fault::other(why))
}

/// Makes granules of a range like others.
pub fn unpin(cache: &Inner, id: ObjectId, range: Range<u64>) {
    let _not_there = mark(cache, id, range, false);
}

/// Marks the granules that are there. Whether all are.
fn mark(cache: &Inner, id: ObjectId, range: Range<u64>, is_pinned: bool) -> bool {
    let (shares, mut all) = (cache.shares(), true);
    for granule in range.start / cache.granule_bytes..range.end.div_ceil(cache.granule_bytes) {
        let tag = id.granule(granule).tag;
        let drive = shares.drive(tag).map(|drive| &cache.drives[drive]);
        match drive.and_then(|drive| Some((drive, drive.index.find(tag)?))) {
            Some((drive, found)) => drive.index.pin(found.place, is_pinned),
            None => all = false,
        }
    }
    all
}

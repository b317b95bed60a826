//! [`pin`] and [`unpin`]: granules that eviction keeps. Rule W6 of `docs/origin.md`. Non-goals: granules that are
//! fetched ahead and may be evicted (`prefetch`).

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::cache::Inner;
use crate::common::{Fault, Result, pieces};
use crate::drive::Drive;
use crate::identity::ObjectId;
use crate::options::PATIENCE;
use crate::prefetch::{STEP_BYTES, prefetch};
use crate::source::Source;

/// The progress of a pin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pinned {
    /// Objects with all requested ranges pinned.
    pub objects: u64,
    /// Bytes of whole pinned granules.
    pub bytes: u64,
    /// Those of them that were fetched from the origin. The others were cached.
    pub fetched: u64,
}

/// How often a granule is fetched again if its drive does not have it afterwards.
const TRIES: u32 = 3;
/// The interval at which a pin checks whether a granule was written.
const LOOK: Duration = Duration::from_millis(2);
/// The most granules that are unpinned in one hold of the right to append.
const UNPIN_GRANULES: u64 = 16 << 10;
/// The interval at which a pin asks for the right to append.
const PAUSE: Duration = Duration::from_millis(1);
/// One granule in this many of each drive may be pinned. So some region has no more of them, and eviction can empty it.
const SHARE: u64 = 2;

/// Fetches the missing granules of a range, and pins all of the range. `done` grows, and `progress` is called after
/// each step.
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

/// A drive on which a range would pin too many granules, and the bytes that may be pinned there. Granules that are
/// pinned already are not counted twice.
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

/// Pins granules, and fetches the missing ones. Returns the bytes from the origin.
async fn pin_some(source: &Source<'_>, id: ObjectId, some: Range<u64>) -> Result<u64> {
    let (cache, mut fetched) = (source.cache, 0);
    for _ in 0..TRIES {
        fetched += prefetch(source, some.clone()).await?.fetched;
        let begun = Instant::now();
        // What was fetched is written behind the fetch.
        while !has_all(cache, id, &some) && begun.elapsed() < PATIENCE {
            cache.timer.after(LOOK).await;
        }
        if mark(cache, id, &some, true).await? {
            return Ok(fetched);
        }
    }
    let why = format!(
        "bytes {some:?} of {:?} are not pinned: its drive does not take them; see `Cache::notices`",
        source.object.path
    );
    Err(Fault::other(why))
}

/// Unpins the granules of a range.
pub async fn unpin(cache: &Inner, id: ObjectId, range: Range<u64>) -> Result<()> {
    for some in pieces(range, UNPIN_GRANULES * cache.granule_bytes) {
        let _not_all_there = mark(cache, id, &some, false).await?;
    }
    Ok(())
}

/// The tags of the granules of a range, for each drive. `None`: a granule has no drive, because none is left.
fn tags(cache: &Inner, id: ObjectId, range: &Range<u64>) -> Option<Vec<Vec<u64>>> {
    let (shares, mut tags) = (cache.shares(), vec![Vec::new(); cache.drives.len()]);
    for granule in range.start / cache.granule_bytes..range.end.div_ceil(cache.granule_bytes) {
        let tag = id.granule(granule).tag;
        tags[shares.drive(tag)?].push(tag);
    }
    Some(tags)
}

fn has_all(cache: &Inner, id: ObjectId, range: &Range<u64>) -> bool {
    let has = |(drive, tags): (&Arc<Drive>, Vec<u64>)| tags.iter().all(|tag| drive.index.find(*tag).is_some());
    tags(cache, id, range).is_some_and(|tags| cache.drives.iter().zip(tags).all(has))
}

/// Pins or unpins the cached granules. Returns whether all are cached.
async fn mark(cache: &Inner, id: ObjectId, range: &Range<u64>, is_pinned: bool) -> Result<bool> {
    let Some(tags) = tags(cache, id, range) else { return Ok(false) };
    let mut all = true;
    for (drive, tags) in cache.drives.iter().zip(tags).filter(|(_, tags)| !tags.is_empty()) {
        let begun = Instant::now();
        all &= loop {
            match drive.mark(&tags, is_pinned) {
                Some(has_all) => break has_all,
                None if begun.elapsed() > PATIENCE => return Err(busy(drive)),
                None => cache.timer.after(PAUSE).await,
            }
        };
    }
    Ok(all)
}

fn busy(drive: &Drive) -> Fault {
    let home = drive.home().display();
    Fault::other(format!(
        "{home}: pins are not changed, because another process has had the right to write for {PATIENCE:?}; end that \
         process if it is stopped, and check the drive if it hangs"
    ))
}

impl Drive {
    /// Pins or unpins granules, if the right to append is free now. Rule W7: without it a granule might leave its place
    /// between its lookup and its mark, and the mark would be that of the next granule there. Returns whether the drive
    /// has all of them.
    fn mark(&self, tags: &[u64], is_pinned: bool) -> Option<bool> {
        let _held = self.try_hold()?;
        let mut all = true;
        for tag in tags {
            match self.index.find(*tag) {
                Some(found) => {
                    #[cfg(test)]
                    self.faults.between_lookup_and_mark();
                    self.index.pin(found.place, is_pinned)
                }
                None => all = false,
            }
        }
        Some(all)
    }
}

#[cfg(test)]
mod tests;

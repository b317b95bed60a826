//! [`prefetch`]: fetches missing granules ahead of their first read. Non-goals: fetches by reads (`reading`).

use std::ops::Range;
use std::time::{Duration, Instant};

use crate::cache::Inner;
use crate::common::{Fault, Result};
use crate::fetch::{self, Fetched};
use crate::options::PATIENCE;
use crate::source::Source;

/// The result of a prefetch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Prefetched {
    /// Bytes of whole requested granules.
    pub bytes: u64,
    /// Those of them that were fetched from the origin. The others were cached.
    pub fetched: u64,
}

/// The most bytes that are fetched before the prefetch waits for the drives. They are only a part of the bytes that may
/// wait to be written.
pub const STEP_BYTES: u64 = 8 << 20;
const STEP_SHARE: u64 = 4;
/// The interval at which a prefetch checks for room.
const LOOK: Duration = Duration::from_millis(2);

/// Fetches the missing granules of a range. Its fills are not dropped, as those of reads are: it continues when there
/// is room.
pub async fn prefetch(source: &Source<'_>, range: Range<u64>) -> Result<Prefetched> {
    let (cache, object) = (source.cache, source.object);
    let id = object.id.ok_or_else(|| {
        let path = &object.path;
        Fault::other(format!(
            "{path:?} has no etag and no version, so it is not cached; size and time can identify it (`by_time`)"
        ))
    })?;
    let granule_bytes = cache.granule_bytes;
    let range = range.start.min(object.meta.size)..range.end.min(object.meta.size);
    let mut done = Prefetched::default();
    if range.is_empty() {
        return Ok(done);
    }
    let mut granules = range.start / granule_bytes..=(range.end - 1) / granule_bytes;
    let step_bytes = STEP_BYTES.min(cache.options.fill_bytes / STEP_SHARE);
    let step = (step_bytes / granule_bytes).max(1) as usize;
    loop {
        let some: Vec<u64> = granules.by_ref().take(step).collect();
        let Some(last) = some.last() else { return Ok(done) };
        let bytes = ((last + 1) * granule_bytes).min(object.meta.size) - some[0] * granule_bytes;
        let shares = cache.shares();
        let lacks = |granule: &u64| {
            let tag = id.granule(*granule).tag;
            shares.drive(tag).is_some_and(|drive| cache.drives[drive].index.find(tag).is_none())
        };
        let missing: Vec<u64> = some.iter().copied().filter(lacks).collect();
        done.bytes += bytes;
        if missing.is_empty() {
            continue;
        }
        wait_for_room(cache, step_bytes).await;
        let count = missing.len() as u64;
        fetch::fetch(source, id, missing, &mut Fetched::default()).await?;
        done.fetched += (count * granule_bytes).min(bytes);
    }
}

/// Waits until the drives have room for `bytes`, within a bound: one of them may never write again.
async fn wait_for_room(cache: &Inner, bytes: u64) {
    let begun = Instant::now();
    while !cache.has_room(bytes) && begun.elapsed() < PATIENCE {
        cache.timer.after(LOOK).await;
    }
}

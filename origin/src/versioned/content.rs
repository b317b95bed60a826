//! [`Content`]: one content of an object, open. Non-goals: the trait.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use super::convert::{error, object_meta};
use super::object_store::path::Path;
use super::object_store::{GetOptions, ObjectMeta, Result};
use super::{Cached, meta_of, passed};
use crate::common::Fault;
use crate::known::Object;
use crate::pin::Pinned;
use crate::prefetch::Prefetched;
use crate::present::{CachedBytes, Verified};

/// One content of an object. All reads are of this content: if the object changes, reads of bytes that are not cached
/// end with `Precondition`. Then open the object again.
#[derive(Clone, Debug)]
pub struct Content {
    pub(super) store: Cached,
    pub(super) location: Path,
    pub(super) object: Arc<Object>,
}

impl Content {
    /// The metadata of the object, by the origin.
    pub fn meta(&self) -> ObjectMeta {
        object_meta(&self.location, &self.object.meta)
    }

    /// Whether it is cached. An object without a strong etag and without a version is not, unless `Options::by_time`
    /// allows it.
    pub fn is_cached(&self) -> bool {
        self.object.id.is_some()
    }

    /// Reads ranges within the object, all at once.
    pub async fn read(&self, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let size = self.object.meta.size;
        if let Some(range) = ranges.iter().find(|range| range.start > range.end || range.end > size) {
            let why = format!("the range {range:?} of {:?}, which has {size} bytes", self.location.as_ref());
            return Err(error(&Fault::other(why), &self.location));
        }
        if self.is_cached() {
            return self
                .store
                .store
                .read_more(&self.object, ranges)
                .await
                .map_err(|fault| error(&fault, &self.location));
        }
        self.store.passed();
        let parts = passed::ranges(&*self.store.inner, &self.location, ranges).await;
        let options = GetOptions { head: true, ..Default::default() };
        // The next opening knows it, with any `Revalidate`.
        let now = match self.store.head_of(&self.location, options).await {
            Ok(now) => now,
            Err(error) => return Err(parts.err().unwrap_or(error)),
        };
        let is_same = meta_of(&now.meta, &now.attributes).is_same(&self.object.meta);
        // The object may be shorter now.
        let has_len = |(part, range): (&Bytes, &Range<u64>)| part.len() as u64 == range.end - range.start;
        let is_whole = parts.as_ref().map_or(true, |parts| parts.iter().zip(ranges).all(has_len));
        if is_same && is_whole { parts } else { Err(error(&Fault::changed(self.location.as_ref()), &self.location)) }
    }

    /// The cached part of it. It reads nothing from the drives.
    pub fn cached_bytes(&self) -> Result<CachedBytes> {
        self.store.store.cached_bytes(&self.object).map_err(|fault| error(&fault, &self.location))
    }

    /// Reads its cached part from the drives, and compares the sums. Wrong granules are misses from then on.
    pub async fn verify(&self) -> Result<Verified> {
        self.store.store.verify(&self.object).await.map_err(|fault| error(&fault, &self.location))
    }

    /// Fetches the missing granules of a range, and waits for them. They are written to the drives soon afterwards. The
    /// range is cut at the end of the object.
    pub async fn prefetch(&self, range: Range<u64>) -> Result<Prefetched> {
        let brought = self.store.store.prefetch(&self.object, range).await;
        brought.map_err(|fault| error(&fault, &self.location))
    }

    /// Fetches the missing granules of ranges, and pins all granules of the ranges, for all processes, until they are
    /// unpinned or the machine restarts. The ranges are cut at the end of the object. At most half of each drive can be
    /// pinned. `progress` is called with the progress. After an error, the granules that were pinned before stay
    /// pinned.
    pub async fn pin(&self, ranges: &[Range<u64>], mut progress: impl FnMut(Pinned) + Send) -> Result<Pinned> {
        let mut done = Pinned::default();
        let pinned = self.store.store.pin(&self.object, ranges, &mut done, &mut progress).await;
        pinned.map(|()| done).map_err(|fault| error(&fault, &self.location))
    }

    /// Unpins ranges. An error if another process keeps the right to write to a drive, because it is stopped or its
    /// drive hangs.
    pub async fn unpin(&self, ranges: &[Range<u64>]) -> Result<()> {
        self.store.store.unpin(&self.object, ranges).await.map_err(|fault| error(&fault, &self.location))
    }
}

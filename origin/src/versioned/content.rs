//! [`Content`]: one content of an object, open. Non-goals: the trait.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use super::convert::{error, object_meta};
use super::object_store::path::Path;
use super::object_store::{GetOptions, ObjectMeta, ObjectStore, Result};
use super::{Cached, meta_of};
use crate::common::Fault;
use crate::known::Object;
use crate::pin::Pinned;
use crate::prefetch::Prefetched;

/// One content of an object. All that is read is of this content: if the object changes, reads of what is not on the drives end with
/// `Precondition`, and the object is opened anew.
#[derive(Clone, Debug)]
pub struct Content {
    pub(super) store: Cached,
    pub(super) location: Path,
    pub(super) object: Arc<Object>,
}

impl Content {
    /// What the origin says of it.
    pub fn meta(&self) -> ObjectMeta {
        object_meta(&self.location, &self.object.meta)
    }

    /// Whether it is cached. An object without a strong etag and without a version is not, unless `Options::by_time` says so.
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
        let parts = self.store.inner.get_ranges(&self.location, ranges).await?;
        let options = GetOptions { head: true, ..Default::default() };
        let now = self.store.inner.get_opts(&self.location, options).await?;
        match meta_of(&now.meta, &now.attributes).is_same(&self.object.meta) {
            true => Ok(parts),
            false => Err(error(&Fault::changed(self.location.as_ref()), &self.location)),
        }
    }

    /// Brings what the drives lack of a range, and waits until it is fetched. What is fetched is written soon afterwards.
    pub async fn prefetch(&self, range: Range<u64>) -> Result<Prefetched> {
        let brought = self.store.store.prefetch(&self.object, range).await;
        brought.map_err(|fault| error(&fault, &self.location))
    }

    /// Brings what the drives lack of ranges, and keeps all of it there, for all processes, until it is unpinned or the machine is started anew. At
    /// most half of what each drive holds can be pinned. `progress` is told how far it is. What was pinned before an error stays so.
    pub async fn pin(&self, ranges: &[Range<u64>], mut progress: impl FnMut(Pinned) + Send) -> Result<Pinned> {
        let mut done = Pinned::default();
        let pinned = self.store.store.pin(&self.object, ranges, &mut done, &mut progress).await;
        pinned.map(|()| done).map_err(|fault| error(&fault, &self.location))
    }

    /// Lets ranges go as all that is cached goes.
    pub fn unpin(&self, ranges: &[Range<u64>]) -> Result<()> {
        self.store.store.unpin(&self.object, ranges).map_err(|fault| error(&fault, &self.location))
    }
}

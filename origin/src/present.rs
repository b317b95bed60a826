//! [`CachedBytes`] and [`Verified`]: the cached part of one content, as the indexes have it, and as the drives have it.
//! Non-goals: fetching missing granules (`prefetch`).

use futures_util::StreamExt;
use futures_util::stream;

use crate::cache::Inner;
use crate::identity::ObjectId;
use crate::known::Object;
use crate::pages::whole;

/// The cached part of one content. Bytes are those of the content: its last granule may be shorter than the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CachedBytes {
    /// Bytes of granules that an index has.
    pub cached: u64,
    /// Bytes of those that are pinned.
    pub pinned: u64,
}

/// The cached part of one content after all of it was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Verified {
    /// Bytes of granules with the right sums.
    pub right: u64,
    /// Bytes of granules that are wrong or cannot be read. They are misses from now on.
    pub wrong: u64,
}

/// The granules of a content that are verified at the same time.
const AT_ONCE: usize = 16;

/// The granules of an object with their lengths.
fn granules(cache: &Inner, object: &Object) -> impl Iterator<Item = (u64, u64)> {
    let (size, len) = (object.meta.size, cache.granule_bytes);
    (0..size.div_ceil(len)).map(move |granule| (granule, len.min(size - granule * len)))
}

/// What the indexes have of a content. It reads nothing from the drives.
pub fn cached_bytes(cache: &Inner, id: ObjectId, object: &Object) -> CachedBytes {
    let (shares, mut found) = (cache.shares(), CachedBytes::default());
    for (granule, len) in granules(cache, object) {
        let tag = id.granule(granule).tag;
        let Some(drive) = shares.drive(tag).map(|drive| &cache.drives[drive]) else { continue };
        if let Some(place) = drive.index.find(tag).map(|found| found.place) {
            found.cached += len;
            found.pinned += if drive.index.is_pinned(place) { len } else { 0 };
        }
    }
    found
}

/// Reads the cached granules of a content, and compares their sums.
pub async fn verify(cache: &Inner, id: ObjectId, object: &Object) -> Verified {
    let read = granules(cache, object).map(|(granule, len)| async move {
        let id = id.granule(granule);
        let Some(drive) = cache.drive_of(id).filter(|drive| drive.index.find(id.tag).is_some()) else {
            return Verified::default();
        };
        match whole(cache, &drive, id).await {
            Some(_) => Verified { right: len, wrong: 0 },
            None => Verified { right: 0, wrong: len },
        }
    });
    let add = |all: Verified, one: Verified| Verified { right: all.right + one.right, wrong: all.wrong + one.wrong };
    stream::iter(read).buffered(AT_ONCE).fold(Verified::default(), |all, one| std::future::ready(add(all, one))).await
}

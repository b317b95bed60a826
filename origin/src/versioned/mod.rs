//! The trait `ObjectStore` through a cache, for the version of `object_store` that the module above names. Non-goals:
//! differences between versions (`crate::v0_13`, `crate::v0_14`).

mod content;
mod convert;
mod inner;
mod passed;
mod upload;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::{self, BoxStream, StreamExt, TryStreamExt};

use super::object_store;
use super::object_store::path::Path;
use super::object_store::{
    Attributes, CopyOptions, Error, GetOptions, GetRange, GetResult, GetResultPayload, ListResult, MultipartUpload,
    ObjectMeta, ObjectStore, ObjectStoreExt, PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions,
    RenameTargetMode, Result,
};
use super::result;
use crate::cache::Cache;
use crate::change::{Change, Deletes};
use crate::common::{Fault, Kind, pieces};
use crate::counters::add;
use crate::known::Object;
use crate::pin::Pinned;
use crate::store::{Got, Store};
use convert::{error, is_sure, meta_of, object_meta, refusal};
use inner::Inner;

pub use content::Content;

/// A stream has pieces that end at multiples of this.
const PIECE_BYTES: u64 = 2 << 20;
/// The number of pieces that are read ahead of the reader.
const PIECES_AHEAD: usize = 4;

/// A store through a cache, with calls that the trait does not have. Clones are one store.
#[derive(Clone)]
pub struct Cached {
    inner: Arc<dyn ObjectStore>,
    store: Arc<Store>,
}

impl crate::Over for Arc<dyn ObjectStore> {
    fn over(self, cache: &Cache, name: &str) -> Self {
        Arc::new(Cached::new(cache, self, name))
    }
}

impl fmt::Debug for Cached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cached").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl fmt::Display for Cached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "iomill's cache over {}", self.inner)
    }
}

/// The requested bytes of a get.
fn resolved(range: Option<&GetRange>, size: u64) -> Result<Range<u64>, Fault> {
    range.map_or(Ok(0..size), |range| range.as_range(size).map_err(Fault::other))
}

/// The result of a call on an object of a listing. `None` if the object was deleted since.
fn present<T>(called: Result<T>) -> Result<Option<T>> {
    match called {
        Err(Error::NotFound { .. }) => Ok(None),
        called => called.map(Some),
    }
}

/// The part of a get that is read before its answer.
fn first_piece(range: &Range<u64>) -> Range<u64> {
    range.start..(range.start / PIECE_BYTES + 1).saturating_mul(PIECE_BYTES).min(range.end)
}

impl Cached {
    /// The objects of a store through a cache. [`Cache::over`] returns the same as an `Arc<dyn ObjectStore>`, and
    /// describes the name.
    pub fn new(cache: &Cache, store: Arc<dyn ObjectStore>, name: &str) -> Cached {
        let origin = Arc::new(Inner(Arc::clone(&store)));
        Cached { inner: store, store: Arc::new(Store::new(cache.clone(), origin, name)) }
    }

    /// Opens an object in its present version. All reads of the result are of this content.
    pub async fn open(&self, location: &Path) -> Result<Content> {
        let object = self.store.open(location.as_ref()).await.map_err(|fault| error(&fault, location))?;
        Ok(Content { store: self.clone(), location: location.clone(), object })
    }

    /// Pins all present objects below a prefix: see [`Content::pin`]. Later objects are not pinned.
    pub async fn pin(&self, prefix: Option<&Path>, mut progress: impl FnMut(Pinned) + Send) -> Result<Pinned> {
        let mut done = Pinned::default();
        let mut listed = self.inner.list(prefix);
        while let Some(found) = listed.try_next().await? {
            present(self.pin_one(&found.location, &mut done, &mut progress).await)?;
        }
        Ok(done)
    }

    async fn pin_one(
        &self,
        location: &Path,
        done: &mut Pinned,
        progress: &mut (dyn FnMut(Pinned) + Send),
    ) -> Result<()> {
        let object = self.open(location).await?.object;
        let pinned = self.store.pin(&object, std::slice::from_ref(&(0..object.meta.size)), done, progress).await;
        pinned.map_err(|fault| error(&fault, location))
    }

    /// Unpins all objects below a prefix that the origin still has. [`Cache::unpin_all`] unpins everything.
    pub async fn unpin(&self, prefix: Option<&Path>) -> Result<()> {
        let mut listed = self.inner.list(prefix);
        while let Some(found) = listed.try_next().await? {
            if let Some(content) = present(self.open(&found.location).await)? {
                content.unpin(std::slice::from_ref(&(0..content.object.meta.size))).await?;
            }
        }
        Ok(())
    }

    fn passed(&self) {
        if let Ok(inner) = self.store.inner() {
            add(&inner.tally.passed, 1);
        }
    }

    /// A change of objects is in flight.
    fn change<const N: usize>(&self, locations: [&Path; N]) -> Change {
        Change::begin(&self.store, locations.into_iter().map(AsRef::as_ref))
    }

    /// The head of an object, with the attributes.
    async fn head_of(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let (tick, asked) = (self.store.known().tick(), std::time::Instant::now());
        add(&self.store.inner().map_err(|fault| error(&fault, location))?.tally.heads, 1);
        let got = self.inner.get_opts(location, options).await.inspect_err(|error| {
            if matches!(error, Error::NotFound { .. }) {
                self.store.known().forget(location.as_ref());
            }
        })?;
        self.store.learn(location.as_ref(), meta_of(&got.meta, &got.attributes), tick, asked);
        Ok(got)
    }

    /// A get with conditions: the head decides, and the bytes are of that content.
    async fn get_if(&self, location: &Path, options: &GetOptions) -> Result<Option<GetResult>> {
        let object = match self.store.ask(location.as_ref()).await {
            // An origin without heads has no version of an empty object.
            Err(fault) if fault.kind == Kind::NotSupported => return Ok(None),
            asked => asked.map_err(|fault| error(&fault, location))?,
        };
        options.check_preconditions(&object_meta(location, &object.meta))?;
        if object.id.is_none() {
            return Ok(None);
        }
        let range = resolved(options.range.as_ref(), object.meta.size).map_err(|fault| error(&fault, location))?;
        match self.store.read_more(&object, &[first_piece(&range)]).await {
            Ok(parts) => Ok(Some(self.result(location, &object, range, parts))),
            // An origin without ranges returns whole objects.
            Err(fault) if fault.kind == Kind::NotSupported => Ok(None),
            Err(fault) => Err(error(&fault, location)),
        }
    }

    async fn get_now(&self, location: &Path, options: &GetOptions) -> Result<Option<GetResult>> {
        let first = match &options.range {
            None => Some(0..PIECE_BYTES),
            Some(GetRange::Bounded(range)) => Some(first_piece(range)),
            Some(GetRange::Offset(offset)) => Some(first_piece(&(*offset..u64::MAX))),
            // The begin of the range depends on the length.
            Some(GetRange::Suffix(_)) => None,
        };
        let first = first.filter(|range| !range.is_empty());
        let wanted = options.range.clone();
        let cut = |size| resolved(wanted.as_ref(), size).map(|range| vec![first_piece(&range)]);
        let got = self.store.read(location.as_ref(), first, &cut).await;
        match got.map_err(|fault| error(&fault, location))? {
            Got::Pass => Ok(None),
            Got::Parts(object, parts) => {
                let range = resolved(options.range.as_ref(), object.meta.size);
                Ok(Some(self.result(location, &object, range.map_err(|fault| error(&fault, location))?, parts)))
            }
        }
    }

    /// An answer after its first piece was read. The other pieces are read as the caller takes them, and are of the
    /// same content.
    fn result(&self, location: &Path, object: &Arc<Object>, range: Range<u64>, parts: Vec<Bytes>) -> GetResult {
        let read = first_piece(&range);
        let more = pieces(read.end..range.end, PIECE_BYTES);
        let (store, object_read, at) = (Arc::clone(&self.store), Arc::clone(object), location.clone());
        let more = stream::iter(more).map(move |piece| {
            let (store, object, at) = (Arc::clone(&store), Arc::clone(&object_read), at.clone());
            async move {
                let read = store.read_more(&object, &[piece]).await;
                read.map(|parts| parts.into_iter().next().unwrap_or_default()).map_err(|fault| error(&fault, &at))
            }
        });
        let first = parts.into_iter().filter(|part| !part.is_empty()).map(Ok);
        let body = stream::iter(first).chain(more.buffered(PIECES_AHEAD)).boxed();
        let attributes = object.meta.attributes.downcast_ref::<Attributes>().cloned().unwrap_or_default();
        result::get(GetResultPayload::Stream(body), object_meta(location, &object.meta), range, attributes)
    }
}

#[async_trait]
impl ObjectStore for Cached {
    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        let change = self.change([location]);
        let put = self.inner.put_opts(location, payload, options).await;
        change.end(is_sure(&put));
        put
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let upload = self.inner.put_multipart_opts(location, options).await?;
        Ok(Box::new(upload::Upload::new(upload, Arc::clone(&self.store), location)))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        if options.version.is_some() {
            self.passed();
            return self.inner.get_opts(location, options).await;
        }
        if options.head {
            return self.head_of(location, options).await;
        }
        let conditional = options.if_match.is_some()
            || options.if_none_match.is_some()
            || options.if_modified_since.is_some()
            || options.if_unmodified_since.is_some();
        let got =
            if conditional { self.get_if(location, &options).await? } else { self.get_now(location, &options).await? };
        if let Some(got) = got {
            return Ok(got);
        }
        self.passed();
        self.inner.get_opts(location, options).await
    }

    /// All missing granules are requested at once, and the cached ones are one gather of each drive.
    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let cut = |size| {
            let within = |range: &Range<u64>| match GetRange::Bounded(range.clone()).as_range(size) {
                _ if range.start == range.end => Ok(0..0),
                within => within.map_err(Fault::other),
            };
            ranges.iter().map(within).collect()
        };
        let first = ranges.iter().find(|range| !range.is_empty()).cloned();
        match self.store.read(location.as_ref(), first, &cut).await.map_err(|fault| error(&fault, location))? {
            Got::Parts(_, parts) => Ok(parts),
            Got::Pass => {
                self.passed();
                passed::ranges(&*self.inner, location, ranges).await
            }
        }
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let before = Deletes::new(&self.store);
        let after = Arc::clone(&before);
        let noted = locations.inspect_ok(move |location| before.begin(location.as_ref())).boxed();
        let note = move |deleted: &Result<Path>| match deleted {
            Ok(location) => after.end(location.as_ref()),
            Err(error) => refusal(error).into_iter().for_each(|named| after.refused(&named)),
        };
        self.inner.delete_stream(noted).inspect(note).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    fn list_with_offset(&self, prefix: Option<&Path>, offset: &Path) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list_with_offset(prefix, offset)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let change = self.change([to]);
        let copied = self.inner.copy_opts(from, to, options).await;
        change.end(is_sure(&copied));
        copied
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        // A store without renames copies and deletes: of an object that is renamed to itself nothing would be left.
        if from == to && options.target_mode == RenameTargetMode::Overwrite {
            return self.head(from).await.map(drop);
        }
        let change = self.change([from, to]);
        let renamed = self.inner.rename_opts(from, to, options).await;
        change.end(is_sure(&renamed));
        renamed
    }
}

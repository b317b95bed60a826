//! [`IomillStore`] for one version of `object_store`, which the module above names. Non-goals: the place of objects
//! (`crate::source`), and the differences between versions (`crate::v0_13`, `crate::v0_14`).

mod attributes;
mod convert;
mod listing;
mod multipart;
mod paginated;

use std::fmt;
use std::ops::Range;
use std::path::Path as FsPath;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::{BoxStream, StreamExt, TryStreamExt};
use iomill::{Array, FileOptions, Runtime, When};

use super::object_store;
use super::object_store::path::Path;
use super::object_store::{
    CopyMode, CopyOptions, GetOptions, GetRange, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions, RenameTargetMode,
    Result,
};
use super::result;
use crate::common::{Fault, Kind};
use crate::known::version_of;
use crate::objects::meta_of;
use crate::reading;
use crate::store::Store;
use convert::{error, failed, object_meta, unsupported};

/// The most deletions of a stream in flight. They share fsyncs.
const DELETES_IN_FLIGHT: usize = 64;

/// An object store over iomill: the files of an array, or the ordinary files of a directory. Clones are the same store.
///
/// An object is a file of the same name. Its etag is its version in the catalog, which no other content of the array
/// ever has. A put, a copy, a rename and a delete are durable when their futures resolve, and happen as a whole or not
/// at all. They go on if their futures are dropped.
///
/// It works on any executor. No poll waits for a drive. The first poll of a read copies the bytes that are in the
/// cache, and the first poll of a put joins the chunks of its payload.
#[derive(Clone)]
pub struct IomillStore(Store);

impl fmt::Debug for IomillStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl IomillStore {
    /// The files of an array, with the array's cache, engines and mode. Before the array is opened again, close it by
    /// [`Array::close_async`] or [`Array::close`]: after a mere drop of the store, other threads close its files some
    /// time later.
    pub fn array(array: Array) -> IomillStore {
        IomillStore(Store::array(array))
    }

    /// The ordinary files below a directory, in place and for reading, through the process's shared [`Runtime`].
    /// Symbolic links are followed, also out of the directory. Calls that would change a file fail with
    /// [`NotSupported`](object_store::Error::NotSupported).
    ///
    /// It opens only the directory yet, and fails if there is none.
    pub fn plain(dir: impl AsRef<FsPath>) -> Result<IomillStore> {
        IomillStore::of_files(dir.as_ref(), None)
    }

    /// [`IomillStore::plain`] through `runtime`, and so with that runtime's cache.
    pub fn plain_with(dir: impl AsRef<FsPath>, runtime: &Runtime) -> Result<IomillStore> {
        IomillStore::of_files(dir.as_ref(), Some(runtime))
    }

    fn of_files(dir: &FsPath, runtime: Option<&Runtime>) -> Result<IomillStore> {
        Store::plain(dir, runtime).map(IomillStore).map_err(|fault| failed(fault, &dir.display().to_string()))
    }

    /// The objects below a prefix, as a store. Its names begin behind the prefix.
    pub fn with_prefix(self, prefix: impl AsRef<str>) -> Result<IomillStore> {
        let prefix = Path::parse(prefix)?;
        Ok(IomillStore(self.0.within(prefix.as_ref())))
    }

    /// Sets the options for the files of new objects. It has no effect on a store of ordinary files.
    pub fn with_file_options(mut self, options: FileOptions) -> IomillStore {
        self.0.file_options = options;
        self
    }

    /// The array, for calls that the trait lacks: its size, its counters, its cache, rows. `None` for a store of
    /// ordinary files. Names of its files begin with the store's prefix.
    pub fn as_array(&self) -> Option<&Array> {
        self.0.as_array()
    }

    /// Opens the present content of an object, after a check of the get's conditions.
    async fn open(
        &self,
        location: &Path,
        options: &GetOptions,
    ) -> Result<(crate::known::Found, std::sync::Arc<crate::handles::Handle>, ObjectMeta)> {
        let name = self.0.name(location.as_ref());
        let check = |found: &crate::known::Found| {
            options.check_preconditions(&object_meta(location.clone(), &found.meta)).map_err(Refused::Condition)
        };
        let opened = self.0.source.open(&name, check).await;
        let (found, handle) = opened.map_err(|refused| refused.at(location))?;
        let meta = object_meta(location.clone(), &found.meta);
        Ok((found, handle, meta))
    }
}

/// The reason why an object was not opened.
enum Refused {
    Condition(object_store::Error),
    Fault(Fault),
}

impl From<Fault> for Refused {
    fn from(fault: Fault) -> Refused {
        Refused::Fault(fault)
    }
}

impl Refused {
    fn at(self, location: &Path) -> object_store::Error {
        match self {
            Refused::Condition(error) => error,
            Refused::Fault(fault) => error(fault, location),
        }
    }
}

impl fmt::Display for IomillStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[async_trait]
impl ObjectStore for IomillStore {
    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        let objects = self.0.source.writable("put").map_err(|fault| error(fault, location))?;
        let when = match &options.mode {
            PutMode::Overwrite => When::Always,
            PutMode::Create => When::Absent,
            PutMode::Update(version) => {
                let missing = "an update needs the etag of the object that it replaces; `head` and `put` return it";
                let e_tag = version.e_tag.as_deref().ok_or_else(|| error(Fault::other(missing), location))?;
                When::Version(version_of(e_tag).map_err(|fault| error(fault, location))?)
            }
        };
        let mut how = iomill::PutOptions::new().file(self.0.file_options.clone()).when(when);
        for (key, value) in attributes::to_catalog(&options.attributes, location)? {
            how = how.attribute(key, value);
        }
        // Without a copy if the payload is one vector that nothing else holds.
        let content = Vec::from(Bytes::from(payload));
        let put = objects.put(&self.0.name(location.as_ref()), content, &how).await;
        put.map(|stat| result::put(meta_of(&stat).e_tag)).map_err(|fault| error(fault, location))
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        Ok(Box::new(multipart::Ordered::begin(&self.0, location, &options.attributes).await?))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        if options.version.is_some() {
            return Err(unsupported(
                "a get of a version: an array keeps one content of a name; use `if_match` with its etag",
            ));
        }
        let range_of = |meta: &ObjectMeta| match &options.range {
            Some(range) => range.as_range(meta.size).map_err(|why| error(Fault::other(why), location)),
            None => Ok(0..meta.size),
        };
        if options.head {
            let name = self.0.name(location.as_ref());
            let found = self.0.source.find(&name).await.map_err(|fault| error(fault, location))?;
            let meta = object_meta(location.clone(), &found.meta);
            options.check_preconditions(&meta)?;
            let nothing = GetResultPayload::Stream(futures_util::stream::empty().boxed());
            let range = range_of(&meta)?;
            return Ok(result::get(nothing, meta, range, attributes::of_catalog(&found.attributes)));
        }
        let (found, handle, meta) = self.open(location, &options).await?;
        let range = range_of(&meta)?;
        let at = location.clone();
        let bytes = reading::stream(handle, range.clone()).map_err(move |fault| error(fault, &at));
        let payload = GetResultPayload::Stream(bytes.boxed());
        Ok(result::get(payload, meta, range, attributes::of_catalog(&found.attributes)))
    }

    /// One gather of the ranges: they are neither joined nor extended. All results share one allocation, which is freed
    /// when the last of them is dropped.
    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let (_, handle, meta) = self.open(location, &GetOptions::default()).await?;
        let within = |range: &Range<u64>| match GetRange::Bounded(range.clone()).as_range(meta.size) {
            // As `LocalFileSystem` has it.
            _ if range.is_empty() && range.start == range.end => Ok(0..0),
            Ok(range) => Ok(range),
            Err(why) => Err(error(Fault::other(why), location)),
        };
        let ranges: Vec<Range<u64>> = ranges.iter().map(within).collect::<Result<_>>()?;
        reading::gather(&handle, &ranges).await.map_err(|fault| error(fault, location))
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let store = self.clone();
        let delete = move |location: Result<Path>| {
            let store = store.clone();
            async move {
                let location = location?;
                let objects = store.0.source.writable("delete").map_err(|fault| error(fault, &location))?;
                let name = store.0.name(location.as_ref());
                objects.delete(&name).await.map_err(|fault| error(fault, &location))?;
                Ok(location)
            }
        };
        locations.map(delete).buffered(DELETES_IN_FLIGHT).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        listing::stream(&self.0, prefix, None)
    }

    fn list_with_offset(&self, prefix: Option<&Path>, offset: &Path) -> BoxStream<'static, Result<ObjectMeta>> {
        listing::stream(&self.0, prefix, Some(offset))
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        listing::with_delimiter(&self.0, prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let when = match options.mode {
            CopyMode::Overwrite => When::Always,
            CopyMode::Create => When::Absent,
        };
        let objects = self.0.source.writable("copy").map_err(|fault| error(fault, to))?;
        let copied = objects.copy(&self.0.name(from.as_ref()), &self.0.name(to.as_ref()), when).await;
        copied.map_err(|fault| between(fault, from, to))
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        let when = match options.target_mode {
            RenameTargetMode::Overwrite => When::Always,
            RenameTargetMode::Create => When::Absent,
        };
        let objects = self.0.source.writable("rename").map_err(|fault| error(fault, to))?;
        let renamed = objects.rename(&self.0.name(from.as_ref()), &self.0.name(to.as_ref()), when).await;
        renamed.map_err(|fault| between(fault, from, to))
    }
}

/// An error of a call with two locations: only the first one may be missing.
fn between(fault: Fault, from: &Path, to: &Path) -> object_store::Error {
    let location = if fault.kind == Kind::NotFound { from } else { to };
    error(fault, location)
}

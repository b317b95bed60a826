//! [`InMemory`], under the name that the tests use.

use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::sync::{Arc, mpsc};

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt};
use iomill::ArrayOptions;
use iomill_object_store::v0_14::IomillStore;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions, Result,
};
use tempfile::TempDir;
use tokio::runtime::Handle;
use tokio::task::spawn_blocking;

/// Tests have hundreds of arrays open at the same time.
const CACHE_BYTES: u64 = 4 << 20;

/// An array of two drives in a temporary directory, which is removed with the last clone.
#[derive(Clone)]
pub struct InMemory {
    /// Dropped before its directory is.
    store: IomillStore,
    _dir: Arc<TempDir>,
}

impl InMemory {
    /// An empty store. Panics if no array can be made in the temporary directory: the replaced constructor has no
    /// error.
    #[allow(clippy::expect_used, reason = "the signature is that of object_store")]
    pub fn new() -> InMemory {
        let dir = TempDir::new()
            .expect("a temporary directory cannot be made; set TMPDIR to a directory that can be written");
        let drives = ["drive0", "drive1"].map(|name| dir.path().join(name));
        for drive in &drives {
            std::fs::create_dir(drive).expect("the temporary directory can be written");
        }
        // Tests of SlateDB allow a flush 5 s, which many syncs of a slow disk exceed. None of them needs durable names.
        let array = ArrayOptions::new().cache_bytes(CACHE_BYTES).sync_changes(false).create(&drives);
        let array =
            array.expect("the temporary directory takes no array; set TMPDIR to one on an ordinary file system");
        InMemory { store: IomillStore::array(array), _dir: Arc::new(dir) }
    }
}

impl Default for InMemory {
    fn default() -> InMemory {
        InMemory::new()
    }
}

impl fmt::Debug for InMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.store.fmt(f)
    }
}

/// Equal to that of `object_store`, because a test compares it.
impl fmt::Display for InMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("InMemory")
    }
}

/// Waits for an operation, and keeps a thread of tokio busy meanwhile, like `LocalFileSystem`.
///
/// Tests of SlateDB with a paused clock need that: tokio advances the clock if it has no work, and it does not know of
/// iomill's.
async fn seen_by_tokio<T>(operation: impl Future<Output = T>) -> T {
    if Handle::try_current().is_err() {
        return operation.await;
    }
    let (end, ended) = mpsc::channel::<()>();
    let busy = spawn_blocking(move || ended.recv());
    let result = operation.await;
    drop(end);
    // The thread's result is not used: the thread ends because the other end of the channel was dropped.
    let _ = busy.await;
    result
}

/// A stream. Tokio sees each of its items.
fn stream_seen_by_tokio<T: Send + 'static>(items: BoxStream<'static, T>) -> BoxStream<'static, T> {
    stream::unfold(items, |mut items| async { seen_by_tokio(items.next()).await.map(|item| (item, items)) }).boxed()
}

#[async_trait]
impl ObjectStore for InMemory {
    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        seen_by_tokio(self.store.put_opts(location, payload, options)).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        seen_by_tokio(self.store.put_multipart_opts(location, options)).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let mut got = seen_by_tokio(self.store.get_opts(location, options)).await?;
        got.payload = match got.payload {
            GetResultPayload::Stream(bytes) => GetResultPayload::Stream(stream_seen_by_tokio(bytes)),
            file => file,
        };
        Ok(got)
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        seen_by_tokio(self.store.get_ranges(location, ranges)).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        stream_seen_by_tokio(self.store.delete_stream(locations))
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        stream_seen_by_tokio(self.store.list(prefix))
    }

    fn list_with_offset(&self, prefix: Option<&Path>, offset: &Path) -> BoxStream<'static, Result<ObjectMeta>> {
        stream_seen_by_tokio(self.store.list_with_offset(prefix, offset))
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        seen_by_tokio(self.store.list_with_delimiter(prefix)).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        seen_by_tokio(self.store.copy_opts(from, to, options)).await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        seen_by_tokio(self.store.rename_opts(from, to, options)).await
    }
}

//! [`Upload`]: an upload in parts that reports its end to the cache. Non-goals: the parts, which the origin receives.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;

use super::convert::is_sure;
use super::object_store::path::Path;
use super::object_store::{MultipartUpload, PutPayload, PutResult, Result, UploadPart};
use crate::change::Change;
use crate::store::Store;

/// See the module.
pub struct Upload {
    inner: Box<dyn MultipartUpload>,
    store: Arc<Store>,
    location: Path,
}

impl Upload {
    pub fn new(inner: Box<dyn MultipartUpload>, store: Arc<Store>, location: &Path) -> Upload {
        Upload { inner, store, location: location.clone() }
    }
}

impl fmt::Debug for Upload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upload").field("inner", &self.inner).finish_non_exhaustive()
    }
}

#[async_trait]
impl MultipartUpload for Upload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        self.inner.put_part(data)
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let change = Change::begin(&self.store, [self.location.as_ref()]);
        let completed = self.inner.complete().await;
        change.end(is_sure(&completed));
        completed
    }

    async fn abort(&mut self) -> Result<()> {
        self.inner.abort().await
    }
}

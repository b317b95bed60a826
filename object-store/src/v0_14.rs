//! The store for object_store 0.14. It has the differences from other versions: the results and the store of multipart
//! uploads.

use async_trait::async_trait;
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path;
use object_store::{MultipartId, PutMultipartOptions, PutPayload, PutResult, Result};
use object_store_0_14 as object_store;

#[path = "versioned/mod.rs"]
mod versioned;

pub use versioned::IomillStore;

/// Results and errors as this version has them.
use crate::common::v0_14 as result;

/// Parts are addressed by the id of their upload. Ids are kept in the store, and end with it.
#[async_trait]
impl MultipartStore for IomillStore {
    async fn create_multipart(&self, path: &Path) -> Result<MultipartId> {
        self.begin_upload(path, &PutMultipartOptions::default()).await
    }

    async fn create_multipart_opts(&self, path: &Path, options: PutMultipartOptions) -> Result<MultipartId> {
        self.begin_upload(path, &options).await
    }

    async fn put_part(&self, path: &Path, id: &MultipartId, _index: usize, data: PutPayload) -> Result<PartId> {
        self.upload_part(path, id, data).await
    }

    async fn complete_multipart(&self, path: &Path, id: &MultipartId, parts: Vec<PartId>) -> Result<PutResult> {
        self.complete_upload(path, id, &parts).await
    }

    async fn abort_multipart(&self, path: &Path, id: &MultipartId) -> Result<()> {
        self.abort_upload(path, id)
    }
}

//! The store for object_store 0.13. What differs from other versions is here: the results and the store of multipart uploads.

use async_trait::async_trait;
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path;
use object_store::{MultipartId, PutMultipartOptions, PutPayload, PutResult, Result};
use object_store_0_13 as object_store;

#[path = "versioned/mod.rs"]
mod versioned;

pub use versioned::IomillStore;

/// Results as this version has them.
mod result {
    use super::object_store::path::Path;
    use super::object_store::{Attributes, GetResult, GetResultPayload, ListResult, ObjectMeta, PutResult};
    use std::ops::Range;

    pub fn put(e_tag: String) -> PutResult {
        PutResult { e_tag: Some(e_tag), version: None }
    }

    pub fn get(payload: GetResultPayload, meta: ObjectMeta, range: Range<u64>, attributes: Attributes) -> GetResult {
        GetResult { payload, meta, range, attributes }
    }

    pub fn list(common_prefixes: Vec<Path>, objects: Vec<ObjectMeta>) -> ListResult {
        ListResult { common_prefixes, objects }
    }
}

/// Parts are addressed by the id of their upload. Ids are kept in the store, and end with it.
#[async_trait]
impl MultipartStore for IomillStore {
    async fn create_multipart(&self, path: &Path) -> Result<MultipartId> {
        self.begin_upload(path, &PutMultipartOptions::default()).await
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

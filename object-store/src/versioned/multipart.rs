//! Uploads in parts, as one version of `object_store` has them. Non-goals: how parts are written (`crate::upload`).

use std::sync::{Arc, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;

use super::IomillStore;
use super::attributes::to_catalog;
use super::convert::error;
use super::object_store::multipart::PartId;
use super::object_store::path::Path;
use super::object_store::{
    Attributes, MultipartId, MultipartUpload, PutMultipartOptions, PutPayload, PutResult, Result, UploadPart,
};
use super::result;
use crate::fault::Fault;
use crate::objects::meta_of;
use crate::store::Store;
use crate::upload::{Numbered, Ordered};

/// An upload. Its parts are in the order of the calls of `put_part`.
#[derive(Debug)]
pub struct Upload {
    store: Store,
    location: Path,
    parts: Ordered,
}

impl Upload {
    pub async fn begin(store: &Store, location: &Path, attributes: &Attributes) -> Result<Upload> {
        let at = |fault| error(fault, location);
        let objects = store.source.writable("a multipart upload").map_err(at)?;
        let attributes = to_catalog(attributes, location)?;
        let parts = Ordered::new(objects, &store.layout, &attributes).await.map_err(at)?;
        Ok(Upload { store: store.clone(), location: location.clone(), parts })
    }
}

#[async_trait]
impl MultipartUpload for Upload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let (write, location) = (self.parts.put_part(Bytes::from(data)), self.location.clone());
        Box::pin(async move { write.await.map_err(|fault| error(fault, &location)) })
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let at = |fault| error(fault, &self.location);
        let objects = self.store.source.writable("a multipart upload").map_err(at)?;
        let stat = self.parts.complete(objects, &self.store.name(self.location.as_ref())).await.map_err(at)?;
        Ok(result::put(meta_of(&stat).e_tag))
    }

    async fn abort(&mut self) -> Result<()> {
        self.parts.abort().map_err(|fault| error(fault, &self.location))
    }
}

/// What `MultipartStore` takes. An upload that is neither completed nor aborted lasts as long as the store and its clones.
impl IomillStore {
    fn uploads(&self) -> MutexGuard<'_, std::collections::HashMap<String, Arc<Numbered>>> {
        // Each change of the table is one call.
        self.0.uploads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn upload(&self, path: &Path, id: &MultipartId) -> Result<Arc<Numbered>> {
        let known = self.uploads().get(id).filter(|upload| upload.name() == self.0.name(path.as_ref())).cloned();
        known.ok_or_else(|| {
            let why = format!(
                "there is no upload {id:?} of {path} in this store: it was completed or aborted, or another process \
                 began it; begin another one"
            );
            error(Fault::other(why), path)
        })
    }

    pub(in super::super) async fn begin_upload(
        &self,
        path: &Path,
        options: &PutMultipartOptions,
    ) -> Result<MultipartId> {
        let at = |fault| error(fault, path);
        let objects = self.0.source.writable("a multipart upload").map_err(at)?;
        let attributes = to_catalog(&options.attributes, path)?;
        let name = self.0.name(path.as_ref());
        let upload = Numbered::new(objects, name, &self.0.layout, attributes).await.map_err(at)?;
        let id = upload.id();
        self.uploads().insert(id.clone(), Arc::new(upload));
        Ok(id)
    }

    pub(in super::super) async fn upload_part(
        &self,
        path: &Path,
        id: &MultipartId,
        data: PutPayload,
    ) -> Result<PartId> {
        let upload = self.upload(path, id)?;
        let content_id = upload.put_part(data.into()).await.map_err(|fault| error(fault, path))?;
        Ok(PartId { content_id })
    }

    pub(in super::super) async fn complete_upload(
        &self,
        path: &Path,
        id: &MultipartId,
        parts: &[PartId],
    ) -> Result<PutResult> {
        let at = |fault| error(fault, path);
        let upload = self.upload(path, id)?;
        let objects = self.0.source.writable("a multipart upload").map_err(at)?;
        let ids: Vec<&str> = parts.iter().map(|part| part.content_id.as_str()).collect();
        let stat = upload.complete(objects, &ids).await.map_err(at)?;
        self.uploads().remove(id);
        Ok(result::put(meta_of(&stat).e_tag))
    }

    pub(in super::super) fn abort_upload(&self, path: &Path, id: &MultipartId) -> Result<()> {
        self.upload(path, id)?;
        let aborted = self.uploads().remove(id);
        drop(aborted);
        Ok(())
    }
}

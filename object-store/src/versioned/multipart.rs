//! Uploads in parts, as one version of `object_store` has them. Non-goals: how parts are written (`crate::upload`).

use std::sync::Arc;

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
use crate::store::Store;
use crate::upload::Upload;
use crate::uploads::Known;

/// An upload. Its parts are in the order of the calls of `put_part`.
#[derive(Debug)]
pub struct Ordered {
    location: Path,
    upload: Arc<Upload>,
}

impl Ordered {
    pub async fn begin(store: &Store, location: &Path, attributes: &Attributes) -> Result<Ordered> {
        let upload = Arc::new(begin(store, location, attributes).await?);
        Ok(Ordered { location: location.clone(), upload })
    }
}

async fn begin(store: &Store, location: &Path, attributes: &Attributes) -> Result<Upload> {
    let at = |fault| error(fault, location);
    let objects = store.source.writable("a multipart upload").map_err(at)?;
    let attributes = to_catalog(attributes, location)?;
    Upload::new(objects, store.name(location.as_ref()), &store.file_options, attributes).await.map_err(at)
}

#[async_trait]
impl MultipartUpload for Ordered {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        // Here, not when the future is polled: the order of the parts is that of the calls.
        let (part, location) = (self.upload.begin(Bytes::from(data)), self.location.clone());
        Box::pin(async move {
            let at = |fault| error(fault, &location);
            part.map_err(at)?.write().await.map(drop).map_err(at)
        })
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let completed = self.upload.complete_all().await;
        completed.map(result::put).map_err(|fault| error(fault, &self.location))
    }

    async fn abort(&mut self) -> Result<()> {
        self.upload.abort().map_err(|fault| error(fault, &self.location))
    }
}

/// The calls of `MultipartStore`. An upload that is neither completed nor aborted lasts as long as the store and its
/// clones.
impl IomillStore {
    pub(in super::super) async fn begin_upload(
        &self,
        path: &Path,
        options: &PutMultipartOptions,
    ) -> Result<MultipartId> {
        Ok(self.0.uploads.add(begin(&self.0, path, &options.attributes).await?))
    }

    pub(in super::super) async fn upload_part(
        &self,
        path: &Path,
        id: &MultipartId,
        data: PutPayload,
    ) -> Result<PartId> {
        let at = |fault| error(fault, path);
        let upload = self.0.uploads.open(id, &self.0.name(path.as_ref())).map_err(at)?;
        let content_id = upload.begin(data.into()).map_err(at)?.write().await.map_err(at)?;
        Ok(PartId { content_id })
    }

    pub(in super::super) async fn complete_upload(
        &self,
        path: &Path,
        id: &MultipartId,
        parts: &[PartId],
    ) -> Result<PutResult> {
        let at = |fault| error(fault, path);
        let name = self.0.name(path.as_ref());
        let upload = match self.0.uploads.find(id, &name).map_err(at)? {
            Known::Open(upload) => upload,
            Known::Completed(e_tag) => return Ok(result::put(e_tag)),
        };
        let ids: Vec<&str> = parts.iter().map(|part| part.content_id.as_str()).collect();
        let (uploads, id) = (Arc::clone(&self.0.uploads), id.clone());
        let ended = move |e_tag: &str| uploads.complete(id, name, e_tag.to_owned());
        upload.complete_parts(&ids, ended).await.map(result::put).map_err(at)
    }

    pub(in super::super) fn abort_upload(&self, path: &Path, id: &MultipartId) -> Result<()> {
        self.0.uploads.abort(id, &self.0.name(path.as_ref())).map_err(|fault| error(fault, path))
    }
}

//! Puts of bytes: whole, or in parts if they are many ([`put_bytes`]).
//!
//! Rule 1: an upload in parts that does not complete is aborted. Until then the store keeps its parts, out of sight, and
//! bills for them.

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use iomill_origin::v0_14::Cached;
use object_store::path::Path;
use object_store::{Error, MultipartUpload, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutResult};
use pyo3::exceptions::PyRuntimeWarning;
use pyo3::prelude::*;
use tokio::runtime::Handle;

use super::threads::{PATIENCE, handle};

/// An object longer than this is uploaded in parts, this many at a time.
const WHOLE_MAX_BYTES: usize = 64 << 20;
const PART_BYTES: usize = 16 << 20;
const PARTS_IN_FLIGHT: usize = 4;

/// Puts an object. Only a put that overwrites can be in parts: the others have a condition, which only whole puts have.
pub async fn put_bytes(
    store: &Cached,
    location: &Path,
    content: Bytes,
    options: PutOptions,
) -> Result<PutResult, Error> {
    if content.len() <= WHOLE_MAX_BYTES || !matches!(options.mode, PutMode::Overwrite) {
        return store.put_opts(location, content.into(), options).await;
    }
    let parts = store.put_multipart(location).await?;
    let mut upload = Upload { location: location.clone(), parts: Some(parts) };
    match upload.send(content).await {
        Ok(put) => {
            upload.parts = None;
            Ok(put)
        }
        Err(error) => Err(upload.abort(error).await),
    }
}

/// An upload in parts. If it is dropped before its end, as by Ctrl-C, it aborts itself (rule 1).
struct Upload {
    location: Path,
    /// `None` at its end.
    parts: Option<Box<dyn MultipartUpload>>,
}

impl Upload {
    async fn send(&mut self, content: Bytes) -> Result<PutResult, Error> {
        let Some(upload) = &mut self.parts else { unreachable!("an upload is sent once") };
        let starts = (0..content.len()).step_by(PART_BYTES);
        let parts = starts.map(|start| content.slice(start..content.len().min(start + PART_BYTES)));
        let sent = stream::iter(parts).map(|part| upload.put_part(part.into()));
        sent.buffer_unordered(PARTS_IN_FLIGHT).try_collect::<()>().await?;
        upload.complete().await
    }

    /// Aborts after an error. Returns it, or one that also says why the parts remain.
    async fn abort(&mut self, error: Error) -> Error {
        let Some(mut parts) = self.parts.take() else { return error };
        match parts.abort().await {
            Ok(()) => error,
            Err(refused) => {
                let source = format!("{error}; and {}", remains(&self.location, &refused)).into();
                Error::Generic { store: "iomill", source }
            }
        }
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        let Some(mut parts) = self.parts.take() else { return };
        let location = self.location.clone();
        let abort = async move {
            let why = match tokio::time::timeout(PATIENCE, parts.abort()).await {
                Ok(Ok(())) => return,
                Ok(Err(error)) => remains(&location, &error),
                Err(late) => remains(&location, &late),
            };
            warn(&why);
        };
        match Handle::try_current() {
            Ok(threads) => drop(threads.spawn(abort)),
            // A program that was interrupted may end at once, so this waits.
            Err(_) => match handle() {
                Ok(threads) => threads.block_on(abort),
                Err(error) => warn(&remains(&self.location, &error)),
            },
        }
    }
}

fn remains(location: &Path, why: &dyn std::fmt::Display) -> String {
    format!("the parts of the upload of {location} remain in the store, which may bill for them: no abort: {why}")
}

/// Warns in Python. An interpreter that is ending hears nothing.
fn warn(why: &str) {
    let text = std::ffi::CString::new(why.replace('\0', "")).unwrap_or_default();
    let _warned = Python::try_attach(|py| {
        if let Err(error) = PyErr::warn(py, &py.get_type::<PyRuntimeWarning>(), &text, 1) {
            // The warning is an error by the user's filter, and nothing can raise it here.
            error.write_unraisable(py, None);
        }
    });
}

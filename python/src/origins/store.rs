//! The objects of an origin through a cache: the class [`NativeStore`]. Each method runs to its end, or in the
//! background if there is a `done`.

use std::collections::BTreeMap;
use std::process;
use std::sync::Mutex;

use chrono::{DateTime, Utc};
use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use object_store::{
    CopyMode, CopyOptions, Error, GetOptions, GetRange, GetResult, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode,
    PutOptions, RenameOptions, RenameTargetMode, UpdateVersion,
};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use super::cache::NativeCache;
use super::content::NativeContent;
use super::native::{NativeStore, open};
use super::results::{attributes, below, exception, meta, put};
use super::threads::{Told, run, wait};
use super::upload::put_bytes;

/// The requested range of a get in Python's form: `("range", start, end)`, `("offset", start, 0)`,
/// `("suffix", length, 0)`.
type Wanted = (String, u64, u64);

#[derive(FromPyObject, Default)]
#[pyo3(from_item_all)]
struct Conditions {
    if_match: Option<String>,
    if_none_match: Option<String>,
    if_modified_since: Option<i64>,
    if_unmodified_since: Option<i64>,
    version: Option<String>,
}

fn time(ns: Option<i64>) -> Option<DateTime<Utc>> {
    ns.map(DateTime::from_timestamp_nanos)
}

fn options(wanted: Option<Wanted>, conditions: Option<Conditions>) -> PyResult<GetOptions> {
    let range = match wanted {
        None => None,
        Some((kind, start, end)) => Some(match kind.as_str() {
            "range" => GetRange::Bounded(start..end),
            "offset" => GetRange::Offset(start),
            "suffix" => GetRange::Suffix(start),
            _ => return Err(PyValueError::new_err(format!("{kind:?}: no kind of range"))),
        }),
    };
    let when = conditions.unwrap_or_default();
    Ok(GetOptions {
        range,
        if_match: when.if_match,
        if_none_match: when.if_none_match,
        if_modified_since: time(when.if_modified_since),
        if_unmodified_since: time(when.if_unmodified_since),
        version: when.version,
        ..Default::default()
    })
}

fn put_mode(mode: &str, e_tag: Option<String>, version: Option<String>) -> PyResult<PutMode> {
    match mode {
        "overwrite" => Ok(PutMode::Overwrite),
        "create" => Ok(PutMode::Create),
        "update" => Ok(PutMode::Update(UpdateVersion { e_tag, version })),
        _ => Err(PyValueError::new_err(format!("mode must be overwrite, create or update (got {mode:?})"))),
    }
}

/// An error as the result of a call.
fn failed(error: Error) -> Told {
    Box::new(|_| Err(exception(error)))
}

/// The conversion of a call's result.
fn told<T: Send + 'static>(
    result: Result<T, Error>,
    object: impl for<'py> FnOnce(Python<'py>, T) -> PyResult<Bound<'py, PyAny>> + Send + 'static,
) -> Told {
    match result {
        Ok(value) => Box::new(move |py| object(py, value)),
        Err(error) => failed(error),
    }
}

fn metas<'py>(py: Python<'py>, all: &[ObjectMeta], prefix: &Path) -> PyResult<Bound<'py, PyList>> {
    let said = all.iter().map(|one| meta(py, one, prefix)).collect::<PyResult<Vec<_>>>()?;
    PyList::new(py, said)
}

async fn whole(got: Result<GetResult, Error>) -> Result<(GetResult, Vec<bytes::Bytes>), Error> {
    let mut got = got?;
    let empty = object_store::GetResultPayload::Stream(stream::empty().boxed());
    let payload = std::mem::replace(&mut got.payload, empty);
    let (meta, range) = (got.meta.clone(), got.range.clone());
    let body = GetResult { payload, meta, range, attributes: Default::default(), extensions: Default::default() };
    let pieces = body.into_stream().try_collect().await?;
    Ok((got, pieces))
}

#[pymethods]
impl NativeStore {
    #[new]
    fn new(cache: Py<NativeCache>, url: String, config: BTreeMap<String, String>) -> PyResult<NativeStore> {
        let opened = Mutex::new((process::id(), open(cache.get(), &url, &config)?));
        Ok(NativeStore { cache, url, config, opened })
    }

    #[pyo3(signature = (key, done=None))]
    fn head<'py>(&self, py: Python<'py>, key: &str, done: Option<Py<PyAny>>) -> PyResult<Bound<'py, PyAny>> {
        let opened = self.here()?;
        let location = opened.location(key)?;
        let call = async move {
            let found = opened.cached.head(&location).await;
            told(found, move |py, found| Ok(meta(py, &found, &opened.prefix)?.into_any()))
        };
        run(py, Box::pin(call), done)
    }

    /// The bytes, the metadata of the object, the range of the bytes, and the attributes.
    #[pyo3(signature = (key, wanted=None, conditions=None, done=None))]
    fn get<'py>(
        &self,
        py: Python<'py>,
        key: &str,
        wanted: Option<Wanted>,
        conditions: Option<Conditions>,
        done: Option<Py<PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let opened = self.here()?;
        let (location, options) = (opened.location(key)?, options(wanted, conditions)?);
        let call = async move {
            let got = whole(opened.cached.get_opts(&location, options).await).await;
            told(got, move |py, (got, pieces)| {
                let len = pieces.iter().map(bytes::Bytes::len).sum();
                let bytes = PyBytes::new_with(py, len, |out| {
                    let mut rest = out;
                    for piece in &pieces {
                        let (own, more) = rest.split_at_mut(piece.len());
                        own.copy_from_slice(piece);
                        rest = more;
                    }
                    Ok(())
                })?;
                let said = (
                    bytes,
                    meta(py, &got.meta, &opened.prefix)?,
                    (got.range.start, got.range.end),
                    attributes(py, &got.attributes)?,
                );
                Ok(said.into_pyobject(py)?.into_any())
            })
        };
        run(py, Box::pin(call), done)
    }

    #[pyo3(signature = (key, ranges, done=None))]
    fn get_ranges<'py>(
        &self,
        py: Python<'py>,
        key: &str,
        ranges: Vec<(u64, u64)>,
        done: Option<Py<PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let opened = self.here()?;
        let location = opened.location(key)?;
        let call = async move {
            let ranges: Vec<_> = ranges.into_iter().map(|(start, end)| start..end).collect();
            let got = opened.cached.get_ranges(&location, &ranges).await;
            told(got, |py, parts| Ok(PyList::new(py, parts.iter().map(|part| PyBytes::new(py, part)))?.into_any()))
        };
        run(py, Box::pin(call), done)
    }

    /// The objects below a prefix, after `offset`, in the order of their paths: a local directory returns them in any
    /// order.
    #[pyo3(signature = (prefix=None, offset=None, done=None))]
    fn list<'py>(
        &self,
        py: Python<'py>,
        prefix: Option<&str>,
        offset: Option<&str>,
        done: Option<Py<PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let opened = self.here()?;
        let within = opened.below(prefix)?;
        let offset = offset.map(|offset| opened.location(offset)).transpose()?;
        let call = async move {
            let listed = match &offset {
                Some(offset) => opened.cached.list_with_offset(within.as_ref(), offset),
                None => opened.cached.list(within.as_ref()),
            };
            let listed: Result<Vec<ObjectMeta>, Error> = listed.try_collect().await;
            told(listed, move |py, mut all| {
                all.sort_unstable_by(|one, other| one.location.cmp(&other.location));
                Ok(metas(py, &all, &opened.prefix)?.into_any())
            })
        };
        run(py, Box::pin(call), done)
    }

    /// The common prefixes and the objects directly below a prefix.
    #[pyo3(signature = (prefix=None, done=None))]
    fn list_with_delimiter<'py>(
        &self,
        py: Python<'py>,
        prefix: Option<&str>,
        done: Option<Py<PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let opened = self.here()?;
        let within = opened.below(prefix)?;
        let call = async move {
            let listed = opened.cached.list_with_delimiter(within.as_ref()).await;
            told(listed, move |py, listed| {
                let prefixes: Vec<String> =
                    listed.common_prefixes.iter().map(|prefix| below(prefix, &opened.prefix)).collect();
                Ok((prefixes, metas(py, &listed.objects, &opened.prefix)?).into_pyobject(py)?.into_any())
            })
        };
        run(py, Box::pin(call), done)
    }

    #[pyo3(signature = (key, content, mode="overwrite", e_tag=None, version=None, done=None))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn put<'py>(
        &self,
        py: Python<'py>,
        key: &str,
        content: Vec<u8>,
        mode: &str,
        e_tag: Option<String>,
        version: Option<String>,
        done: Option<Py<PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let opened = self.here()?;
        let location = opened.location(key)?;
        let options = PutOptions { mode: put_mode(mode, e_tag, version)?, ..Default::default() };
        let call = async move {
            let result = put_bytes(&opened.cached, &location, content.into(), options).await;
            told(result, |py, result| Ok(put(py, &result)?.into_any()))
        };
        run(py, Box::pin(call), done)
    }

    /// Deletes objects. Returns the number of paths in the call.
    #[pyo3(signature = (keys, done=None))]
    fn delete<'py>(&self, py: Python<'py>, keys: Vec<String>, done: Option<Py<PyAny>>) -> PyResult<Bound<'py, PyAny>> {
        let opened = self.here()?;
        let locations = keys.iter().map(|key| opened.location(key)).collect::<PyResult<Vec<_>>>()?;
        let call = async move {
            let locations = stream::iter(locations).map(Ok).boxed();
            let deleted: Result<Vec<Path>, Error> = opened.cached.delete_stream(locations).try_collect().await;
            told(deleted, |py, deleted| Ok(deleted.len().into_pyobject(py)?.into_any()))
        };
        run(py, Box::pin(call), done)
    }

    /// Copies or renames an object.
    #[pyo3(signature = (from_, to, rename, overwrite, done=None))]
    fn copy<'py>(
        &self,
        py: Python<'py>,
        from_: &str,
        to: &str,
        rename: bool,
        overwrite: bool,
        done: Option<Py<PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let opened = self.here()?;
        let (from, to) = (opened.location(from_)?, opened.location(to)?);
        let call = async move {
            let done = if rename {
                let target_mode = if overwrite { RenameTargetMode::Overwrite } else { RenameTargetMode::Create };
                let options = RenameOptions { target_mode, ..Default::default() };
                opened.cached.rename_opts(&from, &to, options).await
            } else {
                let mode = if overwrite { CopyMode::Overwrite } else { CopyMode::Create };
                opened.cached.copy_opts(&from, &to, CopyOptions { mode, ..Default::default() }).await
            };
            told(done, |py, ()| Ok(true.into_pyobject(py)?.to_owned().into_any()))
        };
        run(py, Box::pin(call), done)
    }

    /// Opens an object in its present version.
    fn open(slf: Py<Self>, py: Python<'_>, key: String) -> PyResult<NativeContent> {
        let opened = slf.get().here()?;
        let location = opened.location(&key)?;
        let content = wait(py, async move { opened.cached.open(&location).await })?.map_err(exception)?;
        let name = format!("{}/{key}", slf.get().url.trim_end_matches('/')).trim_end_matches('/').to_owned();
        Ok(NativeContent::new(slf, key, name, content))
    }
}

//! Arrays of drives: the classes [`NativeArray`] and [`NativeDraft`].

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError, RwLock};

use iomill::{Array, ArrayOptions, Draft, Layout, When};
use pyo3::prelude::*;

use crate::errors::{OrRaise, closed, exception};
use crate::file::NativeFile;

/// An array of drives.
#[pyclass(frozen, module = "iomill._iomill", name = "Array")]
pub struct NativeArray {
    /// `None` after it was closed.
    array: RwLock<Option<Array>>,
    #[pyo3(get)]
    writable: bool,
}

impl NativeArray {
    fn array(&self) -> PyResult<Array> {
        let array = self.array.read().unwrap_or_else(PoisonError::into_inner).clone();
        array.ok_or_else(|| exception(iomill::Error::Closed))
    }
}

fn options(cache_bytes: Option<u64>) -> ArrayOptions {
    let options = ArrayOptions::new();
    match cache_bytes {
        Some(bytes) => options.cache_bytes(bytes),
        None => options,
    }
}

/// Opens the array that a drive belongs to.
#[pyfunction]
#[pyo3(signature = (drive, writable=false, cache_bytes=None))]
pub fn open_array(py: Python<'_>, drive: PathBuf, writable: bool, cache_bytes: Option<u64>) -> PyResult<NativeArray> {
    let array = py.detach(|| options(cache_bytes).read_only(!writable).open(drive)).or_raise()?;
    Ok(NativeArray { array: RwLock::new(Some(array)), writable })
}

/// Makes directories into the drives of a new array.
#[pyfunction]
#[pyo3(signature = (drives, cache_bytes=None))]
pub fn create_array(py: Python<'_>, drives: Vec<PathBuf>, cache_bytes: Option<u64>) -> PyResult<NativeArray> {
    let array = py.detach(|| options(cache_bytes).create(drives)).or_raise()?;
    Ok(NativeArray { array: RwLock::new(Some(array)), writable: true })
}

/// A file without a name. `None` after it was published or given up.
#[pyclass(frozen, module = "iomill._iomill", name = "Draft")]
pub struct NativeDraft(Mutex<Option<Draft>>);

impl NativeDraft {
    fn take(&self) -> Option<Draft> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

#[pymethods]
impl NativeDraft {
    fn file(&self) -> PyResult<NativeFile> {
        let draft = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(NativeFile::new(draft.as_ref().ok_or_else(closed)?.file().clone(), true))
    }

    /// Syncs, and gives the file its name. After an error the draft is given up.
    fn publish(&self, py: Python<'_>, name: &str, replace: bool) -> PyResult<()> {
        let draft = self.take().ok_or_else(closed)?;
        py.detach(|| draft.publish(name, when(replace))).or_raise().map(drop)
    }

    /// Gives the file up, unless it was published.
    fn close(&self, py: Python<'_>) {
        let draft = self.take();
        py.detach(|| drop(draft));
    }
}

fn when(replace: bool) -> When {
    if replace { When::Always } else { When::Absent }
}

#[pymethods]
impl NativeArray {
    fn open(&self, py: Python<'_>, name: &str) -> PyResult<NativeFile> {
        let array = self.array()?;
        Ok(NativeFile::new(py.detach(|| array.open_file(name)).or_raise()?, self.writable))
    }

    #[pyo3(signature = (name, block_bytes=None))]
    fn create(&self, py: Python<'_>, name: &str, block_bytes: Option<u32>) -> PyResult<NativeFile> {
        let array = self.array()?;
        let layout = match block_bytes {
            Some(bytes) => Layout::default().block_bytes(bytes),
            None => Layout::default(),
        };
        Ok(NativeFile::new(py.detach(|| array.create_file(name, layout)).or_raise()?, true))
    }

    fn draft(&self, py: Python<'_>) -> PyResult<NativeDraft> {
        let array = self.array()?;
        Ok(NativeDraft(Mutex::new(Some(py.detach(|| array.draft(Layout::default())).or_raise()?))))
    }

    fn copy(&self, py: Python<'_>, from: &str, to: &str, replace: bool) -> PyResult<()> {
        let array = self.array()?;
        py.detach(|| array.copy(from, to, when(replace))).or_raise().map(drop)
    }

    fn delete(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        let array = self.array()?;
        py.detach(|| array.delete(name)).or_raise()
    }

    fn rename(&self, py: Python<'_>, old: &str, new: &str) -> PyResult<()> {
        let array = self.array()?;
        py.detach(|| array.rename(old, new)).or_raise()
    }

    #[pyo3(signature = (prefix=""))]
    fn list(&self, py: Python<'_>, prefix: &str) -> PyResult<Vec<String>> {
        let array = self.array()?;
        Ok(py.detach(|| array.list(prefix)))
    }

    /// The length of a file in bytes, without opening it.
    fn len_of(&self, py: Python<'_>, name: &str) -> PyResult<u64> {
        let array = self.array()?;
        Ok(py.detach(|| array.stat(name)).or_raise()?.len_bytes)
    }

    /// The directories of the drives.
    fn drives(&self, py: Python<'_>) -> PyResult<Vec<PathBuf>> {
        let array = self.array()?;
        let info = py.detach(|| array.info()).or_raise()?;
        Ok(info.drives.into_iter().map(|drive| drive.path).collect())
    }

    /// Memory for cached pages, in bytes.
    fn cache_bytes(&self) -> PyResult<u64> {
        Ok(self.array()?.counters().cache_bytes)
    }

    fn notices(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        let array = self.array()?;
        Ok(py.detach(|| array.notices()))
    }

    fn metrics(&self, py: Python<'_>) -> PyResult<String> {
        let array = self.array()?;
        Ok(py.detach(|| array.metrics()))
    }

    /// Closes the array: makes every open file durable. A second time it does nothing.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let array = self.array.write().unwrap_or_else(PoisonError::into_inner).take();
        match array {
            Some(array) => py.detach(|| array.close()).or_raise(),
            None => Ok(()),
        }
    }
}

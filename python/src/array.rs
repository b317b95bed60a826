//! Arrays of drives: the class [`NativeArray`].

use std::path::PathBuf;
use std::sync::{PoisonError, RwLock};

use iomill::{Array, ArrayOptions, Layout};
use pyo3::prelude::*;

use crate::errors::{OrRaise, exception};
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

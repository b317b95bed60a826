//! Bytes of a file: the class [`NativeFile`], under `iomill.File`. Non-goals: a position in the file, which is Python's side.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock};

use iomill::{Advice, File, PlainOptions};
use pyo3::buffer::PyUntypedBuffer;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::errors::{OrRaise, closed};
use crate::futures;
use crate::memory::{Memory, zeroed};
use crate::runtime::NativeRuntime;
use crate::slices::read_bytes;

/// A handle of a file.
#[pyclass(frozen, module = "iomill._iomill", name = "File")]
pub struct NativeFile {
    /// `None` after it was closed. Calls take a handle of their own out of it, so that none holds the lock while it waits.
    file: RwLock<Option<File>>,
    /// Whether a call through this handle may have changed the file.
    has_written: AtomicBool,
    #[pyo3(get)]
    name: String,
    #[pyo3(get)]
    writable: bool,
}

impl NativeFile {
    pub fn new(file: File, writable: bool) -> NativeFile {
        let name = file.name().to_owned();
        NativeFile { name, file: RwLock::new(Some(file)), has_written: AtomicBool::new(false), writable }
    }

    /// A handle for one call.
    pub fn file(&self) -> PyResult<File> {
        self.file.read().unwrap_or_else(PoisonError::into_inner).clone().ok_or_else(closed)
    }

    /// A handle for a call that changes the file.
    pub fn file_to_write(&self) -> PyResult<File> {
        let file = self.file()?;
        self.has_written.store(true, Ordering::Release);
        Ok(file)
    }

    fn take(&self) -> Option<File> {
        self.file.write().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Opens a plain file, or several as one.
#[pyfunction]
#[pyo3(signature = (paths, writable=false, create=false, runtime=None))]
pub fn open_plain(
    py: Python<'_>,
    paths: Vec<PathBuf>,
    writable: bool,
    create: bool,
    runtime: Option<&NativeRuntime>,
) -> PyResult<NativeFile> {
    let mut options = PlainOptions::new().write(writable).create(create);
    if let Some(runtime) = runtime {
        options = options.runtime(&runtime.0);
    }
    let file = py.detach(|| options.open_list(paths)).or_raise()?;
    Ok(NativeFile::new(file, writable))
}

#[pymethods]
impl NativeFile {
    fn __len__(&self) -> PyResult<usize> {
        Ok(self.file()?.len() as usize)
    }

    #[getter]
    fn closed(&self) -> bool {
        self.file.read().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    /// Reads up to `len` bytes.
    fn read_at<'py>(&self, py: Python<'py>, offset: u64, len: usize) -> PyResult<Bound<'py, PyBytes>> {
        let file = self.file()?;
        let len = file.len().saturating_sub(offset).min(len as u64) as usize;
        PyBytes::new_with(py, len, |out| {
            let out = Memory::of_slice(out);
            read_bytes(py, &file, out, offset)
        })
    }

    /// Reads into a buffer. Returns the number of bytes, which is less than the buffer has only at the end of the file.
    fn readinto_at(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>, offset: u64) -> PyResult<usize> {
        let file = self.file()?;
        let buffer = PyUntypedBuffer::get(buffer)?;
        let memory = Memory::of_buffer(&buffer, true)?;
        let len = file.len().saturating_sub(offset).min(memory.len() as u64) as usize;
        read_bytes(py, &file, memory.part(0, len), offset)?;
        Ok(len)
    }

    /// Gathers ranges, (offset, length) each, one after the other into a buffer of their length.
    fn readinto_ranges(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>, ranges: Vec<(u64, usize)>) -> PyResult<()> {
        let file = self.file()?;
        let buffer = PyUntypedBuffer::get(buffer)?;
        let memory = Memory::of_buffer(&buffer, true)?;
        // SAFETY: `buffer` is held until this function returns.
        py.detach(|| file.read_ranges(unsafe { memory.bytes_mut() }, &ranges)).or_raise()
    }

    /// Begins to gather ranges. `done(bytes, None)` or `done(None, exception)` is called once, on any thread.
    fn begin_ranges(&self, py: Python<'_>, ranges: Vec<(u64, usize)>, done: Py<PyAny>) -> PyResult<()> {
        let file = self.file()?;
        let len = ranges.iter().map(|&(_, len)| len).fold(0, usize::saturating_add);
        let out = zeroed(len)?;
        let reading = py.detach(|| file.read_ranges_async(out, &ranges));
        futures::deliver(py, reading, done)
    }

    /// Writes all bytes of a buffer.
    fn write_at(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>, offset: u64) -> PyResult<()> {
        let file = self.file_to_write()?;
        let buffer = PyUntypedBuffer::get(buffer)?;
        let memory = Memory::of_buffer(&buffer, false)?;
        // SAFETY: `buffer` is held until this function returns.
        py.detach(|| file.write_at(unsafe { memory.bytes() }, offset)).or_raise()
    }

    fn set_len(&self, py: Python<'_>, len: u64) -> PyResult<()> {
        let file = self.file_to_write()?;
        py.detach(|| file.set_len(len)).or_raise()
    }

    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        let file = self.file()?;
        py.detach(|| file.sync()).or_raise()
    }

    /// Says that reads will be at random places.
    fn expect_random(&self) -> PyResult<()> {
        self.file()?.advise(.., Advice::Random).or_raise()
    }

    /// Closes, and syncs if a call through this handle wrote. A second time it does nothing.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let Some(file) = self.take() else { return Ok(()) };
        if self.writable && !self.has_written.load(Ordering::Acquire) {
            // A sync would flush what an earlier writer may have left.
            py.detach(|| drop(file));
            return Ok(());
        }
        py.detach(|| file.close()).or_raise()
    }

    /// Closes a file that is deleted next.
    fn discard(&self, py: Python<'_>) {
        if let Some(file) = self.take() {
            py.detach(|| file.discard());
        }
    }
}

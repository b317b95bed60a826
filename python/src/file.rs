//! Bytes of a file: the class [`NativeFile`], below `iomill.File`. Non-goals: a position in the file, which the Python
//! half has.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use iomill::{File, PlainOptions};
use pyo3::buffer::PyUntypedBuffer;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::errors::{OrRaise, read_only};
use crate::futures;
use crate::handle::Handle;
use crate::memory::{Memory, zeroed};
use crate::runtime::NativeRuntime;
use crate::slices::read_bytes;

/// A handle of a file.
#[pyclass(frozen, module = "iomill._iomill", name = "File")]
pub struct NativeFile {
    handle: Arc<Handle>,
    /// Whether a call through this handle may have changed the file.
    has_written: AtomicBool,
    #[pyo3(get)]
    name: String,
    /// Whether this handle may change the file. If it may not, the array may still be open for writing, for another
    /// user of this process.
    #[pyo3(get)]
    writable: bool,
}

impl NativeFile {
    pub fn new(file: File, version: u64, writable: bool) -> NativeFile {
        let name = file.name().to_owned();
        NativeFile { name, handle: Arc::new(Handle::new(file, version)), has_written: AtomicBool::new(false), writable }
    }

    /// A handle for one call.
    pub fn file(&self, py: Python<'_>) -> PyResult<Arc<File>> {
        self.handle.file(py)
    }

    /// A handle for a call that changes the file.
    pub fn file_to_write(&self, py: Python<'_>) -> PyResult<Arc<File>> {
        let file = self.file(py)?;
        if !self.writable {
            return Err(read_only(&self.name));
        }
        self.has_written.store(true, Ordering::Release);
        Ok(file)
    }

    pub fn handle(&self) -> &Arc<Handle> {
        &self.handle
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
    Ok(NativeFile::new(file, 0, writable))
}

#[pymethods]
impl NativeFile {
    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.file(py)?.len() as usize)
    }

    #[getter]
    fn closed(&self) -> bool {
        self.handle.is_closed()
    }

    /// Reads up to `len` bytes.
    fn read_at<'py>(&self, py: Python<'py>, offset: u64, len: usize) -> PyResult<Bound<'py, PyBytes>> {
        let file = self.file(py)?;
        let len = file.len().saturating_sub(offset).min(len as u64) as usize;
        PyBytes::new_with(py, len, |out| {
            let out = Memory::of_slice(out);
            read_bytes(py, &file, out, offset)
        })
    }

    /// Reads into a buffer. Returns the number of bytes. They are fewer than the buffer has only at the end of the
    /// file.
    fn readinto_at(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>, offset: u64) -> PyResult<usize> {
        let file = self.file(py)?;
        let buffer = PyUntypedBuffer::get(buffer)?;
        let memory = Memory::of_buffer(&buffer, true)?;
        let len = file.len().saturating_sub(offset).min(memory.len() as u64) as usize;
        read_bytes(py, &file, memory.part(0, len), offset)?;
        Ok(len)
    }

    /// Gathers ranges, (offset, length) each, into adjacent parts of a buffer.
    fn readinto_ranges(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>, ranges: Vec<(u64, usize)>) -> PyResult<()> {
        let file = self.file(py)?;
        let buffer = PyUntypedBuffer::get(buffer)?;
        let memory = Memory::of_buffer(&buffer, true)?;
        // SAFETY: `buffer` is held until this function returns.
        py.detach(|| file.read_ranges(unsafe { memory.bytes_mut() }, &ranges)).or_raise()
    }

    /// Begins to gather ranges. `done(bytes, None)` or `done(None, exception)` is called once, on any thread.
    fn begin_ranges(&self, py: Python<'_>, ranges: Vec<(u64, usize)>, done: Py<PyAny>) -> PyResult<()> {
        let file = self.file(py)?;
        let len = ranges.iter().map(|&(_, len)| len).fold(0, usize::saturating_add);
        let out = zeroed(len)?;
        let reading = py.detach(|| file.read_ranges_async(out, &ranges));
        futures::deliver(py, reading, file, done)
    }

    /// Writes all bytes of a buffer.
    fn write_at(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>, offset: u64) -> PyResult<()> {
        let file = self.file_to_write(py)?;
        let buffer = PyUntypedBuffer::get(buffer)?;
        let memory = Memory::of_buffer(&buffer, false)?;
        // SAFETY: `buffer` is held until this function returns.
        py.detach(|| file.write_at(unsafe { memory.bytes() }, offset)).or_raise()
    }

    fn set_len(&self, py: Python<'_>, len: u64) -> PyResult<()> {
        let file = self.file_to_write(py)?;
        py.detach(|| file.set_len(len)).or_raise()
    }

    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        let file = self.file(py)?;
        py.detach(|| file.sync()).or_raise()
    }

    /// Syncs if a call through this handle wrote.
    fn sync_written(&self, py: Python<'_>) -> PyResult<()> {
        if !self.has_written.load(Ordering::Acquire) {
            return Ok(());
        }
        self.sync(py)
    }

    /// Announces that reads will be at random places.
    fn expect_random(&self, py: Python<'_>) -> PyResult<()> {
        self.handle.expect_random(py)
    }

    /// Closes, and syncs if a call through this handle wrote. A second call does nothing.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let Some(file) = self.handle.take(py) else { return Ok(()) };
        if self.writable && self.has_written.load(Ordering::Acquire) {
            return py.detach(|| File::clone(&file).close()).or_raise();
        }
        // A sync would also make durable the bytes that an earlier writer may have left.
        py.detach(|| drop(file));
        Ok(())
    }

    /// Closes a file that will be deleted.
    fn discard(&self, py: Python<'_>) {
        if let Some(file) = self.handle.take(py) {
            py.detach(|| File::clone(&file).discard());
        }
    }
}

//! One content of an object, open: the class [`NativeContent`]. It has the reading methods of `file::NativeFile`, so
//! that Python's files and rows work over either.

use std::ops::Range;
use std::process;
use std::slice::from_ref;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use iomill_origin::v0_14::Content;
use numpy::PyArray1;
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::native::NativeStore;
use super::results::exception;
use super::threads::{Told, begin, wait};
use crate::errors::{ESTALE, closed, os_error};
use crate::memory::Memory;

/// The bytes of one of the gathers into which a long read is cut.
const SLICE_BYTES: u64 = 64 << 20;

/// One content of an object.
#[pyclass(frozen, module = "iomill._iomill", name = "Content")]
pub struct NativeContent {
    store: Py<NativeStore>,
    key: String,
    #[pyo3(get)]
    name: String,
    #[pyo3(get)]
    len: u64,
    /// The content in the process with this number. `None` after the close.
    content: Mutex<Option<(u32, Content)>>,
}

impl NativeContent {
    pub fn new(store: Py<NativeStore>, key: String, name: String, content: Content) -> NativeContent {
        let len = content.meta().size;
        NativeContent { store, key, name, len, content: Mutex::new(Some((process::id(), content))) }
    }

    fn held(&self) -> MutexGuard<'_, Option<(u32, Content)>> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The content for one call. A forked child opens it again, and it must be unchanged.
    pub fn content(&self, py: Python<'_>) -> PyResult<Content> {
        let known = match &*self.held() {
            None => return Err(closed()),
            Some((process, content)) if *process == process::id() => return Ok(content.clone()),
            Some((_, content)) => content.meta(),
        };
        let opened = self.store.get().here()?;
        let location = opened.location(&self.key)?;
        let own = wait(py, async move { opened.cached.open(&location).await })?.map_err(exception)?;
        if own.meta() != known {
            let why = "the object has changed since it was opened; open it again";
            return Err(os_error(ESTALE, why.into(), Some(self.name.clone().into())));
        }
        let parents = self.held().replace((process::id(), own.clone()));
        // It uses a client of the parent.
        std::mem::forget(parents);
        Ok(own)
    }

    pub fn length(&self) -> u64 {
        self.len
    }
}

/// Reads ranges into adjacent parts of memory of their total length.
pub fn read_into(py: Python<'_>, content: &Content, ranges: Vec<Range<u64>>, out: Memory) -> PyResult<()> {
    let parts = wait(py, async { content.read(&ranges).await })?.map_err(exception)?;
    py.detach(|| {
        let mut at = 0;
        for part in parts {
            // SAFETY: the caller holds the memory's object, and requested it as writable. `part` panics if the memory
            // is too short.
            unsafe { out.part(at, part.len()).bytes_mut() }.copy_from_slice(&part);
            at += part.len();
        }
    });
    Ok(())
}

/// Begins to read ranges. `done` gets one ndarray of bytes.
pub fn begin_read(content: Content, ranges: Vec<Range<u64>>, done: Py<PyAny>) -> PyResult<()> {
    let call = async move {
        let read = content.read(&ranges).await.map(joined);
        let told: Told = match read {
            Ok(bytes) => Box::new(move |py| Ok(PyArray1::from_vec(py, bytes).into_any())),
            Err(error) => Box::new(|_| Err(exception(error))),
        };
        told
    };
    begin(Box::pin(call), done)
}

fn joined(parts: Vec<Bytes>) -> Vec<u8> {
    let mut all = Vec::with_capacity(parts.iter().map(Bytes::len).sum());
    parts.iter().for_each(|part| all.extend_from_slice(part));
    all
}

/// A range cut into gathers.
pub fn slices(range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let end = range.end;
    range.step_by(SLICE_BYTES as usize).map(move |start| start..end.min(start + SLICE_BYTES))
}

/// Ranges of Python: offset and length.
fn ranges_of(ranges: Vec<(u64, u64)>) -> PyResult<Vec<Range<u64>>> {
    let range = |(offset, len): (u64, u64)| Some(offset..offset.checked_add(len)?);
    let ranges: Option<Vec<_>> = ranges.into_iter().map(range).collect();
    ranges.ok_or_else(|| PyValueError::new_err("a range ends beyond the object"))
}

#[pymethods]
impl NativeContent {
    /// It only reads.
    #[classattr]
    #[allow(non_upper_case_globals, reason = "Python's name")]
    const writable: bool = false;

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        self.content(py).map(|_| self.len as usize)
    }

    #[getter]
    fn closed(&self) -> bool {
        self.held().is_none()
    }

    /// Whether it has an etag or a version, without which it is not cached.
    #[getter]
    fn is_cached(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.content(py)?.is_cached())
    }

    /// Reads up to `len` bytes.
    fn read_at<'py>(&self, py: Python<'py>, offset: u64, len: u64) -> PyResult<Bound<'py, PyBytes>> {
        let content = self.content(py)?;
        let start = offset.min(self.len);
        let end = start.saturating_add(len).min(self.len);
        PyBytes::new_with(py, (end - start) as usize, |out| self.fill(py, &content, start, Memory::of_slice(out)))
    }

    /// Reads into a buffer. Returns the number of bytes. They are fewer than the buffer has only at the end.
    fn readinto_at(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>, offset: u64) -> PyResult<usize> {
        let content = self.content(py)?;
        let buffer = PyUntypedBuffer::get(buffer)?;
        let memory = Memory::of_buffer(&buffer, true)?;
        let len = self.len.saturating_sub(offset).min(memory.len() as u64) as usize;
        self.fill(py, &content, offset.min(self.len), memory.part(0, len))?;
        Ok(len)
    }

    /// Gathers ranges, (offset, length) each, into adjacent parts of a buffer.
    fn readinto_ranges(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>, ranges: Vec<(u64, u64)>) -> PyResult<()> {
        let content = self.content(py)?;
        let buffer = PyUntypedBuffer::get(buffer)?;
        let memory = Memory::of_buffer(&buffer, true)?;
        let ranges = ranges_of(ranges)?;
        let all: u64 = ranges.iter().map(|range| range.end - range.start).fold(0, u64::saturating_add);
        if all != memory.len() as u64 {
            return Err(PyValueError::new_err(format!("a buffer of {} bytes for ranges of {all}", memory.len())));
        }
        read_into(py, &content, ranges, memory)
    }

    /// Begins to gather ranges. `done(bytes, None)` or `done(None, exception)` is called once, on any thread.
    fn begin_ranges(&self, py: Python<'_>, ranges: Vec<(u64, u64)>, done: Py<PyAny>) -> PyResult<()> {
        begin_read(self.content(py)?, ranges_of(ranges)?, done)
    }

    /// Fetches the missing granules of a range. Returns the bytes of whole granules, and the number of bytes from the
    /// origin.
    fn prefetch(&self, py: Python<'_>, start: u64, end: u64) -> PyResult<(u64, u64)> {
        let content = self.content(py)?;
        let brought = wait(py, async { content.prefetch(start..end).await })?.map_err(exception)?;
        Ok((brought.bytes, brought.fetched))
    }

    /// Fetches the missing granules of a range, and pins the range. Returns the bytes that came from the origin.
    fn pin(&self, py: Python<'_>, start: u64, end: u64) -> PyResult<u64> {
        let (content, range) = (self.content(py)?, start..end);
        let pinned = wait(py, async { content.pin(from_ref(&range), |_| ()).await })?.map_err(exception)?;
        Ok(pinned.fetched)
    }

    /// Unpins a range.
    fn unpin(&self, py: Python<'_>, start: u64, end: u64) -> PyResult<()> {
        let (content, range) = (self.content(py)?, start..end);
        wait(py, async { content.unpin(from_ref(&range)).await })?.map_err(exception)
    }

    /// Reads are at random places anyway.
    fn expect_random(&self) {}

    fn sync(&self) {}

    /// Closes. A second call does nothing.
    fn close(&self) {
        match self.held().take() {
            Some((process, content)) if process == process::id() => drop(content),
            parents => std::mem::forget(parents),
        }
    }
}

impl NativeContent {
    fn fill(&self, py: Python<'_>, content: &Content, start: u64, out: Memory) -> PyResult<()> {
        for slice in slices(start..start + out.len() as u64) {
            let len = (slice.end - slice.start) as usize;
            read_into(py, content, vec![slice.clone()], out.part((slice.start - start) as usize, len))?;
        }
        Ok(())
    }
}

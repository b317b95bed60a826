//! Rows of one length in an object: the class [`ContentRows`], below `RowArray` like `rows::Rows`.

use std::ops::Range;

use numpy::PyUntypedArray;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::content::{NativeContent, begin_read, read_into, slices};
use super::threads::handle;
use crate::ids::row_numbers;
use crate::memory::Memory;
use crate::rows::Places;

/// The rows and bytes of one of the parts into which a gather is cut, to bound its memory.
const SLICE_ROWS: usize = 16 << 10;
const SLICE_BYTES: usize = 64 << 20;

/// Rows of one length in an object.
#[pyclass(frozen, module = "iomill._iomill")]
pub struct ContentRows {
    content: Py<NativeContent>,
    places: Places,
}

impl ContentRows {
    fn ranges(&self, ids: &[u64]) -> Vec<Range<u64>> {
        let row_bytes = self.places.row_bytes as u64;
        self.places.offsets(ids).map(|offset| offset..offset + row_bytes).collect()
    }
}

#[pymethods]
impl ContentRows {
    /// `parts` has the number of rows of each part, and the offset of its first byte.
    #[new]
    fn new(content: Py<NativeContent>, row_bytes: usize, parts: Vec<(u64, u64)>) -> PyResult<ContentRows> {
        let places = Places::new(content.get().length(), row_bytes, parts)?;
        Ok(ContentRows { content, places })
    }

    fn __len__(&self) -> usize {
        self.places.count() as usize
    }

    /// Gathers rows into `out`, an array in C order with as many bytes.
    fn take(&self, py: Python<'_>, ids: &Bound<'_, PyUntypedArray>, out: &Bound<'_, PyUntypedArray>) -> PyResult<()> {
        let content = self.content.get().content(py)?;
        let ids = row_numbers(ids, self.places.count())?;
        let out = self.places.check(Memory::of_array(out, true)?, ids.len())?;
        let row_bytes = self.places.row_bytes;
        if row_bytes == 0 {
            return Ok(());
        }
        let step = (SLICE_BYTES / row_bytes).clamp(1, SLICE_ROWS);
        for (n, some) in ids.chunks(step).enumerate() {
            let part = out.part(n * step * row_bytes, some.len() * row_bytes);
            read_into(py, &content, self.ranges(some), part)?;
        }
        Ok(())
    }

    /// Reads adjacent rows into `out`, an array in C order with as many bytes.
    fn read_range(&self, py: Python<'_>, start: u64, count: u64, out: &Bound<'_, PyUntypedArray>) -> PyResult<()> {
        let content = self.content.get().content(py)?;
        if start.checked_add(count).is_none_or(|end| end > self.places.count()) {
            return Err(PyValueError::new_err("the rows end beyond the object"));
        }
        let out = self.places.check(Memory::of_array(out, true)?, count as usize)?;
        let mut done = 0;
        for stretch in self.places.stretches(start, count) {
            for slice in slices(stretch) {
                let len = (slice.end - slice.start) as usize;
                read_into(py, &content, vec![slice], out.part(done, len))?;
                done += len;
            }
        }
        Ok(())
    }

    /// Begins to gather rows. `done(bytes, None)` or `done(None, exception)` is called once, on any thread.
    fn begin_take(&self, py: Python<'_>, ids: &Bound<'_, PyUntypedArray>, done: Py<PyAny>) -> PyResult<()> {
        let ids = row_numbers(ids, self.places.count())?;
        begin_read(self.content.get().content(py)?, self.ranges(&ids), done)
    }

    /// Begins to fetch rows to the drives.
    fn prefetch(&self, py: Python<'_>, ids: &Bound<'_, PyUntypedArray>) -> PyResult<()> {
        let ids = row_numbers(ids, self.places.count())?;
        let (content, ranges) = (self.content.get().content(py)?, self.ranges(&ids));
        // After a failure the take requests the rows again.
        handle()?.spawn(async move { content.read(&ranges).await.map(drop) });
        Ok(())
    }
}

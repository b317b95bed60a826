//! Rows of one length in a file: the class [`Rows`], below `RowArray`. Goals: the interpreter is free while a call
//! waits, and Ctrl-C ends a long call. Non-goals: shapes, dtypes and indexing, which the Python half has.

use std::ops::{Range, RangeInclusive};

use iomill::{Advice, File, Transfer};
use numpy::PyUntypedArray;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::errors::OrRaise;
use crate::file::NativeFile;
use crate::futures;
use crate::ids::row_numbers;
use crate::memory::{Memory, zeroed};
use crate::slices::{in_slices, read_bytes};

/// Adjacent rows.
#[derive(Clone, Copy, Debug)]
struct Part {
    /// The number of the first row after them.
    end: u64,
    /// The offset that row 0 would have if the rows continued to the front, in bytes. It wraps around below 0.
    base: u64,
}

/// The places of rows of one length in a file or an object.
#[derive(Clone, Debug)]
pub struct Places {
    pub row_bytes: usize,
    /// At least one. Each file of a list has a header, so its rows are a part.
    parts: Vec<Part>,
}

impl Places {
    /// `parts` has the number of rows of each part, and the offset of its first byte.
    pub fn new(file_bytes: u64, row_bytes: usize, parts: Vec<(u64, u64)>) -> PyResult<Places> {
        let refused = || PyValueError::new_err("the rows end beyond the file");
        let mut end = 0u64;
        let mut placed = Vec::with_capacity(parts.len());
        for (count, offset) in parts {
            let bytes = count.checked_mul(row_bytes as u64).and_then(|bytes| bytes.checked_add(offset));
            if bytes.ok_or_else(refused)? > file_bytes {
                return Err(refused());
            }
            let base = offset.wrapping_sub(end.wrapping_mul(row_bytes as u64));
            end = end.checked_add(count).ok_or_else(refused)?;
            placed.push(Part { end, base });
        }
        if placed.is_empty() {
            return Err(PyValueError::new_err("no parts"));
        }
        Ok(Places { row_bytes, parts: placed })
    }

    pub fn count(&self) -> u64 {
        self.parts.last().map_or(0, |part| part.end)
    }

    /// Refuses memory of another length than the rows.
    pub fn check(&self, memory: Memory, rows: usize) -> PyResult<Memory> {
        if rows.checked_mul(self.row_bytes) == Some(memory.len()) {
            return Ok(memory);
        }
        let (given, row) = (memory.len(), self.row_bytes);
        Err(PyValueError::new_err(format!("an array of {given} bytes for {rows} rows of {row} bytes")))
    }

    /// The offsets of rows. Their numbers have been checked.
    pub fn offsets<'a>(&'a self, ids: &'a [u64]) -> impl Iterator<Item = u64> + 'a {
        ids.iter().map(|&id| self.offset(id))
    }

    pub fn offset(&self, id: u64) -> u64 {
        let part = self.parts[self.parts.partition_point(|part| part.end <= id)];
        part.base.wrapping_add(id.wrapping_mul(self.row_bytes as u64))
    }

    /// The bytes of adjacent rows, part by part. The rows exist.
    pub fn stretches(&self, start: u64, count: u64) -> impl Iterator<Item = Range<u64>> + '_ {
        let (mut from, end) = (start, start + count);
        self.parts.iter().filter_map(move |part| {
            let here = part.end.min(end).saturating_sub(from);
            let at = part.base.wrapping_add(from.wrapping_mul(self.row_bytes as u64));
            from += here;
            (here > 0).then(|| at..at + here * self.row_bytes as u64)
        })
    }
}

/// Rows of one length in a file.
#[pyclass(frozen, module = "iomill._iomill")]
pub struct Rows {
    file: Py<NativeFile>,
    places: Places,
}

#[pymethods]
impl Rows {
    /// `parts` has the number of rows of each part, and the offset of its first byte.
    #[new]
    fn new(py: Python<'_>, file: Py<NativeFile>, row_bytes: usize, parts: Vec<(u64, u64)>) -> PyResult<Rows> {
        let places = Places::new(file.get().file(py)?.len(), row_bytes, parts)?;
        Ok(Rows { file, places })
    }

    /// The number of rows.
    fn __len__(&self) -> usize {
        self.count() as usize
    }

    /// Gathers rows into `out`, an array in C order with as many bytes.
    fn take(&self, py: Python<'_>, ids: &Bound<'_, PyUntypedArray>, out: &Bound<'_, PyUntypedArray>) -> PyResult<()> {
        let file = self.file.get().file(py)?;
        let ids = row_numbers(ids, self.count())?;
        let out = self.places.check(Memory::of_array(out, true)?, ids.len())?;
        in_slices(py, ids.len(), self.places.row_bytes, |slice| {
            let part = out.part(slice.start * self.places.row_bytes, slice.len() * self.places.row_bytes);
            // SAFETY: `out` is borrowed until this function returns, and is writable.
            self.read(&file, &ids[slice], unsafe { part.bytes_mut() })
        })
    }

    /// Reads adjacent rows into `out`, an array in C order with as many bytes.
    fn read_range(&self, py: Python<'_>, start: u64, count: u64, out: &Bound<'_, PyUntypedArray>) -> PyResult<()> {
        let file = self.file.get().file(py)?;
        if start.checked_add(count).is_none_or(|end| end > self.count()) {
            return Err(PyValueError::new_err("the rows end beyond the file"));
        }
        let out = self.places.check(Memory::of_array(out, true)?, count as usize)?;
        let mut done = 0usize;
        for stretch in self.places.stretches(start, count) {
            let len = (stretch.end - stretch.start) as usize;
            read_bytes(py, &file, out.part(done, len), stretch.start)?;
            done += len;
        }
        Ok(())
    }

    /// Begins to gather rows. `done(bytes, None)` or `done(None, exception)` is called once, on any thread.
    fn begin_take(&self, py: Python<'_>, ids: &Bound<'_, PyUntypedArray>, done: Py<PyAny>) -> PyResult<()> {
        let file = self.file.get().file(py)?;
        let ids = row_numbers(ids, self.count())?;
        let out = self.room(ids.len())?;
        let reading = py.detach(|| self.begin(&file, &ids, out));
        futures::deliver(py, reading, file, done)
    }

    /// Begins to read rows into the cache.
    fn prefetch(&self, py: Python<'_>, ids: &Bound<'_, PyUntypedArray>) -> PyResult<()> {
        let file = self.file.get().file(py)?;
        let ids = row_numbers(ids, self.count())?;
        let out = self.room(ids.len())?;
        // The read continues without its future.
        py.detach(|| drop(self.begin(&file, &ids, out)));
        Ok(())
    }

    /// Evicts pages of rows from the cache. `far` has a byte for each row, as `order::far_pages` returns.
    fn let_go(&self, py: Python<'_>, ids: &Bound<'_, PyUntypedArray>, far: &[u8]) -> PyResult<()> {
        let file = self.file.get().file(py)?;
        let ids = row_numbers(ids, self.count())?;
        py.detach(|| {
            for (&id, &far) in ids.iter().zip(far).filter(|&(_, &far)| far != 0) {
                for (_, page) in self.pages(id).enumerate().filter(|&(which, _)| far >> which & 1 == 1) {
                    file.advise(page * Self::PAGE_BYTES..(page + 1) * Self::PAGE_BYTES, Advice::DontNeed)?;
                }
            }
            Ok(())
        })
        .or_raise()
    }

    /// Writes rows from an array in C order with as many bytes. No id occurs twice.
    fn write(&self, py: Python<'_>, ids: &Bound<'_, PyUntypedArray>, rows: &Bound<'_, PyUntypedArray>) -> PyResult<()> {
        let file = self.file.get().file_to_write(py)?;
        let ids = row_numbers(ids, self.count())?;
        let rows = self.places.check(Memory::of_array(rows, false)?, ids.len())?;
        in_slices(py, ids.len(), self.places.row_bytes, |slice| {
            let part = rows.part(slice.start * self.places.row_bytes, slice.len() * self.places.row_bytes);
            let offsets: Vec<u64> = self.places.offsets(&ids[slice]).collect();
            // SAFETY: `rows` is borrowed until this function returns.
            file.write_many(unsafe { part.bytes() }, &offsets, self.places.row_bytes)
        })
    }
}

impl Rows {
    /// The cache's unit.
    pub const PAGE_BYTES: u64 = 4096;

    pub fn count(&self) -> u64 {
        self.places.count()
    }

    /// The pages of a row that is at least a byte long.
    pub fn pages(&self, id: u64) -> RangeInclusive<u64> {
        let start = self.places.offset(id);
        start / Self::PAGE_BYTES..=(start + self.places.row_bytes as u64 - 1) / Self::PAGE_BYTES
    }

    /// A number above those of all pages of rows.
    pub fn pages_end(&self) -> u64 {
        let ends = self
            .places
            .parts
            .iter()
            .map(|part| part.base.wrapping_add(part.end.wrapping_mul(self.places.row_bytes as u64)));
        ends.max().unwrap_or(0).div_ceil(Self::PAGE_BYTES)
    }

    /// Memory for rows.
    fn room(&self, rows: usize) -> PyResult<Vec<u8>> {
        zeroed(rows.saturating_mul(self.places.row_bytes))
    }

    fn begin(&self, file: &File, ids: &[u64], out: Vec<u8>) -> Transfer<Vec<u8>> {
        match &self.places.parts[..] {
            [one] => file.read_rows_async(out, ids, self.places.row_bytes, one.base),
            _ => {
                let ranges: Vec<(u64, usize)> =
                    self.places.offsets(ids).map(|offset| (offset, self.places.row_bytes)).collect();
                file.read_ranges_async(out, &ranges)
            }
        }
    }

    fn read(&self, file: &File, ids: &[u64], out: &mut [u8]) -> iomill::Result<()> {
        match &self.places.parts[..] {
            [one] => file.read_rows(out, ids, self.places.row_bytes, one.base),
            _ => file.read_many(out, &self.places.offsets(ids).collect::<Vec<_>>(), self.places.row_bytes),
        }
    }
}

//! Calls in slices of bounded size, so that Ctrl-C ends a long one: [`in_slices`], [`read_bytes`].

use std::ops::Range;

use iomill::File;
use pyo3::prelude::*;

use crate::errors::OrRaise;
use crate::memory::Memory;

/// The rows and bytes after which a call checks for Ctrl-C.
const SLICE_ROWS: usize = 16 << 10;
const SLICE_BYTES: usize = 64 << 20;

/// Runs a call over ranges of rows of bounded size without the interpreter, and checks for Ctrl-C between them.
pub fn in_slices(
    py: Python<'_>,
    rows: usize,
    row_bytes: usize,
    call: impl Fn(Range<usize>) -> iomill::Result<()> + Send + Sync,
) -> PyResult<()> {
    if row_bytes == 0 || rows == 0 {
        return Ok(());
    }
    let step = (SLICE_BYTES / row_bytes).clamp(1, SLICE_ROWS);
    for start in (0..rows).step_by(step) {
        if start > 0 {
            py.check_signals()?;
        }
        let slice = start..(start + step).min(rows);
        py.detach(|| call(slice)).or_raise()?;
    }
    Ok(())
}

/// Reads all bytes of a range.
pub fn read_bytes(py: Python<'_>, file: &File, memory: Memory, offset: u64) -> PyResult<()> {
    in_slices(py, memory.len().div_ceil(SLICE_BYTES), SLICE_BYTES, |slice| {
        let start = slice.start * SLICE_BYTES;
        let part = memory.part(start, (memory.len() - start).min(SLICE_BYTES));
        // SAFETY: the caller holds the memory's object until this returns, and requested it as writable.
        let out = unsafe { part.bytes_mut() };
        file.read_ranges(out, &[(offset + start as u64, out.len())])
    })
}

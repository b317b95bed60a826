//! Memory of Python objects that the library reads and writes: [`Memory`]. Non-goals: shapes and dtypes, which the
//! Python half checks.
//!
//! Rules:
//! 1. A function holds the Python object as long as it uses the memory, so the memory stays. An array with a reader, or
//!    with an exported buffer, does not move its memory.
//! 2. Other threads of the program may write to the memory meanwhile. As in numpy, the bytes are then those of either
//!    write. So no value is read from it twice: row numbers are copied, and the copy is checked.

use numpy::{PyUntypedArray, PyUntypedArrayMethods};
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyBufferError, PyMemoryError, PyTypeError, PyValueError};
use pyo3::prelude::*;

/// numpy's flag for writable arrays.
const WRITEABLE: i32 = 0x0400;

/// Bytes of a Python object that the caller holds (rule 1).
#[derive(Clone, Copy)]
pub struct Memory {
    start: *mut u8,
    len: usize,
}

// SAFETY: an address. Each use of it is unsafe, and has its own argument.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// The memory of an array in C order.
    pub fn of_array(array: &Bound<'_, PyUntypedArray>, writable: bool) -> PyResult<Memory> {
        if !array.is_c_contiguous() {
            return Err(PyValueError::new_err("the array must be C-contiguous"));
        }
        let len = array.len() * numpy::PyArrayDescrMethods::itemsize(&array.dtype());
        // SAFETY: the array is alive, because it is borrowed.
        let fields = unsafe { &(*array.as_array_ptr()).fields };
        if writable && fields.flags & WRITEABLE == 0 {
            return Err(PyValueError::new_err("output array is read-only"));
        }
        Ok(Memory { start: fields.data.cast(), len })
    }

    /// The memory of a buffer in C order.
    pub fn of_buffer(buffer: &PyUntypedBuffer, writable: bool) -> PyResult<Memory> {
        if writable && buffer.readonly() {
            return Err(PyTypeError::new_err("read-write bytes-like object expected"));
        }
        if !buffer.is_c_contiguous() {
            return Err(PyBufferError::new_err("the buffer must be C-contiguous"));
        }
        Ok(Memory { start: buffer.buf_ptr().cast(), len: buffer.len_bytes() })
    }

    /// The memory of a slice that the caller holds.
    pub fn of_slice(bytes: &mut [u8]) -> Memory {
        Memory { start: bytes.as_mut_ptr(), len: bytes.len() }
    }

    /// Its length in bytes.
    pub fn len(self) -> usize {
        self.len
    }

    /// A part of it. Panics if the part ends beyond the memory.
    pub fn part(self, start: usize, len: usize) -> Memory {
        assert!(start <= self.len && len <= self.len - start);
        // SAFETY: within this memory.
        Memory { start: unsafe { self.start.add(start) }, len }
    }

    /// The bytes, to read.
    ///
    /// # Safety
    /// Its object must be held as long as the slice is used (rule 1).
    pub unsafe fn bytes<'a>(self) -> &'a [u8] {
        if self.len == 0 {
            return &[];
        }
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }

    /// The bytes, to write.
    ///
    /// # Safety
    /// As for `bytes`, and the memory must have been requested as writable.
    pub unsafe fn bytes_mut<'a>(self) -> &'a mut [u8] {
        if self.len == 0 {
            return &mut [];
        }
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len) }
    }

    /// The `index`-th value.
    ///
    /// # Safety
    /// Its object must be held, and the memory must have at least `index` + 1 values of this type.
    pub unsafe fn value<T: Copy>(self, index: usize) -> T {
        debug_assert!((index + 1) * size_of::<T>() <= self.len);
        // SAFETY: the caller's promise. Arrays need not be aligned.
        unsafe { self.start.cast::<T>().add(index).read_unaligned() }
    }
}

/// Zeroed bytes, or a `MemoryError`.
pub fn zeroed(len: usize) -> PyResult<Vec<u8>> {
    let refused = |_| PyMemoryError::new_err(format!("no memory for {len} bytes of rows"));
    Vec::<u8>::new().try_reserve_exact(len).map_err(refused)?;
    // The allocator takes zeroed pages of the system. Filling the memory here would touch all of it.
    Ok(vec![0; len])
}

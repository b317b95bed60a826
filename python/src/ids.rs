//! Row numbers of Python as those of the library: [`row_numbers`]. Negative numbers count from the end, as in numpy.

use numpy::{PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::exceptions::{PyIndexError, PyTypeError};
use pyo3::prelude::*;

use crate::memory::Memory;

/// A type of integers in numpy.
trait Id: Copy {
    /// The row's number; a number of at least `rows` if the row does not exist.
    fn row(self, rows: u64) -> u64;
    /// The number, for a message.
    fn shown(self) -> String;
}

macro_rules! signed {
    ($($id:ty)*) => {$(
        impl Id for $id {
            #[inline(always)]
            fn row(self, rows: u64) -> u64 {
                // A negative number below the first row wraps around to a number without a row.
                let id = i64::from(self);
                if id < 0 { (id as u64).wrapping_add(rows) } else { id as u64 }
            }
            fn shown(self) -> String {
                self.to_string()
            }
        }
    )*};
}

macro_rules! unsigned {
    ($($id:ty)*) => {$(
        impl Id for $id {
            #[inline(always)]
            fn row(self, _rows: u64) -> u64 {
                u64::from(self)
            }
            fn shown(self) -> String {
                self.to_string()
            }
        }
    )*};
}

signed!(i8 i16 i32 i64);
unsigned!(u8 u16 u32 u64);

/// The rows that an array of integers names, as a copy. The array is in C order and in the machine's byte order. A
/// number without a row is an `IndexError` with numpy's text.
pub fn row_numbers(ids: &Bound<'_, PyUntypedArray>, rows: u64) -> PyResult<Vec<u64>> {
    let dtype = ids.dtype();
    let memory = Memory::of_array(ids, false)?;
    // SAFETY, for all: the dtype describes the memory, and `ids` is borrowed.
    if dtype.is_native_byteorder() != Some(false) {
        match (dtype.kind(), dtype.itemsize()) {
            (b'i', 8) => return copy::<i64>(memory, rows),
            (b'i', 4) => return copy::<i32>(memory, rows),
            (b'i', 2) => return copy::<i16>(memory, rows),
            (b'i', 1) => return copy::<i8>(memory, rows),
            (b'u', 8) => return copy::<u64>(memory, rows),
            (b'u', 4) => return copy::<u32>(memory, rows),
            (b'u', 2) => return copy::<u16>(memory, rows),
            (b'u', 1) => return copy::<u8>(memory, rows),
            _ => {}
        }
    }
    Err(PyTypeError::new_err(format!("row numbers of type {dtype}: they must be integers in the machine's byte order")))
}

fn copy<I: Id>(memory: Memory, rows: u64) -> PyResult<Vec<u64>> {
    let count = memory.len() / size_of::<I>();
    let mut numbers = Vec::with_capacity(count);
    // The loop has no branch, so that the compiler can process several numbers at a time.
    let mut is_outside = false;
    numbers.extend((0..count).map(|index| {
        // SAFETY: the caller borrows the array of the memory, and the array's dtype is this type.
        let row = unsafe { memory.value::<I>(index) }.row(rows);
        is_outside |= row >= rows;
        row
    }));
    if !is_outside {
        return Ok(numbers);
    }
    let position = numbers.iter().position(|&row| row >= rows).unwrap_or_default();
    // SAFETY: as above. If another thread has changed the number since, the message shows the new one.
    let id = unsafe { memory.value::<I>(position) }.shown();
    Err(PyIndexError::new_err(format!("index {id} is out of bounds for axis 0 with size {rows}")))
}

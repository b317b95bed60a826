//! The native half of the Python package `iomill`: the module `iomill._iomill`.
//!
//! Goals: thin classes over the library. Each call that may wait lets other threads run in the interpreter. Non-goals:
//! indexing, formats and interfaces of other libraries, which the Python half has.

mod array;
mod errors;
mod file;
mod futures;
mod handle;
mod ids;
mod memory;
mod modes;
mod order;
#[cfg(feature = "origins")]
mod origins;
mod rows;
mod runtime;
mod slices;
mod words;

use pyo3::prelude::*;

#[pymodule(gil_used = false)]
mod _iomill {
    #[pymodule_export]
    use super::array::{NativeArray, NativeDraft, check_name, create_drives, open_drives};
    #[pymodule_export]
    use super::file::{NativeFile, open_plain};
    #[pymodule_export]
    use super::futures::stop;
    #[pymodule_export]
    use super::order::far_pages;
    #[cfg(feature = "origins")]
    #[pymodule_export]
    use super::origins::{ContentRows, NativeCache, NativeContent, NativeStore, open_cache, stop_origins};
    #[pymodule_export]
    use super::rows::Rows;
    #[pymodule_export]
    use super::runtime::{NativeRuntime, shared_runtime, start_runtime};
}

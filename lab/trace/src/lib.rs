//! Recorded accesses to storage. They are read in their published forms, run through caches without I/O, and repeated
//! on an array.
//!
//! A [`Reader`] reads a trace, one [`Request`] after the other, in bounded memory. [`Pages`] holds a trace as page
//! accesses. [`simulate`] runs these through caches, [`granules`] through caches of parts of pages, and
//! [`mod@reference`] compares the result with known hit rates. [`replay`] does the requests on a file of an array.

pub mod chart;
mod decompress;
mod error;
mod format;
mod global;
pub mod granules;
mod lines;
pub mod pages;
mod reader;
pub mod reference;
pub mod replay;
mod sets;
pub mod simulate;
mod simulated;

pub use error::{Result, TraceError};
pub use format::{Format, Op};
pub use pages::{Access, Pages};
pub use reader::{Reader, Request};

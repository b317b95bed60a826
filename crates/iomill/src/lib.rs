//! Many commodity SSDs as one very fast file.
//!
//! An [`Array`] is a set of drives, each a directory on an SSD. A [`File`] of the array is spread over the drives, and
//! one call reads or writes on all of them at once.
//!
//! ```no_run
//! use iomill::{Array, FileOptions};
//!
//! # fn main() -> iomill::Result<()> {
//! let array = Array::create(["/mnt/ssd0", "/mnt/ssd1"])?; // later: Array::open("/mnt/ssd0")
//! let file = array.create_file("graph/edges", &FileOptions::new())?;
//! file.write_at(&[7; 4096], 0)?;
//! file.sync()?;
//!
//! let offsets = [0, 512, 3968];
//! let mut out = [0; 3 * 128];
//! file.read_many(&mut out, &offsets, 128)?;
//! file.close()?;
//! array.close()
//! # }
//! ```
//!
//! [`open_plain`] reads an ordinary file outside any array, through the same cache and engines:
//!
//! ```no_run
//! # fn main() -> iomill::Result<()> {
//! let file = iomill::open_plain("features.bin")?;
//! let ids = [7, 0, 7, 1_000_000];
//! let mut rows = vec![0; ids.len() * 512];
//! file.read_rows(&mut rows, &ids, 512, 0)?;
//! # Ok(()) }
//! ```
//!
//! The public interface is at this level. The modules below it are rooms of the library. The feature `internals` makes
//! them public, for tools, measurements and the simulator. They change without notice, and no version makes a promise
//! about them.

#![cfg_attr(docsrs, feature(doc_cfg))]

// The feature `internals` makes these rooms public. Without it they are private, and items that only tools call are
// unused: hence `allow`. Each room has two declarations instead of a macro, so that rustfmt finds its file.
#[cfg(feature = "internals")]
pub mod cache;
#[cfg(not(feature = "internals"))]
#[allow(dead_code, unused_imports)]
mod cache;
#[cfg(feature = "internals")]
pub mod catalog;
#[cfg(not(feature = "internals"))]
#[allow(dead_code, unused_imports)]
mod catalog;
#[cfg(feature = "internals")]
pub mod counters;
#[cfg(not(feature = "internals"))]
#[allow(dead_code, unused_imports)]
mod counters;
#[cfg(feature = "internals")]
pub mod drive;
#[cfg(not(feature = "internals"))]
#[allow(dead_code, unused_imports)]
mod drive;
#[cfg(feature = "internals")]
pub mod engine;
#[cfg(not(feature = "internals"))]
#[allow(dead_code, unused_imports)]
mod engine;
#[cfg(feature = "internals")]
pub mod layout;
#[cfg(not(feature = "internals"))]
#[allow(dead_code, unused_imports)]
mod layout;
#[cfg(feature = "internals")]
pub mod sys;
#[cfg(not(feature = "internals"))]
#[allow(dead_code, unused_imports)]
mod sys;

mod api;
mod error;
mod exec;
mod file;
mod pager;

pub use api::*;
pub use counters::{Counters, DriveCounters, Latency};
pub use engine::EngineKind;
pub use error::{Error, ErrorKind, Result};

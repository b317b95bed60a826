//! Many commodity SSDs as one very fast file.
//!
//! An [`Array`] is a set of drives, each a directory on an SSD, used together. A [`File`] in it is spread over them, and one call
//! reads or writes on all of them at once.
//!
//! ```no_run
//! use iomill::{Array, Layout};
//!
//! # fn main() -> iomill::Result<()> {
//! let array = Array::create(["/mnt/ssd0", "/mnt/ssd1"])?; // later: Array::open("/mnt/ssd0")
//! let file = array.create_file("graph/edges", Layout::default())?;
//! file.write_at(&[7; 4096], 0)?;
//! file.sync()?;
//!
//! let offsets = [0, 512, 3968];
//! let mut out = [0; 3 * 128];
//! file.read_many(&offsets, 128, &mut out)?;
//! file.close()?;
//! array.close()
//! # }
//! ```
//!
//! Everything that users call is at this level. The modules are the rooms below it, open for tools, measurements and the
//! simulator, and change without notice.

pub mod api;
pub mod cache;
pub mod catalog;
pub mod counters;
pub mod drive;
pub mod engine;
pub mod error;
mod exec;
mod file;
pub mod layout;
mod pager;
pub mod sys;

pub use api::*;
pub use counters::{Counters, DriveCounters};
pub use engine::EngineKind;
pub use error::{Error, Result};

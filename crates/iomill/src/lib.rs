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
//! let ids = [0, 4, 31]; // rows of 128 bytes
//! let mut out = [0; 3 * 128];
//! file.read_rows(&mut out, &ids, 128, 0)?;
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
//! # Which call to use
//!
//! All calls below are methods of [`File`] unless another type is named. One call for many rows is faster than many
//! calls: it keeps all drives busy, and rows of one page share an I/O.
//!
//! | to read | blocking | a future that owns the buffer | a future with new memory | a callback |
//! |---|---|---|---|---|
//! | one range | [`read_at`](File::read_at) | [`read_at_async`](File::read_at_async) | [`read_async`](File::read_async) | [`read_at_then`](File::read_at_then) |
//! | rows by their numbers | [`read_rows`](File::read_rows) | [`read_rows_async`](File::read_rows_async) | | |
//! | rows at offsets | [`read_many`](File::read_many) | [`read_many_async`](File::read_many_async) | | [`submit`](File::submit) |
//! | ranges of any lengths | [`read_ranges`](File::read_ranges) | [`read_ranges_async`](File::read_ranges_async) | [`gather_async`](File::gather_async) | [`submit`](File::submit) |
//! | a whole file | [`Array::read`] | | [`Array::read_async`] | |
//! | in place, without a copy | [`pin`](File::pin), [`read_with`](File::read_with) | | | [`submit_with`](File::submit_with) |
//! | in order, by `std::io` | [`cursor`](File::cursor) | | | |
//!
//! | to write | blocking | a future that owns the bytes | a callback |
//! |---|---|---|---|
//! | one range | [`write_at`](File::write_at) | [`write_at_async`](File::write_at_async) | [`submit`](File::submit) |
//! | rows at offsets | [`write_many`](File::write_many) | [`write_many_async`](File::write_many_async) | [`submit`](File::submit) |
//! | ranges of any lengths | [`write_ranges`](File::write_ranges) | [`write_ranges_async`](File::write_ranges_async) | [`submit`](File::submit) |
//! | a whole file | [`Array::put`] | [`Array::put_async`] | |
//!
//! [`Array::put`] makes or replaces a file with its whole content, durably, as one change.
//! [`Array::create_file`] makes an empty file that is then written in pieces, and [`File::sync`] makes them durable. A
//! [`Draft`] is written in pieces too, and appears under its name when it is complete.
//!
//! Futures run on any executor, and [`block_on`] runs one on the calling thread.
//!
//! # Errors
//!
//! The text of an [`Error`] says what failed, where, and what to do. It is also the text of `{:?}`, so a `main` that
//! returns [`Result`] prints it. Programs match on [`Error::kind`], or on a variant. An [`Error`] becomes a
//! [`std::io::Error`] of the fitting kind by `?`, and back. A future that owns a buffer gives it back with its error
//! ([`Failed`]).
//!
//! # Features
//!
//! None is on by default.
//!
//! | feature | adds |
//! |---|---|
//! | `tokio` | `drive_by_tokio`, by which a runtime of tokio waits for drives itself, and `AsyncCursor` with tokio's `AsyncRead`, `AsyncWrite` and `AsyncSeek` |
//! | `futures-io` | `AsyncCursor` with the same traits of the crate `futures` |
//! | `bytes` | `Bytes` and `BytesMut` as buffers of futures |
//! | `serde` | `serde::Serialize` for [`Counters`] |
//! | `tracing` | spans of long calls, and events for notices, openings and failed write-back |
//! | `internals` | the modules inside the library, for its own tools and tests. They change without notice, and no version promises anything about them |
//!
//! A subscriber of `tracing` runs inside the library, where other threads may wait for it. Blocking calls of iomill
//! return [`Error::BlockingCall`] there. Futures and batches begin on another thread: a subscriber may begin them, but
//! must not wait for them.
//!
//! # Examples
//!
//! The directory `crates/iomill/examples` of the repository has whole programs:
//!
//! - `gather`: the first lines; `async_read`: many reads in flight from one thread; `serve`: a server of rows on tokio;
//! - `train`: shuffled epochs; `vectors`: vector search; `kv`: a key-value store; `graph`: graph algorithms;
//! - `labels`: small unaligned writes; `many_files`: the cost of a catalog.

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

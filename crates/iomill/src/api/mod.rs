//! The interface: [`Array`], [`File`], and the calls on them. Blocking calls, futures and callbacks run the same operations of the rooms
//! below. Non-goals: loops, locks and queues, which are in those rooms.

mod advise;
mod answer;
mod array;
#[cfg(any(feature = "tokio", feature = "futures-io"))]
mod async_cursor;
mod buffer;
mod by_hand;
mod change;
mod check;
mod child;
mod cursor;
mod draft;
#[cfg(all(test, not(iomill_models)))]
mod durable_tests;
mod file;
mod future;
mod gather;
mod holes;
mod info;
mod listing;
mod names;
mod options;
mod peek;
mod pin;
mod plain;
mod position;
mod profile;
mod rows;
mod runtime;
mod setup;
mod traits;

pub use crate::cache::policy::PolicyKind;
pub use crate::catalog::{When, check_name};
pub use crate::exec::block_on::block_on;
#[cfg(feature = "tokio")]
pub use crate::exec::tokio::drive_by_tokio;
pub use crate::file::MAX_FILE_BYTES;
pub use crate::pager::{Failed, IoBuffer, IoBytes};

pub use crate::sys::fs::Ground;
pub use crate::sys::topology::Topology;
pub use advise::Advice;
pub use answer::Answer;
pub use array::Array;
#[cfg(any(feature = "tokio", feature = "futures-io"))]
pub use async_cursor::AsyncCursor;
pub use buffer::Buffer;
pub use check::{Problem, Report, Severity};
pub use cursor::FileCursor;
pub use draft::{Draft, PutOptions};
pub use file::File;
pub use future::{Reading, ReadingAt, Request, Syncing, Transfer};
pub use gather::Gathering;
pub use info::{ArrayInfo, DriveInfo, FileStat, NodeInfo, SmallSpace};
pub use listing::{Listed, ListedFile, Listing};
pub use options::{
    ADAPTIVE_DEPTH, ArrayOptions, DEFAULT_BLOCK_BYTES, DEFAULT_DEPTH, DEFAULT_PLUG, DEFAULT_READ_AHEAD_BYTES,
    DEFAULT_SET_SIZE,
};
pub use options::{Layout, LayoutKind, Remote};
pub use peek::Peek;
pub use pin::{OwnedBytes, PinnedPage, PinnedRange};
pub use plain::{PlainOptions, open_plain};
pub use profile::{Profile, ProfileDrive};
pub use rows::RowId;
pub use runtime::{Runtime, RuntimeOptions};

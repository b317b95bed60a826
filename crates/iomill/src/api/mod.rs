//! The interface: arrays, files, and the calls on them. Blocking calls, futures and callbacks are thin drivers of the
//! same pieces and queues below.

mod advise;
mod array;
mod buffer;
mod cached;
mod callbacks;
mod check;
mod contexts;
mod cursor;
mod durable;
mod file;
mod fleet;
mod forked;
mod future;
mod gate;
mod hold;
mod info;
mod joined;
mod late;
mod notices;
mod operation;
mod options;
mod peek;
mod pin;
mod places;
mod profile;
mod room;
mod setup;
mod split;
mod state;
mod tail;

pub use crate::cache::policy::PolicyKind;
pub use crate::sys::topology::Topology;
pub use advise::Advice;
pub use array::Array;
pub use buffer::Buffer;
pub use check::{Problem, Report, Severity};
pub use cursor::Cursor;
pub use file::File;
pub use future::{Reading, Syncing, Task, Writing};
pub use info::{ArrayInfo, DriveInfo, FileStat, NodeInfo};
pub use options::{
    ADAPTIVE_DEPTH, ArrayOptions, DEFAULT_BLOCK_BYTES, DEFAULT_DEPTH, DEFAULT_PLUG, DEFAULT_READ_AHEAD_BYTES,
    DEFAULT_SET_SIZE,
};
pub use options::{Layout, LayoutKind, Mode, Remote};
pub use peek::Peek;
pub use pin::{Pages, Pin};
pub use profile::{Profile, ProfileDrive};
pub use state::MAX_FILE_BYTES;

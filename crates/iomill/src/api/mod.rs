//! The interface: [`Array`], [`Runtime`], [`File`], and the calls on them. Blocking calls, futures and callbacks run
//! the same operations of the rooms below. Non-goals: loops over I/O, and queues, which are in those rooms. The locks
//! of this room guard the shared runtime, and the list of a runtime's devices.
//!
//! Users see this room only. The feature `internals` also makes the rooms from `cache` down public, without any
//! promise: the simulator, tools and measurements need them.
//!
//! - `array.rs`: making, opening and closing an array; `Array` is a counted handle.
//! - `names.rs`: create, delete, rename, attributes: as calls and as futures.
//! - `answer.rs`, `transfer.rs`, `change.rs`: the future of a call, without and with a buffer of the caller; changes in
//!   steps.
//! - `draft.rs`: drafts, `put` and `copy`.
//! - `listing.rs`: files by prefix, one after the other.
//! - `file.rs`, `holes.rs`: the blocking calls of a `File`; which ranges of a file hold data.
//! - `plain.rs`, `runtime.rs`: opening plain files, and what they share.
//! - `rows.rs`, `gather.rs`: rows by their numbers; gathers into new memory.
//! - `future.rs`: futures and callbacks.
//! - `pin.rs`: pins, `read_owned`, `read_with`, `submit_with`.
//! - `cursor.rs`, `position.rs`, `async_cursor.rs`: a position in a file, for `std::io` and for the traits of tokio and
//!   `futures`.
//! - `advise.rs`, `buffer.rs`: advice about future reads; memory that is registered with the drives' engines.
//! - `options.rs`, `cache_options.rs`, `tuning.rs`, `file_options.rs`: options of arrays, their caches and drives, and of
//!   files.
//! - `profile.rs`, `setup.rs`: measured profiles, and the choices at open.
//! - `info.rs`, `peek.rs`, `check.rs`, `scrub.rs`, `by_hand.rs`: what an array says of itself, with or without its lock;
//!   checking, without the data and with them; the catalog as text.
//! - `child.rs`: what a forked child opens in the place of its parent's handles.
//! - `traits.rs`: checks by the compiler that public types are Send, Sync and Unpin.
//!
//! # Three forms of one call
//!
//! A blocking call runs an operation on its own thread. A future and a callback spawn the same operation. They differ
//! only in what is told at the end. The room `exec` has the rules.
//!
//! - A future owns its buffer, of any type that is an `IoBuffer` (to read into) or `IoBytes` (to write from). It
//!   returns the buffer with the result, also with an error. A dropped future frees nothing that the kernel still
//!   writes to: the operation lives on until its end.
//! - A hit is copied when its future is made, as by `read_at`, and costs no more than its buffer. For a missing page
//!   the future begins a read. That read is sent with others of the thread, at the latest when the future has been
//!   polled twice (`exec`, "Shared contexts").
//! - `block_on` runs any future on the calling thread. Then a read costs what `read_at` costs. Other executors work as
//!   well. While their threads sleep, the reaper brings ends and wakes the executor, which costs a wake of another
//!   thread.
//! - `submit` reports one outcome for the batch, not one for each request. A batch is what its caller waits for.
//! - `try_submit` returns the requests if a drive's queue is full. A program with work for other drives need not wait.
//! - In a callback or a waker, each call that waits for drives or for other calls is an error.
//!
//! Calls of the array and of names are shorter. A change has three steps: its content, the change in memory, and the
//! end when it is durable. A blocking call makes them one after the other. For futures one thread takes all changes
//! that have come, and makes each step of all of them (`exec`, "Pools"). So they share flushes. Other calls that wait,
//! such as `sync_async`, run on threads of their own, up to 16.
//!
//! - Such a call has begun when its future is made, and no poll waits for a drive.
//! - Calls that only read memory have no future: `stat`, `list`, `info`. `draft` has none either: it waits
//!   once, for the first change of a process.
//!
//! # Plain files
//!
//! `docs/plain-files.md` describes them for users.
//!
//! - A `Runtime` is to plain files what an array's inside is to its files: `Exec`, `Pager`, `OpenFiles`. A drive is
//!   added when the first file on a new device is opened. Engines reserve slots for drives, so there are 64 at most.
//!   From the ninth on, a device gets the slot of one without open files.
//! - The shared runtime belongs to its process (`PerProcess`). A forked child makes its own, and takes no lock of the
//!   parent's.
//! - Queues are by block device and by what direct I/O demands there. File systems on one disk mostly share a queue.
//! - A runtime sees one node: threads of nodes make their engines once, and drives are added later.
//! - Counters of a runtime are in plain memory, because names of drives are part of what other processes map.
//!
//! # Rows
//!
//! - `read_rows` is a gather that computes each offset when it is used. It checks each number with one comparison: a
//!   negative number is larger than every row's.
//! - The pages of a wave decide what is one I/O, as for every gather. So equal rows, rows of one page, and adjacent
//!   pages are one.
//!
//! # Names and handles
//!
//! - A name is looked up when a file is opened. Handles keep their file, even if its name is removed or given to
//!   another file. So a handle never changes its meaning.
//! - `open_version` is for a caller that has read the version by `stat`: it opens that content or returns an error.
//!   With a plain open, a replacement between the two calls would give a handle of another content.
//! - `delete` and `rename` hold no name while they wait for a user's code.
//! - Dropping the last handle flushes and syncs the file. A drop cannot return an error, so the error is in
//!   `Array::notices`.
//! - The last clone of `Array` may be dropped in a callback. Then a closing thread closes the array.
//!
//! # Processes that fork
//!
//! A forked child has a copy of the parent's memory, but not its threads, and shares descriptors with it. So in a child
//! every call on a handle that writes is an error (`Error::Forked`), and closing and dropping do nothing. The rules are
//! in `exec`.
//!
//! - The child opens again what is open for reading (`child.rs`): workers of data loaders are forked with open files.
//!   Each call that is no hit checks whether the handle belongs to this process, and otherwise uses the child's own
//!   handle. The child finds files by their paths. It refuses a file that another program has put in the place of the
//!   parent's.
//! - What the child opens is in slots beside the parent's parts (`PerProcess`). A slot is filled without the parent's
//!   locks.
//! - The child's caches have the parent's sizes, divided by the number of CPUs. As many workers as CPUs take as much
//!   memory as their parent.
//! - A page that the kernel wipes in children identifies the process (`sys/process.rs`). The check costs two loads.
//! - A hit makes no check. The C library makes the child's only thread search for its cache again, so a hit is not
//!   found either. A program that forks by its own system call may still read from its copy.
//! - Pins keep their bytes in the child.
//! - The child opens the array for itself: for reading beside a parent that reads, for writing after the parent has
//!   closed.
//! - A fork copies memory that is registered with a ring (Linux 5.10), which includes the frames of the cache. If
//!   memory is short, fork before the array is opened, or use a small cache.
//!
//! `docs/durability.md` has the promise of each call.

mod advise;
mod answer;
mod array;
#[cfg(any(feature = "tokio", feature = "futures-io"))]
mod async_cursor;
mod buffer;
#[cfg(feature = "internals")]
mod by_hand;
mod cache_options;
mod change;
mod check;
mod child;
mod cursor;
mod draft;
#[cfg(all(test, not(iomill_models)))]
mod durable_tests;
mod file;
mod file_options;
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
mod scrub;
mod setup;
mod traits;
mod transfer;
mod tuning;

pub use crate::cache::policy::PolicyKind;
pub use crate::catalog::{When, check_name};
pub use crate::exec::block_on::block_on;
#[cfg(feature = "tokio")]
pub use crate::exec::tokio::drive_by_tokio;
pub use crate::file::MAX_FILE_BYTES;
pub use crate::layout::Layout;
#[cfg(feature = "internals")]
pub use crate::pager::nodes::Remote;
pub use crate::pager::{Failed, IoBuffer, IoBytes};

pub use crate::sys::fs::Ground;
#[cfg(feature = "internals")]
pub use crate::sys::topology::Topology;
pub use advise::Advice;
pub use answer::Answer;
pub use array::Array;
#[cfg(any(feature = "tokio", feature = "futures-io"))]
pub use async_cursor::AsyncCursor;
pub use buffer::Buffer;
pub use cache_options::CacheOptions;
pub use check::{Problem, Report, Severity};
pub use cursor::FileCursor;
pub use draft::Draft;
pub use file::File;
pub use file_options::{DEFAULT_BLOCK_BYTES, FileOptions, PutOptions};
pub use future::Request;
pub use info::{ArrayInfo, DriveInfo, FileStat, NodeInfo, SmallSpace};
pub use listing::{Listed, ListedFile, Listing};
#[cfg(feature = "internals")]
pub use options::{ADAPTIVE_DEPTH, DEFAULT_DEPTH};
pub use options::{ArrayOptions, CreateOptions};
pub use peek::Peek;
pub use pin::{OwnedBytes, PinnedPage, PinnedRange};
pub use plain::{PlainOptions, open_plain};
pub use profile::Profile;
pub use rows::RowId;
pub use runtime::{Runtime, RuntimeOptions};
pub use scrub::{Scrub, Scrubbed};
pub use transfer::Transfer;
pub use tuning::Tuning;

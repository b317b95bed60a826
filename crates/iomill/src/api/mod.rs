//! The interface: [`Array`], [`Runtime`], [`File`], and the calls on them. Blocking calls, futures and callbacks run
//! the same operations of the rooms below. Non-goals: loops over I/O, and queues: both are in the rooms below. The
//! locks of this room guard the shared runtime, and the list of a runtime's devices.
//!
//! This room alone is public. The feature `internals` also makes the rooms from `cache` down public, without any
//! promise, for the simulator, tools and measurements.
//!
//! - `array.rs`: making, opening and closing an array; `Array` is a counted handle.
//! - `names.rs`: create, delete, rename, attributes: as calls and as futures.
//! - `answer.rs`, `transfer.rs`: the future of a call, without and with a buffer of the caller. `change.rs`: changes of
//!   the catalog in steps.
//! - `draft.rs`, `whole.rs`: drafts, `put` and `copy`; `read` of a whole file.
//! - `listing.rs`: files by prefix, one after the other.
//! - `file.rs`, `holes.rs`: the blocking calls of a `File`; which ranges of a file hold data.
//! - `plain.rs`, `runtime.rs`: opening plain files, and the cache, engines and queues that they share.
//! - `rows.rs`: rows by their numbers.
//! - `future.rs`, `callback.rs`: futures; callbacks.
//! - `pin.rs`: pins, `read_with`, `submit_with`.
//! - `cursor.rs`, `position.rs`, `async_cursor.rs`: a position in a file, for `std::io` and for the traits of tokio and
//!   `futures`.
//! - `advise.rs`, `buffer.rs`: advice about future reads; memory that is registered with the drives' engines.
//! - `options.rs`, `cache_options.rs`, `tuning.rs`, `file_options.rs`: options of arrays, their caches and drives, and
//!   of files.
//! - `profile.rs`, `setup.rs`: measured profiles, and the choices at open.
//! - `info.rs`, `peek.rs`: the description of an array, with its lock and without. `check.rs`, `scrub.rs`: checks of
//!   the catalog and of the data. `by_hand.rs`: the catalog as text.
//! - `child.rs`: the handles that a forked child opens in place of its parent's.
//! - `traits.rs`, `debug.rs`: checks by the compiler that public types are Send, Sync and Unpin; short `Debug` forms.
//!
//! # Three forms of one call
//!
//! A blocking call runs an operation on the calling thread. A future and a callback spawn the same operation. The forms
//! differ only in the delivery of the result. The room `exec` has the rules.
//!
//! - A future owns its buffer, an `IoBuffer` for reads or an `IoBytes` for writes. It returns the buffer with the
//!   result, also with an error. A dropped future frees no memory that the kernel still writes to: the operation
//!   continues to its end, and owns the buffer.
//! - A hit is copied when its future is made, as by `read_at`, and costs only the buffer in addition. A miss begins a
//!   read. The read is submitted together with others of the thread, at the latest at the future's second poll (`exec`,
//!   "Shared contexts").
//! - `block_on` runs any future on the calling thread. A read then costs as much as `read_at`. Other executors work as
//!   well. While their threads sleep, the reaper collects completions and wakes the executor. That costs a wake of
//!   another thread.
//! - `submit` reports one outcome for the batch, not one for each request, because callers wait for whole batches.
//! - `try_submit` returns the requests if a drive's queue is full, or if some thousand callbacks wait. A program with
//!   other work need not wait, and one with slow callbacks has a bound on the memory of its reads.
//! - In a callback or a waker, each call that waits for drives or for other calls is an error.
//!
//! A change of the catalog has three steps: its content, the change in memory, and the end when it is durable. A
//! blocking call makes the steps one after the other. For futures one thread takes all queued changes, and makes each
//! step for all of them before the next step (`exec`, "Pools"). So the changes share fsyncs. Other calls that wait,
//! such as `sync_async`, run on up to 16 threads of their own.
//!
//! - The call has begun when its future exists, and no poll waits for a drive.
//! - Calls that only read memory have no future: `stat`, `list`, `info`. `draft` has none either: it waits
//!   once, for the first change of a process.
//!
//! # Plain files
//!
//! `docs/plain-files.md` describes plain files for users.
//!
//! - A `Runtime` has the parts that an array has for its files: `Exec`, `Pager`, `OpenFiles`. A drive is added when the
//!   first file on a new device is opened. Engines reserve slots for drives, so there are at most 64. From the ninth
//!   device on, a new device takes the slot of a device without open files.
//! - The shared runtime belongs to its process (`PerProcess`). A forked child makes its own, and takes no lock of the
//!   parent's.
//! - There is a queue for each block device and alignment of direct I/O. File systems on one disk mostly share a queue.
//! - A runtime has one node: threads of nodes make their engines once, but a runtime adds drives later.
//! - Counters of a runtime are in private memory: counters that other processes map include the names of all drives,
//!   and a runtime adds drives later.
//!
//! # Rows
//!
//! - `read_rows` is a gather that computes each offset when it is used. It checks each number with one comparison: a
//!   negative number is larger than every row's.
//! - As in every gather, I/Os are made from the pages of a wave. So equal rows, rows of one page, and adjacent pages
//!   share an I/O.
//!
//! # Names and handles
//!
//! - A name is looked up when a file is opened. A handle keeps its file, even if the name is removed or given to
//!   another file.
//! - `open_version` is for a caller that has the version from `stat`: it opens that content or returns an error. With
//!   `open_file`, a replacement between the two calls would give a handle of another content.
//! - `delete` and `rename` hold no name while they wait for code of the user.
//! - Dropping the last handle flushes and syncs the file. A drop cannot return an error, so the error is in
//!   `Array::notices`.
//! - The last clone of `Array` may be dropped in a callback. Then a closing thread closes the array.
//!
//! # Processes that fork
//!
//! A forked child has a copy of the parent's memory without the parent's threads, and shares the parent's descriptors.
//! So in a child every call on a handle for writing is an error (`Error::Forked`), and closing and dropping do nothing.
//! The rules are in `exec`.
//!
//! - The child opens handles for reading again (`child.rs`), because workers of data loaders are forked with open
//!   files. Each call that is not a hit checks whether the handle belongs to this process, and otherwise uses the
//!   child's own handle. The child finds files by their paths. It refuses a file with which another program has
//!   replaced the parent's file.
//! - The child's handles are in slots beside the parent's parts (`PerProcess`). A slot is filled without the parent's
//!   locks.
//! - The size of each child's cache is the parent's divided by the number of CPUs. So one worker for each CPU takes,
//!   all together, as much memory as the parent.
//! - A page that the kernel wipes in children identifies the process (`sys/process.rs`). The check costs two loads.
//! - A hit makes no check. After a fork through the C library the child's thread looks up its cache again, so its first
//!   read is not a hit. A child made by a bare system call may still read from its copy of the cache.
//! - Pins keep their bytes in the child.
//! - The child opens the array for itself: for reading beside a parent that reads, for writing after the parent has
//!   closed.
//! - A fork copies memory that is registered with a ring (Linux 5.10), such as the frames of the cache. If memory is
//!   short, fork before the array is opened, or use a small cache.
//!
//! `docs/durability.md` has the promise of each call.

// Rustdoc shows the methods of a type in the order of these modules: the calls that most programs use come first.
mod rows;

mod file;
mod future;

mod advise;
mod answer;
mod array;
#[cfg(any(feature = "tokio", feature = "futures-io"))]
mod async_cursor;
mod buffer;
#[cfg(feature = "internals")]
mod by_hand;
mod cache_options;
mod callback;
mod change;
mod check;
mod child;
mod cursor;
mod debug;
mod draft;
#[cfg(all(test, not(iomill_models)))]
mod durable_tests;
mod file_options;
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
mod runtime;
mod scrub;
mod setup;
mod traits;
mod transfer;
mod tuning;
mod whole;

pub use crate::cache::policy::PolicyKind;
pub use crate::catalog::{When, check_name};
pub use crate::exec::block_on::block_on;
#[cfg(feature = "tokio")]
pub use crate::exec::tokio::drive_by_tokio;
pub use crate::file::MAX_FILE_BYTES;
pub use crate::layout::Layout;
#[cfg(feature = "internals")]
pub use crate::pager::spread::Remote;
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
pub use callback::Request;
pub use check::{Problem, Report, Severity};
pub use cursor::FileCursor;
pub use draft::Draft;
pub use file::File;
pub use file_options::{DEFAULT_BLOCK_BYTES, FileOptions, PutOptions};
pub use info::{ArrayInfo, DriveInfo, FileStat, NodeInfo, SmallSpace};
pub use listing::{Listed, ListedFile, Listing};
#[cfg(feature = "internals")]
pub use options::{ADAPTIVE_DEPTH, DEFAULT_DEPTH};
pub use options::{ArrayOptions, CreateOptions};
pub use peek::Peek;
pub use pin::{PinnedPage, PinnedRange};
pub use plain::{PlainOptions, open_plain};
pub use profile::Profile;
pub use rows::RowId;
pub use runtime::{Runtime, RuntimeOptions};
pub use scrub::{Scrub, Scrubbed};
pub use transfer::Transfer;
pub use tuning::Tuning;

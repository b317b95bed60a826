//! Running I/O: which thread advances an operation, and what its end wakes. The type is [`Exec`], made from a
//! [`Setup`].
//!
//! Goals: one form of each operation, whether a call blocks for it or a future waits for it. Non-goals: files, lengths
//! and caches, which belong to the rooms above.
//!
//! - `runner.rs`: `Exec`: what runs the I/O of files on one set of drives.
//! - `io.rs`: `Io`: the places where an operation waits.
//! - `pages.rs`, `page_write.rs`: whole pages to several drives by one batch.
//! - `inline.rs`, `contexts.rs`: each calling thread's own engines.
//! - `shared.rs`, `cell.rs`, `cell_for.rs`, `cell/own.rs`, `cell/posted.rs`: shared contexts: their rules, their lock,
//!   which of them a thread uses, and what other threads post to one.
//! - `forget.rs`, `pause.rs`, `refusal.rs`: closed files that engines forget; the pause of a thread that waits; the
//!   error of a thread without engines.
//! - `telling.rs`: the ends that a thread reports after it has left a context.
//! - `reaper.rs`: a thread that advances shared contexts where no other does.
//! - `tokio.rs`, `tokio_task.rs`: with the feature `tokio`: runtimes that advance shared contexts in a task of their
//!   own.
//! - `block_on.rs`: a future on the calling thread, which sleeps in its own contexts.
//! - `task.rs`, `promise.rs`, `end.rs`: operations that no thread waits for; their results, and their ends without one.
//! - `pools.rs`, `queued.rs`, `turns.rs`: threads for jobs; calls that have not begun; jobs that share fsyncs.
//! - `users_code.rs`: what callbacks, wakers and subscribers may do.
//! - `roles.rs`: which NUMA nodes cache and which own drives.
//!
//! # One form of an operation
//!
//! An operation is an `async fn` of a room above. It waits at three places only:
//!
//! 1. for pieces ([`Io::run`]),
//! 2. for a page that another operation works on ([`Io::wait_for_page`]),
//! 3. for a thread that may block ([`Io::on_blocking_thread`]).
//!
//! A blocking call runs the operation on its own thread ([`Exec::run_to_end`]): it is polled once, and each wait blocks
//! the thread. A future or a callback spawns it ([`task::spawn`]). Then its waits block no thread.
//!
//! These threads advance operations:
//!
//! - A caller's thread advances its blocking operations by its own engines (`contexts`), and in a poll all spawned
//!   operations of its shared context.
//! - A thread of a tokio runtime that drives advances the spawned operations of the shared contexts of that runtime's
//!   threads (`tokio_task`).
//! - The reaper advances spawned operations that no other thread advances (`reaper`).
//! - Threads of pools run callbacks, operations that must wait before they begin, spawned operations that have waited
//!   for a page, calls for futures, and the closing of files (`pools`).
//! - In an array with drive threads, each of them does the I/O of all operations on its drive (`drive::threads`).
//!
//! Rules of spawned operations:
//!
//! - A spawned operation belongs to itself. It holds its file and its buffers until its end, even if its future is
//!   dropped.
//! - One thread at a time polls it. A wake during a poll makes that thread poll once more.
//! - The thread that wakes an operation polls it: the thread that brings the end of its last piece, or a thread of the
//!   pool `resumes`.
//! - The memory of pieces stays until all pieces have ended. A `Landing` that is dropped waits for them, also in a
//!   panic.
//!
//! # Two kinds of contexts
//!
//! All I/O is advanced in contexts: engines with the queues of all drives.
//!
//! | | inline | shared |
//! |---|---|---|
//! | used by | blocking calls | futures, callbacks, read-ahead |
//! | engines | one set per calling thread | one set per thread that begins operations, one for the background |
//! | advanced by | the call itself, until its pieces have ended | any thread, one at a time |
//! | cost besides the I/O | none: nothing is handed over | a lock; a wake only if all threads sleep elsewhere |
//!
//! Every engine can be shared. With drive threads (`Tuning::drive_threads`) a context has one engine for all
//! drives, which hands requests to a thread per drive (`drive::threads`). This room only starts and ends these threads.
//!
//! The background flusher and the calls of `File::background` have a class of their own. Of the pieces of this class in
//! a context, at most a quarter of a drive's slots are in flight.
//!
//! Drives may be added while calls run (`Exec::add_drive`), and are never removed. An operation begins on a file after
//! the file's drive was added. So a thread compares the number of drives with that of its engines before each use, and
//! makes its engines again if drives were added.
//!
//! # Shared contexts
//!
//! An asynchronous operation begins its I/O on engines of the thread that began it. After that the thread may do
//! anything: poll others, compute for a second, end. No end depends on it, because any thread may take the context's
//! lock and a *turn*: it sends the pieces that wait, and brings the ends of all operations in the context. The rules
//! are at the top of `shared.rs`. Models check the rule that no operation is left alone.
//!
//! The next turn is taken by one of these:
//!
//! - a poll: each poll of an operation that has not ended;
//! - `block_on`, and a thread of `callbacks` or `begins`: before it sleeps, and when a descriptor of its contexts is
//!   readable;
//! - a blocking call: while it waits for another operation's page, a file's gate, a block's lock or bounce memory;
//! - the reaper: when an armed context has an end that no other thread has brought, and every 5 ms in a context with
//!   unfinished work, if no other thread has;
//! - a task of a tokio runtime that drives: when a context that was polled on its threads has an end.
//!
//! Then these hold:
//!
//! - A read with a callback, of one page or without a cache, is posted to the context of the host: the first thread of
//!   `callbacks` (`SharedCell::post`). So the thread that submits makes no system call for it, and does not wait for
//!   the context's lock. If the host is in a user's callback, the reaper sends the read, at most 5 ms after it was
//!   posted. If 512 reads wait for the host, further ones begin in the contexts of their threads.
//! - A read of one page may wait for others of its thread, so that one system call sends up to 32. Its first poll asks
//!   for one more poll. The second poll sends the read. Without a second poll the reaper sends it, at most 5 ms after
//!   it was made. If recent batches had only one read, the read is sent at its first poll, and only every 32nd read
//!   waits.
//! - So an operation needs no poll to end, and a thread that waits for it need not know of it. A poll, and the blocked
//!   thread itself, make it end sooner.
//! - An operation asks once for its thread's context, and its future keeps that one. A thread that has a context keeps
//!   it, even if another thread is refused one.
//! - A refusal, such as one for lack of a descriptor, is temporary. It concerns the thread that was refused, which asks
//!   again at its next calls (`sys/retry.rs`). Meanwhile its operations begin in the context of another thread. If
//!   there is none, they fail before they begin.
//! - The ends are reported without the lock, by the outermost turn: an end may begin I/O that brings the next end
//!   (`telling.rs`).
//! - A ring that any thread may use costs the kernel more than one that only its thread uses. So blocking calls have
//!   rings of their own.
//! - When a thread ends, another thread gets its context.
//! - A descriptor signals ends: the ring's, or an event descriptor that the kernel (libaio) or a worker (posix) sets. A
//!   turn waits for no drive. So a context reads mapped parts by workers, unless the drive is memory. It uses posix
//!   instead of libaio where `io_submit` would do each request before it returns, which is without direct I/O. It does
//!   not poll the device.
//! - If a future is dropped, the reaper brings its operation to the end.
//! - A `block_on` within a poll of another one looks again after its turns: the outer one takes no turn before the
//!   inner one has ended.
//! - A call that makes a future, and a poll, wait for nothing. If the operation would wait, it begins on a thread of
//!   `begins`: at a closed gate, or if a file must be made longer first.
//!
//! ## What may be waited for
//!
//! For each wait of a thread or an operation, some running thread ends it. The rules in brackets are those of
//! `shared.rs`.
//!
//! - *The lock of a block, or bounce memory, held by pieces in a blocking call.* That call runs, and ends the wait by
//!   itself.
//! - *The same, held by pieces in a shared context* (for bounce memory, of any array). The blocked call or the reaper
//!   takes the turns of all contexts (rule 6).
//! - *A page that an operation in a shared context fills or flushes.* A blocking call takes turns. For a spawned
//!   operation the reaper does (rules 4 and 5).
//! - *A file's gate, a file's end, a smaller cache*, held by operations inside the file or with frames. The waiting
//!   call takes turns of all contexts.
//! - *Room for growth*, which another call makes. That call is a running thread. A future that would wait begins on a
//!   thread of `begins`.
//! - *Anything else*, such as a user's own lock, held by operations that no poll advances. The reaper takes turns (rule
//!   7).
//!
//! # Pools
//!
//! Jobs of one kind must not wait behind jobs of another, so there are seven pools:
//!
//! - `callbacks` runs users' callbacks. It takes the turns of its own contexts, where callbacks begin more I/O, and
//!   other threads post reads with callbacks. Callbacks may take as long as they like, also until other calls have
//!   ended. Meanwhile the reaper takes these turns, and no operation waits for this pool.
//! - `begins` begins operations that wait to enter a file. It takes the turns of its own contexts, too.
//! - `changes` makes changes of the catalog for futures, in turns. One thread makes them all, so they share writes and
//!   fsyncs. It waits for the drives of small contents.
//! - `waits` runs calls for futures that wait for drives: syncs, lengths, large contents. A slow drive delays no other
//!   file, and a large content delays no change.
//! - `opens` opens files for futures. An opening is short, and large contents are long.
//! - `resumes` polls operations inside a file that have waited for a page. They must end before the file's gate can
//!   close.
//! - `closes` closes files and arrays. Their fsyncs may take long.
//!
//! The threads of a pool start when they are first needed, and share one queue. `callbacks`, `begins` and `resumes`
//! have one thread for each NUMA node. One thread at a time works for `changes`. `closes` starts another thread, up to
//! four, when a file is to be closed while all others are busy. So a slow drive delays no other file. `waits` does the
//! same with up to 16 threads, and `opens` with up to eight.
//!
//! # Users' code
//!
//! The rules are at the top of `pools.rs`.
//!
//! - No thread of the library waits for users' code, and users' code waits for no drive: in callbacks and wakers each
//!   call that waits is an error.
//! - A waker may begin I/O, and may run in a turn of any thread. If the file's gate is closed, a thread of `begins`
//!   begins the I/O. So an executor may poll inside `wake`.
//! - The last hold on a file closes the file, except in a turn: there a piece may hold the block lock that a flush
//!   needs. It does not close the file on a pool thread either, if jobs of that pool wait for each other. In both cases
//!   a thread of `closes` closes the file.
//!
//! # Without threads
//!
//! A simulation has no threads. A call that waits advances what it waits for: first pools, then contexts, then the
//! clock.
//!
//! # Forks
//!
//! A forked child has a copy of the parent's memory, but none of its threads. It shares the parent's descriptors:
//! locks, rings, the file of counters. So a call of the child would undo changes that the parent has made since.
//! Therefore a child cannot use a file or array that was opened before the fork. It opens again the files that are open
//! for reading (`api::child`).
//!
//! Rules of the fork:
//! 1. Every call asks `check_home` before it takes a lock. A thread that the child does not have may hold the lock.
//! 2. A destructor that takes locks, wakes threads or touches shared memory asks first. In a child it changes nothing.
//! 3. A value with such parts is not dropped in a child: each handle leaves its share of the count behind.
//! 4. A hit in the cache asks nothing. It finds its thread's state by `local::LAST`, which the C library has cleared in
//!    the child (`local::forget_in_child`).

pub mod block_on;
pub mod cell;
mod cell_for;
pub mod contexts;
mod end;
mod forget;
mod inline;
mod io;
mod page_write;
mod pages;
mod pause;
pub mod pools;
mod promise;
mod queued;
mod reaper;
pub mod refusal;
pub mod roles;
mod runner;
pub mod shared;
pub mod task;
mod telling;
#[cfg(feature = "tokio")]
pub mod tokio;
#[cfg(feature = "tokio")]
mod tokio_task;
pub mod turns;
pub mod users_code;

pub use crate::drive::regions::Within;
pub use end::End;
pub use io::{FirstFailure, Io, Landing, Sink, both, failure};
pub use page_write::PageWrite;
pub use promise::{Promise, Promised, promise};
pub use queued::QueuedCall;
pub use runner::{CpusOfDrives, Exec, Setup, drop_where_it_may_wait, next_instance};

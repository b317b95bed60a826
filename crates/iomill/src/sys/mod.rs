//! The edge to the kernel: memory, files, devices, CPUs. Nearly all `unsafe` code outside engines is here. Non-goals:
//! the machine's description in sysfs and procfs, which `iomill-platform` reads.
//!
//! - `fs.rs`, `real_fs.rs`, `plain_fs.rs`: `DriveFs`: the file operations of the catalog and the parts; the real ones;
//!   one plain file.
//! - `calls.rs`, `versions.rs`: the operations on an open file that both have; what distinguishes two contents of a
//!   file.
//! - `descriptor.rs`: descriptors above 2.
//! - `memory.rs`, `memory/slab.rs`: page-aligned memory; reservations that grow and shrink.
//! - `sync.rs`, `barrier.rs`: mutexes and atomics, loom's in models; fences of unequal cost.
//! - `copy.rs`: the only place that copies bytes which may change; copies of pages.
//! - `fair.rs`: a mutex that serves in order, for locks that are held during I/O.
//! - `parker.rs`, `event.rs`: how a thread sleeps on descriptors and is woken.
//! - `fsyncs.rs`: which fsync of a file covers a write, where many callers write to one file.
//! - `process.rs`, `holder.rs`: the identity of this process, and one value per process; the process that holds a
//!   file's lock.
//! - `grown.rs`: a list that only grows, read without a lock.
//! - `hash.rs`: hashes of numbers, for maps.
//! - `retry.rs`: when to repeat a request that the system refused.
//! - `cpu.rs`, `topology.rs`, `thread.rs`: CPUs of threads, nodes as an array sees them, threads of the library.
//! - `neighbours.rs`, `limits.rs`: where drives may be; limits of memory.
//! - `clock.rs`: time, as a trait.
//! - `notices.rs`, `events.rs`: notices, for facts that a user needs and no call returns; events of the feature
//!   `tracing`.
//! - `errno.rs`: what an errno means: one table for all engines.
//!
//! - `DriveFs` never follows a symbolic link, and never leaves `<drive>/iomill`. Files have mode 1600 and directories
//!   0700. A file made by root gets the owner of the directory.
//! - A plain file is found by a descriptor that opens nothing. The kernel says what that descriptor is, and the file is
//!   opened by the descriptor's number. A path is text, and the text of a magic link is no path. Without `/proc` the
//!   path is opened, and the result is compared with what was found.
//! - Descriptors 0 to 2 belong to the program, also when it has closed them. The number of a ring's descriptor cannot
//!   be changed, so event descriptors occupy the low numbers while a ring is made.
//! - `barrier` lets the frequent side of a protocol use a cheap fence. The rare side pays for both with `membarrier`.
//!   Pins and mapped parts use it.
//! - `sync::lock` ignores a poisoned mutex. Holders change data in whole steps, so the data is valid at every moment.
//! - zram overwrites the bytes before a buffer that begins within a page, also below md or a mapped device. So a device
//!   with blocks of a page, or of an unknown size, gets whole pages of memory, whatever the kernel says. On a 4Kn drive
//!   a buffer that is aligned to 512 bytes costs a copy.

pub mod barrier;
mod calls;
pub mod clock;
pub mod copy;
pub mod cpu;
pub mod descriptor;
pub mod errno;
pub mod event;
pub mod events;
pub mod fair;
pub mod fs;
pub mod fsyncs;
pub mod grown;
pub mod hash;
pub mod holder;
pub mod limits;
pub mod memory;
pub mod neighbours;
pub mod notices;
pub mod parker;
pub mod plain_fs;
pub mod process;
#[cfg(test)]
pub mod property;
pub mod real_fs;
pub mod retry;
pub mod sync;
pub mod thread;
pub mod topology;
pub mod versions;

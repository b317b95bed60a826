//! Whole programs as loads, on iomill and on its rivals, each with the same memory.
//!
//! The programs are the examples of the library (`crates/iomill/examples`), compiled here with other stores of their
//! bytes. Each contender runs in a process of its own, in a memory group: what it keeps for itself, and the memory for
//! the data, which is the same for all. The results of a program must be equal for all contenders.
//!
//! Goals: figures of loads as users have them. Non-goals: single calls, which `iomill-contenders` measures.

mod bytes;
mod child;
mod fleet;
mod kv;
mod loads;
mod stores;

use std::error::Error;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub use child::serve;
pub use fleet::{Figures, Outcome, Settings, run};
pub use loads::Load;

/// A result of any error.
type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// A way to hold the data of a load.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub enum Contender {
    /// A file of an array over all drives, with a cache.
    Iomill,
    /// A mapped file, read and written by one thread or by as many as the load has.
    Mmap,
    /// The same with 16 threads.
    Mmap16,
    /// A plain file in the page cache, read and written by 16 threads.
    Pread16,
    /// The same with 256 threads.
    Pread256,
    /// A plain file without a cache, read by a loop of io_uring.
    Uring,
    /// A key-value store of others.
    RocksDb,
    /// A key-value store of others.
    Lmdb,
    /// A key-value store of others.
    WiredTiger,
    /// A key-value store of others.
    Redb,
}

impl Contender {
    /// All of them, in the order of tables.
    pub const ALL: [Contender; 10] = [
        Contender::Iomill,
        Contender::Mmap,
        Contender::Mmap16,
        Contender::Pread16,
        Contender::Pread256,
        Contender::Uring,
        Contender::RocksDb,
        Contender::Lmdb,
        Contender::WiredTiger,
        Contender::Redb,
    ];

    /// The name in tables and documents.
    pub fn name(self) -> &'static str {
        match self {
            Contender::Iomill => "iomill",
            Contender::Mmap => "mmap",
            Contender::Mmap16 => "mmap-16",
            Contender::Pread16 => "pread-16",
            Contender::Pread256 => "pread-256",
            Contender::Uring => "uring-by-hand",
            Contender::RocksDb => "rocksdb",
            Contender::Lmdb => "lmdb",
            Contender::WiredTiger => "wiredtiger",
            Contender::Redb => "redb",
        }
    }

    /// The name of what lies on the drives. Contenders that only read share one file.
    fn storage(self, is_changed: bool) -> &'static str {
        match self {
            Contender::Iomill => "array",
            Contender::Mmap | Contender::Mmap16 | Contender::Pread16 | Contender::Pread256 | Contender::Uring
                if !is_changed =>
            {
                "flat"
            }
            other => other.name(),
        }
    }
}

/// The work of a process with a load.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct Job {
    load: Load,
    contender: Contender,
    /// Directories of the array's drives.
    drives: Vec<PathBuf>,
    /// A directory for the data of rivals, and for common data.
    place: PathBuf,
    /// Bytes of the load's data, about.
    size_bytes: u64,
    /// Memory for the data.
    cache_bytes: u64,
    /// Whether it makes the data. Else it runs the load on them.
    makes: bool,
    /// Another seed makes other requests.
    seed: u64,
}

/// A part of a load that was timed.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct Measure {
    name: String,
    /// The name of the counted operations.
    unit: String,
    operations: u64,
    seconds: f64,
    cpu_seconds: f64,
    /// The result of the program, equal for all contenders. `None` if it depends on a race of threads.
    digest: Option<u64>,
}

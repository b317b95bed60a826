//! A job of a process: a load, its contender, and the measures that it returns.

use std::error::Error;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A result of any error.
pub type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// A program that is a load.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub enum Load {
    /// A key-value store under the loads of YCSB.
    Kv,
    /// Graph algorithms with the lists of neighbours on drives.
    Graph,
    /// Unaligned small writes from 16 threads.
    Labels,
    /// Vector search with the vectors on drives.
    Vectors,
    /// Shuffled epochs over rows.
    Train,
}

impl Load {
    /// All of them.
    pub const ALL: [Load; 5] = [Load::Kv, Load::Graph, Load::Labels, Load::Vectors, Load::Train];

    /// The name in tables and documents.
    pub fn name(self) -> &'static str {
        match self {
            Load::Kv => "kv",
            Load::Graph => "graph",
            Load::Labels => "labels",
            Load::Vectors => "vectors",
            Load::Train => "train",
        }
    }

    /// The contenders that take part.
    pub fn contenders(self) -> &'static [Contender] {
        use Contender::{Iomill, Lmdb, Mmap, Mmap16, Pread16, Pread256, Redb, RocksDb, Uring, WiredTiger};
        match self {
            Load::Kv => &[Iomill, Mmap, Pread16, RocksDb, Lmdb, WiredTiger, Redb],
            Load::Graph => &[Iomill, Mmap16, Pread16, Pread256],
            Load::Labels => &[Iomill, Mmap, Pread16],
            Load::Vectors => &[Iomill, Mmap, Mmap16, Pread16, Pread256, Uring],
            Load::Train => &[Iomill, Mmap, Mmap16, Pread16, Pread256],
        }
    }

    /// The ratio of the data to the memory.
    pub fn share(self) -> u64 {
        if self == Load::Train { 4 } else { 8 }
    }

    /// The most memory that its program uses while it runs, besides its memory when the data are open.
    pub fn own_bytes(self, size_bytes: u64) -> u64 {
        // Buffers, stacks, rings and lists.
        let usual = 16 << 20;
        match self {
            // About 24 bytes for each vertex; its lists take 128.
            Load::Graph => usual + size_bytes / 128 * 24,
            // Each of 16 threads scans up to 100 pages.
            Load::Kv => usual + (8 << 20),
            _ => usual,
        }
    }

    /// Whether it changes its data, so that each contender needs a copy of its own.
    pub fn is_changed(self) -> bool {
        matches!(self, Load::Kv | Load::Labels)
    }
}

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

    /// The name of the files on the drives. Contenders that only read share one file.
    pub fn storage(self, is_changed: bool) -> &'static str {
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
pub struct Job {
    pub load: Load,
    pub contender: Contender,
    /// Directories of the array's drives.
    pub drives: Vec<PathBuf>,
    /// A directory for the data of rivals, and for common data.
    pub place: PathBuf,
    /// Approximate bytes of the load's data.
    pub size_bytes: u64,
    /// Memory for the data.
    pub cache_bytes: u64,
    /// Whether it makes the data. Otherwise it runs the load on them.
    pub makes: bool,
    /// Another seed makes other requests.
    pub seed: u64,
}

/// A timed part of a load.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Measure {
    pub name: String,
    /// The name of the counted operations.
    pub unit: String,
    pub operations: u64,
    pub seconds: f64,
    pub cpu_seconds: f64,
    /// The result of the program, equal for all contenders. `None` if it depends on a race of threads.
    pub digest: Option<u64>,
}

//! The contenders of a measurement: iomill's ways of reading, and its rivals.
//!
//! Goals: one short trait, so that all readers and writers of the target's bytes can be compared. Non-goals: order of
//! turns and statistics ([`crate::rounds`]).

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use hdrhistogram::Histogram;
use iomill::{Error, Result};

use crate::seen::{Own, Seen};
use crate::workload::Workload;

/// iomill: each calling thread drives its own ring.
pub const IOMILL_INLINE: &str = "iomill-inline";
/// iomill: one I/O thread per drive.
pub const IOMILL_DRIVE_THREADS: &str = "iomill-drive-threads";
/// iomill over an engine that does nothing: the overhead of iomill alone.
pub const IOMILL_NULL: &str = "iomill-null";
/// iomill with its cache: one call per read.
pub const IOMILL_READ_AT: &str = "iomill-read_at";
/// The same without read-ahead.
pub const IOMILL_READ_AT_NO_READ_AHEAD: &str = "iomill-read_at-no-read-ahead";
/// iomill with its cache: one pin per read.
pub const IOMILL_PIN: &str = "iomill-pin";
/// iomill with its cache: gathers.
pub const IOMILL_READ_MANY: &str = "iomill-read_many";
/// iomill with its cache: gathers of rows by their numbers.
pub const IOMILL_READ_ROWS: &str = "iomill-read_rows";
/// iomill with its cache: one call per write.
pub const IOMILL_WRITE_AT: &str = "iomill-write_at";
/// iomill's futures on a plain loop, with one in flight from each thread.
pub const IOMILL_FUTURE_1: &str = "iomill-future-1";
/// The same with 64 in flight.
pub const IOMILL_FUTURE_64: &str = "iomill-future-64";
/// The same with 512 in flight.
pub const IOMILL_FUTURE_512: &str = "iomill-future-512";
/// 64 in flight, into memory that is not registered with the engines.
pub const IOMILL_FUTURE_64_PLAIN: &str = "iomill-future-plain-64";
/// iomill's callbacks, with one in flight from each thread.
pub const IOMILL_CALLBACK_1: &str = "iomill-callback-1";
/// The same with 64 in flight.
pub const IOMILL_CALLBACK_64: &str = "iomill-callback-64";
/// The same with 512 in flight.
pub const IOMILL_CALLBACK_512: &str = "iomill-callback-512";
/// Reads with a callback that begins the lane's next read, 1 in flight.
pub const IOMILL_CHAIN_1: &str = "iomill-chain-1";
/// The same, 64 in flight.
pub const IOMILL_CHAIN_64: &str = "iomill-chain-64";
/// The same, 512 in flight.
pub const IOMILL_CHAIN_512: &str = "iomill-chain-512";
/// New files in an array, durable.
pub const IOMILL_CREATE: &str = "iomill-create";
/// New plain files, each with an fsync and one of its directory.
pub const PLAIN_CREATE: &str = "plain-create";
/// Small files in an array with one copy of the catalog.
pub const IOMILL_1_COPY: &str = "iomill-1-copy";
/// Small files in an array with three copies of the catalog.
pub const IOMILL_3_COPIES: &str = "iomill-3-copies";
/// The same with one copy, by futures.
pub const IOMILL_FUTURES: &str = "iomill-futures";
/// The same with one copy, and changes of names that wait for no sync.
pub const IOMILL_NO_SYNC: &str = "iomill-no-sync";
/// Small plain files, each change with fsyncs.
pub const PLAIN_FILES: &str = "plain-files";
/// Rows of a table of SQLite, one for each file.
pub const SQLITE: &str = "sqlite";
/// Entries of a table of the crate redb, one for each file.
pub const REDB: &str = "redb";
/// io_uring by hand.
pub const URING_BY_HAND: &str = "uring-by-hand";
/// io_uring by hand, into memory that is not registered with the ring.
pub const URING_BY_HAND_PLAIN: &str = "uring-by-hand-plain";
/// libaio by hand.
pub const AIO_BY_HAND: &str = "aio-by-hand";
/// `pread` through the page cache.
pub const PREAD: &str = "pread";
/// Mapped files.
pub const MMAP: &str = "mmap";
/// Mapped files with the advice that reads are random. Only where files without the advice are also measured.
pub const MMAP_RANDOM: &str = "mmap-random";
/// Mapped files with mappings of 4 KiB only. A mapped file gets these when its pages are scattered in memory.
pub const MMAP_SMALL_PAGES: &str = "mmap-small-pages";
/// The engine that maps parts, without the rest of iomill.
pub const MMAP_ENGINE: &str = "mmap-engine";
/// The same engine by system calls, as while a part cannot be mapped.
pub const MMAP_ENGINE_AROUND: &str = "mmap-engine-by-system-calls";
/// Copies that the kernel makes from a mapping.
pub const PROCESS_VM_READV: &str = "process_vm_readv";
/// fio's io_uring engine as it is usually run: direct, with an I/O depth.
pub const FIO_IO_URING: &str = "fio-io_uring";
/// The crate quick_cache as a cache of pages.
pub const QUICK_CACHE: &str = "quick_cache";
/// The crate moka as a cache of pages.
pub const MOKA: &str = "moka";
/// The crate foyer as a cache of pages.
pub const FOYER: &str = "foyer";
/// Reads of the parts by the runtimes compio and monoio, each over rings of its own, with direct I/O; and by the files
/// of the crate tokio, cold.
pub const UNCACHED: &[&str] = &[
    "compio-1",
    "compio-64",
    "compio-512",
    "monoio-1",
    "monoio-64",
    "monoio-512",
    "tokio-fs-1",
    "tokio-fs-64",
    "tokio-fs-512",
];
/// The files of the crate tokio, warm.
pub const TOKIO_FS: &str = "tokio-fs";
/// `pwrite` through the page cache.
pub const PWRITE: &str = "pwrite";
/// fio's io_uring engine with all options that make it cheaper: registered files and buffers, batches, no time stamps.
pub const FIO_IO_URING_TUNED: &str = "fio-io_uring-tuned";

/// The cache between a contender and the drives. Comparisons are made among the `Warm` contenders and among all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cache {
    /// Direct I/O, without a cache: there is no warm and no cold.
    Direct,
    /// A cache that is emptied before each slice. A slice requests no block twice.
    Cold,
    /// A cache that holds all bytes before each slice.
    Warm,
    /// A cache of a given size, full when a slice starts, and too small for the data of the slice.
    Held,
}

impl Cache {
    /// Stable name for reports.
    pub fn name(self) -> &'static str {
        match self {
            Cache::Direct => "direct",
            Cache::Cold => "cold",
            Cache::Warm => "warm",
            Cache::Held => "held",
        }
    }
}

/// One timed run.
#[derive(Clone, Copy, Debug)]
pub struct Slice<'a> {
    /// Threads that work at the same time.
    pub threads: usize,
    /// The length of the slice. A cold slice ends earlier when it has read every block.
    pub duration: Duration,
    /// Checks the bytes of every read. Not for timing.
    pub verify: bool,
    /// When set, the slice ends soon and its sample is worthless.
    pub cancel: &'a AtomicBool,
}

/// The figures of one slice.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Operations completed.
    pub ops: u64,
    /// Bytes that these operations moved.
    pub bytes: u64,
    /// From the common start of the threads to the end of the last thread.
    pub wall: Duration,
    /// User and system time of all threads that took part, within `wall`.
    pub cpu_us: f64,
    /// Bytes that were read from drives for these operations; `None` if the kernel does not count them.
    pub fetched_bytes: Option<u64>,
    /// Latencies of a sample of the operations in nanoseconds.
    pub latency_ns: Histogram<u64>,
    /// The counts of its threads; `None` if the contender does not report them.
    pub seen: Option<Seen>,
    /// The counts of the contender's own cache, if it has one that counts.
    pub own: Option<Own>,
    /// For contenders with a limited cache: the share of its memory in use, 0 to 1.
    pub filled: Option<f64>,
}

impl Sample {
    /// A sample of nothing.
    pub fn empty() -> Result<Sample> {
        Ok(Sample {
            ops: 0,
            bytes: 0,
            wall: Duration::ZERO,
            cpu_us: 0.0,
            fetched_bytes: None,
            latency_ns: latencies()?,
            seen: None,
            own: None,
            filled: None,
        })
    }

    /// Operations per second.
    pub fn ops_per_s(&self) -> f64 {
        self.ops as f64 / self.wall.as_secs_f64().max(1e-9)
    }

    /// CPU time per operation in microseconds.
    pub fn cpu_us_per_op(&self) -> f64 {
        self.cpu_us / self.ops.max(1) as f64
    }
}

/// An empty histogram of latencies in nanoseconds: up to a minute, three digits. Record with `saturating_record`.
pub fn latencies() -> Result<Histogram<u64>> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3)
        .map_err(|e| Error::Tool { what: "a histogram of latencies".into(), why: e.to_string() })
}

/// A contender in a measurement.
pub trait Contender<T = Workload> {
    /// Its name in reports; one of the constants of this module.
    fn name(&self) -> &'static str;

    /// The cache between it and the drives. Each slice is checked for it: see [`crate::state`].
    fn cache(&self) -> Cache;

    /// Prepares for a workload; called once before its slices. `Ok(Some(why))` leaves the contender out: it cannot run
    /// this workload, or not in a comparable way.
    fn prepare(&mut self, workload: &T) -> Result<Option<String>>;

    /// The memory of the operations that a measuring thread has in flight, in bytes, for the prepared workload. Those
    /// that need too much are left out: the kernel would kill the whole measurement.
    fn bytes_in_flight(&self) -> u64 {
        0
    }

    /// Runs one slice of the prepared workload, after [`crate::target::Target::drop_cached`] unless the contender is
    /// warm. An error is a failed or wrong I/O, and ends the measurement.
    fn run(&mut self, slice: &Slice<'_>) -> Result<Sample>;

    /// The reason why it can take no further part after [`Contender::run`] has failed, for example because its process
    /// was killed. The measurement then leaves it out and continues with the others.
    fn lost(&self) -> Option<String> {
        None
    }

    /// Whether a slice leaves other bytes than the pattern. Such a contender runs after all slices that verify.
    fn spoils(&self) -> bool {
        false
    }

    /// Important facts for a reader of its figures.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }
}

//! [`Options`] of a cache, and [`Revalidate`]. Non-goals: their effects.

use std::path::PathBuf;
use std::time::Duration;

use iomill::Runtime;

/// Rule F1: how long a call waits for another call, which may never be polled.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// When a call asks the origin for the version of an object again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Revalidate {
    /// In each call. A call with a miss asks by its GET. A call without a miss asks for the object's head, and fetches
    /// nothing else.
    Always,
    /// When the last answer is older than this. So a call may see a change by another process as late as this.
    After(Duration),
    /// Never: objects do not change. A program that replaces an object through the same store sees the new one. If the
    /// known length does not fit a call, the call asks.
    Never,
}

/// The costs of a request, which decide which misses become one GET.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Cost {
    /// The time from a request to its first byte.
    pub latency: Duration,
    /// The bandwidth of all requests together, in bytes per second.
    pub bytes_per_second: u64,
    /// A gap up to this length is always fetched, because a request also has a price.
    pub gap_bytes: u64,
    /// The most bytes of one GET.
    pub get_bytes: u64,
    /// The most GETs in flight.
    pub in_flight: usize,
    /// The time after which a GET is sent a second time. The first answer counts.
    pub hedge_after: Option<Duration>,
}

impl Default for Cost {
    fn default() -> Self {
        Cost {
            latency: Duration::from_millis(20),
            bytes_per_second: 1 << 30,
            gap_bytes: 16 << 10,
            get_bytes: 8 << 20,
            in_flight: 64,
            hedge_after: None,
        }
    }
}

impl Cost {
    /// The time from a request to its first byte: 20 ms by default.
    pub fn latency(mut self, latency: Duration) -> Cost {
        self.latency = latency;
        self
    }

    /// The bandwidth of all requests together, in bytes per second: 1 GiB by default.
    pub fn bytes_per_second(mut self, bytes: u64) -> Cost {
        self.bytes_per_second = bytes;
        self
    }

    /// A gap up to this length is always fetched: 16 KiB by default.
    pub fn gap_bytes(mut self, bytes: u64) -> Cost {
        self.gap_bytes = bytes;
        self
    }

    /// The most bytes of one GET: 8 MiB by default.
    pub fn get_bytes(mut self, bytes: u64) -> Cost {
        self.get_bytes = bytes;
        self
    }

    /// Sends a GET a second time after this time, and takes the first answer: never by default. A good time is the one
    /// within which 95 of 100 GETs end. At most a tenth of all GETs are sent twice, so that an origin that is slow as a
    /// whole does not get twice as many requests.
    pub fn hedge_after(mut self, time: Duration) -> Cost {
        self.hedge_after = Some(time);
        self
    }

    /// The most GETs in flight: 64 by default.
    pub fn in_flight(mut self, gets: usize) -> Cost {
        self.in_flight = gets;
        self
    }
}

/// The options for opening a cache. The lengths of granules and regions, and the bytes, count when a directory becomes
/// a drive. The drive keeps them.
#[derive(Clone, Debug)]
pub struct Options {
    pub(crate) bytes: Option<u64>,
    pub(crate) granule_bytes: u32,
    pub(crate) region_bytes: Option<u64>,
    pub(crate) index_dir: PathBuf,
    pub(crate) runtime: Option<Runtime>,
    pub(crate) memory_bytes: Option<u64>,
    pub(crate) revalidate: Vec<(String, Revalidate)>,
    pub(crate) by_time: bool,
    pub(crate) cost: Cost,
    pub(crate) fill_bytes: u64,
    pub(crate) wait_for_others: Duration,
    pub(crate) open_within: Duration,
    pub(crate) read_within: Duration,
    pub(crate) write_within: Duration,
    pub(crate) on_root: bool,
    pub(crate) anew: bool,
    pub(crate) admit: f64,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            bytes: None,
            granule_bytes: 16 << 10,
            region_bytes: None,
            index_dir: "/dev/shm".into(),
            runtime: None,
            memory_bytes: None,
            revalidate: Vec::new(),
            by_time: false,
            cost: Cost::default(),
            fill_bytes: 64 << 20,
            wait_for_others: Duration::from_millis(250),
            open_within: Duration::from_secs(30),
            read_within: Duration::from_secs(1),
            write_within: Duration::from_secs(5),
            on_root: false,
            anew: false,
            admit: 1.0,
        }
    }
}

impl Options {
    /// The defaults.
    pub fn new() -> Options {
        Options::default()
    }

    /// Bytes on all drives together, in equal shares. By default three quarters of the free space of each file system.
    pub fn bytes(mut self, bytes: u64) -> Options {
        self.bytes = Some(bytes);
        self
    }

    /// The length of a granule: a power of two from 4096 to 65,536, by default 16,384.
    pub fn granule_bytes(mut self, bytes: u32) -> Options {
        self.granule_bytes = bytes;
        self
    }

    /// The length of a region. By default a 256th of the drive's share, and from 1 to 64 MiB.
    pub fn region_bytes(mut self, bytes: u64) -> Options {
        self.region_bytes = Some(bytes);
        self
    }

    /// The directory of the index that the processes of a machine share. It is memory: `/dev/shm` by default.
    pub fn index_dir(mut self, dir: impl Into<PathBuf>) -> Options {
        self.index_dir = dir.into();
        self
    }

    /// The runtime that reads the drives. Its page cache keeps hot pages in memory. By default the cache has a runtime
    /// of its own.
    pub fn runtime(mut self, runtime: &Runtime) -> Options {
        self.runtime = Some(runtime.clone());
        self
    }

    /// Memory for hot pages, in bytes, if the cache has a runtime of its own. By default that of a runtime.
    pub fn memory_bytes(mut self, bytes: u64) -> Options {
        self.memory_bytes = Some(bytes);
        self
    }

    /// When a call asks for the version of objects with this prefix again. The longest prefix counts. It is text, and
    /// need not end at a segment. The default is [`Revalidate::Always`], also for the prefix `""`.
    pub fn revalidate(mut self, prefix: impl Into<String>, when: Revalidate) -> Options {
        self.revalidate.push((prefix.into(), when));
        self
    }

    /// Whether size and time identify objects without etag and version. By default such objects are not cached, because
    /// two contents may have the same time.
    pub fn by_time(mut self, by_time: bool) -> Options {
        self.by_time = by_time;
        self
    }

    /// The costs of a request.
    pub fn cost(mut self, cost: Cost) -> Options {
        self.cost = cost;
        self
    }

    /// Memory for granules that wait to be written, in bytes: 64 MiB by default. If they need more, new ones are
    /// dropped.
    pub fn fill_bytes(mut self, bytes: u64) -> Options {
        self.fill_bytes = bytes;
        self
    }

    /// How long a call waits for a granule that another process fetches, before it fetches the granule itself: 250 ms
    /// by default.
    pub fn wait_for_others(mut self, most: Duration) -> Options {
        self.wait_for_others = most;
        self
    }

    /// The bound of the opening of one drive: 30 s by default. The cache continues without a slower drive, and
    /// [`crate::Cache::notices`] has it. It is also the bound of the first call of a forked child, which opens the
    /// drives again.
    pub fn open_within(mut self, most: Duration) -> Options {
        self.open_within = most;
        self
    }

    /// How long a call waits for the reads of one drive: 1 s by default. Pages that are not read by then are misses,
    /// and are fetched from the origin.
    pub fn read_within(mut self, most: Duration) -> Options {
        self.read_within = most;
        self
    }

    /// The bound of one write to a drive: 5 s by default. No call waits longer for it. After the bound, fills of the
    /// drive are dropped, and flushes and the end of the cache do not wait for it. If a write takes 8 times as long,
    /// this process stops using the drive.
    pub fn write_within(mut self, most: Duration) -> Options {
        self.write_within = most;
        self
    }

    /// Whether a directory on the file system of `/` may become a drive. By default it may not: the mount point of an
    /// unmounted drive is there. An existing drive is opened anywhere.
    pub fn on_root(mut self, on_root: bool) -> Options {
        self.on_root = on_root;
        self
    }

    /// Whether a directory that was a drive of the cache, and is empty now, may become one again. By default it may
    /// not: its drive is not mounted, or was exchanged.
    pub fn anew(mut self, anew: bool) -> Options {
        self.anew = anew;
        self
    }

    /// The share of new granules that a full drive accepts: 1 by default. With a small share the cache keeps its
    /// granules under a load that reads more than the cache holds, again and again. Prefetched and pinned granules are
    /// always accepted.
    pub fn admit(mut self, share: f64) -> Options {
        self.admit = share;
        self
    }

    /// When a call asks for the version of this object again.
    pub(crate) fn when(&self, path: &str) -> Revalidate {
        let fitting = self.revalidate.iter().filter(|(prefix, _)| path.starts_with(prefix.as_str()));
        // Of two settings of one prefix, the later one counts.
        fitting.max_by_key(|(prefix, _)| prefix.len()).map_or(Revalidate::Always, |(_, when)| *when)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_prefix_counts() {
        let options = Options::new()
            .revalidate("data/", Revalidate::Never)
            .revalidate("", Revalidate::After(Duration::from_secs(1)))
            .revalidate("data/latest", Revalidate::Always);
        assert_eq!(options.when("data/x"), Revalidate::Never);
        assert_eq!(options.when("data/latest.json"), Revalidate::Always);
        assert_eq!(options.when("other"), Revalidate::After(Duration::from_secs(1)));
        assert_eq!(Options::new().when("x"), Revalidate::Always);
    }
}

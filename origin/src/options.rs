//! [`Options`] of a cache, and [`Revalidate`]. Non-goals: what follows from them.

use std::path::PathBuf;
use std::time::Duration;

use iomill::Runtime;

/// Rule F1: how long a call waits for another call, which perhaps nothing polls.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// When the version of an object is asked for again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Revalidate {
    /// In each call. A call with a miss asks by its GET. A call without one asks for the object's head, while nothing else is fetched.
    Always,
    /// When the last answer is older than this. A change by another process may be seen so much later.
    After(Duration),
    /// Never: objects do not change. A program that replaces one through the same store sees the new one.
    Never,
}

/// What a request costs, to decide which misses become one GET.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Cost {
    /// The time from a request to its first byte.
    pub latency: Duration,
    /// What all requests together bring in a second.
    pub bytes_per_second: u64,
    /// A gap up to this length is always fetched, because a request also has a price.
    pub gap_bytes: u64,
    /// Most bytes of one GET.
    pub get_bytes: u64,
    /// Most GETs in flight.
    pub in_flight: usize,
    /// The time after which a GET is sent a second time. The first answer of the two counts.
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

    /// What all requests together bring in a second: 1 GiB by default.
    pub fn bytes_per_second(mut self, bytes: u64) -> Cost {
        self.bytes_per_second = bytes;
        self
    }

    /// A gap up to this length is always fetched: 16 KiB by default.
    pub fn gap_bytes(mut self, bytes: u64) -> Cost {
        self.gap_bytes = bytes;
        self
    }

    /// Most bytes of one GET: 8 MiB by default.
    pub fn get_bytes(mut self, bytes: u64) -> Cost {
        self.get_bytes = bytes;
        self
    }

    /// Sends a GET a second time after this time, and takes the first answer of the two: never by default. A good time is one that 95 of 100 GETs do
    /// not take. At most a tenth of all GETs are sent twice, so that an origin that is slow as a whole is not asked for twice as much.
    pub fn hedge_after(mut self, time: Duration) -> Cost {
        self.hedge_after = Some(time);
        self
    }

    /// Most GETs in flight: 64 by default.
    pub fn in_flight(mut self, gets: usize) -> Cost {
        self.in_flight = gets;
        self
    }
}

/// What a cache is opened with. Lengths of granules and regions, and the bytes, count when a drive is used for the first time. The drive keeps them.
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

    /// Bytes on all drives together, in equal shares. By default three quarters of what each file system has free.
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

    /// The directory of the index that the processes of a node share. It is memory: `/dev/shm` by default.
    pub fn index_dir(mut self, dir: impl Into<PathBuf>) -> Options {
        self.index_dir = dir.into();
        self
    }

    /// The runtime that reads the drives. Its page cache keeps what is hot in memory. By default the cache has one of its own.
    pub fn runtime(mut self, runtime: &Runtime) -> Options {
        self.runtime = Some(runtime.clone());
        self
    }

    /// Memory for hot pages, in bytes, if the cache has a runtime of its own. By default as a runtime has it.
    pub fn memory_bytes(mut self, bytes: u64) -> Options {
        self.memory_bytes = Some(bytes);
        self
    }

    /// When the versions of objects with this prefix are asked for again. The longest prefix counts. It is text, and need not be whole segments. The
    /// default is [`Revalidate::Always`], also for the prefix `""`.
    pub fn revalidate(mut self, prefix: impl Into<String>, when: Revalidate) -> Options {
        self.revalidate.push((prefix.into(), when));
        self
    }

    /// Whether objects without etag and version are known by size and time. By default they are not cached, because two contents may have one time.
    pub fn by_time(mut self, by_time: bool) -> Options {
        self.by_time = by_time;
        self
    }

    /// What a request costs.
    pub fn cost(mut self, cost: Cost) -> Options {
        self.cost = cost;
        self
    }

    /// Memory for granules that wait to be written, in bytes: 64 MiB by default. Beyond it, fills are dropped.
    pub fn fill_bytes(mut self, bytes: u64) -> Options {
        self.fill_bytes = bytes;
        self
    }

    /// How long a call waits for a granule that another process fetches, before it fetches the granule itself: 250 ms by default.
    pub fn wait_for_others(mut self, most: Duration) -> Options {
        self.wait_for_others = most;
        self
    }

    /// How long one drive may take to be opened: 30 s by default. The cache goes on without one that takes longer, and [`crate::Cache::notices`] has it.
    /// It is also the bound of the first call of a forked child, which opens the drives again.
    pub fn open_within(mut self, most: Duration) -> Options {
        self.open_within = most;
        self
    }

    /// How long a call waits for the reads of one drive: 1 s by default. What has not come by then is a miss, and the origin is asked for it.
    pub fn read_within(mut self, most: Duration) -> Options {
        self.read_within = most;
        self
    }

    /// How long one write to a drive may take: 5 s by default. Nothing waits longer for it: fills of the drive are dropped meanwhile, and flushes and
    /// the end of the cache leave it to itself. A write that takes 8 times as long makes this process leave the drive out.
    pub fn write_within(mut self, most: Duration) -> Options {
        self.write_within = most;
        self
    }

    /// Whether a directory on the file system of `/` may become a drive. By default it may not: the directory of a drive that is not mounted is on
    /// it. What is a drive already is opened wherever it is.
    pub fn on_root(mut self, on_root: bool) -> Options {
        self.on_root = on_root;
        self
    }

    /// Whether a directory that has been a drive of the cache, and is empty now, may become one again. By default it may not: its drive is not
    /// mounted, or was exchanged.
    pub fn anew(mut self, anew: bool) -> Options {
        self.anew = anew;
        self
    }

    /// The share of new granules that a full drive takes: 1 by default. With a small share a load that reads more than the cache holds, again and
    /// again, keeps what is there.
    pub fn admit(mut self, share: f64) -> Options {
        self.admit = share;
        self
    }

    /// When the version of this object is asked for again.
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

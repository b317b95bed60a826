//! One read at a time: how long it takes, how much of that is the drive, and what the CPU does meanwhile.
//!
//! Goals: the best available split, and a word on how it was made. There are three ways, best first:
//! 1. The kernel's tracing, if allowed, says when the driver has the read. Then the time before (system call, file
//!    system, block layer) and after (completion, wake-up) is known too.
//! 2. The block layer counts the time of its requests from start to end, without privileges (`stat` of the device,
//!    Linux's Documentation/block/stat.rst).
//! 3. The CPU time is subtracted from the whole.

use std::fs::File;
use std::hint::black_box;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use iomill::{Error, Result};
use iomill_platform::drives::Drive;
use iomill_platform::tree::Tree;
use rustix::time::ClockId;
use serde::Serialize;

use super::clock::cpu_time;
use super::draw::{PAGE_BYTES, Rng};
use super::parts::open;
use super::trace::{self, Split, Trace};

/// Share of other programs' reads above which the block layer's count says nothing about this probe's reads.
const FOREIGN_MAX: f64 = 0.2;

/// Possible error of a split, as a share of the whole, above which the split says nothing.
const ERROR_MAX: f64 = 0.25;

/// The longest timer tick that kernels are built with, in milliseconds. Devices without requests count their time in
/// ticks.
const TICK_MS: f64 = 10.0;

/// The most times of reads that are kept for the quantiles, to bound the memory. They take more than half a minute.
const TIMES_MAX: usize = 4 << 20;

/// A 4 KiB read at depth 1.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Latency {
    /// Median in microseconds.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// Mean.
    pub mean_us: f64,
    /// The time that is split: the mean of the middle fifth of the traced reads, or else the mean of all reads.
    pub split_us: f64,
    /// The part of it that the drive and its driver take.
    pub device_us: f64,
    /// The possible error of that part, which depends on how finely it is counted; null if it is not counted.
    pub split_error_us: Option<f64>,
    /// The part of it that system call, file system, completion and wake-up take.
    pub platform_us: f64,
    /// The platform's part before the driver has the read: system call, file system, block layer. Null without tracing.
    pub submit_us: Option<f64>,
    /// The platform's part after the drive is done: completion, wake-up, return. Null without tracing.
    pub complete_us: Option<f64>,
    /// CPU time per read in microseconds.
    pub cpu_us: f64,
    /// How the split was made, and why no better way was possible.
    pub split_by: String,
}

impl Latency {
    /// Whether the drive's part is known well enough to report it.
    pub fn is_split(&self) -> bool {
        self.split_error_us.is_none_or(|error_us| error_us <= ERROR_MAX * self.split_us)
    }
}

/// CPU costs of the parts of a read, found by subtraction of measured paths.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Costs {
    /// A system call that does nothing, in nanoseconds.
    pub system_call_ns: f64,
    /// Copying 4 KiB within the processor's caches.
    pub copy_page_ns: f64,
    /// Copying a byte.
    pub copy_byte_ns: f64,
    /// A `pread` of 4 KiB that hits the page cache.
    pub cached_read_ns: f64,
    /// That `pread` without the call and the copy: the file system and the lookup.
    pub page_cache_ns: f64,
}

/// Measures random reads that bypass the page cache, one after the other.
pub fn measure(
    path: &Path,
    len_bytes: u64,
    below: &[Drive],
    tree: &Tree,
    slice: Duration,
    cancel: &AtomicBool,
) -> Result<Latency> {
    let file = open(path, true)?;
    let mut memory = Page::new();
    let mut rng = Rng::new(1);
    let mut read = || -> Result<Duration> {
        let offset = rng.draw() % (len_bytes / PAGE_BYTES as u64) * PAGE_BYTES as u64;
        let start = Instant::now();
        read_page(&file, path, memory.bytes(), offset)?;
        Ok(start.elapsed())
    };
    for _ in 0..32 {
        read()?;
    }
    let mut times = Times::default();
    let before = counts(tree, below);
    let (start, cpu_before) = (Instant::now(), cpu_time(ClockId::ThreadCPUTime)?);
    while start.elapsed() < slice && !cancel.load(Ordering::Relaxed) {
        times.record(read()?);
    }
    let cpu = cpu_time(ClockId::ThreadCPUTime)?.saturating_sub(cpu_before);
    let after = counts(tree, below);
    times.first_ns.sort_unstable();
    let ours = times.count.max(1);
    let mean_us = times.sum.as_secs_f64() * 1e6 / ours as f64;
    let cpu_us = cpu.as_secs_f64() * 1e6 / ours as f64;
    // A separate run, because tracing itself takes time.
    let traced = traced(tree, below, slice / 2, cancel, &mut read)?;
    let counted = split(before, after, ours, is_fine(tree, below));
    let Parted { split_us, device_us, split_error_us, split_by } = best_split(&traced, counted, mean_us, cpu_us);
    let traced = traced.ok();
    Ok(Latency {
        p50_us: times.quantile_us(50),
        p99_us: times.quantile_us(99),
        mean_us,
        split_us,
        device_us,
        split_error_us,
        platform_us: split_us - device_us,
        submit_us: traced.map(|split| split.submit_us),
        complete_us: traced.map(|split| split.complete_us),
        cpu_us,
        split_by,
    })
}

/// The times of reads.
#[derive(Debug, Default)]
struct Times {
    count: u64,
    sum: Duration,
    /// In nanoseconds, of the first reads.
    first_ns: Vec<u32>,
}

impl Times {
    fn record(&mut self, time: Duration) {
        (self.count, self.sum) = (self.count + 1, self.sum + time);
        if self.first_ns.len() < TIMES_MAX {
            self.first_ns.push(u32::try_from(time.as_nanos()).unwrap_or(u32::MAX));
        }
    }

    /// The least time that `percent` of the reads do not exceed; 0 without reads. The times must be sorted.
    fn quantile_us(&self, percent: usize) -> f64 {
        let rank = (self.first_ns.len() * percent).div_ceil(100);
        self.first_ns.get(rank.saturating_sub(1)).map_or(0.0, |ns| f64::from(*ns) / 1e3)
    }
}

/// The number of reads that the block layer has completed on a drive, and their total time in milliseconds. `None`
/// unless there is exactly one drive that counts.
fn counts(tree: &Tree, below: &[Drive]) -> Option<(u64, u64)> {
    let [drive] = below else { return None };
    parse_stat(&tree.get(&format!("{}/stat", drive.directory))?)
}

fn parse_stat(text: &str) -> Option<(u64, u64)> {
    let fields: Vec<u64> = text.split_whitespace().map_while(|field| field.parse().ok()).collect();
    Some((*fields.first()?, *fields.get(3)?))
}

/// Reads while the kernel's tracing runs. Returns where their time went, or why that is not known.
fn traced(
    tree: &Tree,
    below: &[Drive],
    slice: Duration,
    cancel: &AtomicBool,
    read: &mut dyn FnMut() -> Result<Duration>,
) -> Result<std::result::Result<Split, String>> {
    let number = match below {
        [drive] => tree.get(&format!("{}/dev", drive.directory)),
        _ => None,
    };
    let parse =
        |text: String| text.split_once(':').and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
    let Some(device) = number.and_then(parse) else {
        return Ok(Err("it is not on exactly one block device".to_owned()));
    };
    let cpus = tree.cpus("sys/devices/system/cpu/online").map_or(1, |cpus| cpus.len());
    let trace = match Trace::start(device, cpus) {
        Ok(trace) => trace,
        Err(why) => return Ok(Err(why)),
    };
    let mut reads = Vec::new();
    let start = Instant::now();
    while start.elapsed() < slice && !cancel.load(Ordering::Relaxed) {
        let begun = trace::now_us();
        read()?;
        reads.push((begun, trace::now_us()));
    }
    Ok(trace.finish().and_then(|spans| {
        // A few spans may belong to reads of other programs that fit by accident.
        let split = trace::split(&reads, &spans).filter(|split| split.reads * 10 >= reads.len().min(10_000));
        split.ok_or_else(|| "the kernel's tracing shows no requests of this device".to_owned())
    }))
}

/// The time of a read, in two parts.
#[derive(Clone, Debug, PartialEq)]
struct Parted {
    split_us: f64,
    device_us: f64,
    split_error_us: Option<f64>,
    split_by: String,
}

/// The block layer's count for a read.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Counted {
    device_us: f64,
    error_us: f64,
}

/// The best available split: by tracing, else by the block layer's count, else by subtraction.
fn best_split(
    traced: &std::result::Result<Split, String>,
    counted: std::result::Result<Counted, String>,
    mean_us: f64,
    cpu_us: f64,
) -> Parted {
    let too_much = |counted: &Counted| counted.device_us > mean_us + counted.error_us;
    let counted = match counted {
        Ok(counted) if too_much(&counted) => Err("the block layer counts more time for a read than it took".to_owned()),
        other => other,
    };
    match (traced, counted) {
        (Ok(split), _) => Parted {
            split_us: split.submit_us + split.device_us + split.complete_us,
            device_us: split.device_us,
            // Each time is in whole microseconds.
            split_error_us: Some(1.0 / (split.reads.max(1) as f64).sqrt()),
            split_by: format!("the kernel's tracing of the block layer, of {} reads", split.reads),
        },
        (Err(untraced), Ok(Counted { device_us, error_us })) => Parted {
            split_us: mean_us,
            device_us: device_us.min(mean_us),
            split_error_us: Some(error_us),
            split_by: format!(
                "the block layer's own count of the time of its requests, to {} ({untraced})",
                in_us(error_us)
            ),
        },
        (Err(untraced), Err(uncounted)) => {
            let by = "subtraction: all time off the CPU counts as the drive's, including interrupt and wake-up";
            Parted {
                split_us: mean_us,
                device_us: (mean_us - cpu_us).max(0.0),
                split_error_us: None,
                split_by: format!("{by} ({untraced}; {uncounted})"),
            }
        }
    }
}

/// Whether the block layer counts a drive's time in nanoseconds. It does so for devices with requests, else in timer
/// ticks.
fn is_fine(tree: &Tree, below: &[Drive]) -> bool {
    below.iter().all(|drive| tree.exists(&format!("{}/mq", drive.directory)))
}

fn split(
    before: Option<(u64, u64)>,
    after: Option<(u64, u64)>,
    ours: u64,
    is_fine: bool,
) -> std::result::Result<Counted, String> {
    let (Some(before), Some(after)) = (before, after) else {
        return Err("there is not exactly one block device that counts its times".to_owned());
    };
    let (reads, time_ms) = (after.0.wrapping_sub(before.0), after.1.wrapping_sub(before.1));
    if reads < ours / 2 {
        return Err("the block device does not count its requests (queue/iostats)".to_owned());
    }
    if reads as f64 > ours as f64 * (1.0 + FOREIGN_MAX) {
        return Err(format!("other programs read from the device too ({reads} reads, {ours} of them by this probe)"));
    }
    let (reads, time_ms) = (reads.max(1) as f64, time_ms as f64);
    // The count is in whole milliseconds. In ticks, a read counts as one or none, depending on whether a tick comes
    // while it lasts. The error is then twice the standard deviation of such a count.
    let error_ms = if is_fine { 1.0 } else { 2.0 * TICK_MS * (time_ms / TICK_MS + 1.0).sqrt() };
    Ok(Counted { device_us: time_ms * 1e3 / reads, error_us: error_ms * 1e3 / reads })
}

/// Measures the parts of a read.
pub fn costs(path: &Path, slice: Duration, cancel: &AtomicBool) -> Result<Costs> {
    let slice = slice / 3;
    let file = open(path, false)?;
    let mut page = Page::new();
    read_page(&file, path, page.bytes(), 0)?;
    let system_call_ns = time(slice, cancel, || {
        // SAFETY: the call takes no argument and touches no memory. The raw call is used because a libc wrapper may
        // cache the answer.
        black_box(unsafe { libc::syscall(libc::SYS_getppid) });
        Ok(())
    })?;
    let (from, mut to) = (Page::new(), Page::new());
    let copy_page_ns = time(slice, cancel, || {
        black_box(to.bytes()).copy_from_slice(black_box(&from.0[..]));
        Ok(())
    })?;
    let cached_read_ns = time(slice, cancel, || read_page(&file, path, page.bytes(), 0))?;
    Ok(Costs {
        system_call_ns,
        copy_page_ns,
        copy_byte_ns: copy_page_ns / PAGE_BYTES as f64,
        cached_read_ns,
        page_cache_ns: (cached_read_ns - system_call_ns - copy_page_ns).max(0.0),
    })
}

/// Nanoseconds per call, of the fastest batch. Batches that other programs slow down do not count.
fn time(slice: Duration, cancel: &AtomicBool, mut call: impl FnMut() -> Result<()>) -> Result<f64> {
    const BATCH: u32 = 256;
    let start = Instant::now();
    let mut best = f64::INFINITY;
    while best.is_infinite() || (start.elapsed() < slice && !cancel.load(Ordering::Relaxed)) {
        let batch = Instant::now();
        for _ in 0..BATCH {
            call()?;
        }
        best = best.min(batch.elapsed().as_nanos() as f64 / f64::from(BATCH));
    }
    Ok(best)
}

/// A page of memory that is aligned for direct I/O.
#[repr(align(4096))]
struct Aligned([u8; PAGE_BYTES]);

struct Page(Box<Aligned>);

impl std::ops::Deref for Aligned {
    type Target = [u8; PAGE_BYTES];

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl Page {
    fn new() -> Page {
        Page(Box::new(Aligned([1; PAGE_BYTES])))
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.0.0
    }
}

fn read_page(file: &File, path: &Path, bytes: &mut [u8], offset: u64) -> Result<()> {
    use std::os::unix::fs::FileExt;
    let failed = |source| Error::io_at("read", path.to_owned(), offset, source);
    file.read_exact_at(bytes, offset).map_err(failed)
}

/// `0.4 µs`, `12 µs`.
fn in_us(us: f64) -> String {
    if us < 10.0 { format!("{us:.1} µs") } else { format!("{us:.0} µs") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_split_is_taken_and_named() {
        let counted = |device_us| Ok(Counted { device_us, error_us: 6.0 });
        let parts = |parted: &Parted| (parted.split_us, parted.device_us);
        let split = Split { submit_us: 4.0, device_us: 70.0, complete_us: 6.0, reads: 100 };
        let traced = best_split(&Ok(split), counted(75.0), 90.0, 3.0);
        assert_eq!((parts(&traced), traced.split_error_us), ((80.0, 70.0), Some(0.1)));
        assert!(traced.split_by.contains("tracing") && traced.split_by.contains("100 reads"), "{traced:?}");
        let no_trace = Err("root only".to_owned());
        let by_count = best_split(&no_trace, counted(75.0), 80.0, 3.0);
        assert_eq!((parts(&by_count), by_count.split_error_us), ((80.0, 75.0), Some(6.0)));
        assert!(by_count.split_by.contains("own count") && by_count.split_by.contains("root only"), "{by_count:?}");
        assert_eq!(best_split(&no_trace, counted(85.0), 80.0, 3.0).device_us, 80.0, "within its error");
        let odd = best_split(&no_trace, counted(95.0), 80.0, 3.0);
        assert!(odd.split_by.starts_with("subtraction") && odd.split_by.contains("more time"), "{odd:?}");
        let rest = best_split(&no_trace, Err("iostats".to_owned()), 80.0, 3.0);
        assert_eq!((parts(&rest), rest.split_error_us), ((80.0, 77.0), None));
        assert!(rest.split_by.starts_with("subtraction") && rest.split_by.contains("iostats"), "{rest:?}");
    }

    #[test]
    fn quantiles_are_times_that_were_seen() {
        let mut times = Times::default();
        assert_eq!(times.quantile_us(50), 0.0);
        (1..=200).for_each(|us| times.record(Duration::from_micros(us)));
        times.record(Duration::from_secs(3600));
        assert_eq!((times.quantile_us(50), times.quantile_us(99)), (101.0, 199.0));
        assert_eq!((times.count, times.quantile_us(100)), (201, f64::from(u32::MAX) / 1e3));
    }

    #[test]
    fn the_split_is_made_only_where_it_means_something() {
        assert_eq!(parse_stat("  100 2 800 55 1 1 8 3 0 50 60"), Some((100, 55)));
        assert_eq!(parse_stat("100 2"), None);
        let fine = split(Some((100, 50)), Some((1100, 150)), 1000, true);
        assert_eq!(fine, Ok(Counted { device_us: 100.0, error_us: 1.0 }));
        // Eight ticks in 100,000 reads.
        let coarse = split(Some((0, 0)), Some((100_000, 80)), 100_000, false).unwrap();
        assert_eq!((coarse.device_us, coarse.error_us), (0.8, 0.6));
        assert!(split(Some((0, 0)), Some((1500, 150)), 1000, true).unwrap_err().contains("other programs read"));
        assert!(split(Some((0, 0)), Some((10, 150)), 1000, true).unwrap_err().contains("iostats"));
        assert!(split(None, None, 1000, true).is_err());
    }
}

//! Measures what a machine and its drives can do, and where the time goes.
//!
//! Goals: a figure for each question and a verdict in plain words, in under a minute. The probe makes its own files on
//! the drives and removes them at the end, also after an error or a signal. Each split says how it was made. Non-goals:
//! comparing programs (other measurements do that); writing to anything that was there before.
//!
//! All reads bypass the page cache, by io_uring driven by hand ([`loops`]), so that the probe itself costs as little as
//! possible. [`Settings`] say what to probe, and [`run`] yields [`Figures`].

mod course;
pub mod html;
mod idle;
pub mod profile;
pub mod raw;
pub mod verdict;

use std::fs;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::human;
use iomill::{Error, Result};
use iomill_platform::tree::Tree;
use serde::Serialize;

use crate::machine::{Ground, Machine};
use course::Course;
use iomill_loops::draw::PAGE_BYTES;
use iomill_loops::latency::{Costs, Latency};
use iomill_loops::leftovers::{self, By};
use iomill_loops::parts::{self, Part, Parts};
use iomill_loops::paths::{self, Cost};
use iomill_loops::served::Served;
use raw::{Raw, RawFigures};

/// Measured depths: the number of reads in flight on each drive.
const DEPTHS: [u32; 8] = [1, 2, 4, 8, 16, 32, 64, 128];
/// Measured request sizes, in bytes.
const SIZES: [u32; 5] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];
/// The depth for measurements with many reads in flight.
pub const DEEP: u32 = 32;
/// The share of the best result that counts as enough.
const ENOUGH: f64 = 0.95;
/// Drives count as equal if their speeds differ by less than this factor.
const UNEVEN: f64 = 1.2;
/// Bytes per read when bandwidth is measured.
const WIDE_BYTES: u32 = 64 << 10;

/// What to probe.
#[derive(Clone, Debug)]
pub struct Settings {
    /// A directory on each drive.
    pub places: Vec<PathBuf>,
    /// Block devices to read without a file system.
    pub raw: Vec<PathBuf>,
    /// Length of the file that is made in each place, in bytes.
    pub part_bytes: u64,
    /// Length of each run. It has two halves, of which the faster counts.
    pub slice: Duration,
    /// Maximum number of threads.
    pub threads: usize,
}

/// One run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Point {
    /// Drives that were read.
    pub drives: usize,
    /// Threads that read.
    pub threads: usize,
    /// Reads in flight on each drive, for each thread.
    pub depth: u32,
    /// Bytes per read.
    pub request_bytes: u32,
    /// Reads per second.
    pub iops: f64,
    /// Bytes per second.
    pub bytes_per_s: f64,
    /// CPU time per read in microseconds, including time in the kernel.
    pub cpu_us_per_op: f64,
    /// CPUs that this run kept busy.
    pub cpus_used: f64,
    /// CPUs that this process may use and that were idle during the run; null where the kernel does not count.
    pub cpus_idle: Option<f64>,
    /// CPUs of these that were in interrupts, for this process and others; null where the kernel does not count.
    pub cpus_interrupts: Option<f64>,
    /// Reads per second, divided by those of the first point of the list times the number of threads or drives. 1 is
    /// linear.
    pub of_linear: Option<f64>,
}

/// A drive.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DriveFigures {
    /// The directory on the drive.
    pub path: PathBuf,
    /// Block devices below the directory; empty if none is visible.
    pub devices: Vec<String>,
    /// Their NUMA node, if all have the same.
    pub node: Option<u32>,
    /// One read at a time.
    pub latency: Latency,
    /// Many reads in flight by one thread, on this drive alone.
    pub alone: Point,
    /// The same with the maximum number of threads. One thread may not be enough for a fast drive.
    pub alone_all_threads: Point,
    /// This drive alone, one thread, 4 KiB, at growing depths.
    pub depths: Vec<Point>,
    /// The smallest of these depths that reaches 95% of the best.
    pub best_depth: u32,
    /// The drive's id, if the directory is a drive of an array.
    pub id: Option<String>,
    /// The adapter that it shares with other drives, if any.
    pub adapter: Option<String>,
}

impl DriveFigures {
    /// The most reads per second, at any depth, by one thread or all.
    pub fn best_iops(&self) -> f64 {
        self.best().iops
    }

    fn best(&self) -> &Point {
        self.depths
            .iter()
            .fold(&self.alone_all_threads, |best, point| if point.iops > best.iops { point } else { best })
    }
}

/// Drives behind one adapter.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Adapter {
    /// Its PCI function.
    pub name: String,
    /// The directories on its drives.
    pub drives: Vec<PathBuf>,
    /// The sum of the reads per second of these drives, each measured alone.
    pub alone_iops: f64,
    /// All these drives at the same time.
    pub together: Point,
}

/// The cost of a way of reading.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Way {
    /// Its name, as in other measurements.
    pub name: &'static str,
    /// Random reads of 4 KiB on all drives by one thread.
    pub iops: f64,
    /// CPU time per read in microseconds.
    pub cpu_us_per_op: f64,
}

/// All results of a probe.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Figures {
    /// Sentences in plain words, the most important first.
    pub verdict: Vec<String>,
    /// The machine that was probed.
    pub machine: Machine,
    /// The drives, each alone.
    pub drives: Vec<DriveFigures>,
    /// CPU costs of the parts of a read.
    pub costs: Costs,
    /// Ways of reading.
    pub ways: Vec<Way>,
    /// The cost of a read by each path, on the first drive and on each raw device.
    pub paths: Vec<Cost>,
    /// Paths that cannot be measured, with the reasons.
    pub paths_left_out: Vec<String>,
    /// How CPU cycles were counted, or why they were not.
    pub cycles_by: String,
    /// One thread, all drives, 4 KiB, at growing depths.
    pub depths: Vec<Point>,
    /// The same with 64 KiB.
    pub depths_wide: Vec<Point>,
    /// One thread, all drives, reads of growing size.
    pub sizes: Vec<Point>,
    /// All drives, 4 KiB, a growing number of threads.
    pub threads: Vec<Point>,
    /// The same with 64 KiB.
    pub threads_wide: Vec<Point>,
    /// A growing number of drives, 4 KiB, the maximum number of threads.
    pub drive_counts: Vec<Point>,
    /// The same with 64 KiB.
    pub drive_counts_wide: Vec<Point>,
    /// Adapters with several of the drives.
    pub adapters: Vec<Adapter>,
    /// The best settings of iomill on these drives; null without drives.
    pub served: Option<Served>,
    /// Devices that were read without a file system.
    pub raw: Vec<RawFigures>,
    /// The smallest depth that reaches 95% of the best, for one thread on all drives.
    pub best_depth: u32,
    /// The drives' speeds as weights of the hash layout.
    pub weights: Vec<u32>,
    /// Places that could not be measured, with the reasons.
    pub left_out: Vec<String>,
    /// True if the probe was interrupted. Then some figures are missing.
    #[serde(skip)]
    pub cancelled: bool,
}

/// The present step of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Writing the files: bytes so far, and the total.
    Filling(u64, u64),
    /// Measuring.
    Measuring {
        /// Runs that are done.
        done: usize,
        /// Runs in total.
        total: usize,
        /// The purpose of the run that starts now.
        what: &'static str,
    },
}

/// Runs a probe. Returns `Ok(None)` if nothing can be measured; `why` then has a line for each place.
pub fn run(
    settings: &Settings,
    tree: &Tree,
    cancel: &AtomicBool,
    stage: &mut dyn FnMut(Stage),
    why: &mut Vec<String>,
) -> Result<Option<Figures>> {
    let mut places = Vec::new();
    named_once(&settings.places)?;
    for place in &settings.places {
        match why_not(place)? {
            Some(reason) => why.push(format!("{}: {reason}", place.display())),
            None => {
                leftovers::remove_in(place);
                places.push(place.clone());
            }
        }
    }
    let mut raw: Vec<Raw> = Vec::new();
    for path in &settings.raw {
        raw.push(Raw::take(path, &raw)?);
    }
    if places.is_empty() && raw.is_empty() {
        return Ok(None);
    }
    let mut parts = Parts::default();
    let mut course = Course::new(settings, tree, cancel, stage, places.len());
    let mut figures = match places.is_empty() {
        true => Figures { machine: Machine::look(&[]), ..Figures::default() },
        false => {
            let written = write(&mut parts, &places, settings.part_bytes, cancel, course.stage())?;
            course.all(&written, &places)?
        }
    };
    course.raw(&raw, &mut figures)?;
    figures.cycles_by = paths::cycles_by();
    figures.left_out.clone_from(why);
    figures.verdict = verdict::words(&figures);
    figures.cancelled = cancel.load(Ordering::Relaxed);
    Ok(Some(figures))
}

/// Refuses a drive that is named twice: its two measurements would slow each other down.
fn named_once(places: &[PathBuf]) -> Result<()> {
    let mut seen: Vec<(u64, u64, &PathBuf)> = Vec::new();
    for place in places {
        let found = fs::metadata(place).map_err(|e| Error::io("find", place, e))?;
        let (device, inode) = (found.dev(), found.ino());
        if let Some((_, _, other)) = seen.iter().find(|one| (one.0, one.1) == (device, inode)) {
            let why = format!("it is the same directory as {}; name each drive once", other.display());
            return Err(Error::invalid(place.display().to_string(), why));
        }
        seen.push((device, inode, place));
    }
    Ok(())
}

/// Why a place cannot be measured: it is not writable, it is in memory, or it has no direct I/O.
fn why_not(place: &Path) -> Result<Option<String>> {
    if !fs::metadata(place).map_err(|e| Error::io("find", place, e))?.is_dir() {
        let why = "it is not a directory; name a directory on the drive, or the block device itself with --raw";
        return Err(Error::invalid(place.display().to_string(), why));
    }
    let path = place.join(leftovers::name(By::Probe));
    let mut parts = Parts::default();
    if let Err(error) = parts.make(&path).and_then(|mut file| file.write_all(&[0; PAGE_BYTES])) {
        return Ok(Some(format!("it cannot be written to: {error}")));
    }
    if let Err(error) = parts::open(&path, true) {
        return parts::why_not_direct(&error).map(Some).ok_or(error);
    }
    let ground = Ground::look(&Tree::machine(), &Part { path, len_bytes: PAGE_BYTES as u64 });
    let is_memory = matches!(ground.file_system.as_str(), "tmpfs" | "ramfs" | "devtmpfs");
    Ok(is_memory.then(|| format!("it is in memory ({}), not on a drive", ground.file_system)))
}

fn write(
    parts: &mut Parts,
    places: &[PathBuf],
    part_bytes: u64,
    cancel: &AtomicBool,
    stage: &mut dyn FnMut(Stage),
) -> Result<Vec<Part>> {
    if part_bytes < u64::from(SIZES[SIZES.len() - 1]) {
        let why = "give at least 1MiB, for the largest reads";
        return Err(Error::invalid(format!("a file of {part_bytes} bytes on each drive"), why));
    }
    let name = leftovers::name(By::Probe);
    let paths: Vec<PathBuf> = places.iter().map(|place| place.join(&name)).collect();
    let mut progress = |done, total| stage(Stage::Filling(done, total));
    parts::write(parts, &paths, part_bytes, cancel, &mut progress).map_err(|error| match error {
        Error::Io { path, source, .. }
            if matches!(source.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded) =>
        {
            let what = format!("a file of {} on each drive", human::size(part_bytes));
            let why = format!(
                "{}: {source}; give a smaller --size, free some space, or leave that drive out",
                path.display()
            );
            Error::Tool { what, why }
        }
        other => other,
    })
}

/// Powers of two below `most`, and `most` itself.
fn steps(most: usize) -> Vec<usize> {
    let mut steps: Vec<usize> = std::iter::successors(Some(1), |n| Some(n * 2)).take_while(|n| *n < most).collect();
    steps.push(most.max(1));
    steps
}

/// Sets how close each point is to the first point times its count.
fn linear(points: &mut [Point], count: impl Fn(&Point) -> usize) {
    let Some(one) = points.first().map(|first| first.iops / count(first) as f64).filter(|one| *one > 0.0) else {
        return;
    };
    for point in points {
        point.of_linear = Some(point.iops / (one * count(point) as f64));
    }
}

fn best_depth(depths: &[Point]) -> u32 {
    let best = depths.iter().map(|point| point.iops).fold(0.0, f64::max);
    depths.iter().find(|point| point.iops >= ENOUGH * best).map_or(DEEP, |point| point.depth)
}

/// The slowest and the fastest drive, if their speeds differ. If the CPUs limited the slowest drive, it is not known to
/// be slower.
fn slow_and_fast(drives: &[DriveFigures], cpus: usize) -> Option<(&DriveFigures, &DriveFigures)> {
    let by_speed = |a: &&DriveFigures, b: &&DriveFigures| a.best_iops().total_cmp(&b.best_iops());
    let (slow, fast) = (drives.iter().min_by(by_speed)?, drives.iter().max_by(by_speed)?);
    let are_uneven = fast.best_iops() >= UNEVEN * slow.best_iops() && !verdict::is_busy(slow.best(), cpus);
    are_uneven.then_some((slow, fast))
}

/// The slowest drive has weight 10, and no weight exceeds its maximum. Drives of about the same speed get the same
/// weight.
fn weights(drives: &[DriveFigures], cpus: usize) -> Vec<u32> {
    let Some((slow, _)) = slow_and_fast(drives, cpus) else { return vec![10; drives.len()] };
    let slowest = slow.best_iops().max(1e-9);
    drives.iter().map(|drive| ((drive.best_iops() / slowest * 10.0).round() as u32).clamp(1, 1000)).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn point(iops: f64, depth: u32, threads: usize, drives: usize, cpus_used: f64) -> Point {
        let cpu_us_per_op = cpus_used * 1e6 / iops.max(1.0);
        let bytes_per_s = iops * 4096.0;
        Point {
            drives,
            threads,
            depth,
            request_bytes: 4096,
            iops,
            bytes_per_s,
            cpu_us_per_op,
            cpus_used,
            cpus_idle: Some((4.0 - cpus_used).max(0.0)),
            cpus_interrupts: Some(0.0),
            of_linear: None,
        }
    }

    #[test]
    fn figures_are_derived_as_said() {
        assert_eq!(steps(1), [1]);
        assert_eq!((steps(2), steps(6), steps(8)), (vec![1, 2], vec![1, 2, 4, 6], vec![1, 2, 4, 8]));
        let depths = [point(100.0, 1, 1, 1, 0.1), point(950.0, 8, 1, 1, 0.1), point(1000.0, 16, 1, 1, 0.1)];
        assert_eq!(best_depth(&depths), 8);
        let mut threads = [point(100.0, 32, 1, 1, 1.0), point(150.0, 32, 2, 1, 2.0)];
        linear(&mut threads, |point| point.threads);
        assert_eq!((threads[0].of_linear, threads[1].of_linear), (Some(1.0), Some(0.75)));
    }

    fn short(place: impl Into<PathBuf>) -> Settings {
        let (places, slice) = (vec![place.into()], Duration::from_millis(1));
        Settings { places, raw: Vec::new(), part_bytes: 4 << 20, slice, threads: 1 }
    }

    #[test]
    fn drives_that_the_processors_hold_back_are_not_told_apart() {
        let mut figures = verdict::tests::figures([2e5, 4e5], 5.5e5, 1.5);
        assert_eq!(weights(&figures.drives, 4), [10, 20]);
        figures.drives[0].alone_all_threads.cpus_used = 3.9;
        assert_eq!(weights(&figures.drives, 4), [10, 10]);
        assert!(!verdict::words(&figures).join("\n").contains("the hash layout with weights"));
        assert!(weights(&[], 4).is_empty());
    }

    #[test]
    fn a_real_place_is_measured_and_left_as_it_was() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let settings = Settings {
            places: vec![dir.path().to_owned(), PathBuf::from("/dev/shm")],
            raw: Vec::new(),
            part_bytes: 4 << 20,
            slice: Duration::from_millis(20),
            threads: 2,
        };
        let mut why = Vec::new();
        let mut most = (0, 0);
        let mut stage = |stage| {
            if let Stage::Measuring { done, total, .. } = stage {
                most = (done, total);
            }
        };
        let figures = run(&settings, &Tree::machine(), &AtomicBool::new(false), &mut stage, &mut why).unwrap().unwrap();
        assert!(why.len() == 1 && why[0].starts_with("/dev/shm: "), "{why:?}");
        assert_eq!((figures.drives.len(), figures.depths.len(), figures.sizes.len()), (1, DEPTHS.len(), SIZES.len()));
        assert_eq!((figures.depths_wide.len(), figures.threads_wide.len()), (DEPTHS.len(), 2));
        assert!(figures.threads_wide[1].request_bytes == WIDE_BYTES && figures.threads_wide[1].of_linear.is_some());
        let drive = &figures.drives[0];
        assert!(DEPTHS.contains(&drive.best_depth) && drive.depths.len() == DEPTHS.len() && drive.id.is_none());
        assert!(figures.paths.iter().any(|cost| cost.direct) && figures.paths.iter().any(|cost| !cost.direct));
        assert!(figures.paths.iter().all(|cost| cost.on == "file" && cost.cpu_us_per_op > 0.0), "{:?}", figures.paths);
        let counted = figures.paths.iter().all(|cost| cost.cycles_per_op.is_some());
        assert!(counted != figures.cycles_by.contains("not counted"), "{} {:?}", figures.cycles_by, figures.paths);
        assert!(figures.served.is_some() && figures.adapters.is_empty());
        assert!(figures.drives[0].latency.p50_us > 0.0 && figures.drives[0].alone.iops > 1.0, "{figures:?}");
        assert!(most.0 < most.1 && most.0 + 3 >= most.1, "progress ends near its end: {most:?}");
        assert!(!figures.verdict.is_empty() && figures.weights == [10]);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn nothing_to_measure_is_no_error() {
        let settings = short("/dev/shm");
        let mut why = Vec::new();
        let none = run(&settings, &Tree::machine(), &AtomicBool::new(false), &mut |_| (), &mut why).unwrap();
        assert!(none.is_none() && why.len() == 1, "{why:?}");
        let device = Settings { raw: vec!["/dev/null".into()], ..settings.clone() };
        let refused = run(&device, &Tree::machine(), &AtomicBool::new(false), &mut |_| (), &mut why).unwrap_err();
        assert!(refused.to_string().contains("no block device"), "{refused}");
        let gone = Settings { places: vec!["/no/such/place".into()], ..settings };
        assert!(run(&gone, &Tree::machine(), &AtomicBool::new(false), &mut |_| (), &mut why).is_err());
    }

    #[test]
    fn what_has_our_names_already_is_neither_written_to_nor_removed() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let (theirs, link) = (dir.path().join("theirs"), dir.path().join(leftovers::name(By::Probe)));
        fs::write(&theirs, "theirs").unwrap();
        std::os::unix::fs::symlink(&theirs, &link).unwrap();
        let settings = short(dir.path());
        let mut why = Vec::new();
        let never = AtomicBool::new(false);
        assert!(run(&settings, &Tree::machine(), &never, &mut |_| (), &mut why).unwrap().is_none());
        assert!(why[0].contains("File exists"), "{why:?}");
        assert!(link.is_symlink() && fs::read(&theirs).unwrap() == b"theirs");
        let twice = Settings { places: vec![dir.path().to_owned(), dir.path().join(".")], ..settings };
        let error = run(&twice, &Tree::machine(), &never, &mut |_| (), &mut why).unwrap_err().to_string();
        assert!(error.contains("same directory") && error.contains("once"), "{error}");
    }

    #[test]
    fn a_signal_while_files_are_written_ends_that() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let settings = Settings { part_bytes: 1 << 50, ..short(dir.path()) };
        let came = AtomicBool::new(true);
        let error = run(&settings, &Tree::machine(), &came, &mut |_| (), &mut Vec::new()).unwrap_err().to_string();
        assert!(error.contains("interrupted"), "{error}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}

//! What a machine and its drives can do, and where the time goes.
//!
//! Goals: a figure for each question and a verdict in plain words, in under a minute; files of our own on the drives, which go in the
//! end, also after an error or a signal; each split says how it was made. Non-goals: comparing programs (that is what the
//! other measurements do); writing to anything that was there before.
//!
//! All reads bypass the page cache, by io_uring driven by hand, so that the least of what is measured is ours.

pub mod html;
pub mod latency;
pub mod verdict;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use iomill::{Error, Result};
use iomill_platform::drives;
use iomill_platform::machine::Machine as Platform;
use iomill_platform::tree::Tree;
use serde::Serialize;

use crate::bench::Stage;
use crate::contender::{Cache, Contender, Slice};
use crate::machine::Machine;
use crate::pattern::PAGE_BYTES;
use crate::rivals::{aio::Aio, pread::Pread, uring::Uring};
use crate::rounds::Progress;
use crate::target::Target;
use crate::workload::Workload;
use latency::{Costs, Latency};

/// Depths that are tried, in flight on each drive.
const DEPTHS: [u32; 8] = [1, 2, 4, 8, 16, 32, 64, 128];
/// Request sizes that are tried, in bytes.
const SIZES: [u32; 5] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];
/// Where many are in flight.
const DEEP: u32 = 32;
/// What bandwidth is measured with.
const WIDE_BYTES: u32 = 64 << 10;

/// What to probe.
#[derive(Clone, Debug)]
pub struct Settings {
    /// A directory on each drive.
    pub places: Vec<PathBuf>,
    /// Length of the file that is made on each, in bytes.
    pub part_bytes: u64,
    /// Length of each of some forty runs.
    pub slice: Duration,
    /// Most threads.
    pub threads: usize,
}

/// One run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Point {
    /// Drives that were read.
    pub drives: usize,
    /// Threads that read.
    pub threads: usize,
    /// In flight on each drive, for each thread.
    pub depth: u32,
    /// Bytes per read.
    pub request_bytes: u32,
    /// Reads per second.
    pub iops: f64,
    /// Bytes per second.
    pub bytes_per_s: f64,
    /// CPU time per read in microseconds, the kernel's included.
    pub cpu_us_per_op: f64,
    /// CPUs that were busy with it.
    pub cpus_used: f64,
    /// Reads per second over those of one (of the first point of its list), divided by how many: 1 is linear.
    pub of_linear: Option<f64>,
}

/// A drive.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DriveFigures {
    /// The directory on it.
    pub path: PathBuf,
    /// Block devices below it; empty where there are none to be seen.
    pub devices: Vec<String>,
    /// Their node, where they have the same.
    pub node: Option<u32>,
    /// One read at a time.
    pub latency: Latency,
    /// Many at a time, this drive alone.
    pub alone: Point,
}

/// What a way of reading costs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Way {
    /// Its name, as in other measurements.
    pub name: &'static str,
    /// Random reads of 4 KiB on all drives by one thread.
    pub iops: f64,
    /// CPU time per read in microseconds.
    pub cpu_us_per_op: f64,
}

/// All of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figures {
    /// In plain words, the most important first.
    pub verdict: Vec<String>,
    /// What it was made on.
    pub machine: Machine,
    /// One by one.
    pub drives: Vec<DriveFigures>,
    /// What parts of a read cost the CPU.
    pub costs: Costs,
    /// Ways of reading.
    pub ways: Vec<Way>,
    /// One thread, all drives, 4 KiB, more and more in flight.
    pub depths: Vec<Point>,
    /// One thread, all drives, larger and larger reads.
    pub sizes: Vec<Point>,
    /// All drives, 4 KiB, more and more threads.
    pub threads: Vec<Point>,
    /// More and more drives, 4 KiB, as many threads as there may be.
    pub drive_counts: Vec<Point>,
    /// The same with 64 KiB.
    pub drive_counts_wide: Vec<Point>,
    /// The least depth that reaches 95% of the best.
    pub best_depth: u32,
    /// The drives' speeds as weights of the hash layout.
    pub weights: Vec<u32>,
    /// Places that could not be measured, and why.
    pub left_out: Vec<String>,
    /// It was interrupted: what was not measured is missing.
    #[serde(skip)]
    pub cancelled: bool,
}

/// The files that are read; they go when this goes.
struct Parts {
    paths: Vec<PathBuf>,
}

impl Drop for Parts {
    fn drop(&mut self) {
        for path in &self.paths {
            // One that was never made is not there; of others the next probe would tell.
            let _gone = fs::remove_file(path);
        }
    }
}

/// Probes. `Ok(None)` if nothing can be measured; `why` then says why, a line for each place.
pub fn run(
    settings: &Settings,
    tree: &Tree,
    cancel: &AtomicBool,
    stage: &mut dyn FnMut(Stage),
    why: &mut Vec<String>,
) -> Result<Option<Figures>> {
    let mut places = Vec::new();
    for place in &settings.places {
        match why_not(place)? {
            Some(reason) => why.push(format!("{}: {reason}", place.display())),
            None => places.push(place.clone()),
        }
    }
    if places.is_empty() {
        return Ok(None);
    }
    let name = format!("iomill-probe-{}", std::process::id());
    let _parts = Parts { paths: places.iter().map(|place| place.join(&name)).collect() };
    let target = write(&places, &name, settings.part_bytes, cancel, stage)?;
    let mut course = Course { settings, cancel, stage, done: 0, total: runs(settings, places.len()) };
    let mut figures = course.all(&target, tree, &places)?;
    figures.left_out.clone_from(why);
    figures.verdict = verdict::words(&figures);
    figures.cancelled = cancel.load(Ordering::Relaxed);
    Ok(Some(figures))
}

/// Why a place cannot be measured: it is in memory, or has no direct I/O.
fn why_not(place: &Path) -> Result<Option<String>> {
    let probe = place.join(format!("iomill-probe-{}", std::process::id()));
    let _parts = Parts { paths: vec![probe.clone()] };
    fs::write(&probe, [0; PAGE_BYTES]).map_err(|e| Error::io("write", &probe, e))?;
    let part = crate::target::Part { path: probe, len_bytes: PAGE_BYTES as u64 };
    let target = Target::new(vec![part], 0, Target::striped(1, 1))?;
    if let Some(why) = target.why_not_direct()? {
        return Ok(Some(why));
    }
    let ground = Machine::look(&target).drives.into_iter().next().unwrap_or_default();
    let is_memory = matches!(ground.file_system.as_str(), "tmpfs" | "ramfs" | "devtmpfs");
    Ok(is_memory.then(|| format!("it is in memory ({}), there is no drive below", ground.file_system)))
}

fn write(
    places: &[PathBuf],
    name: &str,
    part_bytes: u64,
    cancel: &AtomicBool,
    stage: &mut dyn FnMut(Stage),
) -> Result<Target> {
    if part_bytes < u64::from(SIZES[SIZES.len() - 1]) {
        let why = "at least 1MiB is needed for the largest reads";
        return Err(Error::invalid(format!("a file of {part_bytes} bytes on each drive"), why));
    }
    let target = Target::write(places, name, part_bytes, 1, &mut |done, total| stage(Stage::Filling(done, total)))?;
    if cancel.load(Ordering::Relaxed) {
        return Err(Error::Machine { what: "the probe".into(), why: "interrupted".into() });
    }
    Ok(target)
}

/// Powers of two up to a number, and the number.
fn steps(most: usize) -> Vec<usize> {
    let mut steps: Vec<usize> = std::iter::successors(Some(1), |n| Some(n * 2)).take_while(|n| *n < most).collect();
    steps.push(most.max(1));
    steps
}

fn runs(settings: &Settings, drives: usize) -> usize {
    2 * drives + 3 + 3 + DEPTHS.len() + SIZES.len() + steps(settings.threads).len() + 2 * steps(drives).len()
}

struct Course<'a> {
    settings: &'a Settings,
    cancel: &'a AtomicBool,
    stage: &'a mut dyn FnMut(Stage),
    done: usize,
    total: usize,
}

impl Course<'_> {
    fn all(&mut self, target: &Target, tree: &Tree, places: &[PathBuf]) -> Result<Figures> {
        let platform = Platform::look(tree);
        let parts = target.parts();
        let some = |count: usize| Target::new(parts[..count].to_vec(), 1, Target::striped(parts.len(), 16));
        let mut figures = Vec::new();
        for (part, place) in parts.iter().zip(places) {
            let below = drives::under(tree, &platform, &[place]).unwrap_or_default();
            let alone = Target::new(vec![part.clone()], 1, Target::striped(1, 16))?;
            self.tell("latency");
            let latency = latency::measure(&part.path, part.len_bytes, &below, tree, self.settings.slice, self.cancel)?;
            let nodes: Vec<Option<u32>> = below.iter().map(|drive| drive.node).collect();
            figures.push(DriveFigures {
                path: place.clone(),
                devices: below.into_iter().map(|drive| drive.name).collect(),
                node: nodes.first().copied().flatten().filter(|_| nodes.windows(2).all(|two| two[0] == two[1])),
                latency,
                alone: self.point(&alone, "each drive alone", 1, DEEP, PAGE_BYTES as u32)?,
            });
        }
        self.tell("costs of the CPU");
        let costs = latency::costs(&parts[0].path, self.settings.slice, self.cancel)?;
        self.done += 2;
        let ways = self.ways(target)?;
        let page = PAGE_BYTES as u32;
        let mut depths = Vec::new();
        for depth in DEPTHS {
            depths.push(self.point(target, "depth", 1, depth, page)?);
        }
        let mut sizes = Vec::new();
        for size in SIZES {
            sizes.push(self.point(target, "request size", 1, if size > WIDE_BYTES { 8 } else { DEEP }, size)?);
        }
        let mut threads = Vec::new();
        for count in steps(self.settings.threads) {
            threads.push(self.point(target, "threads", count, DEEP, page)?);
        }
        let (mut drive_counts, mut drive_counts_wide) = (Vec::new(), Vec::new());
        for count in steps(parts.len()) {
            drive_counts.push(self.point(&some(count)?, "drives", self.settings.threads, DEEP, page)?);
            drive_counts_wide.push(self.point(&some(count)?, "drives", self.settings.threads, DEEP, WIDE_BYTES)?);
        }
        linear(&mut threads, |point| point.threads);
        linear(&mut drive_counts, |point| point.drives);
        linear(&mut drive_counts_wide, |point| point.drives);
        Ok(Figures {
            verdict: Vec::new(),
            machine: Machine::look(target),
            best_depth: best_depth(&depths),
            weights: weights(&figures),
            drives: figures,
            costs,
            ways,
            depths,
            sizes,
            threads,
            drive_counts,
            drive_counts_wide,
            left_out: Vec::new(),
            cancelled: false,
        })
    }

    fn tell(&mut self, what: &'static str) {
        (self.stage)(Stage::Measuring(Progress { done: self.done, total: self.total, contender: what }));
        self.done += 1;
    }

    fn ways(&mut self, target: &Target) -> Result<Vec<Way>> {
        let contenders: [Box<dyn Contender>; 3] = [
            Box::new(Uring::new(target.clone())),
            Box::new(Aio::new(target.clone())),
            Box::new(Pread::new(target.clone(), Cache::Cold)),
        ];
        let mut ways = Vec::new();
        for mut contender in contenders {
            self.tell("ways of reading");
            if contender.prepare(&Workload::RANDOM_READ)?.is_none() {
                let sample = contender.run(&self.slice(1))?;
                ways.push(Way {
                    name: contender.name(),
                    iops: sample.ops_per_s(),
                    cpu_us_per_op: sample.cpu_us_per_op(),
                });
            }
        }
        Ok(ways)
    }

    fn slice(&self, threads: usize) -> Slice<'_> {
        Slice { threads, duration: self.settings.slice, verify: false, cancel: self.cancel }
    }

    fn point(&mut self, target: &Target, what: &'static str, threads: usize, depth: u32, size: u32) -> Result<Point> {
        self.tell(what);
        let workload = Workload { depth, block_bytes: size, ..Workload::RANDOM_READ };
        let mut uring = Uring::new(target.clone());
        let mut aio = Aio::new(target.clone());
        let contender: &mut dyn Contender = match uring.prepare(&workload)? {
            None => &mut uring,
            Some(why) => match aio.prepare(&workload)? {
                None => &mut aio,
                Some(too) => {
                    return Err(Error::Machine {
                        what: "reading past the page cache".into(),
                        why: format!("{why}; {too}"),
                    });
                }
            },
        };
        let sample = contender.run(&self.slice(threads))?;
        Ok(Point {
            drives: target.parts().len(),
            threads,
            depth,
            request_bytes: size,
            iops: sample.ops_per_s(),
            bytes_per_s: sample.bytes as f64 / sample.wall.as_secs_f64().max(1e-9),
            cpu_us_per_op: sample.cpu_us_per_op(),
            cpus_used: sample.cpu_us / (sample.wall.as_secs_f64() * 1e6).max(1e-9),
            of_linear: None,
        })
    }
}

/// How far each point is from so many times the first.
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
    depths.iter().find(|point| point.iops >= 0.95 * best).map_or(DEEP, |point| point.depth)
}

/// Ten for the slowest drive; no more than weights may be.
fn weights(drives: &[DriveFigures]) -> Vec<u32> {
    let slowest = drives.iter().map(|drive| drive.alone.iops).fold(f64::INFINITY, f64::min).max(1e-9);
    drives.iter().map(|drive| ((drive.alone.iops / slowest * 10.0).round() as u32).clamp(1, 1000)).collect()
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

    #[test]
    fn a_real_place_is_measured_and_left_as_it_was() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let settings = Settings {
            places: vec![dir.path().to_owned(), PathBuf::from("/dev/shm")],
            part_bytes: 4 << 20,
            slice: Duration::from_millis(20),
            threads: 2,
        };
        let mut why = Vec::new();
        let mut most = (0, 0);
        let mut stage = |stage| {
            if let Stage::Measuring(at) = stage {
                most = (at.done, at.total);
            }
        };
        let figures = run(&settings, &Tree::machine(), &AtomicBool::new(false), &mut stage, &mut why).unwrap().unwrap();
        assert!(why.len() == 1 && why[0].starts_with("/dev/shm: "), "{why:?}");
        assert_eq!((figures.drives.len(), figures.depths.len(), figures.sizes.len()), (1, DEPTHS.len(), SIZES.len()));
        assert!(figures.drives[0].latency.p50_us > 0.0 && figures.drives[0].alone.iops > 1.0, "{figures:?}");
        assert!(most.0 < most.1 && most.0 + 3 >= most.1, "progress ends near its end: {most:?}");
        assert!(!figures.verdict.is_empty() && figures.weights == [10]);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn nothing_to_measure_is_no_error() {
        let settings = Settings {
            places: vec!["/dev/shm".into()],
            part_bytes: 4 << 20,
            slice: Duration::from_millis(1),
            threads: 1,
        };
        let mut why = Vec::new();
        let none = run(&settings, &Tree::machine(), &AtomicBool::new(false), &mut |_| (), &mut why).unwrap();
        assert!(none.is_none() && why.len() == 1, "{why:?}");
        let gone = Settings { places: vec!["/no/such/place".into()], ..settings };
        assert!(run(&gone, &Tree::machine(), &AtomicBool::new(false), &mut |_| (), &mut why).is_err());
    }
}

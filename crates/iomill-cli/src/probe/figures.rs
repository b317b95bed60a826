//! The figures of a probe, and what follows from their numbers alone.

use std::path::PathBuf;

use serde::Serialize;

use super::raw::RawFigures;
use crate::machine::Machine;
use iomill_loops::latency::{Costs, Latency};
use iomill_loops::paths::Cost;
use iomill_loops::served::Served;

/// The depth for measurements with many reads in flight.
pub const DEEP: u32 = 32;
/// The share of the best result that counts as enough.
pub const ENOUGH: f64 = 0.95;
/// Drives count as equal if their speeds differ by less than this factor.
const UNEVEN: f64 = 1.2;
/// A thread that uses more than this share of a CPU has no time left.
pub const BUSY: f64 = 0.9;
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

/// Powers of two below `most`, and `most` itself.
pub fn steps(most: usize) -> Vec<usize> {
    let mut steps: Vec<usize> = std::iter::successors(Some(1), |n| Some(n * 2)).take_while(|n| *n < most).collect();
    steps.push(most.max(1));
    steps
}

/// Sets how close each point is to the first point times its count.
pub fn linear(points: &mut [Point], count: impl Fn(&Point) -> usize) {
    let Some(one) = points.first().map(|first| first.iops / count(first) as f64).filter(|one| *one > 0.0) else {
        return;
    };
    for point in points {
        point.of_linear = Some(point.iops / (one * count(point) as f64));
    }
}

pub fn best_depth(depths: &[Point]) -> u32 {
    let best = depths.iter().map(|point| point.iops).fold(0.0, f64::max);
    depths.iter().find(|point| point.iops >= ENOUGH * best).map_or(DEEP, |point| point.depth)
}

/// The slowest and the fastest drive, if their speeds differ. If the CPUs limited the slowest drive, it is not known to
/// be slower.
pub fn slow_and_fast(drives: &[DriveFigures], cpus: usize) -> Option<(&DriveFigures, &DriveFigures)> {
    let by_speed = |a: &&DriveFigures, b: &&DriveFigures| a.best_iops().total_cmp(&b.best_iops());
    let (slow, fast) = (drives.iter().min_by(by_speed)?, drives.iter().max_by(by_speed)?);
    let are_uneven = fast.best_iops() >= UNEVEN * slow.best_iops() && !is_busy(slow.best(), cpus);
    are_uneven.then_some((slow, fast))
}

/// The slowest drive has weight 10, and no weight exceeds its maximum. Drives of about the same speed get the same
/// weight.
pub fn weights(drives: &[DriveFigures], cpus: usize) -> Vec<u32> {
    let Some((slow, _)) = slow_and_fast(drives, cpus) else { return vec![10; drives.len()] };
    let slowest = slow.best_iops().max(1e-9);
    drives.iter().map(|drive| ((drive.best_iops() / slowest * 10.0).round() as u32).clamp(1, 1000)).collect()
}

/// Whether the CPUs had nothing left during a run, because of the run itself or of other programs.
pub fn is_busy(point: &Point, cpus: usize) -> bool {
    let cpus = cpus.max(1);
    point.cpus_used >= BUSY * point.threads.min(cpus) as f64 || is_crowded(point, cpus)
}

/// Whether almost no CPU time was left, used by any program.
pub fn is_crowded(point: &Point, cpus: usize) -> bool {
    point.cpus_idle.is_some_and(|idle| idle <= (1.0 - BUSY) * cpus as f64)
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
}

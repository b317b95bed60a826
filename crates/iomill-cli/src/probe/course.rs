//! The runs of a probe, one after the other.
//!
//! Goals: the runs for each question, and progress reports. Non-goals: the meaning of the figures; `verdict` says that.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use iomill::{Error, Result};
use iomill_platform::drives::{self, Drive, Transport};
use iomill_platform::machine::Machine as Platform;
use iomill_platform::tree::Tree;

use super::figures::{Adapter, DEEP, DriveFigures, ENOUGH, Figures, Point, Way, best_depth, linear, steps, weights};
use super::idle::Seconds;
use super::profile;
use super::raw::{Depth, Raw, RawFigures};
use crate::machine::Machine;
use iomill_loops::clock::Sample;
use iomill_loops::draw::PAGE_BYTES;
use iomill_loops::loops::{Failed, Loop, Work};
use iomill_loops::parts::Part;
use iomill_loops::paths::{self, Cost, Ground};
use iomill_loops::{latency, served};

const PAGE: u32 = PAGE_BYTES as u32;
/// Measured depths: the number of reads in flight on each drive.
pub const DEPTHS: [u32; 8] = [1, 2, 4, 8, 16, 32, 64, 128];
/// Measured request sizes, in bytes.
pub const SIZES: [u32; 5] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];
/// Bytes per read when bandwidth is measured.
pub const WIDE_BYTES: u32 = 64 << 10;

/// What to probe.
#[derive(Clone, Debug)]
pub struct Settings {
    /// A directory on each drive.
    pub places: Vec<PathBuf>,
    /// Block devices to read without a file system.
    pub raw: Vec<PathBuf>,
    /// Length of the file that is made in each place, in bytes.
    pub part_bytes: u64,
    /// Duration of each run. Its faster half counts.
    pub slice: Duration,
    /// Maximum number of threads.
    pub threads: usize,
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

/// See the head of this file.
pub struct Course<'a> {
    settings: &'a Settings,
    tree: &'a Tree,
    platform: Platform,
    cancel: &'a AtomicBool,
    stage: &'a mut dyn FnMut(Stage),
    done: usize,
    total: usize,
}

/// A drive, and the PCI function of its adapter.
struct Found {
    figures: DriveFigures,
    function: Option<String>,
}

/// A sample, with the shares of the CPUs that were idle and in interrupts during it, if the kernel counts them.
type Half = (Sample, (Option<f64>, Option<f64>));

impl<'a> Course<'a> {
    /// A course over `places` directories.
    pub fn new(
        settings: &'a Settings,
        tree: &'a Tree,
        cancel: &'a AtomicBool,
        stage: &'a mut dyn FnMut(Stage),
        places: usize,
    ) -> Course<'a> {
        let of_drives = match places {
            0 => 0,
            drives => {
                (1 + DEPTHS.len() + usize::from(settings.threads > 1)) * drives
                    + 1
                    + 3
                    + paths::WAYS_MAX
                    + 2 * DEPTHS.len()
                    + SIZES.len()
                    + 2 * steps(settings.threads).len()
                    + 2 * steps(drives).len()
                    + served::RUNS
            }
        };
        let total = of_drives + settings.raw.len() * (1 + paths::WAYS_MAX + DEPTHS.len());
        Course { settings, tree, platform: Platform::look(tree), cancel, stage, done: 0, total }
    }

    /// The receiver of progress reports.
    pub fn stage(&mut self) -> &mut dyn FnMut(Stage) {
        self.stage
    }

    /// Runs all measurements on files.
    pub fn all(&mut self, parts: &[Part], places: &[PathBuf]) -> Result<Figures> {
        let mut found = Vec::new();
        for (part, place) in parts.iter().zip(places) {
            found.push(self.drive(part, place)?);
        }
        self.tell("costs of the CPU");
        let costs = latency::costs(&parts[0].path, self.settings.slice, self.cancel)?;
        let mut figures = Figures { costs, ways: self.ways(parts)?, ..Figures::default() };
        let below = self.below(&places[0]);
        let ground = Ground {
            node: &parts[0].path,
            name: &places[0],
            on: "file",
            len_bytes: parts[0].len_bytes,
            unpolled: self.why_unpolled(&below),
        };
        figures.paths = self.paths(&ground, &mut figures.paths_left_out)?;
        self.sweeps(parts, &mut figures)?;
        figures.adapters = self.adapters(parts, &mut found)?;
        figures.drives = found.into_iter().map(|one| one.figures).collect();
        let (slice, cancel, part_bytes) = (self.settings.slice, self.cancel, self.settings.part_bytes);
        figures.served = Some(served::measure(places, part_bytes, slice, cancel, &mut |what| self.tell(what))?);
        figures.machine = Machine::look(parts);
        figures.best_depth = best_depth(&figures.depths);
        figures.weights = weights(&figures.drives, figures.machine.cores_allowed);
        Ok(figures)
    }

    fn drive(&mut self, part: &Part, place: &Path) -> Result<Found> {
        let below = self.below(place);
        self.tell("latency");
        let slice = self.settings.slice;
        let latency = latency::measure(&part.path, part.len_bytes, &below, self.tree, slice, self.cancel)?;
        let alone = std::slice::from_ref(part);
        let mut depths = Vec::new();
        for depth in DEPTHS {
            depths.push(self.point(alone, "each drive alone", 1, depth, PAGE)?);
        }
        let deep = depths.iter().find(|point| point.depth == DEEP);
        let deep =
            deep.ok_or_else(|| Error::invalid(format!("depth {DEEP}"), "add it to the depths that are measured"))?;
        let alone_all_threads = match self.settings.threads {
            most if most > 1 => self.point(alone, "each drive alone", most, DEEP, PAGE)?,
            _ => deep.clone(),
        };
        let figures = DriveFigures {
            path: place.to_owned(),
            node: common_node(&below),
            latency,
            alone: deep.clone(),
            alone_all_threads,
            best_depth: best_depth(&depths),
            depths,
            id: profile::id_of(place)?,
            adapter: None,
            devices: below.iter().map(|drive| drive.name.clone()).collect(),
        };
        // Each NVMe drive is an adapter of its own.
        let function = match &below[..] {
            [drive] if drive.transport != Transport::Nvme => drive.function.clone(),
            _ => None,
        };
        Ok(Found { figures, function })
    }

    fn sweeps(&mut self, parts: &[Part], figures: &mut Figures) -> Result<()> {
        let most = self.settings.threads;
        for depth in DEPTHS {
            figures.depths.push(self.point(parts, "depth", 1, depth, PAGE)?);
            figures.depths_wide.push(self.point(parts, "depth", 1, depth, WIDE_BYTES)?);
        }
        for size in SIZES {
            let depth = if size > WIDE_BYTES { 8 } else { DEEP };
            figures.sizes.push(self.point(parts, "request size", 1, depth, size)?);
        }
        for count in steps(most) {
            figures.threads.push(self.point(parts, "threads", count, DEEP, PAGE)?);
            figures.threads_wide.push(self.point(parts, "threads", count, DEEP, WIDE_BYTES)?);
        }
        for count in steps(parts.len()) {
            figures.drive_counts.push(self.point(&parts[..count], "drives", most, DEEP, PAGE)?);
            figures.drive_counts_wide.push(self.point(&parts[..count], "drives", most, DEEP, WIDE_BYTES)?);
        }
        linear(&mut figures.threads, |point| point.threads);
        linear(&mut figures.threads_wide, |point| point.threads);
        linear(&mut figures.drive_counts, |point| point.drives);
        linear(&mut figures.drive_counts_wide, |point| point.drives);
        Ok(())
    }

    /// Measures the drives of each adapter that has several, all at the same time.
    fn adapters(&mut self, parts: &[Part], found: &mut [Found]) -> Result<Vec<Adapter>> {
        let mut groups: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for (index, one) in found.iter().enumerate() {
            // Several directories on one drive are no group.
            let is_new = found[..index].iter().all(|other| other.figures.devices != one.figures.devices);
            if let Some(function) = one.function.as_ref().filter(|_| is_new) {
                groups.entry(function.clone()).or_default().push(index);
            }
        }
        let mut adapters = Vec::new();
        for (function, members) in groups.into_iter().filter(|(_, members)| members.len() > 1) {
            let name = function.rsplit('/').next().unwrap_or_default().to_owned();
            let together: Vec<Part> = members.iter().map(|&index| parts[index].clone()).collect();
            self.total += 1;
            let together = self.point(&together, "drives of one adapter", self.settings.threads, DEEP, PAGE)?;
            for &index in &members {
                found[index].figures.adapter = Some(name.clone());
            }
            adapters.push(Adapter {
                drives: members.iter().map(|&index| found[index].figures.path.clone()).collect(),
                alone_iops: members.iter().map(|&index| found[index].figures.best_iops()).sum(),
                together,
                name,
            });
        }
        Ok(adapters)
    }

    /// Measures devices without a file system.
    pub fn raw(&mut self, raw: &[Raw], figures: &mut Figures) -> Result<()> {
        for device in raw {
            let (below, slice) = (self.below(&device.path), self.settings.slice);
            self.tell("raw devices");
            let latency = latency::measure(&device.path, device.len_bytes, &below, self.tree, slice, self.cancel)?;
            let ground = Ground {
                node: &device.path,
                name: &device.path,
                on: "block device",
                len_bytes: device.len_bytes,
                unpolled: self.why_unpolled(&below),
            };
            let best = paths::ways(&ground, &mut Vec::new()).into_iter().find(|way| way.is_plain());
            let mut depths = Vec::new();
            for depth in DEPTHS {
                self.tell("raw devices");
                let Some(way) = best else { break };
                let Cost { iops, cpu_us_per_op, .. } = paths::measure(&ground, way, depth, slice, self.cancel)?;
                depths.push(Depth { depth, iops, cpu_us_per_op });
            }
            figures.paths.extend(self.paths(&ground, &mut figures.paths_left_out)?);
            let most = depths.iter().map(|depth| depth.iops).fold(0.0, f64::max);
            let enough = depths.iter().find(|depth| depth.iops >= ENOUGH * most);
            figures.raw.push(RawFigures {
                path: device.path.clone(),
                len_bytes: device.len_bytes,
                node: common_node(&below),
                devices: below.into_iter().map(|drive| drive.name).collect(),
                latency,
                best_depth: enough.map_or(DEEP, |depth| depth.depth),
                depths,
            });
        }
        Ok(())
    }

    fn paths(&mut self, ground: &Ground<'_>, left_out: &mut Vec<String>) -> Result<Vec<Cost>> {
        let ways = paths::ways(ground, left_out);
        self.total -= paths::WAYS_MAX.saturating_sub(ways.len()).min(self.total);
        let mut costs = Vec::new();
        for way in ways {
            self.tell("paths to the drive");
            costs.push(paths::measure(ground, way, paths::DEPTH, self.settings.slice, self.cancel)?);
        }
        Ok(costs)
    }

    fn below(&self, place: &Path) -> Vec<Drive> {
        // A path without a slash might be taken for a device's name.
        let place = place.canonicalize().unwrap_or_else(|_| place.to_owned());
        drives::under(self.tree, &self.platform, &[place]).unwrap_or_default()
    }

    fn why_unpolled(&self, below: &[Drive]) -> Option<String> {
        let [drive] = below else { return Some("it is not on exactly one block device".to_owned()) };
        let has_queues = |queue: &String| self.tree.number(&format!("{queue}/queue/io_poll")) == Some(1);
        if drive.queues.iter().any(has_queues) {
            return None;
        }
        let how = match drive.transport {
            Transport::Nvme => "; the kernel parameter `nvme.poll_queues=N` adds some",
            Transport::Virtio => "; the kernel parameter `virtio_blk.poll_queues=N` adds some",
            _ => "",
        };
        Some(format!("{} has no queues for polling (queue/io_poll){how}", drive.name))
    }

    fn tell(&mut self, what: &'static str) {
        (self.stage)(Stage::Measuring { done: self.done, total: self.total, what });
        self.done += 1;
    }

    fn ways(&mut self, parts: &[Part]) -> Result<Vec<Way>> {
        let work = Work { threads: 1, depth: DEEP, request_bytes: PAGE };
        let mut ways = Vec::new();
        for by in [Loop::Uring, Loop::Aio, Loop::Pread] {
            self.tell("ways of reading");
            match by.run(parts, &work, self.settings.slice, self.cancel) {
                Ok(sample) => {
                    let (iops, cpu_us_per_op) = (sample.iops(), sample.cpu_us_per_op());
                    ways.push(Way { name: by.name(), iops, cpu_us_per_op });
                }
                Err(Failed::Refused(_)) => {}
                Err(Failed::Error(error)) => return Err(error),
            }
        }
        Ok(ways)
    }

    /// Runs two halves of a slice, and returns the faster one, which other programs disturbed less. If the kernel
    /// refuses io_uring, it is libaio.
    fn best(&self, parts: &[Part], work: &Work) -> Result<Half> {
        let mut whys = Vec::new();
        for by in [Loop::Uring, Loop::Aio] {
            let halves = self.half(by, parts, work).and_then(|first| Ok((first, self.half(by, parts, work)?)));
            match halves {
                Ok((first, second)) if first.0.iops() > second.0.iops() => return Ok(first),
                Ok((_, second)) => return Ok(second),
                // The limit of locked memory may refuse the second ring and not the first.
                Err(Failed::Refused(why)) => whys.push(why),
                Err(Failed::Error(error)) => return Err(error),
            }
        }
        Err(Error::Tool { what: "reading past the page cache".into(), why: whys.join("; ") })
    }

    fn half(&self, by: Loop, parts: &[Part], work: &Work) -> std::result::Result<Half, Failed> {
        let (start, before) = (Instant::now(), Seconds::now(self.tree));
        let sample = by.run(parts, work, self.settings.slice / 2, self.cancel)?;
        let took = before.zip(Seconds::now(self.tree));
        let wall_s = start.elapsed().as_secs_f64().max(1e-9);
        // The kernel may correct its idle count downwards.
        let share = |of: fn(Seconds) -> f64| took.map(|(from, to)| (of(to) - of(from)).max(0.0) / wall_s);
        Ok((sample, (share(|seconds| seconds.idle), share(|seconds| seconds.interrupts))))
    }

    fn point(&mut self, parts: &[Part], what: &'static str, threads: usize, depth: u32, size: u32) -> Result<Point> {
        self.tell(what);
        let work = Work { threads, depth, request_bytes: size };
        let (sample, (cpus_idle, cpus_interrupts)) = self.best(parts, &work)?;
        Ok(Point {
            drives: parts.len(),
            threads,
            depth,
            request_bytes: size,
            iops: sample.iops(),
            bytes_per_s: sample.iops() * f64::from(size),
            cpu_us_per_op: sample.cpu_us_per_op(),
            cpus_used: sample.cpus_used(),
            cpus_idle,
            cpus_interrupts,
            of_linear: None,
        })
    }
}

/// The NUMA node of the drives, if all have the same.
fn common_node(below: &[Drive]) -> Option<u32> {
    let first = below.first()?.node;
    first.filter(|_| below.iter().all(|drive| drive.node == first))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_current_directory_is_no_name_of_a_device() {
        let settings = Settings {
            places: Vec::new(),
            raw: Vec::new(),
            part_bytes: 0,
            slice: std::time::Duration::ZERO,
            threads: 1,
        };
        let (tree, never, mut stage) = (Tree::machine(), AtomicBool::new(false), |_| ());
        let course = Course::new(&settings, &tree, &never, &mut stage, 0);
        let names = |place: &Path| course.below(place).into_iter().map(|drive| drive.name).collect::<Vec<_>>();
        assert_eq!(names(Path::new(".")), names(&std::env::current_dir().unwrap()));
    }
}

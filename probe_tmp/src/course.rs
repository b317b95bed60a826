//! The runs of a probe, one after the other.
//!
//! Goals: the runs for each question, and progress reports. Non-goals: the meaning of the figures; `verdict` says that.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use iomill::{Error, Result};
use iomill_bench::bench::Stage;
use iomill_bench::contender::{Cache, Contender, Sample, Slice};
use iomill_bench::machine::Machine;
use iomill_bench::pattern::PAGE_BYTES;
use iomill_bench::rivals::{aio::Aio, pread::Pread, uring::Uring};
use iomill_bench::rounds::Progress;
use iomill_bench::target::{Part, Target};
use iomill_bench::workload::Workload;
use iomill_platform::drives::{self, Drive, Transport};
use iomill_platform::machine::Machine as Platform;
use iomill_platform::tree::Tree;

use crate::paths::{self, Cost, Ground};
use crate::raw::{Depth, Raw, RawFigures};
use crate::{
    Adapter, DEEP, DEPTHS, DriveFigures, Figures, Point, SIZES, Settings, WIDE_BYTES, Way, best_depth, idle::Seconds,
    latency, linear, profile, served, steps, weights,
};

const PAGE: u32 = PAGE_BYTES as u32;

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
    pub fn all(&mut self, target: &Target, places: &[PathBuf]) -> Result<Figures> {
        let parts = target.parts();
        let mut found = Vec::new();
        for (part, place) in parts.iter().zip(places) {
            found.push(self.drive(part, place)?);
        }
        self.tell("costs of the CPU");
        let costs = latency::costs(&parts[0].path, self.settings.slice, self.cancel)?;
        let mut figures = Figures { costs, ways: self.ways(target)?, ..Figures::default() };
        let below = self.below(&places[0]);
        let ground = Ground {
            node: &parts[0].path,
            name: &places[0],
            on: "file",
            len_bytes: parts[0].len_bytes,
            unpolled: self.why_unpolled(&below),
        };
        figures.paths = self.paths(&ground, &mut figures.paths_left_out)?;
        self.sweeps(target, &mut figures)?;
        figures.adapters = self.adapters(target, &mut found)?;
        figures.drives = found.into_iter().map(|one| one.figures).collect();
        let (slice, cancel, part_bytes) = (self.settings.slice, self.cancel, self.settings.part_bytes);
        figures.served = Some(served::measure(places, part_bytes, slice, cancel, &mut |what| self.tell(what))?);
        figures.machine = Machine::look(target);
        figures.best_depth = best_depth(&figures.depths);
        figures.weights = weights(&figures.drives, figures.machine.cores_allowed);
        Ok(figures)
    }

    fn drive(&mut self, part: &Part, place: &Path) -> Result<Found> {
        let below = self.below(place);
        self.tell("latency");
        let slice = self.settings.slice;
        let latency = latency::measure(&part.path, part.len_bytes, &below, self.tree, slice, self.cancel)?;
        let alone = Target::new(vec![part.clone()], 1, Target::striped(1, 16))?;
        let mut depths = Vec::new();
        for depth in DEPTHS {
            depths.push(self.point(&alone, "each drive alone", 1, depth, PAGE)?);
        }
        let deep = depths.iter().find(|point| point.depth == DEEP);
        let deep =
            deep.ok_or_else(|| Error::invalid(format!("depth {DEEP}"), "add it to the depths that are measured"))?;
        let alone_all_threads = match self.settings.threads {
            most if most > 1 => self.point(&alone, "each drive alone", most, DEEP, PAGE)?,
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

    fn sweeps(&mut self, target: &Target, figures: &mut Figures) -> Result<()> {
        let parts = target.parts();
        let some = |count: usize| Target::new(parts[..count].to_vec(), 1, Target::striped(parts.len(), 16));
        let most = self.settings.threads;
        for depth in DEPTHS {
            figures.depths.push(self.point(target, "depth", 1, depth, PAGE)?);
            figures.depths_wide.push(self.point(target, "depth", 1, depth, WIDE_BYTES)?);
        }
        for size in SIZES {
            let depth = if size > WIDE_BYTES { 8 } else { DEEP };
            figures.sizes.push(self.point(target, "request size", 1, depth, size)?);
        }
        for count in steps(most) {
            figures.threads.push(self.point(target, "threads", count, DEEP, PAGE)?);
            figures.threads_wide.push(self.point(target, "threads", count, DEEP, WIDE_BYTES)?);
        }
        for count in steps(parts.len()) {
            figures.drive_counts.push(self.point(&some(count)?, "drives", most, DEEP, PAGE)?);
            figures.drive_counts_wide.push(self.point(&some(count)?, "drives", most, DEEP, WIDE_BYTES)?);
        }
        linear(&mut figures.threads, |point| point.threads);
        linear(&mut figures.threads_wide, |point| point.threads);
        linear(&mut figures.drive_counts, |point| point.drives);
        linear(&mut figures.drive_counts_wide, |point| point.drives);
        Ok(())
    }

    /// Measures the drives of each adapter that has several, all at the same time.
    fn adapters(&mut self, target: &Target, found: &mut [Found]) -> Result<Vec<Adapter>> {
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
            let parts: Vec<Part> = members.iter().map(|&index| target.parts()[index].clone()).collect();
            let together = Target::new(parts, 1, Target::striped(members.len(), 16))?;
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
            let enough = depths.iter().find(|depth| depth.iops >= super::ENOUGH * most);
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
                let sample = match contender.run(&self.slice(1)) {
                    Err(_) if contender.lost().is_some() => continue,
                    sample => sample?,
                };
                ways.push(Way {
                    name: contender.name(),
                    iops: sample.ops_per_s(),
                    cpu_us_per_op: sample.cpu_us_per_op(),
                });
            }
        }
        Ok(ways)
    }

    /// Runs two halves of a slice, and returns the faster one, which other programs disturbed less.
    fn best(&self, target: &Target, workload: &Workload, threads: usize) -> Result<Half> {
        let contenders: [Box<dyn Contender>; 2] =
            [Box::new(Uring::new(target.clone())), Box::new(Aio::new(target.clone()))];
        let mut whys = Vec::new();
        for mut contender in contenders {
            if let Some(why) = contender.prepare(workload)? {
                whys.push(why);
                continue;
            }
            let first = self.measured_half(&mut *contender, threads);
            match first.and_then(|first| Ok((first, self.measured_half(&mut *contender, threads)?))) {
                Ok((first, second)) if first.0.ops_per_s() > second.0.ops_per_s() => return Ok(first),
                Ok((_, second)) => return Ok(second),
                // The limit of locked memory may now refuse a ring that it allowed a moment ago.
                Err(error) => whys.push(contender.lost().ok_or(error)?),
            }
        }
        Err(Error::Tool { what: "reading past the page cache".into(), why: whys.join("; ") })
    }

    fn measured_half(&self, contender: &mut dyn Contender, threads: usize) -> Result<Half> {
        let (start, before) = (Instant::now(), Seconds::now(self.tree));
        let sample = contender.run(&self.half(threads))?;
        let took = before.zip(Seconds::now(self.tree));
        let wall_s = start.elapsed().as_secs_f64().max(1e-9);
        // The kernel may correct its idle count downwards.
        let share = |of: fn(Seconds) -> f64| took.map(|(from, to)| (of(to) - of(from)).max(0.0) / wall_s);
        Ok((sample, (share(|seconds| seconds.idle), share(|seconds| seconds.interrupts))))
    }

    fn half(&self, threads: usize) -> Slice<'_> {
        Slice { duration: self.settings.slice / 2, ..self.slice(threads) }
    }

    fn slice(&self, threads: usize) -> Slice<'_> {
        Slice { threads, duration: self.settings.slice, verify: false, cancel: self.cancel }
    }

    fn point(&mut self, target: &Target, what: &'static str, threads: usize, depth: u32, size: u32) -> Result<Point> {
        self.tell(what);
        let workload = Workload { depth, block_bytes: size, ..Workload::RANDOM_READ };
        let (sample, (cpus_idle, cpus_interrupts)) = self.best(target, &workload, threads)?;
        Ok(Point {
            drives: target.parts().len(),
            threads,
            depth,
            request_bytes: size,
            iops: sample.ops_per_s(),
            bytes_per_s: sample.bytes as f64 / sample.wall.as_secs_f64().max(1e-9),
            cpu_us_per_op: sample.cpu_us_per_op(),
            cpus_used: sample.cpu_us / (sample.wall.as_secs_f64() * 1e6).max(1e-9),
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

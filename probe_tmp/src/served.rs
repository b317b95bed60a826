//! The best settings of iomill on these drives: I/O by the caller or by a thread for each drive, and how many requests gather.
//!
//! Goals: a new array below the places, which is removed at the end. The calls that each setting affects run in turns.
//! Non-goals: depth; it is each drive's own and is measured without iomill.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use iomill::{ArrayOptions, Error, Layout, Mode, Request, Result};
use iomill_bench::arena::{Arena, Shape};
use iomill_bench::contender::{Contender, IOMILL_DRIVE_THREADS, IOMILL_INLINE, Slice};
use iomill_bench::iomill::Iomill;
use iomill_bench::pattern::PAGE_BYTES;
use iomill_bench::threads::process_cpu_us;
use iomill_bench::workload::Workload;
use serde::Serialize;

/// Measured plugs.
pub const PLUGS: [u32; 4] = [1, 8, 32, 128];
/// Drive threads must be faster by this factor to be chosen. They cost a thread for each drive, and wakes.
const BETTER: f64 = 1.05;
/// A plug must reach this share of the best to be chosen.
const ENOUGH: f64 = 0.95;
/// Requests in one call, and calls in flight.
const CALL_TASKS: usize = 16;
const CALLS: usize = 64;
/// Maximum number of bytes written on each drive.
const PART_BYTES_MAX: u64 = 64 << 20;
/// Number of turns of each mode.
const TURNS: usize = 2;

/// Number of runs of this measurement.
pub const RUNS: usize = 2 * TURNS + PLUGS.len();

/// A setting and its result.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Setting<T> {
    /// Its value.
    pub value: T,
    /// Reads of 4 KiB per second.
    pub iops: f64,
    /// CPU time per read in microseconds.
    pub cpu_us_per_op: f64,
}

/// The results.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Served {
    /// Modes of blocking calls: random reads in batches by one thread.
    pub modes: Vec<Setting<&'static str>>,
    /// Numbers of asynchronous requests that gather: sequential pages, many calls in flight.
    pub plugs: Vec<Setting<u32>>,
    /// The better mode: `auto` (the caller) or `drive-threads`.
    pub best_mode: &'static str,
    /// The smallest plug that reaches 95% of the best.
    pub best_plug: u32,
}

impl Served {
    /// The better mode, as an option.
    pub fn mode(&self) -> Mode {
        if self.best_mode == DRIVE_THREADS { Mode::DriveThreads } else { Mode::Auto }
    }
}

const AUTO: &str = "auto";
const DRIVE_THREADS: &str = "drive-threads";

/// Measures on a new array below the places.
pub fn measure(
    places: &[PathBuf],
    part_bytes: u64,
    slice: Duration,
    cancel: &AtomicBool,
    tell: &mut dyn FnMut(&'static str),
) -> Result<Served> {
    Arena::fresh_over(places, places.len())?.measured(|arena| {
        let len_bytes = part_bytes.min(PART_BYTES_MAX) * places.len() as u64;
        arena.fill(&Shape { len_bytes, layout: Layout::striping() }, cancel, &mut |_, _| ())?;
        let modes = modes(arena, slice, cancel, tell)?;
        let mut plugs = Vec::new();
        for plug in PLUGS {
            tell("requests that gather");
            plugs.push(gathered(arena, plug, slice, cancel)?);
        }
        Ok(Served { best_mode: best_mode(&modes), best_plug: best_plug(&plugs), modes, plugs })
    })
}

fn modes(
    arena: &Arena,
    slice: Duration,
    cancel: &AtomicBool,
    tell: &mut dyn FnMut(&'static str),
) -> Result<Vec<Setting<&'static str>>> {
    let mut sums = [(AUTO, 0u64, Duration::ZERO, 0.0), (DRIVE_THREADS, 0, Duration::ZERO, 0.0)];
    for _ in 0..TURNS {
        for (sum, name) in sums.iter_mut().zip([IOMILL_INLINE, IOMILL_DRIVE_THREADS]) {
            tell("modes of blocking reads");
            let mut iomill = Iomill::new(name, arena, &ArrayOptions::new())?;
            if let Some(why) = iomill.prepare(&Workload::RANDOM_READ)? {
                return Err(Error::Tool { what: format!("the mode {}", sum.0), why });
            }
            let sample = iomill.run(&Slice { threads: 1, duration: slice, verify: false, cancel })?;
            (sum.1, sum.2, sum.3) = (sum.1 + sample.ops, sum.2 + sample.wall, sum.3 + sample.cpu_us);
        }
    }
    let setting = |(value, ops, wall, cpu_us): (_, u64, Duration, f64)| Setting {
        value,
        iops: ops as f64 / wall.as_secs_f64().max(1e-9),
        cpu_us_per_op: cpu_us / ops.max(1) as f64,
    };
    Ok(sums.map(setting).into())
}

/// Reads sequential pages by callbacks, so that neighbouring requests can gather.
fn gathered(arena: &Arena, plug: u32, slice: Duration, cancel: &AtomicBool) -> Result<Setting<u32>> {
    let array = ArrayOptions::new().cache_bytes(0).read_only(true).plug(plug).open_at(arena.drives())?;
    let file = array.open_file(arena.file_name())?;
    let pages = (file.len() / PAGE_BYTES as u64).max(1);
    let (tell, told) = channel();
    let (mut next, mut in_flight, mut reads) = (0, 0, 0u64);
    let (start, cpu_before) = (Instant::now(), process_cpu_us()?);
    loop {
        let goes_on = start.elapsed() < slice && !cancel.load(Ordering::Relaxed);
        while goes_on && in_flight < CALLS {
            let task =
                |at: usize| Request::Read { offset: (next + at as u64) % pages * PAGE_BYTES as u64, len: PAGE_BYTES };
            let tell = tell.clone();
            // The receiver is gone only after an error, and the caller gets that error.
            file.submit((0..CALL_TASKS).map(task).collect(), move |result| {
                drop(tell.send(result.map(|all| all.len())))
            })?;
            next += CALL_TASKS as u64;
            in_flight += 1;
        }
        if in_flight == 0 {
            break;
        }
        let lost = |_| Error::Tool { what: "a callback".into(), why: "it was never called".into() };
        reads += told.recv().map_err(lost)?? as u64;
        in_flight -= 1;
    }
    let (wall, cpu_us) = (start.elapsed(), process_cpu_us()? - cpu_before);
    file.close()?;
    array.close()?;
    Ok(Setting {
        value: plug,
        iops: reads as f64 / wall.as_secs_f64().max(1e-9),
        cpu_us_per_op: cpu_us / reads.max(1) as f64,
    })
}

fn best_mode(modes: &[Setting<&'static str>]) -> &'static str {
    let iops = |name| modes.iter().find(|mode| mode.value == name).map_or(0.0, |mode| mode.iops);
    if iops(DRIVE_THREADS) >= BETTER * iops(AUTO) && iops(DRIVE_THREADS) > 0.0 { DRIVE_THREADS } else { AUTO }
}

fn best_plug(plugs: &[Setting<u32>]) -> u32 {
    let best = plugs.iter().map(|plug| plug.iops).fold(0.0, f64::max);
    plugs.iter().find(|plug| plug.iops >= ENOUGH * best).map_or(iomill::DEFAULT_PLUG, |plug| plug.value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setting<T>(value: T, iops: f64) -> Setting<T> {
        Setting { value, iops, cpu_us_per_op: 1.0 }
    }

    #[test]
    fn the_better_setting_is_taken_if_it_is_better_enough() {
        assert_eq!(best_mode(&[setting(AUTO, 100.0), setting(DRIVE_THREADS, 104.0)]), AUTO);
        assert_eq!(best_mode(&[setting(AUTO, 100.0), setting(DRIVE_THREADS, 106.0)]), DRIVE_THREADS);
        assert_eq!(best_mode(&[setting(AUTO, 0.0), setting(DRIVE_THREADS, 0.0)]), AUTO);
        let plugs = [(1, 50.0), (8, 93.0), (32, 96.0), (128, 100.0)].map(|(plug, iops)| setting(plug, iops));
        assert_eq!(best_plug(&plugs), 32);
        assert_eq!(best_plug(&[]), iomill::DEFAULT_PLUG);
    }

    #[test]
    fn a_real_array_is_measured_and_removed() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let mut told = 0;
        let slice = Duration::from_millis(20);
        let places = [dir.path().to_owned()];
        let served = measure(&places, 4 << 20, slice, &AtomicBool::new(false), &mut |_| told += 1).unwrap();
        assert_eq!((told, served.modes.len(), served.plugs.len()), (RUNS, 2, PLUGS.len()));
        assert!(served.modes.iter().all(|mode| mode.iops > 0.0), "{served:?}");
        assert!(served.plugs.iter().all(|plug| plug.iops > 0.0), "{served:?}");
        assert!(PLUGS.contains(&served.best_plug));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}

//! The best settings of iomill on these drives: I/O by the caller or by a thread for each drive, and how many requests gather.
//!
//! Goals: a new array below the places, which is removed at the end. The calls that each setting affects run in turns.
//! Non-goals: depth; it is each drive's own and is measured without iomill.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use iomill::{ArrayOptions, Error, Layout, Mode, Request, Result};
use serde::Serialize;

use super::clock::{Sample, Watch};
use super::draw::{PAGE_BYTES, Rng};
use super::leftovers::{self, By};

/// Measured plugs.
pub const PLUGS: [u32; 4] = [1, 8, 32, 128];
/// Drive threads must be faster by this factor to be chosen. They cost a thread for each drive, and wakes.
const BETTER: f64 = 1.05;
/// A plug must reach this share of the best to be chosen.
const ENOUGH: f64 = 0.95;
/// Reads in one blocking call on each drive: several times as many as are in flight, so that the drives have work until its end. The
/// memory of a call fits in the CPU's caches.
const BATCH: usize = 512;
const BATCH_BYTES_MAX: usize = 8 << 20;
/// Requests in one asynchronous call, and calls in flight.
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

impl<T> Setting<T> {
    fn of(value: T, sample: Sample) -> Setting<T> {
        Setting { value, iops: sample.iops(), cpu_us_per_op: sample.cpu_us_per_op() }
    }
}

const AUTO: &str = "auto";
const DRIVE_THREADS: &str = "drive-threads";

/// A new array of a directory in each place. It is removed on drop.
#[derive(Debug, Default)]
struct Fresh {
    /// All of these were made here.
    drives: Vec<PathBuf>,
}

/// The only file in it.
const FILE: &str = "reads";

impl Fresh {
    fn make(places: &[PathBuf], len_bytes: u64, cancel: &AtomicBool) -> Result<Fresh> {
        let name = format!("{}.array", leftovers::name(By::Probe));
        let mut fresh = Fresh::default();
        for drive in places.iter().map(|place| place.join(&name)) {
            fs::create_dir(&drive).map_err(|e| Error::io("create", &drive, e))?;
            fresh.drives.push(drive);
        }
        let array = ArrayOptions::new().cache_bytes(0).create(&fresh.drives)?;
        let file = array.create_file(FILE, Layout::striping())?;
        file.preallocate(len_bytes)?;
        let (mut rng, mut chunk, mut done) = (Rng::new(1), array.buffer(4 << 20)?, 0);
        while done < len_bytes && !cancel.load(Ordering::Relaxed) {
            let len = (len_bytes - done).min(chunk.len() as u64);
            rng.fill(&mut chunk[..len as usize]);
            file.write_at(&chunk[..len as usize], done)?;
            done += len;
        }
        file.close()?;
        drop(chunk);
        array.close()?;
        Ok(fresh)
    }

    fn remove(&mut self) -> Result<()> {
        let failed = |drive: PathBuf| fs::remove_dir_all(&drive).err().map(|e| Error::io("remove", drive, e));
        // A failure for one directory does not stop the removal of the others.
        let failures: Vec<Error> = self.drives.drain(..).filter_map(failed).collect();
        failures.into_iter().next().map_or(Ok(()), Err)
    }
}

impl Drop for Fresh {
    fn drop(&mut self) {
        // After an error. The user sees that error, and the next probe removes what is left.
        let _ = self.remove();
    }
}

/// Measures on a new array below the places.
pub fn measure(
    places: &[PathBuf],
    part_bytes: u64,
    slice: Duration,
    cancel: &AtomicBool,
    tell: &mut dyn FnMut(&'static str),
) -> Result<Served> {
    let page_bytes = PAGE_BYTES as u64;
    let len_bytes = part_bytes.min(PART_BYTES_MAX) * places.len() as u64 / page_bytes * page_bytes;
    let mut fresh = Fresh::make(places, len_bytes, cancel)?;
    let mut sums = [Sample::default(); 2];
    for _ in 0..TURNS {
        for (sum, mode) in sums.iter_mut().zip([Mode::Inline, Mode::DriveThreads]) {
            tell("modes of blocking reads");
            *sum = sum.and(blocking(&fresh.drives, mode, slice, cancel)?);
        }
    }
    let mut plugs = Vec::new();
    for plug in PLUGS {
        tell("requests that gather");
        plugs.push(Setting::of(plug, gathered(&fresh.drives, plug, slice, cancel)?));
    }
    fresh.remove()?;
    let modes = vec![Setting::of(AUTO, sums[0]), Setting::of(DRIVE_THREADS, sums[1])];
    Ok(Served { best_mode: best_mode(&modes), best_plug: best_plug(&plugs), modes, plugs })
}

/// Reads random pages in batches.
fn blocking(drives: &[PathBuf], mode: Mode, slice: Duration, cancel: &AtomicBool) -> Result<Sample> {
    let array = ArrayOptions::new().cache_bytes(0).read_only(true).mode(mode).open_at(drives)?;
    let file = array.open_file(FILE)?;
    let pages = (file.len() / PAGE_BYTES as u64).max(1);
    let mut offsets = vec![0; (BATCH * drives.len()).min(BATCH_BYTES_MAX / PAGE_BYTES)];
    let mut pages_read = array.buffer(offsets.len() * PAGE_BYTES)?;
    // The first read makes the rings before the clock starts.
    file.read_at(&mut pages_read[..PAGE_BYTES], 0)?;
    let (mut rng, mut reads, watch) = (Rng::new(2), 0, Watch::start()?);
    while watch.goes_on(slice, cancel) {
        offsets.fill_with(|| rng.draw() % pages * PAGE_BYTES as u64);
        file.read_many(&mut pages_read, &offsets, PAGE_BYTES)?;
        reads += offsets.len() as u64;
    }
    let sample = watch.end(reads)?;
    file.close()?;
    drop(pages_read);
    array.close()?;
    Ok(sample)
}

/// Reads sequential pages by callbacks, so that neighbouring requests can gather.
fn gathered(drives: &[PathBuf], plug: u32, slice: Duration, cancel: &AtomicBool) -> Result<Sample> {
    let array = ArrayOptions::new().cache_bytes(0).read_only(true).plug(plug).open_at(drives)?;
    let file = array.open_file(FILE)?;
    let pages = (file.len() / PAGE_BYTES as u64).max(1);
    let (tell, told) = channel();
    let (mut next, mut in_flight, mut reads) = (0, 0, 0);
    let watch = Watch::start()?;
    loop {
        let goes_on = watch.goes_on(slice, cancel);
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
    let sample = watch.end(reads)?;
    file.close()?;
    array.close()?;
    Ok(sample)
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

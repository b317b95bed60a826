//! The best settings of iomill on these drives: I/O by the caller or by a thread for each drive, and how many requests
//! gather.
//!
//! Goals: a new array below the places, which is removed at the end. The calls that each setting affects run in turns.
//! Non-goals: depth; it is each drive's own and is measured without iomill.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use iomill::{ArrayOptions, Error, FileOptions, Result, Tuning};
use serde::Serialize;

use super::clock::{Sample, Watch};
use super::draw::{PAGE_BYTES, Rng};
use super::leftovers::{self, By};

/// Drive threads must be faster by this factor to be chosen. They cost a thread for each drive, and wakes.
const BETTER: f64 = 1.05;
/// Reads in one blocking call on each drive: several times as many as are in flight, so that the drives have work until
/// its end. The memory of a call fits in the CPU's caches.
const BATCH: usize = 512;
const BATCH_BYTES_MAX: usize = 8 << 20;
/// Maximum number of bytes written on each drive.
const PART_BYTES_MAX: u64 = 64 << 20;
/// Number of turns of each way.
const TURNS: usize = 2;

/// Number of runs of this measurement.
pub const RUNS: usize = 2 * TURNS;

/// A setting and its result.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Setting {
    /// Its value: `caller` or `drive-threads`.
    pub value: &'static str,
    /// Reads of 4 KiB per second.
    pub iops: f64,
    /// CPU time per read in microseconds.
    pub cpu_us_per_op: f64,
}

/// The results.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Served {
    /// Random reads in batches by one thread, without drive threads and with them.
    pub ways: Vec<Setting>,
    /// Whether drive threads are better by so much that they are worth their cost.
    pub drive_threads: bool,
}

impl Setting {
    fn of(value: &'static str, sample: Sample) -> Setting {
        Setting { value, iops: sample.iops(), cpu_us_per_op: sample.cpu_us_per_op() }
    }
}

const CALLER: &str = "caller";
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
        let file = array.create_file(FILE, &FileOptions::new())?;
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
        for (sum, drive_threads) in sums.iter_mut().zip([false, true]) {
            tell("blocking reads");
            *sum = sum.and(blocking(&fresh.drives, drive_threads, slice, cancel)?);
        }
    }
    fresh.remove()?;
    let ways = vec![Setting::of(CALLER, sums[0]), Setting::of(DRIVE_THREADS, sums[1])];
    Ok(Served { drive_threads: are_better(&ways), ways })
}

/// Reads random pages in batches.
fn blocking(drives: &[PathBuf], drive_threads: bool, slice: Duration, cancel: &AtomicBool) -> Result<Sample> {
    let array = ArrayOptions::new()
        .cache_bytes(0)
        .read_only(true)
        .tuning(Tuning::new().drive_threads(drive_threads))
        .open_at(drives)?;
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

fn are_better(ways: &[Setting]) -> bool {
    let iops = |name| ways.iter().find(|way| way.value == name).map_or(0.0, |way| way.iops);
    iops(DRIVE_THREADS) >= BETTER * iops(CALLER) && iops(DRIVE_THREADS) > 0.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setting(value: &'static str, iops: f64) -> Setting {
        Setting { value, iops, cpu_us_per_op: 1.0 }
    }

    #[test]
    fn drive_threads_are_taken_if_they_are_better_enough() {
        let are_better = |caller, threads| are_better(&[setting(CALLER, caller), setting(DRIVE_THREADS, threads)]);
        assert!(!are_better(100.0, 104.0) && are_better(100.0, 106.0) && !are_better(0.0, 0.0));
    }

    #[test]
    fn a_real_array_is_measured_and_removed() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let mut told = 0;
        let slice = Duration::from_millis(20);
        let places = [dir.path().to_owned()];
        let served = measure(&places, 4 << 20, slice, &AtomicBool::new(false), &mut |_| told += 1).unwrap();
        assert_eq!((told, served.ways.len()), (RUNS, 2));
        assert!(served.ways.iter().all(|way| way.iops > 0.0), "{served:?}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}

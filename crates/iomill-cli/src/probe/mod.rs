//! Measures what a machine and its drives can do, and where the time goes.
//!
//! Goals: a figure for each question and a verdict in plain words, in under a minute. The probe makes its own files on
//! the drives and removes them at the end, also after an error or a signal. Each split says how it was made. Non-goals:
//! comparing programs (other measurements do that); writing to anything that was there before.
//!
//! All reads bypass the page cache, by io_uring driven by hand ([`loops`]), so that the probe itself costs as little as
//! possible. [`Settings`] say what to probe, and [`run`] yields [`Figures`].

pub mod course;
pub mod figures;
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

use crate::human;
use iomill::{Error, Result};
use iomill_platform::tree::Tree;

use crate::machine::{Ground, Machine};
use course::{Course, SIZES, Settings, Stage};
use figures::Figures;
use iomill_loops::draw::PAGE_BYTES;
use iomill_loops::leftovers::{self, By};
use iomill_loops::parts::{self, Part, Parts};
use iomill_loops::paths;
use raw::Raw;

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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::course::{DEPTHS, WIDE_BYTES};
    use super::figures::weights;
    use super::*;

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

//! The load of the machine by other work: one computation and one kind of read, timed before an experiment and after
//! it.

use std::fs::{File, OpenOptions};
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use iomill::{Error, Result};
use serde::{Deserialize, Serialize};

/// The length of a timed moment.
const TIME: Duration = Duration::from_millis(300);

/// The length of the file to read, in bytes.
const FILE_BYTES: u64 = 64 << 20;

/// Rates at a moment.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Moment {
    /// Steps of the computation in a microsecond.
    pub steps_per_us: f64,
    /// Reads of 4 KiB in a second, one after the other.
    pub reads_per_s: f64,
}

/// The moments around an experiment.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Quiet {
    /// Before the first step.
    pub before: Moment,
    /// After the last step.
    pub after: Moment,
}

impl Quiet {
    /// The ratio of the two moments: 1.0 if the machine had the same speed, 2.0 if it was twice as fast at one of them.
    pub fn spread(&self) -> f64 {
        let apart = |one: f64, two: f64| if one > 0.0 && two > 0.0 { (one / two).max(two / one) } else { 1.0 };
        let computing = apart(self.before.steps_per_us, self.after.steps_per_us);
        computing.max(apart(self.before.reads_per_s, self.after.reads_per_s))
    }
}

/// Measures the speed of the machine now. `place` is on the disk to read.
pub fn look(place: &Path) -> Result<Moment> {
    let path = place.join(format!("iomill-paper-quiet-{}", std::process::id()));
    let looked = write(&path).and_then(|()| time(&path));
    std::fs::remove_file(&path).map_err(|error| Error::io("remove", &path, error))?;
    looked
}

fn write(path: &Path) -> Result<()> {
    let failed = |error| Error::io("write", path, error);
    let file = File::create(path).map_err(failed)?;
    let mut chunk = vec![0; 1 << 20];
    fastrand::Rng::with_seed(1).fill(&mut chunk);
    for offset in (0..FILE_BYTES).step_by(chunk.len()) {
        file.write_all_at(&chunk, offset).map_err(failed)?;
    }
    file.sync_all().map_err(failed)
}

fn time(path: &Path) -> Result<Moment> {
    use std::os::unix::fs::OpenOptionsExt;
    let (start, mut steps, mut word) = (Instant::now(), 0_u64, 1_u64);
    while start.elapsed() < TIME {
        for _ in 0..10_000 {
            word = black_box(word.wrapping_mul(0x5851_f42d_4c95_7f2d).rotate_left(17));
        }
        steps += 10_000;
    }
    let steps_per_us = steps as f64 / start.elapsed().as_micros() as f64;
    // O_DIRECT. If the file system does not have it, both moments read from memory.
    let open = |flags| OpenOptions::new().read(true).custom_flags(flags).open(path);
    let file = open(0o40000).or_else(|_| open(0)).map_err(|error| Error::io("open", path, error))?;
    let mut memory = vec![0; 8192];
    let at = memory.as_ptr().align_offset(4096);
    let mut rng = fastrand::Rng::with_seed(2);
    let (start, mut reads) = (Instant::now(), 0);
    while start.elapsed() < TIME {
        let offset = rng.u64(..FILE_BYTES / 4096) * 4096;
        file.read_exact_at(&mut memory[at..at + 4096], offset).map_err(|error| Error::io("read", path, error))?;
        reads += 1;
    }
    Ok(Moment { steps_per_us, reads_per_s: f64::from(reads) / start.elapsed().as_secs_f64() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_has_rates_and_leaves_nothing() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let moment = look(dir.path()).unwrap();
        assert!(moment.steps_per_us > 0.0 && moment.reads_per_s > 0.0, "{moment:?}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn the_spread_is_that_of_what_differs_most() {
        let before = Moment { steps_per_us: 100.0, reads_per_s: 10.0 };
        let after = Moment { steps_per_us: 50.0, reads_per_s: 30.0 };
        assert_eq!(Quiet { before, after }.spread(), 3.0);
        assert_eq!(Quiet { before, after: before }.spread(), 1.0);
    }
}

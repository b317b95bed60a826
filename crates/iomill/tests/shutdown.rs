//! File systems that are shut down under a writer, as if the power failed: several on loop devices, ext4 and XFS, all
//! at the same moment or one before the others. Or one becomes read-only, as after an error, or the writer is killed.
//! Then they are mounted again, and the array must keep its promises: for a reader, for a writer, and for a reader
//! after it.
//!
//! The writer and the model are those of `kill.rs`. Here operations may fail. The writer reports a failed operation,
//! leaves its files alone, and goes on with others. In the model a failed operation may have taken effect or not.
//!
//! All mounts are in the test's own namespace. So nothing is left, whatever ends the test: mounts and loop devices
//! vanish with the last process.
//!
//! During its shutdown a file system may acknowledge an `fdatasync` and lose its bytes: ext4 and XFS do, also without
//! iomill (docs/durability.md has the figures). So files with an operation in progress at that moment are in doubt, and
//! may have any bytes. The promises hold for all others. The file systems have blocks of a page, because a page of
//! shorter blocks may be written in part.
//!
//! Non-goals: drives that lose or reorder acknowledged writes (`iomill-sim`).
//!
//! Each round prints its seed: `IOMILL_SEED=7 cargo test -p iomill --test all shutdown:: -- --nocapture` begins with
//! the round of seed 7. A seed does not repeat a failure exactly, since times vary. After a failure the images are
//! kept.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::process::{Child, Command};
use std::thread::sleep;
use std::time::{Duration, Instant};

use fastrand::Rng;
use iomill::ArrayOptions;

use crate::calls::disks::{Disk, ran_with_own_mounts, skipped};
use crate::kill::writer::open_when_free;
use crate::kill::{Lane, Outcome, Tally, find, text};
use crate::{PATIENCE, alone};

/// Arrays, times `IOMILL_ROUNDS`.
const ROUNDS: u64 = 1;

/// The number of failures per array.
const BLOWS: u64 = 4;

/// `EXT4_IOC_SHUTDOWN` and `XFS_IOC_GOINGDOWN`: one number and the same flags.
const SHUT_DOWN: libc::Ioctl = 0x8004_587d_u32 as libc::Ioctl;

#[test]
fn a_file_system_that_is_shut_down_breaks_no_promise() {
    if ran_with_own_mounts(alone::test_name!()) {
        return;
    }
    // Ends the line with the test's name, so that other lines begin in the first column.
    println!();
    let number = |name| std::env::var(name).ok().map(|text| text.parse().expect("a number"));
    let first = number("IOMILL_SEED").unwrap_or_else(|| fastrand::u64(..1 << 32));
    let mut total = Tally::default();
    for seed in (0..crate::rounds(ROUNDS)).map(|round| first + round) {
        let Some(disks) = disks(&mut Rng::with_seed(seed)) else {
            return skipped("no ext4 or XFS on loop devices here");
        };
        let drives = disks.iter().map(|disk| disk.0.path().to_owned()).collect();
        let mut site = Site { disks, lane: Lane::new(seed, drives) };
        for blow in 0..BLOWS {
            if let Err(why) = site.blow(blow) {
                site.disks.iter_mut().for_each(|disk| disk.0.keep());
                let again = format!("IOMILL_SEED={seed} cargo test -p iomill --test all shutdown:: -- --nocapture");
                panic!("{}\nto run the like again: {again}", site.lane.tell(blow, &why));
            }
        }
        total.add(&site.lane.tally);
    }
    println!("interrupted or failed: {:?}", total.interrupted);
}

/// Two to four file systems, each with the flag for XFS.
fn disks(rng: &mut Rng) -> Option<Vec<(Disk, bool)>> {
    let mut disks = Vec::new();
    for _ in 0..rng.usize(2..5) {
        let is_xfs = rng.u8(..3) == 0;
        let disk = if is_xfs { Disk::xfs(rng.u64(24..160))? } else { Disk::ext4(rng.u64(16..160), &["-b", "4096"])? };
        disks.push((disk, is_xfs));
    }
    Some(disks)
}

/// An array on file systems that fail.
struct Site {
    /// In the order of the drives, each with the flag for XFS.
    disks: Vec<(Disk, bool)>,
    lane: Lane,
}

/// How a file system fails.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// No more writes. The flag says what is still written first: 0 everything, 1 the file system's log, 2 nothing.
    ShutDown(u32),
    /// It becomes read-only, as after an error.
    ReadOnly,
}

impl Site {
    /// Starts a writer, lets file systems fail, and waits for the writer's end. Then mounts them again, and verifies
    /// the array.
    fn blow(&mut self, round: u64) -> Outcome<()> {
        let rng = &mut self.lane.rng;
        let lines = if rng.u8(..6) == 0 { rng.usize(2..6) } else { rng.usize(6..160) };
        let mut job = self.lane.job(round, false);
        job.goes_on = true;
        self.fail(&job, lines)?;
        if self.lane.rng.u8(..3) == 0 {
            // The next writer, in the middle of its recovery.
            let lines = self.lane.rng.usize(1..6);
            job.only_opens = true;
            self.fail(&job, lines)?;
        }
        // A reader, then a writer.
        self.lane.check()?;
        let drive = &self.lane.drives[0];
        let reader = open_when_free(|| ArrayOptions::new().read_only(true).open(drive)).map_err(text)?;
        find(&reader, &BTreeSet::new()).map_err(|error| format!("as the last reader: {error}"))?;
        reader.close().map_err(text)
    }

    /// Starts a writer, lets file systems fail under it, and mounts them again when it has ended.
    fn fail(&mut self, job: &crate::kill::writer::Job, lines: usize) -> Outcome<()> {
        let Site { disks, lane } = self;
        let (faults, kill) = plan(&mut lane.rng, disks);
        println!("seed {:#x}, blow {}: {faults:?}, kill {kill:?}", job.seed, job.round);
        let status = lane.interrupt(job, lines, &mut |blow| {
            for (disk, fault, pause) in &faults {
                sleep(*pause);
                let strike = || fault.strike(disks[*disk].0.path());
                let struck = blow.in_doubt(strike).map_err(text)?;
                struck.map_err(|error| format!("{fault:?}: {error}"))?;
            }
            match kill {
                Some(pause) => {
                    sleep(pause);
                    blow.writer.kill().map_err(text)
                }
                None => wait(blow.writer),
            }
        })?;
        if kill.is_none() && !status.success() {
            return Err(format!("the writer ended with {status}"));
        }
        for (disk, _) in disks.iter() {
            mount_again(disk)?;
        }
        Ok(())
    }
}

/// The file systems that fail, each some time after the one before, and the time after which the writer is killed.
/// Without a kill the writer ends by itself when each of its files has met an error.
fn plan(rng: &mut Rng, disks: &[(Disk, bool)]) -> (Vec<(usize, Fault, Duration)>, Option<Duration>) {
    let mut order: Vec<usize> = (0..disks.len()).collect();
    rng.shuffle(&mut order);
    // Writers are killed if some drives live on, since they could go on for ever.
    let some = rng.usize(..order.len());
    let all = rng.u8(..3) > 0;
    if !all {
        order.truncate(some);
    }
    let kill = (!all || rng.u8(..4) == 0).then(|| Duration::from_micros(rng.u64(..200_000)));
    let at_once = rng.bool();
    let flag = rng.u32(..3);
    let strike = |(index, disk): (usize, usize)| {
        let is_read_only = !disks[disk].1 && rng.u8(..5) == 0;
        let fault = if is_read_only { Fault::ReadOnly } else { Fault::ShutDown(flag) };
        let pause = if at_once || index == 0 { 0 } else { rng.u64(..100_000) };
        (disk, fault, Duration::from_micros(pause))
    };
    (order.into_iter().enumerate().map(strike).collect(), kill)
}

impl Fault {
    fn strike(self, at: &Path) -> io::Result<()> {
        match self {
            Fault::ShutDown(flag) => {
                use std::os::fd::AsRawFd;
                let directory = std::fs::File::open(at)?;
                // SAFETY: the call reads the flag, which lives on.
                match unsafe { libc::ioctl(directory.as_raw_fd(), SHUT_DOWN, &raw const flag) } {
                    0 => Ok(()),
                    _ => Err(io::Error::last_os_error()),
                }
            }
            Fault::ReadOnly => {
                // The command fails, because the file system is not writable after it.
                Command::new("mount").args(["-o", "remount,abort"]).arg(at).output().map(drop)
            }
        }
    }
}

/// Waits until the writer has ended by itself.
fn wait(writer: &mut Child) -> Outcome<()> {
    let patience = Instant::now() + PATIENCE;
    while writer.try_wait().map_err(text)?.is_none() {
        if Instant::now() > patience {
            return Err("the writer hangs".to_owned());
        }
        sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Mounts a file system as after a power failure. The rings of a process that has ended hold it for a moment.
fn mount_again(disk: &Disk) -> Outcome<()> {
    let patience = Instant::now() + PATIENCE;
    while !disk.unmount() {
        if Instant::now() > patience {
            return Err(format!("{:?} is held by something", disk.path()));
        }
        sleep(Duration::from_millis(5));
    }
    if disk.mount_again() { Ok(()) } else { Err(format!("{:?} cannot be mounted again", disk.path())) }
}

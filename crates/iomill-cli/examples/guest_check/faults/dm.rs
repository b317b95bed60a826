//! Devices of the device mapper over the drives of the guest: [`Mapped`] is one of them, [`Pair`] an array on two.
//!
//! Goals: nothing here asks iomill what a drive does. Non-goals: checks of iomill.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use iomill::{Array, ArrayOptions};

use crate::memory::kernel::{run, wait_for};
use crate::{Result, check, read};

/// A device of the mapper over the first bytes of a drive, and the directory where its file system is mounted.
pub struct Mapped {
    pub name: &'static str,
    under: PathBuf,
    sectors: u64,
}

/// The path of the NVMe drive with this serial number.
pub fn drive(serial: &str) -> Result<PathBuf> {
    for entry in fs::read_dir("/sys/block")? {
        let entry = entry?;
        let is_it = read(entry.path().join("device/serial")).is_ok_and(|found| found.trim() == serial);
        if is_it {
            return Ok(Path::new("/dev").join(entry.file_name()));
        }
    }
    Err(format!("there is no drive {serial}").into())
}

/// Waits until something has come.
pub fn wait_for_drive(serial: &str) -> Result<()> {
    wait_for(serial, || Ok(drive(serial).is_ok()))
}

impl Mapped {
    /// Makes the device, which passes everything on.
    pub fn new(name: &'static str, under: PathBuf, bytes: u64) -> Result<Mapped> {
        let mapped = Mapped { name, under, sectors: bytes / 512 };
        let table = mapped.table(&mapped.linear());
        run("dmsetup", &["create", name, "--noudevsync", "--noudevrules", "--table", &table])?;
        run("dmsetup", &["mknodes", name])?;
        fs::create_dir_all(mapped.place())?;
        Ok(mapped)
    }

    /// The target that passes everything on.
    pub fn linear(&self) -> String {
        format!("linear {} 0", self.under.display())
    }

    /// The target `flakey` that is always down, with one feature.
    pub fn flakey(&self, feature: &str) -> String {
        let words = feature.split(' ').count();
        format!("flakey {} 0 0 1 {words} {feature}", self.under.display())
    }

    /// The target that also writes to a log.
    pub fn logged(&self, log: &Path) -> String {
        format!("log-writes {} {}", self.under.display(), log.display())
    }

    fn table(&self, target: &str) -> String {
        format!("0 {} {target}", self.sectors)
    }

    /// Puts another target in place of the present one. File systems stay mounted, and nothing is flushed.
    pub fn set(&self, target: &str) -> Result<()> {
        self.suspend()?;
        let loaded = run("dmsetup", &["load", self.name, "--table", &self.table(target)]);
        self.resume()?;
        loaded
    }

    /// From now on requests wait.
    pub fn suspend(&self) -> Result<()> {
        run("dmsetup", &["suspend", "--nolockfs", "--noflush", self.name])
    }

    pub fn resume(&self) -> Result<()> {
        run("dmsetup", &["resume", "--noudevsync", "--noudevrules", self.name])
    }

    pub fn remove(&self) -> Result<()> {
        run("dmsetup", &["remove", "--noudevsync", "--noudevrules", self.name])
    }

    pub fn device(&self) -> PathBuf {
        Path::new("/dev/mapper").join(self.name)
    }

    /// Where it is mounted.
    pub fn place(&self) -> PathBuf {
        Path::new("/mnt").join(self.name)
    }

    /// Makes a file system with blocks of a page.
    pub fn format(&self, kind: &str) -> Result<()> {
        let device = self.device();
        let device = device.to_string_lossy();
        match kind {
            "xfs" => run("mkfs.xfs", &["-q", "-f", "-K", &device]),
            _ => run("mkfs.ext4", &["-q", "-F", "-b", "4096", "-E", "nodiscard", &device]),
        }
    }

    pub fn mount(&self, kind: &str, options: &str) -> Result<()> {
        let (device, place) = (self.device(), self.place());
        run("mount", &["-t", kind, "-o", options, &device.to_string_lossy(), &place.to_string_lossy()])
    }
}

/// Unmounts, if it is mounted. The rings of a closed array hold a file system for a moment.
pub fn unmount(place: &Path) -> Result<()> {
    let place = place.to_string_lossy();
    let deadline = Instant::now() + Duration::from_secs(20);
    while read("/proc/mounts")?.split_whitespace().any(|word| word == place) {
        let unmounted = run("umount", &["-d", &place]);
        check(unmounted.is_ok() || Instant::now() < deadline, format!("{place} is held by something: {unmounted:?}"))?;
        if unmounted.is_err() {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    Ok(())
}

/// The two drives of an array. The second one gets the faults.
pub struct Pair {
    pub good: Mapped,
    pub bad: Mapped,
}

/// A transaction of the file system that ends by itself during a fault would be a fault of the file system.
const OPTIONS: &str = "noatime,commit=600";

impl Pair {
    pub fn new(bytes: u64) -> Result<Pair> {
        Ok(Pair { good: Mapped::new("good", drive("good")?, bytes)?, bad: Mapped::new("bad", drive("bad")?, bytes)? })
    }

    fn both(&self) -> [&Mapped; 2] {
        [&self.good, &self.bad]
    }

    /// A new array on new file systems.
    pub fn fresh(&self, cache_bytes: u64) -> Result<Array> {
        for drive in self.both() {
            unmount(&drive.place())?;
            drive.format("ext4")?;
            drive.mount("ext4", OPTIONS)?;
        }
        Ok(ArrayOptions::new().cache_bytes(cache_bytes).create([self.good.place(), self.bad.place()])?)
    }

    /// Mounts both drives again, so that nothing of them is in memory.
    pub fn mount_again(&self) -> Result<()> {
        for drive in self.both() {
            unmount(&drive.place())?;
            drive.mount("ext4", OPTIONS)?;
        }
        Ok(())
    }

    /// Without a page cache, so that each read asks a drive.
    pub fn open(&self) -> iomill::Result<Array> {
        ArrayOptions::new().cache_bytes(0).open(self.good.place())
    }
}

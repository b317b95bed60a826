//! The rigs of steps: a disk, arrays on several drives, and file systems over several drives.
//!
//! Drives that the user names are used unchanged: the measured files are made in their directories, and removed at the
//! end. Without such drives they are made in memory (zram), each with XFS, or one file system over all. That needs
//! root, and a kernel with zram.
//!
//! Non-goals: block devices of the machine, which are never used.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use iomill::{Array, Error, Result};
use serde_json::Value;

/// The rig of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rig {
    /// On the place's disk; the measurement makes its own files.
    Place,
    /// On the place's disk, with a file of this many MiB.
    File(u64),
    /// On an array over this number of drives.
    Drives(usize),
    /// On an array with one drive, which is btrfs over this number of devices (RAID 0).
    Btrfs(usize),
    /// The same with XFS over RAID 0 of md.
    Md(usize),
}

/// MiB of a drive in memory. Only written pages use memory.
const DRIVE_MIB: u64 = 2048;

/// Reads and writes per second of a drive in memory: those of a small NVMe drive, so that several drives are faster
/// than one.
const DRIVE_IOPS: u32 = 20_000;

/// A rate above this multiple of the bound is not an inaccuracy of a turn of a second.
const BEYOND: f64 = 1.15;

/// A rig in use. The drop removes it.
pub struct Up {
    /// The value of `{drive}`.
    drive: Option<PathBuf>,
    /// The value of `{file}`.
    file: Option<PathBuf>,
    /// The value of `{place}`.
    place: PathBuf,
    made: Vec<PathBuf>,
    mounted: Vec<PathBuf>,
    /// Devices of md, by their paths.
    joined: Vec<String>,
    devices: Vec<u32>,
}

impl Up {
    /// Makes a rig. The error names the missing parts of this machine.
    pub fn start(rig: Rig, place: &Path, drives: &[PathBuf]) -> Result<Up> {
        let mut up = Up {
            drive: None,
            file: None,
            place: place.to_owned(),
            made: Vec::new(),
            mounted: Vec::new(),
            joined: Vec::new(),
            devices: Vec::new(),
        };
        match rig {
            Rig::Place => {}
            Rig::File(mib) => up.file = Some(up.write_file(mib)?),
            Rig::Drives(count) if !drives.is_empty() => {
                let named = drives.get(..count).ok_or_else(|| lacking("drives", "name more with --drives"))?;
                let directories = named.iter().map(|drive| up.make(drive)).collect::<Result<Vec<_>>>()?;
                up.drive = Some(array(&directories)?);
            }
            Rig::Drives(count) => {
                let devices = (0..count).map(|_| up.add_device()).collect::<Result<Vec<_>>>()?;
                let mounts = devices
                    .iter()
                    .map(|device| up.mount("xfs", std::slice::from_ref(device)))
                    .collect::<Result<Vec<_>>>()?;
                up.drive = Some(array(&mounts)?);
            }
            Rig::Btrfs(_) | Rig::Md(_) if !drives.is_empty() => {
                return Err(lacking("RAID 0 over named drives", "their file systems would be lost"));
            }
            Rig::Btrfs(count) | Rig::Md(count) => {
                let devices = (0..count).map(|_| up.add_device()).collect::<Result<Vec<_>>>()?;
                let mount = match rig {
                    Rig::Btrfs(_) => up.mount("btrfs", &devices)?,
                    _ => {
                        let joined = up.join(&devices)?;
                        up.mount("xfs", &[joined])?
                    }
                };
                up.drive = Some(array(&[mount])?);
            }
        }
        Ok(up)
    }

    /// An argument with the rig's paths in it.
    pub fn argument(&self, argument: &str) -> String {
        let or_place = |path: &Option<PathBuf>| path.as_ref().unwrap_or(&self.place).display().to_string();
        argument
            .replace("{place}", &self.place.display().to_string())
            .replace("{drive}", &or_place(&self.drive))
            .replace("{file}", &or_place(&self.file))
    }

    /// The number of its drives in memory.
    pub fn bounded(&self) -> usize {
        self.devices.len()
    }

    fn make(&mut self, base: &Path) -> Result<PathBuf> {
        let path = base.join(format!("iomill-paper-{}-{}", std::process::id(), self.made.len()));
        fs::create_dir(&path).map_err(|error| Error::io("create", &path, error))?;
        self.made.push(path.clone());
        Ok(path)
    }

    fn write_file(&mut self, mib: u64) -> Result<PathBuf> {
        use std::io::Write;
        let place = self.place.clone();
        let path = self.make(&place)?.join("rows");
        let failed = |error| Error::io("write", &path, error);
        let mut file = fs::File::create(&path).map_err(failed)?;
        let mut chunk = vec![0; 1 << 20];
        let mut rng = fastrand::Rng::with_seed(1);
        for _ in 0..mib {
            rng.fill(&mut chunk);
            file.write_all(&chunk).map_err(failed)?;
        }
        file.sync_all().map_err(failed)?;
        Ok(path)
    }

    /// A device in memory with a bound on its rate.
    fn add_device(&mut self) -> Result<String> {
        let add = Path::new("/sys/class/zram-control/hot_add");
        let number = fs::read_to_string(add).map_err(|error| lacking("zram, or root", &error.to_string()))?;
        let number: u32 = number.trim().parse().map_err(|_| lacking("zram", "its number is no number"))?;
        self.devices.push(number);
        let size = PathBuf::from(format!("/sys/block/zram{number}/disksize"));
        fs::write(&size, format!("{DRIVE_MIB}M")).map_err(|error| Error::io("write", &size, error))?;
        let device = format!("/dev/zram{number}");
        for _ in 0..50 {
            if Path::new(&device).exists() {
                return Ok(device);
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Err(lacking(&device, "the system does not make it"))
    }

    /// Makes one device of several, by md.
    fn join(&mut self, devices: &[String]) -> Result<String> {
        let is_free = |number: &u32| !Path::new(&format!("/sys/block/md{number}")).exists();
        let number = (100..).find(is_free).ok_or_else(|| lacking("md", "all its numbers are taken"))?;
        let joined = format!("/dev/md{number}");
        let mut create = Command::new("mdadm");
        create.args(["--create", &joined, "--run", "--quiet", "--metadata=1.2", "--level=0", "--chunk=64"]);
        // Without udev mdadm makes the device's name itself.
        command(create.arg(format!("--raid-devices={}", devices.len())).args(devices).env("MDADM_NO_UDEV", "1"))?;
        self.joined.push(joined.clone());
        Ok(joined)
    }

    /// Makes a file system on devices, and mounts it.
    fn mount(&mut self, kind: &str, devices: &[String]) -> Result<PathBuf> {
        let mut make = Command::new(format!("mkfs.{kind}"));
        make.args(["-q", "-f"]);
        if devices.len() > 1 {
            make.args(["-d", "raid0", "-m", "raid0"]);
        }
        command(make.args(devices))?;
        let place = self.place.clone();
        let at = self.make(&place)?;
        let mut mount = Command::new("mount");
        if devices.len() > 1 {
            // If btrfs was loaded as a module just now, the kernel has not examined the other devices.
            mount.arg("-o").arg(devices.iter().map(|device| format!("device={device}")).collect::<Vec<_>>().join(","));
        }
        command(mount.args(["-t", kind, &devices[0]]).arg(&at))?;
        self.mounted.push(at.clone());
        Ok(at)
    }

    /// Bounds the rates of the devices for a process and its children. Without the controller they have no bound.
    pub fn bound(&self, process: u32) -> Option<String> {
        if self.devices.is_empty() {
            return None;
        }
        let group = Path::new("/sys/fs/cgroup/blkio").join(format!("iomill-paper-{}", std::process::id()));
        let bounded = fs::create_dir_all(&group).and_then(|()| {
            for number in &self.devices {
                let device = fs::read_to_string(format!("/sys/block/zram{number}/dev"))?;
                for what in ["read", "write"] {
                    let file = group.join(format!("blkio.throttle.{what}_iops_device"));
                    fs::write(file, format!("{} {DRIVE_IOPS}", device.trim()))?;
                }
            }
            fs::write(group.join("cgroup.procs"), process.to_string())
        });
        Some(match bounded {
            Ok(()) => format!("drives in memory, {DRIVE_IOPS} operations a second each"),
            Err(error) => format!("drives in memory without a bound on their rate ({error})"),
        })
    }
}

/// The contender that shows that the bound of some drives did not hold: it read or wrote more often than allowed. The
/// controller counts by slices of a tenth of a second, and grants all of a slice that has begun. So a turn of a tenth
/// of a second may do twice as much, and one of a second a tenth more.
pub fn beyond_bound(drives: usize, documents: &[Value]) -> Option<String> {
    let bound = f64::from(DRIVE_IOPS) * drives as f64;
    let rows = documents.iter().filter_map(|document| document["results"].as_array()).flatten();
    let from_drives = rows.filter(|row| row["cache"] != "warm" && row["contender"] != "iomill-null");
    let most = from_drives.filter_map(|row| row["max_ops_per_s"].as_f64()).fold(0.0, f64::max);
    let (most_of, bound_of) = (iomill_cli::human::count(most), iomill_cli::human::count(bound));
    (most > BEYOND * bound)
        .then(|| format!("the bound did not hold: {most_of} a second, where the drives may do {bound_of}"))
}

impl Drop for Up {
    /// Errors are ignored: remaining files are in memory, or below a directory with the name of its maker.
    fn drop(&mut self) {
        for at in &self.mounted {
            // A ring that has just been closed may hold its files for a moment.
            for _ in 0..50 {
                if Command::new("umount").arg(at).output().is_ok_and(|output| output.status.success()) {
                    break;
                }
                std::thread::sleep(Duration::from_millis(100));
            }
        }
        for joined in &self.joined {
            let _ = Command::new("mdadm").args(["--stop", "--quiet", joined]).output();
        }
        for number in &self.devices {
            let _ = fs::write("/sys/class/zram-control/hot_remove", number.to_string());
        }
        for path in &self.made {
            let _ = fs::remove_dir_all(path);
        }
        let _ = fs::remove_dir(Path::new("/sys/fs/cgroup/blkio").join(format!("iomill-paper-{}", std::process::id())));
    }
}

/// Makes an array, and returns one of its drives.
fn array(directories: &[PathBuf]) -> Result<PathBuf> {
    Array::create(directories)?.close()?;
    Ok(directories[0].clone())
}

fn command(command: &mut Command) -> Result<()> {
    let what = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| lacking(&what, &error.to_string()))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(lacking(&what, String::from_utf8_lossy(&output.stderr).trim())),
    }
}

fn lacking(what: &str, why: &str) -> Error {
    Error::Tool { what: what.to_owned(), why: why.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_bound_that_did_not_hold_is_told() {
        let document = |contender: &str, cache: &str, most: f64| json!({ "results": [{ "contender": contender, "cache": cache, "max_ops_per_s": most }] });
        let within = [
            document("pread", "direct", 45_000.0),
            document("pread", "warm", 1e6),
            document("iomill-null", "direct", 1e7),
        ];
        assert_eq!(beyond_bound(2, &within), None);
        let said = beyond_bound(2, &[document("pread", "direct", 60_000.0)]).unwrap();
        assert!(said.contains("60.0k") && said.contains("40.0k"), "{said}");
        assert_eq!(beyond_bound(4, &[document("pread", "direct", 60_000.0)]), None);
    }
}

//! The rigs of steps: a disk, arrays on several drives, and file systems over several drives.
//!
//! Directories that the user names are used unchanged: the measured files are made in them, and removed at the end.
//! Otherwise the drives are block devices, each with XFS, or with one file system over all: devices that the user names,
//! or devices in memory (zram). That needs root.
//!
//! A named device is used only if it is empty: its first MiB has zeros. At the end it is made empty again.
//!
//! Non-goals: block devices that the user does not name.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
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

/// The drives of experiments about several drives.
#[derive(Clone, Debug, Default)]
pub enum Drives {
    /// Made in memory.
    #[default]
    Memory,
    /// A directory on each.
    Directories(Vec<PathBuf>),
    /// Empty block devices, which get file systems.
    Devices(Vec<PathBuf>),
}

impl Drives {
    /// The number of drives that the user names, if any.
    pub fn named(&self) -> Option<usize> {
        match self {
            Drives::Memory => None,
            Drives::Directories(paths) | Drives::Devices(paths) => Some(paths.len()),
        }
    }
}

/// Bytes at the beginning of an empty device that have no signature of a file system, RAID or table of partitions.
const HEAD_BYTES: usize = 1 << 20;

/// With this flag the kernel refuses to open a device that is mounted or part of another one.
const O_EXCL: i32 = 0o200;

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
    /// Devices in memory.
    devices: Vec<u32>,
    /// Devices that the user named, and that were empty.
    taken: Vec<PathBuf>,
}

impl Up {
    /// Makes a rig. The error names the missing parts of this machine.
    pub fn start(rig: Rig, place: &Path, drives: &Drives) -> Result<Up> {
        let mut up = Up {
            drive: None,
            file: None,
            place: place.to_owned(),
            made: Vec::new(),
            mounted: Vec::new(),
            joined: Vec::new(),
            devices: Vec::new(),
            taken: Vec::new(),
        };
        match (rig, drives) {
            (Rig::Place, _) => {}
            (Rig::File(mib), _) => up.file = Some(up.write_file(mib)?),
            (Rig::Drives(count), Drives::Directories(named)) => {
                let directories =
                    first(named, count)?.iter().map(|drive| up.make(drive)).collect::<Result<Vec<_>>>()?;
                up.drive = Some(array(&directories)?);
            }
            (Rig::Drives(count), _) => {
                let devices = up.devices(count, drives)?;
                let mounts = devices
                    .iter()
                    .map(|device| up.mount("xfs", std::slice::from_ref(device)))
                    .collect::<Result<Vec<_>>>()?;
                up.drive = Some(array(&mounts)?);
            }
            (Rig::Btrfs(_) | Rig::Md(_), Drives::Directories(_)) => {
                let why = "their file systems would be lost; name empty devices with --devices";
                return Err(lacking("RAID 0 over named directories", why));
            }
            (Rig::Btrfs(count), _) => {
                let devices = up.devices(count, drives)?;
                let mount = up.mount("btrfs", &devices)?;
                up.drive = Some(array(&[mount])?);
            }
            (Rig::Md(count), _) => {
                let devices = up.devices(count, drives)?;
                let joined = up.join(&devices)?;
                let mount = up.mount("xfs", &[joined])?;
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

    /// Empty devices: the first of those that the user names, or new ones in memory.
    fn devices(&mut self, count: usize, drives: &Drives) -> Result<Vec<String>> {
        let Drives::Devices(named) = drives else {
            return (0..count).map(|_| self.add_device()).collect();
        };
        let named = first(named, count)?;
        // All are examined before the first one is changed.
        named.iter().try_for_each(|device| examine(device))?;
        self.taken = named.to_vec();
        Ok(named.iter().map(|device| device.display().to_string()).collect())
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

    /// Bounds the rates of the devices in memory for a process and its children. Without the controller they have no
    /// bound.
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
    /// Errors are ignored: remaining files are in memory, or below a directory with the name of its maker, or on a
    /// device that the next run refuses.
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
        for device in &self.taken {
            let _ = open_alone(device, true).and_then(|file| file.write_all_at(&vec![0; HEAD_BYTES], 0));
        }
        for path in &self.made {
            let _ = fs::remove_dir_all(path);
        }
        let _ = fs::remove_dir(Path::new("/sys/fs/cgroup/blkio").join(format!("iomill-paper-{}", std::process::id())));
    }
}

fn first(named: &[PathBuf], count: usize) -> Result<&[PathBuf]> {
    named.get(..count).ok_or_else(|| lacking("drives", "name more with --drives or --devices"))
}

/// Opens a device that nothing else uses.
fn open_alone(device: &Path, is_writing: bool) -> std::io::Result<File> {
    OpenOptions::new().read(true).write(is_writing).custom_flags(O_EXCL).open(device)
}

/// Refuses a device that is in use, or that may have data.
fn examine(device: &Path) -> Result<()> {
    let failed = |error| Error::io("examine", device, error);
    if !fs::metadata(device).map_err(failed)?.file_type().is_block_device() {
        return Err(lacking(&device.display().to_string(), "it is no block device; name directories with --drives"));
    }
    let file = open_alone(device, false).map_err(failed)?;
    match is_empty(&file).map_err(failed)? {
        true => Ok(()),
        false => {
            let why =
                "it is not empty: its first MiB has other bytes than zeros. If they may be lost, write zeros there";
            Err(lacking(&device.display().to_string(), why))
        }
    }
}

fn is_empty(file: &File) -> std::io::Result<bool> {
    let mut head = vec![1; HEAD_BYTES];
    file.read_exact_at(&mut head, 0)?;
    Ok(head.iter().all(|byte| *byte == 0))
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
    fn only_an_empty_device_is_taken() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = dir.path().join("device");
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
        file.set_len(2 * HEAD_BYTES as u64).unwrap();
        assert!(is_empty(&file).unwrap());
        file.write_all_at(&[1], HEAD_BYTES as u64 - 1).unwrap();
        assert!(!is_empty(&file).unwrap());
        file.set_len(10).unwrap();
        assert!(is_empty(&file).is_err());
        for rig in [Rig::Drives(1), Rig::Btrfs(1), Rig::Md(1)] {
            let error = Up::start(rig, dir.path(), &Drives::Devices(vec![path.clone()])).err().unwrap().to_string();
            assert!(error.contains("it is no block device"), "{error}");
            let error = Up::start(rig, dir.path(), &Drives::Devices(Vec::new())).err().unwrap().to_string();
            assert!(error.contains("--devices"), "{error}");
        }
        assert_eq!(fs::metadata(&path).unwrap().len(), 10);
    }

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

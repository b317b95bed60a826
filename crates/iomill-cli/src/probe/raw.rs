//! Raw block devices, on request: their speed without a file system. They are opened for reading only.
//!
//! Goals: a device that is in use is refused. Non-goals: writing, ever.

use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use iomill::{Error, Result};
use rustix::fs::OFlags;
use serde::Serialize;

use iomill_loops::draw::PAGE_BYTES;
use iomill_loops::latency::Latency;

/// A block device that is held exclusively: while this value lives, it cannot be mounted.
#[derive(Debug)]
pub struct Raw {
    /// Its node.
    pub path: PathBuf,
    /// Its length in bytes.
    pub len_bytes: u64,
    /// Its number.
    device: u64,
    _held: File,
}

/// The results for a device.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RawFigures {
    /// Its node.
    pub path: PathBuf,
    /// Its length in bytes.
    pub len_bytes: u64,
    /// Names of the drives below it.
    pub devices: Vec<String>,
    /// Their NUMA node, if all have the same.
    pub node: Option<u32>,
    /// One read at a time.
    pub latency: Latency,
    /// Reads of 4 KiB at growing depths.
    pub depths: Vec<Depth>,
    /// The smallest depth that reaches 95% of the best.
    pub best_depth: u32,
}

/// The results at one depth.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Depth {
    /// Reads in flight.
    pub depth: u32,
    /// Reads per second.
    pub iops: f64,
    /// CPU time per read in microseconds.
    pub cpu_us_per_op: f64,
}

impl Raw {
    /// Takes a device for reading. `taken` are the devices that were taken before.
    pub fn take(path: &Path, taken: &[Raw]) -> Result<Raw> {
        let refused = |why: String| Error::Tool { what: format!("the raw device {}", path.display()), why };
        let found = std::fs::metadata(path).map_err(|e| Error::io("find", path, e))?;
        if !found.file_type().is_block_device() {
            return Err(refused(
                "it is no block device; give a node such as /dev/nvme0n1, and directories without --raw".into(),
            ));
        }
        if let Some(same) = taken.iter().find(|other| other.device == found.rdev()) {
            let why = format!("it is the same device as {}; name each once", same.path.display());
            return Err(Error::invalid(path.display().to_string(), why));
        }
        // Without `O_CREAT` this flag asks the kernel for the device as a mount does: the kernel refuses a device that
        // is in use.
        let open = File::options().read(true).custom_flags(OFlags::EXCL.bits() as i32).open(path);
        let mut held = open.map_err(|e| match e.raw_os_error() {
            Some(libc::EBUSY) => refused(
                "it is in use: mounted, swapped to, or part of another device (`lsblk` shows it); probe a directory on it instead".into(),
            ),
            Some(libc::EACCES | libc::EPERM) => {
                refused(format!("it may not be read ({e}); run as root or in the group that `ls -l` shows (the kernel may refuse both)"))
            }
            _ => Error::io("open", path, e),
        })?;
        let len_bytes = held.seek(SeekFrom::End(0)).map_err(|e| Error::io("measure", path, e))?;
        if len_bytes < PAGE_BYTES as u64 {
            return Err(refused(format!("it has only {len_bytes} bytes; give a device of at least one page")));
        }
        Ok(Raw { path: path.to_owned(), len_bytes, device: found.rdev(), _held: held })
    }
}

#[cfg(test)]
mod tests {
    use iomill_platform::mounts;
    use iomill_platform::tree::Tree;

    use super::*;

    #[test]
    fn what_is_no_device_of_ours_is_refused_in_plain_words() {
        let told = |path: &str| Raw::take(Path::new(path), &[]).unwrap_err().to_string();
        assert!(told("/no/such/device").contains("No such file"));
        assert!(told("/dev/null").contains("no block device"));
        assert!(told(env!("CARGO_MANIFEST_DIR")).contains("no block device"));
        // The device of the root file system, if this machine shows one and the test may open it.
        let mounts = mounts::all(&Tree::machine());
        let root = mounts.iter().filter(|mount| mount.point == Path::new("/")).map(|mount| mount.source.as_str());
        for device in root.filter(|device| device.starts_with("/dev/") && Path::new(device).exists()) {
            let told = told(device);
            assert!(told.contains("in use") || told.contains("may not be read"), "{device}: {told}");
        }
    }
}

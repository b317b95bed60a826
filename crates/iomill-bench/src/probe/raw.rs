//! Raw block devices, on request: what they do without a file system above them. They are opened for reading, and nothing else.
//!
//! Goals: a device that something uses is refused, not measured beside its user. Non-goals: writing, ever.

use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use iomill::{Error, Result};
use rustix::fs::OFlags;
use serde::Serialize;

use super::latency::Latency;
use crate::pattern::PAGE_BYTES;

/// A device that nobody else uses while this lives: nobody can mount it meanwhile.
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

/// What was found of a device.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RawFigures {
    /// Its node.
    pub path: PathBuf,
    /// Its length in bytes.
    pub len_bytes: u64,
    /// Names of the drives below.
    pub devices: Vec<String>,
    /// Their node, where they have the same.
    pub node: Option<u32>,
    /// One read at a time.
    pub latency: Latency,
    /// Reads of 4 KiB, more and more in flight.
    pub depths: Vec<Depth>,
    /// The least in flight that reaches 95% of the best.
    pub best_depth: u32,
}

/// So many in flight.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Depth {
    /// How many.
    pub depth: u32,
    /// Reads per second.
    pub iops: f64,
    /// CPU time per read in microseconds.
    pub cpu_us_per_op: f64,
}

impl Raw {
    /// Takes a device for reading, beside those that were taken before.
    pub fn take(path: &Path, taken: &[Raw]) -> Result<Raw> {
        let refused = |why: String| Error::Machine { what: format!("the raw device {}", path.display()), why };
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
        // Without `O_CREAT` this asks the kernel for the device as a mount would: one that is in use is refused.
        let open = File::options().read(true).custom_flags(OFlags::EXCL.bits() as i32).open(path);
        let mut held = open.map_err(|e| match e.raw_os_error() {
            Some(libc::EBUSY) => refused(
                "it is in use: mounted, swapped to, or part of another device (`lsblk` shows it); probe a directory on it instead".into(),
            ),
            Some(libc::EACCES | libc::EPERM) => {
                refused(format!("it may not be read ({e}); root may, and the group that `ls -l` shows, if the kernel lets anybody"))
            }
            _ => Error::io("open", path, e),
        })?;
        let len_bytes = held.seek(SeekFrom::End(0)).map_err(|e| Error::io("measure", path, e))?;
        if len_bytes < PAGE_BYTES as u64 {
            return Err(refused(format!("it has {len_bytes} bytes: there is nothing to read")));
        }
        Ok(Raw { path: path.to_owned(), len_bytes, device: found.rdev(), _held: held })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_device_of_ours_is_refused_in_plain_words() {
        let told = |path: &str| Raw::take(Path::new(path), &[]).unwrap_err().to_string();
        assert!(told("/no/such/device").contains("No such file"));
        assert!(told("/dev/null").contains("no block device"));
        assert!(told(env!("CARGO_MANIFEST_DIR")).contains("no block device"));
        // The root's device, where it has one that this machine shows and we may open.
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let root =
            mounts.lines().filter(|line| line.split(' ').nth(1) == Some("/")).filter_map(|line| line.split(' ').next());
        for device in root.filter(|device| device.starts_with("/dev/") && Path::new(device).exists()) {
            let told = told(device);
            assert!(told.contains("in use") || told.contains("may not be read"), "{device}: {told}");
        }
    }
}

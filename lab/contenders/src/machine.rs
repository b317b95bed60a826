//! The machine of a measurement.
//!
//! Goals: the facts that a reader needs to judge the figures, from `/proc` and `/sys`. Facts that cannot be read stay empty.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use iomill::sys::limits;
use iomill::{Error, Result};
use iomill_platform::devices;
use iomill_platform::memory;
use iomill_platform::mounts::{self, Mount};
use iomill_platform::tree::{Tree, chosen};
use serde::Serialize;

use crate::target::Target;

/// The machine that the figures were measured on.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Machine {
    /// Model of the first CPU.
    pub cpu_model: String,
    /// CPUs that are online.
    pub cores: usize,
    /// CPUs that this process may use.
    pub cores_allowed: usize,
    /// Release of the kernel.
    pub kernel: String,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// One per part of the target.
    pub drives: Vec<Ground>,
}

/// The file system and device under one part.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Ground {
    /// The part.
    pub path: PathBuf,
    /// Its length in bytes.
    pub len_bytes: u64,
    /// Type of the file system, such as `ext4`.
    pub file_system: String,
    /// The source of the mount, such as `/dev/nvme0n1`.
    pub device: String,
    /// I/O scheduler of the device, if it is a whole device.
    pub scheduler: String,
}

impl Machine {
    /// Reads the facts of this machine, and of the file systems under the parts.
    pub fn look(target: &Target) -> Machine {
        let tree = Tree::machine();
        let read = |path: &str| tree.get(path).unwrap_or_default();
        let mounts = mounts::all(&tree);
        let drives = target.parts().iter().map(|part| {
            let path = part.path.canonicalize().unwrap_or_else(|_| part.path.clone());
            let (file_system, device) = mount_of(&mounts, &path).unwrap_or_else(|| itself(&tree, &path));
            let scheduler = scheduler_of(&tree, &device);
            Ground { path: part.path.clone(), len_bytes: part.len_bytes, file_system, device, scheduler }
        });
        let online = tree.cpus("sys/devices/system/cpu/online").map_or(0, |cpus| cpus.len());
        let allowed = std::thread::available_parallelism().map_or(online, usize::from);
        Machine {
            cpu_model: cpu_model(&read("proc/cpuinfo")),
            cores: online.max(allowed),
            cores_allowed: allowed,
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            memory_bytes: limits::physical_bytes(Path::new("/")).unwrap_or_default(),
            drives: drives.collect(),
        }
    }

    /// One line for people.
    pub fn line(&self) -> String {
        let or = |text: &'static str, other: &str| if other.is_empty() { text.to_owned() } else { other.to_owned() };
        let ground = |d: &Ground| format!("{} on {}", or("a file system", &d.file_system), or("a device", &d.device));
        let mut grounds: Vec<String> = self.drives.iter().map(ground).collect();
        grounds.dedup();
        let drives = match self.drives.len() {
            0 => String::new(),
            1 => format!("; 1 drive: {}", grounds.join(", ")),
            count => format!("; {count} drives: {}", grounds.join(", ")),
        };
        format!(
            "{}, {} of {} CPUs, {} memory, Linux {}{drives}",
            or("an unknown CPU", &self.cpu_model),
            self.cores_allowed,
            self.cores,
            iomill_cli::human::size(self.memory_bytes),
            self.kernel,
        )
    }
}

/// File system type and device of a file outside the mount table, as within a chroot. They come from the file itself.
fn itself(tree: &Tree, path: &Path) -> (String, String) {
    let kind = rustix::fs::statfs(path).map(|told| mounts::kind(told.f_type as u32)).unwrap_or_default();
    let number = fs::metadata(path).map(|found| found.dev()).unwrap_or_default();
    let device = devices::find(tree, (rustix::fs::major(number), rustix::fs::minor(number)));
    (kind, device.map(|device| format!("/dev/{}", device.name)).unwrap_or_default())
}

/// Memory that is available without swapping, in bytes.
pub fn available_memory_bytes() -> Result<u64> {
    let path = "/proc/meminfo";
    let text = fs::read_to_string(path).map_err(|e| Error::io("read", path, e))?;
    let lacks = || Error::Tool { what: path.into(), why: "it has no line MemAvailable".into() };
    memory::bytes(&text, "MemAvailable").ok_or_else(lacks)
}

/// Memory of this process without pages of files, in bytes: anonymous and shared memory.
pub fn process_memory_bytes() -> Result<u64> {
    let path = "/proc/self/status";
    let text = fs::read_to_string(path).map_err(|e| Error::io("read", path, e))?;
    let lacks = || Error::Tool { what: path.into(), why: "it has no lines RssAnon and RssShmem".into() };
    let anonymous = memory::bytes(&text, "RssAnon").ok_or_else(lacks)?;
    Ok(anonymous + memory::bytes(&text, "RssShmem").ok_or_else(lacks)?)
}

fn cpu_model(cpuinfo: &str) -> String {
    let value = |key: &str| {
        let line = cpuinfo.lines().find(|line| line.starts_with(key))?;
        line.split_once(':').map(|(_, value)| value.trim().to_owned())
    };
    value("model name").or_else(|| value("Model")).or_else(|| value("CPU part")).unwrap_or_default()
}

/// File system type and source of the mount that holds a path.
fn mount_of(mounts: &[Mount], path: &Path) -> Option<(String, String)> {
    let mount = mounts::holding(mounts, path)?;
    Some((mount.kind.clone(), mount.source.clone()))
}

fn scheduler_of(tree: &Tree, device: &str) -> String {
    let Some(name) = device.strip_prefix("/dev/") else { return String::new() };
    let text = tree.get(&format!("sys/class/block/{name}/queue/scheduler")).unwrap_or_default();
    chosen(&text).to_owned()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn the_model_is_read() {
        assert_eq!(cpu_model("processor : 0\nmodel name\t: A CPU\nmodel name\t: B"), "A CPU");
    }

    #[test]
    fn a_path_outside_the_table_is_described() {
        let (kind, device) = itself(&Tree::machine(), Path::new(env!("CARGO_MANIFEST_DIR")));
        assert!(!kind.is_empty() && (device.is_empty() || device.starts_with("/dev/")), "{kind} {device}");
        assert_eq!(itself(&Tree::machine(), Path::new("/nonexistent")), Default::default());
    }

    #[test]
    fn what_is_unknown_is_said() {
        let machine = Machine { drives: vec![Ground::default()], ..Machine::default() };
        let line = machine.line();
        assert!(line.starts_with("an unknown CPU, ") && line.ends_with("1 drive: a file system on a device"), "{line}");
    }

    #[test]
    fn this_machine_is_described() {
        let dir = tempfile::tempdir().unwrap();
        let target =
            Target::write(&[dir.path().to_owned()], "f", 1 << 16, 0, &AtomicBool::new(false), &mut |_, _| ()).unwrap();
        let machine = Machine::look(&target);
        assert!(machine.cores >= machine.cores_allowed.min(1) && machine.memory_bytes > 1 << 20, "{machine:?}");
        assert!(!machine.kernel.is_empty() && !machine.drives[0].file_system.is_empty(), "{machine:?}");
        assert!(machine.line().contains(&machine.kernel));
        assert!(available_memory_bytes().unwrap() < machine.memory_bytes);
        let before = process_memory_bytes().unwrap();
        let taken = vec![1u8; 64 << 20];
        let after = process_memory_bytes().unwrap();
        // Other tests also take and free memory.
        assert!(after > before + (48 << 20), "{before} {after} {}", taken.len());
    }
}

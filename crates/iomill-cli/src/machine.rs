//! The machine of a measurement.
//!
//! Goals: the facts that a reader needs to judge the figures, from `/proc` and `/sys`. Facts that cannot be read stay
//! empty.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::human;
use iomill::sys::limits;
use iomill_platform::tree::{Tree, chosen};
use iomill_platform::{devices, mounts};
use serde::Serialize;

use iomill_loops::parts::Part;

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
    /// One per file that is read.
    pub drives: Vec<Ground>,
}

/// The file system and device under one file.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Ground {
    /// The file.
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
    pub fn look(parts: &[Part]) -> Machine {
        let tree = Tree::machine();
        let online = tree.cpus("sys/devices/system/cpu/online").map_or(0, |cpus| cpus.len());
        let allowed = std::thread::available_parallelism().map_or(online, usize::from);
        Machine {
            cpu_model: cpu_model(&tree.get("proc/cpuinfo").unwrap_or_default()),
            cores: online.max(allowed),
            cores_allowed: allowed,
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            memory_bytes: limits::physical_bytes(Path::new("/")).unwrap_or_default(),
            drives: parts.iter().map(|part| Ground::look(&tree, part)).collect(),
        }
    }

    /// CPUs, memory and kernel in one line for people.
    pub fn host(&self) -> String {
        let (model, memory) = (or("an unknown CPU", &self.cpu_model), human::size(self.memory_bytes));
        format!("{model}, {} of {} CPUs, {memory} memory, Linux {}", self.cores_allowed, self.cores, self.kernel)
    }

    /// The same, and the drives.
    pub fn line(&self) -> String {
        let mut grounds: Vec<String> = self.drives.iter().map(Ground::line).collect();
        grounds.dedup();
        let drives = match self.drives.len() {
            0 => String::new(),
            1 => format!("; 1 drive: {}", grounds.join(", ")),
            count => format!("; {count} drives: {}", grounds.join(", ")),
        };
        format!("{}{drives}", self.host())
    }
}

fn or<'a>(unknown: &'a str, name: &'a str) -> &'a str {
    if name.is_empty() { unknown } else { name }
}

impl Ground {
    /// `ext4 on /dev/vda`.
    pub fn line(&self) -> String {
        format!("{} on {}", or("a file system", &self.file_system), or("an unknown device", &self.device))
    }

    /// Reads the facts of the file system and the device below a file.
    pub fn look(tree: &Tree, part: &Part) -> Ground {
        let path = part.path.canonicalize().unwrap_or_else(|_| part.path.clone());
        let mounts = mounts::all(tree);
        let mount = mounts::holding(&mounts, &path).map(|mount| (mount.kind.clone(), mount.source.clone()));
        let (file_system, device) = mount.unwrap_or_else(|| itself(tree, &path));
        let scheduler = device.strip_prefix("/dev/").and_then(|name| {
            let text = tree.get(&format!("sys/class/block/{name}/queue/scheduler"))?;
            Some(chosen(&text).to_owned())
        });
        let scheduler = scheduler.unwrap_or_default();
        Ground { path: part.path.clone(), len_bytes: part.len_bytes, file_system, device, scheduler }
    }
}

/// File system type and device of a file outside the mount table, as within a chroot. They come from the file itself.
fn itself(tree: &Tree, path: &Path) -> (String, String) {
    let kind = rustix::fs::statfs(path).map(|told| mounts::kind(told.f_type as u32)).unwrap_or_default();
    let number = fs::metadata(path).map(|found| found.dev()).unwrap_or_default();
    let device = devices::find(tree, (rustix::fs::major(number), rustix::fs::minor(number)));
    (kind, device.map(|device| format!("/dev/{}", device.name)).unwrap_or_default())
}

fn cpu_model(cpuinfo: &str) -> String {
    let value = |key: &str| {
        let line = cpuinfo.lines().find(|line| line.starts_with(key))?;
        line.split_once(':').map(|(_, value)| value.trim().to_owned())
    };
    value("model name").or_else(|| value("Model")).or_else(|| value("CPU part")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
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
        assert!(
            line.starts_with("an unknown CPU, ") && line.ends_with("1 drive: a file system on an unknown device"),
            "{line}"
        );
    }

    #[test]
    fn this_machine_is_described() {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
        let machine = Machine::look(&[Part { path, len_bytes: 7 }]);
        assert!(machine.cores >= machine.cores_allowed.min(1) && machine.memory_bytes > 1 << 20, "{machine:?}");
        assert!(!machine.kernel.is_empty() && !machine.drives[0].file_system.is_empty(), "{machine:?}");
        assert!(machine.line().contains(&machine.kernel) && machine.drives[0].len_bytes == 7);
    }
}

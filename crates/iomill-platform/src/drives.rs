//! The drives of the machine, and the drives under a path.
//!
//! Goals: a path on a volume of several drives leads to all of them. A partition leads to its drive. An NVMe namespace
//! with several paths leads to each path. Non-goals: drives of other machines.

use std::collections::BTreeSet;
use std::error::Error;
use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::devices::{self, STACK_MAX, ancestors, is_numbered, name_of};
use crate::machine::Machine;
use crate::mounts;
use crate::tree::Tree;

/// The error of a path that leads to no drive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoDrive {
    /// The path.
    pub what: String,
    /// The reason, and what to do.
    pub why: String,
}

impl fmt::Display for NoDrive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.why)
    }
}

impl Error for NoDrive {}

/// The protocol of a drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// NVM Express.
    Nvme,
    /// SATA, by AHCI or through a SAS adapter.
    Sata,
    /// SAS.
    Sas,
    /// A drive of a virtual machine.
    Virtio,
    /// Any other protocol.
    Other,
}

impl Transport {
    /// The name for people.
    pub fn name(self) -> &'static str {
        match self {
            Transport::Nvme => "NVMe",
            Transport::Sata => "SATA",
            Transport::Sas => "SAS",
            Transport::Virtio => "virtio",
            Transport::Other => "other",
        }
    }
}

/// A drive, by sysfs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drive {
    /// The name, such as `nvme0n1`.
    pub name: String,
    /// The drive's directory in sysfs.
    pub directory: String,
    /// The directories with the `queue` that serves it: the drive's own directory, or for an NVMe namespace with
    /// several paths those of the paths.
    pub queues: Vec<String>,
    /// The protocol.
    pub transport: Transport,
    /// The maker's name for it; empty if unknown.
    pub model: String,
    /// The controller's name, for NVMe: `nvme0`.
    pub controller: Option<String>,
    /// The directory of the PCI function to which it is attached.
    pub function: Option<String>,
    /// The driver of that function.
    pub driver: Option<String>,
    /// The NUMA node, if it has one.
    pub node: Option<u32>,
    /// The CPUs near it; empty if they are not known.
    pub near: Vec<usize>,
    /// Whether it has rotating disks, as far as the kernel's report is reliable.
    pub is_rotational: bool,
    /// The length in bytes.
    pub len_bytes: u64,
}

/// All drives of the machine: block devices that are not made of others, not in memory, and not empty.
pub fn all(tree: &Tree, machine: &Machine) -> Vec<Drive> {
    let drives = tree.list("sys/block").into_iter().filter_map(|name| {
        let directory = tree.resolve(&format!("sys/block/{name}"))?;
        let is_virtual = directory.contains("/virtual/") && !directory.contains("/nvme-subsystem/");
        let is_plain = !is_virtual && !["sr", "fd"].iter().any(|prefix| is_numbered(&name, prefix));
        // The paths of a namespace are hidden devices, and belong to it.
        let is_hidden = tree.number(&format!("{directory}/hidden")) == Some(1);
        let drive = (is_plain && !is_hidden).then(|| look(tree, machine, &directory))?;
        (drive.len_bytes > 0).then_some(drive)
    });
    drives.collect()
}

/// The drives under paths: names (`nvme0n1`), device nodes (`/dev/nvme0n1p1`), or files and directories on drives. Each
/// drive is listed once, in the order of names.
pub fn under(tree: &Tree, machine: &Machine, paths: &[impl AsRef<Path>]) -> Result<Vec<Drive>, NoDrive> {
    let mut found = BTreeSet::new();
    for path in paths {
        let path = path.as_ref();
        let directory = device_of(tree, path)?;
        leaves(tree, &directory, STACK_MAX, &mut found);
    }
    let mut drives: Vec<Drive> = found.iter().map(|directory| look(tree, machine, directory)).collect();
    drives.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(drives)
}

/// The directory of the block device that a path names, or that holds the path's file.
fn device_of(tree: &Tree, path: &Path) -> Result<String, NoDrive> {
    let text = path.to_string_lossy();
    if !text.is_empty()
        && !text.contains('/')
        && let Some(directory) = tree.resolve(&format!("sys/class/block/{text}"))
    {
        return Ok(directory);
    }
    // A recorded machine's paths do not exist on this machine.
    let path = match path.canonicalize() {
        Ok(path) if tree.is_machine() => path,
        Err(error) if tree.is_machine() => {
            if text.contains('/') {
                return Err(NoDrive { what: text.into_owned(), why: format!("it cannot be found: {error}") });
            }
            let why = "it is neither a block device (`ls /sys/block` lists them) nor a file here".to_owned();
            return Err(NoDrive { what: format!("{text:?}"), why });
        }
        _ => path.to_owned(),
    };
    if let Ok(name) = path.strip_prefix("/dev")
        && let Some(directory) = tree.resolve(&format!("sys/class/block/{}", name.display()))
    {
        return Ok(directory);
    }
    let mounts = mounts::all(tree);
    let mount = mounts::holding(&mounts, &path);
    // In a chroot the table lacks mounts that begin outside of it. The file itself still has the number of its device.
    let number =
        mount.map(|mount| mount.number.clone()).or_else(|| tree.is_machine().then(|| number_of(&path)).flatten());
    let nowhere = |why: String| NoDrive { what: path.display().to_string(), why };
    let number = number.ok_or_else(|| nowhere("no mounted file system holds it; give an absolute path".into()))?;
    // btrfs has numbers of its own, and names its device only as the mount's source.
    let by_number = tree.resolve(&format!("sys/dev/block/{number}")).or_else(|| numbered(tree, &number));
    let by_source = || {
        let source = Path::new(&mount?.source).strip_prefix("/dev").ok()?;
        let name = if tree.is_machine() {
            let node = Path::new(&mount?.source).canonicalize().ok()?;
            node.strip_prefix("/dev").ok()?.to_str()?.to_owned()
        } else {
            source.to_str()?.to_owned()
        };
        tree.resolve(&format!("sys/class/block/{name}"))
    };
    by_number.or_else(by_source).ok_or_else(|| {
        let ground = mount.map_or("a file system", |mount| &mount.kind);
        if tree.list("sys/block").is_empty() {
            let why = "/sys shows no block devices here; mount it, or look from outside the container";
            return nowhere(format!("it lies on {ground}, and {why}"));
        }
        nowhere(format!(
            "it lies on {ground}, which is on no block device of this machine; name a directory on a drive"
        ))
    })
}

/// The `major:minor` of a file's device, in the form of the table of mounts.
fn number_of(path: &Path) -> Option<String> {
    let number = path.metadata().ok()?.dev();
    Some(format!("{}:{}", rustix::fs::major(number), rustix::fs::minor(number)))
}

/// The directory of the device with a number. Looks at all devices, because a record has no list of numbers.
fn numbered(tree: &Tree, number: &str) -> Option<String> {
    let is_it = |directory: &String| tree.get(&format!("{directory}/dev")).is_some_and(|text| text == number);
    let wholes =
        tree.list("sys/block").into_iter().filter_map(|name| Some((tree.resolve(&format!("sys/block/{name}"))?, name)));
    wholes.into_iter().find_map(|(whole, name)| {
        let parts =
            tree.list(&whole).into_iter().filter(|part| part.starts_with(&name)).map(|part| format!("{whole}/{part}"));
        std::iter::once(whole.clone()).chain(parts.collect::<Vec<_>>()).find(is_it)
    })
}

/// Adds the whole devices below a device.
fn leaves(tree: &Tree, directory: &str, depth: usize, found: &mut BTreeSet<String>) {
    let whole = devices::whole(tree, directory);
    let parts = devices::parts(tree, whole);
    if parts.is_empty() || depth == 0 {
        found.insert(whole.to_owned());
        return;
    }
    parts.iter().for_each(|part| leaves(tree, part, depth - 1, found));
}

/// Reads the drive in a directory of sysfs.
fn look(tree: &Tree, machine: &Machine, directory: &str) -> Drive {
    let name = name_of(directory).to_owned();
    let (controllers, queues) = paths_of(tree, directory, &name);
    let ground = controllers.first().map_or_else(|| directory.to_owned(), |(_, controller)| controller.clone());
    let ground = ground.as_str();
    let function = ancestors(ground)
        .find(|dir| tree.exists(&format!("{dir}/msi_irqs")) || tree.exists(&format!("{dir}/local_cpulist")));
    let driver = function.and_then(|dir| tree.resolve(&format!("{dir}/driver")));
    let driver = driver.map(|driver| name_of(&driver).to_owned());
    let (node, near) = devices::near(tree, directory);
    let transport = transport(tree, directory, &name, controllers.is_empty());
    let first = [format!("{directory}/device/model"), format!("{ground}/model")];
    let model = first.iter().find_map(|path| tree.get(path)).unwrap_or_default().trim().to_owned();
    let turns = |queue: &String| tree.number(&format!("{queue}/queue/rotational")) == Some(1);
    Drive {
        transport,
        model,
        controller: controllers.into_iter().next().map(|(name, _)| name),
        function: function.map(str::to_owned),
        driver,
        node,
        near: near.into_iter().filter(|cpu| machine.online.contains(cpu)).collect(),
        // Hypervisors report all their drives as rotational.
        is_rotational: transport != Transport::Virtio && queues.iter().any(turns),
        // The kernel counts units of 512 bytes, whatever the sector size.
        len_bytes: tree.number(&format!("{directory}/size")).unwrap_or(0).saturating_mul(512),
        name,
        directory: directory.to_owned(),
        queues,
    }
}

/// The names and directories of an NVMe namespace's controllers, and the directories of the queues that serve it.
fn paths_of(tree: &Tree, directory: &str, name: &str) -> (Vec<(String, String)>, Vec<String>) {
    let here = vec![directory.to_owned()];
    let above = directory.rsplit_once('/').map_or("", |(above, _)| above);
    if is_numbered(name_of(above), "nvme") {
        return (vec![(name_of(above).to_owned(), above.to_owned())], here);
    }
    let controllers = devices::controllers(tree, directory);
    // The path of nvme1n2 by the controller nvme0 is nvme1c0n2.
    let numbers = name.strip_prefix("nvme").and_then(|rest| rest.split_once('n'));
    let path = |(controller, place): &(String, String)| {
        let (subsystem, namespace) = numbers?;
        let path = format!("{place}/nvme{subsystem}c{}n{namespace}", controller.trim_start_matches("nvme"));
        tree.exists(&format!("{path}/queue")).then_some(path)
    };
    let queues: Vec<String> = controllers.iter().filter_map(path).collect();
    (controllers, if queues.is_empty() { here } else { queues })
}

fn transport(tree: &Tree, directory: &str, name: &str, has_no_controller: bool) -> Transport {
    if name.starts_with("nvme") && !has_no_controller {
        return Transport::Nvme;
    }
    if directory.contains("/virtio") {
        return Transport::Virtio;
    }
    // libata's drives have this vendor, also behind SAS adapters.
    let vendor = tree.get(&format!("{directory}/device/vendor")).unwrap_or_default();
    if directory.contains("/ata") || vendor.trim() == "ATA" {
        return Transport::Sata;
    }
    if directory.contains("/end_device-") || tree.exists(&format!("{directory}/device/sas_address")) {
        return Transport::Sas;
    }
    Transport::Other
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_knows_its_device() {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let number = number_of(here).unwrap();
        let mounts = mounts::all(&Tree::machine());
        // btrfs gives its files numbers that are not in the table, and in a chroot the table may lack this mount.
        if let Some(mount) = mounts::holding(&mounts, here).filter(|mount| mount.kind != "btrfs") {
            assert_eq!(mount.number, number);
        }
        assert!(number.split(':').all(|part| part.parse::<u32>().is_ok()), "{number}");
        assert_eq!(number_of(Path::new("/nonexistent")), None);
    }
}

//! File systems on a drive: their kind, their options, and the start of their partitions.

use iomill_platform::drives::Drive;
use iomill_platform::mounts::Mount;
use iomill_platform::tree::Tree;

use crate::tune::finding::{Finding, Verdict};

const FILE_SYSTEM: &str = "Linux: Documentation/filesystems/iomap/operations.rst; open(2), O_DIRECT";
const OPTIONS: &str = "mount(8); Linux: Documentation/admin-guide/ext4.rst, Documentation/admin-guide/xfs.rst";
const ALIGNMENT: &str = "Linux: Documentation/ABI/stable/sysfs-block, alignment_offset and minimum_io_size";

/// iomill's unit of I/O.
const PAGE_BYTES: u64 = 4096;

/// The file systems on a drive: their kinds and their options.
pub(super) fn findings(tree: &Tree, drive: &Drive, mounts: &[Mount]) -> Vec<Finding> {
    let mut numbers: Vec<String> = tree.get(&format!("{}/dev", drive.directory)).into_iter().collect();
    let mut names = vec![drive.name.clone()];
    for partition in partitions(tree, drive) {
        numbers.extend(tree.get(&format!("{}/{partition}/dev", drive.directory)));
        names.push(partition);
    }
    let is_here = |mount: &&Mount| {
        numbers.contains(&mount.number)
            || mount.source.strip_prefix("/dev/").is_some_and(|name| names.iter().any(|one| one == name))
    };
    let mut findings = Vec::new();
    for mount in mounts.iter().filter(is_here) {
        let subject = mount.point.display().to_string();
        findings.push(kind(&subject, mount));
        findings.push(options(&subject, mount));
    }
    findings
}

fn kind(subject: &str, mount: &Mount) -> Finding {
    let finding = Finding::new(subject, "file_system", &mount.kind, FILE_SYSTEM);
    match mount.kind.as_str() {
        "xfs" | "ext4" => finding.good(),
        "btrfs" | "bcachefs" | "zfs" => finding.verdict(
            Verdict::Advise,
            "xfs or ext4",
            "it copies on write and keeps checksums, so each small random write becomes several, and direct reads take longer paths",
        ),
        "ext2" | "ext3" | "vfat" | "exfat" | "ntfs" | "ntfs3" | "f2fs" => finding.verdict(
            Verdict::Advise,
            "xfs or ext4",
            "its direct I/O takes locks, or goes through threads, while that of xfs and ext4 does not",
        ),
        _ => finding.verdict(Verdict::Note, "xfs or ext4", "iomill has not been measured on it"),
    }
}

fn options(subject: &str, mount: &Mount) -> Finding {
    let mut says: Vec<&str> = Vec::new();
    let mut wants: Vec<&str> = Vec::new();
    let mut verdict = Verdict::Good;
    if !mount.has("noatime") && !mount.has("ro") {
        wants.push("noatime");
        says.push("reads by other users than a file's owner write its access time (iomill's own do not)");
        // With `relatime` it happens once a day.
        verdict = if mount.has("relatime") { Verdict::Note } else { Verdict::Advise };
    }
    if mount.has("discard") {
        wants.push("no discard, but a weekly fstrim");
        says.push("deletes and cuts of files wait until the drive has dropped their blocks");
        verdict = Verdict::Advise;
    }
    if mount.has("data=journal") {
        wants.push("data=ordered");
        says.push("all data is written twice, and no I/O is direct");
        verdict = Verdict::Advise;
    }
    if mount.has("sync") || mount.has("dirsync") {
        wants.push("async");
        says.push("each write waits as if it were synced");
        verdict = Verdict::Advise;
    }
    if mount.has("nobarrier") || mount.has("barrier=0") {
        wants.push("barriers, unless the drive has power-loss protection");
        says.push("`sync` does not reach the drive: synced data may be gone after a power cut; iomill neither needs nor makes this setting");
        verdict = Verdict::Advise;
    }
    let shown: Vec<&str> = mount.options.iter().map(String::as_str).collect();
    let finding = Finding::new(subject, "mount_options", shown.join(","), OPTIONS);
    if wants.is_empty() { finding.good() } else { finding.verdict(verdict, wants.join("; "), says.join("; ")) }
}

/// Partitions that begin within a page of the drive.
pub(super) fn alignment(tree: &Tree, drive: &Drive) -> Option<Finding> {
    let physical = tree.number(&format!("{}/queue/physical_block_size", drive.directory)).unwrap_or(PAGE_BYTES);
    let unit = physical.max(PAGE_BYTES);
    let starts: Vec<(String, u64)> = partitions(tree, drive)
        .into_iter()
        .filter_map(|name| Some((name.clone(), tree.number(&format!("{}/{name}/start", drive.directory))? * 512)))
        .collect();
    if starts.is_empty() {
        return None;
    }
    let wrong: Vec<String> = starts
        .iter()
        .filter(|(_, start)| start % unit != 0)
        .map(|(name, start)| format!("{name} at byte {start}"))
        .collect();
    if wrong.is_empty() {
        let is = format!(
            "{} begin at multiples of {unit} bytes",
            if starts.len() == 1 { "its partition" } else { "its partitions" }
        );
        return Some(Finding::new(&drive.name, "alignment", is, ALIGNMENT).good());
    }
    let why = "each page of the file system lies on two pages of the drive, so each read costs two, and each write becomes a read, a change and a write";
    let should = format!("a multiple of {unit} bytes: make the partition anew (its data must be copied away first)");
    Some(Finding::new(&drive.name, "alignment", wrong.join(", "), ALIGNMENT).verdict(Verdict::Advise, should, why))
}

fn partitions(tree: &Tree, drive: &Drive) -> Vec<String> {
    let names = tree.list(&drive.directory).into_iter().filter(|name| name.starts_with(&drive.name));
    names.filter(|name| tree.exists(&format!("{}/{name}/partition", drive.directory))).collect()
}

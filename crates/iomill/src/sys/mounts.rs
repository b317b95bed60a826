//! Where the other drives of an array may be, if they are not where its label says.
//!
//! Goals: the likely directories first; no long search, and no look that hangs. Non-goals: looking into the
//! directories.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// The kernel's list of mounts that this process can see.
pub const MOUNTINFO: &str = "/proc/self/mountinfo";

/// File systems by the number that `statfs` returns for them. File systems with one number have one name.
const KINDS: [(u32, &str); 24] = [
    (0xef53, "ext2/3/4"),
    (0x5846_5342, "xfs"),
    (0x9123_683e, "btrfs"),
    (0xf2f5_2010, "f2fs"),
    (0x2fc1_2fc1, "zfs"),
    (0xca45_1a4e, "bcachefs"),
    (0x0102_1994, "tmpfs"),
    (0x8584_58f6, "ramfs"),
    (0x794c_7630, "overlay"),
    (0x6573_5546, "fuse"),
    (0x6969, "nfs"),
    (0xff53_4d42, "cifs"),
    (0xfe53_4d42, "smb3"),
    (0x0102_1997, "9p"),
    (0x00c3_6400, "ceph"),
    (0x0bd0_0bd0, "lustre"),
    (0x0116_1970, "gfs2"),
    (0x7461_636f, "ocfs2"),
    (0x3153_464a, "jfs"),
    (0x4d44, "vfat"),
    (0x2011_bab0, "exfat"),
    (0x7366_746e, "ntfs3"),
    (0x9fa0, "proc"),
    (0x6265_6572, "sysfs"),
];

/// The largest number of directories to look at.
const MAX_NEIGHBOURS: usize = 4096;

/// File systems that hold no drive: the kernel's own, and those on which a look may hang when a server is away.
const SKIPPED: [&str; 36] = [
    "proc",
    "sysfs",
    "cgroup",
    "cgroup2",
    "devtmpfs",
    "devpts",
    "debugfs",
    "tracefs",
    "securityfs",
    "pstore",
    "bpf",
    "mqueue",
    "hugetlbfs",
    "configfs",
    "fusectl",
    "autofs",
    "binfmt_misc",
    "rpc_pipefs",
    "nsfs",
    "efivarfs",
    "selinuxfs",
    "resctrl",
    "smackfs",
    "squashfs",
    "iso9660",
    "nfs",
    "nfs4",
    "nfsd",
    "cifs",
    "smb3",
    "smbfs",
    "afs",
    "ceph",
    "9p",
    "fuse.sshfs",
    "fuse.gvfsd-fuse",
];

/// The name of a file system, for messages, by the number that `statfs` returns. An unknown one gets its number as its name.
pub fn kind(number: u32) -> String {
    let known = KINDS.iter().find(|(one, _)| *one == number);
    known.map_or_else(|| format!("file system {number:#x}"), |(_, name)| (*name).to_owned())
}

/// The siblings of `near`, the roots of mounted file systems, and the directories in those roots, in this order. Each
/// comes once, and `near` itself is left out. `mountinfo` is the text of [`MOUNTINFO`].
pub fn neighbours(near: &Path, mountinfo: &str) -> Vec<PathBuf> {
    let mut roots = Vec::new();
    let mut skipped = HashSet::new();
    let mounts: Vec<_> = mountinfo.lines().filter_map(parse_mount).collect();
    // Within a chroot the table lacks the mount that holds the root directory.
    if mounts.iter().all(|(root, _)| root != Path::new("/")) {
        roots.push(PathBuf::from("/"));
    }
    for (root, kind) in mounts {
        if SKIPPED.contains(&kind) {
            skipped.insert(root);
        } else {
            roots.push(root);
        }
    }
    let mut found = Found { seen: HashSet::from([near.to_owned()]), paths: Vec::new() };
    if let Some(parent) = near.parent() {
        found.add_children(parent, &skipped);
    }
    for root in &roots {
        // A bind mount may be a single file.
        if root.is_dir() {
            found.add(root.clone());
        }
    }
    for root in &roots {
        found.add_children(root, &skipped);
    }
    found.paths
}

/// The text of [`MOUNTINFO`].
pub fn read_mountinfo() -> io::Result<String> {
    Ok(String::from_utf8_lossy(&fs::read(MOUNTINFO)?).into_owned())
}

struct Found {
    /// Everything in `paths`, and the paths that must never be added.
    seen: HashSet<PathBuf>,
    paths: Vec<PathBuf>,
}

impl Found {
    fn add(&mut self, path: PathBuf) {
        if self.paths.len() < MAX_NEIGHBOURS && self.seen.insert(path.clone()) {
            self.paths.push(path);
        }
    }

    /// Adds the directories in `dir`. A directory that this user cannot read has no drives for this user.
    fn add_children(&mut self, dir: &Path, skipped: &HashSet<PathBuf>) {
        let Ok(entries) = fs::read_dir(dir) else { return };
        let mut children = Vec::new();
        // The number is bounded here, too: a directory of millions of files must not be walked.
        for entry in entries.take(MAX_NEIGHBOURS).flatten() {
            let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
            let path = entry.path();
            if is_dir && !skipped.contains(&path) {
                children.push(path);
            }
        }
        children.sort();
        children.into_iter().for_each(|child| self.add(child));
    }
}

/// Mount point and file system type of one line: `36 35 98:0 / /mnt rw,noatime master:1 - ext3 /dev/root rw`.
fn parse_mount(line: &str) -> Option<(PathBuf, &str)> {
    let (place, file_system) = line.split_once(" - ")?;
    let root = place.split(' ').nth(4)?;
    let kind = file_system.split(' ').next()?;
    Some((PathBuf::from(OsString::from_vec(unescape(root.as_bytes()))), kind))
}

/// Turns the kernel's `\040` in a table of mounts back into the byte that it stands for.
pub fn unescape(text: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, tail)) = rest.split_first() {
        let digits = tail.get(..3).filter(|digits| first == b'\\' && digits.iter().all(|d| (b'0'..=b'7').contains(d)));
        match digits {
            Some(digits) => {
                let value = digits.iter().fold(0u32, |value, digit| value * 8 + u32::from(digit - b'0'));
                bytes.push(value as u8);
                rest = &tail[3..];
            }
            None => {
                bytes.push(first);
                rest = tail;
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn siblings_then_mounts_then_their_children() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for name in ["drives/a", "drives/b", "drives/c", "mount one/x", "mount one/y", "proc/1", "proc/2"] {
            fs::create_dir_all(at(name)).unwrap();
        }
        fs::write(at("drives/file"), "").unwrap();
        std::os::unix::fs::symlink(at("drives/a"), at("drives/link")).unwrap();
        let root = dir.path().display();
        let mountinfo = format!(
            "35 1 7:0 / / ro - squashfs /dev/loop0 ro\n\
             36 35 98:0 / {root}/mount\\040one rw,noatime master:1 - xfs /dev/sda rw\n\
             37 35 0:5 / {root}/proc rw - proc proc rw\n\
             38 35 0:5 / {root}/gone rw shared:3 - ext4 /dev/sdb rw\n\
             39 35 0:6 / {root}/mount\\040one/y rw - nfs4 server:/ rw\n\
             nonsense\n"
        );
        let found = neighbours(&at("drives/a"), &mountinfo);
        let expected = ["drives/b", "drives/c", "mount one", "mount one/x"].map(at);
        assert_eq!(found, expected);
    }

    #[test]
    fn this_machine_has_a_root() {
        for mountinfo in [read_mountinfo().unwrap_or_default(), String::new()] {
            let found = neighbours(Path::new("/nonexistent/drive"), &mountinfo);
            assert!(found.contains(&PathBuf::from("/")), "{found:?}");
            assert!(mountinfo.is_empty() || !found.contains(&PathBuf::from("/proc")));
            assert!(found.len() <= MAX_NEIGHBOURS);
        }
    }

    #[test]
    fn numbers_of_file_systems_have_names() {
        assert_eq!([kind(0xef53), kind(0x5846_5342)], ["ext2/3/4", "xfs"]);
        assert_eq!(kind(0x1234), "file system 0x1234");
        assert!(KINDS.iter().enumerate().all(|(at, one)| KINDS[..at].iter().all(|other| other.0 != one.0)));
    }

    #[test]
    fn escapes() {
        assert_eq!(unescape(b"/a\\040b\\134\\012c"), b"/a b\\\nc");
        assert_eq!(unescape(b"/a\\9\\04"), b"/a\\9\\04");
        assert_eq!(unescape(b"\\"), b"\\");
    }
}

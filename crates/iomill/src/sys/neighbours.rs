//! Directories in which the other drives of an array may be, if they are not at the paths in its label.
//!
//! Goals: the likely directories first; no long search, and no access that hangs. Non-goals: looking into these
//! directories.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use iomill_platform::mounts::Mount;

/// The most directories in the list.
const MAX_NEIGHBOURS: usize = 4096;

/// File systems without drives: the kernel's own, and those on which an access may hang if a server is away.
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

/// The siblings of `near`, the roots of mounted file systems, and the directories in those roots, in this order. Each
/// is listed once, and `near` itself is not.
pub fn neighbours(near: &Path, mounts: Vec<Mount>) -> Vec<PathBuf> {
    let mut roots = Vec::new();
    let mut skipped = HashSet::new();
    // In a chroot the table of mounts lacks the mount of the root directory.
    if mounts.iter().all(|mount| mount.point != Path::new("/")) {
        roots.push(PathBuf::from("/"));
    }
    for mount in mounts {
        if SKIPPED.contains(&mount.kind.as_str()) {
            skipped.insert(mount.point);
        } else {
            roots.push(mount.point);
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

struct Found {
    /// All of `paths`, and the paths that must not be added.
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
        // Bounded here, too: a directory of millions of files must not be walked.
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

#[cfg(test)]
mod tests {
    use super::*;
    use iomill_platform::mounts;
    use iomill_platform::tree::Tree;

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
        let found = neighbours(&at("drives/a"), mounts::table(&mountinfo));
        let expected = ["drives/b", "drives/c", "mount one", "mount one/x"].map(at);
        assert_eq!(found, expected);
    }

    #[test]
    fn this_machine_has_a_root() {
        for mounts in [mounts::all(&Tree::machine()), Vec::new()] {
            let has_none = mounts.is_empty();
            let found = neighbours(Path::new("/nonexistent/drive"), mounts);
            assert!(found.contains(&PathBuf::from("/")), "{found:?}");
            assert!(has_none || !found.contains(&PathBuf::from("/proc")));
            assert!(found.len() <= MAX_NEIGHBOURS);
        }
    }
}

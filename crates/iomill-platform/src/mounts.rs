//! The mounted file systems.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use crate::tree::Tree;

/// The kernel's table of the mounts that this process can see.
pub const TABLE: &str = "proc/self/mountinfo";

/// The names of file systems by the number that `statfs` returns. File systems that share a number share a name.
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

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// The kernel's number of the mount.
    pub id: u64,
    /// The device as `major:minor`, by the file system's own report.
    pub number: String,
    /// The directory of the file system that is mounted.
    pub root: PathBuf,
    /// The mount point.
    pub point: PathBuf,
    /// The file system's type.
    pub kind: String,
    /// The source, mostly the node of a device.
    pub source: String,
    /// The options of the mount and of the file system.
    pub options: Vec<String>,
}

impl Mount {
    /// Whether an option is set.
    pub fn has(&self, option: &str) -> bool {
        self.options.iter().any(|one| one == option)
    }
}

/// All mounts that this process sees, in the order of their making.
pub fn all(tree: &Tree) -> Vec<Mount> {
    table(&tree.get(TABLE).unwrap_or_default())
}

/// All mounts of a text in the form of [`TABLE`].
pub fn table(text: &str) -> Vec<Mount> {
    text.lines().filter_map(parse).collect()
}

/// The name of a file system, for messages, by the number that `statfs` returns. An unknown one is named by its number.
pub fn kind(number: u32) -> String {
    let known = KINDS.iter().find(|(one, _)| *one == number);
    known.map_or_else(|| format!("file system {number:#x}"), |(_, name)| (*name).to_owned())
}

/// The mount of a path: of the mounts with the longest mount point above it, the last.
pub fn holding<'a>(mounts: &'a [Mount], path: &Path) -> Option<&'a Mount> {
    mounts.iter().filter(|mount| path.starts_with(&mount.point)).max_by_key(|mount| mount.point.components().count())
}

/// Parses a line such as `36 35 98:0 / /mnt rw,noatime master:1 - ext3 /dev/root rw,errors=continue`.
fn parse(line: &str) -> Option<Mount> {
    let (place, what) = line.split_once(" - ")?;
    let mut place = place.split(' ');
    let (id, _parent, number) = (place.next()?.parse().ok()?, place.next()?, place.next()?);
    let (root, point, options) = (place.next()?, place.next()?, place.next()?);
    let mut what = what.split(' ');
    let (kind, source, more) = (what.next()?, what.next()?, what.next().unwrap_or_default());
    let mut all: Vec<String> = Vec::new();
    for option in options.split(',').chain(more.split(',')).filter(|option| !option.is_empty()) {
        if !all.iter().any(|one| one == option) {
            all.push(option.to_owned());
        }
    }
    let unescaped = |text: &str| PathBuf::from(OsString::from_vec(unescape(text.as_bytes())));
    Some(Mount {
        id,
        number: number.to_owned(),
        root: unescaped(root),
        point: unescaped(point),
        kind: kind.to_owned(),
        source: unescaped(source).to_string_lossy().into_owned(),
        options: all,
    })
}

/// Replaces the kernel's escapes in a table of mounts, such as `\040`, by their bytes.
fn unescape(text: &[u8]) -> Vec<u8> {
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
    fn lines_are_read_and_paths_found() {
        let text = "27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard\n\
                    28 27 8:1 / /mnt/a\\040b rw,noatime shared:1 - xfs /dev/sda1 rw,attr2,rw\n\
                    29 27 8:2 / /mnt/a\\040b rw - xfs /dev/sdb rw\nnonsense\n";
        let mounts = table(text);
        assert_eq!(mounts.len(), 3);
        assert_eq!((mounts[0].id, mounts[1].id, mounts[1].root.as_path()), (27, 28, Path::new("/")));
        assert_eq!(mounts[1].options, ["rw", "noatime", "attr2"]);
        assert!(mounts[1].has("noatime") && !mounts[0].has("noatime"));
        let at = |path: &str| holding(&mounts, Path::new(path)).unwrap().source.clone();
        assert_eq!(
            (at("/mnt/a b/f"), at("/mnt/ab"), at("/")),
            ("/dev/sdb".into(), "/dev/vda".into(), "/dev/vda".into())
        );
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

//! The mounted file systems.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use iomill::sys::mounts::unescape;

use crate::tree::Tree;

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// `major:minor` of the device, as the file system reports it.
    pub number: String,
    /// The mount point.
    pub point: PathBuf,
    /// The file system's type.
    pub kind: String,
    /// The source: mostly a device's node.
    pub source: String,
    /// Options of the mount and of the file system.
    pub options: Vec<String>,
}

impl Mount {
    /// Whether an option is set.
    pub fn has(&self, option: &str) -> bool {
        self.options.iter().any(|one| one == option)
    }
}

/// All mounts that this process sees, in the order in which they were made.
pub fn all(tree: &Tree) -> Vec<Mount> {
    table(&tree.get("proc/self/mountinfo").unwrap_or_default())
}

/// All mounts of a table such as `/proc/self/mountinfo`.
pub fn table(text: &str) -> Vec<Mount> {
    text.lines().filter_map(parse).collect()
}

/// The mount that holds a path: of those with the longest mount point, the last.
pub fn holding<'a>(mounts: &'a [Mount], path: &Path) -> Option<&'a Mount> {
    mounts.iter().filter(|mount| path.starts_with(&mount.point)).max_by_key(|mount| mount.point.components().count())
}

/// `36 35 98:0 / /mnt rw,noatime master:1 - ext3 /dev/root rw,errors=continue`
fn parse(line: &str) -> Option<Mount> {
    let (place, what) = line.split_once(" - ")?;
    let mut place = place.split(' ').skip(2);
    let (number, _root, point, options) = (place.next()?, place.next()?, place.next()?, place.next()?);
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
        number: number.to_owned(),
        point: unescaped(point),
        kind: kind.to_owned(),
        source: unescaped(source).to_string_lossy().into_owned(),
        options: all,
    })
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
        assert_eq!(mounts[1].options, ["rw", "noatime", "attr2"]);
        assert!(mounts[1].has("noatime") && !mounts[0].has("noatime"));
        let at = |path: &str| holding(&mounts, Path::new(path)).unwrap().source.clone();
        assert_eq!(
            (at("/mnt/a b/f"), at("/mnt/ab"), at("/")),
            ("/dev/sdb".into(), "/dev/vda".into(), "/dev/vda".into())
        );
    }
}

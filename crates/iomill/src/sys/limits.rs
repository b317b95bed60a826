//! The limits on the memory of this process.
//!
//! Goals: the least of the machine's memory and the limits of all control groups of the process; the limit on address
//! space. The root path is an argument, so that a test can bring its own tree. Non-goals: the memory that is free now.

use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use iomill_platform::memory;
use iomill_platform::mounts::{self, Mount};

/// The default size of the cache in bytes, if there is enough memory.
pub const DEFAULT_CACHE_BYTES: u64 = 512 << 20;

/// The default cache is at most the memory limit divided by this.
const DEFAULT_CACHE_SHARE: u64 = 4;

/// The files that limit memory in a control group of version 2. Above `memory.high` the kernel delays the group's
/// processes until they have freed memory.
const V2_FILES: [&str; 2] = ["memory.max", "memory.high"];
/// The files that limit memory in a control group of version 1.
const V1_FILES: [&str; 1] = ["memory.limit_in_bytes"];

/// The default size of a cache, in bytes: 512 MiB, and at most a quarter of `limit_bytes`.
pub fn default_cache_bytes(limit_bytes: u64) -> u64 {
    DEFAULT_CACHE_BYTES.min(limit_bytes / DEFAULT_CACHE_SHARE)
}

/// The least of the machine's memory and the limits of this process's control groups, in bytes. Counts groups of both
/// versions, and all groups above them. `/proc` and `/sys` are below `root`, which is `/` except in tests.
///
/// If control groups are not visible, the limit is the machine's memory.
///
/// # Errors
/// A limit exists, but cannot be read or understood.
pub fn memory_limit_bytes(root: &Path) -> io::Result<u64> {
    let mut least = physical_bytes(root)?;
    let (Some(groups), Some(mounts)) =
        (read_if_there(&root.join("proc/self/cgroup"))?, read_if_there(&root.join("proc/self/mountinfo"))?)
    else {
        return Ok(least);
    };
    let mounts: Vec<Hierarchy> = mounts::table(&mounts).into_iter().filter_map(hierarchy).collect();
    for group in groups.lines().filter_map(parse_group) {
        let files: &[&str] = if group.v2 { &V2_FILES } else { &V1_FILES };
        for hierarchy in mounts.iter().filter(|hierarchy| hierarchy.v2 == group.v2) {
            for directory in directories(root, &hierarchy.mount, &group.path) {
                for file in files {
                    least = least.min(limit_in(&directory.join(file))?);
                }
            }
        }
    }
    Ok(least)
}

/// The limit on this process's address space in bytes (`ulimit -v`). `u64::MAX` if there is none.
pub fn address_space_bytes() -> u64 {
    rustix::process::getrlimit(rustix::process::Resource::As).current.unwrap_or(u64::MAX)
}

/// The machine's memory in bytes, by the `/proc` below `root`. If this machine has no `/proc`, the memory that
/// `sysinfo` reports. An error if there is a `/proc` without that number.
pub fn physical_bytes(root: &Path) -> io::Result<u64> {
    let path = root.join("proc/meminfo");
    let text = match fs::read_to_string(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && root == Path::new("/") => return Ok(machine_bytes()),
        text => text.map_err(|error| at(&path, error))?,
    };
    memory::bytes(&text, "MemTotal").ok_or_else(|| senseless(&path, &text))
}

/// The machine's memory as `sysinfo` reports it.
fn machine_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    (info.totalram as u64).saturating_mul(info.mem_unit.into())
}

/// A control group that limits memory, as this process sees it.
struct Group {
    v2: bool,
    /// The path from the root of its hierarchy, as far up as the process can see.
    path: PathBuf,
}

/// Reads a line of `/proc/self/cgroup`: `4:memory:/a/b`, or `0::/a/b` for version 2.
fn parse_group(line: &str) -> Option<Group> {
    let mut fields = line.splitn(3, ':');
    let (number, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
    let v2 = number == "0" && controllers.is_empty();
    let limits_memory = v2 || controllers.split(',').any(|name| name == "memory");
    limits_memory.then(|| Group { v2, path: PathBuf::from(path) })
}

/// The mount of a hierarchy of control groups that limit memory.
struct Hierarchy {
    v2: bool,
    mount: Mount,
}

fn hierarchy(mount: Mount) -> Option<Hierarchy> {
    let v2 = mount.kind == "cgroup2";
    let limits_memory = v2 || mount.kind == "cgroup" && mount.has("memory");
    limits_memory.then_some(Hierarchy { v2, mount })
}

/// The directories of a group and of all groups above it, up to the mount point of the hierarchy.
fn directories(root: &Path, mount: &Mount, group: &Path) -> Vec<PathBuf> {
    let point = root.join(mount.point.strip_prefix("/").unwrap_or(&mount.point));
    // A container may see its own group as the top of the mount, and have the name of a group that is not below it. The
    // mount then shows its group, or one above it.
    let below = group.strip_prefix(&mount.root).unwrap_or(Path::new(""));
    let below = if below.components().all(|part| matches!(part, Component::Normal(_))) { below } else { Path::new("") };
    below.ancestors().map(|path| point.join(path)).collect()
}

/// A limit in bytes. `u64::MAX` if there is none: no such file (as at the root of a hierarchy), or `max`.
fn limit_in(path: &Path) -> io::Result<u64> {
    match read_if_there(path)?.as_deref().map(str::trim) {
        None | Some("max") => Ok(u64::MAX),
        Some(text) => text.parse().map_err(|_| senseless(path, text)),
    }
}

fn read_if_there(path: &Path) -> io::Result<Option<String>> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
        // A group that has just been removed answers ENODEV.
        Err(error) if error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ENODEV) => Ok(None),
        Err(error) => Err(at(path, error)),
    }
}

fn at(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("cannot read {}: {error}", path.display()))
}

fn senseless(path: &Path, text: &str) -> io::Error {
    let start: String = text.chars().take(60).collect();
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("{} should hold an amount of memory, but holds {start:?}", path.display()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    const GIB: u64 = 1 << 30;

    /// A machine of 16 GiB with some files.
    fn tree(files: &[(&str, &str)]) -> TempDir {
        let root = tempfile::tempdir().unwrap();
        let machine = ("proc/meminfo", "MemTotal:       16777216 kB\nMemFree:  1 kB\n");
        for (path, text) in [&[machine], files].concat() {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    #[track_caller]
    fn limit(files: &[(&str, &str)], expected: u64) {
        assert_eq!(memory_limit_bytes(tree(files).path()).unwrap(), expected);
    }

    const V2_MOUNT: (&str, &str) =
        ("proc/self/mountinfo", "30 23 0:28 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n");

    #[test]
    fn a_machine_without_groups() {
        limit(&[], 16 * GIB);
        limit(&[V2_MOUNT], 16 * GIB);
        limit(&[("proc/self/cgroup", "0::/\n")], 16 * GIB);
        limit(&[("proc/self/cgroup", "0::/a\n"), V2_MOUNT], 16 * GIB);
    }

    #[test]
    fn version_2_and_the_groups_above() {
        let group = ("proc/self/cgroup", "0::/user.slice/one two/run\n");
        let own = ("sys/fs/cgroup/user.slice/one two/run/memory.max", "8589934592\n");
        let free = ("sys/fs/cgroup/user.slice/one two/run/memory.max", "max\n");
        let above = ("sys/fs/cgroup/user.slice/memory.max", "2147483648\n");
        let high = ("sys/fs/cgroup/user.slice/one two/memory.high", "1073741824\n");
        let other = ("sys/fs/cgroup/other/memory.max", "4096\n");
        limit(&[group, V2_MOUNT, own, other], 8 * GIB);
        limit(&[group, V2_MOUNT, free, other], 16 * GIB);
        limit(&[group, V2_MOUNT, own, above, other], 2 * GIB);
        limit(&[group, V2_MOUNT, free, above, high], GIB);
        limit(&[group, V2_MOUNT, ("sys/fs/cgroup/user.slice/one two/run/memory.max", "99999999999999")], 16 * GIB);
    }

    #[test]
    fn version_1_beside_version_2() {
        let mounts = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n\
                      35 31 0:32 / /sys/fs/cgroup/memory\\040v1 rw,relatime shared:5 - cgroup cgroup rw,memory\n\
                      32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n\
                      41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let files = [
            ("proc/self/mountinfo", mounts),
            ("proc/self/cgroup", "4:cpu,memory:/a/b\n1:cpu:/a\n1:name=systemd:/memory\n0::/\n"),
            ("sys/fs/cgroup/memory v1/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/memory v1/a/memory.limit_in_bytes", "3221225472\n"),
            ("sys/fs/cgroup/memory v1/a/b/memory.limit_in_bytes", "4294967296\n"),
            ("sys/fs/cgroup/cpu/a/memory.limit_in_bytes", "1\n"),
        ];
        limit(&files, 3 * GIB);
        limit(&files[..3], 16 * GIB);
    }

    #[test]
    fn containers() {
        let group = |text| ("proc/self/cgroup", text);
        // The group's own name is the top of the mount.
        let mount = ("proc/self/mountinfo", "35 31 0:32 /docker/abc /cg ro - cgroup cgroup rw,memory\n");
        let limits = [("cg/memory.limit_in_bytes", "2147483648\n"), ("cg/in/memory.limit_in_bytes", "1073741824\n")];
        limit(&[mount, group("4:memory:/docker/abc\n"), limits[0], limits[1]], 2 * GIB);
        limit(&[mount, group("4:memory:/docker/abc/in\n"), limits[0], limits[1]], GIB);
        limit(&[mount, group("4:memory:/elsewhere/in\n"), limits[0], limits[1]], 2 * GIB);
        // A name that leads above the visible groups never leaves the mount.
        let climbing = [V2_MOUNT, group("0::/../../proc\n"), ("proc/memory.max", "1\n"), ("memory.max", "1\n")];
        limit(&climbing, 16 * GIB);
    }

    #[test]
    fn nonsense_is_an_error() {
        let group = ("proc/self/cgroup", "0::/\n");
        let root = tree(&[V2_MOUNT, group, ("sys/fs/cgroup/memory.max", "much\n")]);
        let error = memory_limit_bytes(root.path()).unwrap_err();
        assert!(
            error.to_string().ends_with("sys/fs/cgroup/memory.max should hold an amount of memory, but holds \"much\""),
            "{error}"
        );
        let empty = tempfile::tempdir().unwrap();
        assert_eq!(memory_limit_bytes(empty.path()).unwrap_err().kind(), io::ErrorKind::NotFound);
        let root = tree(&[("proc/meminfo", "MemTotal: 5 MB\n")]);
        assert_eq!(memory_limit_bytes(root.path()).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn this_machine_has_a_limit() {
        let limit = memory_limit_bytes(Path::new("/")).unwrap();
        let physical = physical_bytes(Path::new("/")).unwrap();
        assert!(limit > 1 << 20 && limit <= physical, "{limit} of {physical}");
        assert_eq!(machine_bytes(), physical, "with /proc or without");
    }

    #[test]
    fn default_caches() {
        assert_eq!(default_cache_bytes(16 * GIB), 512 << 20);
        assert_eq!(default_cache_bytes(GIB), 256 << 20);
        assert_eq!(default_cache_bytes(0), 0);
    }
}

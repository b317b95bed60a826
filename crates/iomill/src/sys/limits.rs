//! The limits on the memory of this process.
//!
//! Goals: the least of the machine's memory and the limits of all control groups of the process; what of it is
//! available now; the limit on address space. The root path is an argument, so that a test can bring its own tree.

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

/// The files with the memory that a control group uses, in version 2 and 1, and the keys of `memory.stat` for pages of
/// files in it. The kernel drops these pages when memory is short.
const V2_USE: Use = Use { file: "memory.current", pages: ["active_file", "inactive_file"] };
const V1_USE: Use = Use { file: "memory.usage_in_bytes", pages: ["total_active_file", "total_inactive_file"] };

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
    for (directory, v2) in own_groups(root)? {
        least = least.min(limit_of(&directory, v2)?);
    }
    Ok(least)
}

/// The memory that this process can still take, in bytes: the least of the machine's available memory and of what each
/// control group of [`memory_limit_bytes`] has left. Pages of files do not count as used, because the kernel drops
/// them.
///
/// # Errors
/// As for [`memory_limit_bytes`].
pub fn available_bytes(root: &Path) -> io::Result<u64> {
    let mut least = machine_available_bytes(root)?;
    for (directory, v2) in own_groups(root)? {
        let limit = limit_of(&directory, v2)?;
        if limit < u64::MAX {
            least = least.min(limit.saturating_sub(group_used_bytes(&directory, v2)?));
        }
    }
    Ok(least)
}

/// The directories of the control groups of this process that limit memory, and of the groups above them. True for
/// version 2.
fn own_groups(root: &Path) -> io::Result<Vec<(PathBuf, bool)>> {
    let (Some(groups), Some(mounts)) =
        (read_if_there(&root.join("proc/self/cgroup"))?, read_if_there(&root.join("proc/self/mountinfo"))?)
    else {
        return Ok(Vec::new());
    };
    let mounts: Vec<Hierarchy> = mounts::table(&mounts).into_iter().filter_map(hierarchy).collect();
    let mut found = Vec::new();
    for group in groups.lines().filter_map(parse_group) {
        for hierarchy in mounts.iter().filter(|hierarchy| hierarchy.v2 == group.v2) {
            let directories = directories(root, &hierarchy.mount, &group.path);
            found.extend(directories.into_iter().map(|directory| (directory, group.v2)));
        }
    }
    Ok(found)
}

/// The limit of a control group without the groups above it. `u64::MAX` if there is none.
fn limit_of(directory: &Path, v2: bool) -> io::Result<u64> {
    let files: &[&str] = if v2 { &V2_FILES } else { &V1_FILES };
    let mut least = u64::MAX;
    for file in files {
        least = least.min(limit_in(&directory.join(file))?);
    }
    Ok(least)
}

/// The names of a control group's use of memory.
struct Use {
    file: &'static str,
    pages: [&'static str; 2],
}

/// The memory that a control group uses, in bytes, without pages of files. Shared memory counts as used. `v2` is for a
/// group of version 2. 0 if the group's use is not visible.
///
/// # Errors
/// The files of the group cannot be read or understood.
pub fn group_used_bytes(directory: &Path, v2: bool) -> io::Result<u64> {
    let names = if v2 { &V2_USE } else { &V1_USE };
    let path = directory.join(names.file);
    let Some(text) = read_if_there(&path)? else { return Ok(0) };
    let used: u64 = text.trim().parse().map_err(|_| senseless(&path, text.trim()))?;
    let stat = read_if_there(&directory.join("memory.stat"))?.unwrap_or_default();
    let amounts = stat.lines().filter_map(|line| line.split_once(' '));
    let pages = amounts.filter(|(key, _)| names.pages.contains(key)).filter_map(|(_, text)| text.parse::<u64>().ok());
    Ok(used.saturating_sub(pages.sum()))
}

/// The limit on this process's address space in bytes (`ulimit -v`). `u64::MAX` if there is none.
pub fn address_space_bytes() -> u64 {
    rustix::process::getrlimit(rustix::process::Resource::As).current.unwrap_or(u64::MAX)
}

/// The machine's memory in bytes, by the `/proc` below `root`. If this machine has no `/proc`, the memory that
/// `sysinfo` reports. Fails if `/proc` exists without that number.
pub fn physical_bytes(root: &Path) -> io::Result<u64> {
    of_machine(root, "MemTotal", machine_bytes)
}

/// The machine's memory that is available without swapping, in bytes, by the `/proc` below `root`. If this machine has
/// no `/proc`, the free memory that `sysinfo` reports.
fn machine_available_bytes(root: &Path) -> io::Result<u64> {
    of_machine(root, "MemAvailable", || {
        let info = rustix::system::sysinfo();
        (info.freeram as u64).saturating_mul(info.mem_unit.into())
    })
}

/// An amount of `/proc/meminfo` below `root`, in bytes, or `without_proc` if this machine has no `/proc`.
fn of_machine(root: &Path, key: &str, without_proc: impl FnOnce() -> u64) -> io::Result<u64> {
    let path = root.join("proc/meminfo");
    match fs::read_to_string(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && root == Path::new("/") => Ok(without_proc()),
        Err(error) => Err(at(&path, error)),
        Ok(text) => memory::bytes(&text, key).ok_or_else(|| senseless(&path, &text)),
    }
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
        let machine = ("proc/meminfo", "MemTotal:       16777216 kB\nMemAvailable: 12582912 kB\n");
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

    #[track_caller]
    fn available(files: &[(&str, &str)], expected: u64) {
        assert_eq!(available_bytes(tree(files).path()).unwrap(), expected);
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
    fn memory_that_a_group_uses_is_not_available_unless_the_kernel_drops_it() {
        available(&[], 12 * GIB);
        let group = ("proc/self/cgroup", "0::/a\n");
        let [limit, above] =
            ["sys/fs/cgroup/a/memory.max", "sys/fs/cgroup/memory.high"].map(|path| (path, "8589934592\n"));
        let used = ("sys/fs/cgroup/a/memory.current", "3221225472\n");
        let stat =
            ("sys/fs/cgroup/a/memory.stat", "anon 5\nactive_file 1073741824\ninactive_file 1073741824\nfile 9\n");
        available(&[group, V2_MOUNT], 12 * GIB);
        available(&[group, V2_MOUNT, limit], 8 * GIB);
        available(&[group, V2_MOUNT, limit, used], 5 * GIB);
        available(&[group, V2_MOUNT, limit, used, stat], 7 * GIB);
        // The group above is all of the machine.
        available(&[group, V2_MOUNT, limit, above, ("sys/fs/cgroup/memory.current", "7516192768\n")], GIB);
        // More than the limit, which was lowered.
        available(&[group, V2_MOUNT, limit, ("sys/fs/cgroup/a/memory.current", "9663676416\n")], 0);
        let mount = ("proc/self/mountinfo", "35 31 0:32 / /cg rw - cgroup cgroup rw,memory\n");
        let files = [
            mount,
            ("proc/self/cgroup", "4:memory:/a\n"),
            ("cg/a/memory.limit_in_bytes", "8589934592\n"),
            ("cg/a/memory.usage_in_bytes", "3221225472\n"),
            (
                "cg/a/memory.stat",
                "active_file 1\ninactive_file 2\ntotal_active_file 0\ntotal_inactive_file 1073741824\n",
            ),
        ];
        available(&files, 6 * GIB);
        let root = tree(&[group, V2_MOUNT, limit, ("sys/fs/cgroup/a/memory.current", "much\n")]);
        assert!(available_bytes(root.path()).unwrap_err().to_string().contains("memory.current should hold"));
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
        let root = tree(&[("proc/meminfo", "MemTotal: 5 MB\n")]);
        for read in [memory_limit_bytes, available_bytes] {
            assert_eq!(read(root.path()).unwrap_err().kind(), io::ErrorKind::InvalidData);
            assert_eq!(read(empty.path()).unwrap_err().kind(), io::ErrorKind::NotFound);
        }
    }

    #[test]
    fn this_machine_has_a_limit() {
        let limit = memory_limit_bytes(Path::new("/")).unwrap();
        let physical = physical_bytes(Path::new("/")).unwrap();
        assert!(limit > 1 << 20 && limit <= physical, "{limit} of {physical}");
        assert_eq!(machine_bytes(), physical, "with /proc or without");
        let available = available_bytes(Path::new("/")).unwrap();
        assert!(available > 0 && available <= limit, "{available} of {limit}");
    }

    #[test]
    fn default_caches() {
        assert_eq!(default_cache_bytes(16 * GIB), 512 << 20);
        assert_eq!(default_cache_bytes(GIB), 256 << 20);
        assert_eq!(default_cache_bytes(0), 0);
    }
}

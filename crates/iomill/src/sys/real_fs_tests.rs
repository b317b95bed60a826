//! Drives on the file system that the tests are built on.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::sync::Arc;

use iomill_platform::tree::Tree;

use super::*;
use crate::sys::calls::{PAGE_BYTES, write_zeroes};
use crate::sys::fs::DriveFile;

/// A directory on a real drive: the build directory, since `/tmp` may be memory.
pub(crate) fn scratch() -> tempfile::TempDir {
    let here = std::env::current_exe().unwrap();
    tempfile::tempdir_in(here.parent().unwrap()).unwrap()
}

/// The drive with and without `openat2`.
fn both(test: impl Fn(&Path, &RealFs)) {
    for has_openat2 in [true, false] {
        let dir = scratch();
        let fs = RealFs::attach(dir.path(), true).unwrap();
        fs.has_openat2.store(has_openat2, Ordering::Relaxed);
        fs.make_dir("files").unwrap();
        test(dir.path(), &fs);
    }
}

fn raw<T>(result: io::Result<T>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

#[test]
fn files_are_made_written_renamed_and_removed() {
    both(|dir, fs| {
        let handle = fs.open("files/a", Access::CREATE).unwrap();
        fs.write_at(handle, b"hello", 3).unwrap();
        let mut buf = [9; 16];
        assert_eq!(fs.read_at(handle, &mut buf, 0).unwrap(), 8);
        assert_eq!(&buf[..9], b"\0\0\0hello\x09");
        fs.set_len(handle, 5).unwrap();
        fs.allocate(handle, 0, 100_000).unwrap();
        assert_eq!(fs.len(handle).unwrap(), 100_000);
        fs.allocate(handle, 0, 10).unwrap();
        assert_eq!(fs.len(handle).unwrap(), 100_000);
        fs.sync_data(handle).unwrap();
        fs.close(handle);
        assert_eq!(raw(fs.open("files/a", Access::CREATE)), Some(libc::EEXIST));
        fs.rename("files/a", "files/b").unwrap();
        fs.sync_dir("files").unwrap();
        fs.sync_dir("").unwrap();
        assert_eq!(fs.list("files").unwrap(), ["b"]);
        assert_eq!(fs.list("").unwrap(), ["files"]);
        assert_eq!(raw(fs.open("files/a", Access::READ)), Some(libc::ENOENT));
        assert_eq!(raw(fs.unlink("files/a")), Some(libc::ENOENT));
        fs.unlink("files/b").unwrap();
        assert!(dir.join("iomill/files").read_dir().unwrap().next().is_none());
        fs.make_dir("files").unwrap();
    });
}

/// The open of a pipe would wait for ever. The flag that prevents that must not stay: with it direct I/O by io_uring
/// fails now and then.
#[test]
fn only_regular_files_are_opened() {
    both(|dir, fs| {
        let pipe = dir.join("iomill/files/pipe");
        sys::mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        for access in [Access::READ, Access::WRITE, Access::READ.direct()] {
            let refused = fs.open("files/pipe", access).unwrap_err().to_string();
            assert_eq!(refused, "it is not a regular file", "{access:?}");
        }
        for access in [Access::CREATE, Access::WRITE, Access::READ.direct()] {
            let handle = fs.open("files/a", access).unwrap();
            assert!(!sys::fcntl_getfl(borrow(handle)).unwrap().contains(OFlags::NONBLOCK));
            fs.close(handle);
        }
    });
}

#[test]
fn a_read_handle_does_not_write() {
    both(|_, fs| {
        let handle = fs.open("a", Access::CREATE).unwrap();
        fs.close(handle);
        let handle = fs.open("a", Access::READ).unwrap();
        assert_eq!(raw(fs.write_at(handle, b"x", 0)), Some(libc::EBADF));
        fs.close(handle);
    });
}

#[test]
fn others_see_nothing() {
    both(|dir, fs| {
        fs.close(fs.open("files/a", Access::CREATE).unwrap());
        let mode = |path: &str| dir.join(path).metadata().unwrap().permissions().mode() & 0o7777;
        assert_eq!((mode("iomill"), mode("iomill/files"), mode("iomill/files/a")), (0o700, 0o700, 0o1600));
        let handle = fs.open("files/a", Access::WRITE).unwrap();
        assert!(rustix::io::fcntl_getfd(borrow(handle)).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
        fs.close(handle);
    });
}

#[test]
fn nothing_leaves_the_directory() {
    both(|_, fs| {
        for path in ["", "/etc/passwd", "../x", "files/../x", "files//x", "./x", "files/", "x\0y"] {
            assert_eq!(
                raw(fs.open(path, Access::CREATE)),
                if path.is_empty() { Some(libc::EEXIST) } else { Some(libc::EINVAL) },
                "{path:?}"
            );
            assert!(fs.unlink(path).is_err() && fs.rename("files", path).is_err() && fs.make_dir(path).is_err());
        }
        assert_eq!(raw(fs.list("..")), Some(libc::EINVAL));
    });
}

#[test]
fn symbolic_links_are_refused() {
    both(|dir, fs| {
        let outside = dir.join("outside");
        std::fs::create_dir(&outside).unwrap();
        std::fs::write(outside.join("x"), b"x").unwrap();
        symlink(&outside, dir.join("iomill/link")).unwrap();
        symlink(outside.join("x"), dir.join("iomill/files/x")).unwrap();
        let refused = |error: Option<i32>| matches!(error, Some(libc::ELOOP | libc::ENOTDIR));
        assert_eq!(raw(fs.open("files/x", Access::READ)), Some(libc::ELOOP));
        assert_eq!(raw(fs.open("files/x", Access::WRITE.direct())), Some(libc::ELOOP));
        assert!(refused(raw(fs.open("link/x", Access::READ))));
        assert!(refused(raw(fs.open("link/y", Access::CREATE))));
        assert!(refused(raw(fs.list("link"))));
        assert!(refused(raw(fs.sync_dir("link"))));
        assert!(refused(raw(fs.unlink("link/x"))));
        assert!(refused(raw(fs.rename("link/x", "files/y"))));
        assert!(refused(raw(fs.make_dir("link"))));
        assert!(refused(raw(fs.make_dir("link/sub"))));
        assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 1);
        let other = dir.join("other");
        std::fs::create_dir(&other).unwrap();
        symlink(dir.join("iomill"), other.join("iomill")).unwrap();
        assert!(refused(raw(RealFs::attach(&other, false))));
        assert!(refused(raw(RealFs::attach(&other, true))));
    });
}

#[test]
fn a_drive_must_be_there() {
    let dir = scratch();
    assert_eq!(raw(RealFs::attach(&dir.path().join("x"), true)), Some(libc::ENOENT));
    // It is there, but it answers to the making of a directory that there is none.
    assert_eq!(raw(RealFs::attach(Path::new("/proc"), true)), Some(libc::EOPNOTSUPP));
    assert_eq!(raw(RealFs::attach(dir.path(), false)), Some(libc::ENOENT));
    std::fs::write(dir.path().join("file"), b"").unwrap();
    assert_eq!(raw(RealFs::attach(&dir.path().join("file"), true)), Some(libc::ENOTDIR));
}

#[test]
fn a_directory_has_one_identity() {
    let dir = scratch();
    let one = RealFs::attach(dir.path(), true).unwrap();
    let link = dir.path().join("link");
    symlink(dir.path(), &link).unwrap();
    let other = RealFs::attach(&link, false).unwrap();
    assert_eq!(one.identity().unwrap(), other.identity().unwrap());
    assert_ne!(one.location(), other.location());
    let slashed = RealFs::attach(&dir.path().join("./"), false).unwrap();
    assert_eq!(slashed.location().as_os_str(), dir.path().as_os_str());
    let third = scratch();
    assert_ne!(one.identity().unwrap(), RealFs::attach(third.path(), true).unwrap().identity().unwrap());
}

#[test]
fn locks_exclude_and_are_given_back() {
    both(|_, fs| {
        fs.close(fs.open("lock", Access::CREATE).unwrap());
        let [one, other] = [(); 2].map(|()| fs.open("lock", Access::READ).unwrap());
        assert!(fs.lock(one, Lock::Shared).unwrap() && fs.lock(other, Lock::Shared).unwrap());
        assert!(!fs.lock(one, Lock::Exclusive).unwrap());
        fs.unlock(other).unwrap();
        assert!(fs.lock(one, Lock::Exclusive).unwrap());
        assert_eq!(fs.lock_holder(other), Holder::Process(std::process::id()));
        assert!(!fs.lock(other, Lock::Shared).unwrap());
        // The close of the last descriptor releases the lock, too. The child of another test has a copy until it starts
        // its program.
        fs.close(one);
        let patience = std::time::Instant::now();
        while !fs.lock(other, Lock::Shared).unwrap() {
            assert!(patience.elapsed().as_secs() < 600, "the lock stays");
            std::thread::yield_now();
        }
        fs.close(other);
    });
}

/// A process takes a lock, forks a child, and ends. The child then has the lock, and is named. When it ends, the lock
/// is free.
#[test]
fn a_child_that_has_a_lock_is_named() {
    let dir = scratch();
    let fs = RealFs::attach(dir.path(), true).unwrap();
    fs.close(fs.open("lock", Access::CREATE).unwrap());
    let own = fs.open("lock", Access::READ).unwrap();
    let path = std::ffi::CString::new(dir.path().join("iomill/lock").into_os_string().into_encoded_bytes()).unwrap();
    let mut pipe = [0; 2];
    // SAFETY: the array has room for two descriptors.
    assert_eq!(unsafe { libc::pipe2(pipe.as_mut_ptr(), libc::O_CLOEXEC) }, 0);
    // SAFETY: the children make system calls only, and end by `_exit` or by a signal. The path and the pipe outlive
    // them.
    let parent = unsafe {
        let parent = libc::fork();
        if parent == 0 {
            let lock = libc::open(path.as_ptr(), libc::O_RDONLY);
            if lock < 0 || libc::flock(lock, libc::LOCK_EX) != 0 {
                libc::_exit(1);
            }
            let child = libc::fork();
            if child == 0 {
                loop {
                    libc::pause();
                }
            }
            libc::write(pipe[1], (&raw const child).cast(), size_of_val(&child));
            libc::_exit(0);
        }
        parent
    };
    let (mut child, mut status): (libc::pid_t, i32) = (0, 0);
    // SAFETY: the memory has the given length, and the parent of the children is waited for once.
    unsafe {
        assert_eq!(libc::waitpid(parent, &raw mut status, 0), parent);
        assert_eq!(libc::read(pipe[0], (&raw mut child).cast(), size_of_val(&child)), size_of_val(&child) as isize);
        pipe.iter().for_each(|end| assert_eq!(libc::close(*end), 0));
    }
    let (is_taken, holder) = (fs.lock(own, Lock::Shared).unwrap(), fs.lock_holder(own));
    // SAFETY: the child is this test's, and lives until here.
    assert_eq!(unsafe { libc::kill(child, libc::SIGKILL) }, 0);
    assert!(!is_taken);
    assert_eq!(holder, Holder::Process(child as u32));
    // The kernel ends it soon, and until then it is not named.
    while !fs.lock(own, Lock::Shared).unwrap() {
        assert_ne!(fs.lock_holder(own), Holder::Process(child as u32));
        std::thread::yield_now();
    }
    fs.close(own);
}

#[test]
fn direct_files_say_what_they_demand() {
    both(|_, fs| {
        let handle = fs.open("files/a", Access::CREATE.direct()).unwrap();
        let alignment = fs.alignment(handle).unwrap();
        // File systems without direct I/O open buffered.
        assert!(alignment == Alignment::NONE || alignment.offset == PAGE_BYTES && alignment.memory.is_power_of_two());
        fs.close(handle);
        let again = fs.open("files/a", Access::WRITE.direct()).unwrap();
        assert_eq!(fs.alignment(again).unwrap(), alignment);
        fs.close(again);
        let buffered = fs.open("files/a", Access::WRITE).unwrap();
        assert_eq!(fs.alignment(buffered).unwrap(), Alignment::NONE);
        fs.close(buffered);
    });
}

#[test]
fn the_ground_is_described() {
    let dir = scratch();
    let fs: Arc<dyn DriveFs> = Arc::new(RealFs::attach(dir.path(), true).unwrap());
    let ground = fs.ground().unwrap();
    assert!(!ground.file_system.is_empty() && ground.total_bytes >= ground.free_bytes && ground.total_bytes > 0);
    assert_ne!(ground.device_id, 0);
    let directory = std::fs::File::open(dir.path()).unwrap();
    let st_dev = std::os::unix::fs::MetadataExt::dev(&directory.metadata().unwrap());
    assert_eq!(calls::drive_of(std::os::fd::AsFd::as_fd(&directory), st_dev), ground.device_id);
    let file = DriveFile::open(&fs, "a", Access::CREATE).unwrap();
    assert_eq!(file.full_path(), dir.path().join("iomill/a"));
}

/// Zeroing by writes, where no hole can be punched, changes neither bytes around the range nor the length.
#[test]
fn zeroes_are_written_within_pages() {
    both(|_, fs| {
        let direct = Access { direct: true, ..Access::WRITE };
        for (access, len) in [(Access::WRITE, 200_000), (Access::WRITE, 49 * 4096), (direct, 49 * 4096)] {
            let data: Vec<u8> = (0..len).map(|at: u32| at as u8 | 1).collect();
            for (from, to) in [(0, 4096), (5, 70_000), (4096, 135_168), (196_000, len + 1000), (9, 10), (len, len)] {
                let made = fs.open("files/z", Access::CREATE).unwrap();
                fs.write_at(made, &data, 0).unwrap();
                fs.close(made);
                let handle = fs.open("files/z", access).unwrap();
                write_zeroes(handle, from.into(), (to - from).into()).unwrap();
                fs.close(handle);
                let again = fs.open("files/z", Access::READ).unwrap();
                let mut read = vec![9; len as usize + 1];
                assert_eq!(fs.read_at(again, &mut read, 0).unwrap(), len as usize);
                let zeroes = from as usize..to.min(len) as usize;
                let as_meant = |at: usize| read[at] == if zeroes.contains(&at) { 0 } else { data[at] };
                assert_eq!((0..len as usize).find(|&at| !as_meant(at)), None, "{access:?} {from}..{to}");
                fs.close(again);
                fs.unlink("files/z").unwrap();
            }
        }
    });
}

/// Kernels before 6.1 do not report the alignment of memory that direct I/O needs. Kernels before 6.0 refuse memory
/// that is not aligned to the device's logical block, which is 4,096 bytes on some drives.
#[test]
fn memory_is_aligned_to_a_block_where_the_kernel_tells_nothing_else() {
    let dir = scratch();
    let sys = dir.path().join("sys");
    let devices =
        [(1, "nvme0n1", Some("4096\n")), (2, "sda", Some("512\n")), (3, "odd", Some("x\n")), (4, "zram0", None)];
    for (minor, name, block) in devices {
        let device = sys.join("block").join(name);
        std::fs::create_dir_all(device.join("queue")).unwrap();
        if let Some(block) = block {
            std::fs::write(device.join("queue/logical_block_size"), block).unwrap();
        }
        std::fs::create_dir_all(sys.join("dev/block")).unwrap();
        symlink(&device, sys.join(format!("dev/block/259:{minor}"))).unwrap();
    }
    // A partition has no queue of its own.
    let part = sys.join("block/nvme0n1/nvme0n1p1");
    std::fs::create_dir_all(&part).unwrap();
    std::fs::write(part.join("partition"), "1\n").unwrap();
    symlink(&part, sys.join("dev/block/259:9")).unwrap();
    let demands = Demands::default();
    let demand = |minor, told| demands.memory(|| Tree::at(dir.path()).unwrap(), (259, minor), told);
    assert_eq!([1, 9, 2, 3, 4].map(|minor| demand(minor, None)), [4096, 4096, 512, 4096, 4096]);
    // A file system without a visible device, such as btrfs, or a machine without sysfs.
    assert_eq!(demand(77, None), 4096);
    assert_eq!(demand(2, Some(4)), 4, "what the kernel tells counts");
    let by_pages = [1, 9, 3, 77].map(|minor| demand(minor, Some(512)));
    assert_eq!(by_pages, [4096; 4], "but not for devices with blocks of a page, or without a block that can be seen");
    assert_eq!((demand(4, Some(4)), demand(2, Some(0))), (4096, 1));
    // Each part of a file needs the demand, but sysfs is read once for each device.
    std::fs::remove_dir_all(sys.join("dev")).unwrap();
    assert_eq!([1, 9, 2, 3, 4].map(|minor| demand(minor, None)), [4096, 4096, 512, 4096, 4096]);
    assert_eq!((demand(4, Some(4)), demand(2, Some(4))), (4096, 4));
}

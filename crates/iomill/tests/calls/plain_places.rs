//! Plain files in odd places: behind the magic links of `/proc`, without a name, in other namespaces; and paths to
//! other things than files.

use std::ffi::OsStr;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use iomill::{Array, EngineKind, Error, FileOptions, PlainOptions, RuntimeOptions};

use super::disks::{Elsewhere, skipped};
use super::{PAGE, places, random};

fn read(path: &Path) -> Vec<u8> {
    let file = PlainOptions::new().open(path).unwrap();
    let mut bytes = vec![0; file.len() as usize];
    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), bytes.len());
    bytes
}

fn write(path: &Path, create: bool, bytes: &[u8]) {
    let file = PlainOptions::new().write(true).create(create).open(path).unwrap();
    file.write_at(bytes, 0).unwrap();
    file.close().unwrap();
}

fn by_number(file: &impl AsRawFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// The kernel resolves a path into another process's root. The text of the link would name a file of this process.
#[test]
fn a_path_through_another_root_leads_there() {
    let dir = &places()[0];
    let at = |name: &str| dir.path().join(name);
    for (place, byte) in [("data", b'1'), ("other", b'2')] {
        std::fs::create_dir(at(place)).unwrap();
        std::fs::write(at(place).join("file"), vec![byte; 2 * PAGE]).unwrap();
        std::fs::create_dir(at(place).join("drive")).unwrap();
    }
    let array = Array::create([at("other/drive")]).unwrap();
    array.create_file("f", &FileOptions::new()).unwrap().write_at(&[1; PAGE], 0).unwrap();
    array.close().unwrap();
    let Some(elsewhere) = Elsewhere::start(&at("other"), &at("data")) else {
        return skipped("no mount in a namespace here");
    };
    let there = |name: &str| elsewhere.path(&at("data").join(name));
    assert!(read(&there("file")) == [b'2'; 2 * PAGE]);
    assert!(PlainOptions::new().open(there("file")).unwrap().name().starts_with("/proc/"));
    write(&there("file"), false, b"written");
    write(&there("new"), true, b"made");
    assert!(std::fs::read(at("data/file")).unwrap() == [b'1'; 2 * PAGE], "the file of the same name here");
    assert_eq!(std::fs::read(at("other/file")).unwrap()[..7], *b"written");
    assert_eq!((std::fs::read(at("other/new")).unwrap(), at("data/new").exists()), (b"made".to_vec(), false));
    // Files of an array are recognized there, too.
    for (name, create) in [("drive/iomill/label", false), ("drive/iomill/parts/new", true)] {
        let error = PlainOptions::new().write(true).create(create).open(there(name)).unwrap_err();
        assert!(error.to_string().contains("it belongs to an array with a drive at"), "{error}");
    }
    assert!(!at("other/drive/iomill/parts/new").exists());
}

/// Files that have no name, and a directory that has another one.
#[test]
fn files_are_opened_by_their_descriptors() {
    let dir = &places()[0];
    let all = random(5 * PAGE + 77, 4);
    let mut memory = std::fs::File::from(rustix::fs::memfd_create("m", rustix::fs::MemfdFlags::CLOEXEC).unwrap());
    let mut options = std::fs::OpenOptions::new();
    let nameless = options.read(true).write(true).custom_flags(libc::O_TMPFILE).open(dir.path());
    let path = dir.path().join("file");
    let mut unlinked = std::fs::File::create_new(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    // The name now belongs to another file.
    std::fs::write(&path, b"another").unwrap();
    // Not all file systems have nameless files.
    for file in [Some(&mut memory), nameless.ok().as_mut(), Some(&mut unlinked)].into_iter().flatten() {
        file.write_all(&all).unwrap();
        let path = by_number(file);
        for engine in [None, Some(EngineKind::Posix), Some(EngineKind::Mmap)] {
            let options = RuntimeOptions::new();
            let runtime = engine.map_or(options.clone(), |engine| options.engine(engine)).start().unwrap();
            let opened = PlainOptions::new().runtime(&runtime).open(&path).unwrap();
            let mut bytes = vec![0; all.len() + 1];
            assert_eq!(opened.read_at(&mut bytes, 0).unwrap(), all.len(), "{}", opened.name());
            assert!(bytes[..all.len()] == all);
        }
        write(&path, false, b"changed");
        assert_eq!(read(&path)[..8], [b"changed", &all[7..8]].concat());
        assert_eq!(file.metadata().unwrap().len(), all.len() as u64);
    }
    assert_eq!(std::fs::read(&path).unwrap(), b"another");
    // By its directory, which was renamed. The old name now belongs to another directory.
    let old = dir.path().join("old");
    std::fs::create_dir(&old).unwrap();
    std::fs::write(old.join("a"), b"first").unwrap();
    let directory = std::fs::File::open(&old).unwrap();
    std::fs::rename(&old, dir.path().join("new")).unwrap();
    std::fs::create_dir(&old).unwrap();
    std::fs::write(old.join("a"), b"later").unwrap();
    assert_eq!(read(&by_number(&directory).join("a")), b"first");
}

/// The name of a file is bytes. Links are followed, except to create a file elsewhere.
#[test]
fn a_name_is_what_the_kernel_takes() {
    let dir = &places()[0];
    let path = dir.path().join(OsStr::from_bytes(b"\xff\xfe name"));
    write(&path, true, b"bytes");
    assert_eq!(read(&path), b"bytes");
    let link = dir.path().join("link");
    std::os::unix::fs::symlink(dir.path().join("nothing"), &link).unwrap();
    let error = PlainOptions::new().write(true).create(true).open(&link).unwrap_err();
    assert_eq!(error.errno(), Some(libc::ENOENT), "{error}");
    assert!(!dir.path().join("nothing").exists());
    for (name, errno) in [("file/", libc::ENOTDIR), ("new/", libc::EISDIR), ("none/new", libc::ENOENT)] {
        std::fs::write(dir.path().join("file"), b"1").unwrap();
        let error = PlainOptions::new().write(true).create(true).open(dir.path().join(name)).unwrap_err();
        assert_eq!(error.errno(), Some(errno), "{error}");
    }
    assert!(!dir.path().join("new").exists());
}

/// Anything but a file is refused in words, with the kernel's errno, for reading and for writing.
#[test]
fn what_is_no_file_is_refused_with_a_number() {
    let dir = &places()[0];
    let at = |name: &str| dir.path().join(name);
    rustix::fs::mknodat(rustix::fs::CWD, at("pipe"), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    // By this call its path may be long.
    rustix::fs::mknodat(rustix::fs::CWD, at("socket"), rustix::fs::FileType::Socket, 0o600.into(), 0).unwrap();
    std::os::unix::fs::symlink(at("loop"), at("loop")).unwrap();
    let long = at(&"x".repeat(300));
    let cases: [(&Path, i32, &str); 11] = [
        (dir.path(), libc::EISDIR, "it is a directory, not a file"),
        (&at("pipe"), libc::ESPIPE, "it is a pipe, not a file"),
        (&at("socket"), libc::ENXIO, "it is a socket, not a file"),
        (Path::new("/dev/null"), libc::ENODEV, "it is a device, not a file"),
        (Path::new("/dev/zero"), libc::ENODEV, "it is a device, not a file"),
        (Path::new("/proc/self/status"), libc::EINVAL, "its length is not known before it is read"),
        (Path::new("/sys/kernel/mm/transparent_hugepage/enabled"), libc::EINVAL, "its length is not known"),
        (Path::new("a\0b"), libc::EINVAL, ""),
        (Path::new(""), libc::ENOENT, ""),
        (&long, libc::ENAMETOOLONG, ""),
        (&at("loop"), libc::ELOOP, ""),
    ];
    for (path, errno, says) in cases {
        if path.starts_with("/sys") && !path.exists() {
            continue;
        }
        for is_written in [false, true] {
            let error = PlainOptions::new().write(is_written).open(path).unwrap_err();
            let is_of_kernel = path.starts_with("/proc") || path.starts_with("/sys");
            if is_written && is_of_kernel && !rustix::process::geteuid().is_root() {
                assert_eq!(error.errno(), Some(libc::EACCES), "{error}");
                continue;
            }
            assert!(matches!(&error, Error::Io { .. }) && error.to_string().contains(says), "{error}");
            assert_eq!(error.errno(), Some(errno), "{error}");
        }
    }
}

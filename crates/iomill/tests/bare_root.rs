//! An array in a root directory without `/proc`, `/sys`, `/dev` or a table of mounts. The test has its own process,
//! because it changes the root directory, which takes root's rights.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::Path;

use iomill::engine::platform::Platform;
use iomill::engine::real::RealPlatform;
use iomill::{ArrayOptions, FileOptions, PlainOptions, Tuning};

/// Runs `test` with another root directory.
fn within(root: &Path, test: impl FnOnce()) {
    let before = File::open("/").unwrap();
    std::os::unix::fs::chroot(root).unwrap();
    std::env::set_current_dir("/").unwrap();
    test();
    // SAFETY: the descriptor is open.
    assert_eq!(unsafe { libc::fchdir(before.as_raw_fd()) }, 0);
    std::os::unix::fs::chroot(".").unwrap();
}

/// Without `/proc` a file is opened by its path again, and compared with the file found there before.
fn check_plain_files() {
    let path = Path::new("/ssd0/plain");
    let file = PlainOptions::new().write(true).create(true).open(path).unwrap();
    file.write_at(b"bytes", 0).unwrap();
    file.close().unwrap();
    let file = iomill::open_plain("/ssd0/../ssd0/plain").unwrap();
    let mut bytes = [0; 6];
    assert_eq!((file.read_at(&mut bytes, 0).unwrap(), &bytes[..5]), (5, &b"bytes"[..]));
    assert_eq!(file.name(), "/ssd0/plain");
    let error = iomill::open_plain("/ssd0/iomill/label").unwrap_err();
    assert!(error.to_string().contains("it belongs to an array"), "{error}");
    rustix::fs::mknodat(rustix::fs::CWD, "/pipe", rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    assert_eq!(iomill::open_plain("/pipe").unwrap_err().errno(), Some(libc::ESPIPE));
}

#[test]
fn an_array_needs_nothing_but_its_drives() {
    // SAFETY: it has no arguments and cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        return;
    }
    alone!();
    let root = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let drives = ["/ssd0", "/ssd1"];
    drives.iter().for_each(|drive| fs::create_dir(root.path().join(&drive[1..])).unwrap());
    within(root.path(), || {
        assert!(!Path::new("/proc").exists() && !Path::new("/dev").exists());
        assert!(RealPlatform::default().neighbours(Path::new("/ssd0")).contains(&"/ssd1".into()));
        let data: Vec<u8> = (0..1_000_000_u32).map(|at| (at * 7 / 3) as u8).collect();
        let array = ArrayOptions::new().create(drives).unwrap();
        let file = array.create_file("file", &FileOptions::new()).unwrap();
        file.write_at(&data, 5).unwrap();
        file.sync().unwrap();
        drop(file);
        array.close().unwrap();
        check_plain_files();
        for drive_threads in [false, true] {
            let array = ArrayOptions::new().tuning(Tuning::new().drive_threads(drive_threads)).open(drives[1]).unwrap();
            let info = array.info().unwrap();
            for drive in &info.drives {
                assert!(!drive.ground.file_system.is_empty() && drive.ground.total_bytes > 0, "{info:?}");
            }
            // The machine's memory is known, and the cache is a part of it.
            assert!(array.counters().cache_bytes > 0, "{info:?}");
            let mut bytes = vec![0; data.len()];
            assert_eq!(array.open_file("file").unwrap().read_at(&mut bytes, 5).unwrap(), data.len());
            assert!(bytes == data);
            array.close().unwrap();
        }
    });
}

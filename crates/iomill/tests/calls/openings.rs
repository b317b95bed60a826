//! Drives that were put back to an older state or used apart, on real directories; and parts that the catalog does not
//! know.

use std::path::Path;

use iomill::{Array, ArrayOptions, CreateOptions, Error, FileOptions, PutOptions};

use super::small::{assert_clean, drives, read};

/// Copies a directory with its content.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if entry.file_type().unwrap().is_dir() {
            copy(&from, &to);
        } else {
            std::fs::copy(from, to).unwrap();
        }
    }
}

/// A backup of one drive is put in its place. Its parts and pages are old, and no read may show them.
#[test]
fn a_drive_that_was_restored_is_refused() {
    for copies in [1, 2] {
        let (dir, drives) = drives(2);
        let options = || ArrayOptions::new().cache_bytes(1 << 20);
        let array = options().create_with(&drives, &CreateOptions::new().copies(copies)).unwrap();
        array.put("a", &[1; 5000], &PutOptions::new()).unwrap();
        array.close().unwrap();
        let backup = dir.path().join("backup");
        copy(&drives[1], &backup);
        let array = options().open(&drives[0]).unwrap();
        array.put("a", &[2; 5000], &PutOptions::new()).unwrap();
        array.close().unwrap();
        let current = dir.path().join("current");
        std::fs::rename(&drives[1], &current).unwrap();
        std::fs::rename(&backup, &drives[1]).unwrap();
        for read_only in [true, false] {
            let told = match options().read_only(read_only).open(&drives[0]) {
                Ok(array) => panic!("it opened with {:?}", array.notices()),
                Err(error) => error.to_string(),
            };
            assert!(told.contains(drives[1].to_str().unwrap()) && told.contains("missed changes"), "{told}");
        }
        for repair in [false, true] {
            let report = options().check(&drives[..1], repair).unwrap();
            assert!(report.problems.iter().any(|problem| problem.what.contains("missed changes")), "{report:?}");
        }
        std::fs::remove_dir_all(&drives[1]).unwrap();
        std::fs::rename(&current, &drives[1]).unwrap();
        let array = options().read_only(true).open(&drives[0]).unwrap();
        assert!(read(&array, "a") == [2; 5000]);
        // Where io_uring is forbidden, a notice says so.
        assert!(!array.notices().iter().any(|notice| notice.contains("missed")), "{:?}", array.notices());
        drop(array);
        assert_clean(&drives);
    }
}

/// A part exists under the number of a file without parts. The file cannot grow, and the part stays.
#[test]
fn a_part_of_an_unknown_file_is_kept() {
    let (_dir, drives) = drives(2);
    let array: Array = ArrayOptions::new().cache_bytes(1 << 20).create(&drives).unwrap();
    let file = array.create_file("a", &FileOptions::new().block_bytes(4096)).unwrap();
    let number = array.stat("a").unwrap().version;
    let path = drives[1].join(format!("iomill/parts/{number:016x}"));
    std::fs::write(&path, b"precious").unwrap();
    let told = file.write_at(&[1; 100_000], 0).and_then(|()| file.sync()).unwrap_err();
    assert!(matches!(&told, Error::Corrupt { path: found, .. } if *found == path), "{told}");
    assert!(told.to_string().contains("It is kept"), "{told}");
    file.discard();
    array.delete("a").unwrap();
    array.put("b", &[3; 100_000], &PutOptions::new()).unwrap();
    array.close().unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"precious");
    let array = ArrayOptions::new().open(&drives[0]).unwrap();
    assert!(array.put("c", &[4; 100_000], &PutOptions::new()).is_ok());
    array.close().unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"precious");
}

/// Opens or makes an array, and does not take the empty mount point of a drive for a new one.
#[test]
fn an_array_is_opened_or_made_but_not_where_a_drive_may_be_missing() {
    use std::os::unix::fs::MetadataExt;
    let root = std::fs::metadata("/").unwrap().dev();
    for place in [env!("CARGO_TARGET_TMPDIR"), "/dev/shm"] {
        let Ok(dir) = tempfile::tempdir_in(place) else { continue };
        let drives = ["a", "b"].map(|name| dir.path().join(name));
        let Err(error) = Array::open_or_create(&drives) else { panic!("there are no directories") };
        assert!(matches!(error, Error::NoDirectory { .. }) && error.errno() == Some(libc::ENOENT), "{error}");
        drives.iter().for_each(|drive| std::fs::create_dir(drive).unwrap());
        let made = Array::open_or_create(&drives);
        if std::fs::metadata(dir.path()).unwrap().dev() == root {
            let Err(error) = made else { panic!("{place} is on the file system of `/`") };
            assert!(matches!(error, Error::NoArray { .. }) && error.errno() == Some(libc::ENODATA), "{error}");
            assert!(error.to_string().contains("not mounted") && error.to_string().contains("on_root"), "{error}");
            assert_eq!(std::fs::read_dir(&drives[0]).unwrap().count(), 0);
            ArrayOptions::new().on_root(true).open_or_create(&drives).unwrap().close().unwrap();
        } else {
            made.unwrap().close().unwrap();
            let new = ["c", "d"].map(|name| dir.path().join(name));
            new.iter().for_each(|drive| std::fs::create_dir(drive).unwrap());
            for weights in [[3, 5], [7, 9]] {
                // The second time there is an array, which stays as it is.
                let options = iomill::CreateOptions::new().weights(weights);
                let array = ArrayOptions::new().open_or_create_with(&new, &options).unwrap();
                let found: Vec<u32> = array.info().unwrap().drives.iter().map(|drive| drive.weight).collect();
                assert_eq!(found, [3, 5]);
                array.close().unwrap();
            }
        }
        let array = Array::open_or_create(&drives).unwrap();
        array.create_file("kept", &iomill::FileOptions::new()).unwrap();
        array.close().unwrap();
        let array = Array::open_or_create([&drives[1]]).unwrap();
        assert_eq!(array.list("").names().unwrap(), ["kept"]);
        array.close().unwrap();
        // One drive is away, and its mount point is empty.
        std::fs::create_dir_all(dir.path().join("deep/er")).unwrap();
        std::fs::rename(&drives[1], dir.path().join("deep/er/away")).unwrap();
        std::fs::create_dir(&drives[1]).unwrap();
        for on_root in [false, true] {
            let error = ArrayOptions::new().on_root(on_root).open_or_create(&drives).unwrap_err();
            assert!(matches!(&error, Error::NoArray { path, .. } if *path == drives[1]), "{error}");
            let says = format!("while {} is drive 0 of array", drives[0].display());
            assert!(error.to_string().contains(&says) && !error.to_string().contains("make"), "{error}");
        }
        let Err(error) = Array::open_or_create([&drives[0]]) else { panic!("a drive is missing") };
        let is_known = matches!(&error, Error::DriveMissing { index: 1, path, .. } if *path == drives[1]);
        assert!(is_known && error.errno() == Some(libc::ENODEV), "{error}");
        assert!(error.to_string().contains("present directories of all its drives"), "{error}");
        assert_eq!(std::fs::read_dir(&drives[1]).unwrap().count(), 0);
    }
}

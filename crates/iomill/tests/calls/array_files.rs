//! Files of an array as other users and programs meet them: their owner, other paths to them, and a lock that was
//! removed.

use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};

use iomill::{Array, ArrayOptions, Error, FileOptions, PlainOptions, PutOptions, open_plain};

/// A user that is not root.
const USER: u32 = 54_321;

fn scratch() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// Makes two drives.
fn drives(dir: &Path) -> [PathBuf; 2] {
    ["d0", "d1"].map(|name| {
        std::fs::create_dir(dir.join(name)).unwrap();
        dir.join(name)
    })
}

/// All files and directories of a drive, the directory `iomill` first.
fn all_of(drive: &Path) -> Vec<PathBuf> {
    let mut found = vec![drive.join("iomill")];
    let mut at = 0;
    while at < found.len() {
        if found[at].is_dir() {
            found.extend(std::fs::read_dir(&found[at]).unwrap().map(|entry| entry.unwrap().path()));
        }
        at += 1;
    }
    found
}

fn is_root() -> bool {
    // SAFETY: it has no conditions.
    unsafe { libc::geteuid() == 0 }
}

/// Makes files of every kind: small and long ones, segments, checkpoints, labels.
fn use_much(array: &Array) {
    for index in 0..40 {
        array.put(&format!("small{index}"), &[1; 40_000], &PutOptions::new()).unwrap();
    }
    let long = array.create_file("long", &FileOptions::new()).unwrap();
    long.write_at(&[2; 1_000_000], 0).unwrap();
    long.close().unwrap();
    for index in 0..300 {
        array.set_attribute("long", "k", Some(&format!("{index}{}", "v".repeat(3000)))).unwrap();
    }
}

/// Root's files in an array of another user belong to that user. A check names the files that do not, and a repair by
/// root gives them back. Only root can make files of another user, so the test needs root.
#[test]
fn what_root_makes_is_the_owners() {
    if !is_root() {
        return;
    }
    let dir = scratch();
    let drives = drives(dir.path());
    ArrayOptions::new().create(&drives).unwrap().close().unwrap();
    for path in drives.iter().flat_map(|drive| all_of(drive)) {
        chown(path, Some(USER), Some(USER)).unwrap();
    }
    let array = ArrayOptions::new().open(&drives[0]).unwrap();
    use_much(&array);
    array.close().unwrap();
    // A drive that has moved gets new labels.
    let moved = dir.path().join("moved");
    std::fs::rename(&drives[1], &moved).unwrap();
    ArrayOptions::new().open(&drives[0]).unwrap().close().unwrap();
    let drives = [drives[0].clone(), moved];
    let owners = |drives: &[PathBuf]| -> Vec<(PathBuf, u32)> {
        let files = drives.iter().flat_map(|drive| all_of(drive));
        let owner = |path: PathBuf| (path.metadata().unwrap().uid(), path);
        files.map(owner).filter(|(user, _)| *user != USER).map(|(user, path)| (path, user)).collect()
    };
    assert_eq!(owners(&drives), []);
    let check = |repair| ArrayOptions::new().check([&drives[0]], repair).unwrap();
    assert!(check(false).is_clean());
    // Earlier versions left files of root.
    let lost = ["label", "lock", "log", "parts"].map(|name| drives[1].join("iomill").join(name));
    lost.iter().for_each(|path| chown(path, Some(0), Some(0)).unwrap());
    let found = check(false);
    let mut paths: Vec<_> = found.problems.iter().map(|problem| problem.path.clone()).collect();
    paths.sort();
    assert_eq!(paths, lost, "{found:?}");
    assert!(found.problems.iter().all(|problem| problem.what.contains("user 0")), "{found:?}");
    let repaired = check(true);
    assert!(repaired.is_clean() && repaired.problems.len() == 4, "{repaired:?}");
    assert_eq!(owners(&drives), []);
    assert!(check(false).is_clean());
}

/// A part is recognized by every path to it.
#[test]
fn files_of_an_array_are_no_plain_files_by_any_path() {
    let dir = scratch();
    let drives = drives(dir.path());
    let array = ArrayOptions::new().create(&drives).unwrap();
    use_much(&array);
    let is_part = |path: &PathBuf| {
        path.is_file() && path.parent().is_some_and(|dir| dir.ends_with("parts") || dir.ends_with("shared"))
    };
    let parts: Vec<PathBuf> = all_of(&drives[0]).into_iter().filter(is_part).collect();
    assert!(parts.len() >= 2, "{parts:?}");
    for (index, part) in parts.iter().enumerate() {
        let link = dir.path().join(format!("link{index}"));
        std::fs::hard_link(part, &link).unwrap();
        for options in [PlainOptions::new(), PlainOptions::new().write(true)] {
            let opened = options.open(&link);
            let Err(Error::Invalid { what, why, .. }) = opened else {
                panic!("a part was opened by a link: {opened:?}")
            };
            assert!(what.contains("link") && why.contains("array"), "{what}: {why}");
        }
    }
    // A copy of its bytes is a plain file.
    let copy = dir.path().join("copy");
    std::fs::write(&copy, std::fs::read(&parts[0]).unwrap()).unwrap();
    drop(open_plain(&copy).unwrap());
    array.close().unwrap();
}

/// The lock of an array that is open is removed. A repair, and another writer, are refused all the same.
#[test]
fn an_open_array_is_locked_though_its_lock_was_removed() {
    let dir = scratch();
    let drives = drives(dir.path());
    let array = ArrayOptions::new().create(&drives).unwrap();
    array.put("before", b"1", &PutOptions::new()).unwrap();
    drives.iter().for_each(|drive| std::fs::remove_file(drive.join("iomill/lock")).unwrap());
    let repaired = ArrayOptions::new().check([&drives[0]], true);
    assert!(matches!(repaired, Err(Error::Locked { .. })), "{repaired:?}");
    // A lock that the user creates again is another file.
    drives.iter().for_each(|drive| std::fs::write(drive.join("iomill/lock"), b"").unwrap());
    for read_only in [false, true] {
        let opened = ArrayOptions::new().read_only(read_only).open(&drives[0]);
        // The error names the directory's holder. The opening does not wait, because the holder does not end.
        let holder = if let Err(Error::Locked { holder, .. }) = &opened { *holder } else { None };
        assert_eq!(holder, Some(std::process::id()), "{opened:?}");
    }
    let repaired = ArrayOptions::new().check([&drives[0]], true);
    assert!(matches!(repaired, Err(Error::Locked { .. })), "{repaired:?}");
    array.put("after", b"2", &PutOptions::new()).unwrap();
    array.close().unwrap();
    // A reader also keeps a repair out.
    let reader = ArrayOptions::new().read_only(true).open(&drives[0]).unwrap();
    drives.iter().for_each(|drive| std::fs::remove_file(drive.join("iomill/lock")).unwrap());
    assert!(matches!(ArrayOptions::new().check([&drives[0]], true), Err(Error::Locked { .. })));
    reader.close().unwrap();
    assert!(ArrayOptions::new().check([&drives[0]], true).unwrap().is_clean());
    let array = ArrayOptions::new().open(&drives[0]).unwrap();
    assert_eq!(array.list("").names().unwrap(), ["after", "before"]);
    array.close().unwrap();
}

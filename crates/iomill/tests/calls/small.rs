//! Small files, which share parts, on real files.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::time::Duration;

use iomill::{Array, ArrayOptions, FileOptions, Layout, PutOptions, When};
use tempfile::TempDir;

use super::random;

pub fn drives(count: usize) -> (TempDir, Vec<PathBuf>) {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let drives: Vec<PathBuf> = (0..count).map(|drive| dir.path().join(drive.to_string())).collect();
    drives.iter().for_each(|drive| std::fs::create_dir(drive).unwrap());
    (dir, drives)
}

pub fn files_in(drive: &Path, dir: &str) -> Vec<PathBuf> {
    std::fs::read_dir(drive.join("iomill").join(dir)).unwrap().map(|entry| entry.unwrap().path()).collect()
}

/// The space of the shared parts of all drives, in bytes.
fn taken(drives: &[PathBuf]) -> u64 {
    let paths = drives.iter().flat_map(|drive| files_in(drive, "shared"));
    paths.map(|path| path.metadata().unwrap().blocks() * 512).sum()
}

pub fn read(array: &Array, name: &str) -> Vec<u8> {
    let file = array.open_file(name).unwrap();
    let mut bytes = vec![1; file.len() as usize];
    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), bytes.len());
    bytes
}

pub fn assert_clean(drives: &[PathBuf]) {
    let report = ArrayOptions::new().check(&drives[..1], false).unwrap();
    assert!(report.problems.is_empty(), "{:?}", report.problems);
}

#[test]
fn small_files_make_no_inodes_and_give_their_pages_back() {
    let (_dir, drives) = drives(2);
    let options = || ArrayOptions::new().cache_bytes(1 << 20);
    let array = options().create(&drives).unwrap();
    let files = 300;
    // All begin with the first drive.
    let file_options = || FileOptions::new().drives([0, 1]);
    let content = |file: u64| random(5000 + file as usize % 7, file);
    for file in 0..files {
        let made = array.create_file(&format!("f{file}"), &file_options()).unwrap();
        made.write_at(&content(file), 0).unwrap();
        made.close().unwrap();
    }
    assert_eq!(drives.iter().map(|drive| files_in(drive, "parts").len()).sum::<usize>(), 0);
    let full = taken(&drives);
    let pages = files * 2 * 4096;
    assert!(full <= pages + pages / 8 + (1 << 20), "{full} bytes for {pages} bytes of pages");
    array.close().unwrap();
    assert_clean(&drives);
    let array = options().open(&drives[0]).unwrap();
    for file in 0..files {
        assert!(read(&array, &format!("f{file}")) == content(file), "file {file}");
    }
    // Freed pages are used again, and show nothing of their former bytes.
    for file in 0..files {
        array.delete(&format!("f{file}")).unwrap();
    }
    for file in 0..files {
        let made = array.create_file(&format!("g{file}"), &file_options()).unwrap();
        made.set_len(6000).unwrap();
    }
    assert_eq!(taken(&drives), full);
    array.close().unwrap();
    let array = options().open(&drives[0]).unwrap();
    for file in 0..files {
        assert!(read(&array, &format!("g{file}")).iter().all(|byte| *byte == 0), "file {file}");
    }
    array.close().unwrap();
    assert_clean(&drives);
}

/// A file grows from few pages to many, and to parts. It does not go back to pages of a shared part.
#[test]
fn a_small_file_moves_when_it_grows() {
    for cache_bytes in [0, 1 << 20] {
        let (_dir, drives) = drives(2);
        let options = || ArrayOptions::new().cache_bytes(cache_bytes);
        let mut array = options().create(&drives).unwrap();
        array.create_file("file", &FileOptions::new()).unwrap().close().unwrap();
        let whole = random(200_000, 1);
        for (step, end) in [100, 4096, 4097, 9000, 30_000, 65_536, 65_537, 200_000].into_iter().enumerate() {
            let file = array.open_file("file").unwrap();
            let from = file.len() as usize;
            file.write_at(&whole[from..end], from as u64).unwrap();
            let mut bytes = vec![0; end];
            file.read_at(&mut bytes, 0).unwrap();
            assert!(bytes == whole[..end], "{end} bytes, as they were written");
            if step % 3 == 0 {
                file.sync().unwrap();
            }
            drop(file);
            let is_small =
                array.stat("file").unwrap().parts.iter().any(|(path, _)| path.to_str().unwrap().contains("shared"));
            assert_eq!(is_small, end <= 65_536, "{end} bytes");
            if step % 2 == 0 {
                array.close().unwrap();
                assert_clean(&drives);
                array = options().open(&drives[1]).unwrap();
            }
            assert!(read(&array, "file") == whole[..end], "{end} bytes");
        }
        let file = array.open_file("file").unwrap();
        file.set_len(10).unwrap();
        file.set_len(100_000).unwrap();
        drop(file);
        array.close().unwrap();
        let array = options().read_only(true).open(&drives[0]).unwrap();
        let bytes = read(&array, "file");
        assert!(bytes[..10] == whole[..10] && bytes[10..].iter().all(|byte| *byte == 0));
        array.close().unwrap();
        assert_clean(&drives);
    }
}

/// Threads make, read and delete small files at the same time. They share fsyncs, and no page has two owners.
#[test]
fn threads_share_parts() {
    let (_dir, drives) = drives(2);
    let array = ArrayOptions::new().cache_bytes(1 << 20).create(&drives).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            let array = &array;
            scope.spawn(move || {
                for round in 0..12u64 {
                    let (name, content) =
                        (format!("{thread}/{round}"), random(3000 * (1 + round as usize % 4), thread * 100 + round));
                    let file = array.create_file(&name, &FileOptions::new()).unwrap();
                    file.write_at(&content, 0).unwrap();
                    file.sync().unwrap();
                    drop(file);
                    assert!(read(array, &name) == content, "{name}");
                    if round % 3 == 0 {
                        array.delete(&name).unwrap();
                    }
                }
            });
        }
    });
    array.close().unwrap();
    assert_clean(&drives);
    let array = ArrayOptions::new().read_only(true).open(&drives[0]).unwrap();
    assert_eq!(array.list("").names().unwrap().len(), 8 * 8);
    for (thread, round) in
        (0..8u64).flat_map(|thread| (0..12).filter(|round| round % 3 != 0).map(move |round| (thread, round)))
    {
        let content = random(3000 * (1 + round as usize % 4), thread * 100 + round);
        assert!(read(&array, &format!("{thread}/{round}")) == content, "{thread}/{round}");
    }
}

/// The first new small file of a process looks for free pages while another file leaves its own. The freed pages are
/// given out once.
#[test]
fn pages_that_a_file_leaves_are_free_once() {
    let (_dir, drives) = drives(1);
    let options = || ArrayOptions::new().cache_bytes(1 << 20);
    ArrayOptions::new().create(&drives).unwrap().close().unwrap();
    for round in 0..30u64 {
        let array = options().open(&drives[0]).unwrap();
        array.put("grows", &random(60_000, round), &PutOptions::new()).unwrap();
        array.close().unwrap();
        let array = options().open(&drives[0]).unwrap();
        let (file, barrier) = (array.open_file("grows").unwrap(), Barrier::new(2));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                barrier.wait();
                file.write_at(&[1; 70_000], 0).unwrap();
            });
            scope.spawn(|| {
                barrier.wait();
                // The other thread has other things to do before it leaves its pages.
                std::thread::sleep(Duration::from_micros(200 * round));
                array.put("new", &random(5000, round), &PutOptions::new()).unwrap();
            });
        });
        drop(file);
        assert_eq!(array.unnamed_pages(), 0, "round {round}");
        array.close().unwrap();
    }
    assert_clean(&drives);
}

/// Pages that a drive has lost are reported, and read as an error.
#[test]
fn lost_pages_are_found_out() {
    let (_dir, drives) = drives(1);
    let array = Array::create(&drives).unwrap();
    for file in 0..3 {
        let made = array.create_file(&format!("f{file}"), &FileOptions::new()).unwrap();
        made.write_at(&random(5000, file), 0).unwrap();
    }
    array.close().unwrap();
    let [part] = &files_in(&drives[0], "shared")[..] else { panic!("one shared part is expected") };
    let options = || ArrayOptions::new().cache_bytes(0);
    for is_removed in [false, true] {
        if is_removed {
            std::fs::remove_file(part).unwrap();
        } else {
            // The second of the second file's two pages is the last that is left, and it is cut.
            std::fs::File::options().write(true).open(part).unwrap().set_len(3 * 4096 + 900).unwrap();
        }
        let (mut done, mut all) = (0, 0);
        let report = options().check_watched(&drives, false, &mut |now, of| (done, all) = (now, of)).unwrap();
        let lost = if is_removed { 3 } else { 2 };
        assert_eq!((report.problems.len(), done, all), (lost, 3, 3), "{:?}", report.problems);
        let problem = report.problems.last().unwrap();
        assert!(problem.path == *part && problem.what.contains("\"f2\""), "{problem:?}");
        let array = options().read_only(true).open(&drives[0]).unwrap();
        let read = array.open_file("f2").and_then(|file| file.read_at(&mut [0; 5000], 0));
        let error = read.unwrap_err().to_string();
        assert!(error.contains("0000") && error.contains("check the array"), "{error}");
    }
}

/// Threads put, copy, replace and delete files of all sizes. In the end all deleted space is free. No page had two
/// owners.
#[test]
fn what_threads_delete_is_free() {
    for syncs_changes in [true, false] {
        let (_dir, drives) = drives(2);
        let options = || ArrayOptions::new().cache_bytes(1 << 20).sync_changes(syncs_changes);
        let array = options().create(&drives).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..6u64 {
                let array = &array;
                scope.spawn(move || {
                    for round in 0..25u64 {
                        let (name, copy) = (format!("{thread}/{}", round % 5), format!("{thread}/copy"));
                        let len = [100, 5000, 30_000, 90_000][round as usize % 4];
                        let content = random(len, thread * 100 + round);
                        array.put(&name, &content, &PutOptions::new()).unwrap();
                        array.copy(&name, &copy, When::Always).unwrap();
                        assert!(read(array, &name) == content && read(array, &copy) == content, "{name}");
                        if round % 3 == 0 {
                            let held = array.open_file(&copy).unwrap();
                            array.delete(&copy).unwrap();
                            held.write_at(&[1; 10], 0).unwrap();
                            held.sync().unwrap();
                        }
                        if round % 4 == 0 {
                            array.delete(&name).unwrap();
                        }
                    }
                    for name in array.list(&format!("{thread}/")).names().unwrap() {
                        array.delete(&name).unwrap();
                    }
                });
            }
        });
        array.sync().unwrap();
        assert_eq!(array.unnamed_pages(), 0);
        assert_eq!(drives.iter().map(|drive| files_in(drive, "parts").len()).sum::<usize>(), 0);
        array.close().unwrap();
        assert_clean(&drives);
    }
}

/// The last handle of a deleted file frees its space at once, although records of the log wait for the next fsync.
#[test]
fn the_last_handle_of_a_deleted_file_frees_its_space() {
    let (_dir, drives) = drives(1);
    let array = ArrayOptions::new().cache_bytes(1 << 20).create(&drives).unwrap();
    for name in ["other", "small", "large"] {
        let len = if name == "large" { 200_000 } else { 5000 };
        array.put(name, &random(len, 1), &PutOptions::new()).unwrap();
    }
    let (small, large) = (array.open_file("small").unwrap(), array.open_file("large").unwrap());
    array.delete("small").unwrap();
    array.delete("large").unwrap();
    let other = array.open_file("other").unwrap();
    other.write_at(&[1; 10], 0).unwrap();
    other.sync().unwrap();
    assert_eq!(files_in(&drives[0], "parts").len(), 1);
    drop((small, large));
    assert_eq!(files_in(&drives[0], "parts").len(), 0);
    array.close().unwrap();
    assert_clean(&drives);
}

/// All small files were on the first drive of the array.
#[test]
fn small_files_are_on_all_drives() {
    let (_dir, drives) = drives(3);
    let array = ArrayOptions::new().cache_bytes(1 << 20).create(&drives).unwrap();
    let mut begin_with = [0; 3];
    for file in 0..600 {
        let name = format!("f{file}");
        for layout in [FileOptions::new(), FileOptions::new().layout(Layout::Rotated)] {
            let stat = array.put(&name, &[1; 100], &PutOptions::new().file(layout)).unwrap();
            begin_with[usize::from(stat.drives[0])] += 1;
            assert_eq!(stat.drives.iter().sum::<u16>(), 3, "{:?}", stat.drives);
        }
    }
    assert!(begin_with.iter().all(|&files| files > 300), "{begin_with:?}");
    let named = array.put("named", &[1; 100], &PutOptions::new().file(FileOptions::new().drives([2, 1]))).unwrap();
    assert_eq!(named.drives, [2, 1]);
    array.close().unwrap();
    assert_clean(&drives);
}

/// Two threads begin to write one file at the same moment. The second write found no place yet, so it did not move the
/// file. Then it wrote behind the first one's pages: to those of the next file, or without an end.
#[test]
fn first_writes_at_the_same_moment_share_a_place() {
    for cache_bytes in [0, 1 << 20] {
        let (_dir, drives) = drives(2);
        let array = ArrayOptions::new().cache_bytes(cache_bytes).create(&drives).unwrap();
        for round in 0..150u64 {
            // Pages that held something are cleared first, so that the moment is longer.
            array.put("neighbour", &random(4096, round), &PutOptions::new()).unwrap();
            let file = array.create_file("file", &FileOptions::new()).unwrap();
            let barrier = Barrier::new(2);
            let far = [4096, 8192, 100_000][round as usize % 3];
            std::thread::scope(|scope| {
                for (offset, byte) in [(0, 1), (far, 2)] {
                    let (file, barrier) = (&file, &barrier);
                    scope.spawn(move || {
                        barrier.wait();
                        file.write_at(&[byte; 4096], offset).unwrap();
                    });
                }
            });
            file.close().unwrap();
            let got = read(&array, "file");
            assert_eq!(got.len() as u64, far + 4096);
            assert!(got[..4096] == [1; 4096] && got[far as usize..] == [2; 4096], "round {round}");
            assert!(got[4096..far as usize].iter().all(|byte| *byte == 0), "round {round}");
            assert!(read(&array, "neighbour") == random(4096, round), "round {round}");
            array.delete("file").unwrap();
        }
        array.close().unwrap();
        assert_clean(&drives);
    }
}

//! Plain files: reading, lists, identity, and changes by other programs. Writing is in `plain_writes`.

use std::io::{IoSliceMut, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::executor::block_on;
use fastrand::Rng;
use iomill::{
    Advice, Array, CacheOptions, EngineKind, Error, File, FileCursor, FileOptions, PlainOptions, Request, Runtime,
    RuntimeOptions,
};
use tempfile::TempDir;

use super::disks::{Disk, skipped};
use super::{PAGE, places, random};

fn runtimes() -> Vec<Runtime> {
    let modes = [false, true];
    let start =
        |drive_threads, cache| RuntimeOptions::new().drive_threads(drive_threads).cache_bytes(cache).start().unwrap();
    modes.into_iter().flat_map(|drive_threads| [1 << 20, 0].map(|cache| start(drive_threads, cache))).collect()
}

fn make(dir: &TempDir, name: &str, bytes: &[u8]) -> PathBuf {
    let path = dir.path().join(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

/// Waits until the kernel's clock for files has gone on, so that a file's version is remembered and a change gets
/// another time.
fn let_times_pass() {
    thread::sleep(Duration::from_millis(60));
}

fn open(runtime: &Runtime, path: &Path) -> File {
    PlainOptions::new().runtime(runtime).open(path).unwrap()
}

/// A range of `len` bytes at most within `all`.
fn range(rng: &mut Rng, all: usize, len: usize) -> (u64, usize) {
    let len = rng.usize(0..=len.min(all));
    (rng.usize(0..=all - len) as u64, len)
}

fn at(all: &[u8], (offset, len): (u64, usize)) -> &[u8] {
    &all[offset as usize..][..len]
}

/// Reads by every call, and compares with the bytes.
fn check_all_calls(file: &File, all: &[u8], has_cache: bool, seed: u64) {
    let mut rng = Rng::with_seed(seed);
    assert_eq!(file.len(), all.len() as u64);
    let mut whole = vec![0; all.len() + 100];
    assert_eq!(file.read_at(&mut whole, 0).unwrap(), all.len());
    assert!(whole[..all.len()] == *all);
    assert_eq!(file.read_at(&mut [0; 10], all.len() as u64).unwrap(), 0);
    for _ in 0..60 {
        let ranges: Vec<_> = (0..rng.usize(1..40)).map(|_| range(&mut rng, all.len(), 3 * PAGE)).collect();
        let wanted: Vec<u8> = ranges.iter().flat_map(|&range| at(all, range)).copied().collect();
        let mut out = vec![0; wanted.len()];
        file.read_ranges(&mut out, &ranges).unwrap();
        assert!(out == wanted, "{ranges:?}");
        let (offset, len) = ranges[0];
        let mut out = vec![0; len];
        assert_eq!(file.read_at(&mut out, offset).unwrap(), len);
        assert!(out == at(all, ranges[0]));
        assert!(block_on(file.read_async(offset, len)).unwrap() == at(all, ranges[0]));
        let (mut first, mut second) = (vec![0; len / 3], vec![0; len - len / 3]);
        let mut bufs = [IoSliceMut::new(&mut first), IoSliceMut::new(&mut second)];
        assert_eq!(file.read_vectored_at(&mut bufs, offset).unwrap(), len);
        assert!([first, second].concat() == at(all, ranges[0]));
        let (tell, told) = mpsc::channel();
        let requests = ranges.iter().map(|&(offset, len)| Request::Read { offset, len }).collect();
        file.submit(requests, move |result| tell.send(result).unwrap()).unwrap();
        assert!(told.recv_timeout(crate::PATIENCE).unwrap().unwrap().concat() == wanted);
        if has_cache {
            let (offset, len) = range(&mut rng, all.len(), 8 * PAGE);
            let copied =
                file.read_with(offset, len, |bytes| bytes.iter().flatten().copied().collect::<Vec<u8>>()).unwrap();
            assert!(copied == at(all, (offset, len)));
            let page = rng.usize(0..all.len().div_ceil(PAGE));
            let pinned = file.pin(page as u64).unwrap();
            assert!(pinned[..] == all[page * PAGE..all.len().min((page + 1) * PAGE)]);
        }
    }
    let mut cursor: FileCursor = file.cursor();
    cursor.seek(SeekFrom::End(-20)).unwrap();
    let mut end = Vec::new();
    cursor.read_to_end(&mut end).unwrap();
    assert!(end == all[all.len() - 20..]);
    assert!(file.read_many(&mut [0; 8], &[all.len() as u64 - 7], 8).is_err(), "a record past the end");
}

#[test]
fn every_call_reads_a_plain_file() {
    for (seed, dir) in places().iter().enumerate() {
        let all = random(3 * 1_048_576 + 1234, seed as u64);
        let path = make(dir, "file", &all);
        for (index, runtime) in runtimes().iter().enumerate() {
            let file = open(runtime, &path);
            assert_eq!(file.name(), std::fs::canonicalize(&path).unwrap().to_str().unwrap());
            check_all_calls(&file, &all, index % 2 == 0, seed as u64);
            let error = file.write_at(b"x", 0).unwrap_err();
            assert!(
                matches!(&error, Error::ReadOnly { advice, .. } if advice.contains("PlainOptions::write")),
                "{error}"
            );
            file.sync().unwrap();
            file.close().unwrap();
        }
    }
}

#[test]
fn engines_that_are_asked_for_read_plain_files() {
    let dir = &places()[0];
    let all = random(700_001, 3);
    let path = make(dir, "file", &all);
    for engine in [EngineKind::Posix, EngineKind::Mmap, EngineKind::Aio, EngineKind::Uring] {
        // A machine may forbid some engines.
        let runtime = RuntimeOptions::new().engine(engine).cache_bytes(1 << 20).start().unwrap();
        match PlainOptions::new().runtime(&runtime).open(&path) {
            Ok(file) => check_all_calls(&file, &all, true, 1),
            Err(error) => assert!(matches!(error, Error::Drive { .. }), "{error}"),
        }
    }
}

/// Files that end within pages, that are shorter than a page, and that are empty.
#[test]
fn a_list_reads_as_one_file() {
    for dir in places() {
        let lens = [0, 3 * PAGE, 5000, 100, 0, 1, 600_000, PAGE, 300_001, 0];
        let paths: Vec<PathBuf> = (lens.iter().enumerate())
            .map(|(number, &len)| make(&dir, &number.to_string(), &random(len, number as u64)))
            .collect();
        let all: Vec<u8> = paths.iter().flat_map(|path| std::fs::read(path).unwrap()).collect();
        for (index, runtime) in runtimes().iter().enumerate() {
            let list = PlainOptions::new().runtime(runtime).open_list(&paths).unwrap();
            check_all_calls(&list, &all, index % 2 == 0, 5);
            let error = list.write_at(b"x", 0).unwrap_err();
            assert!(error.to_string().contains("9 more are a list"), "{error}");
            // A file of the list by itself, at the same time.
            assert_eq!(open(runtime, &paths[6]).len(), 600_000);
        }
        let error = PlainOptions::new().write(true).open_list(&paths).unwrap_err();
        assert!(error.to_string().contains("a list is for reading"), "{error}");
    }
    assert!(PlainOptions::new().open_list::<&str>([]).is_err());
}

/// A list of files that end at pages' edges needs no more I/O than one file.
#[test]
fn a_list_of_whole_pages_is_read_in_long_pieces() {
    let dir = &places()[0];
    let paths: Vec<PathBuf> = (0..4).map(|n| make(dir, &n.to_string(), &random(64 * PAGE, n))).collect();
    let runtime =
        RuntimeOptions::new().cache_bytes(8 << 20).cache(CacheOptions::new().read_ahead_bytes(0)).start().unwrap();
    let list = PlainOptions::new().runtime(&runtime).open_list(&paths).unwrap();
    let mut bytes = vec![0; 256 * PAGE];
    list.read_at(&mut bytes, 0).unwrap();
    assert!(bytes == paths.iter().flat_map(|path| std::fs::read(path).unwrap()).collect::<Vec<_>>());
    let drive = &runtime.counters().drives[0];
    assert_eq!(drive.read_bytes, 256 * PAGE as u64);
    assert!(drive.reads <= 8, "{} reads", drive.reads);
}

/// The numbers of hits and misses so far.
fn looks(runtime: &Runtime) -> (u64, u64) {
    let counters = runtime.counters();
    (counters.hits, counters.misses)
}

fn first_byte(file: &File) -> u8 {
    let mut byte = [0];
    assert_eq!(file.read_at(&mut byte, 0).unwrap(), 1);
    byte[0]
}

#[test]
fn one_file_has_one_state_by_all_its_paths() {
    let dir = &places()[0];
    let path = make(dir, "file", &[7; 3 * PAGE]);
    let (hard, soft) = (dir.path().join("hard"), dir.path().join("soft"));
    std::fs::hard_link(&path, &hard).unwrap();
    std::os::unix::fs::symlink(&path, &soft).unwrap();
    let_times_pass();
    let runtime = RuntimeOptions::new().cache_bytes(1 << 20).start().unwrap();
    let file = open(&runtime, &path);
    assert_eq!(first_byte(&file), 7);
    assert_eq!(looks(&runtime), (0, 1));
    for other in [&path, &soft] {
        assert_eq!(first_byte(&open(&runtime, other)), 7);
    }
    assert_eq!(looks(&runtime), (2, 1));
    assert_eq!(first_byte(&open(&runtime, &hard)), 7);
    // A file system that is not known to number files apart has a state for each path, and lets no page stay.
    let stay = !runtime.notices().iter().any(|notice| notice.contains("leave the cache with its last handle"));
    let (hits, misses) = looks(&runtime);
    assert!((hits, misses) == (3, 1) || (!stay && (hits, misses) == (2, 2)), "{hits} hits and {misses} misses");
    // Its pages stay after the last handle is closed, where a later change would be seen.
    drop(file);
    assert_eq!(first_byte(&open(&runtime, &hard)), 7);
    assert_eq!(looks(&runtime), if stay { (hits + 1, misses) } else { (hits, misses + 1) });
}

#[test]
fn a_file_that_has_changed_is_read_again() {
    let dir = &places()[0];
    let path = make(dir, "file", &[1; 3 * PAGE]);
    let_times_pass();
    let runtime = RuntimeOptions::new().cache_bytes(1 << 20).start().unwrap();
    let before = open(&runtime, &path);
    assert_eq!(first_byte(&before), 1);
    // In place, with the same length.
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().write_all_at(&[2; PAGE], 0).unwrap();
    let_times_pass();
    let after = open(&runtime, &path);
    assert_eq!(first_byte(&after), 2, "an opening beside an old handle");
    assert_eq!(first_byte(&before), 1, "the old handle has its page");
    drop((before, after));
    assert_eq!(first_byte(&open(&runtime, &path)), 2);
    // Longer.
    let mut long = vec![3; 3 * PAGE + 1];
    std::fs::write(&path, &long).unwrap();
    let file = open(&runtime, &path);
    assert_eq!((first_byte(&file), file.len()), (3, long.len() as u64));
    // Replaced. The handle keeps its file.
    long.fill(4);
    std::fs::rename(make(dir, "new", &long), &path).unwrap();
    assert_eq!((first_byte(&open(&runtime, &path)), first_byte(&file)), (4, 3));
    drop(file);
    // A file that has changed just now may change again at the same time by the kernel's clock. So its pages are not
    // used again.
    for round in 0..20u8 {
        std::fs::write(&path, vec![round; 2 * PAGE]).unwrap();
        assert_eq!(first_byte(&open(&runtime, &path)), round);
    }
}

/// Another program cuts the file: reads of missing bytes are errors that say so, by every engine, and nothing else
/// happens.
#[test]
fn a_file_that_was_cut_is_found_out() {
    for dir in places() {
        for engine in [None, Some(EngineKind::Mmap), Some(EngineKind::Posix)] {
            for cache in [1 << 20, 0] {
                let path = make(&dir, "file", &random(40 * PAGE + 100, 9));
                let options = RuntimeOptions::new().cache_bytes(cache).cache(CacheOptions::new().read_ahead_bytes(0));
                let options = engine.map_or(options.clone(), |engine| options.engine(engine));
                let runtime = options.start().unwrap();
                let file = open(&runtime, &path);
                let all = std::fs::read(&path).unwrap();
                let mut bytes = vec![0; PAGE];
                file.read_at(&mut bytes, 30 * PAGE as u64).unwrap();
                std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(20 * PAGE as u64 + 7).unwrap();
                let mut out = vec![0; 41 * PAGE];
                for result in [
                    file.read_at(&mut out, 0).map(drop),
                    file.read_many(&mut bytes, &[21 * PAGE as u64], PAGE),
                    block_on(file.read_async(25 * PAGE as u64, 10)).map(drop),
                ] {
                    let error = result.unwrap_err();
                    assert!(matches!(error, Error::FileCut { .. }), "{engine:?}: {error}");
                    assert!(error.to_string().contains("another program cut it"), "{error}");
                    assert_eq!(std::io::Error::from(error).kind(), std::io::ErrorKind::UnexpectedEof);
                }
                file.read_at(&mut bytes, 5 * PAGE as u64).unwrap();
                assert!(bytes == all[5 * PAGE..6 * PAGE]);
                if cache > 0 {
                    file.read_at(&mut bytes, 30 * PAGE as u64).unwrap();
                    assert!(bytes == all[30 * PAGE..31 * PAGE], "a cached page stays");
                }
                drop(file);
                let file = open(&runtime, &path);
                assert_eq!(file.len(), 20 * PAGE as u64 + 7);
                let mut out = vec![0; 20 * PAGE + 7];
                file.read_at(&mut out, 0).unwrap();
                assert!(out == all[..20 * PAGE + 7]);
            }
        }
    }
}

/// The error names the missing bytes of the read, also where the drive demands whole pages around them.
#[test]
fn the_error_of_a_cut_file_names_the_missing_bytes() {
    for dir in places() {
        for engine in [None, Some(EngineKind::Mmap), Some(EngineKind::Posix)] {
            let path = make(&dir, "file", &random(40 * PAGE + 100, 9));
            let options = RuntimeOptions::new().cache_bytes(0);
            let options = engine.map_or(options.clone(), |engine| options.engine(engine));
            let runtime = options.start().unwrap();
            let file = PlainOptions::new().runtime(&runtime).write(true).open(&path).unwrap();
            std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(20 * PAGE as u64 + 7).unwrap();
            let page = PAGE as u64;
            // A drive that takes whole pages lacks the rest of the page.
            match file.write_at(&[1; 3], 20 * page) {
                Ok(()) => {}
                Err(Error::FileCut { offset, missing, .. }) => {
                    assert_eq!((offset, missing), (20 * page + 7, page - 7), "{engine:?}");
                }
                Err(error) => panic!("{engine:?}: {error}"),
            }
            for (at, len, expected) in [
                (25 * page + 100, 10, (25 * page + 100, 10)),
                (20 * page, 100, (20 * page + 7, 93)),
                (19 * page, 3 * PAGE, (20 * page + 7, 2 * page - 7)),
            ] {
                match file.read_at(&mut vec![0; len], at).unwrap_err() {
                    Error::FileCut { offset, missing, .. } => assert_eq!((offset, missing), expected, "{engine:?}"),
                    error => panic!("{engine:?}: {error}"),
                }
            }
        }
    }
}

/// Programs cut, lengthen and change a file under readers. Every read ends, with bytes or an error.
#[test]
fn readers_survive_a_file_that_comes_and_goes() {
    for dir in places() {
        let path = make(&dir, "file", &random(200 * PAGE, 2));
        for runtime in runtimes() {
            let file = open(&runtime, &path);
            thread::scope(|scope| {
                let readers: Vec<_> = (0..2)
                    .map(|seed| {
                        let file = file.clone();
                        scope.spawn(move || {
                            let mut rng = Rng::with_seed(seed);
                            for _ in 0..300 {
                                let (offset, len) = range(&mut rng, 200 * PAGE, 10 * PAGE);
                                match file.read_at(&mut vec![0; len], offset) {
                                    Ok(read) => assert_eq!(read, len),
                                    Err(error) => assert!(matches!(error, Error::FileCut { .. }), "{error}"),
                                }
                            }
                        })
                    })
                    .collect();
                let other = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
                let mut rng = Rng::with_seed(7);
                while readers.iter().any(|reader| !reader.is_finished()) {
                    other.set_len(rng.u64(0..200 * PAGE as u64)).unwrap();
                    other.set_len(200 * PAGE as u64).unwrap();
                }
            });
        }
    }
}

#[test]
fn what_is_no_plain_file_is_refused() {
    let dir = &places()[0];
    let refused = |path: &Path, says: &str| {
        let error = PlainOptions::new().open(path).unwrap_err();
        let text = error.to_string();
        assert!(text.contains(says) && text.contains(path.to_str().unwrap()), "{text}");
        let is_missing = error.errno() == Some(libc::ENOENT);
        assert_eq!(error.kind() == iomill::ErrorKind::NotFound, is_missing, "{text}");
        std::io::Error::from(error).kind()
    };
    use std::io::ErrorKind;
    assert_eq!(refused(&dir.path().join("none"), "check the path"), ErrorKind::NotFound);
    assert_eq!(refused(dir.path(), "it is a directory, not a file"), ErrorKind::IsADirectory);
    refused(Path::new("/"), "it is a directory");
    refused(Path::new("/dev/null"), "it is a device");
    let pipe = dir.path().join("pipe");
    let name = std::ffi::CString::new(pipe.to_str().unwrap()).unwrap();
    // SAFETY: the name is a string of the C library's.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    refused(&pipe, "it is a pipe");
    let socket = dir.path().join("socket");
    // By this call its path may be long.
    rustix::fs::mknodat(rustix::fs::CWD, &socket, rustix::fs::FileType::Socket, 0o600.into(), 0).unwrap();
    refused(&socket, "it is a socket");
    let loops = dir.path().join("loop");
    std::os::unix::fs::symlink(&loops, &loops).unwrap();
    assert!(PlainOptions::new().open(&loops).is_err());
    let error = PlainOptions::new().create(true).open(dir.path().join("new")).unwrap_err();
    assert!(error.to_string().contains("open it for writing, too"), "{error}");
    let error = PlainOptions::new().write(true).create(true).open(dir.path().join("no/new")).unwrap_err();
    assert_eq!(std::io::Error::from(error).kind(), ErrorKind::NotFound);
    for write in [false, true] {
        assert!(PlainOptions::new().write(write).open(dir.path().join("none")).is_err());
    }
}

#[test]
fn what_belongs_to_an_array_is_refused() {
    let dir = &places()[0];
    let array = Array::create([dir.path()]).unwrap();
    array.create_file("file", &FileOptions::new()).unwrap().write_at(&[1; PAGE], 0).unwrap();
    let part = array.stat("file").unwrap().parts[0].0.clone();
    let link = dir.path().join("link");
    std::os::unix::fs::symlink(&part, &link).unwrap();
    for path in [&part, &link, &dir.path().join("iomill/label")] {
        for options in [PlainOptions::new(), PlainOptions::new().write(true)] {
            let error = options.open(path).unwrap_err().to_string();
            assert!(error.contains("it belongs to an array with a drive at"), "{error}");
            assert!(error.contains(path.to_str().unwrap()) && error.contains(dir.path().to_str().unwrap()), "{error}");
        }
    }
    let new = dir.path().join("iomill/parts/new");
    assert!(PlainOptions::new().write(true).create(true).open(&new).is_err());
    assert!(!new.exists());
    // A directory of that name outside a drive is like any other.
    std::fs::create_dir(dir.path().join("own")).unwrap();
    std::fs::create_dir(dir.path().join("own/iomill")).unwrap();
    let path = make(dir, "own/iomill/file", &[3; 10]);
    assert_eq!(PlainOptions::new().open(path).unwrap().len(), 10);
}

/// Without the permission to read a file, or a directory above it, the error says so.
#[test]
fn no_permission_is_an_error_that_says_what_to_look_at() {
    // SAFETY: the call only returns a number.
    if unsafe { libc::geteuid() } == 0 {
        return; // No file is forbidden to root.
    }
    use std::os::unix::fs::PermissionsExt;
    let dir = &places()[0];
    let path = make(dir, "file", &[1; 10]);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o000)).unwrap();
    let error = PlainOptions::new().open(&path).unwrap_err();
    assert!(error.to_string().contains("check its owner and mode"), "{error}");
}

/// Files of one device share a queue. A later device gets its own, also while threads and rings are running.
#[test]
fn devices_have_queues_and_come_while_others_are_used() {
    let places = places();
    for runtime in runtimes() {
        let mut files = Vec::new();
        for (device, dir) in places.iter().enumerate() {
            for number in 0..2 {
                let all = random(50 * PAGE, number);
                let path = make(dir, &format!("file{number}"), &all);
                files.push((open(&runtime, &path), all));
                for (file, all) in &files {
                    let reads: Vec<_> = (0..20).map(|page| file.read_async(page * PAGE as u64, PAGE)).collect();
                    for (page, read) in reads.into_iter().enumerate() {
                        assert!(block_on(read).unwrap() == all[page * PAGE..][..PAGE]);
                    }
                    let mut bytes = vec![0; all.len()];
                    file.read_at(&mut bytes, 0).unwrap();
                    assert!(bytes == *all);
                }
                assert_eq!(runtime.drives().len(), device + 1);
            }
        }
        let counters = runtime.counters();
        assert_eq!(counters.drives.len(), places.len());
        assert!(counters.drives.iter().all(|drive| drive.reads > 0));
        assert!(runtime.metrics().contains("iomill"));
    }
}

#[test]
fn a_file_system_without_direct_io_is_said_to_be_cached_twice() {
    let Some(disk) = Disk::of_kind("ramfs") else { return skipped("no ramfs can be mounted here") };
    let path = disk.path().join("file");
    std::fs::write(&path, [7; PAGE]).unwrap();
    let notices = |cache_bytes| {
        let runtime = RuntimeOptions::new().cache_bytes(cache_bytes).start().unwrap();
        assert_eq!(first_byte(&open(&runtime, &path)), 7);
        runtime.notices().join("\n")
    };
    let twice = notices(1 << 20);
    let says = format!("ramfs under {}: its file system refuses direct I/O", disk.path().display());
    assert!(twice.contains(&says), "{twice}");
    assert!(twice.contains("cached twice: by the kernel and by iomill"), "{twice}");
    let once = notices(0);
    assert!(once.contains("refuses direct I/O") && !once.contains("twice"), "{once}");
}

#[test]
fn a_file_is_open_for_reading_or_for_writing() {
    let dir = &places()[0];
    let path = make(dir, "file", &[1; 10]);
    let runtimes = [RuntimeOptions::new().start().unwrap(), RuntimeOptions::new().start().unwrap()];
    let options = |write: bool, runtime| PlainOptions::new().write(write).runtime(&runtimes[runtime]).open(&path);
    let busy = |result: iomill::Result<File>| assert!(matches!(result, Err(Error::Busy { .. })), "{result:?}");
    let readers = [options(false, 0).unwrap(), options(false, 1).unwrap()];
    busy(options(true, 0));
    busy(options(true, 1));
    drop(readers);
    let writer = options(true, 0).unwrap();
    busy(options(false, 0));
    busy(options(false, 1));
    busy(options(true, 1));
    let second = options(true, 0).unwrap();
    second.write_at(&[9], 0).unwrap();
    assert_eq!(first_byte(&writer), 9, "writers with one runtime share the file");
    drop((writer, second));
    assert_eq!(first_byte(&options(false, 1).unwrap()), 9);
}

#[test]
fn the_shared_runtime_is_made_once() {
    let dir = &places()[0];
    let path = make(dir, "file", &random(100_000, 1));
    let file = iomill::open_plain(&path).unwrap();
    file.advise(.., Advice::WillNeed).unwrap();
    let mut bytes = vec![0; 100_000];
    file.read_at(&mut bytes, 0).unwrap();
    assert!(bytes == random(100_000, 1));
    let shared = Runtime::shared().unwrap();
    assert!(shared.counters().bytes_read >= 100_000);
    let error = RuntimeOptions::new().start_shared().unwrap_err();
    assert!(error.to_string().contains("make it before that"), "{error}");
    shared.resize_cache(8 << 20).unwrap();
    assert_eq!(shared.counters().cache_bytes, 8 << 20);
}

/// An opening as a future equals the blocking call, on both kinds of runtimes, and keeps the runtime.
#[test]
fn a_file_is_opened_by_a_future() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = make(&dir, "file", &random(10_000, 3));
    for runtime in runtimes() {
        let options = PlainOptions::new().runtime(&runtime);
        let opening = options.open_async(&path);
        drop((runtime, options));
        let file = block_on(opening).unwrap();
        assert_eq!(block_on(file.read_async(0, 20_000)).unwrap(), random(10_000, 3));
    }
    let missing = block_on(PlainOptions::new().open_async(dir.path().join("none"))).unwrap_err();
    assert!(matches!(missing, Error::Io { .. }) && missing.to_string().contains("none"), "{missing}");
    drop(PlainOptions::new().open_async(&path));
}

//! Limits of a process: closed standard descriptors, a limit on file lengths, forbidden system calls. Each test runs in
//! a child.

use std::os::unix::fs::FileExt;
use std::path::Path;

use iomill::{Array, ArrayOptions, EngineKind, Error, FileOptions, PlainOptions, Runtime, RuntimeOptions, Tuning};

use super::child::{ended_well, in_child};
use super::{PAGE, random};
use crate::executor::block_on;
use crate::forbid;

/// The open descriptors among 0 to 2.
fn standard() -> Vec<i32> {
    // SAFETY: the call asks for flags, and touches no memory.
    (0..3).filter(|&number| unsafe { libc::fcntl(number, libc::F_GETFD) } >= 0).collect()
}

/// Uses everything that has descriptors: files, rings and events of calls, of futures and of drive threads; an array;
/// its board of counters.
fn use_everything(dir: &Path, after_each: impl Fn(&str)) {
    let path = dir.join("file");
    for engine in [None, Some(EngineKind::Aio), Some(EngineKind::Posix), Some(EngineKind::Mmap)] {
        for drive_threads in [false, true] {
            let options = RuntimeOptions::new().cache_bytes(1 << 20).drive_threads(drive_threads);
            let options = engine.map_or(options.clone(), |engine| options.engine(engine));
            let runtime = options.start().unwrap();
            let options = PlainOptions::new().runtime(&runtime);
            let file = match options.clone().write(true).create(true).open(&path) {
                Err(Error::Drive { .. }) => continue,
                file => file.unwrap(),
            };
            file.write_at(&random(100_000, 1), 5).unwrap();
            file.sync().unwrap();
            after_each("a file that is written");
            file.close().unwrap();
            let list = options.open_list([&path, &path]).unwrap();
            list.read_at(&mut [0; 10_000], 90_000).unwrap();
            block_on(list.read_async(0, 50_000)).unwrap();
            after_each("a list that is read");
            list.close().unwrap();
            after_each("a list that was read");
        }
    }
    let drives: Vec<_> = ["d0", "d1"].iter().map(|name| dir.join(name)).collect();
    drives.iter().for_each(|drive| std::fs::create_dir(drive).unwrap());
    let array = Array::create(&drives).unwrap();
    let file = array.create_file("f", &FileOptions::new()).unwrap();
    file.write_at(&random(1 << 20, 2), 0).unwrap();
    file.sync().unwrap();
    block_on(file.read_async(5000, 70_000)).unwrap();
    after_each("an array");
    file.close().unwrap();
    array.delete("f").unwrap();
    array.close().unwrap();
    let array = ArrayOptions::new().tuning(Tuning::new().drive_threads(true)).open(&drives[0]).unwrap();
    assert!(array.open_file("f").is_err());
    after_each("an array that is open again");
    array.close().unwrap();
}

/// A program may have closed its standard descriptors. Nothing of ours gets their numbers: a line for the standard
/// output would go into a file.
///
/// Seen to fail for each kind of descriptor that does not go through `sys::descriptor`.
#[test]
fn descriptors_0_to_2_stay_closed() {
    let Some(value) = in_child("plain_limits::descriptors_0_to_2_stay_closed", &["1", "01", "012", "02"]) else {
        return;
    };
    // Before they are closed, because this opens a file.
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let closed: Vec<i32> = value.bytes().map(|digit| i32::from(digit - b'0')).collect();
    for &number in &closed {
        // SAFETY: from now on the output of the test harness is lost.
        unsafe { libc::close(number) };
    }
    let open = standard();
    assert!(closed.iter().all(|number| !open.contains(number)));
    use_everything(dir.path(), |what| {
        // Another thread may be making a ring: event descriptors have the low numbers meanwhile.
        let begun = std::time::Instant::now();
        while standard() != open && begun.elapsed() < crate::PATIENCE {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        if standard() != open {
            // There may be no standard error for the message.
            std::fs::write(dir.path().with_extension("why"), what).unwrap();
            std::process::exit(1);
        }
    });
    ended_well("");
    // The harness would print to descriptors that may be closed.
    std::process::exit(0);
}

/// A file of exactly the largest length that the process may write. Direct I/O would need a whole page.
///
/// Seen to fail when the file was made as long as whole pages.
#[test]
fn a_file_may_be_as_long_as_its_limit() {
    const LIMIT: u64 = 5000;
    if in_child("plain_limits::a_file_may_be_as_long_as_its_limit", &["limited"]).is_none() {
        return;
    }
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    // SAFETY: the signal is ignored, as Python does; the structure lives until the call returns.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        let limit = libc::rlimit { rlim_cur: LIMIT, rlim_max: LIMIT };
        assert_eq!(libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit), 0);
    }
    for cache in [1 << 20, 0] {
        for engine in [None, Some(EngineKind::Posix), Some(EngineKind::Mmap)] {
            let options = RuntimeOptions::new().cache_bytes(cache);
            let runtime = engine.map_or(options.clone(), |engine| options.engine(engine)).start().unwrap();
            let path = dir.path().join("file");
            let file = PlainOptions::new().write(true).create(true).runtime(&runtime).open(&path).unwrap();
            let bytes = random(LIMIT as usize, 5);
            file.write_at(&bytes[..4999], 0).unwrap();
            file.sync().unwrap();
            file.write_at(&bytes[4990..], 4990).unwrap();
            file.sync().unwrap();
            assert!(std::fs::read(&path).unwrap() == bytes, "cache {cache}, {engine:?}");
            let error = file.write_at(&[1], LIMIT).unwrap_err();
            assert_eq!(error.errno(), Some(libc::EFBIG), "{error}");
            file.set_len(100).unwrap();
            file.set_len(LIMIT).unwrap();
            assert_eq!(file.set_len(LIMIT + 1).unwrap_err().errno(), Some(libc::EFBIG));
            file.close().unwrap();
            assert!(std::fs::read(&path).unwrap() == [&bytes[..100], &[0; LIMIT as usize - 100]].concat());
            std::fs::remove_file(&path).unwrap();
        }
    }
    ended_well("");
}

/// A filter of system calls may allow the creation of engines, but not their use. The next engine serves then, and a
/// notice says why.
///
/// Seen to fail when the choice only tested the creation of an engine.
#[test]
fn an_engine_that_cannot_be_used_is_not_chosen() {
    let forbidden: [(&str, &[libc::c_long], &[&str]); 5] = [
        ("enter", &[libc::SYS_io_uring_enter], &["io_uring is forbidden here"]),
        ("register", &[libc::SYS_io_uring_register], &["using "]),
        ("submit", &[libc::SYS_io_uring_setup, libc::SYS_io_submit], &["io_uring is", "using posix"]),
        ("both", &[libc::SYS_io_uring_enter, libc::SYS_io_submit], &["io_uring is forbidden here", "using posix"]),
        ("affinity", &[libc::SYS_sched_getaffinity], &[]),
    ];
    let names = forbidden.map(|(name, _, _)| name);
    let Some(value) = in_child("plain_limits::an_engine_that_cannot_be_used_is_not_chosen", &names) else { return };
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (_, calls, says) = forbidden.into_iter().find(|(name, _, _)| *name == value).unwrap();
    forbid::install(&forbid::filter(calls, libc::EPERM)).unwrap();
    let path = dir.path().join("file");
    let bytes = random(300_000, 1);
    std::fs::write(&path, &bytes).unwrap();
    let (runtime, drives) = (RuntimeOptions::new().start().unwrap(), ["d0", "d1"].map(|name| dir.path().join(name)));
    for write in [true, false] {
        let file = PlainOptions::new().runtime(&runtime).write(write).open(&path).unwrap();
        if write {
            file.write_at(&bytes[..70_000], 0).unwrap();
        }
        let mut out = vec![0; bytes.len()];
        file.read_at(&mut out, 0).unwrap();
        assert!(out == bytes && block_on(file.read_async(7, 100_000)).unwrap() == bytes[7..100_007]);
        file.close().unwrap();
    }
    drives.iter().for_each(|drive| std::fs::create_dir(drive).unwrap());
    let array = Array::create(&drives).unwrap();
    let file = array.create_file("f", &FileOptions::new()).unwrap();
    file.write_at(&bytes, 0).unwrap();
    file.close().unwrap();
    assert!(block_on(array.open_file("f").unwrap().read_async(0, bytes.len())).unwrap() == bytes);
    for notices in [runtime.notices(), array.notices()] {
        for part in says {
            let said = notices.iter().filter(|notice| notice.contains(part)).count();
            assert!((1..=drives.len()).contains(&said), "{part} {said} times in {notices:?}");
        }
    }
    array.close().unwrap();
    ended_well("");
}

/// A list of files has a descriptor for each, and no more.
///
/// Seen to fail with a descriptor of each file's directory.
#[test]
fn a_file_has_one_descriptor() {
    const FILES: usize = 200;
    if in_child("plain_limits::a_file_has_one_descriptor", &["count"]).is_none() {
        return;
    }
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let paths: Vec<_> = (0..FILES).map(|number| dir.path().join(number.to_string())).collect();
    paths.iter().for_each(|path| std::fs::write(path, [1; PAGE]).unwrap());
    let count = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    // The engines, and the other descriptors of a runtime.
    let warm = |path: &Path| iomill::open_plain(path).unwrap().read_at(&mut [0; 10], 0).unwrap();
    warm(&paths[0]);
    let before = count();
    let list = PlainOptions::new().open_list(&paths).unwrap();
    list.read_at(&mut vec![0; FILES * PAGE], 0).unwrap();
    assert_eq!(count() - before, FILES);
    list.close().unwrap();
    assert_eq!(count(), before);
    assert!(Runtime::shared().unwrap().drives().len() == 1);
    // A short file that another program makes longer stays as it was.
    let file = std::fs::OpenOptions::new().write(true).open(&paths[0]).unwrap();
    file.write_all_at(&[2; 10], PAGE as u64).unwrap();
    ended_well("");
}

//! Processes that are forked while an array is open, and go on without `exec`.

use std::future::Future;
use std::io::{Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use iomill::{
    Advice, Array, ArrayOptions, Error, File, FileOptions, PlainOptions, Request, Result, Runtime, RuntimeOptions,
    Tuning,
};

use crate::executor::block_on;

const PAGE: usize = 4096;

/// Seconds after which a child that hangs is killed.
const PATIENCE_SECONDS: u32 = 600;

/// A forked process that has not been waited for.
struct Child {
    pid: libc::pid_t,
    /// The child writes a failure here, and nothing on success.
    says: std::fs::File,
    /// The child goes on after a byte.
    go: Option<std::fs::File>,
}

fn pipe() -> (std::fs::File, std::fs::File) {
    let mut ends = [0; 2];
    // SAFETY: the array has room for two descriptors, which no other code has yet.
    unsafe {
        assert_eq!(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC), 0);
        let [read, write] = ends.map(|end| std::fs::File::from(OwnedFd::from_raw_fd(end)));
        (read, write)
    }
}

/// Forks. The child waits until it gets a byte, runs `task`, and ends as programs do, by `exit`.
fn fork(task: impl FnOnce() -> std::result::Result<(), String>) -> Child {
    let (says, mut tell) = pipe();
    let (mut wait, go) = pipe();
    // SAFETY: the C library keeps its own locks consistent. The effect of a fork on iomill's locks is the subject of
    // this test.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "{}", std::io::Error::last_os_error());
    if pid > 0 {
        return Child { pid, says, go: Some(go) };
    }
    // SAFETY: the alarm ends a child that hangs. The other calls end the child.
    unsafe {
        libc::alarm(PATIENCE_SECONDS);
        drop(go);
        let _ended = wait.read(&mut [0]);
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(task));
        let wrong = result.unwrap_or_else(|_| Err("it panicked".into())).err().unwrap_or_default();
        let _told = tell.write_all(wrong.as_bytes());
        libc::exit(0);
    }
}

impl Child {
    fn let_go(&mut self) {
        self.go.take().into_iter().for_each(|mut go| go.write_all(&[1]).unwrap());
    }

    /// Waits for its end, which must be a success.
    fn end(mut self) {
        self.let_go();
        let mut said = String::new();
        self.says.read_to_string(&mut said).unwrap();
        let mut status = 0;
        // SAFETY: the child is ours.
        assert_eq!(unsafe { libc::waitpid(self.pid, &raw mut status, 0) }, self.pid);
        assert_eq!((said.as_str(), status), ("", 0), "a signal is the low 7 bits: 14 is a child that hung");
    }
}

/// Stops working threads when it is dropped, also if the test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Checks that a call in a child was refused.
fn forked<T, E: Into<Error>>(call: &str, result: std::result::Result<T, E>) -> std::result::Result<(), String> {
    match result.map_err(Into::into) {
        Err(Error::Forked) => Ok(()),
        Err(other) => Err(format!("{call}: {other}")),
        Ok(_) => Err(format!("{call} went well")),
    }
}

/// A read that had its bytes before the fork returns them.
fn there_or_forked(read: &mut iomill::Answer<Vec<u8>>) -> std::result::Result<(), String> {
    poll(read).unwrap().map_or_else(|error| forked("a read", Err::<(), _>(error)), |_| Ok(()))
}

fn poll<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    match std::pin::Pin::new(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

fn options(drive_threads: bool, cache_bytes: u64) -> ArrayOptions {
    ArrayOptions::new().tuning(Tuning::new().drive_threads(drive_threads)).cache_bytes(cache_bytes)
}

/// All ways to open an array.
fn ways() -> impl Iterator<Item = ArrayOptions> {
    let modes = [false, true];
    modes.into_iter().flat_map(|drive_threads| [4 << 20, 0].map(|cache_bytes| options(drive_threads, cache_bytes)))
}

/// A child drops or closes its handles after its parent has overwritten the dirty pages. The parent keeps its bytes and
/// its lock.
#[test]
fn what_a_child_drops_is_its_parents() {
    alone!();
    for (way, options) in ways().enumerate() {
        let place = tempfile::tempdir().unwrap();
        let array = options.create([place.path()]).unwrap();
        let file = array.create_file("file", &FileOptions::new()).unwrap();
        file.write_at(&[1; 100 * PAGE], 0).unwrap();
        let buffer = array.buffer(PAGE).unwrap();
        let mut handles = Some((file, array, buffer));
        let mut child = fork(|| {
            let (file, array, buffer) = handles.take().unwrap();
            drop(buffer);
            if way % 2 == 0 {
                forked("close of the file", file.close())?;
                forked("close of the array", array.close())?;
            } else {
                file.clone().discard();
                drop(array.clone());
                drop((file, array));
            }
            Ok(())
        });
        let (file, array, buffer) = handles.take().unwrap();
        // The file is also longer now: the end of the parts that the child knows is in their middle.
        file.write_at(&[2; 3000 * PAGE], 0).unwrap();
        file.sync().unwrap();
        file.write_at(&[3; PAGE], 0).unwrap();
        child.let_go();
        child.end();
        // A third process.
        let start = place.path().to_owned();
        let other = || match Array::open(&start) {
            Err(Error::Locked { .. }) => Ok(()),
            other => Err(format!("the lock is gone: {other:?}")),
        };
        fork(other).end();
        drop(buffer);
        file.close().unwrap();
        array.close().unwrap();
        let array = ArrayOptions::new().cache_bytes(0).open(place.path()).unwrap();
        let mut bytes = vec![0; 3001 * PAGE];
        assert_eq!(array.open_file("file").unwrap().read_at(&mut bytes, 0).unwrap(), 3000 * PAGE);
        assert!(bytes[..PAGE].iter().all(|byte| *byte == 3) && bytes[PAGE..3000 * PAGE].iter().all(|byte| *byte == 2));
        array.close().unwrap();
    }
}

/// In a child every call on the parent's handles is an error, whatever locks the parent's threads held at the fork.
#[test]
fn every_call_in_a_child_is_an_error() {
    alone!();
    for options in ways() {
        let place = tempfile::tempdir().unwrap();
        let array = options.create([place.path()]).unwrap();
        let file = array.create_file("file", &FileOptions::new()).unwrap();
        file.write_at(&[1; 50 * PAGE], 0).unwrap();
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            for thread in 0..3u64 {
                let (file, array, stop) = (&file, &array, &stop);
                scope.spawn(move || {
                    let mut round = 0;
                    while !stop.load(Ordering::Relaxed) {
                        round += 1;
                        let offset = (thread * 3000 + round * 7 % 2500) * PAGE as u64;
                        file.write_at(&[round as u8; PAGE], offset).unwrap();
                        file.read_at(&mut [0; PAGE], offset).unwrap();
                        array.counters();
                        if round % 50 == 0 {
                            file.sync().unwrap();
                        }
                        if round % 100 == 0 {
                            let name = format!("{thread}");
                            drop(array.create_file(&name, &FileOptions::new()).unwrap());
                            array.delete(&name).unwrap();
                        }
                    }
                });
            }
            let ends = Stop(&stop);
            for _ in 0..5 {
                // This thread has looked the page up, and it is in the cache.
                file.read_at(&mut [0; 100], 0).unwrap();
                let (mut there, mut begun) = (file.read_async(0, PAGE), file.sync_async());
                let child = fork(|| {
                    there_or_forked(&mut there)?;
                    forked("a future that was begun", poll(&mut begun).unwrap())?;
                    calls_of_the_file(&file)?;
                    calls_of_the_array(&array)
                });
                child.end();
                drop(begun);
            }
            drop(ends);
        });
        drop(file);
        array.close().unwrap();
    }
}

fn calls_of_the_file(file: &File) -> std::result::Result<(), String> {
    let task = || vec![Request::Read { offset: 0, len: PAGE }];
    let mut bytes = vec![0; PAGE];
    forked("read_at of what is cached", file.read_at(&mut bytes[..100], 0))?;
    forked("read_at", file.read_at(&mut bytes, 40 * PAGE as u64))?;
    forked("read_many", file.read_many(&mut bytes[..200], &[0, 100], 100))?;
    forked("read_ranges", file.read_ranges(&mut bytes[..200], &[(0, 200)]))?;
    forked("read_rows", file.read_rows(&mut bytes[..200], &[0u32, 1], 100, 0))?;
    forked("write_at", file.write_at(&bytes, 0))?;
    forked("write_ranges", file.write_ranges(&bytes[..200], &[(0, 200)]))?;
    forked("write_many", file.write_many(&bytes[..200], &[0, 100], 100))?;
    forked("read_vectored_at", file.read_vectored_at(&mut [std::io::IoSliceMut::new(&mut bytes)], 0))?;
    forked("write_vectored_at", file.write_vectored_at(&[std::io::IoSlice::new(&bytes)], 0))?;
    forked("set_len", file.set_len(5))?;
    forked("preallocate", file.preallocate(1 << 20))?;
    forked("sync", file.sync())?;
    forked("sync of a cursor", file.cursor().sync())?;
    forked("read", poll(&mut file.read_async(0, PAGE)).unwrap())?;
    forked("write", poll(&mut file.write_at_async(vec![1], 0)).unwrap())?;
    forked("sync_async", poll(&mut file.sync_async()).unwrap())?;
    forked("submit", file.submit(task(), |_| ()))?;
    forked("try_submit", file.try_submit(task(), |_| ()))?;
    forked("advise", file.advise(.., Advice::DontNeed))?;
    let cached = |result: Result<()>| !matches!(result, Err(Error::Invalid { .. }));
    if cached(file.pin(0).map(drop)) {
        forked("pin", file.pin(0))?;
        forked("read_with", file.read_with(0, PAGE, |_| ()))?;
        forked("submit_with", file.submit_with(0, PAGE, |_| ()))?;
    }
    forked("close", file.clone().close())
}

fn calls_of_the_array(array: &Array) -> std::result::Result<(), String> {
    forked("create_file", array.create_file("other", &FileOptions::new()))?;
    forked("open_file", array.open_file("file"))?;
    forked("delete", array.delete("file"))?;
    forked("rename", array.rename("file", "other"))?;
    forked("stat", array.stat("file"))?;
    forked("set_attribute", array.set_attribute("file", "key", None))?;
    forked("info", array.info())?;
    forked("buffer", array.buffer(PAGE))?;
    forked("resize_cache", array.resize_cache(8 << 20))?;
    forked("list", array.list("").next().unwrap_or(Err(Error::Panicked)))?;
    forked("names", array.list("").names())?;
    if !array.notices().is_empty() || array.counters().hits > 0 {
        return Err("it tells something".into());
    }
    forked("close", array.clone().close())
}

/// Threads work while children come and go. Each child drops everything, and no byte is lost.
#[test]
fn work_goes_on_while_children_drop() {
    alone!();
    for options in ways() {
        let place = tempfile::tempdir().unwrap();
        let array = options.clone().create([place.path()]).unwrap();
        let file = array.create_file("file", &FileOptions::new()).unwrap();
        file.set_len(4000 * PAGE as u64).unwrap();
        let stop = AtomicBool::new(false);
        let written: Vec<[u8; 1000]> = thread::scope(|scope| {
            let threads: Vec<_> = (0..3u64)
                .map(|thread| {
                    scope.spawn({
                        let (file, stop) = (&file, &stop);
                        move || {
                            let mut written = [0; 1000];
                            let mut round = 0u64;
                            while !stop.load(Ordering::Relaxed) {
                                round += 1;
                                let page = (round * 7919 % 1000) as usize;
                                let offset = (thread * 1000 + page as u64) * PAGE as u64;
                                let mut bytes = [0; PAGE];
                                file.read_at(&mut bytes, offset).unwrap();
                                assert_eq!(bytes, [written[page]; PAGE]);
                                written[page] = round as u8;
                                file.write_at(&[round as u8; PAGE], offset).unwrap();
                            }
                            written
                        }
                    })
                })
                .collect();
            let ends = Stop(&stop);
            let mut handles = Some((file.clone(), array.clone()));
            for _ in 0..8 {
                let mut reads: Vec<_> = (0..20).map(|page| file.read_async(page * PAGE as u64, PAGE)).collect();
                fork(|| {
                    reads.iter_mut().try_for_each(there_or_forked)?;
                    reads.clear();
                    drop(handles.take());
                    Ok(())
                })
                .end();
                thread::sleep(Duration::from_millis(5));
            }
            drop(ends);
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        file.close().unwrap();
        array.close().unwrap();
        let array = ArrayOptions::new().cache_bytes(0).open(place.path()).unwrap();
        let file = array.open_file("file").unwrap();
        for (number, byte) in written.iter().flatten().enumerate() {
            let mut bytes = [0; PAGE];
            file.read_at(&mut bytes, (number * PAGE) as u64).unwrap();
            assert_eq!(bytes, [*byte; PAGE], "page {number}");
        }
    }
}

/// A child opens the array that its parent has open for reading, and reads as an independent process.
#[test]
fn a_child_may_open_the_array_anew() {
    alone!();
    let place = tempfile::tempdir().unwrap();
    let array = Array::create([place.path()]).unwrap();
    array.create_file("file", &FileOptions::new()).unwrap().write_at(&[5; 300 * PAGE], 0).unwrap();
    array.close().unwrap();
    let open = || ArrayOptions::new().cache_bytes(200 * PAGE as u64).read_only(true).open(place.path());
    let array = open().unwrap();
    let file = array.open_file("file").unwrap();
    file.read_at(&mut [0; 100 * PAGE], 0).unwrap();
    let pin = file.pin(3).unwrap();
    let child = fork(|| {
        // The page that was pinned before is a copy that belongs to the child.
        if pin[..] != [5; PAGE] {
            return Err("the pin has other bytes".into());
        }
        let anew = open().map_err(|error| error.to_string())?;
        let mine = anew.open_file("file").map_err(|error| error.to_string())?;
        for round in 0..3 {
            for page in 0..300 {
                let mut bytes = [0; PAGE];
                let read = mine.read_at(&mut bytes, page * PAGE as u64);
                let pinned = mine.pin(page).map_err(|error| error.to_string())?;
                if !matches!(read, Ok(PAGE)) || bytes != [5; PAGE] || pinned[..] != [5; PAGE] {
                    return Err(format!("page {page} in round {round}: {read:?}"));
                }
            }
        }
        let ended = mine.read_async(0, 10 * PAGE);
        drop(ended);
        // The parent's handle opens its file again. In a grandchild the child's handle does the same.
        let reads = |file: &File| match file.read_at(&mut [0; 8], 0) {
            Ok(8) => Ok(()),
            other => Err(format!("{other:?}")),
        };
        reads(&file)?;
        let again = fork(|| reads(&mine));
        again.end();
        mine.close().map_err(|error| error.to_string())?;
        anew.close().map_err(|error| error.to_string())
    });
    child.end();
    assert_eq!(pin[..], [5; PAGE]);
    file.read_at(&mut [0; 100], 0).unwrap();
}

/// In a child every call on the parent's writable plain files and on its runtimes is refused. The child opens plain
/// files for itself.
#[test]
fn a_child_opens_plain_files_for_itself() {
    alone!();
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("file");
    std::fs::write(&path, [5; 3 * PAGE]).unwrap();
    let mut bytes = [0; PAGE];
    let mut file = Some(iomill::open_plain(&path).unwrap());
    let reader = file.clone().unwrap();
    reader.read_at(&mut bytes, 0).unwrap();
    let written = place.path().join("written");
    let mut writer = Some(PlainOptions::new().write(true).create(true).open(&written).unwrap());
    writer.as_ref().unwrap().write_at(&[1; 100], 0).unwrap();
    let shared = Runtime::shared().unwrap();
    let child = fork(|| {
        let mut bytes = [0; PAGE];
        let writes = writer.as_ref().unwrap();
        forked("read_at", writes.read_at(&mut bytes, 0))?;
        forked("read_rows", writes.read_rows(&mut bytes, &[0u32], PAGE, 0))?;
        forked("read_rows_async", poll(&mut writes.read_rows_async(vec![0; PAGE], &[0u32], PAGE, 0)).unwrap())?;
        forked("sync", writes.sync())?;
        forked("write_at", writes.write_at(&[2], 0))?;
        forked("open", PlainOptions::new().runtime(&shared).open(&path))?;
        forked("resize_cache", shared.resize_cache(1 << 20))?;
        if !shared.drives().is_empty() || !shared.notices().is_empty() || shared.counters().hits > 0 {
            return Err("the parent's runtime says something".into());
        }
        drop((file.take(), writer.take()));
        // The child may open the files that the parent has open for writing: no lock keeps other processes out.
        for path in [&written, &path] {
            let mine = PlainOptions::new().write(true).open(path).map_err(|error| error.to_string())?;
            mine.read_at(&mut bytes, 0).map_err(|error| error.to_string())?;
        }
        if bytes != [5; PAGE] {
            return Err("other bytes than the file's".into());
        }
        let own = Runtime::shared().map_err(|error| error.to_string())?;
        if own.counters().misses == 0 { Err("it has no runtime of its own".into()) } else { Ok(()) }
    });
    child.end();
    reader.read_at(&mut bytes, PAGE as u64).unwrap();
    assert_eq!(bytes, [5; PAGE]);
    writer.take().unwrap().close().unwrap();
    assert_eq!(std::fs::read(&written).unwrap(), [1; 100]);
}

fn worked<T, E: Into<Error>>(call: &str, result: std::result::Result<T, E>) -> std::result::Result<T, String> {
    result.map_err(|error| format!("{call}: {}", error.into()))
}

/// Every way to read a file of `pages` pages, each full of its number.
fn every_read(file: &File, pages: usize) -> std::result::Result<(), String> {
    let last = pages - 1;
    let wanted = [[0; PAGE], [last as u8; PAGE]].concat();
    let places = [0, (last * PAGE) as u64];
    let same = |call: &str, bytes: &[u8]| if bytes == wanted { Ok(()) } else { Err(format!("{call}: other bytes")) };
    let mut out = vec![9; 2 * PAGE];
    for round in 0..2 {
        worked("read_many", file.read_many(&mut out, &places, PAGE))?;
        same("read_many", &out)?;
        out.fill(9);
        worked("read_rows", file.read_rows(&mut out, &[0, last as i64], PAGE, 0))?;
        same("read_rows", &out)?;
        out.fill(9);
        worked("read_ranges", file.read_ranges(&mut out, &places.map(|at| (at, PAGE))))?;
        same("read_ranges", &out)?;
        let mut bytes = [round; 100];
        worked("read_at", file.read_at(&mut bytes, places[1] + 7))?;
        let mut halves = [0; 100];
        worked("read_vectored_at", file.read_vectored_at(&mut [std::io::IoSliceMut::new(&mut halves)], places[1]))?;
        if bytes != wanted[PAGE..][..100] || halves != bytes {
            return Err("read_at: other bytes".into());
        }
    }
    let rows = file.read_rows_async(vec![0; 2 * PAGE], &[0, last as i64], PAGE, 0);
    same("read_rows_async", &worked("read_rows_async", block_on(rows))?)?;
    let ranges = file.read_ranges_async(vec![0; 2 * PAGE], &places.map(|at| (at, PAGE)));
    same("read_ranges_async", &worked("read_ranges_async", block_on(ranges))?)?;
    if worked("read", block_on(file.read_async(places[1], PAGE)))? != wanted[PAGE..] {
        return Err("read: other bytes".into());
    }
    worked("pin", file.pin(last as u64)).map(|pin| pin[..] == wanted[PAGE..])?;
    worked("read_with", file.read_with(0, PAGE, |_| ()))?;
    let (sender, told) = std::sync::mpsc::channel();
    let request = vec![Request::Read { offset: 0, len: PAGE }];
    worked("submit", file.submit(request, move |result| sender.send(result.is_ok()).unwrap()))?;
    if !told.recv_timeout(crate::PATIENCE).unwrap_or(false) {
        return Err("submit: no bytes".into());
    }
    worked("advise", file.advise(.., Advice::Random))?;
    worked("sync_async", block_on(file.sync_async()))?;
    worked("sync", file.sync())
}

/// A file's bytes: each page is full of its number.
fn numbered(pages: usize) -> Vec<u8> {
    (0..pages).flat_map(|page| [page as u8; PAGE]).collect()
}

/// Files that a parent has open for reading can be read in children and grandchildren, whatever locks the parent's
/// threads held at the fork.
#[test]
fn a_child_opens_again_what_is_open_for_reading() {
    alone!();
    let place = tempfile::tempdir().unwrap();
    let (path, drive) = (place.path().join("file"), place.path().join("drive"));
    std::fs::write(&path, numbered(200)).unwrap();
    std::fs::create_dir(&drive).unwrap();
    let array = ArrayOptions::new().create([&drive]).unwrap();
    array.create_file("file", &FileOptions::new()).unwrap().write_at(&numbered(200), 0).unwrap();
    array.close().unwrap();
    let array = ArrayOptions::new().read_only(true).cache_bytes(4 << 20).open(&drive).unwrap();
    let runtime = RuntimeOptions::new().cache_bytes(4 << 20).start().unwrap();
    let mut files = vec![
        array.open_file("file").unwrap(),
        iomill::open_plain(&path).unwrap(),
        PlainOptions::new().runtime(&runtime).open(&path).unwrap(),
        PlainOptions::new().open_list([&path]).unwrap().background(),
    ];
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for thread in 0..2 {
            let (files, stop) = (files.clone(), &stop);
            scope.spawn(move || {
                let mut page = thread;
                while !stop.load(Ordering::Relaxed) {
                    page = (page + 7) % 200;
                    for file in &files {
                        file.read_at(&mut [0; PAGE], (page * PAGE) as u64).unwrap();
                    }
                }
            });
        }
        let ends = Stop(&stop);
        for round in 0..4 {
            let child = fork(|| {
                // The first child drops a handle unused.
                for file in files.iter().skip(usize::from(round == 0)) {
                    every_read(file, 200)?;
                }
                if worked("list", array.list("").names())? != ["file"]
                    || worked("stat", array.stat("file"))?.len_bytes == 0
                {
                    return Err("the array is empty".into());
                }
                every_read(&worked("open_file", array.open_file("file"))?, 200)?;
                forked("resize_cache", array.resize_cache(8 << 20))?;
                // A grandchild opens the files once more.
                let grandchild = fork(|| files.iter().try_for_each(|file| every_read(file, 200)));
                grandchild.end();
                drop(std::mem::take(&mut files));
                Ok(())
            });
            child.end();
        }
        drop(ends);
    });
    files.iter().for_each(|file| every_read(file, 200).unwrap());
}

/// A child reads the file that its parent opened, or none.
#[test]
fn a_child_refuses_a_file_that_was_replaced() {
    alone!();
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("file");
    std::fs::write(&path, numbered(10)).unwrap();
    let file = iomill::open_plain(&path).unwrap();
    std::fs::write(place.path().join("other"), [1; 10 * PAGE]).unwrap();
    std::fs::rename(place.path().join("other"), &path).unwrap();
    let read = || file.read_at(&mut [0; PAGE], 0);
    let child = fork(|| match read() {
        Err(error @ Error::Invalid { .. }) if error.to_string().contains("has replaced it") => Ok(()),
        other => Err(format!("{other:?}")),
    });
    child.end();
    std::fs::remove_file(&path).unwrap();
    let child = fork(|| match read() {
        Err(Error::Io { .. }) => Ok(()),
        other => Err(format!("{other:?}")),
    });
    child.end();
    assert_eq!(read().unwrap(), PAGE);
}

/// Workers together take no more memory than their parent, if there is one per CPU.
#[test]
fn a_child_s_cache_is_its_parent_s_share() {
    alone!();
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("file");
    std::fs::write(&path, numbered(10)).unwrap();
    let file = iomill::open_plain(&path).unwrap();
    file.read_at(&mut [0; PAGE], 0).unwrap();
    let parents = Runtime::shared().unwrap().counters().cache_bytes;
    // The CPUs that this process may use, whatever its share of their time.
    let cpus = u64::from(rustix::thread::sched_getaffinity(None).unwrap().count());
    let child = fork(|| {
        // Before and after a use of the parent's handle it is the same runtime.
        let own = worked("shared", Runtime::shared())?;
        worked("read_at", file.read_at(&mut [0; PAGE], 0))?;
        let counters = own.counters();
        let share = parents / cpus;
        if counters.misses == 0 || counters.cache_bytes.abs_diff(share) > share / 50 {
            return Err(format!("{counters:?}, and the parent has {parents} bytes"));
        }
        Ok(())
    });
    child.end();
}

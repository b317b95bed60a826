//! A thread that gets no engine: only its calls fail.

use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::task::{Context, Poll, Waker};
use std::thread;

use iomill::engine::platform::{Choice, Platform};
use iomill::engine::real::RealPlatform;
use iomill::engine::{Engine, EngineConfig, EngineKind};
use iomill::sys::fs::{DriveFs, Handle};
use iomill::{ArrayOptions, Error, File, FileOptions, Tuning};

/// Calls `sync` on a new thread while no more files can be opened.
fn sync_without_files(file: &File) -> Error {
    let mut before = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure lives until the call returns.
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut before) }, 0);
    let set = |rlim_cur| {
        let limit = libc::rlimit { rlim_cur, ..before };
        // SAFETY: as above.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
    };
    thread::scope(|scope| {
        let syncing = scope.spawn(|| {
            set(0);
            let result = file.sync();
            set(before.rlim_cur);
            result
        });
        syncing.join().unwrap().unwrap_err()
    })
}

/// An fsync that could not begin is not a failed fsync: it loses no page, poisons no file, and no other call gets its
/// error.
#[test]
fn a_sync_that_could_not_be_begun_is_tried_again() {
    alone!();
    for cache_bytes in [0, 1 << 20] {
        let place = tempfile::tempdir().unwrap();
        let array = ArrayOptions::new().cache_bytes(cache_bytes).create([place.path()]).unwrap();
        let file = array.create_file("file", &FileOptions::new()).unwrap();
        file.write_at(&[7; 100_000], 0).unwrap();
        let other = file.clone();
        let error = sync_without_files(&file);
        assert!(matches!(&error, Error::Engine { .. }), "{error}");
        file.sync().unwrap();
        other.sync().unwrap();
        file.write_at(&[8; 10], 50).unwrap();
        drop((file, other));
        array.close().unwrap();
        let array = ArrayOptions::new().open(place.path()).unwrap();
        let mut bytes = vec![0; 100_000];
        assert_eq!(array.open_file("file").unwrap().read_at(&mut bytes, 0).unwrap(), 100_000);
        assert!(bytes[60..].iter().all(|&byte| byte == 7) && bytes[50] == 8);
    }
}

/// The real machine, but with too little locked memory for any ring.
#[derive(Debug, Default)]
struct Unlocked(RealPlatform);

impl Platform for Unlocked {
    forward!(0);
    fn choose(&self, _: &dyn DriveFs, _: Handle, _: Option<EngineKind>) -> io::Result<Choice> {
        Ok(Choice { kind: EngineKind::Uring, why: None })
    }
    fn engine(&self, kind: EngineKind, config: &EngineConfig) -> io::Result<Box<dyn Engine>> {
        match kind {
            EngineKind::Uring => Err(io::Error::new(io::ErrorKind::OutOfMemory, "there is no ring")),
            _ => self.0.engine(kind, config),
        }
    }
}

/// Other processes of the user may take all of the locked memory at any time. An engine that the options demand is not
/// replaced.
#[test]
fn another_engine_serves_where_locked_memory_lacks() {
    for drive_threads in [false, true] {
        let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let options = || {
            ArrayOptions::new()
                .tuning(Tuning::new().drive_threads(drive_threads))
                .platform(Arc::new(Unlocked::default()))
        };
        let array = options().create([place.path()]).unwrap();
        let file = array.create_file("file", &FileOptions::new()).unwrap();
        file.write_at(&[7; 100_000], 5).unwrap();
        file.sync().unwrap();
        let notices = array.notices().join("\n");
        assert!(notices.contains("some threads use ") && notices.contains(": there is no ring"), "{notices}");
        drop(file);
        array.close().unwrap();
        let array = options().engine(EngineKind::Uring).cache_bytes(0).open(place.path()).unwrap();
        let error = array.open_file("file").unwrap().read_at(&mut [0; 10], 5).unwrap_err();
        assert!(error.to_string().contains("there is no ring"), "{error}");
        array.close().unwrap();
        let array = ArrayOptions::new().open(place.path()).unwrap();
        let mut bytes = [0; 100_000];
        assert_eq!(array.open_file("file").unwrap().read_at(&mut bytes, 5).unwrap(), bytes.len());
        assert!(bytes == [7; 100_000]);
    }
}

/// The real machine, with one drive that has no engine.
#[derive(Debug)]
struct Picky(RealPlatform, &'static str);

impl Platform for Picky {
    forward!(0);
    fn choose(&self, drive: &dyn DriveFs, probe: Handle, wish: Option<EngineKind>) -> io::Result<Choice> {
        if drive.location().ends_with(self.1) {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "it is refused here"));
        }
        self.0.choose(drive, probe, wish)
    }
    fn engine(&self, kind: EngineKind, config: &EngineConfig) -> io::Result<Box<dyn Engine>> {
        self.0.engine(kind, config)
    }
}

/// Seen to fail when engines and cache were made after the array: the drives then belonged to an array that nothing had
/// opened.
#[test]
fn an_array_that_cannot_be_served_is_not_made() {
    let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let drives = ["a", "b", "c"].map(|name| place.path().join(name));
    drives.iter().for_each(|drive| std::fs::create_dir(drive).unwrap());
    let names = || drives.iter().flat_map(|drive| std::fs::read_dir(drive).unwrap()).count();
    for refusing in ["a", "b", "c"] {
        let platform = Arc::new(Picky(RealPlatform::default(), refusing));
        let error = ArrayOptions::new().platform(platform).create(&drives).unwrap_err().to_string();
        assert!(error.contains("no engine for it: it is refused here"), "{error}");
        assert_eq!(names(), 0, "something is left after {refusing} was refused");
    }
    let error = ArrayOptions::new().cache_bytes(1 << 55).create(&drives).unwrap_err().to_string();
    assert!(error.contains("a cache of ") && names() == 0, "{error}");
    // Files from before stay.
    std::fs::create_dir(drives[0].join("iomill")).unwrap();
    let platform = Arc::new(Picky(RealPlatform::default(), "b"));
    assert!(ArrayOptions::new().platform(platform).create(&drives).is_err());
    assert_eq!(names(), 1);
    let array = ArrayOptions::new().create(&drives).unwrap();
    array.create_file("file", &FileOptions::new()).unwrap().write_at(&[7; 100_000], 5).unwrap();
    array.close().unwrap();
}

/// The real machine, with a limited number of engines.
#[derive(Debug)]
struct Few(RealPlatform, AtomicUsize);

impl Platform for Few {
    forward!(0);
    fn choose(&self, drive: &dyn DriveFs, probe: Handle, wish: Option<EngineKind>) -> io::Result<Choice> {
        self.0.choose(drive, probe, wish)
    }
    fn engine(&self, kind: EngineKind, config: &EngineConfig) -> io::Result<Box<dyn Engine>> {
        let left = self.1.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        left.map_err(|_| io::Error::from_raw_os_error(libc::EMFILE))?;
        self.0.engine(kind, config)
    }
}

/// The last action of a thread.
struct Last(Option<Box<dyn FnOnce()>>);

impl Drop for Last {
    fn drop(&mut self) {
        if let Some(work) = self.0.take() {
            work();
        }
    }
}

thread_local! {
    static LAST: RefCell<Last> = const { RefCell::new(Last(None)) };
}

/// An ending thread has no context any more. If no engine can be made for it, the error says so, and blames no part of
/// the file.
#[test]
fn an_asynchronous_call_without_an_engine_says_so() {
    for cache_bytes in [0, 1 << 20] {
        let place = tempfile::tempdir().unwrap();
        let platform = Arc::new(Few(RealPlatform::default(), AtomicUsize::new(usize::MAX)));
        let options = ArrayOptions::new().cache_bytes(cache_bytes);
        let array = options.platform(Arc::clone(&platform) as Arc<dyn Platform>).create([place.path()]).unwrap();
        let file = array.create_file("file", &FileOptions::new()).unwrap();
        file.write_at(&[7; 4096], 0).unwrap();
        file.set_len(1 << 20).unwrap();
        let (tell, told) = channel();
        let (of_thread, few) = (file.clone(), Arc::clone(&platform));
        let at_end = move || {
            few.1.store(0, Ordering::Relaxed);
            let read = pin!(of_thread.read_async(8192, 4096)).poll(&mut Context::from_waker(Waker::noop()));
            // Of a page that is not cached: a write to a cached page needs no engine.
            let written =
                pin!(of_thread.write_at_async(vec![1; 512], 20_992)).poll(&mut Context::from_waker(Waker::noop()));
            few.1.store(usize::MAX, Ordering::Relaxed);
            tell.send((read.map_ok(drop), written.map(|ended| ended.map(drop).map_err(Error::from)))).unwrap();
        };
        let other = file.clone();
        let ending = thread::spawn(move || {
            // The value that is first used last is destroyed first: this thread's contexts.
            LAST.with(|last| last.borrow_mut().0 = Some(Box::new(at_end)));
            other.read_at(&mut [0; 4096], 4096).unwrap();
        });
        ending.join().unwrap();
        let (read, written) = told.recv().unwrap();
        for ended in [read, written] {
            let Poll::Ready(Err(error)) = ended else { panic!("{ended:?}") };
            assert!(matches!(&error, Error::Engine { .. }), "{error}");
            assert!(error.to_string().contains("os error 24"), "{error}");
        }
        let mut bytes = [0; 4096];
        file.read_at(&mut bytes, 8192).unwrap();
        file.write_at(&[2; 512], 512).unwrap();
        file.sync().unwrap();
        drop((file, bytes));
        array.close().unwrap();
    }
}

//! Tests of syncs, changes of the length and ends of files that run at the same time, with drives that fail at a chosen
//! moment.

// Helpers of tests may unwrap as tests do.
#![allow(clippy::unwrap_used)]

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use crate::api::{Array, ArrayOptions, File, FileOptions, When};
use crate::drive::Class;
use crate::engine::platform::{Choice, Platform};
use crate::engine::real::RealPlatform;
use crate::engine::{Completion, Engine, EngineConfig, EngineKind, EngineWake, IoRequest, Op};
use crate::error::{Error, Result};
use crate::exec::Exec;
use crate::file::Entered;
use crate::sys::clock::Clock;
use crate::sys::fs::{DriveFs, Handle};
use crate::sys::real_fs::RealFs;

/// This machine, with drives that fail on demand.
#[derive(Debug, Default)]
struct Failing {
    machine: RealPlatform,
    plan: Arc<Plan>,
}

#[derive(Debug, Default)]
struct Plan {
    fail_writes: AtomicBool,
    /// Writes that have begun.
    writes: AtomicU64,
    /// The parts, by key, of which syncs have begun, in order.
    synced: Mutex<Vec<u64>>,
    hold: Mutex<Option<Hold>>,
}

/// A request of a kind reports that it has begun, and waits for a signal.
#[derive(Debug)]
struct Hold {
    op: Op,
    /// The number of requests of that kind before it.
    skip: usize,
    /// Whether it fails then.
    fails: bool,
    here: Sender<()>,
    go_on: Receiver<()>,
}

impl Platform for Failing {
    fn attach(&self, path: &Path, create: bool) -> io::Result<Arc<dyn DriveFs>> {
        // The other tests of this process have files on the same device, and their fsyncs are well.
        Ok(Arc::new(RealFs::attach(path, create)?.as_own_device()))
    }
    fn neighbours(&self, near: &Path) -> Vec<PathBuf> {
        self.machine.neighbours(near)
    }
    fn choose(&self, drive: &dyn DriveFs, probe: Handle, _: Option<EngineKind>) -> io::Result<Choice> {
        self.machine.choose(drive, probe, Some(EngineKind::Posix))
    }
    fn engine(&self, kind: EngineKind, config: &EngineConfig) -> io::Result<Box<dyn Engine>> {
        let below = self.machine.engine(kind, config)?;
        Ok(Box::new(FailingEngine { below, plan: Arc::clone(&self.plan), failed: Vec::new() }))
    }
    fn clock(&self) -> Arc<dyn Clock> {
        self.machine.clock()
    }
    fn random(&self, bytes: &mut [u8]) -> io::Result<()> {
        self.machine.random(bytes)
    }
    fn threads(&self) -> bool {
        true
    }
}

struct FailingEngine {
    below: Box<dyn Engine>,
    plan: Arc<Plan>,
    failed: Vec<Completion>,
}

impl Plan {
    fn fails(&self, request: &IoRequest) -> bool {
        let fails = match request.op {
            Op::Read => false,
            Op::Write => {
                self.writes.fetch_add(1, Ordering::Relaxed);
                self.fail_writes.load(Ordering::Relaxed)
            }
            Op::Sync => {
                self.synced.lock().unwrap().push(request.file.key);
                false
            }
        };
        let mut hold = self.hold.lock().unwrap();
        let is_held = match &mut *hold {
            Some(hold) if hold.op == request.op => {
                let is_next = hold.skip == 0;
                hold.skip = hold.skip.saturating_sub(1);
                is_next
            }
            _ => false,
        };
        let held = if is_held { hold.take() } else { None };
        drop(hold);
        if let Some(held) = &held {
            held.here.send(()).unwrap();
            held.go_on.recv().unwrap();
        }
        fails || held.is_some_and(|held| held.fails)
    }

    /// Holds a request up. Returns where it reports that it is there, and the signal that continues it.
    fn hold(&self, op: Op, skip: usize, fails: bool) -> (Receiver<()>, Sender<()>) {
        let ((here, is_here), (signal, go_on)) = (channel(), channel());
        *self.hold.lock().unwrap() = Some(Hold { op, skip, fails, here, go_on });
        (is_here, signal)
    }
}

impl Engine for FailingEngine {
    fn kind(&self) -> EngineKind {
        self.below.kind()
    }
    unsafe fn push(&mut self, requests: &[IoRequest]) {
        for request in requests {
            if self.plan.fails(request) {
                self.failed.push(Completion { slot: request.slot, result: -libc::EIO });
            } else {
                // SAFETY: the caller's promise is the same.
                unsafe { self.below.push(std::slice::from_ref(request)) };
            }
        }
    }
    fn wait(&mut self, min: usize, timeout: Option<Duration>, done: &mut Vec<Completion>) -> io::Result<()> {
        let min = min.saturating_sub(self.failed.len());
        done.append(&mut self.failed);
        self.below.wait(min, timeout, done)
    }
    fn waker(&self) -> Arc<dyn EngineWake> {
        self.below.waker()
    }
    fn descriptor(&self) -> Option<std::os::fd::RawFd> {
        self.below.descriptor()
    }
    fn forget(&mut self, key: u64) {
        self.below.forget(key);
    }
}

/// An array of `drives` drives, and its only file.
fn made(cache_bytes: u64, drives: usize) -> (Vec<tempfile::TempDir>, Arc<Plan>, Array, File) {
    let places: Vec<_> = (0..drives).map(|_| tempfile::tempdir().unwrap()).collect();
    let platform = Failing::default();
    let plan = Arc::clone(&platform.plan);
    let options = ArrayOptions::new().platform(Arc::new(platform)).cache_bytes(cache_bytes);
    let array = options.create(places.iter().map(tempfile::TempDir::path)).unwrap();
    let file = array.create_file("file", &FileOptions::new().block_bytes(4096)).unwrap();
    (places, plan, array, file)
}

/// A sync of the file on a thread of its own, which has begun and is about to fail; and the signal that continues it.
fn held_sync(plan: &Plan, file: &File) -> (thread::JoinHandle<Result<()>>, Sender<()>) {
    let (is_here, go_on) = plan.hold(Op::Sync, 0, true);
    let syncing = thread::spawn({
        let file = file.clone();
        move || file.sync()
    });
    is_here.recv().unwrap();
    (syncing, go_on)
}

/// A sync that waited while another one failed returned `Ok`: the other had taken the marks.
#[test]
fn a_sync_that_waited_for_one_that_failed_fails() {
    for (cache_bytes, asynchronous) in [(0, false), (0, true), (1 << 20, false), (1 << 20, true)] {
        let (_places, plan, array, file) = made(cache_bytes, 1);
        file.write_at(&[1; 5000], 0).unwrap();
        let (first, go_on) = held_sync(&plan, &file);
        let second = thread::spawn({
            let file = file.clone();
            move || {
                if asynchronous {
                    crate::exec::block_on::block_on(file.sync_async()).and_then(|synced| synced)
                } else {
                    file.sync()
                }
            }
        });
        // The second has made the checks before its wait, on whatever thread it runs.
        while file.state.file.syncs_asked() < 2 {
            thread::yield_now();
        }
        go_on.send(()).unwrap();
        assert_eq!(first.join().unwrap().unwrap_err().errno(), Some(libc::EIO));
        let error = second.join().unwrap().expect_err("a sync that relies on one that failed says that all is well");
        assert!(matches!(error, Error::Poisoned { .. }), "{error}");
        assert!(matches!(file.sync(), Err(Error::Poisoned { .. })));
        assert!(matches!(file.write_at(&[2], 0), Err(Error::Poisoned { .. })));
        drop(file);
        assert!(array.notices().iter().any(|notice| notice.contains("takes no more writes")), "{:?}", array.notices());
        array.close().unwrap();
    }
}

/// After the first failure the other parts got no fdatasync.
#[test]
fn every_part_is_synced_whatever_becomes_of_the_others() {
    const PARTS: usize = 4;
    for failing in 0..PARTS {
        let (_places, plan, array, file) = made(0, PARTS);
        file.write_at(&[1; PARTS * 4096], 0).unwrap();
        let (_is_here, go_on) = plan.hold(Op::Sync, failing, true);
        go_on.send(()).unwrap();
        file.sync().unwrap_err();
        let mut synced = std::mem::take(&mut *plan.synced.lock().unwrap());
        synced.sort_unstable();
        synced.dedup();
        assert_eq!(synced.len(), PARTS, "part {failing} failed");
        drop(file);
        array.close().unwrap();
    }
}

/// A change of the length that waited while a sync failed raised the length, and only its own sync refused it then.
#[test]
fn a_length_that_waited_for_a_sync_that_failed_stays() {
    for (cache_bytes, len) in [(0, 100_000), (1 << 20, 100_000), (0, 10), (1 << 20, 10)] {
        let (_places, plan, array, file) = made(cache_bytes, 1);
        file.write_at(&[1; 5000], 0).unwrap();
        let (syncing, go_on) = held_sync(&plan, &file);
        let resizing = thread::spawn({
            let file = file.clone();
            move || file.set_len(len)
        });
        // The gate is closed, so the change has made the checks before its wait.
        while let Some(entered) = Entered::try_enter(&file.state.file) {
            drop(entered);
            thread::yield_now();
        }
        go_on.send(()).unwrap();
        syncing.join().unwrap().unwrap_err();
        assert!(matches!(resizing.join().unwrap(), Err(Error::Poisoned { .. })));
        assert_eq!(file.len(), 5000);
        drop(file);
        array.close().unwrap();
    }
}

/// After a failed fsync a resize of the cache wrote the pages when the array had given its lock back, and another
/// process might own the parts.
#[test]
fn nothing_is_written_after_the_array_is_closed() {
    let (_places, plan, array, file) = made(1 << 20, 1);
    file.write_at(&[1; 4096], 0).unwrap();
    plan.fail_writes.store(true, Ordering::Relaxed);
    // The pages that a resize has when the array is closed.
    let paged = Arc::clone(file.state.paged.as_ref().unwrap());
    let keys = paged.pager.dirty_of(paged.number());
    assert_eq!(keys.len(), 1);
    assert_eq!(array.close().unwrap_err().errno(), Some(libc::EIO));
    plan.fail_writes.store(false, Ordering::Relaxed);
    let before = plan.writes.load(Ordering::Relaxed);
    let io = file.state.exec().blocking();
    let flushed = Exec::run_to_end(file.state.flush_if_open(&io, &keys, Class::Foreground));
    assert!(flushed.is_none());
    assert_eq!(plan.writes.load(Ordering::Relaxed), before, "a page was written without the array's lock");
}

/// A write that ends beside the flush of a publication may not be on the drive after it. Its zone stays marked (rule 5 of
/// `file::sums`).
#[test]
fn a_write_beside_a_publication_leaves_its_zone_marked() {
    let (places, plan, array, _) = made(0, 1);
    let draft = array.draft(&FileOptions::new().block_bytes(4096).checksums(true)).unwrap();
    let file = draft.file().clone();
    file.write_at(&[1; 40 * 4096], 0).unwrap();
    let (is_here, go_on) = plan.hold(Op::Sync, 0, false);
    let publishing = thread::spawn(move || draft.publish("name", When::Always));
    is_here.recv().unwrap();
    // A large content is flushed before the draft may have marks. This is what the flush after that covers.
    file.write_at(&[2; 4096], 4096).unwrap();
    let (is_here, second) = plan.hold(Op::Sync, 0, false);
    go_on.send(()).unwrap();
    is_here.recv().unwrap();
    file.write_at(&[3; 4096], 2 * 4096).unwrap();
    second.send(()).unwrap();
    publishing.join().unwrap().unwrap();
    assert!(is_first_zone_marked(places[0].path()), "a zone is clean, and a page of it may not be durable");
    file.close().unwrap();
    assert!(!is_first_zone_marked(places[0].path()), "the end of the file makes it clean");
    array.close().unwrap();
}

/// The same for a small file: a record has its sums only if no write has ended since the sync began, and none is under
/// way.
#[test]
fn a_write_beside_a_sync_keeps_the_sums_of_a_small_file_out_of_its_record() {
    let (_places, _, array, _) = made(0, 1);
    let file = array.create_file("small", &FileOptions::new().checksums(true)).unwrap();
    file.write_at(&[1; 3 * 4096], 0).unwrap();
    file.sync().unwrap();
    let small = file.state.file.sums().unwrap().small().unwrap();
    let is_recorded = |before| {
        let mut is_recorded = false;
        let record = |_: &[u8]| {
            is_recorded = true;
            Ok(())
        };
        small.settle(before, 3, record).unwrap();
        is_recorded
    };
    small.begin(|| 4).unwrap();
    small.end(|| 5);
    assert!(!is_recorded(5), "the write ended in epoch 5");
    assert!(is_recorded(6));
    small.begin(|| 6).unwrap();
    assert!(!is_recorded(7), "the write is under way");
    small.end(|| 6);
    assert!(is_recorded(7));
}

/// Whether the newest head of the only file of sums marks its first zone (`docs/format.md`).
fn is_first_zone_marked(drive: &Path) -> bool {
    let parts = std::fs::read_dir(drive.join("iomill/parts")).unwrap().map(|entry| entry.unwrap().path());
    let sums = parts.into_iter().find(|path| path.extension().is_some_and(|end| end == "sums")).unwrap();
    let bytes = std::fs::read(sums).unwrap();
    let newest = bytes[..2 * 4096].chunks(4096).max_by_key(|head| u64::from_le_bytes(head[40..48].try_into().unwrap()));
    newest.unwrap()[64] & 1 == 1
}

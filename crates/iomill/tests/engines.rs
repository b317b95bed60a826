//! Every engine that this machine has, on real files. Each test runs on all of them, with and without polling.
//!
//! Goals: the contract with the drive queue: results, wakes, files, memory and lifetimes. Non-goals: speed.

mod scatter;
mod shared;

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, IntoRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use iomill::engine::aio::AioEngine;
use iomill::engine::mmap::{MappedParts, MmapEngine};
use iomill::engine::null::NullEngine;
use iomill::engine::posix::PosixEngine;
use iomill::engine::uring::UringEngine;
use iomill::engine::{Completion, Engine, EngineConfig, EngineKind, FileRef, IoRequest, Memory, NO_REGION, Op};
use iomill::sys::fs::Handle;
use iomill::sys::memory::PageBuf;
use tempfile::TempDir;

const PAGE: usize = 4096;
const LONG: Duration = crate::PATIENCE;

/// A directory on a real file system.
fn scratch() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn config(capacity: u32) -> EngineConfig {
    EngineConfig { capacity, poll: false, hold: Vec::new(), shared: false }
}

/// The engines that this machine has, by name.
fn engines(config: &EngineConfig) -> Vec<(String, Box<dyn Engine>)> {
    let mut engines: Vec<(String, Box<dyn Engine>)> = Vec::new();
    for poll in [false, true] {
        let config = EngineConfig { poll, ..config.clone() };
        let suffix = if poll { ", polling" } else { "" };
        engines.push((format!("posix{suffix}"), Box::new(PosixEngine::new(&config).unwrap())));
        match UringEngine::new(&config) {
            Ok(engine) => engines.push((format!("io_uring{suffix}"), Box::new(engine))),
            Err(error) => eprintln!("no io_uring here: {error}"),
        }
    }
    engines.push(("mmap".to_owned(), Box::new(MmapEngine::new(config, MappedParts::new()).unwrap())));
    let around = MmapEngine::by_system_calls(config, MappedParts::new());
    engines.push(("mmap, by system calls".to_owned(), Box::new(around.unwrap())));
    match AioEngine::new(config) {
        Ok(engine) => engines.push(("libaio".to_owned(), Box::new(engine))),
        Err(error) => eprintln!("no libaio here: {error}"),
    }
    engines
}

/// A file of `pages` pages for direct I/O, each full of its number plus `seed`.
fn paged_file(dir: &TempDir, name: &str, pages: usize, seed: u64) -> File {
    let path = dir.path().join(name);
    let bytes: Vec<u8> = (0..pages as u64).flat_map(|page| page_bytes(page + seed)).collect();
    fs::write(&path, bytes).unwrap();
    OpenOptions::new().read(true).write(true).custom_flags(libc::O_DIRECT).open(path).unwrap()
}

fn page_bytes(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(PAGE / 8)
}

fn named(file: &File, key: u64) -> FileRef {
    FileRef { handle: Handle(file.as_raw_fd()), key }
}

/// A request for the page of memory that belongs to its slot.
fn request(slot: u32, op: Op, file: FileRef, offset: u64, memory: &mut PageBuf) -> IoRequest {
    let buf = memory.as_mut_slice()[slot as usize * PAGE..][..PAGE].as_mut_ptr();
    IoRequest { slot, op, len: PAGE as u32, file, offset, memory: Memory::one(buf) }
}

/// Like `request`, with memory that the engine has registered.
fn in_region(request: IoRequest, region: u16) -> IoRequest {
    let Memory::One { buf, .. } = request.memory else { panic!("memory in one place") };
    IoRequest { memory: Memory::One { buf, region }, ..request }
}

/// Pushes requests, and returns their results by slot. Memory and files outlive the call.
fn run(engine: &mut dyn Engine, requests: &[IoRequest]) -> Vec<i32> {
    // SAFETY: every test keeps memory and files until this function has seen all completions.
    unsafe { engine.push(requests) };
    collect(engine, requests.len())
}

fn collect(engine: &mut dyn Engine, count: usize) -> Vec<i32> {
    let mut done = Vec::new();
    while done.len() < count {
        let before = done.len();
        engine.wait(count - done.len(), Some(LONG), &mut done).unwrap();
        assert!(done.len() > before, "nothing came for {LONG:?}");
    }
    assert_eq!(done.len(), count, "more completions than requests");
    done.sort_by_key(|completion| completion.slot);
    done.windows(2).for_each(|pair| assert_ne!(pair[0].slot, pair[1].slot, "completed twice"));
    done.into_iter().map(|completion| completion.result).collect()
}

#[test]
fn writes_reads_and_syncs() {
    let dir = scratch();
    for (name, mut engine) in engines(&config(64)) {
        let file = paged_file(&dir, "pages", 32, 0);
        let mut memory = PageBuf::new(64 * PAGE).unwrap();
        for page in 0..32u64 {
            memory.as_mut_slice()[page as usize * PAGE..][..PAGE].copy_from_slice(&page_bytes(page + 100));
        }
        let at = |page: u32| u64::from(page) * PAGE as u64;
        let writes: Vec<_> = (0..32).map(|i| request(i, Op::Write, named(&file, 1), at(i), &mut memory)).collect();
        assert_eq!(run(&mut *engine, &writes), vec![PAGE as i32; 32], "{name}");
        let sync = IoRequest { len: 0, memory: Memory::NONE, ..request(0, Op::Sync, named(&file, 1), 0, &mut memory) };
        assert_eq!(run(&mut *engine, &[sync]), [0], "{name}");
        memory.as_mut_slice().fill(0);
        let reads: Vec<_> = (0..32).map(|i| request(i, Op::Read, named(&file, 1), at(31 - i), &mut memory)).collect();
        assert_eq!(run(&mut *engine, &reads), vec![PAGE as i32; 32], "{name}");
        for slot in 0..32usize {
            let expected = page_bytes(31 - slot as u64 + 100);
            assert!(memory.as_slice()[slot * PAGE..][..PAGE] == expected, "{name}, slot {slot}");
        }
    }
}

#[test]
fn the_end_of_a_file_is_short() {
    let dir = scratch();
    for (name, mut engine) in engines(&config(4)) {
        let file = paged_file(&dir, "pages", 2, 0);
        let mut memory = PageBuf::new(4 * PAGE).unwrap();
        let two_pages = request(0, Op::Read, named(&file, 1), PAGE as u64, &mut memory);
        let two_pages = IoRequest { len: 2 * PAGE as u32, ..two_pages };
        let beyond = request(2, Op::Read, named(&file, 1), 2 * PAGE as u64, &mut memory);
        let far = request(3, Op::Read, named(&file, 1), 1 << 40, &mut memory);
        assert_eq!(run(&mut *engine, &[two_pages, beyond, far]), [PAGE as i32, 0, 0], "{name}");
    }
}

#[test]
fn each_request_has_its_own_error() {
    let dir = scratch();
    for (name, mut engine) in engines(&config(8)) {
        let file = paged_file(&dir, "pages", 8, 0);
        let read_only = File::open(dir.path().join("pages")).unwrap();
        let mut memory = PageBuf::new(8 * PAGE).unwrap();
        let nothing = FileRef { handle: Handle(999_999), key: 2 };
        let good = request(0, Op::Read, named(&file, 1), 0, &mut memory);
        let bad_file = request(1, Op::Read, nothing, 0, &mut memory);
        let misaligned = IoRequest { len: 100, ..request(2, Op::Read, named(&file, 1), 100, &mut memory) };
        let bad_write = request(3, Op::Write, nothing, 0, &mut memory);
        let not_writable = request(4, Op::Write, named(&read_only, 3), 0, &mut memory);
        let bad_sync = request(5, Op::Sync, nothing, 0, &mut memory);
        let bad_offset = request(6, Op::Read, named(&file, 1), u64::MAX - 4095, &mut memory);
        let also_good = request(7, Op::Read, named(&file, 1), PAGE as u64, &mut memory);
        let batch = [bad_sync, bad_file, good, misaligned, bad_write, bad_offset, not_writable, also_good];
        let [ebadf, einval, full] = [-libc::EBADF, -libc::EINVAL, PAGE as i32];
        // A copy needs no alignment.
        let misaligned = if name == "mmap" { 100 } else { einval };
        let expected = [full, ebadf, misaligned, ebadf, ebadf, ebadf, einval, full];
        // Twice: an error must leave nothing behind.
        for _ in 0..2 {
            assert_eq!(run(&mut *engine, &batch), expected, "{name}");
        }
        assert!(memory.as_slice()[7 * PAGE..] == page_bytes(1), "{name}");
    }
}

#[test]
fn no_wake_is_lost() {
    for (name, mut engine) in engines(&config(4)) {
        let waker = engine.waker();
        let (asked, answered) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let rounds = crate::rounds(1000);
        let other = std::thread::spawn({
            let (asked, answered) = (Arc::clone(&asked), Arc::clone(&answered));
            move || {
                for round in 1..=rounds {
                    // Acquire and Release: pair with those of `asked` and `answered` in the other thread.
                    while asked.load(Ordering::Acquire) < round {
                        std::hint::spin_loop();
                        std::thread::yield_now();
                    }
                    answered.store(round, Ordering::Release);
                    waker.wake();
                }
            }
        });
        let mut done = Vec::new();
        for round in 1..=rounds {
            asked.store(round, Ordering::Release);
            while answered.load(Ordering::Acquire) < round {
                let begun = Instant::now();
                engine.wait(1, Some(LONG), &mut done).unwrap();
                assert!(begun.elapsed() < LONG, "{name}: a wake was lost in round {round}");
            }
        }
        other.join().unwrap();
        assert!(done.is_empty(), "{name}");
    }
}

#[test]
fn wakes_and_requests_do_not_lose_each_other() {
    let dir = scratch();
    let file = paged_file(&dir, "pages", 64, 0);
    for (name, mut engine) in engines(&config(16)) {
        let waker = engine.waker();
        let stop = Arc::new(AtomicBool::new(false));
        let other = std::thread::spawn({
            let stop = Arc::clone(&stop);
            move || {
                while !stop.load(Ordering::Relaxed) {
                    waker.wake();
                    std::thread::sleep(Duration::from_micros(50));
                }
            }
        });
        let mut memory = PageBuf::new(16 * PAGE).unwrap();
        let mut done: Vec<Completion> = Vec::new();
        for round in 0..crate::rounds(100) {
            let page = |slot: u32| (round + u64::from(slot)) % 64;
            let batch: Vec<_> = (0..16)
                .map(|slot| request(slot, Op::Read, named(&file, 1), page(slot) * PAGE as u64, &mut memory))
                .collect();
            // SAFETY: memory and file stay until all sixteen have completed.
            unsafe { engine.push(&batch) };
            done.clear();
            let begun = Instant::now();
            while done.len() < 16 {
                engine.wait(16 - done.len(), Some(LONG), &mut done).unwrap();
                assert!(begun.elapsed() < LONG, "{name}: {} of 16 in round {round}", done.len());
            }
            assert_eq!(done.len(), 16, "{name}");
            for completion in &done {
                assert_eq!(completion.result, PAGE as i32, "{name}");
                let read = &memory.as_slice()[completion.slot as usize * PAGE..][..PAGE];
                assert!(read == page_bytes(page(completion.slot)), "{name}, slot {}", completion.slot);
            }
        }
        stop.store(true, Ordering::Relaxed);
        other.join().unwrap();
    }
}

#[test]
fn a_wake_ends_a_wait_for_several() {
    for (name, mut engine) in engines(&config(8)) {
        let waker = engine.waker();
        // First before the wait, which then must not sleep; then during the wait.
        waker.wake();
        let mut done = Vec::new();
        let begun = Instant::now();
        engine.wait(5, Some(LONG), &mut done).unwrap();
        let other = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(10));
            waker.wake();
        });
        engine.wait(5, Some(LONG), &mut done).unwrap();
        assert!(begun.elapsed() < LONG, "{name}");
        other.join().unwrap();
        // All wakes are taken, and no waker is left.
        let begun = Instant::now();
        engine.wait(1, Some(Duration::from_millis(5)), &mut done).unwrap();
        assert!(begun.elapsed() >= Duration::from_millis(5), "{name}: a wake came twice");
        assert!(done.is_empty(), "{name}");
    }
}

#[test]
fn full_capacity_in_flight() {
    let dir = scratch();
    // The larger one is more than a submission queue holds.
    for capacity in [512u32, 8192] {
        let file = paged_file(&dir, "pages", 1024, 7);
        let mut memory = PageBuf::new(capacity as usize * PAGE).unwrap();
        for (name, mut engine) in engines(&config(capacity)) {
            memory.as_mut_slice().fill(0);
            for round in 0..3u64 {
                let page = |slot: u32| (u64::from(slot) * 37 + round * 11) % 1024;
                let batch: Vec<_> = (0..capacity)
                    .map(|slot| request(slot, Op::Read, named(&file, 1), page(slot) * PAGE as u64, &mut memory))
                    .collect();
                assert_eq!(run(&mut *engine, &batch), vec![PAGE as i32; capacity as usize], "{name}");
                for slot in 0..capacity {
                    let read = &memory.as_slice()[slot as usize * PAGE..][..PAGE];
                    assert!(read == page_bytes(page(slot) + 7), "{name}, slot {slot} of {capacity}");
                }
            }
        }
    }
}

/// Reads from `count` files in mixed order, and checks that each read gets its own file's bytes.
fn read_many_files(dir: &TempDir, engine: &mut dyn Engine, name: &str, count: usize) {
    let files: Vec<_> = (0..count).map(|i| paged_file(dir, &format!("file{i}"), 1, i as u64)).collect();
    let mut memory = PageBuf::new(32 * PAGE).unwrap();
    let mut state = 1u64;
    for _ in 0..200 {
        let mut chosen = [0usize; 32];
        for (slot, choice) in chosen.iter_mut().enumerate() {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // Some files are read often, so that they stay registered, and all are read sometimes.
            *choice = if slot % 2 == 0 { (state >> 33) as usize % count } else { (state >> 60) as usize % count };
        }
        let batch: Vec<_> = (0..32)
            .map(|slot| {
                let file = chosen[slot as usize];
                request(slot, Op::Read, named(&files[file], file as u64 + 10), 0, &mut memory)
            })
            .collect();
        assert_eq!(run(engine, &batch), vec![PAGE as i32; 32], "{name}");
        for (slot, file) in chosen.iter().enumerate() {
            assert!(memory.as_slice()[slot * PAGE..][..PAGE] == page_bytes(*file as u64), "{name}, file {file}");
        }
    }
}

#[test]
fn more_files_than_can_be_registered() {
    const FILES: usize = 400;
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure lives until the call returns.
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) }, 0);
    // Other tests have files open, too.
    if limit.rlim_cur < 2 * FILES as u64 {
        return;
    }
    let dir = scratch();
    for (name, mut engine) in engines(&config(32)) {
        read_many_files(&dir, &mut *engine, &name, FILES);
    }
}

#[test]
fn a_low_limit_of_open_files_is_no_obstacle() {
    alone!();
    let dir = scratch();
    let limit = libc::rlimit { rlim_cur: 40, rlim_max: 40 };
    // SAFETY: the structure lives until the call returns.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
    for (name, mut engine) in engines(&config(32)) {
        read_many_files(&dir, &mut *engine, &name, 15);
    }
}

#[test]
fn a_new_file_under_an_old_descriptor_is_the_new_file() {
    let dir = scratch();
    let old = paged_file(&dir, "old", 1, 1);
    let new = paged_file(&dir, "new", 1, 2);
    for (name, mut engine) in engines(&config(4)) {
        let mut memory = PageBuf::new(4 * PAGE).unwrap();
        for (round, forget) in [true, false, true].into_iter().enumerate() {
            let key = 10 * (round as u64 + 1);
            let mut read = |engine: &mut dyn Engine, file: FileRef| {
                assert_eq!(run(engine, &[request(0, Op::Read, file, 0, &mut memory)]), [PAGE as i32], "{name}");
                memory.as_slice()[0]
            };
            let place = old.try_clone().unwrap();
            assert_eq!(read(&mut *engine, named(&place, key)), 1, "{name}");
            if forget {
                engine.forget(key);
            }
            let fd = place.into_raw_fd();
            // SAFETY: both numbers are open files of this test; the test has just released `fd`.
            assert_eq!(unsafe { libc::dup2(new.as_raw_fd(), fd) }, fd);
            let place = FileRef { handle: Handle(fd), key: key + 1 };
            assert_eq!(read(&mut *engine, place), 2, "{name}: the old file was read");
            engine.forget(key + 1);
            // SAFETY: `fd` is open, and no other code has it.
            assert_eq!(unsafe { libc::close(fd) }, 0);
        }
    }
}

#[test]
fn registered_memory_reads_and_writes() {
    let dir = scratch();
    for (name, mut engine) in engines(&config(16)) {
        let file = paged_file(&dir, "pages", 16, 3);
        let mut memory = PageBuf::new(16 * PAGE).unwrap();
        let uring = engine.kind() == EngineKind::Uring;
        for round in 0..3 {
            // SAFETY: the memory is unregistered before it is unmapped.
            let region = unsafe { engine.register(memory.as_mut_ptr(), memory.len()) };
            assert_eq!(region.is_some(), uring, "{name}");
            let region = region.unwrap_or(NO_REGION);
            for op in [Op::Read, Op::Write, Op::Read] {
                let batch: Vec<_> = (0..16)
                    .map(|slot| request(slot, op, named(&file, 1), u64::from(slot) * 4096, &mut memory))
                    .map(|request| in_region(request, region))
                    .collect();
                assert_eq!(run(&mut *engine, &batch), vec![PAGE as i32; 16], "{name}, {op:?}");
                for slot in 0..16usize {
                    let read = &memory.as_slice()[slot * PAGE..][..PAGE];
                    assert!(read == page_bytes(slot as u64 + 3 + round), "{name}, {op:?}, slot {slot}");
                }
            }
            for slot in 0..16usize {
                memory.as_mut_slice()[slot * PAGE..][..PAGE].copy_from_slice(&page_bytes(slot as u64 + 4 + round));
            }
            let batch: Vec<_> = (0..16)
                .map(|slot| request(slot, Op::Write, named(&file, 1), u64::from(slot) * 4096, &mut memory))
                .collect();
            assert_eq!(run(&mut *engine, &batch), vec![PAGE as i32; 16], "{name}");
            if region != NO_REGION {
                engine.unregister(region);
            }
        }
    }
}

#[test]
fn memory_that_cannot_be_registered_is_none() {
    for (name, mut engine) in engines(&config(4)) {
        // The kernel takes at most 1 GiB at once. The memory is never written, so it costs only addresses.
        let mut memory = PageBuf::new((1 << 30) + PAGE).unwrap();
        // SAFETY: the memory is not registered.
        assert_eq!(unsafe { engine.register(memory.as_mut_ptr(), memory.len()) }, None, "{name}");
    }
}

#[test]
fn timeouts() {
    for (name, mut engine) in engines(&config(4)) {
        let mut done = Vec::new();
        engine.wait(0, None, &mut done).unwrap();
        engine.wait(1, Some(Duration::ZERO), &mut done).unwrap();
        for watched in [false, true] {
            let waker = watched.then(|| engine.waker());
            let begun = Instant::now();
            engine.wait(1, Some(Duration::from_millis(20)), &mut done).unwrap();
            assert!(begun.elapsed() >= Duration::from_millis(20), "{name} did not wait");
            drop(waker);
        }
        assert!(done.is_empty(), "{name}");
    }
}

extern "C" fn ignore(_: libc::c_int) {}

#[test]
fn signals_do_not_disturb() {
    // SAFETY: the handler does nothing. Without SA_RESTART every system call that sleeps ends early.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = ignore as *const () as usize;
        assert_eq!(libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut()), 0);
    }
    for (name, mut engine) in engines(&config(4)) {
        let stop = AtomicBool::new(false);
        // SAFETY: the call only returns the thread's name.
        let waiter = unsafe { libc::pthread_self() };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    // SAFETY: the thread waits for this one before it ends.
                    unsafe { libc::pthread_kill(waiter, libc::SIGUSR1) };
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
            let begun = Instant::now();
            let mut done = Vec::new();
            let waited = engine.wait(1, Some(Duration::from_millis(30)), &mut done);
            stop.store(true, Ordering::Relaxed);
            waited.unwrap();
            assert!(begun.elapsed() >= Duration::from_millis(30), "{name}");
        });
    }
}

#[test]
fn an_engine_may_move_before_its_first_use() {
    let dir = scratch();
    let file = paged_file(&dir, "pages", 4, 9);
    for (name, mut engine) in engines(&config(4)) {
        let waker = engine.waker();
        let mut memory = PageBuf::new(4 * PAGE).unwrap();
        // SAFETY: the memory outlives the engine.
        let region = unsafe { engine.register(memory.as_mut_ptr(), memory.len()) }.unwrap_or(NO_REGION);
        let read = request(2, Op::Read, named(&file, 1), PAGE as u64, &mut memory);
        let read = in_region(read, region);
        let (tell, told) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let results = run(&mut *engine, &[read]);
            tell.send(()).unwrap();
            engine.wait(1, Some(LONG), &mut Vec::new()).unwrap();
            results
        });
        // A wake that came earlier would end the wait for the read.
        told.recv().unwrap();
        waker.wake();
        assert_eq!(thread.join().unwrap(), [PAGE as i32], "{name}");
        assert!(memory.as_slice()[2 * PAGE..3 * PAGE] == page_bytes(10), "{name}");
    }
}

#[test]
fn dropping_ends_what_is_in_flight() {
    let dir = scratch();
    let file = paged_file(&dir, "pages", 256, 0);
    for started in [false, true] {
        for (name, mut engine) in engines(&config(256)) {
            let mut memory = PageBuf::new(256 * PAGE).unwrap();
            let batch: Vec<_> = (0..256)
                .map(|slot| request(slot, Op::Read, named(&file, 1), u64::from(slot) * PAGE as u64, &mut memory))
                .collect();
            // SAFETY: memory and file outlive the engine.
            unsafe { engine.push(&batch) };
            if started {
                engine.wait(0, None, &mut Vec::new()).unwrap();
            }
            drop(engine);
            // No engine writes to the memory any more.
            memory.as_mut_slice().fill(0xaa);
            std::thread::sleep(Duration::from_millis(10));
            assert!(memory.as_slice().iter().all(|byte| *byte == 0xaa), "{name}");
        }
    }
}

#[test]
fn held_files_stay_open_as_long_as_the_ring() {
    let dir = scratch();
    let path = dir.path().join("lock");
    for poll in [false, true] {
        let file = File::create(&path).unwrap();
        let lock = |file: &File| {
            // SAFETY: a system call on an open file.
            let locked = unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) };
            if locked == 0 { Ok(()) } else { Err(io::Error::last_os_error().raw_os_error().unwrap()) }
        };
        lock(&file).unwrap();
        let config = EngineConfig { capacity: 4, poll, hold: vec![Handle(file.as_raw_fd())], shared: false };
        // Without io_uring there is nothing to hold: the other engines' requests end before descriptors close.
        let Ok(engine) = UringEngine::new(&config) else { return };
        drop(file);
        let other = File::open(&path).unwrap();
        assert_eq!(lock(&other), Err(libc::EWOULDBLOCK), "the ring no longer holds the lock");
        drop(engine);
        // The kernel takes a ring down some time later.
        let begun = Instant::now();
        while lock(&other).is_err() {
            assert!(begun.elapsed() < LONG, "the lock outlived the ring");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[test]
fn the_null_engine_touches_nothing() {
    let mut engine = NullEngine::new(&config(4));
    let mut memory = PageBuf::new(4 * PAGE).unwrap();
    memory.as_mut_slice().fill(5);
    let nowhere = FileRef { handle: Handle(-1), key: 0 };
    let ops = [Op::Read, Op::Write, Op::Sync];
    let batch: Vec<_> = (0..).zip(ops).map(|(slot, op)| request(slot, op, nowhere, 0, &mut memory)).collect();
    assert_eq!(run(&mut engine, &batch), [PAGE as i32, PAGE as i32, 0]);
    assert!(memory.as_slice().iter().all(|byte| *byte == 5));
    let waker = engine.waker();
    let begun = Instant::now();
    engine.wait(1, Some(Duration::from_millis(5)), &mut Vec::new()).unwrap();
    assert!(begun.elapsed() >= Duration::from_millis(5));
    waker.wake();
    engine.wait(1, None, &mut Vec::new()).unwrap();
}

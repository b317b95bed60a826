use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use tempfile::TempDir;

use super::*;
use crate::engine::FileRef;
use crate::sys::memory::PageBuf;
use crate::sys::versions::IN_MEMORY;

const PAGE: usize = 4096;

/// A file on a real file system, full of `byte`, and its name.
fn file_of(dir: &TempDir, pages: usize, byte: u8) -> File {
    let path = dir.path().join("part");
    std::fs::write(&path, vec![byte; pages * PAGE]).unwrap();
    OpenOptions::new().read(true).write(true).open(path).unwrap()
}

fn scratch() -> TempDir {
    // The file lies beside the executable, because that file system is not in memory.
    let executable = std::env::current_exe().unwrap();
    tempfile::tempdir_in(executable.parent().unwrap()).unwrap()
}

fn engine(parts: &Arc<MappedParts>) -> MmapEngine {
    MmapEngine::new(&EngineConfig { capacity: 8, poll: false, hold: Vec::new(), shared: false }, Arc::clone(parts))
        .unwrap()
}

/// One request, and its result.
fn one(engine: &mut MmapEngine, op: Op, file: &File, offset: u64, memory: &mut [u8]) -> i32 {
    let file = FileRef { handle: Handle(file.as_raw_fd()), key: 1 };
    let (len, memory) = (memory.len() as u32, Memory::one(memory.as_mut_ptr()));
    let mut done = Vec::new();
    // SAFETY: memory and file outlive the request, which has ended when this returns.
    unsafe { engine.push(&[IoRequest { slot: 0, op, len, file, offset, memory }]) };
    while done.is_empty() {
        engine.wait(1, None, &mut done).unwrap();
    }
    assert_eq!(done.len(), 1);
    done[0].result
}

/// The number of mappings of the file in this process.
fn mappings(dir: &TempDir) -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains(&*dir.path().to_string_lossy())).count()
}

#[test]
fn a_part_is_mapped_once_and_while_an_engine_uses_it() {
    let dir = scratch();
    let file = file_of(&dir, 4, 7);
    let parts = MappedParts::new();
    let (mut first, mut second) = (engine(&parts), engine(&parts));
    let mut memory = vec![0; 3 * PAGE];
    for engine in [&mut first, &mut second] {
        assert_eq!(one(engine, Op::Read, &file, 100, &mut memory), 3 * PAGE as i32);
        assert!(memory.iter().all(|&byte| byte == 7));
        assert_eq!(engine.below_in_flight, 0);
        assert_eq!(mappings(&dir), 1);
    }
    // A dropped engine unmaps exactly the parts that no other engine uses.
    drop(first);
    assert_eq!(mappings(&dir), 1);
    drop(second);
    assert_eq!(mappings(&dir), 0);
    // The first engine that forgets a part unmaps it for all. An engine that comes later maps nothing.
    let (mut first, mut second) = (engine(&parts), engine(&parts));
    for engine in [&mut first, &mut second] {
        assert_eq!(one(engine, Op::Read, &file, 0, &mut memory), 3 * PAGE as i32);
    }
    first.forget(1);
    assert_eq!(mappings(&dir), 0);
    assert_eq!(one(&mut second, Op::Read, &file, 0, &mut memory), 3 * PAGE as i32);
    assert_eq!(mappings(&dir), 0);
    second.forget(1);
}

#[test]
fn a_cut_under_the_mapping_is_the_end_of_the_file() {
    let dir = scratch();
    let file = file_of(&dir, 4, 7);
    let mut engine = engine(&MappedParts::new());
    let mut memory = vec![0; 2 * PAGE];
    assert_eq!(one(&mut engine, Op::Read, &file, 2 * PAGE as u64, &mut memory), 2 * PAGE as i32);
    file.set_len(3 * PAGE as u64).unwrap();
    for _ in 0..2 {
        assert_eq!(one(&mut engine, Op::Read, &file, 2 * PAGE as u64, &mut memory), PAGE as i32);
        assert_eq!(one(&mut engine, Op::Read, &file, 3 * PAGE as u64, &mut memory), 0);
    }
    assert_eq!(one(&mut engine, Op::Read, &file, PAGE as u64, &mut memory), 2 * PAGE as i32);
    // A write there lengthens the file, as with a system call.
    memory.fill(5);
    assert_eq!(one(&mut engine, Op::Write, &file, 5 * PAGE as u64, &mut memory), 2 * PAGE as i32);
    assert_eq!(file.metadata().unwrap().len(), 7 * PAGE as u64);
    let mut read = vec![0; 2 * PAGE];
    assert_eq!(one(&mut engine, Op::Read, &file, 5 * PAGE as u64, &mut read), 2 * PAGE as i32);
    assert_eq!(read, memory);
    // The end within a page is reported as the end.
    file.set_len(5 * PAGE as u64 + 10).unwrap();
    engine.reader.enter().current(&engine.known[&1].part.mapping).unwrap().distrust();
    assert_eq!(one(&mut engine, Op::Read, &file, 5 * PAGE as u64, &mut read), 10);
}

#[test]
fn a_part_that_outgrows_its_reservation_is_mapped_anew_while_others_read() {
    let dir = scratch();
    let file = file_of(&dir, 4, 7);
    let parts = MappedParts::new();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut engine = engine(&parts);
                let mut memory = vec![0; 2 * PAGE];
                while !stop.load(Ordering::Relaxed) {
                    assert_eq!(one(&mut engine, Op::Read, &file, PAGE as u64, &mut memory), 2 * PAGE as i32);
                    assert!(memory.iter().all(|&byte| byte == 7));
                }
            });
        }
        let mut engine = engine(&parts);
        let mut memory = vec![3; PAGE];
        // Files with holes. Each length is beyond the address space of the one before.
        for size in [1u64 << 20, 20 << 30, 100 << 30, 500 << 30] {
            file.set_len(size).unwrap();
            let last = size - PAGE as u64;
            assert_eq!(one(&mut engine, Op::Write, &file, last, &mut memory), PAGE as i32);
            let mut read = vec![0; PAGE];
            assert_eq!(one(&mut engine, Op::Read, &file, last, &mut read), PAGE as i32);
            assert!(read == memory);
            file.set_len(4 * PAGE as u64).unwrap();
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(engine.reader.enter().current(&engine.known[&1].part.mapping).unwrap().reserved() >= 500 << 30);
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(mappings(&dir), 0);
}

/// Bytes of the file's mapping that were written to but are not on the drive.
fn dirty_kib(path: &Path) -> u64 {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let own = smaps.split(&*path.to_string_lossy()).nth(1).expect("the file is mapped");
    let lines = own.lines().filter(|line| line.starts_with("Private_Dirty:") || line.starts_with("Shared_Dirty:"));
    lines.take(2).map(|line| line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()).sum()
}

#[test]
fn a_sync_covers_what_was_copied() {
    let dir = scratch();
    let file = file_of(&dir, 16, 0);
    if IN_MEMORY.contains(&(rustix::fs::fstatfs(&file).unwrap().f_type as u32)) {
        println!("skipped: the build directory is in memory, where each page stays dirty");
        return;
    }
    file.sync_all().unwrap();
    let mut engine = engine(&MappedParts::new());
    let mut memory = vec![9; 8 * PAGE];
    let path = dir.path().join("part");
    // The kernel may count more, in larger units. It writes pages by itself, too, and when another process asks for
    // that.
    let is_dirty = (0..1000).any(|_| {
        assert_eq!(one(&mut engine, Op::Write, &file, PAGE as u64, &mut memory), 8 * PAGE as i32);
        dirty_kib(&path) >= 32
    });
    assert!(is_dirty);
    assert_eq!(one(&mut engine, Op::Sync, &file, 0, &mut []), 0);
    assert_eq!(dirty_kib(&path), 0, "some pages are not on the drive");
    let mut read = vec![0; 8 * PAGE];
    file.read_exact_at(&mut read, PAGE as u64).unwrap();
    assert!(read == memory);
}

#[test]
fn files_that_are_only_read_or_cannot_be_mapped() {
    let dir = scratch();
    drop(file_of(&dir, 4, 7));
    let file = File::open(dir.path().join("part")).unwrap();
    let mut engine = engine(&MappedParts::new());
    let mut memory = vec![0; PAGE];
    assert_eq!(one(&mut engine, Op::Read, &file, 0, &mut memory), PAGE as i32);
    assert_eq!(mappings(&dir), 1);
    assert_eq!(one(&mut engine, Op::Write, &file, 0, &mut memory), -libc::EBADF);
    // Files of /proc have no pages.
    engine.forget(1);
    let file = File::open("/proc/self/status").unwrap();
    assert!(one(&mut engine, Op::Read, &file, 0, &mut memory) > 0);
    assert!(examine(Handle(file.as_raw_fd())).is_err());
}

#[test]
fn memory_that_is_lost_is_an_error_too() {
    let dir = scratch();
    let file = file_of(&dir, 4, 7);
    let mut engine = engine(&MappedParts::new());
    let mut memory = PageBuf::new(PAGE).unwrap();
    assert_eq!(one(&mut engine, Op::Read, &file, 0, memory.as_mut_slice()), PAGE as i32);
    // The caller's own memory may be a file that was cut. The result is that of a system call.
    let lost = tempfile::tempfile().unwrap();
    lost.set_len(PAGE as u64).unwrap();
    let access = rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE;
    // SAFETY: a new mapping, which stays until the process ends.
    let start = unsafe { rustix::mm::mmap(std::ptr::null_mut(), PAGE, access, rustix::mm::MapFlags::SHARED, &lost, 0) };
    let memory = Memory::one(start.unwrap().cast());
    lost.set_len(0).unwrap();
    let file = FileRef { handle: Handle(file.as_raw_fd()), key: 1 };
    // SAFETY: the mapping stays; its page fails.
    unsafe { engine.push(&[IoRequest { slot: 0, op: Op::Read, len: PAGE as u32, file, offset: 0, memory }]) };
    let mut done = Vec::new();
    engine.wait(1, None, &mut done).unwrap();
    assert_eq!(done[0].result, -libc::EFAULT);
}

/// Pages of a file that are in the page cache.
fn resident(file: &File, pages: usize) -> usize {
    let access = rustix::mm::ProtFlags::READ;
    let flags = rustix::mm::MapFlags::SHARED;
    // SAFETY: a new mapping at an address that the kernel chooses, unmapped below. `states` has a byte for each of its
    // pages.
    unsafe {
        let start = rustix::mm::mmap(std::ptr::null_mut(), pages * PAGE, access, flags, file, 0).unwrap();
        let mut states = vec![0_u8; pages];
        assert_eq!(libc::mincore(start, pages * PAGE, states.as_mut_ptr()), 0);
        rustix::mm::munmap(start, pages * PAGE).unwrap();
        states.iter().filter(|state| **state & 1 != 0).count()
    }
}

/// In a cold engine a read brings in its own pages and none around them, alone and in a batch. The reads of a batch do
/// not wait for each other.
#[test]
fn a_cold_engine_fetches_what_is_read_and_nothing_around_it() {
    const PAGES: usize = 4096;
    let dir = scratch();
    let file = file_of(&dir, PAGES, 7);
    let mut engine = engine(&MappedParts::new());
    let mut memory = vec![0; PAGE];
    let drop_cached = || {
        file.sync_all().unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    };
    drop_cached();
    // Maps the part. The kernel reads around the page.
    assert_eq!(one(&mut engine, Op::Read, &file, 0, &mut memory), PAGE as i32);
    // The kernel may still be reading around it, and does not drop such pages. A read of each page waits for that.
    file.read_exact_at(&mut vec![0; PAGES * PAGE], 0).unwrap();
    drop_cached();
    let before = resident(&file, PAGES);
    assert!(before < PAGES / 2, "{before} pages stay in memory");
    engine.ahead.make_cold();
    assert_eq!(one(&mut engine, Op::Read, &file, 3500 * PAGE as u64, &mut memory), PAGE as i32);
    let offsets = [1500, 2000, 2500, 3000].map(|page| page * PAGE as u64);
    let mut memories = vec![0; offsets.len() * PAGE];
    let handle = FileRef { handle: Handle(file.as_raw_fd()), key: 1 };
    let request = |(slot, (&offset, memory)): (usize, (&u64, &mut [u8]))| IoRequest {
        slot: slot as u32,
        op: Op::Read,
        len: PAGE as u32,
        file: handle,
        offset,
        memory: Memory::one(memory.as_mut_ptr()),
    };
    let requests: Vec<_> = offsets.iter().zip(memories.chunks_mut(PAGE)).enumerate().map(request).collect();
    let mut done = Vec::new();
    // SAFETY: memory and file outlive the requests, which have ended below.
    unsafe { engine.push(&requests) };
    while done.len() < requests.len() {
        engine.wait(requests.len() - done.len(), None, &mut done).unwrap();
    }
    assert!(done.iter().all(|done| done.result == PAGE as i32), "{done:?}");
    assert!(memories.iter().chain(&memory).all(|&byte| byte == 7));
    let more = resident(&file, PAGES) - before;
    assert!((5..=20).contains(&more), "{more} pages more");
}

#[test]
fn a_sync_on_memory_is_the_kernels_only_when_it_must_be() {
    let dir = scratch();
    let file = file_of(&dir, 4, 7);
    let handle = Handle(file.as_raw_fd());
    let part = MappedPart::default();
    assert!(part.begin_sync(handle), "the file was never synced");
    assert!(part.begin_sync(handle), "the other sync has not ended");
    part.end_sync(true);
    part.end_sync(true);
    assert!(!part.begin_sync(handle));
    part.bypass();
    assert!(part.begin_sync(handle), "a write went past the mapping");
    part.end_sync(false);
    assert!(part.begin_sync(handle), "the last sync failed");
    part.end_sync(true);
    file.set_len(5 * PAGE as u64).unwrap();
    assert!(part.begin_sync(handle), "longer");
    part.end_sync(true);
    assert!(!part.begin_sync(handle));
    assert!(part.begin_sync(Handle(-1)), "the size is not known");
}

/// A sync that begins during a write past the mapping may not cover the write. So the next sync must cover it.
#[test]
fn a_write_beside_a_sync_is_left_to_the_next_one() {
    let dir = scratch();
    let file = file_of(&dir, 4, 7);
    file.sync_all().unwrap();
    let handle = Handle(file.as_raw_fd());
    let parts = MappedParts::new();
    let part = parts.part(1);
    assert!(part.begin_sync(handle));
    part.end_sync(true);
    let config = EngineConfig { capacity: 8, poll: false, hold: Vec::new(), shared: false };
    let mut engine = MmapEngine::by_system_calls(&config, Arc::clone(&parts)).unwrap();
    let (mut bytes, mut done) = ([5; PAGE], Vec::new());
    let memory = Memory::one(bytes.as_mut_ptr());
    let request =
        IoRequest { slot: 0, op: Op::Write, len: PAGE as u32, file: FileRef { handle, key: 1 }, offset: 0, memory };
    // SAFETY: memory and file outlive the request, which has ended below.
    unsafe { engine.push(&[request]) };
    engine.begin();
    assert!(part.begin_sync(handle), "a write is on its way");
    part.end_sync(true);
    while done.is_empty() {
        engine.wait(1, None, &mut done).unwrap();
    }
    assert!(part.begin_sync(handle), "the write has ended since");
    part.end_sync(true);
    assert!(!part.begin_sync(handle));
}

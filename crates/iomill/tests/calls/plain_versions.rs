//! Different contents of plain files with equal stamps: times of whole seconds, images with the same times, stores
//! through mappings. A file that is opened again must have its present bytes.

use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::Duration;

use iomill::{EngineKind, PlainOptions, Runtime, RuntimeOptions};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::disks::{Disk, ran_with_own_mounts, skipped};
use super::{PAGE, places};
use crate::alone;

fn runtime() -> Runtime {
    RuntimeOptions::new().cache_bytes(1 << 20).start().unwrap()
}

/// The first byte of a file, by an opening of its own.
fn first_byte(runtime: &Runtime, path: &Path) -> u8 {
    let mut byte = [0];
    PlainOptions::new().runtime(runtime).open(path).unwrap().read_at(&mut byte, 0).unwrap();
    byte[0]
}

/// A change in place, with the same length.
fn change(path: &Path, byte: u8) {
    std::fs::OpenOptions::new().write(true).open(path).unwrap().write_all_at(&[byte; PAGE], 0).unwrap();
}

fn says_why(runtime: &Runtime, why: &str) {
    let notices = runtime.notices().join("\n");
    assert!(notices.contains("leave the cache with its last handle") && notices.contains(why), "{notices}");
}

/// A file that changes several times within a second. Its times change only once.
///
/// Seen to fail when times counted as settled after 50 ms whatever the clock, and when an opening shared pages with an
/// earlier handle.
#[test]
fn a_clock_of_whole_seconds_hides_no_change() {
    let Some(disk) = Disk::ext4(32, &["-I", "128"]) else { return skipped("no ext4 on a loop device here") };
    let (path, runtime) = (disk.path().join("file"), runtime());
    std::fs::write(&path, [0; 3 * PAGE]).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().ctime_nsec(), 0, "the file system keeps whole seconds");
    for keeps_a_handle in [false, true] {
        let mut kept = Vec::new();
        for round in 1..30 {
            change(&path, round);
            std::thread::sleep(Duration::from_millis(70));
            assert_eq!(first_byte(&runtime, &path), round, "with an earlier handle: {keeps_a_handle}");
            if keeps_a_handle {
                kept.push(PlainOptions::new().runtime(&runtime).open(&path).unwrap());
            }
        }
    }
    // After some seconds there are hits again.
    std::thread::sleep(Duration::from_millis(2200));
    let misses = || runtime.counters().misses;
    let (first, before) = (first_byte(&runtime, &path), misses());
    assert_eq!((first_byte(&runtime, &path), first), (29, 29));
    let stay = !runtime.notices().iter().any(|notice| notice.contains("leave the cache"));
    assert_eq!(misses() == before, stay);
}

/// Two images that differ in the bytes of a file only, one after the other on one device: all numbers and times are the
/// same.
///
/// Seen to fail without the mount in the id.
#[test]
fn another_image_is_another_file_system() {
    if ran_with_own_mounts(alone::test_name!()) {
        return;
    }
    let Some(disk) = Disk::ext4(32, &[]) else { return skipped("no ext4 on a loop device here") };
    let (path, runtime) = (disk.path().join("file"), runtime());
    std::fs::write(&path, [b'1'; 3 * PAGE]).unwrap();
    disk.unmount_soon();
    std::thread::sleep(Duration::from_millis(100));
    let stamp = |path: &Path| {
        let stat = std::fs::metadata(path).unwrap();
        (stat.dev(), stat.ino(), stat.len(), stat.mtime_nsec(), stat.ctime_nsec(), stat.ctime())
    };
    let mut stamps = Vec::new();
    for byte in [b'1', b'2', b'1'] {
        let image = disk.image();
        let mut bytes = std::fs::read(&image).unwrap();
        let place = bytes
            .windows(3 * PAGE)
            .step_by(1024)
            .position(|window| window.iter().all(|&one| one == window[0]) && (window[0] == b'1' || window[0] == b'2'));
        bytes[place.unwrap() * 1024..][..3 * PAGE].fill(byte);
        std::fs::write(&image, bytes).unwrap();
        assert!(disk.mount_again_read_only());
        stamps.push(stamp(&path));
        assert_eq!(first_byte(&runtime, &path), byte);
        disk.unmount_soon();
    }
    if stamps[0] != stamps[1] {
        skipped("the image got another device each time");
    }
}

/// A file system in memory notes no store through a mapping.
///
/// Seen to fail when its pages were kept.
#[test]
fn a_store_to_memory_is_seen_by_the_next_opening() {
    for dir in places() {
        for engine in [None, Some(EngineKind::Mmap), Some(EngineKind::Posix)] {
            let options = RuntimeOptions::new().cache_bytes(1 << 20);
            let runtime = engine.map_or(options.clone(), |engine| options.engine(engine)).start().unwrap();
            let path = dir.path().join("mapped");
            std::fs::write(&path, [1; PAGE]).unwrap();
            let file = std::fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
            let access = ProtFlags::READ | ProtFlags::WRITE;
            // SAFETY: a new mapping that nothing else knows.
            let mapped = unsafe { mmap(std::ptr::null_mut(), PAGE, access, MapFlags::SHARED, &file, 0) }.unwrap();
            for round in 2..6 {
                // SAFETY: the mapping is as long as the file, and this thread alone stores to it.
                unsafe { mapped.cast::<u8>().write_volatile(round) };
                std::thread::sleep(Duration::from_millis(70));
                assert_eq!(first_byte(&runtime, &path), round, "{engine:?} in {}", path.display());
            }
            // SAFETY: nothing uses it any more.
            unsafe { munmap(mapped, PAGE) }.unwrap();
            let is_memory = rustix::fs::statfs(dir.path()).unwrap().f_type == 0x0102_1994;
            if is_memory {
                says_why(&runtime, "in memory");
            } else if engine == Some(EngineKind::Mmap) {
                says_why(&runtime, "");
            }
        }
    }
}

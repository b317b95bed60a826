//! Plain files on a full disk, and on more devices than a runtime has queues.

use std::os::unix::fs::MetadataExt;

use iomill::{PlainOptions, RuntimeOptions};

use super::PAGE;
use super::disks::{Disk, skipped};

const MIB: usize = 1 << 20;

/// A write that does not fit fails by itself, as with any other file, and the sync after it succeeds. The file ends
/// behind the last write that fits.
///
/// Seen to fail when a file was made longer by a hole.
#[test]
fn a_full_disk_fails_the_write() {
    let Some(disk) = Disk::ext4(24, &[]) else { return skipped("no ext4 on a loop device here") };
    for cache in [64 * MIB as u64, MIB as u64, 0] {
        for step in [MIB, 30 * MIB] {
            let runtime = RuntimeOptions::new().cache_bytes(cache).start().unwrap();
            let path = disk.path().join("file");
            let file = PlainOptions::new().write(true).create(true).runtime(&runtime).open(&path).unwrap();
            file.write_at(&[b'A'; 5000], 0).unwrap();
            file.sync().unwrap();
            let step = vec![b'B'; step];
            let error = loop {
                if let Err(error) = file.write_at(&step, file.len()) {
                    break error;
                }
                assert!(file.len() < 30 * MIB as u64, "the disk is smaller");
            };
            assert_eq!(error.errno(), Some(libc::ENOSPC), "{error}");
            let len = file.len();
            file.sync().unwrap();
            assert_eq!(std::fs::metadata(&path).unwrap().size(), len);
            file.close().unwrap();
            let bytes = std::fs::read(&path).unwrap();
            assert_eq!((bytes.len() as u64, (len - 5000) % step.len() as u64), (len, 0));
            assert!(bytes[..5000].iter().all(|&byte| byte == b'A') && bytes[5000..].iter().all(|&byte| byte == b'B'));
            std::fs::remove_file(&path).unwrap();
        }
    }
}

/// Holes of a file that was extended before, on a disk without room for their pages. If the file's end cannot be
/// written, the length of the last sync stays, without zeroes.
///
/// Seen to fail when the end of a file kept the length in memory.
#[test]
fn what_cannot_be_written_leaves_the_old_length() {
    let Some(disk) = Disk::ext4(24, &[]) else { return skipped("no ext4 on a loop device here") };
    for is_dropped in [false, true] {
        let runtime = RuntimeOptions::new().cache_bytes(64 * MIB as u64).start().unwrap();
        let path = disk.path().join("file");
        let file = PlainOptions::new().write(true).create(true).runtime(&runtime).open(&path).unwrap();
        file.write_at(&[b'A'; 5000], 0).unwrap();
        file.sync().unwrap();
        // A length in memory that no sync has covered, with a hole, and then no space to fill the hole.
        file.write_at(b"B", 12 * MIB as u64).unwrap();
        let rest = disk.path().join("rest");
        let other = std::fs::File::create(&rest).unwrap();
        let space = rustix::fs::fstatvfs(&other).unwrap();
        let all = space.f_bavail * space.f_frsize;
        let mut taken = all;
        while rustix::fs::fallocate(&other, rustix::fs::FallocateFlags::empty(), 0, taken).is_err() {
            taken -= 64 << 10;
        }
        file.write_at(&vec![b'C'; 8 * MIB], 6000).unwrap();
        assert_eq!(file.sync().unwrap_err().errno(), Some(libc::ENOSPC));
        assert_eq!(file.len(), 12 * MIB as u64 + 1, "a later sync tries again");
        if is_dropped {
            drop(file);
            assert!(runtime.notices().iter().any(|notice| notice.contains("closing")), "{:?}", runtime.notices());
        } else {
            assert_eq!(file.close().unwrap_err().errno(), Some(libc::ENOSPC));
        }
        assert!(std::fs::read(&path).unwrap() == [b'A'; 5000]);
        drop(other);
        std::fs::remove_file(&rest).unwrap();
        std::fs::remove_file(&path).unwrap();
    }
}

/// One file system after the other, as for each job of a scheduler, and many at the same time.
///
/// Seen to fail when a device kept its queue for the life of the runtime.
#[test]
fn devices_come_and_go() {
    const DEVICES: usize = 70;
    let runtime = RuntimeOptions::new().cache_bytes(1 << 20).start().unwrap();
    let read = |disk: &Disk, byte: u8| {
        let path = disk.path().join("file");
        std::fs::write(&path, [byte; 2 * PAGE]).unwrap();
        let file = PlainOptions::new().runtime(&runtime).open(&path).unwrap();
        let mut bytes = vec![0; 2 * PAGE];
        file.read_at(&mut bytes, 0).unwrap();
        assert!(bytes == [byte; 2 * PAGE]);
        file
    };
    let mut disks = Vec::new();
    for number in 0..DEVICES {
        let Some(disk) = Disk::of_kind("tmpfs") else { return skipped("no tmpfs can be mounted here") };
        read(&disk, number as u8).close().unwrap();
        disks.push(disk);
    }
    assert!(runtime.drives().len() < 20, "{:?}", runtime.drives());
    let files: Vec<_> = disks.iter().map(|disk| read(disk, 7)).collect();
    let mut byte = [0];
    for file in &files {
        file.read_at(&mut byte, PAGE as u64).unwrap();
        assert_eq!(byte, [7]);
    }
    drop(files);
    disks.iter().for_each(Disk::unmount_soon);
}

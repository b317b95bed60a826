//! The [`stamp`] of an open file, which identifies the file and a version of its contents; and the file systems on
//! which a stamp proves that pages may outlive the file's last handle.
//!
//! Rules:
//! 1. Pages of a closed file are used again only if every change since the close would show in the stamp. A file system
//!    that is not known to show all changes counts as one that does not.
//! 2. The times of a file have the steps of its file system's clock. A file that changed within the last step may
//!    change again without another time (`is_settled`).
//! 3. Device numbers, inode numbers and times may all be the same after another image was mounted. So the number of the
//!    mount counts, too, which the kernel never uses twice (Linux 6.8). On a file system without writers it is enough.
//! 4. The kernel notes a store through a mapping when the store makes a page dirty. A direct read writes such a page
//!    back first, so the next store is noted again. A buffered read leaves it dirty, and the next store is not noted.
//!    Stores to memory (tmpfs, DAX) are never noted.
//! 5. Inode numbers tell files apart only on the file systems below. On others two files may have the same number at
//!    the same time, so the path counts, too (`Stamp::is_unique`).
//! 6. The clocks of servers are not this machine's, so no stamp of a file on a network file system or FUSE proves
//!    anything.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{self as sys, AtFlags, OFlags, StatxAttributes, StatxFlags};
use rustix::io::Errno;

use super::calls::{borrow, retry};
use super::fs::{Handle, Identity, Stamp};

/// The age from which on a change gets another time. The kernel's times of files are those of its last tick, at most
/// 10 ms ago.
const SETTLED_NS: i128 = 50_000_000;

/// The age likewise, for a time that may have whole or even seconds.
const COARSE_NS: i128 = 2_000_000_000 + SETTLED_NS;

/// A time that is a multiple of this may be from a clock with steps of seconds or hundredths.
const ROUND_NS: i128 = 10_000_000;

/// `STATX_MNT_ID_UNIQUE` (Linux 6.8).
const MOUNT: StatxFlags = StatxFlags::from_bits_retain(0x4000);

/// `f_type` of file systems that are made as a whole and then only read: erofs, squashfs, iso9660, cramfs, romfs.
const IMAGES: [u32; 5] = [0xe0f5_e1e2, 0x7371_7368, 0x9660, 0x28cd_3d45, 0x7275];

/// `f_type` of local file systems that note each change by direct I/O, by a write and by a store (rule 4): ext2 to
/// ext4, XFS, btrfs, F2FS.
const NOTING: [u32; 4] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010];

/// `f_type` of tmpfs and of ramfs.
pub const IN_MEMORY: [u32; 2] = [0x0102_1994, 0x8584_58f6];

const NO_MOUNT: &str = "this kernel cannot tell a mount from an earlier one (Linux 6.8 can)";
const MEMORY: &str = "a file system in memory does not note stores through a mapping";
const UNKNOWN: &str = "this file system is not known to note every change with a time of this machine's clock";
const BUFFERED: &str = "without direct I/O the kernel does not note every store through a mapping";

/// The stamp of an open file.
pub fn stamp(handle: Handle) -> io::Result<Stamp> {
    let file = borrow(handle);
    let stat = sys::fstat(file)?;
    let (modified_ns, changed_ns) =
        (nanoseconds(stat.st_mtime, stat.st_mtime_nsec as i64), nanoseconds(stat.st_ctime, stat.st_ctime_nsec as i64));
    let kind = retry(|| sys::fstatfs(file))?.f_type as u32;
    let (mount, drops) = lasting(file, kind)?;
    Ok(Stamp {
        identity: Identity { device: stat.st_dev, inode: stat.st_ino },
        is_unique: IMAGES.contains(&kind) || NOTING.contains(&kind) || IN_MEMORY.contains(&kind),
        len: u64::try_from(stat.st_size).map_err(|_| io::Error::from(Errno::OVERFLOW))?,
        modified_ns,
        changed_ns,
        is_settled: is_settled(changed_ns, now_ns()),
        mount,
        drops,
    })
}

/// The number of the file's mount, and the reason if cached pages must not outlive the last handle (rule 1). `kind` is
/// the `f_type` of the file system.
fn lasting(file: BorrowedFd<'_>, kind: u32) -> io::Result<(u64, Option<&'static str>)> {
    let stat = match retry(|| sys::statx(file, "", AtFlags::EMPTY_PATH, MOUNT)) {
        Ok(stat) => stat,
        // An old kernel, or a filter of system calls.
        Err(Errno::NOSYS | Errno::PERM) => return Ok((0, Some(NO_MOUNT))),
        Err(error) => return Err(error.into()),
    };
    let is_direct = sys::fcntl_getfl(file)?.contains(OFlags::DIRECT);
    let drops = match kind {
        _ if IN_MEMORY.contains(&kind) => Some(MEMORY),
        _ if !IMAGES.contains(&kind) && !NOTING.contains(&kind) => Some(UNKNOWN),
        _ if stat.stx_mask & MOUNT.bits() == 0 => Some(NO_MOUNT),
        _ if IMAGES.contains(&kind) => None,
        _ if stat.stx_attributes.contains(StatxAttributes::DAX) => Some(MEMORY),
        _ => (!is_direct).then_some(BUFFERED),
    };
    Ok((stat.stx_mnt_id, drops))
}

/// Whether a change from `now_ns` on gets another time than `changed_ns` (rule 2).
fn is_settled(changed_ns: i128, now_ns: i128) -> bool {
    let window_ns = if changed_ns % ROUND_NS == 0 { COARSE_NS } else { SETTLED_NS };
    changed_ns + window_ns < now_ns
}

fn now_ns() -> i128 {
    // With a clock before 1970 no change counts as settled.
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(i128::MIN, |since| since.as_nanos() as i128)
}

fn nanoseconds(seconds: i64, rest: i64) -> i128 {
    i128::from(seconds) * 1_000_000_000 + i128::from(rest)
}

#[cfg(all(test, not(iomill_models)))]
mod tests {
    use super::*;

    /// Seen to fail with one window for all clocks.
    #[test]
    fn a_change_within_a_step_of_the_clock_is_not_settled() {
        const SECOND: i128 = 1_000_000_000;
        let second = 1_700_000_000 * SECOND;
        for (changed, after, settled) in [
            (second + 123_456_789, SETTLED_NS, false),
            (second + 123_456_789, SETTLED_NS + 1, true),
            // Whole seconds, as ext4 has with inodes of 128 bytes; even seconds; hundredths.
            (second, SECOND, false),
            (second, 2 * SECOND, false),
            (second, 2 * SECOND + SETTLED_NS + 1, true),
            (second + 20_000_000, SECOND, false),
            // The clock was set back.
            (second + 123_456_789, -SECOND, false),
        ] {
            assert_eq!(is_settled(changed, changed + after), settled, "{changed} after {after}");
        }
    }
}

//! System calls on open files, by their handles, for both the drives of arrays and plain files.
//!
//! Non-goals: paths (`real_fs`, `plain_fs`), and the detection of changed contents (`versions`).

use std::fs;
use std::io;
use std::os::fd::{BorrowedFd, IntoRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::{Mutex, PoisonError};

use iomill_platform::devices::{self, Device};
use iomill_platform::mounts::{self, Mount};
use iomill_platform::tree::Tree;
use rustix::fs::{self as sys, AtFlags, FallocateFlags, Mode, OFlags};
use rustix::io::Errno;

use super::fs::{Alignment, Ground, Handle};
use super::memory::PageBuf;

/// The unit of direct I/O: iomill moves whole pages.
pub const PAGE_BYTES: u32 = 4096;

/// The mode of every file of an array.
pub const FILE_MODE: Mode = Mode::RUSR.union(Mode::WUSR).union(Mode::SVTX);

/// The number of bytes that [`write_zeroes`] writes at a time.
const ZEROES_BYTES: usize = 64 << 10;

/// The flags that make a hole in a file.
const PUNCH: FallocateFlags = FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE);

/// The length of an open file in bytes.
pub fn len(handle: Handle) -> io::Result<u64> {
    let stat = sys::fstat(borrow(handle))?;
    u64::try_from(stat.st_size).map_err(|_| io::Error::from(Errno::OVERFLOW))
}

/// See [`DriveFs::allocate`](super::fs::DriveFs::allocate).
pub fn allocate(handle: Handle, offset: u64, bytes: u64) -> io::Result<()> {
    match retry(|| sys::fallocate(borrow(handle), FallocateFlags::empty(), offset, bytes)) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
            let end = offset.checked_add(bytes).ok_or(Errno::FBIG)?;
            if len(handle)? < end { set_len(handle, end) } else { Ok(()) }
        }
        result => Ok(result?),
    }
}

/// Cuts or extends (with a hole) an open file.
pub fn set_len(handle: Handle, len: u64) -> io::Result<()> {
    Ok(retry(|| sys::ftruncate(borrow(handle), len))?)
}

/// See [`DriveFs::zero`](super::fs::DriveFs::zero).
pub fn zero(handle: Handle, offset: u64, len: u64) -> io::Result<()> {
    if len == 0 {
        return Ok(());
    }
    // A hole also frees the space. Pages that the range covers only in part are zeroed.
    match retry(|| sys::fallocate(borrow(handle), PUNCH, offset, len)) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => write_zeroes(handle, offset, len),
        result => Ok(result?),
    }
}

/// See [`DriveFs::punch`](super::fs::DriveFs::punch).
pub fn punch(handle: Handle, offset: u64, len: u64) -> io::Result<()> {
    Ok(retry(|| sys::fallocate(borrow(handle), PUNCH, offset, len))?)
}

/// The space that an open file takes on its drive, in bytes.
pub fn allocated(handle: Handle) -> io::Result<u64> {
    // The unit of this count is 512 bytes, whatever the file system.
    Ok(u64::try_from(sys::fstat(borrow(handle))?.st_blocks).unwrap_or(0).saturating_mul(512))
}

/// The start and end of the first range at or after an offset that may hold data. Bytes beyond the end of the file
/// count as data. The call moves the descriptor's offset, which no other call uses.
pub fn next_data(handle: Handle, offset: u64) -> io::Result<(u64, u64)> {
    let found = sys::seek(borrow(handle), sys::SeekFrom::Data(offset)).and_then(|start| {
        let end = sys::seek(borrow(handle), sys::SeekFrom::Hole(start))?;
        Ok((start, end))
    });
    match found {
        // There is no data from here on, or another program has cut the file between the two calls.
        Err(Errno::NXIO) => {
            let len = u64::try_from(sys::fstat(borrow(handle))?.st_size).unwrap_or(0);
            Ok((offset.max(len), u64::MAX))
        }
        // The file system knows no holes.
        Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok((offset, u64::MAX)),
        found => Ok(found?),
    }
}

/// Whether an open file has the mode of an array's files.
pub fn is_of_array(handle: Handle) -> io::Result<bool> {
    Ok(Mode::from_raw_mode(sys::fstat(borrow(handle))?.st_mode) == FILE_MODE)
}

/// Makes a file's data and length durable.
pub fn sync_data(handle: Handle) -> io::Result<()> {
    // Not repeated after EINTR: a second fdatasync may report success for pages that the first one lost.
    Ok(sys::fdatasync(borrow(handle))?)
}

/// The alignment that I/O on an open file needs.
pub fn alignment(handle: Handle, demands: &Demands) -> io::Result<Alignment> {
    let file = borrow(handle);
    if !sys::fcntl_getfl(file)?.contains(OFlags::DIRECT) {
        return Ok(Alignment::NONE);
    }
    let kernel_says = direct_demands(file)?.map(|(_, memory)| memory);
    let number = sys::fstat(file)?.st_dev;
    let memory = demands.memory(Tree::machine, (sys::major(number), sys::minor(number)), kernel_says);
    Ok(Alignment { offset: PAGE_BYTES, memory })
}

/// The file system and device of an open file or directory.
pub fn ground(file: BorrowedFd<'_>) -> io::Result<Ground> {
    let space = sys::fstatvfs(file)?;
    let stat = sys::fstat(file)?;
    let tree = Tree::machine();
    let mount = mount_of(&tree, file);
    let device = device_of(&tree, stat.st_dev, || mount.clone()).unwrap_or_default();
    let whole = number_of(&device, stat.st_dev);
    let file_system = match mount {
        Some(mount) => mount.kind,
        // In a chroot the table lacks mounts that begin outside of it, or there is no table.
        None => mounts::kind(retry(|| sys::fstatfs(file))?.f_type as u32),
    };
    Ok(Ground {
        file_system,
        device: device.name,
        device_id: whole,
        node: device.node,
        cpus: device.cpus,
        total_bytes: space.f_blocks.saturating_mul(space.f_frsize),
        free_bytes: space.f_bavail.saturating_mul(space.f_frsize),
    })
}

/// The number of the whole device under an open file or directory with this `st_dev`; `st_dev` itself if the device is
/// not known.
pub fn drive_of(file: BorrowedFd<'_>, st_dev: u64) -> u64 {
    let tree = Tree::machine();
    device_of(&tree, st_dev, || mount_of(&tree, file)).map_or(st_dev, |device| number_of(&device, st_dev))
}

fn number_of(device: &Device, st_dev: u64) -> u64 {
    device.number.map_or(st_dev, |(major, minor)| sys::makedev(major, minor))
}

fn mount_of(tree: &Tree, file: BorrowedFd<'_>) -> Option<Mount> {
    mount_id(file).and_then(|id| mounts::all(tree).into_iter().find(|mount| mount.id == id))
}

/// The whole device under files with this `st_dev`.
fn device_of(tree: &Tree, st_dev: u64, mount: impl FnOnce() -> Option<Mount>) -> Option<Device> {
    let mut number = (sys::major(st_dev), sys::minor(st_dev));
    if number.0 == 0 {
        // Files of btrfs and others are on virtual devices. The mount's source is the real device.
        if let Some(Ok(source)) = mount().map(|mount| fs::metadata(&mount.source)) {
            number = (sys::major(source.rdev()), sys::minor(source.rdev()));
        }
    }
    devices::find(tree, number)
}

pub fn into_handle(file: OwnedFd) -> Handle {
    Handle(file.into_raw_fd())
}

pub fn borrow<'a>(handle: Handle) -> BorrowedFd<'a> {
    // SAFETY: the handle comes from `open`, so it is a descriptor of the kernel and never -1. It stays open until its
    // owner is dropped, which is after the callers' use. Only system calls use the descriptor, so a closed one would
    // only give EBADF.
    unsafe { BorrowedFd::borrow_raw(handle.0) }
}

/// Repeats a call that a signal interrupted.
pub fn retry<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            result => return result,
        }
    }
}

/// The alignment of offsets and of memory that direct I/O on an open file needs. `None` if the kernel does not report
/// it.
fn direct_demands(file: BorrowedFd<'_>) -> io::Result<Option<(u32, u32)>> {
    match retry(|| sys::statx(file, "", AtFlags::EMPTY_PATH, sys::StatxFlags::DIOALIGN)) {
        Ok(stat) if stat.stx_mask & sys::StatxFlags::DIOALIGN.bits() != 0 => {
            Ok(Some((stat.stx_dio_offset_align, stat.stx_dio_mem_align)))
        }
        Ok(_) | Err(Errno::NOSYS | Errno::PERM) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Whether a file that is open for direct I/O can do it by pages.
pub fn can_be_direct(file: BorrowedFd<'_>) -> io::Result<bool> {
    // Zero means that the file takes no direct I/O (it may be encrypted). A unit larger than a page does not fit ours.
    Ok(direct_demands(file)?.is_none_or(|(offset, _)| (1..=PAGE_BYTES).contains(&offset)))
}

/// The demands of devices on the memory of direct I/O. Each device is looked up in sysfs once: a lookup takes some ten
/// system calls, and every part of a file needs it. The drive's directory is open, so its file system stays mounted,
/// and no other device gets the number.
#[derive(Debug, Default)]
pub struct Demands {
    known: Mutex<Vec<((u32, u32), Demand)>>,
}

#[derive(Clone, Copy, Debug)]
struct Demand {
    /// The device's logical block in bytes; a page if the device does not show its block.
    block: u32,
    /// The least alignment, whatever the kernel reports.
    least: u32,
}

impl Demands {
    /// The alignment of memory that direct I/O on a device needs. `kernel_says` is the kernel's report. Without one
    /// (before Linux 6.1) the alignment is the device's logical block: Linux before 6.0 needs that much, and no version
    /// needs more. If the device does not show its block, as under btrfs, the alignment is a page.
    pub fn memory(&self, tree: impl FnOnce() -> Tree, number: (u32, u32), kernel_says: Option<u32>) -> u32 {
        let Demand { block, least } = self.of(tree, number);
        kernel_says.unwrap_or(block).max(least)
    }

    /// The demand of a device. Calls `tree` only for a device that is not known yet, because every open of a file comes
    /// here.
    fn of(&self, tree: impl FnOnce() -> Tree, number: (u32, u32)) -> Demand {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&(_, demand)) = known.iter().find(|(known, _)| *known == number) {
            return demand;
        }
        let tree = tree();
        let device = devices::find(&tree, number).unwrap_or_default();
        let block = devices::logical_block_bytes(&tree, &device.name).filter(|bytes| bytes.is_power_of_two());
        // zram fills whole pages of memory, from the page's start. If the memory starts within a page, zram overwrites
        // the bytes before it (Linux, drivers/block/zram/zram_drv.c, `is_partial_io`; seen on 6.18). So does a RAID or
        // a mapped device above zram, whatever the kernel reports (seen on 6.1). Their blocks are pages, or are not
        // shown.
        let is_by_pages = device.name.starts_with("zram") || block.is_none_or(|bytes| bytes >= PAGE_BYTES);
        let least = if is_by_pages { PAGE_BYTES } else { 1 };
        let demand = Demand { block: block.unwrap_or(PAGE_BYTES), least };
        known.push((number, demand));
        demand
    }
}

fn mount_id(directory: BorrowedFd<'_>) -> Option<u64> {
    let flags = sys::StatxFlags::MNT_ID;
    let stat = sys::statx(directory, "", AtFlags::EMPTY_PATH, flags).ok()?;
    (stat.stx_mask & flags.bits() != 0).then_some(stat.stx_mnt_id)
}

/// Zeroes a range by writes of whole pages from aligned memory, because the file may be open for direct I/O. The other
/// bytes of the first and the last page are read first.
pub fn write_zeroes(handle: Handle, offset: u64, len: u64) -> io::Result<()> {
    let (file, page) = (borrow(handle), u64::from(PAGE_BYTES));
    let file_len = u64::try_from(sys::fstat(file)?.st_size).map_err(|_| io::Error::from(Errno::OVERFLOW))?;
    let end = (offset + len).min(file_len);
    let mut pages = PageBuf::new(ZEROES_BYTES)?;
    let mut at = offset;
    while at < end {
        let start = at / page * page;
        let to = end.min(start + ZEROES_BYTES as u64);
        let whole = (to.next_multiple_of(page) - start) as usize;
        let (from, until) = ((at - start) as usize, (to - start) as usize);
        let bytes = &mut pages.as_mut_slice()[..whole];
        if from > 0 || until < whole {
            read_at(file, bytes, start)?;
        }
        bytes[from..until].fill(0);
        write_at(file, bytes, start)?;
        at = to;
    }
    // The last write may have gone beyond the end of the file.
    if sys::fstat(file)?.st_size as u64 > file_len {
        retry(|| sys::ftruncate(file, file_len))?;
    }
    Ok(sys::fdatasync(file)?)
}

pub fn read_at(file: BorrowedFd<'_>, buf: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut done = 0;
    while done < buf.len() {
        match retry(|| rustix::io::pread(file, &mut buf[done..], offset + done as u64))? {
            0 => break,
            count => done += count,
        }
    }
    Ok(done)
}

pub fn write_at(file: BorrowedFd<'_>, bytes: &[u8], offset: u64) -> io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        match retry(|| rustix::io::pwrite(file, &bytes[done..], offset + done as u64))? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            count => done += count,
        }
    }
    Ok(())
}

//! A large reservation of address space. Pages take memory when they are touched, until they are released.
//!
//! Goals: an address that never changes, for memory that grows and shrinks; errors instead of aborts. Non-goals: which
//! thread uses which part, and references. The slab hands out only a raw address, because its bytes may be changing.

use std::fmt;
use std::io;
use std::ops::Range;
use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, ProtFlags};

/// The slab starts at a multiple of this, the size of a huge page of x86-64 and of arm64 with small pages of 4 KiB.
pub const SLAB_ALIGN_BYTES: usize = 2 << 20;

/// The most nodes that the kernel supports.
const NODES_MAX: u32 = 1024;

/// The size of the kernel's pages in bytes, by the C library. rustix would read the kernel's auxiliary vector. Under
/// valgrind, which counts instructions here, that vector does not describe this process.
pub fn page_bytes() -> usize {
    // SAFETY: the call only reads a setting of the C library.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    // It cannot fail for this name. If it did, 4,096 would still be valid: the smallest page of any processor.
    usize::try_from(bytes).unwrap_or(4096)
}

/// How strictly memory keeps to its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodePolicy {
    /// Memory comes from the node while it has some, then from any other node.
    Preferred,
    /// Memory comes only from the node. If it has none left, the process ends, as after any lack of memory.
    Bind,
}

/// Reserved address space, readable and writable from end to end. Pages that were never touched, or were released, read
/// as zero and take no memory.
///
/// No part of it is unmapped while the slab lives. So an access never faults, but it may use up the machine's memory.
pub struct Slab {
    /// The start of a mapping of `len` bytes, which this value alone owns. A multiple of `SLAB_ALIGN_BYTES`.
    start: NonNull<u8>,
    /// The mapped length in bytes: whole pages, and never 0.
    len: usize,
    /// The requested length in bytes; at most `len`.
    asked: usize,
    /// The size of the kernel's pages in bytes, which may be more than 4,096.
    page: usize,
}

// SAFETY: the mapping belongs to no thread, and any thread may unmap it.
unsafe impl Send for Slab {}
// SAFETY: methods on `&Slab` read fields that never change, and call the kernel, which takes calls on one mapping from
// many threads. Access to the memory goes through the raw address, and the code that makes it must prove it safe.
unsafe impl Sync for Slab {}

impl Slab {
    /// Reserves `max_bytes` bytes, rounded up to whole pages. The system sets no memory aside, so a slab may be larger
    /// than the machine's memory.
    ///
    /// # Errors
    /// The system forbids that (`vm.overcommit_memory` 2), or limits the process's address space.
    pub fn new(max_bytes: usize) -> io::Result<Slab> {
        Slab::of_pages(max_bytes, page_bytes())
    }

    /// Like `new`, as on a kernel with pages of `page` bytes, a multiple of this kernel's.
    pub(crate) fn of_pages(max_bytes: usize, page: usize) -> io::Result<Slab> {
        let len = max_bytes.checked_next_multiple_of(page).filter(|len| *len > 0);
        let mapped =
            len.and_then(|len| len.checked_add(SLAB_ALIGN_BYTES)).filter(|bytes| *bytes <= isize::MAX as usize);
        let (Some(len), Some(mapped)) = (len, mapped) else {
            return Err(invalid(format!("cannot reserve {max_bytes} bytes of address space")));
        };
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: a new private mapping at an address that the kernel chooses touches no memory that exists.
        let raw = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), mapped, access, flags) }?;
        let before = raw.addr().next_multiple_of(SLAB_ALIGN_BYTES) - raw.addr();
        let start = raw.cast::<u8>().wrapping_add(before);
        // Unmaps the edges before and after the slab. If the kernel refuses (it has run out of mappings), only address
        // space is lost.
        for (edge, bytes) in [(raw.cast(), before), (start.wrapping_add(len), mapped - before - len)] {
            if bytes > 0 {
                // SAFETY: the range is whole pages of the mapping just made, outside the slab.
                let _trimmed = unsafe { rustix::mm::munmap(edge.cast(), bytes) };
            }
        }
        let start = NonNull::new(start).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Slab { start, len, asked: max_bytes, page })
    }

    /// The address of the first byte, a multiple of [`SLAB_ALIGN_BYTES`]. It stays the same and valid while `self`
    /// lives.
    pub fn base(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// The length in bytes: as requested, rounded up to whole pages. Never 0.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Asks for huge pages in the whole slab. An error (a kernel without them answers `InvalidInput`) costs only speed.
    pub fn advise_huge(&self) -> io::Result<()> {
        // SAFETY: the range is the whole mapping, and the advice changes no byte of it.
        Ok(unsafe { rustix::mm::madvise(self.base().cast(), self.len, Advice::LinuxHugepage) }?)
    }

    /// Refuses huge pages in the whole slab, so that it takes little more memory than is touched. An error means that
    /// the kernel has no huge pages.
    pub fn refuse_huge(&self) -> io::Result<()> {
        // SAFETY: as for `advise_huge`.
        Ok(unsafe { rustix::mm::madvise(self.base().cast(), self.len, Advice::LinuxNoHugepage) }?)
    }

    /// Returns the memory of a range of whole pages to the system; the slab may end within the last page. The range
    /// reads as zero afterwards. A part of a huge page frees no memory until the kernel splits the page, which it does
    /// when it needs memory.
    ///
    /// # Safety
    /// During the call there is no reference to bytes in `range`. No thread accesses them except by atomic operations,
    /// and no system call accesses them. No I/O uses a registration of the range any more: a ring holds the old pages,
    /// while this process gets new ones.
    pub unsafe fn release(&self, range: Range<usize>) -> io::Result<()> {
        let (start, len) = self.pages(&range)?;
        // SAFETY: the range lies in the mapping, and by the caller's promise no code relies on its bytes.
        unsafe { rustix::mm::madvise(start.cast(), len, Advice::LinuxDontNeed) }.map_err(|error| {
            let error = io::Error::from(error);
            io::Error::new(error.kind(), format!("cannot return {len} bytes of memory to the system: {error}"))
        })
    }

    /// Binds a range of whole pages to a node: their memory comes from the node. Pages that have memory already keep
    /// it, so bind before the range is touched.
    pub fn bind(&self, range: Range<usize>, node: u32, policy: NodePolicy) -> io::Result<()> {
        let (start, len) = self.pages(&range)?;
        bind(start, len, node, policy)
    }

    /// The address and length of a range, which must be whole pages of the slab, or end at its requested length.
    fn pages(&self, range: &Range<usize>) -> io::Result<(*mut u8, usize)> {
        let page = self.page;
        let end = if range.end == self.asked { self.len } else { range.end };
        let whole = range.start.is_multiple_of(page) && end.is_multiple_of(page);
        if !whole || range.start > range.end || end > self.len {
            let len = self.len;
            return Err(invalid(format!("{range:?} is not a range of whole pages of {page} bytes within {len} bytes")));
        }
        Ok((self.base().wrapping_add(range.start), end - range.start))
    }
}

/// Binds the whole pages from `start` on, in a mapping of the caller, to a node.
pub(super) fn bind(start: *mut u8, len: usize, node: u32, policy: NodePolicy) -> io::Result<()> {
    if node >= NODES_MAX {
        return Err(invalid(format!("node {node} does not exist: the highest is {}", NODES_MAX - 1)));
    }
    let mut mask = [0u64; NODES_MAX as usize / 64];
    mask[node as usize / 64] = 1 << (node % 64);
    let mode = match policy {
        NodePolicy::Preferred => libc::MPOL_PREFERRED,
        NodePolicy::Bind => libc::MPOL_BIND,
    };
    // The kernel reads one bit less than this count.
    let bits = libc::c_ulong::from(NODES_MAX) + 1;
    // SAFETY: the call changes no byte of a mapped range, and fails for any other range. The mask has as many bits as
    // the kernel reads.
    let result = unsafe { libc::syscall(libc::SYS_mbind, start, len, mode, mask.as_ptr(), bits, 0 as libc::c_uint) };
    if result == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    Err(io::Error::new(error.kind(), format!("cannot take {len} bytes of memory from node {node}: {error}")))
}

impl Drop for Slab {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and every user of its address promised to use it only while the slab lives.
        let unmapped = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "unmapping own memory cannot fail");
    }
}

impl fmt::Debug for Slab {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slab").field("start", &self.start).field("len", &self.len).finish()
    }
}

fn invalid(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    /// The number of the slab's bytes that have memory.
    fn resident_bytes(slab: &Slab) -> usize {
        let page = page_bytes();
        let mut pages = vec![0u8; slab.len() / page];
        // SAFETY: the range is the slab's mapping, and there is one byte of room for each of its pages.
        let result = unsafe { libc::mincore(slab.base().cast(), slab.len(), pages.as_mut_ptr()) };
        assert_eq!(result, 0);
        pages.iter().filter(|page| **page & 1 == 1).count() * page
    }

    /// The resident memory of this process in bytes.
    fn rss_bytes() -> usize {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * page_bytes()
    }

    fn fill(slab: &Slab, range: Range<usize>, byte: u8) {
        // SAFETY: the range lies in the slab, which only the test uses.
        unsafe { slab.base().add(range.start).write_bytes(byte, range.len()) };
    }

    fn at(slab: &Slab, offset: usize) -> u8 {
        assert!(offset < slab.len());
        // SAFETY: the byte lies in the slab, which only the test uses.
        unsafe { slab.base().add(offset).read() }
    }

    #[test]
    fn aligned_zeroed_and_free_until_touched() {
        // The size is beyond any machine's memory: the reservation costs nothing.
        let slab = Slab::new(16 << 40).unwrap();
        assert_eq!(slab.base().addr() % SLAB_ALIGN_BYTES, 0);
        assert_eq!(slab.len(), 16 << 40);
        for offset in [0, 4096, slab.len() / 2, slab.len() - 1] {
            assert_eq!(at(&slab, offset), 0);
            fill(&slab, offset..offset + 1, 7);
            assert_eq!(at(&slab, offset), 7);
        }
        assert_eq!(Slab::new(1).unwrap().len(), page_bytes());
    }

    #[test]
    fn released_memory_is_gone_and_zero() {
        let slab = Slab::new(64 * MIB).unwrap();
        let _on_kernels_that_have_them = slab.advise_huge();
        fill(&slab, 0..64 * MIB, 0xa5);
        assert_eq!(resident_bytes(&slab), 64 * MIB);
        let before = rss_bytes();
        // SAFETY: only the test uses the slab.
        unsafe { slab.release(8 * MIB..64 * MIB) }.unwrap();
        assert_eq!(resident_bytes(&slab), 8 * MIB);
        // Other tests of this process take memory meanwhile, but less than that.
        assert!(rss_bytes() + 16 * MIB < before, "{} -> {}", before, rss_bytes());
        for (offset, byte) in [(0, 0xa5), (8 * MIB - 1, 0xa5), (8 * MIB, 0), (64 * MIB - 1, 0)] {
            assert_eq!(at(&slab, offset), byte, "{offset}");
        }
        fill(&slab, 8 * MIB..9 * MIB, 1);
        assert_eq!(at(&slab, 9 * MIB - 1), 1, "it can be used again");
        // SAFETY: as above.
        unsafe { slab.release(0..0) }.unwrap();
    }

    #[test]
    fn senseless_ranges_and_sizes_are_errors() {
        let slab = Slab::new(MIB).unwrap();
        fill(&slab, 0..MIB, 3);
        #[allow(clippy::reversed_empty_ranges)]
        for range in [1..4096, 0..100, 0..2 * MIB, MIB..2 * MIB, 8192..4096, 0..usize::MAX] {
            // SAFETY: only the test uses the slab.
            let error = unsafe { slab.release(range.clone()) }.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{range:?}");
            assert_eq!(slab.bind(range, 0, NodePolicy::Bind).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        }
        assert_eq!(resident_bytes(&slab), MIB);
        assert_eq!(Slab::new(0).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert_eq!(Slab::new(usize::MAX).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert!(Slab::new(isize::MAX as usize - (8 << 20)).is_err(), "no address space is that large");
    }

    #[test]
    fn nodes_are_bound_or_refused() {
        let slab = Slab::new(4 * MIB).unwrap();
        for node in [1023, 1024, u32::MAX] {
            assert!(slab.bind(0..MIB, node, NodePolicy::Bind).is_err(), "no machine of ours has node {node}");
        }
        match slab.bind(0..MIB, 0, NodePolicy::Preferred) {
            Ok(()) => slab.bind(MIB..2 * MIB, 0, NodePolicy::Bind).unwrap(),
            // A sandbox may forbid it, and some kernels are built without it.
            Err(error) => {
                assert!(matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::Unsupported), "{error}")
            }
        }
        fill(&slab, 0..4 * MIB, 9);
        assert_eq!(resident_bytes(&slab), 4 * MIB);
    }
}

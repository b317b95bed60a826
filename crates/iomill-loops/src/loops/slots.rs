//! What a thread keeps for each of its reads in flight, allocated once.
//!
//! Goals: the slot that was freed last is used first, so that few buffers stay hot in the CPU's caches.

use std::fs::File;
use std::os::fd::AsRawFd;

use iomill::sys::memory::PageBuf;
use iomill::{Error, Result};

use super::super::draw::Rng;
use super::super::parts::{self, Part};
use super::reader::{Failed, Work};

/// Buffers and places of the reads of one thread.
#[derive(Debug)]
pub(super) struct Slots<'a> {
    parts: &'a [Part],
    /// The parts, open for direct I/O.
    files: Vec<File>,
    /// Blocks of each part; none is 0.
    blocks: Box<[u64]>,
    block_bytes: u32,
    /// The buffer of slot s has `block_bytes` bytes from `s * block_bytes`. The kernel writes to the buffers of slots
    /// in flight.
    memory: PageBuf,
    /// Slots that are not in flight. The last one is taken next.
    free: Vec<u32>,
    /// What each slot in flight reads: a part's index, and an offset in it.
    places: Vec<(u32, u64)>,
    rng: Rng,
    /// Reads that have ended well.
    pub(super) reads: u64,
}

/// A read that is about to start.
#[derive(Clone, Copy, Debug)]
pub(super) struct Read {
    pub(super) slot: u32,
    pub(super) part: u32,
    pub(super) offset: u64,
    /// Room for a block.
    pub(super) buffer: *mut u8,
}

impl<'a> Slots<'a> {
    pub(super) fn new(parts: &'a [Part], work: &Work, thread: usize) -> std::result::Result<Slots<'a>, Failed> {
        let (capacity, block_bytes) = (work.depth as usize * parts.len(), work.request_bytes);
        // Neither interface makes a queue with more than 32 Ki entries.
        if capacity > 16 << 10 {
            let what = format!("{} reads in flight on each of {} drives", work.depth, parts.len());
            return Err(Error::invalid(what, "probe fewer drives at a time").into());
        }
        let blocks: Box<[u64]> = parts.iter().map(|part| part.len_bytes / u64::from(block_bytes)).collect();
        if blocks.is_empty() || blocks.contains(&0) {
            return Err(
                Error::invalid("the files that are read", "each must hold a block; give a larger --size").into()
            );
        }
        let open = |part: &Part| parts::open(&part.path, true).map_err(refused_or_failed);
        let files = parts.iter().map(open).collect::<std::result::Result<Vec<File>, Failed>>()?;
        let mut memory = PageBuf::new(capacity * block_bytes as usize)
            .map_err(|e| Error::Tool { what: "memory for the reads".into(), why: e.to_string() })?;
        // Pages that come in now do not come in while the clock runs.
        memory.as_mut_slice().fill(0);
        Ok(Slots {
            parts,
            files,
            blocks,
            block_bytes,
            memory,
            free: (0..capacity as u32).rev().collect(),
            places: vec![(0, 0); capacity],
            rng: Rng::new((thread as u64) << 32 | u64::from(std::process::id())),
            reads: 0,
        })
    }

    pub(super) fn descriptors(&self) -> Vec<i32> {
        self.files.iter().map(AsRawFd::as_raw_fd).collect()
    }

    pub(super) fn block_bytes(&self) -> u32 {
        self.block_bytes
    }

    /// All buffers, as one stretch of memory.
    pub(super) fn memory(&mut self) -> libc::iovec {
        libc::iovec { iov_base: self.memory.as_mut_ptr().cast(), iov_len: self.memory.len() }
    }

    pub(super) fn capacity(&self) -> usize {
        self.places.len()
    }

    pub(super) fn free(&self) -> usize {
        self.free.len()
    }

    pub(super) fn in_flight(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// Takes a free slot for a read of a random block: first a random part, then a random block of it.
    #[inline(always)]
    pub(super) fn take(&mut self) -> Option<Read> {
        let slot = self.free.pop()?;
        // A random fraction times n gives the choice before the point, and a new fraction after it.
        let wide = u128::from(self.rng.draw()) * self.blocks.len() as u128;
        let part = (wide >> 64) as usize;
        let block = ((u128::from(wide as u64) * u128::from(self.blocks[part])) >> 64) as u64;
        let (part, offset) = (part as u32, block * u64::from(self.block_bytes));
        self.places[slot as usize] = (part, offset);
        // The address is inside the memory: slots are below its capacity.
        let buffer = self.memory.as_mut_ptr().wrapping_add(slot as usize * self.block_bytes as usize);
        Some(Read { slot, part, offset, buffer })
    }

    /// Frees a slot after its read has ended with `result` (bytes or a negated errno), and counts the read.
    #[inline(always)]
    pub(super) fn give_back(&mut self, slot: u32, result: i64) -> Result<()> {
        self.free.push(slot);
        if result != i64::from(self.block_bytes) {
            return Err(self.failed(slot, result));
        }
        self.reads += 1;
        Ok(())
    }

    /// The error of a read that ended with `result`.
    #[cold]
    pub(super) fn failed(&self, slot: u32, result: i64) -> Error {
        let (part, offset) = self.places[slot as usize];
        let path = self.parts[part as usize].path.clone();
        match u64::try_from(result) {
            Ok(bytes) => Error::part_cut(path, offset + bytes, u64::from(self.block_bytes) - bytes),
            Err(_) => {
                let source = std::io::Error::from_raw_os_error(-result as i32);
                Error::io_at("read", path, offset, source)
            }
        }
    }
}

fn refused_or_failed(error: Error) -> Failed {
    parts::why_not_direct(&error).map_or(Failed::Error(error), Failed::Refused)
}

#[cfg(test)]
mod tests {
    use super::super::super::draw::PAGE_BYTES;
    use super::super::tests::{parts, stamp};
    use super::*;

    const WORK: Work = Work { threads: 1, depth: 4, request_bytes: PAGE_BYTES as u32 };

    impl Slots<'_> {
        /// Whether each slot holds the block that was last read into it, by the stamps of its pages.
        pub(in super::super) fn hold_what_was_read(&self) -> bool {
            let blocks = self.memory.as_slice().chunks(self.block_bytes as usize);
            let mut pages = self.places.iter().zip(blocks).flat_map(|(&(part, offset), block)| {
                block
                    .chunks(PAGE_BYTES)
                    .zip(0..)
                    .map(move |(bytes, page)| (part, offset / PAGE_BYTES as u64 + page, bytes))
            });
            pages.all(|(part, page, bytes)| bytes[..8] == stamp(part as usize, page))
        }
    }

    #[test]
    fn slots_are_bounded_reused_hot_and_checked() {
        let (_dir, parts) = parts(1, 1 << 20);
        let mut slots = Slots::new(&parts, &WORK, 0).unwrap();
        let taken: Vec<Read> = (0..4).filter_map(|_| slots.take()).collect();
        assert_eq!(taken.iter().map(|read| read.slot).collect::<Vec<_>>(), [0, 1, 2, 3]);
        assert!(slots.take().is_none() && slots.free() == 0 && slots.in_flight() == 4);
        slots.give_back(2, 4096).unwrap();
        assert_eq!((slots.reads, slots.take().unwrap().slot), (1, 2), "the hottest buffer comes first");
        let cut = slots.give_back(1, 1000).unwrap_err();
        assert!(
            matches!(cut, Error::PartCut { offset, missing: 3096, .. } if offset == taken[1].offset + 1000),
            "{cut}"
        );
        assert_eq!(slots.give_back(3, -i64::from(libc::EIO)).unwrap_err().errno(), Some(libc::EIO));
        assert_eq!(slots.reads, 1, "what failed is not counted");
        assert!(!slots.hold_what_was_read(), "nothing was read");
    }

    #[test]
    fn places_are_uniform_over_drives_and_inside_parts() {
        let (_dir, mut parts) = parts(3, 64 * 4096);
        parts[1].len_bytes = 32 * 4096 + 100;
        let mut slots = Slots::new(&parts, &WORK, 0).unwrap();
        let mut seen = std::collections::HashMap::<(u32, u64), u32>::new();
        for _ in 0..60_000 {
            let read = slots.take().unwrap();
            assert!(read.offset.is_multiple_of(4096) && read.offset + 4096 <= parts[read.part as usize].len_bytes);
            *seen.entry((read.part, read.offset)).or_default() += 1;
            slots.give_back(read.slot, 4096).unwrap();
        }
        assert_eq!(seen.len(), 64 + 32 + 64, "every block is drawn");
        for part in 0..3 {
            let count: u32 = seen.iter().filter(|((its, _), _)| *its == part).map(|(_, count)| count).sum();
            assert!((19_000..21_000).contains(&count), "{part}: {count}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_refused() {
        let (_dir, parts) = parts(1, 4096);
        assert!(Slots::new(&vec![parts[0].clone(); 17], &Work { depth: 1024, ..WORK }, 0).is_err());
        assert!(Slots::new(&parts, &Work { request_bytes: 8192, ..WORK }, 0).is_err(), "a part without a block");
        assert!(Slots::new(&[], &WORK, 0).is_err());
    }
}

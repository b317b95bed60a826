//! Memory that callers have registered with an array, and its numbers in one engine.
//!
//! Goals: a batch looks its own memory up once. A piece in a slab is found by arithmetic, without a lock. An array
//! without slabs pays a branch. Non-goals: keeping memory mapped, which is its owner's.
//!
//! Rules:
//! 1. Memory is added before the first piece in it is queued, and removed after the last has ended.
//! 2. Every change raises `version`. For each piece an engine looks at it first, and unregisters what was removed. So a
//!    number never stands for memory that was mapped anew: a piece in the new memory comes after the removal of the
//!    old. The piece's batch may have begun before that removal.

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;

use crate::engine::{Engine, Memory, NO_REGION};
use crate::sys::sync::{AtomicU64, Ordering, RwLock, read, write};

/// The registered memory of an array.
#[derive(Debug, Default)]
pub struct Regions {
    /// Start address to (length, id). Ranges do not overlap; ids are never used again.
    ranges: RwLock<BTreeMap<usize, (usize, u64)>>,
    slabs: RwLock<Vec<RegisteredSlab>>,
    /// Grows with every change, so that engines notice; zero: nothing was ever registered. It changes under the lock of
    /// `ranges` or `slabs`. AcqRel: pairs with the Acquire in `Known::keep_up`.
    version: AtomicU64,
}

/// A slab of many small buffers: an engine registers the used chunks of it.
#[derive(Clone, Debug)]
struct RegisteredSlab {
    /// An id as in `Regions::ranges`.
    id: u64,
    addresses: Range<usize>,
    /// A chunk is two to this power of bytes; the last one may be shorter.
    chunk_shift: u32,
    /// Memory from this address on is not in use: registered memory ends before it.
    used_end: usize,
    /// Per chunk, the version at which its memory was last given back; 0 if it never was.
    dropped: Vec<u64>,
}

impl Regions {
    /// Adds memory and returns its id.
    pub fn add(&self, start: *mut u8, len: usize) -> u64 {
        let mut ranges = write(&self.ranges);
        let id = self.version.fetch_add(1, Ordering::AcqRel) + 1;
        ranges.insert(start as usize, (len, id));
        id
    }

    /// Removes memory that is about to be unmapped. Engines unregister it before they next use any region.
    pub fn remove(&self, start: *mut u8) {
        let mut ranges = write(&self.ranges);
        self.version.fetch_add(1, Ordering::AcqRel);
        ranges.remove(&(start as usize));
    }

    /// Adds a slab. Each engine registers a chunk once pieces in that chunk add up to its length. Then its pages have
    /// real memory: registering untouched memory costs the kernel several times as much as touching it. A buffer across
    /// two chunks counts as not registered.
    ///
    /// # Panics
    /// When `chunk_bytes` is not a power of two.
    pub fn add_slab(&self, start: *mut u8, len: usize, chunk_bytes: usize) {
        assert!(chunk_bytes.is_power_of_two(), "chunks of {chunk_bytes} bytes");
        let mut slabs = write(&self.slabs);
        let id = self.version.fetch_add(1, Ordering::AcqRel) + 1;
        let addresses = start as usize..start as usize + len;
        let dropped = vec![0; len.div_ceil(chunk_bytes)];
        slabs.push(RegisteredSlab {
            id,
            used_end: addresses.end,
            addresses,
            chunk_shift: chunk_bytes.trailing_zeros(),
            dropped,
        });
    }

    /// Notes how much of the slab at `start` is in use, in bytes. Chunks that are registered stay as they are. A buffer
    /// beyond the registered end of a chunk counts as not registered.
    pub fn use_slab(&self, start: *mut u8, len: usize) {
        let mut slabs = write(&self.slabs);
        self.version.fetch_add(1, Ordering::AcqRel);
        for slab in slabs.iter_mut().filter(|slab| slab.addresses.start == start as usize) {
            slab.used_end = slab.addresses.end.min(start as usize + len);
        }
    }

    /// Makes engines unregister the chunks that touch a range of the slab at `start`, before they next use any region.
    /// `range` is in bytes from `start`. Rule 1 holds for the chunks as for removed memory: no piece in them is
    /// unfinished.
    pub fn drop_chunks(&self, start: *mut u8, range: Range<usize>) {
        let mut slabs = write(&self.slabs);
        let version = self.version.fetch_add(1, Ordering::AcqRel) + 1;
        for slab in slabs.iter_mut().filter(|slab| slab.addresses.start == start as usize) {
            let chunks = range.start >> slab.chunk_shift..range.end.div_ceil(1 << slab.chunk_shift);
            slab.dropped[chunks].fill(version);
        }
    }

    /// Removes a slab that is about to be unmapped, as [`Regions::remove`] does.
    pub fn remove_slab(&self, start: *mut u8) {
        let mut slabs = write(&self.slabs);
        self.version.fetch_add(1, Ordering::AcqRel);
        slabs.retain(|slab| slab.addresses.start != start as usize);
    }

    /// The id and the range of the region that holds all of the memory.
    fn find(&self, start: *const u8, len: usize) -> Option<(u64, usize, usize)> {
        let ranges = read(&self.ranges);
        let (&at, &(size, id)) = ranges.range(..=start as usize).next_back()?;
        (start as usize + len <= at + size).then_some((id, at, size))
    }

    /// The ids of all regions.
    fn ids(&self) -> HashSet<u64> {
        read(&self.ranges).values().map(|&(_, id)| id).collect()
    }
}

/// A range of memory: its address, and its length in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Within(*const u8, usize);

impl Within {
    /// No memory but slabs.
    pub const SLABS: Within = Within(std::ptr::null(), 0);

    /// `len` bytes from `start` on.
    pub fn new(start: *const u8, len: usize) -> Within {
        Within(start, len)
    }

    /// The address `offset` bytes on.
    pub fn at(self, offset: usize) -> *mut u8 {
        self.0.wrapping_add(offset).cast_mut()
    }

    /// The same as a pair.
    pub fn span(self) -> (*const u8, usize) {
        (self.0, self.1)
    }
}

// SAFETY: it is an address range to look up, and is never read through.
unsafe impl Send for Within {}
// SAFETY: as above.
unsafe impl Sync for Within {}

/// What one engine knows of an array's regions.
#[derive(Debug)]
pub struct Known {
    /// The engine's number for the memory of the batch that runs now.
    current: u16,
    version: u64,
    /// By address. So a batch in a region that the engine knows takes no lock.
    regions: Vec<KnownRegion>,
    slabs: Vec<KnownSlab>,
}

#[derive(Debug)]
struct KnownRegion {
    id: u64,
    start: usize,
    end: usize,
    /// The engine's number; [`NO_REGION`] where the engine refused it.
    number: u16,
}

#[derive(Debug)]
struct KnownSlab {
    slab: RegisteredSlab,
    chunks: Vec<Chunk>,
}

/// The state of a chunk in an engine.
#[derive(Clone, Copy, Debug)]
enum Chunk {
    /// It is not registered. So many bytes of pieces have lain in it.
    Used(usize),
    /// The engine's number for it, and the address up to which it is registered. The number is [`NO_REGION`] where the
    /// engine refused it.
    Registered(u16, usize),
}

impl Chunk {
    fn number(self) -> Option<u16> {
        match self {
            Chunk::Used(_) => None,
            Chunk::Registered(number, _) => Some(number),
        }
    }
}

impl Default for Known {
    fn default() -> Self {
        Known { current: NO_REGION, version: 0, regions: Vec::new(), slabs: Vec::new() }
    }
}

impl Known {
    /// Begins a batch. `span` is memory that holds the memory of all its pieces but those in slabs.
    pub fn begin(&mut self, regions: &Regions, engine: &mut dyn Engine, span: (*const u8, usize)) {
        if span.0.is_null() {
            // There is nothing to look up.
            self.keep_up(regions, engine);
            self.current = NO_REGION;
            return;
        }
        self.current = self.number(regions, engine, span.0, span.1);
    }

    /// Gives memory of the batch, `len` bytes, its number.
    #[inline]
    pub fn fill_in(&mut self, regions: &Regions, engine: &mut dyn Engine, memory: &mut Memory, len: u32) {
        if let Memory::One { buf, region } = memory {
            self.keep_up(regions, engine);
            *region = self.current;
            if !self.slabs.is_empty() {
                self.fill_in_slab(engine, *buf as usize, len as usize, region);
            }
        }
    }

    /// Changes `region` where the memory lies in a slab.
    fn fill_in_slab(&mut self, engine: &mut dyn Engine, start: usize, len: usize, region: &mut u16) {
        let Some(known) = self.slabs.iter_mut().find(|known| known.slab.addresses.contains(&start)) else { return };
        let Range { start: first, end } = known.slab.addresses;
        let chunk = (start - first) >> known.slab.chunk_shift;
        let at = first + (chunk << known.slab.chunk_shift);
        let chunk_end = at.saturating_add(1 << known.slab.chunk_shift).min(end);
        if len > chunk_end - start {
            *region = NO_REGION;
            return;
        }
        let used_end = chunk_end.min(known.slab.used_end);
        let (number, registered_end) = match &mut known.chunks[chunk] {
            Chunk::Registered(number, end) => (*number, *end),
            // Not in use any more, or not yet.
            Chunk::Used(_) if used_end < start + len => (NO_REGION, chunk_end),
            Chunk::Used(bytes) if *bytes < used_end - at => {
                *bytes += len;
                (NO_REGION, chunk_end)
            }
            Chunk::Used(_) => {
                // SAFETY: a slab is mapped until its owner has called `Regions::remove_slab`, which is after the end of
                // this piece (rule 1). After that the engine still holds it for a while, as in `number`.
                let number = unsafe { engine.register(at as *mut u8, used_end - at) }.unwrap_or(NO_REGION);
                known.chunks[chunk] = Chunk::Registered(number, used_end);
                (number, used_end)
            }
        };
        *region = if start + len <= registered_end { number } else { NO_REGION };
    }

    /// The engine's number for memory, registering it at first use.
    fn number(&mut self, regions: &Regions, engine: &mut dyn Engine, start: *const u8, len: usize) -> u16 {
        self.keep_up(regions, engine);
        if self.version == 0 {
            return NO_REGION;
        }
        let after = self.regions.partition_point(|known| known.start <= start as usize);
        if let Some(known) = after.checked_sub(1).map(|last| &self.regions[last])
            && start as usize + len <= known.end
        {
            return known.number;
        }
        let Some((id, at, size)) = regions.find(start, len) else { return NO_REGION };
        // SAFETY: a region is mapped until its owner has called `Regions::remove` (the owner's contract). After that
        // the engine still holds it for a while, but the kernel has its own reference to the pages. No request names
        // the region again, because the version has changed.
        let number = unsafe { engine.register(at as *mut u8, size) }.unwrap_or(NO_REGION);
        // No other known region begins between `at` and `start`: ranges do not overlap.
        self.regions.insert(after, KnownRegion { id, start: at, end: at + size, number });
        number
    }

    /// Keeps rule 2. Acquire: pairs with the AcqRel of every change in `Regions`.
    #[inline]
    fn keep_up(&mut self, regions: &Regions, engine: &mut dyn Engine) {
        let version = regions.version.load(Ordering::Acquire);
        if version != self.version {
            self.catch_up(regions, engine);
            self.version = version;
        }
    }

    /// Unregisters removed memory, and takes over new slabs.
    #[cold]
    fn catch_up(&mut self, regions: &Regions, engine: &mut dyn Engine) {
        let mut unregister = |number: u16| {
            if number != NO_REGION {
                engine.unregister(number);
            }
        };
        let ids = regions.ids();
        self.regions.retain(|known| {
            let stays = ids.contains(&known.id);
            if !stays {
                unregister(known.number);
            }
            stays
        });
        let slabs = read(&regions.slabs);
        self.slabs.retain(|known| {
            let stays = slabs.iter().any(|slab| slab.id == known.slab.id);
            if !stays {
                known.chunks.iter().filter_map(|chunk| chunk.number()).for_each(&mut unregister);
            }
            stays
        });
        for slab in slabs.iter() {
            if let Some(known) = self.slabs.iter_mut().find(|known| known.slab.id == slab.id) {
                for (chunk, (now, before)) in slab.dropped.iter().zip(&known.slab.dropped).enumerate() {
                    if now != before {
                        let before = std::mem::replace(&mut known.chunks[chunk], Chunk::Used(0));
                        before.number().into_iter().for_each(&mut unregister);
                    }
                }
                known.slab = slab.clone();
            } else {
                let chunks = slab.addresses.len().div_ceil(1 << slab.chunk_shift);
                self.slabs.push(KnownSlab { slab: slab.clone(), chunks: vec![Chunk::Used(0); chunks] });
            }
        }
    }
}

#[cfg(all(test, not(iomill_models)))]
mod tests;

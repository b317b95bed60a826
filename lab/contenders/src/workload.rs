//! The work of every contender: operations and their offsets.
//!
//! Goals: drawing a place costs two multiplications and no allocation, so that the loop measures only the kernel's
//! work. Non-goals: skewed access (`draw` and the replay of traces have it).

use std::fmt;

use iomill::{Error, Result};

use crate::pattern::{PAGE_BYTES, Rng, mix};
use crate::task::Task;
use iomill_cli::human;

/// The order of places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Uniformly random blocks: first a random drive, then a random block on it.
    Random,
    /// Ascending, drive after drive. Every thread has a share of its own of each part.
    Sequential,
}

/// The description of the work, the same for every contender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workload {
    /// The order of places.
    pub order: Order,
    /// Bytes per operation: a whole number of pages.
    pub block_bytes: u32,
    /// Percentage of reads among the operations, 0 to 100.
    pub read_percent: u8,
    /// Operations in flight per drive and thread, for contenders with such a setting.
    pub depth: u32,
}

impl Workload {
    /// Random reads of single pages, 32 in flight per drive.
    pub const RANDOM_READ: Workload =
        Workload { order: Order::Random, block_bytes: PAGE_BYTES as u32, read_percent: 100, depth: 32 };

    /// Whether some operations are writes.
    pub fn writes(&self) -> bool {
        self.read_percent < 100
    }
}

impl Task for Workload {
    fn check(&self) -> Result<()> {
        if self.block_bytes == 0 || !(self.block_bytes as usize).is_multiple_of(PAGE_BYTES) {
            let what = format!("a block size of {}", self.block_bytes);
            return Err(Error::invalid(what, "give a multiple of 4096: the unit of direct I/O"));
        }
        if self.block_bytes > 16 << 20 {
            return Err(Error::invalid(format!("block of {} bytes", self.block_bytes), "give at most 16 MiB"));
        }
        if self.read_percent > 100 {
            return Err(Error::invalid(format!("{} percent of reads", self.read_percent), "give 0 to 100"));
        }
        if self.depth == 0 || self.depth > 1024 {
            return Err(Error::invalid(format!("depth {}", self.depth), "give 1 to 1024 per drive"));
        }
        Ok(())
    }
}

impl fmt::Display for Workload {
    /// A stable name, such as `random-read-4KiB` or `random-70%read-4KiB`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let order = match self.order {
            Order::Random => "random",
            Order::Sequential => "sequential",
        };
        let block = human::size(u64::from(self.block_bytes)).replace(' ', "");
        match self.read_percent {
            100 => write!(f, "{order}-read-{block}"),
            0 => write!(f, "{order}-write-{block}"),
            percent => write!(f, "{order}-{percent}%read-{block}"),
        }
    }
}

/// One operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Index of the part.
    pub part: u32,
    /// Whether to write instead of to read.
    pub write: bool,
    /// Offset in the part, in bytes.
    pub offset: u64,
}

/// One thread's sequence of places.
#[derive(Debug)]
pub struct Places {
    rng: Rng,
    walk: Walk,
    /// Blocks per part. There is at least one part, and each has at least one block.
    blocks: Box<[u64]>,
    block_bytes: u64,
    read_percent: u64,
}

#[derive(Debug)]
enum Walk {
    Random,
    /// Every block once, in a shuffled order, for `Places::once`.
    Shuffled {
        next: u64,
        step: u64,
        total: u64,
    },
    Sequential {
        /// Counts operations, drive after drive.
        next: u64,
        /// This thread's share of the longest part: blocks `first..first + count`.
        first: u64,
        count: u64,
        wrap: bool,
    },
}

impl Places {
    /// The endless sequence of places of thread `thread` of `threads`.
    pub fn new(workload: &Workload, part_lens: &[u64], thread: usize, threads: usize) -> Result<Places> {
        Places::build(workload, part_lens, thread, threads, true)
    }

    /// The same, but each block occurs at most once over all threads. So no read finds a block that an earlier read has
    /// left in the page cache.
    pub fn once(workload: &Workload, part_lens: &[u64], thread: usize, threads: usize) -> Result<Places> {
        Places::build(workload, part_lens, thread, threads, false)
    }

    fn build(w: &Workload, part_lens: &[u64], thread: usize, threads: usize, endless: bool) -> Result<Places> {
        w.check()?;
        let block_bytes = u64::from(w.block_bytes);
        let blocks: Box<[u64]> = part_lens.iter().map(|len| len / block_bytes).collect();
        if blocks.is_empty() || blocks.contains(&0) {
            let why = format!("each must hold at least one block of {}; give a larger file", human::size(block_bytes));
            return Err(Error::invalid("the parts to be measured", why));
        }
        let (thread, threads) = (thread as u64, threads.max(1) as u64);
        let walk = match w.order {
            Order::Random if endless => Walk::Random,
            Order::Random => Walk::Shuffled { next: thread, step: threads, total: blocks.iter().sum() },
            Order::Sequential => {
                let longest = blocks.iter().copied().max().unwrap_or(1);
                let first = longest * thread / threads;
                let count = (longest * (thread + 1) / threads - first).max(1);
                Walk::Sequential { next: 0, first, count, wrap: endless }
            }
        };
        let rng = Rng::new(mix(thread) ^ u64::from(std::process::id()));
        Ok(Places { rng, walk, blocks, block_bytes, read_percent: u64::from(w.read_percent) })
    }

    /// The next place. `None` at the end of a sequence that has every block once.
    #[inline(always)]
    pub fn draw(&mut self) -> Option<Place> {
        let (part, block) = match &mut self.walk {
            Walk::Random => {
                // A random fraction times n gives the choice before the point, and a new fraction after it.
                let wide = u128::from(self.rng.draw()) * self.blocks.len() as u128;
                let part = (wide >> 64) as usize;
                (part, ((u128::from(wide as u64) * u128::from(self.blocks[part])) >> 64) as u64)
            }
            walk => next_in_order(walk, &self.blocks)?,
        };
        let write = match self.read_percent {
            100 => false,
            0 => true,
            percent => (u128::from(self.rng.draw()) * 100) >> 64 >= u128::from(percent),
        };
        Some(Place { part: part as u32, write, offset: block * self.block_bytes })
    }
}

fn next_in_order(walk: &mut Walk, blocks: &[u64]) -> Option<(usize, u64)> {
    match walk {
        Walk::Random => None,
        Walk::Shuffled { next, step, total } => {
            if *next >= *total {
                return None;
            }
            let mut block = shuffled(*next, *total);
            *next += *step;
            for (part, &count) in blocks.iter().enumerate() {
                if block < count {
                    return Some((part, block));
                }
                block -= count;
            }
            None
        }
        Walk::Sequential { next, first, count, wrap } => {
            let drives = blocks.len() as u64;
            if *next >= *count * drives {
                if !*wrap {
                    return None;
                }
                *next = 0;
            }
            let part = (*next % drives) as usize;
            let block = *first + *next / drives;
            *next += 1;
            // A part shorter than the longest one begins again at its first block.
            Some((part, block % blocks[part]))
        }
    }
}

/// A permutation of `0..total`: applies a bijection on the next power of two until the result is below `total`.
pub(crate) fn shuffled(index: u64, total: u64) -> u64 {
    let bits = (64 - total.saturating_sub(1).leading_zeros()).max(2);
    let mask = u64::MAX >> (64 - bits);
    let mut value = index;
    loop {
        for factor in [0x9e37_79b9_7f4a_7c15_u64, 0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb] {
            value = value.wrapping_mul(factor) & mask;
            value ^= value >> (bits / 2);
        }
        if value < total {
            return value;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{HashMap, HashSet};

    #[test]
    fn random_places_are_uniform_over_drives_and_inside_parts() {
        let lens = [64 * 4096, 128 * 4096 + 100, 64 * 4096];
        let mut places = Places::new(&Workload::RANDOM_READ, &lens, 0, 1).unwrap();
        let mut seen: HashMap<(u32, u64), u32> = HashMap::new();
        let mut per_part = [0u32; 3];
        for _ in 0..60_000 {
            let place = places.draw().unwrap();
            assert!(!place.write && place.offset.is_multiple_of(4096));
            assert!(place.offset + 4096 <= lens[place.part as usize]);
            per_part[place.part as usize] += 1;
            *seen.entry((place.part, place.offset)).or_default() += 1;
        }
        assert_eq!(seen.len(), 64 + 128 + 64, "every block is drawn");
        assert!(per_part.iter().all(|&count| (19_000..21_000).contains(&count)), "{per_part:?}");
    }

    #[test]
    fn once_visits_every_block_once_over_all_threads() {
        for order in [Order::Random, Order::Sequential] {
            let workload = Workload { order, ..Workload::RANDOM_READ };
            let lens = [50 * 4096, 50 * 4096, 50 * 4096];
            let mut seen = HashSet::new();
            let mut drawn = Vec::new();
            for thread in 0..3 {
                let mut places = Places::once(&workload, &lens, thread, 3).unwrap();
                while let Some(place) = places.draw() {
                    assert!(seen.insert((place.part, place.offset)), "{order:?}: {place:?} twice");
                    drawn.push(place.offset);
                }
            }
            assert_eq!(seen.len(), 150, "{order:?}");
            let ascending = drawn.windows(2).filter(|pair| pair[0] <= pair[1]).count();
            assert_eq!(order == Order::Random, ascending < 120, "{order:?}: {ascending} steps ascend");
        }
    }

    #[test]
    fn sequential_goes_round_and_parts_may_differ() {
        let workload = Workload { order: Order::Sequential, ..Workload::RANDOM_READ };
        let mut places = Places::new(&workload, &[2 * 4096, 4096], 0, 1).unwrap();
        let drawn: Vec<(u32, u64)> = (0..5).filter_map(|_| places.draw()).map(|p| (p.part, p.offset)).collect();
        assert_eq!(drawn, [(0, 0), (1, 0), (0, 4096), (1, 0), (0, 0)]);
    }

    #[test]
    fn the_share_of_reads_is_kept() {
        for percent in [0, 70, 100] {
            let workload = Workload { read_percent: percent, ..Workload::RANDOM_READ };
            let mut places = Places::new(&workload, &[1 << 20], 0, 1).unwrap();
            let reads = (0..10_000).filter_map(|_| places.draw()).filter(|place| !place.write).count();
            assert!(reads.abs_diff(usize::from(percent) * 100) < 300, "{percent}: {reads}");
        }
    }

    #[test]
    fn names_are_stable_and_nonsense_is_refused() {
        assert_eq!(Workload::RANDOM_READ.to_string(), "random-read-4KiB");
        let mixed = Workload { read_percent: 70, block_bytes: 128 << 10, ..Workload::RANDOM_READ };
        assert_eq!(mixed.to_string(), "random-70%read-128KiB");
        for bad in [
            Workload { block_bytes: 0, ..mixed },
            Workload { block_bytes: 512, ..mixed },
            Workload { block_bytes: 17 << 20, ..mixed },
            Workload { read_percent: 101, ..mixed },
            Workload { depth: 0, ..mixed },
        ] {
            assert!(bad.check().is_err(), "{bad:?}");
        }
        assert!(Places::new(&Workload::RANDOM_READ, &[4095], 0, 1).is_err());
        assert!(Places::new(&Workload::RANDOM_READ, &[], 0, 1).is_err());
    }
}

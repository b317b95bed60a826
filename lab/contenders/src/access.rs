//! Accesses to bytes of which only a part fits in memory.
//!
//! Goals: contenders in this process and contenders in a process of their own use the same description.

use std::fmt;

use iomill::{Error, Result};
use serde::{Deserialize, Serialize};

use crate::draw::{Choice, Draws, ZIPF_EXPONENT};
use crate::pattern::PAGE_BYTES;
use crate::task::{Finds, Task};
use iomill_cli::human;

/// Memory beyond its cache that a contender with limited memory gets, and that the kernel may use for the cache.
const BESIDES_BYTES: u64 = 6 << 20;

/// The description of the accesses, the same for every contender.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Access {
    /// The choice of slots.
    pub choice: Choice,
    /// Distance between slots: a divisor of a page, so that no slot crosses pages.
    pub slot_bytes: u32,
    /// Bytes per operation, from the start of a slot.
    pub op_bytes: u32,
    /// Percentage of reads among the operations; the others write.
    pub read_percent: u8,
    /// Length of the accessed file, in bytes.
    pub len_bytes: u64,
    /// Memory for the cache, in bytes.
    pub cache_bytes: u64,
    /// Operations per call, for contenders that take many in a call.
    pub batch: u32,
}

impl Access {
    /// Reads of pages at random.
    pub fn page_reads(len_bytes: u64, cache_bytes: u64, batch: u32) -> Access {
        let page = PAGE_BYTES as u32;
        let (choice, slot_bytes, op_bytes) = (Choice::Uniform, page, page);
        Access { choice, slot_bytes, op_bytes, read_percent: 100, len_bytes, cache_bytes, batch }
    }

    /// Whether some operations are writes.
    pub fn writes(&self) -> bool {
        self.read_percent < 100
    }

    /// The operations of one thread, on `slots` slots.
    pub fn draws(&self, slots: u64, thread: usize, threads: usize) -> Draws {
        Draws::new(self.choice, slots, self.cache_bytes / u64::from(self.slot_bytes), thread, threads)
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.choice {
            Choice::Uniform => write!(f, "random")?,
            Choice::Zipf => write!(f, "zipf{ZIPF_EXPONENT}")?,
            Choice::Hits(percent) => write!(f, "{percent}%hit")?,
            Choice::Sequential => write!(f, "sequential")?,
        }
        let size = human::size(self.op_bytes.into()).replace(' ', "");
        match self.read_percent {
            100 => write!(f, "-read-{size}"),
            percent => write!(f, "-{percent}%read-{size}"),
        }
    }
}

impl Task for Access {
    fn check(&self) -> Result<()> {
        let page = PAGE_BYTES as u32;
        let divides = |slot: u32| slot > 0 && page.is_multiple_of(slot);
        if !divides(self.slot_bytes) || self.op_bytes == 0 || self.op_bytes > self.slot_bytes {
            let what = format!("{} bytes in every {}", self.op_bytes, self.slot_bytes);
            return Err(Error::invalid(what, "give slots that divide a page, and operations that fit in a slot"));
        }
        if self.read_percent > 100 || matches!(self.choice, Choice::Hits(101..)) {
            return Err(Error::invalid("a share above 100 percent", "give 0 to 100"));
        }
        if self.cache_bytes < 1 << 20 {
            let what = format!("a cache of {}", human::size(self.cache_bytes));
            return Err(Error::invalid(what, "give at least 1MiB"));
        }
        if self.batch == 0 || self.batch > 1 << 16 {
            return Err(Error::invalid(format!("a batch of {} operations", self.batch), "give 1 to 65536"));
        }
        Ok(())
    }

    fn finds(&self) -> Option<Finds> {
        let held = self.cache_bytes as f64 / self.len_bytes.max(1) as f64;
        // The memory limit includes this memory of the program itself. It may hold a few more pages.
        let most = (self.cache_bytes + BESIDES_BYTES) as f64 / self.len_bytes.max(1) as f64;
        let share = match self.choice {
            // A page can be in one set only, and a few sets may be too small for their pages.
            Choice::Uniform if held >= 1.0 => 0.95..=1.0,
            Choice::Uniform => 0.6 * held..=1.1 * most,
            // The popular slots are among those in memory.
            Choice::Zipf => 0.6 * held..=1.0,
            Choice::Hits(percent) => f64::from(percent) / 100.0 - 0.1..=f64::from(percent) / 100.0 + 0.1,
            // Read-ahead may read more pages than the slice requests.
            Choice::Sequential => f64::NEG_INFINITY..=1.1 * most,
        };
        Some(Finds { miss_bytes: PAGE_BYTES as u64, share })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_stable_and_nonsense_is_refused() {
        let good = Access {
            choice: Choice::Uniform,
            slot_bytes: 4096,
            op_bytes: 4096,
            read_percent: 100,
            len_bytes: 8 << 20,
            cache_bytes: 1 << 20,
            batch: 1,
        };
        good.check().unwrap();
        assert_eq!(good.to_string(), "random-read-4KiB");
        assert_eq!(Access { choice: Choice::Sequential, ..good }.to_string(), "sequential-read-4KiB");
        let values = Access { choice: Choice::Zipf, slot_bytes: 1024, op_bytes: 1000, read_percent: 95, ..good };
        assert_eq!(values.to_string(), "zipf0.99-95%read-1000B");
        assert_eq!(Access { choice: Choice::Hits(80), op_bytes: 1000, ..good }.to_string(), "80%hit-read-1000B");
        for bad in [
            Access { slot_bytes: 0, ..good },
            Access { slot_bytes: 1000, op_bytes: 1000, ..good },
            Access { slot_bytes: 8192, ..good },
            Access { op_bytes: 4097, ..good },
            Access { op_bytes: 0, ..good },
            Access { read_percent: 101, ..good },
            Access { choice: Choice::Hits(101), ..good },
            Access { cache_bytes: 4096, ..good },
            Access { batch: 0, ..good },
        ] {
            assert!(bad.check().is_err(), "{bad:?}");
        }
    }
}

//! iomill with its cache, compared with other caches: warm reads, accesses to more data than fit, small writes.
//!
//! Goals: the calls that a user would write. Non-goals: calls that bypass the cache ([`crate::iomill`]).

mod accesses;
mod warm;
mod writes;

use std::fmt;
use std::path::PathBuf;
use std::sync::OnceLock;

use iomill::{Array, ArrayOptions, Counters, File, Result};

use crate::arena::Arena;
use crate::pattern::PAGE_BYTES;
use iomill_cli::human;

pub use accesses::Accesses;
pub use warm::{Whole, warm};
pub use writes::WriteAt;

/// The measured file of an array, and how it is opened.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    drives: Vec<PathBuf>,
    file_name: String,
    options: ArrayOptions,
}

impl Place {
    /// The file of an arena that has been filled.
    pub(crate) fn new(arena: &Arena, options: &ArrayOptions) -> Place {
        Place { drives: arena.drives().to_owned(), file_name: arena.file_name().to_owned(), options: options.clone() }
    }

    /// Opens the file with an empty cache of that size.
    fn open(&self, cache_bytes: u64, writes: bool) -> Result<Opened> {
        let options = self.options.clone().cache_bytes(cache_bytes).read_only(!writes);
        let array = options.open_at(&self.drives)?;
        let file = array.open_file(&self.file_name)?;
        Ok(Opened { array, file })
    }
}

/// An array that is open for a measurement, and its measured file.
#[derive(Clone, Debug)]
struct Opened {
    array: Array,
    file: File,
}

impl Opened {
    fn close(self) -> Result<()> {
        self.file.close()?;
        self.array.close()
    }
}

/// The counters at the moment when the threads of a slice started to work.
#[derive(Debug, Default)]
struct CountersAtStart(OnceLock<Counters>);

impl CountersAtStart {
    /// Each thread calls this when it starts. The first call takes the counters.
    fn begin(&self, array: &Array) {
        self.0.get_or_init(|| array.counters());
    }

    /// The share of `room_bytes` that cached pages took at the start.
    fn filled(&self, room_bytes: u64) -> Option<f64> {
        let before = self.0.get()?;
        let pages = before.fills.saturating_sub(before.evictions);
        Some((pages * PAGE_BYTES as u64) as f64 / room_bytes.max(1) as f64)
    }

    /// The counts since the start.
    fn end(&self, array: &Array) -> Counters {
        let now = array.counters();
        self.0.get().map_or(now.clone(), |before| now.since(before))
    }
}

/// Pages found and not found in the cache over all timed slices of a workload.
#[derive(Clone, Copy, Debug, Default)]
struct Hits {
    hits: u64,
    misses: u64,
}

impl Hits {
    fn add(&mut self, counted: &Counters) {
        self.hits += counted.hits;
        self.misses += counted.misses;
    }

    /// A note for the reader of the figures.
    fn note(self, cache_bytes: u64) -> String {
        format!("a cache of {}, in which {self} of the pages asked for were found", human::size(cache_bytes))
    }
}

impl fmt::Display for Hits {
    /// Rounds down, so that it never shows 100% after a miss.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = (self.hits + self.misses).max(1) as f64;
        write!(f, "{:.4}%", (self.hits as f64 / all * 1e6).floor() / 1e4)
    }
}

/// Bytes that the drives delivered.
fn fetched_bytes(counted: &Counters) -> u64 {
    counted.drives.iter().map(|drive| drive.read_bytes).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hits_are_not_rounded_up() {
        assert_eq!(Hits { hits: 9_999_999, misses: 1 }.to_string(), "99.9999%");
        assert_eq!(Hits { hits: 5, misses: 0 }.to_string(), "100.0000%");
        assert_eq!(Hits { hits: 1, misses: 2 }.to_string(), "33.3333%");
    }
}

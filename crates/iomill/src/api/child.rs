//! What a forked child needs to open in the place of its parent's handles: [`Again`], and its options. Files, arrays and
//! runtimes do so in their methods named `here` and `in_child`.
//!
//! Goals: what is open for reading only stays usable in a child that a fork made, as workers of a data loader are. Non-goals: anything
//! that is open for writing, because its parent writes it. All calls on that are errors in a child ([`Error::Forked`]).
//!
//! The child opens files again by their paths, arrays by their drives, and makes a runtime for each of its parent's. It touches no lock of
//! the parent's handles (rules of the fork, `exec`): what it opens is in slots that each process fills for itself.

use std::path::Path;
use std::sync::OnceLock;

use super::options::ArrayOptions;
use crate::error::Result;
use crate::sys::cpu;
use crate::sys::limits::{default_cache_bytes, memory_limit_bytes};
use crate::sys::process::PerProcess;

/// A child's cache is not made smaller than this.
const LEAST_BYTES: u64 = 1 << 20;

/// What each process opens for itself.
pub(super) type Again<T> = PerProcess<OnceLock<T>>;

/// The value of a slot, which `open` makes first.
pub(super) fn of_process<T: Send + Sync>(slot: &Again<T>, open: impl FnOnce() -> Result<T>) -> Result<&T> {
    let slot = slot.get();
    match slot.get() {
        Some(there) => Ok(there),
        None => {
            let opened = open()?;
            // Another thread may have been first. Then its value counts.
            Ok(slot.get_or_init(|| opened))
        }
    }
}

impl ArrayOptions {
    /// The options of a child: a cache of the first size, divided by the CPUs, because that many workers are usual.
    pub(super) fn in_child(&self) -> ArrayOptions {
        let first = self.cache_bytes.unwrap_or_else(|| {
            // If the limit is unknown, there is no cache by default.
            default_cache_bytes(memory_limit_bytes(Path::new("/")).unwrap_or(0))
        });
        let cpus = cpu::allowed().map_or(1, |cpus| cpus.len().max(1)) as u64;
        let share = (first / cpus).max(first.min(LEAST_BYTES));
        // The parent's platform may have locks that its threads held at the fork.
        let mut cache = self.cache.clone();
        // A share of nothing is no cache, which cannot grow.
        cache.max_bytes = cache.max_bytes.filter(|_| share > 0);
        ArrayOptions { cache_bytes: Some(share), cache, platform: ArrayOptions::new().platform, ..self.clone() }
    }
}

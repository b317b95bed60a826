//! Handles of a forked child, opened in place of its parent's: [`Again`], and the options of a child. Files, arrays and
//! runtimes open them in their methods `here` and `in_child`.
//!
//! Goals: a handle that is open for reading only stays usable in a forked child, such as a worker of a data loader.
//! Non-goals: handles that are open for writing, because the parent writes. All calls on them are errors in a child
//! ([`Error::Forked`]).
//!
//! The child opens files again by their paths, arrays by their drives, and makes a runtime for each of its parent's. It
//! takes no lock of the parent's handles (rules of the fork, `exec`): its own handles are in slots that each process
//! fills for itself.

use std::path::Path;
use std::sync::OnceLock;

use super::options::ArrayOptions;
use crate::error::Result;
use crate::sys::cpu;
use crate::sys::limits::{default_cache_bytes, memory_limit_bytes};
use crate::sys::process::PerProcess;

/// A child's cache is not made smaller than this.
const LEAST_BYTES: u64 = 1 << 20;

/// A slot that each process fills for itself.
pub(super) type Again<T> = PerProcess<OnceLock<T>>;

/// The value of a slot. The first call makes it by `open`.
pub(super) fn of_process<T: Send + Sync>(slot: &Again<T>, open: impl FnOnce() -> Result<T>) -> Result<&T> {
    let slot = slot.get();
    match slot.get() {
        Some(there) => Ok(there),
        None => {
            let opened = open()?;
            // If another thread was first, its value is kept.
            Ok(slot.get_or_init(|| opened))
        }
    }
}

impl ArrayOptions {
    /// The options of a child. Its cache has the first size divided by the number of CPUs, the usual number of workers.
    pub(super) fn in_child(&self) -> ArrayOptions {
        let first = self.cache_bytes.unwrap_or_else(|| {
            // If the limit is unknown, there is no cache by default.
            default_cache_bytes(memory_limit_bytes(Path::new("/")).unwrap_or(0))
        });
        let cpus = cpu::allowed().map_or(1, |cpus| cpus.len().max(1)) as u64;
        let share = (first / cpus).max(first.min(LEAST_BYTES));
        // The parent's platform may have locks that its threads held at the fork.
        let mut cache = self.cache.clone();
        // A share of 0 bytes is no cache, and no cache cannot grow.
        cache.max_bytes = cache.max_bytes.filter(|_| share > 0);
        ArrayOptions { cache_bytes: Some(share), cache, platform: ArrayOptions::new().platform, ..self.clone() }
    }
}

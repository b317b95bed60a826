//! [`Counters`]: the work of a cache in this process. Non-goals: the work of other processes.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// The work of a cache in this process since it was opened.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Counters { $($(#[$doc])* pub $name: u64,)* }

        /// The counters themselves.
        #[derive(Debug, Default)]
        pub struct Tally { $(pub $name: AtomicU64,)* }

        impl Tally {
            pub fn now(&self) -> Counters {
                Counters { $($name: self.$name.load(Relaxed),)* }
            }
        }

        impl Counters {
            /// All counters, by their names.
            pub fn named(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name),)*]
            }

            /// The increase since an earlier state.
            pub fn since(&self, earlier: &Counters) -> Counters {
                Counters { $($name: self.$name.wrapping_sub(earlier.$name),)* }
            }
        }
    };
}

counters! {
    /// Pieces of granules that were read from the drives, or from iomill's page cache over them.
    hits,
    /// Pieces that were read from memory, because their granules waited to be written.
    hits_filling,
    /// Pieces of granules that another call or another process was fetching.
    hits_waited,
    /// Granules that no index had.
    misses_absent,
    /// Pieces with a page that does not fit its sum, or in a region that was emptied meanwhile. The page is torn,
    /// overwritten, foreign or rotten. The pieces were fetched.
    misses_wrong,
    /// Pieces that a drive could not read. They were fetched.
    misses_failed,
    /// Pieces that a drive did not return in time. They were fetched.
    misses_late,
    /// GETs to the origin, without those of whole objects that are not cached.
    gets,
    /// GETs that were sent a second time: see `Cost::hedge_after`.
    hedged,
    /// Requested heads.
    heads,
    /// Bytes that callers requested.
    bytes_asked,
    /// Bytes that GETs returned.
    bytes_fetched,
    /// Gets and gathers that bypassed the cache, because the object has no version, or because only the origin can
    /// serve the call.
    passed,
    /// Granules that were written to drives.
    filled,
    /// Granules that another process had written before.
    filled_before,
    /// Granules that were dropped: too many waited to be written, or a drive was full or failed writes.
    dropped,
    /// Granules that a full drive did not admit: see `Options::admit`.
    refused,
    /// Granules in use that were written again when their region was emptied.
    carried,
    /// Regions that were emptied.
    emptied,
    /// Calls that began again, because the object had changed.
    restarts,
}

/// Adds to a counter.
pub fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Relaxed);
}

//! [`Counters`]: what a cache has done in this process. Non-goals: what other processes did.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What a cache has done in this process since it was opened.
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
            /// All of them, by their names.
            pub fn named(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name),)*]
            }

            /// What was added since an earlier state.
            pub fn since(&self, earlier: &Counters) -> Counters {
                Counters { $($name: self.$name.wrapping_sub(earlier.$name),)* }
            }
        }
    };
}

counters! {
    /// Pieces of granules that came from the drives, or from iomill's page cache over them.
    hits,
    /// Pieces that came from memory, because their granules waited to be written.
    hits_filling,
    /// Pieces of granules that another call or another process was fetching.
    hits_waited,
    /// Granules that no index had.
    misses_absent,
    /// Pieces with a page that does not have its sum: torn, overwritten meanwhile, foreign or rotten, or in a region that was emptied meanwhile. They were fetched.
    misses_wrong,
    /// Pieces that a drive could not read. They were fetched.
    misses_failed,
    /// Pieces that a drive did not bring in time. They were fetched.
    misses_late,
    /// GETs to the origin, without those for whole objects that are not cached.
    gets,
    /// Those of them that were sent a second time: see `Cost::hedge_after`.
    hedged,
    /// Heads that were asked for.
    heads,
    /// Bytes that callers asked for.
    bytes_asked,
    /// Bytes that GETs brought.
    bytes_fetched,
    /// Gets and gathers that went past the cache, because their object has no version or the call asks for something of the origin's.
    passed,
    /// Granules that were written to drives.
    filled,
    /// Granules that another process had written before.
    filled_before,
    /// Granules that were dropped, because too many waited to be written, or because a drive was full or could not be written.
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

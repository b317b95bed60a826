//! Eviction policies: which page of a set is evicted for another.
//!
//! A policy is a small type that reads and writes a locked set's metadata. Each way has one byte that hits change
//! without the lock (`HitRule`), and one that only the policy changes (`aux`). Each set has a clock, a hand, 24 bits
//! of scratch, and the ghosts. Non-goals: the choice of the candidates. The caller evicts clean pages before dirty
//! ones, and keeps pages in use.

mod clock;
mod contenders;
mod duel;
mod lfu;
mod lru;
mod rule;
mod s3_fifo;
mod shadows;
mod sieve;
mod sketch;
mod stamps;
mod w_tinylfu;

use std::fmt;
use std::io;
use std::str::FromStr;

pub use self::rule::{Policy, Scale};
use crate::error::Error;

/// The most hits that GCLOCK counts.
const GCLOCK_HITS: u8 = 7;

/// The rule by which the cache chooses the page to evict: [`CacheOptions::policy`](crate::CacheOptions::policy). The
/// default suits most programs; a fixed rule is for measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum PolicyKind {
    /// Least recently used.
    Lru,
    /// Least frequently used, with ageing.
    Lfu,
    /// CLOCK: second chance.
    Clock,
    /// CLOCK with more than one chance.
    Gclock,
    /// SIEVE.
    Sieve,
    /// S3-FIFO.
    S3Fifo,
    /// W-TinyLFU.
    WTinyLfu,
    /// Always the best of five rules: LRU, ARC, W-TinyLFU with either of two windows, and holding on. The best is the
    /// one that misses least in shadows of some sets.
    #[default]
    Duel,
}

impl PolicyKind {
    const ALL: [PolicyKind; 8] = [
        PolicyKind::Lru,
        PolicyKind::Lfu,
        PolicyKind::Clock,
        PolicyKind::Gclock,
        PolicyKind::Sieve,
        PolicyKind::S3Fifo,
        PolicyKind::WTinyLfu,
        PolicyKind::Duel,
    ];

    /// All policies.
    pub fn all() -> impl ExactSizeIterator<Item = PolicyKind> + Clone {
        PolicyKind::ALL.into_iter()
    }

    /// The name, as users write it.
    pub fn name(self) -> &'static str {
        match self {
            PolicyKind::Lru => "lru",
            PolicyKind::Lfu => "lfu",
            PolicyKind::Clock => "clock",
            PolicyKind::Gclock => "gclock",
            PolicyKind::Sieve => "sieve",
            PolicyKind::S3Fifo => "s3-fifo",
            PolicyKind::WTinyLfu => "w-tinylfu",
            PolicyKind::Duel => "duel",
        }
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for PolicyKind {
    type Err = Error;

    fn from_str(name: &str) -> Result<PolicyKind, Error> {
        let found = PolicyKind::ALL.into_iter().find(|kind| kind.name() == name);
        found.ok_or_else(|| {
            let all: Vec<_> = PolicyKind::ALL.iter().map(|kind| kind.name()).collect();
            Error::invalid(format!("policy {name:?}"), format!("there are {}", all.join(", ")))
        })
    }
}

/// Makes a policy.
///
/// # Errors
/// The system has no memory for it.
pub fn new(kind: PolicyKind, scale: Scale) -> io::Result<Box<dyn Policy>> {
    Ok(match kind {
        PolicyKind::Lru => Box::new(lru::Lru),
        PolicyKind::Lfu => Box::new(lfu::Lfu),
        PolicyKind::Clock => Box::new(clock::ClockPolicy { most: 1 }),
        PolicyKind::Gclock => Box::new(clock::ClockPolicy { most: GCLOCK_HITS }),
        PolicyKind::Sieve => Box::new(sieve::Sieve),
        PolicyKind::S3Fifo => Box::new(s3_fifo::S3Fifo { hash_mask: scale.hash_mask }),
        PolicyKind::WTinyLfu => Box::new(w_tinylfu::WTinyLfu::new(scale)?),
        PolicyKind::Duel => Box::new(duel::Duel::new(scale)?),
    })
}

#[cfg(all(test, not(iomill_models)))]
mod tests;

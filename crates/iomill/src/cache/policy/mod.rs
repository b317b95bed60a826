//! Eviction policies: which page of a set makes room for another.
//!
//! A policy is a small type that reads and writes a locked set's metadata: per way one byte that hits change without the lock
//! ([`HitRule`]) and one that it alone changes (`aux`), a clock, a hand, 32 bits of scratch and the ghosts. It decides among
//! candidates only; that clean pages go before dirty ones, and that pages in use stay, is the caller's business.

mod clock;
mod duel;
mod lfu;
mod lru;
mod s3_fifo;
mod sieve;
mod sketch;
mod stamps;
mod w_tinylfu;

use std::fmt;
use std::io;
use std::str::FromStr;

use super::key::Hash;
use super::set::{HitRule, Locked};
use crate::error::Error;

/// Hits that GCLOCK notes.
const GCLOCK_HITS: u8 = 7;

/// A policy's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
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
    /// LRU or W-TinyLFU, whichever misses less in the sets that always follow it.
    #[default]
    Duel,
}

impl PolicyKind {
    /// All there are.
    pub const ALL: [PolicyKind; 8] = [
        PolicyKind::Lru,
        PolicyKind::Lfu,
        PolicyKind::Clock,
        PolicyKind::Gclock,
        PolicyKind::Sieve,
        PolicyKind::S3Fifo,
        PolicyKind::WTinyLfu,
        PolicyKind::Duel,
    ];

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

/// What a policy is made for.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// Sets at the beginning.
    pub sets: u32,
    /// How many of them are the first of linear hashing (`key::first_sets`).
    pub first_sets: u32,
    /// Ways of a set.
    pub ways: usize,
    /// The most pages there may ever be.
    pub pages_max: u64,
    /// Bits of hashes that count, as in the directory's plan.
    pub hash_mask: u64,
}

/// Decides what goes. All calls are made with the set locked, so a policy needs synchronisation of its own only for what sets
/// share.
pub trait Policy: fmt::Debug + Send + Sync {
    /// What hits note on their way.
    fn on_hit(&self) -> HitRule;

    /// Whether hits and misses are to be told to `feed`.
    fn wants_feed(&self) -> bool {
        false
    }

    /// Takes in the hashes of some of the pages that were asked for, hits and misses, in their order.
    fn feed(&self, _hashes: &[Hash]) {}

    /// There are so many sets now (the directory was resized; this need not be told at once).
    fn resized(&self, _sets: u32, _ways: usize) {}

    /// A page that is not in the set is asked for and about to be filled: called once per miss, before `victim` and `insert`.
    fn missed(&self, _index: u32, _set: &mut Locked<'_>, _incoming: Hash) {}

    /// The way that goes, among `candidates`: a mask, not empty, of ways that are present. Asking changes what is noted of others
    /// (a hand moves on), so it is asked when one is to go, once for each that does.
    fn victim(&self, index: u32, set: &mut Locked<'_>, candidates: u32, incoming: Hash) -> usize;

    /// The page of a way goes to make room (it is still there). Pages that are dropped otherwise, because their file is cut off or
    /// removed, are not told.
    fn evicted(&self, _index: u32, _set: &mut Locked<'_>, _way: usize) {}

    /// A page has come into a way; what the metadata of the way says is of the one before.
    fn inserted(&self, index: u32, set: &mut Locked<'_>, way: usize, incoming: Hash);

    /// A page moves from a way of one set to a way of another (the directory is resized): what is noted of it goes along. It is
    /// called in any order with the move itself; ghosts stay where they are.
    fn moved(&self, from: &mut Locked<'_>, from_way: usize, to: &mut Locked<'_>, to_way: usize) {
        let (meta, aux) = (from.meta(from_way), from.aux(from_way));
        to.set_meta(to_way, meta);
        to.set_aux(to_way, aux);
    }
}

/// Makes a policy. An error is the system's, that it has no memory.
pub fn new(kind: PolicyKind, scale: Scale) -> io::Result<Box<dyn Policy>> {
    Ok(match kind {
        PolicyKind::Lru => Box::new(lru::Lru),
        PolicyKind::Lfu => Box::new(lfu::Lfu),
        PolicyKind::Clock => Box::new(clock::Clock { most: 1 }),
        PolicyKind::Gclock => Box::new(clock::Clock { most: GCLOCK_HITS }),
        PolicyKind::Sieve => Box::new(sieve::Sieve),
        PolicyKind::S3Fifo => Box::new(s3_fifo::S3Fifo { hash_mask: scale.hash_mask }),
        PolicyKind::WTinyLfu => Box::new(w_tinylfu::WTinyLfu::new(scale)?),
        PolicyKind::Duel => Box::new(duel::Duel::new(scale)?),
    })
}

#[cfg(all(test, not(iomill_models)))]
mod tests;

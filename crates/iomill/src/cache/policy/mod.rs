//! Eviction policies: which page of a set makes room for another.
//!
//! A policy is a small type that reads and writes a locked set's metadata. Each way has one byte that hits change
//! without the lock ([`HitRule`]), and one that only the policy changes (`aux`). Each set has a clock, a hand, 32 bits
//! of scratch, and the ghosts. Non-goals: the caller chooses the candidates. It lets clean pages go before dirty ones,
//! and keeps pages in use.

mod clock;
mod contenders;
mod duel;
mod lfu;
mod lru;
mod s3_fifo;
mod shadows;
mod sieve;
mod sketch;
mod stamps;
mod w_tinylfu;

use std::fmt;
use std::io;
use std::str::FromStr;

use super::key::KeyHash;
use super::set::{HitRule, Locked};
use crate::error::Error;

/// Hits that GCLOCK notes.
const GCLOCK_HITS: u8 = 7;

/// A policy's name.
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
    /// LRU, ARC, W-TinyLFU with either of two windows, or holding on: the one that misses least in shadows of some sets.
    #[default]
    Duel,
}

impl PolicyKind {
    /// All policies.
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
    /// How many of them are the first sets of linear hashing (`key::first_sets`).
    pub first_sets: u32,
    /// Ways of a set.
    pub ways: usize,
    /// The largest number of pages that there may ever be.
    pub pages_max: u64,
    /// Bits of hashes that count, as in the directory's plan.
    pub hash_mask: u64,
}

/// Decides which page goes. All calls are made with the set locked. So a policy synchronises only what sets share.
pub trait Policy: fmt::Debug + Send + Sync {
    /// What a hit notes.
    fn on_hit(&self) -> HitRule;

    /// Whether the policy wants the hits and misses by `feed`.
    fn wants_feed(&self) -> bool {
        false
    }

    /// Takes in the hashes of some pages that were asked for, hits and misses, in their order.
    fn feed(&self, _hashes: &[KeyHash]) {}

    /// Learns of `hits` hits before those that `feed` brings next. Their pages are not known: the notes were overwritten.
    fn unseen(&self, _hits: u64) {}

    /// The directory was resized and has so many sets now. The call may come late.
    fn resized(&self, _sets: u32, _ways: usize) {}

    /// A page that is not in the set is asked for and about to be filled. Called once per miss, before `victim` and
    /// `insert`.
    fn missed(&self, _index: u32, _set: &mut Locked<'_>, _incoming: KeyHash) {}

    /// Whether the page about to be filled should go past its set, which is full. Called once per miss, before `victim`, where
    /// the caller needs the page for one read only.
    fn passes(&self, _index: u32, _set: &mut Locked<'_>, _incoming: KeyHash) -> bool {
        false
    }

    /// The way that goes, among `candidates`: a mask, not empty, of ways that are present. A call changes what is noted
    /// of other pages, for example because a hand moves on. So the cache calls it once for each page that goes.
    fn victim(&self, index: u32, set: &mut Locked<'_>, candidates: u32, incoming: KeyHash) -> usize;

    /// The page of a way goes to make room (it is still there). The policy does not learn of pages that are dropped
    /// because their file is cut off or removed.
    fn evicted(&self, _index: u32, _set: &mut Locked<'_>, _way: usize) {}

    /// A page has come into a way. The way's metadata still describes the page before it.
    fn inserted(&self, index: u32, set: &mut Locked<'_>, way: usize, incoming: KeyHash);

    /// A page moves from a way of one set to a way of another, because the directory is resized. What is noted of the
    /// page moves along. The call comes before or after the move itself. Ghosts stay where they are.
    fn moved(&self, from: &mut Locked<'_>, from_way: usize, to: &mut Locked<'_>, to_way: usize) {
        let (meta, aux) = (from.meta(from_way), from.aux(from_way));
        to.set_meta(to_way, meta);
        to.set_aux(to_way, aux);
    }
}

/// Makes a policy. The only error is that the system has no memory.
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

//! Eviction policies: which page of a set is evicted for another.
//!
//! A policy is a small type that reads and writes a locked set's metadata. Each way has one byte that hits change
//! without the lock ([`HitRule`]), and one that only the policy changes (`aux`). Each set has a clock, a hand, 24 bits
//! of scratch, and the ghosts. Non-goals: the choice of the candidates. The caller evicts clean pages before dirty
//! ones, and keeps pages in use.

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

/// The most hits that GCLOCK counts.
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

/// The size of the directory for which a policy is made.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// The number of sets at the beginning.
    pub sets: u32,
    /// The number of first sets of linear hashing (`key::first_sets`).
    pub first_sets: u32,
    /// Ways of a set.
    pub ways: usize,
    /// The most pages after a resize.
    pub pages_max: u64,
    /// The bits of a hash that are used, as in `DirectoryConfig::hash_mask`.
    pub hash_mask: u64,
}

/// Chooses the page to evict. Calls with a set are made under the set's lock, so a policy synchronises only the state
/// that sets share. `index` is the number of the set.
pub trait Policy: fmt::Debug + Send + Sync {
    /// How a hit changes the way's metadata.
    fn on_hit(&self) -> HitRule;

    /// Whether the policy wants `feed`.
    fn wants_feed(&self) -> bool {
        false
    }

    /// Takes in the hashes of pages that were asked for, hits and misses, in their order.
    fn feed(&self, _hashes: &[KeyHash]) {}

    /// Takes in a number of hits, older than those that `feed` brings next. Their pages are not known, because the
    /// notes were overwritten.
    fn unseen(&self, _hits: u64) {}

    /// Follows a resize of the directory to `sets` sets. The call may come late.
    fn resized(&self, _sets: u32, _ways: usize) {}

    /// Notes a miss: the page `incoming` is about to be filled. Called once per miss, before `victim` and `inserted`.
    fn missed(&self, _index: u32, _set: &mut Locked<'_>, _incoming: KeyHash) {}

    /// Whether the page about to be filled should go past its set, which is full. Called at most once per miss, before
    /// `victim`, if the caller needs the page for one read only.
    fn passes(&self, _index: u32, _set: &mut Locked<'_>, _incoming: KeyHash) -> bool {
        false
    }

    /// Chooses the way to evict among `candidates`, a mask of present ways that is not empty. A call may change the
    /// notes of other pages, for example by moving the hand. So it is made once for each page that is evicted, and
    /// again only if the choice was a dirty page.
    fn victim(&self, index: u32, set: &mut Locked<'_>, candidates: u32, incoming: KeyHash) -> usize;

    /// Notes that the page of a way is evicted; the way still has it. Not called for pages that are dropped because
    /// their file is cut or removed.
    fn evicted(&self, _index: u32, _set: &mut Locked<'_>, _way: usize) {}

    /// Notes a new page in a way. The way's metadata still describes the page before it.
    fn inserted(&self, index: u32, set: &mut Locked<'_>, way: usize, incoming: KeyHash);

    /// Moves the notes of a page from a way of one set to a way of another, during a resize. The call comes before or
    /// after the move of the page itself. Ghosts are not moved.
    fn moved(&self, from: &mut Locked<'_>, from_way: usize, to: &mut Locked<'_>, to_way: usize) {
        let (meta, aux) = (from.meta(from_way), from.aux(from_way));
        to.set_meta(to_way, meta);
        to.set_aux(to_way, aux);
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

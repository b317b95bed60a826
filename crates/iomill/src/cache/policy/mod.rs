//! Eviction policies: which page of a set makes room for another.
//!
//! A policy is a small type that reads and writes a locked set's metadata: per way one byte that hits change without the lock
//! ([`HitRule`]) and one that it alone changes (`aux`), a clock, a hand, 32 bits of scratch and the ghosts. It decides among
//! candidates only; that clean pages go before dirty ones, and that pages in use stay, is the caller's business.

mod lru;

use std::fmt;
use std::str::FromStr;

use super::key::Hash;
use super::set::{HitRule, Locked};
use crate::error::Error;

/// A policy's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum PolicyKind {
    /// Least recently used.
    #[default]
    Lru,
}

impl PolicyKind {
    /// All there are.
    pub const ALL: [PolicyKind; 1] = [PolicyKind::Lru];

    /// The name, as users write it.
    pub fn name(self) -> &'static str {
        match self {
            PolicyKind::Lru => "lru",
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
    /// Ways of a set.
    pub ways: usize,
    /// The most pages there may ever be.
    pub pages_max: u64,
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

    /// A page that is not in the set is asked for and about to be filled: called once per miss, before `victim` and `insert`.
    fn missed(&self, _index: u32, _set: &mut Locked<'_>, _incoming: Hash) {}

    /// The way that goes, among `candidates`: a mask, not empty, of ways that are present.
    fn victim(&self, index: u32, set: &mut Locked<'_>, candidates: u32, incoming: Hash) -> usize;

    /// The page of a way goes for good (it is still there).
    fn evicted(&self, _index: u32, _set: &mut Locked<'_>, _way: usize) {}

    /// A page has come into a way; what the metadata of the way says is of the one before.
    fn inserted(&self, index: u32, set: &mut Locked<'_>, way: usize, incoming: Hash);

    /// A page moves from a way of one set to a way of another (the directory is resized).
    fn moved(&self, from: &mut Locked<'_>, from_way: usize, to: &mut Locked<'_>, to_way: usize) {
        let (meta, aux) = (from.meta(from_way), from.aux(from_way));
        to.set_meta(to_way, meta);
        to.set_aux(to_way, aux);
    }

    /// The page of a way will not be needed soon: it is to go next.
    fn demote(&self, set: &mut Locked<'_>, way: usize) {
        set.set_meta(way, 0);
    }
}

/// Makes a policy.
pub fn new(kind: PolicyKind, _scale: Scale) -> Box<dyn Policy> {
    match kind {
        PolicyKind::Lru => Box::new(lru::Lru),
    }
}

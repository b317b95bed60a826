//! A duel of five contenders ([`Contender`]). All sets of the cache follow the one that misses least in shadow sets
//! (`shadows`).

use std::io;

use super::super::set::{HitRule, Locked};
use super::contenders::{Contender, Contenders, Names, holds};
use super::rule::{Policy, Scale};
use super::shadows::Shadows;
use super::stamps::Field;
use crate::cache::key::KeyHash;

/// The hits' byte has the stamp and the flag for "hit". `aux` has the segment. The scratch is the place of the next
/// ghost.
#[derive(Debug)]
pub struct Duel {
    contenders: Contenders,
    shadows: Shadows,
    names: Names,
}

impl Duel {
    /// The policy, with a sketch and shadows of its own.
    pub fn new(scale: Scale) -> io::Result<Duel> {
        let (contenders, shadows) = (Contenders::new(scale)?, Shadows::new(scale)?);
        Ok(Duel { contenders, shadows, names: Names::Pages(scale.hash_mask) })
    }
}

impl Policy for Duel {
    fn on_hit(&self) -> HitRule {
        HitRule::Stamp
    }

    fn wants_feed(&self) -> bool {
        true
    }

    fn feed(&self, hashes: &[KeyHash]) {
        for &hash in hashes {
            self.contenders.count(hash);
            self.shadows.access(&self.contenders, hash);
        }
    }

    fn unseen(&self, hits: u64) {
        self.shadows.unseen(&self.contenders, hits);
    }

    fn resized(&self, sets: u32, ways: usize) {
        self.contenders.resize(u64::from(sets) * ways as u64);
        self.shadows.resize(sets);
    }

    fn passes(&self, _index: u32, set: &mut Locked<'_>, incoming: KeyHash) -> bool {
        self.shadows.leader() == Contender::Holding && !self.contenders.passed_lately(incoming) && holds(set)
    }

    fn victim(&self, _index: u32, set: &mut Locked<'_>, candidates: u32, incoming: KeyHash) -> usize {
        self.contenders.victim(self.shadows.leader(), self.names, set, candidates, incoming)
    }

    fn evicted(&self, _index: u32, set: &mut Locked<'_>, way: usize) {
        self.contenders.evicted(self.names, set, way);
    }

    fn inserted(&self, _index: u32, set: &mut Locked<'_>, way: usize, incoming: KeyHash) {
        self.contenders.inserted(set, way, incoming);
    }

    fn moved(&self, from: &mut Locked<'_>, from_way: usize, to: &mut Locked<'_>, to_way: usize) {
        Field::Meta.carry(from, from_way, to, to_way);
    }
}

#[cfg(all(test, not(iomill_models)))]
mod tests;

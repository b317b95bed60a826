//! The choice of the leading contender. All contenders run in shadow sets, which have names of pages and no pages.
//!
//! A shadow set is a set of the cache as it would be if one contender alone had always ruled it. Some of the cache's
//! sets have such shadows, one for each contender. All contenders see the same accesses, so no luck decides between
//! them. Where some sets of the cache itself follow a contender (Qureshi et al., ISCA 2007), their number and their
//! luck do. And no page of the cache is spent on a contender that loses. The idea is that of miniature simulations
//! (Waldspurger, Saemundson, Ahmad, Park, USENIX ATC 2017).
//!
//! Rules:
//! 1. Each contender has a debt: its misses beyond those of the best one. Debts are bounded, so the distant past does
//!    not count (a cumulative sum test, Page 1954). While all contenders hit or miss alike, no debt changes.
//! 2. A leader with too large a debt is replaced by the contender with the least debt, the last of equal ones.
//! 3. While the cache holds on, the debt of LRU has a tighter bound, so that the cache soon stops holding on when the
//!    load turns. The debts of the others may be as large as the number of pages: in a loop each of them holds another
//!    part, and is better for a while.
//! 4. Whenever the debt of the shadows that hold on reaches its bound, they begin anew with the pages of LRU's shadows.
//!    Old pages prove nothing about the value of holding on to the present ones.
//! 5. Of a long run of hits the policy learns only the last ones (`feeder`). While the cache holds on, the others count
//!    as hits of the held pages, one after the other. Otherwise a contender would look good because it never saw
//!    accesses to the pages that it lacks.
//!
//! Non-goals: the contenders' own rules (`contenders`).

use std::io;

use super::super::set::Locked;
use super::contenders::{COUNT, Contender, Contenders, Names, holds};
use super::rule::Scale;
use super::w_tinylfu;
use crate::cache::key::{self, Key, KeyHash};
use crate::cache::set::{Set, Shape};
use crate::cache::words::Words;
use crate::sys::sync::{AtomicU64, Ordering};

/// The number of the cache's sets per set with shadows. Fewer shadows leave more to luck. More would cost a small cache
/// much, where most misses are in sets with shadows.
const SHADOWED_SHARE: u32 = 64;
/// The fewest sets with shadows, in a cache of at least as many sets.
const SHADOWED_MIN: u32 = 12;
/// The most sets with shadows.
const SHADOWED_MAX: u32 = 64;

/// A debt is bounded by the number of pages in one contender's shadows, divided by this.
const DEBT_MAX: u32 = 4;
/// A leader is replaced when its debt is above that number of pages, divided by this.
const DEBT_LOST: u32 = 16;
/// The divisor for the bound of LRU's debt while the cache holds on (rule 3).
const HELD_DEBT_MAX: u32 = 12;
/// The divisor for the debt above which the cache no longer holds on.
const HELD_DEBT_LOST: u32 = 24;
/// The least value of each of these bounds.
const DEBT_MIN: u32 = 4;

/// The number of bits of a debt in [`Shadows::standing`].
const DEBT_BITS: usize = 12;
const DEBT_MASK: u64 = (1 << DEBT_BITS) - 1;

/// See the head of this file.
#[derive(Debug)]
pub struct Shadows {
    shape: Shape,
    /// The shadow sets: those of the first place, one for each contender, then those of the next place. The lock of a
    /// place's first set locks the place.
    words: Words,
    /// The number of places in a cache of the largest size.
    places_max: u32,
    /// The directory's first sets, and the factor that replaces a division by them.
    first_sets: u32,
    inverse: u64,
    /// From bit [`PLACES_SHIFT`] on: the number of places, which are the sets with shadows. Below it: the share of all
    /// pages that is seen, in units of 2^-32; it takes 33 bits.
    plan: AtomicU64,
    /// The debts, and above them the number of the leader. Two misses at the same moment may count as one.
    standing: AtomicU64,
    /// The fraction of a hit that rule 5 has left over, in units of 2^-32 hits in shadows.
    unseen: AtomicU64,
    /// The number of the held page for which the next such hit counts.
    next_held: AtomicU64,
}

const PLACES_SHIFT: u32 = 40;

/// The number of sets with shadows, in a cache of `sets` sets.
fn shadowed(sets: u32) -> u32 {
    (sets / SHADOWED_SHARE).clamp(SHADOWED_MIN, SHADOWED_MAX).min(sets)
}

impl Shadows {
    /// Empty shadows, for a directory of this scale.
    pub fn new(scale: Scale) -> io::Result<Shadows> {
        let shape = Shape::new(scale.ways).ok_or(io::ErrorKind::InvalidInput)?;
        let sets_max = (scale.pages_max / scale.ways as u64).clamp(1, u32::MAX.into()) as u32;
        let places_max = shadowed(sets_max);
        let words = Words::new(places_max as usize * COUNT * shape.stride)?;
        let (first_sets, inverse) = (scale.first_sets, key::inverse_of(scale.first_sets));
        let [plan, standing, unseen, next_held] = std::array::from_fn(|_| AtomicU64::new(0));
        let shadows = Shadows { shape, words, places_max, first_sets, inverse, plan, standing, unseen, next_held };
        shadows.resize(scale.sets);
        Ok(shadows)
    }

    /// Follows a resize of the directory to `sets` sets.
    pub fn resize(&self, sets: u32) {
        let places = shadowed(sets.max(1)).min(self.places_max);
        let seen = (u64::from(places) << 32) / u64::from(sets.max(1));
        self.plan.store(u64::from(places) << PLACES_SHIFT | seen, Ordering::Relaxed);
    }

    fn places(&self) -> u32 {
        (self.plan.load(Ordering::Relaxed) >> PLACES_SHIFT) as u32
    }

    /// The number of pages in one contender's shadows.
    fn pages(&self) -> u32 {
        self.places() * self.shape.ways as u32
    }

    /// The contender that all sets of the cache follow.
    #[inline]
    pub fn leader(&self) -> Contender {
        Contender::ALL[(self.standing.load(Ordering::Relaxed) >> (DEBT_BITS * COUNT)) as usize % COUNT]
    }

    fn set(&self, place: u32, contender: usize) -> Set<'_> {
        let start = (place as usize * COUNT + contender) * self.shape.stride;
        Set::new(&self.shape, &self.words.all()[start..start + self.shape.stride])
    }

    /// The place of a page, if its set has shadows. The positions of a set's pages form an interval, so the pages of a
    /// place fill a shadow as those of a set fill the set.
    #[inline]
    fn place(&self, hash: KeyHash) -> Option<u32> {
        let plan = self.plan.load(Ordering::Relaxed);
        let at = u64::from(hash.position(self.first_sets, self.inverse)) * (plan >> PLACES_SHIFT);
        let is_seen = at & u64::from(u32::MAX) < plan & ((1 << PLACES_SHIFT) - 1);
        is_seen.then_some((at >> 32) as u32)
    }

    /// Takes in an access to a page, a hit or a miss. Most pages are of sets without shadows.
    #[inline]
    pub fn access(&self, contenders: &Contenders, hash: KeyHash) {
        if let Some(place) = self.place(hash) {
            self.access_at(contenders, place, hash);
        }
    }

    #[inline(never)]
    fn access_at(&self, contenders: &Contenders, place: u32, hash: KeyHash) {
        // An access at the same moment as another one does not count.
        let Some(mut first) = self.set(place, 0).try_lock() else { return };
        let mut missed = 0;
        for (number, by) in Contender::ALL.into_iter().enumerate() {
            let was_there = match number {
                0 => self.touch(contenders, by, &mut first, hash),
                _ => self.touch(contenders, by, &mut self.set(place, number).lock(), hash),
            };
            missed |= u32::from(!was_there) << number;
        }
        drop(first);
        if missed != 0 && missed != (1 << COUNT) - 1 {
            self.count(missed);
        }
    }

    /// One access to a shadow set. Whether the page was there.
    fn touch(&self, contenders: &Contenders, by: Contender, set: &mut Locked<'_>, hash: KeyHash) -> bool {
        let key = Key::from_word(hash.0);
        if let Some(way) = set.find(key, hash) {
            let clock = set.clock();
            set.set_meta(way, clock << 1 | 1);
            return true;
        }
        let way = match set.free() {
            0 => {
                if by == Contender::Holding && holds(set) {
                    return false;
                }
                if by == Contender::Adaptive {
                    contenders.adapt(set, hash, self.places());
                }
                let all = set.all();
                let way = contenders.victim(by, Names::Hashes, set, all, hash);
                if by == Contender::Adaptive {
                    contenders.evicted(Names::Hashes, set, way);
                }
                way
            }
            free => free.trailing_zeros() as usize,
        };
        set.set_present(way, key, hash);
        match by {
            Contender::Adaptive => contenders.inserted(set, way, hash),
            // The others have no use for ghosts.
            _ => w_tinylfu::inserted(set, way, 0),
        }
        false
    }

    /// Takes in hits of unknown pages (rule 5).
    pub fn unseen(&self, contenders: &Contenders, hits: u64) {
        if self.leader() != Contender::Holding {
            return;
        }
        let (pages, seen) = (u64::from(self.pages()), self.plan.load(Ordering::Relaxed) & ((1 << PLACES_SHIFT) - 1));
        // More than one hit of each held page would prove nothing new.
        let due = (self.unseen.load(Ordering::Relaxed) + hits.min(1 << 31) * seen).min(pages << 32);
        self.unseen.store(due & u64::from(u32::MAX), Ordering::Relaxed);
        let from = self.next_held.load(Ordering::Relaxed);
        self.next_held.store((from + (due >> 32)) % pages, Ordering::Relaxed);
        let ways = self.shape.ways as u64;
        for at in (from..from + (due >> 32)).map(|at| at % pages) {
            let (place, way) = ((at / ways) as u32, (at % ways) as usize);
            let Some(held) = self.set(place, Contender::Holding as usize).try_lock() else { continue };
            let key = Locked::has(held.present(), way).then(|| held.key(way));
            drop(held);
            if let Some(key) = key {
                self.access_at(contenders, place, KeyHash(key.word()));
            }
        }
    }

    /// Counts an access that some contenders missed, given as a mask of their numbers (rules 1 to 4).
    fn count(&self, missed: u32) {
        let standing = self.standing.load(Ordering::Relaxed);
        let mut debts: [u32; COUNT] = std::array::from_fn(|number| {
            (standing >> (DEBT_BITS * number) & DEBT_MASK) as u32 + (missed >> number & 1)
        });
        let mut leader = (standing >> (DEBT_BITS * COUNT)) as usize % COUNT;
        let (pages, holding) = (self.pages(), Contender::Holding as usize);
        let share = |of: u32| (pages / of).max(DEBT_MIN);
        let least = debts.into_iter().min().unwrap_or(0);
        for (debt, by) in debts.iter_mut().zip(Contender::ALL) {
            let most = match by {
                _ if leader != holding => share(DEBT_MAX),
                Contender::Recent => share(HELD_DEBT_MAX),
                _ => pages,
            };
            *debt = (*debt - least).min(most);
        }
        let lost = share(if leader == holding { HELD_DEBT_LOST } else { DEBT_LOST });
        if debts[leader] > lost {
            leader = (0..COUNT).rev().min_by_key(|&number| debts[number]).unwrap_or(leader);
        }
        let begins_anew = leader != holding && debts[holding] >= share(DEBT_MAX);
        if begins_anew {
            debts[holding] = debts[leader];
        }
        let all = debts.iter().rev().fold(leader as u64, |all, &debt| all << DEBT_BITS | u64::from(debt));
        self.standing.store(all, Ordering::Relaxed);
        if begins_anew {
            self.hold_anew();
        }
    }

    /// Copies the shadows of LRU to those that hold on (rule 4).
    #[cold]
    fn hold_anew(&self) {
        for place in 0..self.places() {
            let Some(recent) = self.set(place, Contender::Recent as usize).try_lock() else { continue };
            self.set(place, Contender::Holding as usize).lock().copy_from(&recent);
        }
    }
}

/// Each contender alone: its shadows depend on no other contender.
#[cfg(all(test, not(iomill_models)))]
// Helpers of tests may unwrap, as tests do.
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const SETS: u32 = SHADOWED_MIN;
    const WAYS: usize = 12;
    const PAGES: u64 = SETS as u64 * WAYS as u64;

    /// A contender's share of hits in the second half of a load, in a cache that consists of its shadows.
    fn rate(by: Contender, load: &[u64]) -> f64 {
        let (first_sets, hash_mask) = (SETS, u64::MAX);
        let scale = Scale { sets: SETS, first_sets, ways: WAYS, pages_max: PAGES, hash_mask };
        let (contenders, shadows) = (Contenders::new(scale).unwrap(), Shadows::new(scale).unwrap());
        let mut hits = 0;
        for (at, &page) in load.iter().enumerate() {
            let hash = Key::new(1, page).unwrap().hash();
            contenders.count(hash);
            let place = shadows.place(hash).expect("all sets have shadows");
            let was_there = shadows.touch(&contenders, by, &mut shadows.set(place, by as usize).lock(), hash);
            hits += u32::from(was_there && at >= load.len() / 2);
        }
        f64::from(hits) / (load.len() - load.len() / 2) as f64
    }

    /// ARC learns how many pages of a set should be pages that were asked for once. If each page comes again exactly
    /// once, these are most of the set: seven of twelve. Beside a scan they are few: the pages in use need ten. No
    /// fixed number fits both loads.
    #[test]
    fn the_adaptive_contender_learns_from_ghosts() {
        let mut random = fastrand::Rng::with_seed(2);
        // Each page comes again after this many other new pages.
        let lag = PAGES * 3 / 5;
        let twice: Vec<u64> =
            (0..40 * PAGES).map(|at| if at % 2 == 0 { at } else { at.saturating_sub(2 * lag + 1) }).collect();
        let in_use = |random: &mut fastrand::Rng| random.u64(..PAGES * 4 / 5);
        let scan: Vec<u64> =
            (0..40 * PAGES).map(|at| if at % 3 == 0 { in_use(&mut random) } else { 1_000_000 + at }).collect();
        for (name, load, most) in [("twice", twice, 1.0 / 2.0), ("a scan", scan, 1.0 / 3.0)] {
            let hits = rate(Contender::Adaptive, &load);
            assert!(hits >= 0.9 * most, "{name}: {hits:.3} of {most:.3}");
        }
    }
}

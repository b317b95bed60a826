//! The contenders of the duel: rules that all choose by the same notes of a set. So a set can change its rule at any
//! moment.
//!
//! Each fits one kind of load:
//! - [`Contender::Recent`] is LRU. It follows a load that turns.
//! - [`Contender::Adaptive`] is ARC (Megiddo, Modha, FAST 2003). It learns from ghosts how many pages of a set should
//!   be pages that were asked for once. All sets share that number.
//! - [`Contender::Frequent`] is W-TinyLFU (Einziger, Friedman, Manes, ACM Transactions on Storage 2017) with a window
//!   of one page, and [`Contender::Mixed`] is the same with a window of a quarter. Both keep pages that are asked for
//!   often through a scan.
//! - [`Contender::Holding`] keeps its pages, as the insertion at the old end of the order does in DIP (Qureshi et al.,
//!   ISCA 2007). If every page is as likely to be the next, an exchange of pages gains nothing, and a cache that holds
//!   on hits its share.
//!
//! Non-goals: the choice between them (`shadows`).

use std::io;

use super::super::set::Locked;
use super::rule::Scale;
use super::sketch::Sketch;
use super::stamps::{Field, lowest, ways_flagged};
use super::w_tinylfu::{self, Segmented, WAS_HIT};
use crate::cache::key::{Key, KeyHash};
use crate::cache::lanes::ways_of;
use crate::sys::sync::{AtomicU32, Ordering};

/// One page per set, in units of [`Contenders::once`].
const PAGE: u32 = 1 << 16;

/// The time without a hit after which a held page is evicted: in ticks of its set's clock, as a multiple of the ways.
/// In a load of epochs each page is hit within twice the ways.
const IDLE: u8 = 3;

/// The number of places that remember pages which went past the cache. A remembered page is admitted at its next miss.
/// So reads of neighbours in one page miss at most twice.
const PASSED: usize = 16;

/// See the head of this file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contender {
    /// LRU.
    Recent,
    /// ARC.
    Adaptive,
    /// W-TinyLFU with a window of one page.
    Frequent,
    /// W-TinyLFU with a window of a quarter.
    Mixed,
    /// Holding on to the present pages.
    Holding,
}

/// The number of contenders.
pub const COUNT: usize = 5;

impl Contender {
    /// All contenders, by their numbers. The first leads at the beginning.
    pub const ALL: [Contender; COUNT] =
        [Contender::Recent, Contender::Adaptive, Contender::Frequent, Contender::Mixed, Contender::Holding];
}

/// The meaning of a set's keys.
#[derive(Clone, Copy, Debug)]
pub enum Names {
    /// Keys of pages, in a set of the cache. The mask selects the bits of a hash that are used.
    Pages(u64),
    /// Hashes of pages, in a shadow set.
    Hashes,
}

impl Names {
    fn hash(self, key: Key) -> KeyHash {
        match self {
            Names::Pages(mask) => key.hash().masked(mask),
            Names::Hashes => KeyHash(key.word()),
        }
    }
}

/// The state of the contenders that all sets share.
#[derive(Debug)]
pub struct Contenders {
    sketch: Sketch,
    frequent: Segmented,
    mixed: Segmented,
    /// The number of pages per set that should be pages asked for once, under `Adaptive`, in units of 1 / [`PAGE`]. Two
    /// changes at the same moment may count as one.
    once: AtomicU32,
    /// Bits of the hashes of pages that went past the cache. The hash also chooses the place.
    passed: [AtomicU32; PASSED],
}

/// The ghost of a page: 15 bits of its hash, and the flag [`WAS_HIT`]. It is never 0.
fn ghost_of(hash: KeyHash, flag: u8) -> u16 {
    ((hash.mixed() >> 48) as u16 & !1).max(2) | u16::from(flag)
}

/// The index of a page's ghost, and its flag.
fn find_ghost(set: &Locked<'_>, hash: KeyHash) -> Option<(usize, u8)> {
    let (index, ghost) = set.find_ghost_but(ghost_of(hash, 0), u16::from(WAS_HIT))?;
    Some((index, ghost as u8 & WAS_HIT))
}

/// The ways of pages that were asked for again: they were hit, or admitted while they had a ghost.
fn asked_again(set: &Locked<'_>) -> u32 {
    ways_flagged(&set.auxes()) | ways_flagged(&set.metas())
}

/// The way of a page that was not hit for long while others of its set were, if there is one.
fn idle(set: &Locked<'_>) -> Option<usize> {
    let oldest = Field::Meta.oldest(set, set.present());
    let age = set.clock().saturating_sub(set.meta(oldest) >> 1);
    (age > IDLE * set.ways() as u8).then_some(oldest)
}

/// Whether a full set that holds on lets a page go past. If so, and if pages were hit meanwhile, its clock ticks: there
/// is no new page to advance it.
pub fn holds(set: &mut Locked<'_>) -> bool {
    if idle(set).is_some() {
        return false;
    }
    let metas = set.metas();
    let were_hit = set.present() & ways_flagged(&metas);
    if were_hit != 0 {
        // The flags are not needed here. To a contender that leads later, these pages are as good as any.
        ways_of(were_hit).for_each(|way| set.set_meta(way, metas[way] & !1));
        Field::Meta.tick(set);
    }
    true
}

impl Contenders {
    /// Contenders that know nothing yet.
    pub fn new(scale: Scale) -> io::Result<Contenders> {
        let sketch = Sketch::new(scale.pages_max, scale.first_sets)?;
        sketch.resize(u64::from(scale.sets) * scale.ways as u64);
        let (frequent, mixed) = (Segmented::new(scale.ways, 1), Segmented::usual(scale.ways));
        let passed = std::array::from_fn(|_| AtomicU32::new(0));
        Ok(Contenders { sketch, frequent, mixed, once: AtomicU32::new(0), passed })
    }

    /// Follows a resize of the cache to `pages` pages.
    pub fn resize(&self, pages: u64) {
        self.sketch.resize(pages);
    }

    /// Counts an access to a page.
    pub fn count(&self, hash: KeyHash) {
        self.sketch.add(hash);
    }

    /// Learns from a miss under `Adaptive` how many pages of a set should be pages asked for once. As in ARC, the
    /// number changes by one page of all `sets` sets together, and by more if there are more ghosts of the other kind.
    pub fn adapt(&self, set: &Locked<'_>, incoming: KeyHash, sets: u32) {
        let Some((_, flag)) = find_ghost(set, incoming) else { return };
        let (of_once, of_again) = set.count_ghosts();
        let step = |mine: u32, others: u32| PAGE / sets.max(1) * (others / mine.max(1)).max(1);
        let once = self.once.load(Ordering::Relaxed);
        let most = set.ways() as u32 * PAGE;
        let now = match flag {
            0 => (once + step(of_once, of_again)).min(most),
            _ => once.saturating_sub(step(of_again, of_once)),
        };
        self.once.store(now, Ordering::Relaxed);
    }

    /// Remembers a page that may go past the cache. Whether it went past lately.
    pub fn passed_lately(&self, hash: KeyHash) -> bool {
        let mixed = hash.mixed();
        let (place, bits) = (&self.passed[mixed as usize % PASSED], (mixed >> 32) as u32);
        let was = place.load(Ordering::Relaxed) == bits;
        if !was {
            place.store(bits, Ordering::Relaxed);
        }
        was
    }

    /// As `Policy::victim`.
    pub fn victim(&self, by: Contender, names: Names, set: &mut Locked<'_>, among: u32, incoming: KeyHash) -> usize {
        let count = |set: &Locked<'_>, way| self.sketch.count(names.hash(set.key(way)));
        match by {
            Contender::Recent => Field::Meta.oldest(set, among),
            Contender::Adaptive => self.by_ghosts(set, among, incoming),
            Contender::Frequent => self.frequent.victim(set, among, count),
            Contender::Mixed => self.mixed.victim(set, among, count),
            Contender::Holding => match idle(set) {
                Some(way) if Locked::has(among, way) => way,
                // The page that was admitted or hit last.
                _ => lowest(&set.metas().map(|meta| !meta ^ 1), among),
            },
        }
    }

    fn by_ghosts(&self, set: &mut Locked<'_>, among: u32, incoming: KeyHash) -> usize {
        let (present, again) = (set.present(), asked_again(set));
        let (once, again) = (present & !again, present & again);
        let (have, want) = (once.count_ones(), self.once.load(Ordering::Relaxed) / PAGE);
        // With exactly as many as wanted, one of them is evicted if the new page will count as asked for again.
        let is_enough = have > want || have == want && matches!(find_ghost(set, incoming), Some((_, WAS_HIT)));
        let (first, second) = if is_enough { (once, again) } else { (again, once) };
        let from = if first & among != 0 { first } else { second };
        Field::Meta.oldest(set, from & among)
    }

    /// As `Policy::evicted`.
    pub fn evicted(&self, names: Names, set: &mut Locked<'_>, way: usize) {
        let ghost = ghost_of(names.hash(set.key(way)), (set.aux(way) | set.meta(way)) & WAS_HIT);
        let next = set.scratch() as usize % set.ways();
        set.set_ghost(next, ghost);
        set.set_scratch(next as u32 + 1);
    }

    /// As `Policy::inserted`.
    pub fn inserted(&self, set: &mut Locked<'_>, way: usize, incoming: KeyHash) {
        let ghost = find_ghost(set, incoming);
        if let Some((index, _)) = ghost {
            set.set_ghost(index, 0);
        }
        w_tinylfu::inserted(set, way, if ghost.is_some() { WAS_HIT } else { 0 });
    }
}

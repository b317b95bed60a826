//! Order within a set, as 7-bit stamps from the set's clock, each in a byte with a flag in its lowest bit.
//!
//! The stamps of pages that were used or came in later are higher. Stamp 0 is left to pages that are to go before all others.
//! Two ways may have the same stamp; nothing depends on that.

use super::Locked;
use crate::cache::set::{WAYS_MAX, ways_of};

/// The clock's last value; then all stamps are pressed together.
const CLOCK_LAST: u8 = 127;

/// Which byte of a way holds its stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// The byte that hits change: the stamp says when the page was used, the flag that it was hit.
    Meta,
    /// The byte that is the policy's own: the stamp says when the page came in.
    Aux,
}

impl Field {
    /// The bytes of all ways.
    pub fn all(self, set: &Locked<'_>) -> [u8; WAYS_MAX] {
        match self {
            Field::Meta => set.metas(),
            Field::Aux => set.auxes(),
        }
    }

    /// Sets a way's byte.
    pub fn set(self, set: &mut Locked<'_>, way: usize, to: u8) {
        match self {
            Field::Meta => set.set_meta(way, to),
            Field::Aux => set.set_aux(way, to),
        }
    }

    /// A way's byte.
    pub fn get(self, set: &Locked<'_>, way: usize) -> u8 {
        match self {
            Field::Meta => set.meta(way),
            Field::Aux => set.aux(way),
        }
    }

    /// Moves the clock on and returns it: 1 to 127. At its end all stamps are pressed together, their order kept, and the hand
    /// with them.
    pub fn tick(self, set: &mut Locked<'_>) -> u8 {
        let clock = set.clock();
        if clock < CLOCK_LAST {
            set.set_clock(clock + 1);
            return clock + 1;
        }
        let bytes = self.all(set);
        let seen = bytes[..set.ways()].iter().fold(0u128, |seen, &byte| seen | 1 << (byte >> 1)) & !1;
        // Stamp 0 stays, the others become 1, 2, 3...
        let rank = |stamp: u8| (seen & (2u128 << stamp).wrapping_sub(1)).count_ones() as u8;
        for (way, &byte) in bytes.iter().enumerate().take(set.ways()) {
            self.set(set, way, rank(byte >> 1) << 1 | byte & 1);
        }
        let hand = set.hand().min(CLOCK_LAST);
        set.set_hand(rank(hand));
        let clock = seen.count_ones() as u8 + 1;
        set.set_clock(clock);
        clock
    }

    /// The lowest byte among `candidates`, a mask that is not empty: the oldest stamp, and of equal ones one without the flag.
    pub fn oldest(self, set: &Locked<'_>, candidates: u32) -> usize {
        let bytes = self.all(set);
        ways_of(candidates).min_by_key(|&way| bytes[way]).unwrap_or(0)
    }

    /// Gives a page that has moved the age that it had where it was. A clock that has not ticked as often is moved on for that.
    pub fn carry(self, from: &Locked<'_>, from_way: usize, to: &mut Locked<'_>, to_way: usize) {
        let byte = self.get(from, from_way);
        if byte >> 1 == 0 {
            return self.set(to, to_way, byte);
        }
        let age = from.clock().saturating_sub(byte >> 1);
        let lift = (age + 1).saturating_sub(to.clock());
        if lift > 0 {
            let bytes = self.all(to);
            for (way, &byte) in bytes.iter().enumerate().take(to.ways()) {
                let stamp = if byte >> 1 == 0 { 0 } else { (byte >> 1).saturating_add(lift).min(CLOCK_LAST) };
                self.set(to, way, stamp << 1 | byte & 1);
            }
            to.set_clock(to.clock() + lift);
            if to.hand() != 0 {
                to.set_hand(to.hand().saturating_add(lift).min(CLOCK_LAST));
            }
        }
        self.set(to, to_way, (to.clock() - age) << 1 | byte & 1);
    }
}

//! The order of pages in a set, by 7-bit stamps from the set's clock. A stamp shares a byte with a flag, the lowest
//! bit.
//!
//! A page that was used later, or admitted later, has a higher stamp. No page has stamp 0. Two ways may have the same
//! stamp.

use super::super::set::Locked;
use crate::cache::lanes::{equal_bytes, lowest_byte};
use crate::cache::set::WAYS_MAX;

/// The clock's last value. After it all stamps are renumbered from 1.
const CLOCK_LAST: u8 = 127;

/// The byte of a way that holds its stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// The byte that hits change. The stamp is the time of the last use, and the flag means "hit".
    Meta,
    /// The byte that only the policy changes. The stamp is the time of the page's admission.
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

    /// Advances the clock and returns it: 1 to 127. After 127 all stamps and the hand are renumbered from 1, in the
    /// same order.
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

    /// The way with the oldest stamp among `candidates`, a mask that is not empty. Of equal stamps, one without the
    /// flag counts as older.
    pub fn oldest(self, set: &Locked<'_>, candidates: u32) -> usize {
        lowest(&self.all(set), candidates)
    }

    /// The byte without the stamp.
    fn other(self) -> Field {
        match self {
            Field::Meta => Field::Aux,
            Field::Aux => Field::Meta,
        }
    }

    /// Copies the bytes of a page that moves, with a stamp for the same age by the new set's clock. If that clock has
    /// ticked less often than the age, it is advanced.
    pub fn carry(self, from: &Locked<'_>, from_way: usize, to: &mut Locked<'_>, to_way: usize) {
        self.other().set(to, to_way, self.other().get(from, from_way));
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

/// The way with the lowest byte among `candidates`, a mask that is not empty; the first of equal ones.
///
/// It is most of the policy's work at a miss, so it compares 16 bytes at a time.
#[inline]
pub fn lowest(bytes: &[u8; WAYS_MAX], candidates: u32) -> usize {
    let words = words_of(bytes);
    let mut least = lowest_byte(words[0], words[1], candidates & 0xFFFF);
    if candidates >> 16 != 0 {
        least = least.min(lowest_byte(words[2], words[3], candidates >> 16));
    }
    (ways_with(bytes, least) & candidates).trailing_zeros() as usize % WAYS_MAX
}

/// The ways with the byte `byte`.
pub fn ways_with(bytes: &[u8; WAYS_MAX], byte: u8) -> u32 {
    let words = words_of(bytes);
    equal_bytes(words[0], words[1], byte) | equal_bytes(words[2], words[3], byte) << 16
}

/// The ways with the flag, the lowest bit of their byte.
pub fn ways_flagged(bytes: &[u8; WAYS_MAX]) -> u32 {
    // The product moves the lowest bit of byte i to bit 56 + i, and no other bit to there.
    let flags = |word: u64| (word & 0x0101_0101_0101_0101).wrapping_mul(0x0102_0408_1020_4080) >> 56;
    words_of(bytes).into_iter().rev().fold(0, |mask, word| mask << 8 | flags(word) as u32)
}

fn words_of(bytes: &[u8; WAYS_MAX]) -> [u64; WAYS_MAX / 8] {
    let (words, _) = bytes.as_chunks::<8>();
    std::array::from_fn(|index| u64::from_le_bytes(words[index]))
}

#[cfg(all(test, not(iomill_models)))]
mod tests {
    use super::*;
    use crate::cache::lanes::ways_of;

    /// The fast functions return what plain ones do.
    #[test]
    fn many_ways_at_once_are_as_one_by_one() {
        let mut random = fastrand::Rng::with_seed(4);
        for most in [1, 2, 3, 20, 255] {
            for _ in 0..2000 {
                let bytes: [u8; WAYS_MAX] = std::array::from_fn(|_| random.u8(0..=most));
                let mask = random.u32(..) & if random.bool() { u32::MAX } else { random.u32(..) };
                let (plain, byte) = (ways_of(mask).min_by_key(|&way| bytes[way]), random.u8(0..=most));
                assert_eq!(lowest(&bytes, mask), plain.unwrap_or(0), "{bytes:?} {mask:#b}");
                let plain = |is: &dyn Fn(u8) -> bool| (0..WAYS_MAX).map(|way| u32::from(is(bytes[way])) << way).sum();
                assert_eq!(ways_with(&bytes, byte), plain(&|it| it == byte), "{bytes:?} {byte}");
                assert_eq!(ways_flagged(&bytes), plain(&|it| it & 1 == 1), "{bytes:?}");
            }
        }
    }
}

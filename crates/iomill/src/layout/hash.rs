//! The hash layout: groups of blocks, each permuted by a key of its own, and dealt to drives in proportion to their
//! weights.
//!
//! The size of a group is the sum of the weights, divided by their greatest common divisor and times a small number.
//! Within a group, block x has slot `permute(x)`. Slots `first[d]..first[d + 1]` are drive d's blocks of the group, in
//! this order. So every drive gets exactly its share of every group, and the drive's blocks of a group are one range of
//! its part.
//!
//! Goals: a placement in proportion, dense, invertible, and the same for ever, because it is part of the format. No
//! table grows with the file. Non-goals: secrecy, and the order of a group's blocks within a part.
//!
//! The cost: a file that ends within a group may need the whole group's range in each part. So a part is at most its
//! share of one group longer than its blocks. Therefore groups are small: 64 to 256 blocks, unless the sum of the
//! weights is larger. Weights such as 10 and 11 give groups of a few MiB; 997 and 1000 give 1,997 blocks.

use super::divisor::Divisor;
use super::placement::Placement;

/// The fewest blocks of a group.
const GROUP_MIN: u64 = 64;
/// The most blocks of a group, unless the sum of the weights is larger.
const GROUP_MAX: u64 = 256;
/// The most cells of the table from slots to drives.
const CELLS_MAX: u64 = 1024;

/// A compiled hash layout.
#[derive(Debug)]
pub(super) struct HashLayout {
    /// The file's key.
    key: u64,
    /// The number of blocks in a group.
    group: Divisor,
    permutation: Permutation,
    /// The first slot of each drive in a group, and the end of the last one's: drive d has the slots
    /// `first[d]..first[d + 1]`. Strictly rising.
    first: Box<[u32]>,
    /// The number of blocks of each drive in a group: `first[d + 1] - first[d]`.
    share: Box<[Divisor]>,
    /// The drive of the first slot of each cell of `1 << cell_bits` slots.
    cells: Box<[u16]>,
    cell_bits: u32,
}

impl HashLayout {
    /// Compiles the layout for 1 to 256 weights, each from 1 to 1000.
    pub(super) fn new(weights: &[u32], key: u64) -> HashLayout {
        let gcd = weights.iter().fold(0, |a, &b| gcd(a, b)).max(1);
        let sum = weights.iter().map(|&w| u64::from(w / gcd)).sum::<u64>();
        let times = repeats(sum);
        let mut first = vec![0u32];
        let mut share = Vec::with_capacity(weights.len());
        let mut end = 0u32;
        for &weight in weights {
            let blocks = weight / gcd * times as u32;
            end += blocks;
            first.push(end);
            share.push(Divisor::new(u64::from(blocks)));
        }
        let group = u64::from(end);
        let cell_bits = bits_for(group.div_ceil(CELLS_MAX));
        let cells = (0..group).step_by(1 << cell_bits);
        let cells = cells.map(|slot| (first.partition_point(|&f| u64::from(f) <= slot) - 1) as u16).collect();
        HashLayout {
            key,
            group: Divisor::new(group),
            permutation: Permutation::new(group),
            first: first.into(),
            share: share.into(),
            cells,
            cell_bits,
        }
    }

    /// The number of blocks in a group.
    pub(super) fn group_blocks(&self) -> u64 {
        self.group.get()
    }

    pub(super) fn drives(&self) -> u16 {
        self.share.len() as u16
    }

    #[inline]
    pub(super) fn place(&self, block: u64) -> Placement {
        let (group, x) = self.group.div_rem(block);
        let slot = self.permutation.forward(x as u32, self.group_key(group));
        let mut drive = usize::from(self.cells[(slot >> self.cell_bits) as usize]);
        while slot >= self.first[drive + 1] {
            drive += 1;
        }
        let blocks = u64::from(self.first[drive + 1] - self.first[drive]);
        Placement { drive: drive as u16, block: group * blocks + u64::from(slot - self.first[drive]) }
    }

    /// `None` if the file does not have the drive, or if the number of the block does not fit in a `u64`.
    #[inline]
    pub(super) fn block(&self, drive: u16, block_in_part: u64) -> Option<u64> {
        let (group, rank) = self.share.get(usize::from(drive))?.div_rem(block_in_part);
        let slot = self.first[usize::from(drive)] + rank as u32;
        let x = self.permutation.backward(slot, self.group_key(group));
        group.checked_mul(self.group.get())?.checked_add(u64::from(x))
    }

    /// Exact, and cheap without a table. If the file has few blocks of the last group, the slot of each is computed.
    /// Otherwise the drive's slots are searched from the last one down. The permutation spreads a group's first r
    /// blocks evenly over its G slots, so the search ends after about G / r slots. The cheaper way takes about sqrt(G)
    /// steps at most: 16 for a group of 256, 500 for the largest possible group.
    pub(super) fn part_blocks(&self, drive: u16, blocks: u64) -> u64 {
        let Some(share) = self.share.get(usize::from(drive)) else { return 0 };
        let (group, rest) = self.group.div_rem(blocks);
        let full = group * share.get();
        let (key, rest) = (self.group_key(group), rest as u32);
        let slots = self.first[usize::from(drive)]..self.first[usize::from(drive) + 1];
        let last = if u64::from(rest) * u64::from(rest) <= self.group.get() {
            (0..rest).map(|x| self.permutation.forward(x, key)).filter(|slot| slots.contains(slot)).max()
        } else {
            slots.clone().rev().find(|&slot| self.permutation.backward(slot, key) < rest)
        };
        full + last.map_or(0, |slot| u64::from(slot - slots.start) + 1)
    }

    #[inline]
    fn group_key(&self, group: u64) -> u64 {
        mix(self.key ^ mix(group.wrapping_add(0x9e37_79b9_7f4a_7c15)))
    }
}

/// The number of times that the reduced weights are in a group; `sum` is their sum. The group has at least
/// [`GROUP_MIN`] blocks and should fill 7/8 of a power of two, so that the permutation seldom walks. The result is the
/// smallest number that does. If no group up to [`GROUP_MAX`] does, it is the number that fills most of a power of two.
fn repeats(sum: u64) -> u64 {
    let fill = |times: u64| ((sum * times) << 32) >> bits_for(sum * times);
    let least = GROUP_MIN.div_ceil(sum);
    let mut best = least;
    for times in least..=(GROUP_MAX / sum).max(least) {
        if fill(times) > fill(best) {
            best = times;
        }
        if fill(times) >= 7 << 29 {
            return times;
        }
    }
    best
}

/// The number of bits for the numbers below `n`: the least b with `1 << b` at least `n`.
fn bits_for(n: u64) -> u32 {
    n.next_power_of_two().trailing_zeros()
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The finalizer of SplitMix64 (Steele, Lea, Flood 2014; constants of Stafford's variant 13). Every bit of the result
/// depends on every bit of `x`.
#[inline]
fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// A keyed permutation of `0..n`. A round adds or exclusive-ors key bits, multiplies by an odd number, and shifts to
/// the right. All of these are bijections of the b-bit words. Then comes "cycle walking" (Black, Rogaway, "Ciphers with
/// arbitrary finite domains", 2002): a result that is not below n goes through again. The form is that of `permute` in
/// Kensler, "Correlated multi-jittered sampling" (Pixar 2013), with key bits in every round.
///
/// There are five rounds. With three or four, or with keys that are only exclusive-ored, blocks at some distances share
/// a drive up to a quarter more or less often than by chance (`permutes_evenly` detects it). The fifth round costs half
/// a nanosecond.
#[derive(Clone, Copy, Debug)]
struct Permutation {
    n: u32,
    /// `2^b - 1`, for the least b with `2^b >= n`. b is at most [`BITS_MAX`].
    mask: u32,
    /// Half of b, rounded up, so that `x ^= x >> shift` is its own inverse.
    shift: u32,
}

const ROUNDS: usize = 5;
/// The odd factors of the rounds, from well-known mixers (murmur3, xxHash).
const FACTORS: [u32; ROUNDS] = [0xcc9e_2d53, 0x85eb_ca6b, 0x27d4_eb2d, 0x9e37_79b1, 0x85eb_ca6b];
/// The inverses of `FACTORS` modulo 2^32, and hence modulo every smaller power of two.
const INVERSES: [u32; ROUNDS] =
    [inverse(FACTORS[0]), inverse(FACTORS[1]), inverse(FACTORS[2]), inverse(FACTORS[3]), inverse(FACTORS[4])];
/// The distance of the rounds' keys in the group's key: round r takes its key from bit `KEY_BITS * r` on. In large
/// domains the bits of neighbouring rounds overlap.
const KEY_BITS: u32 = 11;
/// The number of bits of a 64-bit key that are left for the last round.
const BITS_MAX: u32 = 64 - KEY_BITS * (ROUNDS as u32 - 1);

/// The inverse of an odd number modulo 2^32, by Newton's iteration. At first 3 low bits are correct, and each step
/// doubles their number.
const fn inverse(odd: u32) -> u32 {
    let mut y = odd;
    let mut step = 0;
    while step < 4 {
        y = y.wrapping_mul(2u32.wrapping_sub(odd.wrapping_mul(y)));
        step += 1;
    }
    y
}

#[inline]
fn round_key(key: u64, round: usize) -> u32 {
    (key >> (KEY_BITS * round as u32)) as u32
}

impl Permutation {
    /// A permutation of `0..n`. `n` is at most 2^[`BITS_MAX`], which 256 drives of weight 1000 do not reach.
    fn new(n: u64) -> Permutation {
        let bits = bits_for(n);
        debug_assert!(bits <= BITS_MAX, "the last round lacks key bits");
        Permutation { n: n as u32, mask: (1 << bits) - 1, shift: bits.div_ceil(2).max(1) }
    }

    #[inline]
    fn forward(self, mut x: u32, key: u64) -> u32 {
        loop {
            for (round, factor) in FACTORS.iter().enumerate() {
                let k = round_key(key, round);
                x = if round % 2 == 0 { x ^ k } else { x.wrapping_add(k) };
                x = x.wrapping_mul(*factor) & self.mask;
                x ^= x >> self.shift;
            }
            if x < self.n {
                return x;
            }
        }
    }

    #[inline]
    fn backward(self, mut x: u32, key: u64) -> u32 {
        loop {
            for (round, inverse) in INVERSES.iter().enumerate().rev() {
                let k = round_key(key, round);
                x ^= x >> self.shift;
                x = x.wrapping_mul(*inverse);
                x = (if round % 2 == 0 { x ^ k } else { x.wrapping_sub(k) }) & self.mask;
            }
            if x < self.n {
                return x;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::property::check;

    #[test]
    fn inverses_are_inverses() {
        for (factor, inverse) in FACTORS.into_iter().zip(INVERSES) {
            assert_eq!(factor.wrapping_mul(inverse), 1);
        }
    }

    #[test]
    fn permutes_every_domain() {
        check(
            256,
            |bytes| Ok((bytes.int_in_range(1..=3000u64)?, bytes.arbitrary::<u64>()?)),
            |(n, key)| {
                let permutation = Permutation::new(n);
                let mut seen = vec![false; n as usize];
                for x in 0..n as u32 {
                    let y = permutation.forward(x, key);
                    assert!(!std::mem::replace(&mut seen[y as usize], true));
                    assert_eq!(permutation.backward(y, key), x);
                }
            },
        );
    }

    /// The difference of chi squared from that of even counts, in standard deviations.
    fn deviations(hits: &[f64], expected: f64) -> f64 {
        let freedom = hits.len() as f64 - 1.0;
        (hits.iter().map(|h| (h - expected).powi(2) / expected).sum::<f64>() - freedom) / (2.0 * freedom).sqrt()
    }

    /// Over many keys each x has each y about equally often. Two x at any usual distance are in the same quarter of the
    /// slots (a drive's share, for example) as often as by chance.
    #[test]
    fn permutes_evenly() {
        const KEYS: u64 = 1_500;
        for n in [64u64, 114, 126, 256] {
            let (size, permutation) = (n as usize, Permutation::new(n));
            let mut hits = vec![vec![0f64; size]; size];
            let distances = [1, 2, 4, 16, size / 2];
            let mut meet = [0f64; 5];
            for key in (0..KEYS).map(mix) {
                let slots: Vec<usize> = (0..n as u32).map(|x| permutation.forward(x, key) as usize).collect();
                for x in 0..size {
                    hits[x][slots[x]] += 1.0;
                    for (meet, distance) in meet.iter_mut().zip(distances) {
                        *meet += f64::from(u8::from(slots[x] * 4 / size == slots[(x + distance) % size] * 4 / size));
                    }
                }
            }
            let worst = hits.iter().map(|h| deviations(h, KEYS as f64 / n as f64)).fold(0.0, f64::max);
            assert!(worst < 6.0, "n {n}: {worst} deviations");
            let by_chance = (KEYS * n) as f64 * (n as f64 / 4.0 - 1.0) / (n - 1) as f64;
            for (meet, distance) in meet.into_iter().zip(distances) {
                let ratio = meet / by_chance;
                assert!(
                    (0.94..1.06).contains(&ratio),
                    "n {n}, distance {distance}: meet {ratio} times what chance gives"
                );
            }
        }
    }

    #[test]
    fn groups_are_small_and_hold_the_weights() {
        for (sum, group) in
            [(2, 64), (3, 114), (4, 64), (5, 115), (7, 112), (21, 126), (64, 64), (65, 195), (1997, 1997)]
        {
            assert_eq!(sum * repeats(sum), group, "weights that add up to {sum}");
        }
        for sum in 1..=256_000 {
            let group = sum * repeats(sum);
            assert!((GROUP_MIN..=GROUP_MAX.max(sum)).contains(&group) || sum > GROUP_MAX, "{sum}: {group}");
        }
    }
}

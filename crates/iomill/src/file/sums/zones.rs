//! The zones of a part, and the head of its file of sums, which says durably which of them are marked. Non-goals: I/O,
//! which `part` does.
//!
//! The head is written to two places in turn, so a head that was torn leaves the one before. The one with the highest
//! version counts. It may name more zones than are doubtful, and never fewer.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::page::{CHUNK_PAGES, Identity};
use crate::drive::PAGE_BYTES;
use crate::sys::hash::xxh3_64;

/// Pages of sums of a zone.
pub const ZONE_CHUNKS: u64 = 16;
/// Pages of a part in a zone: 64 MiB, less 128 KiB.
pub const ZONE_PAGES: u64 = ZONE_CHUNKS * CHUNK_PAGES;

const MAGIC: &[u8; 8] = b"iomilsum";
const FORMAT: u32 = 1;
/// Where the bits begin.
const BITS_AT: usize = 64;
const CHECK_AT: usize = 56;
const BITS: u64 = ((PAGE_BYTES - BITS_AT) * 8) as u64;

/// What memory knows of a zone that is not clean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Zone {
    /// The head names it durably.
    pub is_marked: bool,
    /// An earlier opening has left its mark, or an fsync has failed, so its sums on the drive are doubtful.
    pub is_stale: bool,
    /// Its pages of sums that this opening has written since, as bits. They need not be durable.
    pub written: u16,
    /// Writes and cuts that have not ended.
    pub busy: u32,
    /// The epoch in which a write last began or ended.
    pub last: u64,
}

impl Zone {
    /// A zone with the mark of an earlier opening.
    const LEFT: Zone = Zone { is_marked: true, is_stale: true, written: 0, busy: 0, last: 0 };

    /// Whether the drive has a page of sums as this opening has left it.
    pub fn has_written(&self, chunk: u64) -> bool {
        self.written >> (chunk % ZONE_CHUNKS) & 1 == 1
    }

    /// Whether no write has begun since the sync of this epoch (rule 5).
    pub fn is_idle_since(&self, epoch: u64) -> bool {
        self.busy == 0 && self.last < epoch
    }
}

/// The zones that are not clean.
#[derive(Debug, Default)]
pub struct Zones {
    /// Those that this opening has changed, by number.
    own: BTreeMap<u64, Zone>,
    /// Those with the mark of an earlier opening that this one has not changed, as ranges by their start. A head has
    /// few bits, so there are few ranges, however many zones the part has.
    left: BTreeMap<u64, u64>,
}

impl Zones {
    /// With the marks that an earlier opening has left.
    pub fn with_left(head: Head) -> Zones {
        Zones { own: BTreeMap::new(), left: head.marked.into_iter().map(|range| (range.start, range.end)).collect() }
    }

    /// A zone. `None` if it is clean.
    pub fn get(&self, zone: u64) -> Option<Zone> {
        self.own.get(&zone).copied().or_else(|| self.left_with(zone).map(|_| Zone::LEFT))
    }

    fn left_with(&self, zone: u64) -> Option<Range<u64>> {
        let (start, end) = self.left.range(..=zone).next_back()?;
        (zone < *end).then_some(*start..*end)
    }

    /// A zone to change.
    pub fn change(&mut self, zone: u64) -> &mut Zone {
        let left = self.take_left(zone);
        self.own.entry(zone).or_insert_with(|| if left { Zone::LEFT } else { Zone::default() })
    }

    /// The zone is clean from now on. Returns what it was.
    pub fn remove(&mut self, zone: u64) -> Option<Zone> {
        let left = self.take_left(zone);
        self.own.remove(&zone).or(left.then_some(Zone::LEFT))
    }

    fn take_left(&mut self, zone: u64) -> bool {
        let Some(range) = self.left_with(zone) else { return false };
        self.left.remove(&range.start);
        let rest = [range.start..zone, zone + 1..range.end];
        self.left.extend(rest.into_iter().filter(|rest| !rest.is_empty()).map(|rest| (rest.start, rest.end)));
        true
    }

    /// The zones that this opening has changed.
    pub fn own(&mut self) -> impl Iterator<Item = (u64, &mut Zone)> {
        self.own.iter_mut().map(|(at, zone)| (*at, zone))
    }

    /// All zones are clean from now on.
    pub fn clear(&mut self) {
        self.own.clear();
        self.left.clear();
    }

    /// Whether the sums of a zone are doubtful.
    pub fn is_stale(&self) -> bool {
        !self.left.is_empty() || self.own.values().any(|zone| zone.is_stale)
    }

    /// The first zones from `from` on, at most `most` of them, in which no write has begun since the sync of this
    /// epoch.
    pub fn idle_since(&self, epoch: u64, from: u64, most: usize) -> BTreeMap<u64, Zone> {
        let own = self.own.range(from..).filter(|(_, zone)| zone.is_idle_since(epoch)).map(|(at, zone)| (*at, *zone));
        let mut idle: BTreeMap<u64, Zone> = own.take(most).collect();
        let begin = self.left_with(from).map_or(from, |range| range.start);
        let left = self.left.range(begin..).flat_map(|(start, end)| from.max(*start)..*end);
        idle.extend(left.filter(|_| Zone::LEFT.is_idle_since(epoch)).take(most).map(|at| (at, Zone::LEFT)));
        if let Some(behind) = idle.keys().nth(most).copied() {
            let _for_later = idle.split_off(&behind);
        }
        idle
    }

    /// The marked zones, in no order.
    pub fn marked(&self) -> Vec<Range<u64>> {
        let own = self.own.iter().filter(|(_, zone)| zone.is_marked).map(|(at, _)| *at..*at + 1);
        own.chain(self.left.iter().map(|(start, end)| *start..*end)).collect()
    }

    /// Whether all of these zones are marked.
    pub fn has_marked(&self, zones: &BTreeSet<u64>) -> bool {
        zones.iter().all(|zone| self.get(*zone).is_some_and(|zone| zone.is_marked))
    }
}

/// What a head says.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Head {
    pub version: u64,
    /// Ranges of zones. None is empty.
    pub marked: Vec<Range<u64>>,
}

impl Head {
    /// The place of a head of this version, in pages.
    pub fn place(version: u64) -> u64 {
        version % 2
    }

    pub fn encode(&self, identity: &Identity, part: usize) -> Vec<u8> {
        let mut bytes = vec![0; PAGE_BYTES];
        let last = self.marked.iter().map(|range| range.end - 1).max().unwrap_or(0);
        let mut shift = 0;
        while last >> shift >= BITS {
            shift += 1;
        }
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..12].copy_from_slice(&FORMAT.to_le_bytes());
        bytes[12..16].copy_from_slice(&u32::to_le_bytes(shift));
        bytes[16..32].copy_from_slice(identity.array());
        bytes[32..40].copy_from_slice(&identity.number().to_le_bytes());
        bytes[40..48].copy_from_slice(&self.version.to_le_bytes());
        bytes[48..56].copy_from_slice(&(part as u64).to_le_bytes());
        for bit in self.marked.iter().flat_map(|range| range.start >> shift..=(range.end - 1) >> shift) {
            bytes[BITS_AT + bit as usize / 8] |= 1 << (bit % 8);
        }
        let check = xxh3_64(&bytes);
        bytes[CHECK_AT..BITS_AT].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    /// `None` if it is no head of this part. Marks of zones from `zones` on are left out.
    pub fn decode(identity: &Identity, part: usize, zones: u64, bytes: &[u8]) -> Option<Head> {
        let mut unchecked = bytes.to_vec();
        let check = u64_at(bytes, CHECK_AT)?;
        unchecked.get_mut(CHECK_AT..BITS_AT)?.fill(0);
        let is_of_part = bytes.len() == PAGE_BYTES
            && check == xxh3_64(&unchecked)
            && bytes[..8] == *MAGIC
            && bytes[8..12] == FORMAT.to_le_bytes()
            && bytes[16..32] == *identity.array()
            && u64_at(bytes, 32)? == identity.number()
            && u64_at(bytes, 48)? == part as u64;
        let shift = u64_at(bytes, 8)? >> 32;
        if !is_of_part || shift > 32 {
            return None;
        }
        let mut marked: Vec<Range<u64>> = Vec::new();
        for bit in (0..BITS).filter(|bit| bytes[BITS_AT + *bit as usize / 8] & 1 << (bit % 8) != 0) {
            let range = (bit << shift).min(zones)..((bit + 1) << shift).min(zones);
            match marked.last_mut() {
                Some(last) if last.end == range.start => last.end = range.end,
                _ if !range.is_empty() => marked.push(range),
                _ => {}
            }
        }
        Some(Head { version: u64_at(bytes, 40)?, marked })
    }
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

#[cfg(all(test, not(iomill_models)))]
mod tests {
    // A list of zones may have one range.
    #![allow(clippy::single_range_in_vec_init)]

    use super::*;
    use crate::catalog::Id;

    fn identity() -> Identity {
        Identity::new(Id([9; 16]), 7)
    }

    #[test]
    fn a_head_names_its_zones() {
        let head = Head { version: 5, marked: vec![0..1, 9..12, BITS - 1..BITS] };
        let bytes = head.encode(&identity(), 2);
        assert_eq!(Head::decode(&identity(), 2, BITS, &bytes), Some(head));
        assert_eq!(Head::decode(&identity(), 1, BITS, &bytes), None);
        assert_eq!(Head::decode(&Identity::new(Id([9; 16]), 8), 2, BITS, &bytes), None);
        for at in [0, 13, 41, 60, 64, 4095] {
            let mut rotten = bytes.clone();
            rotten[at] ^= 8;
            assert_eq!(Head::decode(&identity(), 2, BITS, &rotten), None, "byte {at}");
        }
    }

    /// In a long part a bit stands for several zones.
    #[test]
    fn far_zones_share_bits() {
        let head = Head { version: 1, marked: vec![3..4, 2 * BITS..2 * BITS + 1] };
        let bytes = head.encode(&identity(), 0);
        let found = Head::decode(&identity(), 0, u64::MAX, &bytes).unwrap();
        assert_eq!(found.marked, [0..4, 2 * BITS..2 * BITS + 4]);
        assert_eq!(Head::decode(&identity(), 0, 2, &bytes).unwrap().marked, [0..2], "of two zones");
    }

    /// A head may claim that each zone of a part of 4 PiB is marked. The memory for its marks stays small, whatever is
    /// asked of them.
    #[test]
    fn marks_of_a_part_of_4_pib_take_little_memory() {
        let all = (4 << 50) / (ZONE_PAGES * PAGE_BYTES as u64);
        for marked in [vec![0..all], (0..all).step_by(1 << 14).map(|at| at..at + 1).collect()] {
            let bytes = Head { version: 1, marked }.encode(&identity(), 0);
            let mut zones = Zones::with_left(Head::decode(&identity(), 0, all, &bytes).unwrap());
            assert!(zones.is_stale() && zones.get(0) == Some(Zone::LEFT) && zones.left.len() as u64 <= BITS);
            assert_eq!(zones.idle_since(1, 0, 16).len(), 16);
            zones.change(1 << 14).last = 3;
            assert_eq!(zones.remove(5), Some(Zone::LEFT));
            assert_eq!((zones.get(5), zones.own.len()), (None, 1));
            assert!(zones.left.len() as u64 <= BITS + 2 && zones.marked().len() as u64 <= BITS + 3);
        }
    }

    /// The zones of both kinds, as a set of single zones has them.
    #[test]
    fn zones_are_as_in_a_plain_map() {
        let mut random = fastrand::Rng::with_seed(3);
        for _ in 0..200 {
            let marked: Vec<Range<u64>> = (0..8).map(|at| at * 9..at * 9 + random.u64(1..9)).collect();
            let mut plain: BTreeMap<u64, Zone> =
                marked.iter().cloned().flatten().map(|zone| (zone, Zone::LEFT)).collect();
            let mut zones = Zones::with_left(Head { version: 1, marked });
            for _ in 0..60 {
                let zone = random.u64(0..80);
                if random.bool() {
                    let last = random.u64(0..5);
                    zones.change(zone).last = last;
                    plain.entry(zone).or_default().last = last;
                } else {
                    assert_eq!(zones.remove(zone), plain.remove(&zone));
                }
                assert!((0..80).all(|zone| zones.get(zone) == plain.get(&zone).copied()));
                let (epoch, from, most) = (random.u64(0..6), random.u64(0..80), random.usize(1..9));
                let idle = plain.range(from..).filter(|(_, zone)| zone.is_idle_since(epoch));
                let idle: BTreeMap<u64, Zone> = idle.take(most).map(|(at, zone)| (*at, *zone)).collect();
                assert_eq!(zones.idle_since(epoch, from, most), idle);
                let mut named: Vec<u64> = zones.marked().into_iter().flatten().collect();
                named.sort_unstable();
                let is_marked = |(at, zone): (&u64, &Zone)| zone.is_marked.then_some(*at);
                assert_eq!(named, plain.iter().filter_map(is_marked).collect::<Vec<u64>>());
            }
        }
    }
}

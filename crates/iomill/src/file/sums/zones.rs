//! The zones of a part, and the head of its file of sums, which says durably which of them are marked. Non-goals: I/O,
//! which `part` does.
//!
//! The head is written to two places in turn, so a head that was torn leaves the one before. The one with the highest
//! version counts. It may name more zones than are doubtful, and never fewer.

use std::collections::{BTreeMap, BTreeSet};

use xxhash_rust::xxh3::xxh3_64;

use super::page::{CHUNK_PAGES, Identity};
use crate::drive::PAGE_BYTES;

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
#[derive(Clone, Copy, Debug, Default)]
pub struct Zone {
    /// The head names it durably.
    pub is_marked: bool,
    /// An earlier opening has left its mark, so its sums on the drive are doubtful.
    pub is_stale: bool,
    /// Writes that have not ended.
    pub busy: u32,
    /// The epoch in which a write last began or ended.
    pub last: u64,
}

/// The zones that are not clean, by number.
pub type Zones = BTreeMap<u64, Zone>;

/// What a head says.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Head {
    pub version: u64,
    pub marked: BTreeSet<u64>,
}

impl Head {
    /// The place of a head of this version, in pages.
    pub fn place(version: u64) -> u64 {
        version % 2
    }

    pub fn encode(&self, identity: &Identity, part: usize) -> Vec<u8> {
        let mut bytes = vec![0; PAGE_BYTES];
        let mut shift = 0;
        while self.marked.last().is_some_and(|last| last >> shift >= BITS) {
            shift += 1;
        }
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..12].copy_from_slice(&FORMAT.to_le_bytes());
        bytes[12..16].copy_from_slice(&u32::to_le_bytes(shift));
        bytes[16..32].copy_from_slice(identity.array());
        bytes[32..40].copy_from_slice(&identity.number().to_le_bytes());
        bytes[40..48].copy_from_slice(&self.version.to_le_bytes());
        bytes[48..56].copy_from_slice(&(part as u64).to_le_bytes());
        for zone in &self.marked {
            let bit = (zone >> shift) as usize;
            bytes[BITS_AT + bit / 8] |= 1 << (bit % 8);
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
        let is_set = |bit: &u64| bytes[BITS_AT + *bit as usize / 8] & 1 << (bit % 8) != 0;
        let is_of_bit = |bit: u64| (bit << shift).min(zones)..((bit + 1) << shift).min(zones);
        let marked = (0..BITS).filter(is_set).flat_map(is_of_bit).collect();
        Some(Head { version: u64_at(bytes, 40)?, marked })
    }
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

#[cfg(all(test, not(iomill_models)))]
mod tests {
    use super::*;
    use crate::catalog::Id;

    #[test]
    fn a_head_names_its_zones() {
        let identity = Identity::new(Id([9; 16]), 7);
        let head = Head { version: 5, marked: BTreeSet::from([0, 9, BITS - 1]) };
        let bytes = head.encode(&identity, 2);
        assert_eq!(Head::decode(&identity, 2, BITS, &bytes), Some(head));
        assert_eq!(Head::decode(&identity, 1, BITS, &bytes), None);
        assert_eq!(Head::decode(&Identity::new(Id([9; 16]), 8), 2, BITS, &bytes), None);
        for at in [0, 13, 41, 60, 64, 4095] {
            let mut rotten = bytes.clone();
            rotten[at] ^= 8;
            assert_eq!(Head::decode(&identity, 2, BITS, &rotten), None, "byte {at}");
        }
    }

    /// In a long part a bit stands for several zones.
    #[test]
    fn far_zones_share_bits() {
        let identity = Identity::new(Id([9; 16]), 7);
        let head = Head { version: 1, marked: BTreeSet::from([3, 2 * BITS]) };
        let bytes = head.encode(&identity, 0);
        let found = Head::decode(&identity, 0, u64::MAX, &bytes).unwrap();
        assert_eq!(found.marked, BTreeSet::from([0, 1, 2, 3, 2 * BITS, 2 * BITS + 1, 2 * BITS + 2, 2 * BITS + 3]));
        assert_eq!(Head::decode(&identity, 0, 2, &bytes).unwrap().marked, BTreeSet::from([0, 1]), "of two zones");
    }
}

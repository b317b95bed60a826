//! [`SlotTable`]: a hash table of slot numbers. The keys stay where the slots are. Non-goals: what is in a slot.
//!
//! A file costs 7 bytes here on average. The table is cut into shards, so that growing moves a 64th of it at a time.

const SHARDS: usize = 64;
const EMPTY: u8 = 0;
const FIRST_CELLS: usize = 8;

/// Slot numbers by a hash. The caller compares keys, and hashes the key of a slot.
#[derive(Debug)]
pub struct SlotTable {
    shards: Vec<Shard>,
}

#[derive(Clone, Debug, Default)]
struct Shard {
    /// Eight bits of the hash, never zero, or `EMPTY`. As many as `slots`, a power of two.
    tags: Vec<u8>,
    slots: Vec<u32>,
    len: usize,
}

impl Default for SlotTable {
    fn default() -> SlotTable {
        SlotTable { shards: vec![Shard::default(); SHARDS] }
    }
}

fn tag_of(hash: u64) -> u8 {
    ((hash >> 48) as u8).max(1)
}

impl SlotTable {
    /// A table with room for `count` slots.
    pub fn with_capacity(count: usize) -> SlotTable {
        // A shard may get more than its share, and then grows.
        let cells = (count / SHARDS * 3 / 2).next_power_of_two();
        let shard = Shard { tags: vec![EMPTY; cells], slots: vec![0; cells], len: 0 };
        if count < SHARDS * FIRST_CELLS { SlotTable::default() } else { SlotTable { shards: vec![shard; SHARDS] } }
    }

    /// The slot with this hash for which `is_it` holds.
    pub fn find(&self, hash: u64, is_it: impl Fn(u32) -> bool) -> Option<u32> {
        let shard = &self.shards[(hash >> 58) as usize];
        if shard.tags.is_empty() {
            return None;
        }
        let (mask, tag) = (shard.tags.len() - 1, tag_of(hash));
        let mut at = hash as usize & mask;
        loop {
            match shard.tags[at] {
                EMPTY => return None,
                found if found == tag && is_it(shard.slots[at]) => return Some(shard.slots[at]),
                _ => at = (at + 1) & mask,
            }
        }
    }

    /// Adds a slot. `hash_of` gives the hash of a slot that is in the table.
    pub fn insert(&mut self, hash: u64, slot: u32, hash_of: impl Fn(u32) -> u64) {
        let shard = &mut self.shards[(hash >> 58) as usize];
        if (shard.len + 1) * 4 > shard.tags.len() * 3 {
            shard.grow(hash_of);
        }
        shard.put(hash, slot);
        shard.len += 1;
    }

    /// Removes a slot. Returns whether it was there. `hash_of` gives the hash of a slot that is in the table.
    pub fn remove(&mut self, hash: u64, slot: u32, hash_of: impl Fn(u32) -> u64) -> bool {
        let shard = &mut self.shards[(hash >> 58) as usize];
        if shard.tags.is_empty() {
            return false;
        }
        let mask = shard.tags.len() - 1;
        let mut hole = hash as usize & mask;
        while shard.slots[hole] != slot || shard.tags[hole] == EMPTY {
            if shard.tags[hole] == EMPTY {
                return false;
            }
            hole = (hole + 1) & mask;
        }
        // Later slots of the same run move up, unless that would put one before its home.
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            if shard.tags[at] == EMPTY {
                break;
            }
            let home = hash_of(shard.slots[at]) as usize & mask;
            if at.wrapping_sub(home) & mask >= at.wrapping_sub(hole) & mask {
                (shard.tags[hole], shard.slots[hole]) = (shard.tags[at], shard.slots[at]);
                hole = at;
            }
        }
        shard.tags[hole] = EMPTY;
        shard.len -= 1;
        true
    }

    /// The number of slots.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.len).sum()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of memory.
    pub fn memory_bytes(&self) -> usize {
        self.shards.iter().map(|shard| shard.tags.capacity() + 4 * shard.slots.capacity()).sum()
    }
}

impl Shard {
    /// There is an empty cell.
    fn put(&mut self, hash: u64, slot: u32) {
        let mask = self.tags.len() - 1;
        let mut at = hash as usize & mask;
        while self.tags[at] != EMPTY {
            at = (at + 1) & mask;
        }
        (self.tags[at], self.slots[at]) = (tag_of(hash), slot);
    }

    fn grow(&mut self, hash_of: impl Fn(u32) -> u64) {
        let cells = (self.tags.len() * 2).max(FIRST_CELLS);
        let tags = std::mem::replace(&mut self.tags, vec![EMPTY; cells]);
        let slots = std::mem::replace(&mut self.slots, vec![0; cells]);
        for (_, slot) in tags.iter().zip(slots).filter(|(tag, _)| **tag != EMPTY) {
            self.put(hash_of(slot), slot);
        }
    }
}

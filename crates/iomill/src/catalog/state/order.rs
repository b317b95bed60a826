//! [`Order`]: slot numbers in the order of their names. Non-goals: the names, which stay where the slots are.
//!
//! It has leaves of up to 512 slots, each sorted, one after the other. So an insertion moves little, and costs about 20
//! comparisons.

/// Most slots of a leaf.
const LEAF_MAX: usize = 512;

/// Slots, sorted by name. The caller gives the name of a slot.
#[derive(Debug, Default)]
pub struct Order {
    /// None is empty.
    leaves: Vec<Vec<u32>>,
}

/// A place in the order. It is good until the next change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rank {
    leaf: usize,
    at: usize,
}

impl Order {
    /// Makes the order of slots that are sorted.
    pub fn from_sorted(slots: &[u32]) -> Order {
        // Half full, so that the next insertions do not divide each leaf.
        Order { leaves: slots.chunks(LEAF_MAX / 2).map(<[u32]>::to_vec).collect() }
    }

    /// The first place with a name that is not before `name`.
    pub fn rank<'a>(&self, name: &str, name_of: impl Fn(u32) -> &'a str) -> Rank {
        self.first(|slot| name_of(slot) < name)
    }

    /// The first place with a slot for which `is_before` is false. It is true for all slots in front of that place.
    pub fn first(&self, is_before: impl Fn(u32) -> bool) -> Rank {
        let leaf = self.leaves.partition_point(|leaf| is_before(leaf[leaf.len() - 1]));
        let at = self.leaves.get(leaf).map_or(0, |leaf| leaf.partition_point(|slot| is_before(*slot)));
        Rank { leaf, at }
    }

    /// The slot at a place, and the next place.
    pub fn next(&self, rank: Rank) -> Option<(u32, Rank)> {
        let leaf = self.leaves.get(rank.leaf)?;
        match leaf.get(rank.at) {
            Some(slot) => Some((*slot, Rank { leaf: rank.leaf, at: rank.at + 1 })),
            None => Some((*self.leaves.get(rank.leaf + 1)?.first()?, Rank { leaf: rank.leaf + 1, at: 1 })),
        }
    }

    /// All slots of the leaf with this number. `None` behind the last.
    pub fn leaf(&self, number: usize) -> Option<&[u32]> {
        self.leaves.get(number).map(Vec::as_slice)
    }

    /// Adds a slot, which is not there.
    pub fn insert<'a>(&mut self, slot: u32, name_of: impl Fn(u32) -> &'a str) {
        if self.leaves.is_empty() {
            self.leaves.push(vec![slot]);
            return;
        }
        let mut rank = self.rank(name_of(slot), name_of);
        if rank.leaf == self.leaves.len() {
            rank = Rank { leaf: rank.leaf - 1, at: self.leaves[rank.leaf - 1].len() };
        }
        let leaf = &mut self.leaves[rank.leaf];
        leaf.insert(rank.at, slot);
        if leaf.len() > LEAF_MAX {
            // Names are often added in order: then the full leaf stays as it is.
            let half = if rank.at + 1 == leaf.len() { LEAF_MAX } else { LEAF_MAX / 2 };
            let rest = leaf.split_off(half);
            leaf.shrink_to_fit();
            self.leaves.insert(rank.leaf + 1, rest);
        }
    }

    /// Removes a slot. Returns whether it was there.
    pub fn remove<'a>(&mut self, slot: u32, name_of: impl Fn(u32) -> &'a str) -> bool {
        let rank = self.rank(name_of(slot), name_of);
        let Some(leaf) = self.leaves.get_mut(rank.leaf).filter(|leaf| leaf.get(rank.at) == Some(&slot)) else {
            return false;
        };
        leaf.remove(rank.at);
        if leaf.is_empty() {
            self.leaves.remove(rank.leaf);
        }
        true
    }

    /// Bytes of memory.
    pub fn memory_bytes(&self) -> usize {
        let leaves = self.leaves.iter().map(|leaf| 4 * leaf.capacity());
        leaves.sum::<usize>() + self.leaves.capacity() * size_of::<Vec<u32>>()
    }
}

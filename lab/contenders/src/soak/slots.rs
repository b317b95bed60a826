//! The version of each slot of the file, and the bytes of each version.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

use iomill::{Error, Result};

use crate::arena::SEED;
use crate::pattern::{self, PAGE_BYTES, mix};

/// Bytes of a slot, a divisor of a page. A write of one slot changes a part of a page, and a write of four slots a
/// whole page.
pub const SLOT_BYTES: usize = 1024;
/// Slots of a page.
pub const PAGE_SLOTS: u64 = (PAGE_BYTES / SLOT_BYTES) as u64;

/// The versions of all slots.
#[derive(Debug)]
pub struct Slots(Vec<Slot>);

#[derive(Debug, Default)]
struct Slot {
    begun: AtomicU32,
    done: AtomicU32,
}

/// Slots that a thread is about to read, with the versions that were done before.
#[derive(Debug)]
pub struct Seen<'a> {
    slots: &'a Slots,
    first: u64,
    done: Vec<u32>,
}

impl Slots {
    /// The slots of a file.
    pub fn new(len_bytes: u64) -> Slots {
        let slots = len_bytes / PAGE_BYTES as u64 * PAGE_SLOTS;
        let slots = Slots((0..slots).map(|_| Slot::default()).collect());
        // Writes to the memory. Otherwise the system would allocate it later, when it would count as the cache's.
        slots.0.iter().for_each(|slot| slot.done.store(0, Ordering::Relaxed));
        slots
    }

    /// The number of pages of the slots.
    pub fn pages(&self) -> u64 {
        self.0.len() as u64 / PAGE_SLOTS
    }

    fn of(&self, first: u64, count: usize) -> &[Slot] {
        &self.0[first as usize..first as usize + count]
    }

    /// Rule 3, before a read of whole slots. Acquire: pairs with the Release in `end`.
    pub fn seen_before(&self, offset: u64, len: usize) -> Seen<'_> {
        let first = offset / SLOT_BYTES as u64;
        let done = self.of(first, len / SLOT_BYTES).iter().map(|slot| slot.done.load(Ordering::Acquire)).collect();
        Seen { slots: self, first, done }
    }

    /// Rule 2: begins the next versions of some slots, and fills in their bytes. `end` follows the write. Release:
    /// pairs with the Acquire in `check`.
    pub fn begin(&self, slots: Range<u64>, bytes: &mut [u8]) {
        let of = self.of(slots.start, (slots.end - slots.start) as usize);
        for ((slot, number), bytes) in of.iter().zip(slots).zip(bytes.chunks_exact_mut(SLOT_BYTES)) {
            let version = slot.begun.load(Ordering::Relaxed).wrapping_add(1);
            slot.begun.store(version, Ordering::Release);
            fill(number, version, bytes);
        }
    }

    /// Rule 2: the begun versions are done. Release: pairs with the Acquire in `seen_before`.
    pub fn end(&self, slots: Range<u64>) {
        for slot in self.of(slots.start, (slots.end - slots.start) as usize) {
            slot.done.store(slot.begun.load(Ordering::Relaxed), Ordering::Release);
        }
    }
}

impl Seen<'_> {
    /// Rule 3, after the read. Acquire: pairs with the Release in `begin`.
    pub fn check(&self, bytes: &[u8]) -> Result<()> {
        if bytes.len() != self.done.len() * SLOT_BYTES {
            let what = format!(
                "a read of {} bytes at offset {}",
                self.done.len() * SLOT_BYTES,
                self.first * SLOT_BYTES as u64
            );
            return Err(Error::Tool {
                what,
                why: format!("it returned {} bytes, although the range is within the file", bytes.len()),
            });
        }
        let mut expected = [0; SLOT_BYTES];
        let slots = self.slots.of(self.first, self.done.len());
        for (index, (slot, bytes)) in slots.iter().zip(bytes.chunks_exact(SLOT_BYTES)).enumerate() {
            let (number, done) = (self.first + index as u64, self.done[index]);
            let begun = slot.begun.load(Ordering::Acquire);
            let is_right = (done..=begun).any(|version| {
                fill(number, version, &mut expected);
                expected == bytes
            });
            if !is_right {
                let what = format!("the {SLOT_BYTES} bytes at offset {}", number * SLOT_BYTES as u64);
                let why =
                    format!("they match no version from {done} to {begun} of what was written there: a wrong read");
                return Err(Error::Tool { what, why });
            }
        }
        Ok(())
    }
}

/// Rule 1: fills in the bytes of a version of a slot.
fn fill(slot: u64, version: u32, bytes: &mut [u8]) {
    let seed = if version == 0 { SEED } else { mix(SEED ^ u64::from(version)) };
    pattern::fill_bytes(seed, slot * SLOT_BYTES as u64, bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_versions_that_may_be_there_are_right() {
        let slots = Slots::new(3 * PAGE_BYTES as u64 + 5);
        assert_eq!(slots.pages(), 3);
        let (at, mut old, mut new) = (SLOT_BYTES as u64, vec![0; 2 * SLOT_BYTES], vec![0; 2 * SLOT_BYTES]);
        pattern::fill_bytes(SEED, at, &mut old);
        let before = slots.seen_before(at, old.len());
        before.check(&old).unwrap();
        slots.begin(1..3, &mut new);
        let during = slots.seen_before(at, old.len());
        // Half old and half new is right, because the halves are two slots.
        let mixed = [&old[..SLOT_BYTES], &new[SLOT_BYTES..]].concat();
        [&old, &new, &mixed].into_iter().for_each(|bytes| during.check(bytes).unwrap());
        slots.end(1..3);
        let after = slots.seen_before(at, old.len());
        after.check(&new).unwrap();
        during.check(&old).unwrap();
        let torn = [&new[..SLOT_BYTES / 2], &old[SLOT_BYTES / 2..]].concat();
        for wrong in [&old, &mixed, &torn] {
            let error = after.check(wrong).unwrap_err().to_string();
            assert!(error.contains("offset 1024") && error.contains("a wrong read"), "{error}");
        }
        assert!(slots.seen_before(0, SLOT_BYTES).check(&new[..SLOT_BYTES]).is_err(), "another slot's bytes");
    }
}

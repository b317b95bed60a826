//! The sum of a page, and a page of sums as it is on a drive. Non-goals: the places of these.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::catalog::Id;
use crate::drive::PAGE_BYTES;
use crate::sys::hash::xxh3_64;

/// The sum of a page of zeros.
pub const NONE: u32 = 0;
/// The bytes on the drive are unknown, because a write of the page has failed, or is in progress.
pub const UNKNOWN: u32 = 1;
/// Sums below are none.
const FIRST: u32 = 2;
/// Bytes of a page of sums before the sums: its own check.
const HEAD_BYTES: usize = 8;
/// The number of sums in a page of sums.
pub const CHUNK_PAGES: u64 = ((PAGE_BYTES - HEAD_BYTES) / 4) as u64;

/// Which file it is.
#[derive(Clone, Copy, Debug)]
pub struct Identity {
    array: [u8; 16],
    number: u64,
}

impl Identity {
    pub fn new(array: Id, number: u64) -> Identity {
        Identity { array: array.0, number }
    }

    pub fn array(&self) -> &[u8; 16] {
        &self.array
    }

    pub fn number(&self) -> u64 {
        self.number
    }

    /// The hash of a place in the file.
    fn at(&self, what: u64, number: u64) -> u64 {
        let mut bytes = [0; 40];
        bytes[..16].copy_from_slice(&self.array);
        bytes[16..24].copy_from_slice(&self.number.to_le_bytes());
        bytes[24..32].copy_from_slice(&what.to_le_bytes());
        bytes[32..].copy_from_slice(&number.to_le_bytes());
        xxh3_64(&bytes)
    }

    /// The sum of a page of the file, with its place (C56).
    pub fn sum(&self, page: u64, bytes: &[u8]) -> u32 {
        if is_zero(bytes) {
            return NONE;
        }
        let sum = (xxh3_64(bytes) ^ self.at(u64::MAX, page)) as u32;
        if sum < FIRST { sum + FIRST } else { sum }
    }

    /// The check of a page of sums, with its place: the position of its part, and its number there (C56, C57).
    fn check(&self, part: usize, chunk: u64, sums: &[u8]) -> u64 {
        xxh3_64(sums) ^ self.at(part as u64, chunk)
    }
}

fn is_zero(bytes: &[u8]) -> bool {
    // Most pages differ from zero within the first bytes.
    let (words, rest) = bytes.as_chunks::<16>();
    words.iter().all(|word| u128::from_ne_bytes(*word) == 0) && rest.iter().all(|byte| *byte == 0)
}

/// The sums of a stretch of a part, in memory.
#[derive(Debug)]
pub struct Chunk {
    sums: [AtomicU32; CHUNK_PAGES as usize],
    /// Whether its page on the drive had rotted. Then a sum that is [`UNKNOWN`] is lost.
    has_lost: bool,
    /// Whether its page on the drive is another.
    pub is_dirty: AtomicBool,
    /// Whether an operation has used it since `SumsMemory` last looked at it.
    is_used: AtomicBool,
    /// The number of its entry in `SumsMemory`.
    entry: AtomicU64,
}

impl Default for Chunk {
    fn default() -> Chunk {
        Chunk {
            sums: [const { AtomicU32::new(NONE) }; CHUNK_PAGES as usize],
            has_lost: false,
            is_dirty: AtomicBool::new(false),
            is_used: AtomicBool::new(false),
            entry: AtomicU64::new(u64::MAX),
        }
    }
}

impl Chunk {
    /// The sums of a page of sums that is not what was written: all of them are lost.
    pub fn lost() -> Chunk {
        let sums = [const { AtomicU32::new(UNKNOWN) }; CHUNK_PAGES as usize];
        Chunk { sums, has_lost: true, ..Chunk::default() }
    }

    /// The sum of a page of the stretch. `None` if it is lost: until the page is written again, no byte of it can be
    /// verified.
    pub fn get(&self, at: u64) -> Option<u32> {
        // Acquire: pairs with the Release in `set`.
        let sum = self.sums[at as usize].load(Ordering::Acquire);
        (!self.has_lost || sum != UNKNOWN).then_some(sum)
    }

    /// Whether this is its entry in `SumsMemory`. Relaxed, here and below: a page that looks new stays in memory.
    pub fn is_entry(&self, number: u64) -> bool {
        self.entry.load(Ordering::Relaxed) == number
    }

    pub fn set_entry(&self, number: u64) {
        self.entry.store(number, Ordering::Relaxed);
    }

    /// Notes that an operation uses it.
    pub fn note_use(&self) {
        // A load first: threads that read share the line.
        if !self.is_used.load(Ordering::Relaxed) {
            self.is_used.store(true, Ordering::Relaxed);
        }
    }

    /// Whether an operation has used it since the last call.
    pub fn take_use(&self) -> bool {
        self.is_used.swap(false, Ordering::Relaxed)
    }

    pub fn set(&self, at: u64, sum: u32) {
        // Before the mark is cleared its page is made, so a change that the page lacks marks it again.
        self.sums[at as usize].store(sum, Ordering::Release);
        self.is_dirty.store(true, Ordering::Release);
    }

    /// Takes the bytes of a page of sums. `None` if they are not what was written there.
    pub fn decode(identity: &Identity, part: usize, chunk: u64, bytes: &[u8]) -> Option<Chunk> {
        let decoded = Chunk::default();
        if is_zero(bytes) {
            return Some(decoded);
        }
        let (head, sums) = bytes.split_at(HEAD_BYTES);
        let check = identity.check(part, chunk, sums);
        let has_lost = head == (!check).to_le_bytes();
        if head != check.to_le_bytes() && !has_lost {
            return None;
        }
        let (words, _) = sums.as_chunks::<4>();
        for (sum, word) in decoded.sums.iter().zip(words) {
            sum.store(u32::from_le_bytes(*word), Ordering::Relaxed);
        }
        Some(Chunk { has_lost, ..decoded })
    }

    /// Writes the bytes of its page to `out`.
    pub fn encode(&self, identity: &Identity, part: usize, chunk: u64, out: &mut [u8]) {
        let (head, sums) = out.split_at_mut(HEAD_BYTES);
        let mut has_lost = false;
        for (sum, word) in self.sums.iter().zip(sums.as_chunks_mut::<4>().0) {
            let sum = sum.load(Ordering::Acquire);
            has_lost |= self.has_lost && sum == UNKNOWN;
            *word = sum.to_le_bytes();
        }
        let check = identity.check(part, chunk, sums);
        // A program that does not know lost sums takes the page for rotten.
        head.copy_from_slice(&if has_lost { !check } else { check }.to_le_bytes());
    }
}

#[cfg(all(test, not(iomill_models)))]
mod tests {
    use super::*;

    const FILE: Identity = Identity { array: [9; 16], number: 7 };

    #[test]
    fn a_sum_says_which_page_it_is() {
        let page = [3; PAGE_BYTES];
        let sum = FILE.sum(5, &page);
        assert!(sum >= FIRST);
        assert_ne!(sum, FILE.sum(6, &page), "another page");
        assert_ne!(sum, Identity { number: 8, ..FILE }.sum(5, &page), "another file");
        assert_ne!(sum, Identity { array: [8; 16], ..FILE }.sum(5, &page), "another array");
        for at in [0, 4095] {
            let mut rotten = page;
            rotten[at] ^= 1;
            assert_ne!(sum, FILE.sum(5, &rotten));
        }
        assert_eq!(FILE.sum(5, &[0; PAGE_BYTES]), NONE);
    }

    #[test]
    fn a_page_of_sums_says_which_it_is() {
        let chunk = Chunk::default();
        chunk.set(0, 77);
        chunk.set(CHUNK_PAGES - 1, 78);
        let mut bytes = [0; PAGE_BYTES];
        chunk.encode(&FILE, 1, 3, &mut bytes);
        let decoded = Chunk::decode(&FILE, 1, 3, &bytes).unwrap();
        let sums = [0, 1, CHUNK_PAGES - 1].map(|at| decoded.get(at));
        assert_eq!(sums, [Some(77), Some(NONE), Some(78)]);
        assert!(Chunk::decode(&FILE, 1, 2, &bytes).is_none() && Chunk::decode(&FILE, 0, 3, &bytes).is_none());
        for at in [0, 8, 4095] {
            let mut rotten = bytes;
            rotten[at] ^= 4;
            assert!(Chunk::decode(&FILE, 1, 3, &rotten).is_none());
        }
        assert!(Chunk::decode(&FILE, 1, 3, &[0; PAGE_BYTES]).is_some(), "a hole has no sums");
    }

    /// Lost sums stay lost on the drive, until each page was written.
    #[test]
    fn lost_sums_come_back_one_by_one() {
        let chunk = Chunk::lost();
        chunk.set(5, 77);
        let mut bytes = [0; PAGE_BYTES];
        chunk.encode(&FILE, 1, 3, &mut bytes);
        let decoded = Chunk::decode(&FILE, 1, 3, &bytes).unwrap();
        assert_eq!((decoded.get(5), decoded.get(6)), (Some(77), None));
        (0..CHUNK_PAGES).for_each(|at| decoded.set(at, 78));
        decoded.encode(&FILE, 1, 3, &mut bytes);
        let whole = Chunk::decode(&FILE, 1, 3, &bytes).unwrap();
        whole.set(6, UNKNOWN);
        assert_eq!((whole.get(5), whole.get(6)), (Some(78), Some(UNKNOWN)));
    }
}

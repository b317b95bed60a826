//! [`Index`]: the places of the granules of one drive, in memory that all processes of a machine share. Rules I1 to I6
//! of `docs/origin.md`. Non-goals: the file of the memory (`index/place`), and the right to append (`drive`).
//!
//! Nothing here is trusted. A slot is a hint to a place, the entry of the place has the sums, and a page with the right
//! sum is right. So readers take no lock: a torn or stale word causes a miss.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::geometry::Geometry;
use crate::identity::{Sums, mixed};
use crate::label::Label;
use crate::mapping::Mapping;
use crate::summary::{Entry, Life, sums_of, words_of};

mod claims;
mod place;

pub use claims::{Claim, Claimed};

/// See the module.
#[derive(Debug)]
pub struct Index {
    words: Mapping,
    shape: Shape,
    /// The death of the process of a test.
    #[cfg(test)]
    pub death: std::sync::Mutex<Option<std::sync::Arc<crate::faults::Death>>>,
}

/// A granule that the index has.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    pub place: u64,
    pub sums: Sums,
    /// The number of the region's life. Rule I6: a read is right only if the region has the same life afterwards.
    pub life: u64,
    slot: usize,
    seen: u64,
}

/// The offsets of the tables, in words.
#[derive(Clone, Copy, Debug)]
struct Shape {
    geometry: Geometry,
    buckets: u64,
    /// The first words of the tables.
    references: usize,
    pins: usize,
    claims: usize,
    objects: usize,
    slots: usize,
    entries: usize,
    words: usize,
}

/// The slots of a bucket, which is one cache line.
const SLOTS: usize = 8;
/// Bits of a slot for the place, counted from 1.
const PLACE_BITS: u32 = 36;
const REGION_WORDS: usize = 4;
/// Words for claims, in buckets like those of slots.
const CLAIMS: usize = 8192;
/// Words of a table of bits, by a hash of the object: set if granules of an object were written.
const OBJECTS: usize = 1 << 15;

/// Words of the head that name the index.
const HEAD: usize = 64;
const READY: usize = 12;
/// Words of the head for appenders, under the drive's lock.
const NEXT_LIFE: usize = 16;
const HAND: usize = 17;
const OPEN: usize = 18;
const LOADED: usize = 19;
const APPENDING: usize = 20;

/// The state of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// `None` if none of its granules is valid.
    pub life: Option<Life>,
    /// Granules that were appended to it in this life.
    pub filled: u32,
    /// Whether the file system has allocated its blocks.
    pub allocated: bool,
}

impl Shape {
    fn new(geometry: Geometry) -> Shape {
        let places = geometry.places();
        // A third more slots than places: two buckets of eight are then almost never full.
        let buckets = (places + places / 3).div_ceil(SLOTS as u64).max(2);
        let references = HEAD + REGION_WORDS * geometry.regions() as usize;
        let pins = references + places.div_ceil(64) as usize;
        // Buckets begin at cache lines.
        let claims = (pins + places.div_ceil(64) as usize).next_multiple_of(SLOTS);
        let objects = claims + CLAIMS;
        let slots = objects + OBJECTS;
        let entries = slots + buckets as usize * SLOTS;
        let words = entries + places as usize * geometry.entry_words();
        Shape { geometry, buckets, references, pins, claims, objects, slots, entries, words }
    }

    fn head(&self, label: &Label, boot: u128) -> [u64; 11] {
        let halves = |id: u128| [id as u64, (id >> 64) as u64];
        let ([c0, c1], [d0, d1], [b0, b1]) = (halves(label.cache), halves(label.drive), halves(boot));
        let g = &self.geometry;
        let magic = u64::from_le_bytes(*b"iomillx2");
        [magic, c0, c1, d0, d1, b0, b1, g.granule_bytes() as u64, g.region_bytes(), g.regions().into(), self.buckets]
    }
}

impl Index {
    fn word(&self, at: usize) -> &AtomicU64 {
        &self.words[at]
    }

    /// A step of an append, after which its process may be killed.
    fn step(&self) {
        #[cfg(test)]
        if let Some(death) = crate::notices::locked(&self.death).clone() {
            death.step();
        }
    }

    #[cfg(test)]
    fn geometry(&self) -> &Geometry {
        &self.shape.geometry
    }

    /// The memory of the index, in bytes.
    pub fn bytes(&self) -> u64 {
        self.shape.words as u64 * 8
    }

    /// The first slots of the two buckets of a tag.
    fn buckets(&self, tag: u64) -> [usize; 2] {
        let first = |hash: u64| (u128::from(hash) * u128::from(self.shape.buckets)) >> 64;
        [tag, mixed(tag)].map(|hash| self.shape.slots + first(hash) as usize * SLOTS)
    }

    fn slot(tag: u64, place: u64) -> u64 {
        tag << PLACE_BITS | (place + 1)
    }

    /// The place that a slot names, if the slot is of this tag.
    fn place_of(&self, slot: u64, tag: u64) -> Option<u64> {
        let place = (slot & ((1 << PLACE_BITS) - 1)).checked_sub(1)?;
        // The word may have any bits, so the place is checked.
        (slot >> PLACE_BITS == tag << PLACE_BITS >> PLACE_BITS && place < self.shape.geometry.places()).then_some(place)
    }

    fn entry_at(&self, place: u64) -> usize {
        self.shape.entries + place as usize * self.shape.geometry.entry_words()
    }

    /// The tag of the granule at a place, or 0.
    fn tag_at(&self, place: u64) -> u64 {
        // Acquire: pairs with the Release in `insert`, so that sums are no older than the tag.
        self.word(self.entry_at(place)).load(Acquire)
    }

    /// The entry of a place. The sums may be torn, if the place gets another granule meanwhile.
    pub fn entry(&self, place: u64) -> Entry {
        let (at, words) = (self.entry_at(place), self.shape.geometry.entry_words());
        let tag = self.tag_at(place);
        Entry { tag, sums: sums_of((1..words).map(|n| self.word(at + n).load(Relaxed))) }
    }

    /// The place of a granule, if a region has it. Rule I1.
    pub fn find(&self, tag: u64) -> Option<Found> {
        // Rule W3: a region without a life has no granules.
        self.found(tag).filter(|found| found.life != 0)
    }

    /// The same, for any state of the region.
    fn found(&self, tag: u64) -> Option<Found> {
        for bucket in self.buckets(tag) {
            for at in bucket..bucket + SLOTS {
                // Acquire: pairs with the Release in `insert`, so that the entry is there.
                let seen = self.word(at).load(Acquire);
                let Some(place) = self.place_of(seen, tag) else { continue };
                // Before the entry: if the region begins another life later, the number shows it.
                let life = self.life_at(place);
                let entry = self.entry(place);
                if entry.tag == tag {
                    return Some(Found { place, sums: entry.sums, life, slot: at, seen });
                }
            }
        }
        None
    }

    /// The number of the life of the region that has a place. 0 is none.
    pub fn life_at(&self, place: u64) -> u64 {
        // Acquire: pairs with the Release in `set_region`. Later reads are not older than the life.
        self.word(self.region_at(self.shape.geometry.region_of(place))).load(Acquire)
    }

    /// Notes that a granule was requested.
    pub fn touch(&self, place: u64) {
        let (at, bit) = (self.shape.references + (place / 64) as usize, 1 << (place % 64));
        let word = self.word(at);
        // A load first: the cache line of a hot granule stays shared.
        if word.load(Relaxed) & bit == 0 {
            word.fetch_or(bit, Relaxed);
        }
    }

    pub fn is_touched(&self, place: u64) -> bool {
        self.word(self.shape.references + (place / 64) as usize).load(Relaxed) & 1 << (place % 64) != 0
    }

    fn untouch(&self, place: u64) {
        self.word(self.shape.references + (place / 64) as usize).fetch_and(!(1 << (place % 64)), Relaxed);
    }

    /// Pins a granule, or unpins it. A place that gets another granule loses the mark. The caller holds the drive's
    /// lock: rule W7.
    pub fn pin(&self, place: u64, is_pinned: bool) {
        let (word, bit) = (self.word(self.shape.pins + (place / 64) as usize), 1 << (place % 64));
        if is_pinned {
            word.fetch_or(bit, Relaxed)
        } else {
            word.fetch_and(!bit, Relaxed)
        };
    }

    pub fn is_pinned(&self, place: u64) -> bool {
        self.word(self.shape.pins + (place / 64) as usize).load(Relaxed) & 1 << (place % 64) != 0
    }

    fn pin_words(&self) -> impl Iterator<Item = &AtomicU64> {
        let words = self.shape.pins..self.shape.pins + self.shape.geometry.places().div_ceil(64) as usize;
        words.map(|at| self.word(at))
    }

    /// The number of pinned granules of the drive.
    pub fn count_pinned(&self) -> u64 {
        self.pin_words().map(|word| u64::from(word.load(Relaxed).count_ones())).sum()
    }

    /// Unpins all granules, also those that are lost. Returns their number. The caller holds the drive's lock.
    pub fn unpin_all(&self) -> u64 {
        self.pin_words().map(|word| u64::from(word.swap(0, Relaxed).count_ones())).sum()
    }

    /// The pinned granules of a region.
    pub fn pinned(&self, region: u32) -> Vec<u64> {
        self.places(region).filter(|place| self.is_pinned(*place) && self.tag_at(*place) != 0).collect()
    }

    /// Forgets a found granule, because a page does not have its sum. Rule I3: any process may empty a slot that has
    /// not changed.
    pub fn forget(&self, found: &Found) {
        // AcqRel: as for the insertion of an empty slot. If another granule took the slot, it stays.
        let _lost = self.word(found.slot).compare_exchange(found.seen, 0, AcqRel, Relaxed);
    }

    /// Publishes a granule, after its bytes were written to a place. Rule I2: sums, then tag, then slot. The caller
    /// holds the drive's lock.
    pub fn insert(&self, place: u64, entry: &Entry) {
        let (at, tag) = (self.entry_at(place), entry.tag);
        for (n, word) in words_of(entry, self.shape.geometry.pages()).enumerate().skip(1) {
            self.word(at + n).store(word, Relaxed);
        }
        self.step();
        // Release: pairs with the Acquire in `tag_at`.
        self.word(at).store(tag, Release);
        self.step();
        self.untouch(place);
        self.pin(place, false);
        let slot = self.found(tag).map(|found| found.slot).unwrap_or_else(|| self.free_slot(tag, place));
        self.step();
        // Release: pairs with the Acquire in `find`.
        self.word(slot).store(Index::slot(tag, place), Release);
    }

    /// An empty slot for a tag, or the slot of another granule, which is forgotten.
    fn free_slot(&self, tag: u64, place: u64) -> usize {
        let buckets = self.buckets(tag);
        let empty = |bucket: &usize| (*bucket..*bucket + SLOTS).filter(|at| self.word(*at).load(Relaxed) == 0).count();
        let bucket = if empty(&buckets[1]) > empty(&buckets[0]) { buckets[1] } else { buckets[0] };
        let free = (bucket..bucket + SLOTS).find(|at| self.word(*at).load(Relaxed) == 0);
        // Any slot, except that of a pinned granule.
        let any = || (0..SLOTS).map(|n| bucket + (place as usize + n) % SLOTS);
        let is_pinned = |at: &usize| {
            let place = (self.word(*at).load(Relaxed) & ((1 << PLACE_BITS) - 1)).saturating_sub(1);
            place < self.shape.geometry.places() && self.is_pinned(place)
        };
        free.or_else(|| any().find(|at| !is_pinned(at))).unwrap_or(bucket + place as usize % SLOTS)
    }

    /// Forgets all granules of a region. Rule I4: before the region begins another life. The caller holds the drive's
    /// lock.
    pub fn clear(&self, region: u32) {
        for place in self.places(region) {
            self.pin(place, false);
            let tag = self.tag_at(place);
            if tag == 0 {
                continue;
            }
            let slot = Index::slot(tag, place);
            for bucket in self.buckets(tag) {
                let slots = (bucket..bucket + SLOTS).map(|at| self.word(at));
                slots.filter(|word| word.load(Relaxed) == slot).for_each(|word| word.store(0, Release));
            }
            self.step();
            self.word(self.entry_at(place)).store(0, Release);
            self.untouch(place);
        }
    }

    fn places(&self, region: u32) -> std::ops::Range<u64> {
        let first = self.shape.geometry.first_place(region);
        first..first + u64::from(self.shape.geometry.places_of_region())
    }

    fn region_at(&self, region: u32) -> usize {
        HEAD + REGION_WORDS * region as usize
    }

    pub fn region(&self, region: u32) -> Region {
        let at = self.region_at(region);
        let [number, salt, filled, state] = std::array::from_fn(|n| self.word(at + n).load(Relaxed));
        let life = (number != 0).then_some(Life { number, salt });
        let most = self.shape.geometry.places_of_region();
        Region {
            life,
            filled: u32::try_from(filled).map_or(most, |filled| filled.min(most)),
            allocated: state & 1 != 0,
        }
    }

    /// The caller holds the drive's lock.
    pub fn set_region(&self, region: u32, to: Region) {
        let at = self.region_at(region);
        let (number, salt) = to.life.map_or((0, 0), |life| (life.number, life.salt));
        let words = [number, salt, to.filled.into(), to.allocated.into()];
        // Release: pairs with the Acquire in `life_at`. A reader that sees the end of a life sees it before the bytes
        // of the next one.
        for (n, word) in words.into_iter().enumerate() {
            self.step();
            self.word(at + n).store(word, Release);
        }
    }

    /// The region in a word of the head, or none.
    fn region_word(&self, at: usize) -> Option<u32> {
        let region = u32::try_from(self.word(at).load(Relaxed)).ok()?.checked_sub(1)?;
        (region < self.shape.geometry.regions()).then_some(region)
    }

    fn set_region_word(&self, at: usize, region: Option<u32>) {
        self.word(at).store(region.map_or(0, |region| u64::from(region) + 1), Relaxed);
    }

    /// The region that is being filled.
    pub fn open_region(&self) -> Option<u32> {
        self.region_word(OPEN)
    }

    pub fn set_open_region(&self, region: Option<u32>) {
        self.set_region_word(OPEN, region);
    }

    /// The region of an append in flight, also if the process of the append has died.
    pub fn appending(&self) -> Option<u32> {
        self.region_word(APPENDING)
    }

    pub fn set_appending(&self, region: Option<u32>) {
        self.set_region_word(APPENDING, region);
    }

    /// The number of regions that were read since the index was made. Rule I5: fills wait for the last one.
    pub fn loaded(&self) -> u32 {
        // Acquire: pairs with the Release in `set_loaded`.
        self.word(LOADED).load(Acquire).min(self.shape.geometry.regions().into()) as u32
    }

    pub fn set_loaded(&self, regions: u32) {
        // Release: a process that sees the count sees the loaded regions.
        self.word(LOADED).store(regions.into(), Release);
    }

    pub fn is_loaded(&self) -> bool {
        self.loaded() == self.shape.geometry.regions()
    }

    /// The region with which eviction continues.
    pub fn hand(&self) -> u32 {
        (self.word(HAND).load(Relaxed) % u64::from(self.shape.geometry.regions())) as u32
    }

    pub fn set_hand(&self, region: u32) {
        self.word(HAND).store(region.into(), Relaxed);
    }

    /// A life that no region of the drive has had. The caller holds the drive's lock.
    pub fn next_life(&self, salt: u64) -> Life {
        let number = self.word(NEXT_LIFE).load(Relaxed).saturating_add(1);
        self.word(NEXT_LIFE).store(number, Relaxed);
        Life { number, salt }
    }

    /// Notes a life that was found on the drive.
    pub fn saw_life(&self, life: Life) {
        self.word(NEXT_LIFE).fetch_max(life.number, Relaxed);
    }

    /// Whether granules of an object may have been written since the index was made.
    pub fn may_have_object(&self, hash: u64) -> bool {
        let (at, bit) = self.object_bit(hash);
        self.word(at).load(Relaxed) & bit != 0
    }

    /// Notes that granules of an object were written.
    pub fn note_object(&self, hash: u64) {
        let (at, bit) = self.object_bit(hash);
        self.word(at).fetch_or(bit, Relaxed);
    }

    fn object_bit(&self, hash: u64) -> (usize, u64) {
        (self.shape.objects + (hash >> 6) as usize % OBJECTS, 1 << (hash % 64))
    }

    /// The granules of a region that were requested since they were written, or since eviction passed the region.
    pub fn touched(&self, region: u32) -> Vec<u64> {
        self.places(region).filter(|place| self.is_touched(*place) && self.tag_at(*place) != 0).collect()
    }

    /// Eviction has passed over a region.
    pub fn untouch_region(&self, region: u32) {
        self.touched(region).into_iter().for_each(|place| self.untouch(place));
    }
}

#[cfg(test)]
mod tests;

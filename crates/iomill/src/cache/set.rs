//! One page set: a header in memory, which readers search without a lock, and which changes under a lock.
//!
//! A header is an array of words. A lookup begins with its first cache line. A set of 12 ways has four lines:
//!
//! ```text
//! line 0    version (32 bits), 12 tags (8 bits each), 12 frames (32 bits each)      a lookup reads this line
//! line 1-2  12 keys (64 bits each)                                                  and one key
//! line 2-3  masks: filling, dirty, flushing, marked; clock, hand, waiters, transit;
//!           metadata of the policy, 2 bytes a way; ghosts
//! ```
//!
//! Rules:
//! 1. The version is odd while the set is locked, and changes with every unlock. A reader that looks for dirty pages
//!    without the lock believes what it saw only if the version is unchanged and even. A reader that looks for a page
//!    needs no version: the frame's occupant proves what it found (`occupants`).
//! 2. Under the lock only its holder writes. The exception is the hit metadata ([`Locked::meta`]): hits change it by
//!    compare-and-exchange without the lock, and the holder's stores may overwrite hits. It is advice, and no
//!    correctness depends on it.
//! 3. A way is free (no tag, not filling), filling (no tag, its key set and its bit in `filling`) or present (tag and
//!    key set). Lookups go by tags, so they find only present ways.
//! 4. Dirty, flushing and marked ways are present.

use crate::cache::key::{Key, KeyHash};
use crate::cache::lanes::lane_of;
#[cfg(not(iomill_models))]
use crate::sys::sync::AtomicU32;
use crate::sys::sync::{AtomicU64, Ordering, fence, spin_wait};

const LOCKED: u64 = 1;

/// The most frames, in all caches over one memory.
pub const FRAMES_MAX: u64 = 1 << 31;

/// The mask of the version in word 0. Its lowest bit is [`LOCKED`], so an increment unlocks.
const VERSION: u64 = 0xFFFF_FFFF;

/// The fewest ways of a set. All numbers of ways are multiples of 4.
pub const WAYS_MIN: usize = 4;
/// The most ways of a set.
pub const WAYS_MAX: usize = 32;
/// The default number of ways of a set: a header is then four whole cache lines. `docs/cache.md` has the figures.
pub const WAYS_DEFAULT: usize = 12;

/// The layout of a header. Places are indices of words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Ways of a set.
    pub ways: usize,
    frames: usize,
    state: usize,
    meta: usize,
    aux: usize,
    keys: usize,
    ghosts: usize,
    /// Words from one header to the next: whole cache lines.
    pub stride: usize,
    /// The mask of all ways.
    all: u32,
}

impl Shape {
    /// The shape of a set of `ways` ways; `None` if that is not a multiple of 4 from 4 to 32.
    pub fn new(ways: usize) -> Option<Shape> {
        (ways.is_multiple_of(4) && (WAYS_MIN..=WAYS_MAX).contains(&ways)).then(|| Shape::of(ways))
    }

    fn of(ways: usize) -> Shape {
        let frames = 1 + (ways - 4).div_ceil(8);
        let keys = frames + ways / 2;
        let state = keys + ways;
        let meta = state + 3;
        let aux = meta + ways.div_ceil(8);
        let ghosts = aux + ways.div_ceil(8);
        let stride = (ghosts + ways / 4).next_multiple_of(8);
        let all = u32::MAX >> (32 - ways);
        Shape { all, ways, frames, state, meta, aux, keys, ghosts, stride }
    }

    /// The mask of all ways.
    #[inline]
    pub fn all(&self) -> u32 {
        self.all
    }
}

/// What a lookup without the lock has found. It is a proposal: the frame's occupant proves it (rule 5 of
/// `occupants`).
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// The way.
    pub way: u32,
    /// Its frame.
    pub frame: u32,
}

/// A set's header.
#[derive(Clone, Copy)]
pub struct Set<'a> {
    shape: &'a Shape,
    words: &'a [AtomicU64],
}

/// How a hit changes the way's byte of metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HitRule {
    /// Not at all.
    Nothing,
    /// The byte becomes the set's clock (recency, as coarse as the clock), with a flag for "hit" in its lowest bit.
    Stamp,
    /// The byte counts hits up to this number.
    Count(u8),
}

impl<'a> Set<'a> {
    /// The header in these words.
    #[inline]
    pub fn new(shape: &'a Shape, words: &'a [AtomicU64]) -> Set<'a> {
        debug_assert_eq!(words.len(), shape.stride);
        Set { shape, words }
    }

    #[inline(always)]
    fn word(&self, index: usize) -> &'a AtomicU64 {
        // SAFETY: every index is computed by `Shape::new`, below the stride, which is the number of words (`new`).
        unsafe { self.words.get_unchecked(index) }
    }

    /// The word of a way's frame. All accesses to frames go through it, by 32 bits, so that no two accesses of
    /// different sizes overlap.
    #[cfg(not(iomill_models))]
    #[inline(always)]
    fn frame_word(&self, way: usize) -> &'a AtomicU32 {
        debug_assert!(way < self.shape.ways);
        // SAFETY: from word `frames` on there are two frames a word for all ways (`Shape::new`), in memory that is
        // borrowed for 'a. The frames are aligned, because words are.
        unsafe { &*self.words.as_ptr().add(self.shape.frames).cast::<AtomicU32>().add(way) }
    }

    #[cfg(not(iomill_models))]
    #[inline(always)]
    fn frame(&self, way: usize) -> u32 {
        self.frame_word(way).load(Ordering::Relaxed)
    }

    #[cfg(not(iomill_models))]
    #[inline(always)]
    fn set_frame(&self, way: usize, to: u32) {
        self.frame_word(way).store(to, Ordering::Relaxed);
    }

    /// In a model a header's words cannot be cut in two.
    #[cfg(iomill_models)]
    fn frame(&self, way: usize) -> u32 {
        (self.word(self.shape.frames + way / 2).load(Ordering::Relaxed) >> (way % 2 * 32)) as u32
    }

    #[cfg(iomill_models)]
    fn set_frame(&self, way: usize, to: u32) {
        let (word, shift) = (self.word(self.shape.frames + way / 2), way % 2 * 32);
        let before = word.load(Ordering::Relaxed);
        word.store(before & !(0xFFFF_FFFF << shift) | u64::from(to) << shift, Ordering::Relaxed);
    }

    /// Looks a page up without the lock. While the set changes, it may miss a page that is there, or propose the frame
    /// of another page.
    #[inline(always)]
    pub fn find(&self, key: Key, hash: KeyHash) -> Option<Seen> {
        let mut matches = self.tag_matches(hash.tag());
        while matches != 0 {
            let way = matches.trailing_zeros() as usize;
            if self.word(self.shape.keys + way).load(Ordering::Relaxed) == key.word() {
                return Some(Seen { way: way as u32, frame: self.frame(way) });
            }
            matches &= matches - 1;
        }
        None
    }

    /// The ways with the tag `tag`.
    #[cfg(all(target_arch = "x86_64", not(any(miri, iomill_models))))]
    #[inline(always)]
    fn tag_matches(&self, tag: u8) -> u32 {
        // Sets of up to 12 ways have their tags in two words. In smaller sets the mask clears the bits beyond the tags.
        let mut matches = self.equal_bytes(0, tag) >> 4;
        if self.shape.frames > 2 {
            for index in 2..self.shape.frames {
                matches |= (self.equal_bytes(index, tag) & 0xFF) << (8 * index - 4);
            }
        }
        matches & self.shape.all()
    }

    #[cfg(not(all(target_arch = "x86_64", not(any(miri, iomill_models)))))]
    fn tag_matches(&self, tag: u8) -> u32 {
        tag_matches_by_words(self.shape, tag, |index| self.word(index).load(Ordering::Relaxed))
    }

    /// A mask of the bytes of two words that equal `byte`. The words are read one by one, which rule 1 allows.
    #[cfg(all(target_arch = "x86_64", not(any(miri, iomill_models))))]
    #[inline(always)]
    fn equal_bytes(&self, index: usize, byte: u8) -> u32 {
        debug_assert!(index + 1 < self.shape.stride);
        // SAFETY: SSE2 is part of x86-64, and AVX is used only if the build demands it of the processor. The assembly
        // reads two words of the header. To the language it is opaque code with the effect of relaxed loads of the
        // tags: where the second word has frames, its bits are dropped.
        unsafe {
            use core::arch::x86_64::*;
            let mut equal = _mm_set1_epi8(byte as i8);
            // The older instructions would wait for the register's last load, as in `copy`.
            #[cfg(target_feature = "avx")]
            core::arch::asm!("vpcmpeqb {equal}, {equal}, [{at}]",
                at = in(reg) self.words.as_ptr().add(index), equal = inout(xmm_reg) equal,
                options(readonly, pure, nostack, preserves_flags));
            #[cfg(not(target_feature = "avx"))]
            core::arch::asm!("movups {words}, [{at}]", "pcmpeqb {equal}, {words}",
                at = in(reg) self.words.as_ptr().add(index), words = out(xmm_reg) _, equal = inout(xmm_reg) equal,
                options(readonly, pure, nostack, preserves_flags));
            _mm_movemask_epi8(equal) as u32
        }
    }

    /// Notes a hit on a way (rule 2). Stores only if the byte changes.
    #[inline]
    pub fn hit(&self, way: usize, rule: HitRule) {
        let HitRule::Stamp = rule else { return self.count(way, rule) };
        let clock = self.word(self.shape.state + 2).load(Ordering::Relaxed) as u8;
        self.set_meta(way, clock << 1 | 1);
    }

    #[inline]
    fn count(&self, way: usize, rule: HitRule) {
        let HitRule::Count(most) = rule else { return };
        let now = self.word(self.shape.meta + way / 8).load(Ordering::Relaxed) >> (way % 8 * 8);
        if (now as u8) < most {
            self.set_meta(way, now as u8 + 1);
        }
    }

    #[inline]
    fn set_meta(&self, way: usize, to: u8) {
        let word = self.word(self.shape.meta + way / 8);
        let before = word.load(Ordering::Relaxed);
        let shift = way % 8 * 8;
        let after = before & !(0xFF << shift) | u64::from(to) << shift;
        if before != after {
            // If another thread changes the word at this moment, its change wins: the byte is advice.
            let _ = word.compare_exchange(before, after, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Locks the set; `None` if it is locked already. Acquire: pairs with the Release in the drop of `Locked`.
    pub fn try_lock(&self) -> Option<Locked<'a>> {
        let head = self.word(0).load(Ordering::Relaxed);
        if head & LOCKED != 0 {
            return None;
        }
        let taken = self.word(0).compare_exchange(head, head | LOCKED, Ordering::Acquire, Ordering::Relaxed);
        taken.ok()?;
        // A reader must not see a write under the lock before it sees the odd version (rule 1). Release: pairs with the
        // Acquire fence in `Set::is_any_dirty`.
        fence(Ordering::Release);
        Some(Locked { set: *self })
    }

    /// Locks the set, and spins until that succeeds. A thread holds the lock for less than a microsecond, except while
    /// a caller's memory is paged in.
    pub fn lock(&self) -> Locked<'a> {
        let mut tries = 0;
        loop {
            if let Some(locked) = self.try_lock() {
                return locked;
            }
            spin_wait(&mut tries);
        }
    }

    /// The address of a line of the header, for a prefetch.
    #[inline]
    pub fn line(&self, index: usize) -> *const u8 {
        self.words.as_ptr().wrapping_add(index * 8).cast()
    }

    /// Whether the way in which a page was seen is dirty. Read without the lock, so the answer may be out of date, or
    /// another page's.
    pub fn is_dirty(&self, seen: Seen) -> bool {
        self.word(self.shape.state).load(Ordering::Relaxed) >> (32 + seen.way) & 1 == 1
    }

    /// Whether any way may be dirty or flushing; `true` also while the set is locked. It reads as rule 1 says: after
    /// `false` the caller sees everything that the cleaning threads had seen. Acquire: pairs with the Release in the
    /// drop of `Locked`.
    pub fn is_any_dirty(&self) -> bool {
        let head = self.word(0).load(Ordering::Acquire);
        let [states, more] = [0, 1].map(|i| self.word(self.shape.state + i).load(Ordering::Relaxed));
        // Acquire: pairs with the Release fence in `Set::try_lock`.
        fence(Ordering::Acquire);
        let now = self.word(0).load(Ordering::Relaxed);
        states >> 32 != 0 || more as u32 != 0 || head & LOCKED != 0 || now as u32 != head as u32
    }

    /// Whether the set may have a page of a file. Read without the lock: a page that is admitted at this moment may be
    /// missed, and an evicted page may be seen.
    pub fn may_hold(&self, file: u32) -> bool {
        let keys = self.shape.keys..self.shape.keys + self.shape.ways;
        keys.into_iter().any(|index| Key::from_word(self.word(index).load(Ordering::Relaxed)).file() == file)
    }
}

/// The ways with the tag `tag`, from words of the header that `load` loads. These are the words of tags alone: the
/// words behind them hold frames, which are accessed by 32 bits.
#[cfg(any(test, not(all(target_arch = "x86_64", not(any(miri, iomill_models))))))]
fn tag_matches_by_words(shape: &Shape, tag: u8, load: impl Fn(usize) -> u64) -> u32 {
    let mut matches = 0;
    for index in 0..shape.frames {
        let equal = load(index).to_le_bytes().map(|byte| u64::from(byte == tag));
        let equal = (0..8).fold(0, |mask, byte| mask | equal[byte] << byte);
        // The first four bytes are no tags.
        matches |= equal << (8 * index) >> 4;
    }
    matches as u32 & shape.all()
}

/// A locked set. A drop unlocks it.
pub struct Locked<'a> {
    set: Set<'a>,
}

impl Drop for Locked<'_> {
    #[inline]
    fn drop(&mut self) {
        let word = self.set.word(0);
        let head = word.load(Ordering::Relaxed);
        let version = (head & VERSION).wrapping_add(1) & VERSION;
        // Release: pairs with the Acquire in `Set::try_lock` and `Set::is_any_dirty`.
        word.store(head & !VERSION | version, Ordering::Release);
    }
}

impl<'a> Locked<'a> {
    /// The ways of the set.
    #[inline]
    pub fn ways(&self) -> usize {
        self.set.shape.ways
    }

    /// The mask of all ways.
    #[inline]
    pub fn all(&self) -> u32 {
        self.set.shape.all()
    }

    #[inline]
    fn get(&self, word: usize) -> u64 {
        self.set.word(word).load(Ordering::Relaxed)
    }

    #[inline]
    fn put(&mut self, word: usize, value: u64) {
        self.set.word(word).store(value, Ordering::Relaxed);
    }

    #[inline]
    fn byte(&self, base: usize, way: usize) -> u8 {
        (self.get(base + way / 8) >> (way % 8 * 8)) as u8
    }

    #[inline]
    fn put_byte(&mut self, base: usize, way: usize, to: u8) {
        let shift = way % 8 * 8;
        let word = self.get(base + way / 8) & !(0xFF << shift) | u64::from(to) << shift;
        self.put(base + way / 8, word);
    }

    #[inline]
    fn half(&self, word: usize, high: usize) -> u32 {
        (self.get(word) >> (32 * high)) as u32
    }

    #[inline]
    fn put_half(&mut self, word: usize, high: usize, to: u32) {
        let shift = 32 * high;
        let value = self.get(word) & !(0xFFFF_FFFF << shift) | u64::from(to) << shift;
        self.put(word, value);
    }

    /// The way of a page that is present or filling.
    pub fn find(&self, key: Key, hash: KeyHash) -> Option<usize> {
        let mut matches = self.set.tag_matches(hash.tag()) | self.filling();
        while matches != 0 {
            let way = matches.trailing_zeros() as usize;
            if self.get(self.set.shape.keys + way) == key.word() {
                return Some(way);
            }
            matches &= matches - 1;
        }
        None
    }

    /// The ways that are present.
    pub fn present(&self) -> u32 {
        !self.set.tag_matches(0) & self.all()
    }

    /// The ways that are neither present nor filling.
    pub fn free(&self) -> u32 {
        self.set.tag_matches(0) & !self.filling()
    }

    /// The key of the page in a way that is not free.
    pub fn key(&self, way: usize) -> Key {
        Key::from_word(self.get(self.set.shape.keys + way))
    }

    /// The frame of a way.
    pub fn frame(&self, way: usize) -> u32 {
        self.set.frame(way)
    }

    /// Sets the frame of a way that is not marked.
    pub fn set_frame(&mut self, way: usize, frame: u32) {
        debug_assert!(!Locked::has(self.marked(), way));
        self.set.set_frame(way, frame);
    }

    fn set_tag(&mut self, way: usize, tag: u8) {
        // Tags are bytes 4 to 7 of word 0, then those of the words after it.
        self.put_byte(0, way + 4, tag);
    }

    /// Makes a free or filling way present.
    pub fn set_present(&mut self, way: usize, key: Key, hash: KeyHash) {
        self.put(self.set.shape.keys + way, key.word());
        self.set_filling(way, false);
        self.set_tag(way, hash.tag());
    }

    /// Makes a free way filling. A thread that looks the page up under the lock now finds it busy.
    pub fn begin_filling(&mut self, way: usize, key: Key) {
        self.put(self.set.shape.keys + way, key.word());
        self.set_filling(way, true);
    }

    /// Frees a way, whatever its state.
    pub fn set_free(&mut self, way: usize) {
        self.set_tag(way, 0);
        self.set_filling(way, false);
        self.set_dirty(way, false);
        self.set_flushing(way, false);
        self.set_marked(way, false);
    }

    /// The set's clock, of 7 bits. The policy advances it.
    pub fn clock(&self) -> u8 {
        self.byte(self.set.shape.state + 2, 0)
    }

    /// Sets the clock, to a value below 128.
    pub fn set_clock(&mut self, clock: u8) {
        debug_assert!(clock < 128);
        self.put_byte(self.set.shape.state + 2, 0, clock);
    }

    /// The policy's hand.
    pub fn hand(&self) -> u8 {
        self.byte(self.set.shape.state + 2, 1)
    }

    /// Moves the hand.
    pub fn set_hand(&mut self, hand: u8) {
        self.put_byte(self.set.shape.state + 2, 1, hand);
    }

    /// The number of pages of this set for which threads wait.
    pub fn waiters(&self) -> u16 {
        (self.get(self.set.shape.state + 2) >> 16) as u16
    }

    /// Sets the number of pages for which threads wait.
    pub fn set_waiters(&mut self, count: u16) {
        let word = self.get(self.set.shape.state + 2) & !0xFFFF_0000;
        self.put(self.set.shape.state + 2, word | u64::from(count) << 16);
    }

    /// The number of pages of this set in the transit table.
    pub fn transit(&self) -> u8 {
        self.byte(self.set.shape.state + 2, 4)
    }

    /// Sets the number of pages in the transit table.
    pub fn set_transit(&mut self, count: u8) {
        self.put_byte(self.set.shape.state + 2, 4, count);
    }

    /// The policy's scratch, of 24 bits.
    pub fn scratch(&self) -> u32 {
        (self.get(self.set.shape.state + 2) >> 40) as u32
    }

    /// Sets the scratch, to a value below 2^24.
    pub fn set_scratch(&mut self, to: u32) {
        debug_assert!(to < 1 << 24);
        let word = self.get(self.set.shape.state + 2) & !(0xFF_FFFF << 40);
        self.put(self.set.shape.state + 2, word | u64::from(to) << 40);
    }

    /// Whether a way is in a mask.
    #[inline]
    pub fn has(mask: u32, way: usize) -> bool {
        mask >> way & 1 == 1
    }

    /// The way's byte of metadata that hits change (see [`HitRule`]).
    pub fn meta(&self, way: usize) -> u8 {
        self.byte(self.set.shape.meta, way)
    }

    /// Sets the byte that hits change. A hit at the same moment is lost.
    pub fn set_meta(&mut self, way: usize, to: u8) {
        // Hits on all ways of the word are lost between the load and the store: they are advice (rule 2).
        self.put_byte(self.set.shape.meta, way, to);
    }

    /// The bytes of [`Locked::meta`] of all ways. Those beyond the last way mean nothing.
    pub fn metas(&self) -> [u8; WAYS_MAX] {
        self.bytes(self.set.shape.meta)
    }

    /// The bytes of [`Locked::aux`] of all ways. Those beyond the last way mean nothing.
    pub fn auxes(&self) -> [u8; WAYS_MAX] {
        self.bytes(self.set.shape.aux)
    }

    fn bytes(&self, base: usize) -> [u8; WAYS_MAX] {
        let mut bytes = [0; WAYS_MAX];
        for (index, eight) in bytes.chunks_exact_mut(8).enumerate().take(self.ways().div_ceil(8)) {
            eight.copy_from_slice(&self.get(base + index).to_le_bytes());
        }
        bytes
    }

    /// The way's byte of metadata that only the holder of the lock changes.
    pub fn aux(&self, way: usize) -> u8 {
        self.byte(self.set.shape.aux, way)
    }

    /// Sets the byte that only the holder of the lock changes.
    pub fn set_aux(&mut self, way: usize, to: u8) {
        self.put_byte(self.set.shape.aux, way, to);
    }

    /// The index of a ghost. There are as many ghosts as ways, with 16 bits each.
    pub fn find_ghost(&self, ghost: u16) -> Option<usize> {
        let words = 0..self.ways() / 4;
        words.into_iter().find_map(|at| Some(4 * at + lane_of(self.get(self.set.shape.ghosts + at), ghost)?))
    }

    /// The index and the value of a ghost that equals `ghost` in all but the bits `bits`.
    pub fn find_ghost_but(&self, ghost: u16, bits: u16) -> Option<(usize, u16)> {
        let mask = u64::from(!bits) * 0x0001_0001_0001_0001;
        (0..self.ways() / 4).find_map(|at| {
            let word = self.get(self.set.shape.ghosts + at);
            let lane = lane_of(word & mask, ghost & !bits)?;
            Some((4 * at + lane, (word >> (16 * lane)) as u16))
        })
    }

    /// The number of ghosts that are even and not 0, and the number of odd ones.
    pub fn count_ghosts(&self) -> (u32, u32) {
        const LOW: u64 = 0x0001_0001_0001_0001;
        const REST: u64 = 0x7FFF * LOW;
        let words = (0..self.ways() / 4).map(|at| self.get(self.set.shape.ghosts + at));
        let (any, odd) = words.fold((0, 0), |(any, odd), word| {
            // All ones, added to the upper 15 bits of a lane, carry into its top bit if any of these bits is set.
            let is_any = (((word >> 1 & REST) + REST) >> 15 & LOW).count_ones();
            (any + is_any, odd + (word & LOW).count_ones())
        });
        (any - odd, odd)
    }

    /// Copies the pages and notes of a set of the same shape that has no frames. The lock stays.
    pub fn copy_from(&mut self, other: &Locked<'_>) {
        self.put(0, self.get(0) & VERSION | other.get(0) & !VERSION);
        (1..self.set.shape.stride).for_each(|word| self.put(word, other.get(word)));
    }

    /// Sets a ghost.
    pub fn set_ghost(&mut self, index: usize, to: u16) {
        let shift = index % 4 * 16;
        let at = self.set.shape.ghosts + index / 4;
        let word = self.get(at) & !(0xFFFF << shift) | u64::from(to) << shift;
        self.put(at, word);
    }
}

/// The masks of states: for each, a getter of the whole mask and a setter of one way's bit.
macro_rules! mask {
    ($(#[$doc:meta])* $get:ident, $set:ident, $word:expr, $high:expr) => {
        impl Locked<'_> {
            $(#[$doc])*
            #[inline]
            pub fn $get(&self) -> u32 {
                self.half(self.set.shape.state + $word, $high)
            }

            /// Adds a way to the mask, or removes it.
            #[inline]
            pub fn $set(&mut self, way: usize, on: bool) {
                let mask = self.$get() & !(1 << way) | u32::from(on) << way;
                self.put_half(self.set.shape.state + $word, $high, mask);
            }
        }
    };
}

mask! {
    /// The ways that are being filled. The threads that fill them own their frames.
    filling, set_filling, 0, 0
}
mask! {
    /// The ways with pages that differ from what the drives hold.
    dirty, set_dirty, 0, 1
}
mask! {
    /// The ways with a copy that is being written to a drive. They stay findable until the write has ended.
    flushing, set_flushing, 1, 0
}
mask! {
    /// The ways with frames that may be pinned. Before a change or reuse of such a frame, the pins are looked through.
    marked, set_marked, 1, 1
}

#[cfg(all(test, not(iomill_models)))]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// A search for tags loads no word that holds frames. Sets of 4 ways, and of more than 12, once did.
    #[test]
    fn tags_are_found_in_their_own_words() {
        let mut random = fastrand::Rng::with_seed(1);
        for ways in (WAYS_MIN..=WAYS_MAX).step_by(4) {
            let shape = Shape::new(ways).unwrap();
            for _ in 0..200 {
                let words: Vec<AtomicU64> = (0..shape.stride).map(|_| AtomicU64::new(random.u64(..))).collect();
                let set = Set::new(&shape, &words);
                set.word(0).store(0, Ordering::Relaxed);
                let mut locked = set.lock();
                let tags: Vec<u8> = (0..ways).map(|_| random.u8(1..4)).collect();
                tags.iter().enumerate().for_each(|(way, tag)| locked.set_tag(way, *tag));
                drop(locked);
                for tag in 1..4 {
                    let loaded = RefCell::new(Vec::new());
                    let matches = tag_matches_by_words(&shape, tag, |index| {
                        loaded.borrow_mut().push(index);
                        words[index].load(Ordering::Relaxed)
                    });
                    let wanted = (0..ways).filter(|way| tags[*way] == tag).fold(0, |mask, way| mask | 1 << way);
                    assert_eq!((matches, set.tag_matches(tag)), (wanted, wanted), "{ways} ways");
                    assert!(loaded.into_inner().iter().all(|index| *index < shape.frames), "{ways} ways");
                }
            }
        }
    }
}

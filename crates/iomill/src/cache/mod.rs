//! The page cache: many small page sets over one slab of frames, in a fixed amount of memory.
//!
//! Goals: a hit costs about what a memory access costs and stores nothing that other processors read; one I/O per missing page
//! however many ask; nothing that was written is lost. Non-goals: doing I/O and knowing files and drives (`api` does, with what is
//! here), and deciding what goes (`policy` does).
//!
//! This room is a passive structure: whoever misses is given the page to fill ([`Cache::begin_fill`]), reads it by whatever way, and
//! says how it ended ([`Cache::end_fill`]). So the same code serves blocking calls, drive threads and a simulation.
//!
//! Rules, cited by number where they are kept:
//! 1. No `&[u8]` is formed over a frame that may change. Copies that race with changes go through `copy::copy_racing` and are
//!    believed under the set's version. Reads never tear within a page.
//! 2. Pinned frames are immutable: a write to such a page takes a new frame, and the pin keeps its snapshot. A page is copied
//!    before its flush. A writer never waits for a pin.
//! 3. Per page at most one of fill, flush and bypassing read is in flight, by its way's state or, when its set is full, in the
//!    transit table (`wait`). A page stays findable until its flush has ended.
//! 4. A thread that owns unfinished fills issues and reaps all of them before it waits for another's page or for room, or runs a user's code.
//! 5. Nobody waits for a frame while holding fills: it bypasses, or splits its request. Pins may be held, also by who waits, and may fill a
//!    set. So nobody waits for a pin to end: calls bypass a set full of pins, a range in place gets copies of what cannot be pinned, a
//!    single pin an error after a while; and a page that finds no other frame to be written to leaves the cache (`Cache::write`).
//! 6. A fill belongs to the cache, not to the future or call that caused it: dropping, cancelling or panicking completes it, and so it is with a
//!    flush and with a bypass (`api::cached`: `Fills`, `Runs` and `Transit` end what is left in them when they are dropped).
//! 7. A blocking call from inside a callback or a waker is an error, not a deadlock (`api::callbacks`).

mod copy;
pub mod directory;
pub mod feeder;
mod forget;
mod frames;
mod held;
pub mod key;
mod lanes;
#[cfg(all(test, iomill_models))]
mod models;
mod pins;
pub mod policy;
mod resize;
pub mod set;
mod shape;
mod wait;
mod words;
mod writing;

use std::sync::Arc;

pub use held::{Held, HeldParts};
pub use pins::Block as PinBlock;
pub use resize::{Resize, Step};
pub use wait::{Outcome, Waiter};

use crate::drive::PAGE_BYTES;
use crate::error::{Error, Result};
use crate::sys::sync::{AtomicU64, Mutex, Ordering, RwLock};
use directory::Directory;
pub use directory::Place;
use frames::Frames;
use key::{Hash, Key};
use lanes::ways_of;
use policy::PolicyKind;
use set::{Locked, Seen};
use wait::Waiters;

/// One frame in so many is more than the sets have ways: what pages are written to that are pinned.
const SPARE_SHARE: u32 = 128;

/// Dirty pages that should go are written when there are this share of a set's ways of them, so that a write takes several.
const BATCH_SHARE: usize = 4;

/// One frame in so many may be pinned.
const PIN_SHARE: u32 = 8;

/// What a cache is made from.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Memory for pages in bytes.
    pub bytes: u64,
    /// Memory that it may be resized to, in bytes.
    pub bytes_max: u64,
    /// Ways of a set: a multiple of 4 from 4 to 32.
    pub set_size: usize,
    /// What decides which page goes.
    pub policy: PolicyKind,
    /// Bits of the hash that count; all but in tests.
    pub hash_mask: u64,
}

/// A page that the caller is to fill. Every one ends in [`Cache::end_fill`].
#[must_use = "a fill that is not ended keeps its page from everybody"]
#[derive(Clone, Copy, Debug)]
pub struct Fill {
    /// The page.
    pub key: Key,
    /// Its frame, which is the owner's until the end.
    pub frame: u32,
    /// How it came in.
    pub came: Came,
}

/// How a page came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Came {
    /// Whether another page had to go for it.
    pub evicted: bool,
    /// The policy would have had a dirty page go, in whose place a clean one went, and it is not the only dirty one: the set
    /// wants to be flushed.
    pub is_pressed: bool,
}

/// What became of asking for a page.
#[derive(Debug)]
pub enum Begun {
    /// It is there.
    Present,
    /// Somebody else is at it: [`Cache::waiter`].
    Busy,
    /// It is the caller's to fill.
    Yours(Fill),
    /// Its set is full of pages that cannot go now.
    Full,
}

/// What became of taking a dirty page to be flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flush {
    /// It is the caller's to write, and to end by [`Cache::end_flush`].
    Begun,
    /// There is nothing to be flushed.
    Clean,
    /// Somebody else is flushing it, as it is or as it was.
    Busy,
}

/// What became of a write to a page.
#[derive(Debug)]
pub enum Wrote {
    /// It is in the cache.
    Done {
        /// Dirty pages in its set now.
        dirty: u32,
        /// The way where it was, or how it has just come in.
        was: std::result::Result<u32, Came>,
    },
    /// Somebody else is at the page.
    Busy,
    /// The page has to be filled first, by the caller.
    Yours(Fill),
    /// Its set is full of pages that cannot go now.
    Full,
}

/// A page cache.
#[derive(Debug)]
pub struct Cache {
    directory: Directory,
    frames: Frames,
    waiters: Waiters,
    /// Pages that are dirty or flushing. Counted down with Release, after what tells a sync of the flush.
    dirty: AtomicU64,
    /// Held by who resizes.
    resizing: Mutex<()>,
    /// Written to by who moves pages between sets; read by who goes through all sets, so that no page moves past it.
    moves: RwLock<()>,
    /// See [`Cache::number`].
    number: usize,
}

impl Cache {
    /// An empty cache.
    pub fn new(plan: Plan) -> Result<Cache> {
        let page = PAGE_BYTES as u64;
        let ways = plan.set_size.max(1) as u64;
        let (now, most) = (sets_of(plan.bytes, ways), most_sets(plan.bytes_max.max(plan.bytes), ways)?);
        let now = key::even_sets(key::first_sets(now as u32), now as u32);
        let directory = Directory::new(directory::Plan {
            sets: now,
            sets_max: most as u32,
            ways: plan.set_size,
            policy: plan.policy,
            hash_mask: plan.hash_mask,
        })?;
        let (limit, most) = (with_spare(u64::from(now) * ways), with_spare(most * ways));
        let frames = Frames::new(limit, most, limit / PIN_SHARE).map_err(|e| Error::Machine {
            what: format!("address space for a cache of {} bytes", u64::from(most) * page),
            why: format!("{e}; ask for a smaller one"),
        })?;
        Ok(Cache {
            directory,
            frames,
            waiters: Waiters::default(),
            dirty: AtomicU64::new(0),
            resizing: Mutex::new(()),
            moves: RwLock::new(()),
            number: 0,
        })
    }

    /// The same as the cache of one of several nodes, counted from 0.
    pub fn numbered(self, number: usize) -> Cache {
        Cache { number, ..self }
    }

    /// Which it is of the caches that pages are divided among; 0 where it is the only one.
    #[inline(always)]
    pub fn number(&self) -> usize {
        self.number
    }

    /// Has its memory, of which nothing was used yet, come from a node. An error costs speed only.
    pub fn bind(&self, node: u32, policy: crate::sys::memory::NodePolicy) -> std::io::Result<()> {
        self.frames.bind(node, policy)?;
        self.directory.bind(node, policy)
    }

    /// The directory.
    pub fn directory(&self) -> &Directory {
        &self.directory
    }

    /// The memory of all frames: start and length in bytes.
    pub fn span(&self) -> (*mut u8, usize) {
        self.frames.span()
    }

    /// Pages that are dirty or on their way to a drive. Whoever reads 0 sees what those saw who cleaned them.
    pub fn dirty(&self) -> u64 {
        self.dirty.load(Ordering::Acquire)
    }

    /// Copies bytes of a page out, if it is there, and says where it was.
    ///
    /// # Safety
    /// `within + len` is at most a page, and `to` is writable for `len` bytes and nobody else's.
    #[inline(always)]
    pub unsafe fn read(&self, key: Key, hash: Hash, within: usize, to: *mut u8, len: usize) -> Option<Seen<'_>> {
        for _ in 0..4 {
            let seen = self.directory.find(key, hash)?;
            // SAFETY: the caller's promise.
            if unsafe { self.copy_seen(seen, within, to, len) } {
                return Some(seen);
            }
        }
        None
    }

    /// Asks for a page that was not found.
    pub fn begin_fill(&self, key: Key, hash: Hash) -> Begun {
        let (place, mut set) = self.directory.lock(hash);
        if let Some(way) = set.find(key, hash) {
            return if Locked::has(set.filling(), way) { Begun::Busy } else { Begun::Present };
        }
        if self.waiters.in_transit(&set, key) {
            return Begun::Busy;
        }
        match self.room(place, &mut set, hash) {
            Some(room) => Begun::Yours(self.fill(place, &mut set, key, hash, room)),
            None => Begun::Full,
        }
    }

    fn fill(&self, Place(index): Place, set: &mut Locked<'_>, key: Key, hash: Hash, room: Room) -> Fill {
        set.begin_filling(room.way, key);
        self.directory.policy().inserted(index, set, room.way, hash);
        Fill { key, frame: set.frame(room.way), came: room.came }
    }

    /// A way for a page that comes in, with a frame. The set is locked, and the page neither in it nor in transit.
    fn room(&self, place: Place, set: &mut Locked<'_>, incoming: Hash) -> Option<Room> {
        self.directory.missed(place, set, incoming);
        let free = set.free();
        if free != 0
            && let Some(frame) = self.frames.take()
        {
            let way = free.trailing_zeros() as usize;
            set.set_frame(way, frame);
            return Some(Room { way, came: Came { evicted: false, is_pressed: false } });
        }
        let (way, is_pressed) = self.evict(place, set, set.all(), incoming)?;
        Some(Room { way, came: Came { evicted: true, is_pressed } })
    }

    /// Makes one of the ways `among` free that holds a clean page, and leaves it its frame, which is nobody else's then. Also says
    /// whether the policy would have had a dirty page go.
    ///
    /// The policy is asked about dirty pages too: they would stay for ever where few are written to, in the place of others.
    fn evict(&self, Place(index): Place, set: &mut Locked<'_>, among: u32, incoming: Hash) -> Option<(usize, bool)> {
        let dirty = set.dirty() | set.flushing();
        let settled = among & set.present() & !dirty;
        let mut candidates = settled & !set.marked();
        if candidates == 0 {
            candidates = self.unmark(set, settled);
        }
        if candidates == 0 {
            return None;
        }
        let policy = self.directory.policy();
        let mut way = policy.victim(index, set, candidates | among & dirty & !set.marked(), incoming);
        let is_pressed = Locked::has(set.dirty(), way) && set.dirty().count_ones() as usize >= set.ways() / BATCH_SHARE;
        if Locked::has(dirty, way) {
            way = policy.victim(index, set, candidates, incoming);
        }
        debug_assert!(Locked::has(candidates, way));
        policy.evicted(index, set, way);
        set.set_free(way);
        Some((way, is_pressed))
    }

    /// Unmarks those of the marked ways that nobody pins, and returns them (rule 2 of `pins`).
    fn unmark(&self, set: &mut Locked<'_>, among: u32) -> u32 {
        let marked = among & set.marked();
        if marked == 0 {
            return 0;
        }
        let pinned = self.frames.pins.pinned();
        let mut unmarked = 0;
        for way in ways_of(marked) {
            if !pinned.contains(set.frame(way)) {
                set.set_marked(way, false);
                unmarked |= 1 << way;
            }
        }
        unmarked
    }

    /// Ends a fill: the page is there for everybody, or, after a failure, it is not, and whoever waits is told why.
    pub fn end_fill(&self, fill: Fill, outcome: Outcome, dirty: bool) -> u32 {
        let hash = self.directory.hash(fill.key);
        let (_, mut set) = self.directory.lock(hash);
        let Some(way) = set.find(fill.key, hash) else { unreachable!("a filling way stays until its fill ends") };
        debug_assert!(Locked::has(set.filling(), way) && set.frame(way) == fill.frame);
        match outcome {
            Ok(()) => {
                set.set_present(way, fill.key, hash);
                if dirty {
                    self.soil(&mut set, way);
                }
            }
            Err(_) => {
                set.set_free(way);
                self.frames.give(fill.frame);
            }
        }
        self.waiters.tell(&mut set, fill.key, outcome);
        set.dirty().count_ones()
    }

    /// The memory of a frame that is being filled, for the kernel to write to, and the owner to read. Others may be reading what
    /// it held before, so the owner writes by [`Cache::put`].
    pub fn filling(&self, fill: &Fill) -> *mut u8 {
        self.frames.at(fill.frame)
    }

    /// Puts bytes into a frame that is being filled.
    ///
    /// # Safety
    /// `within + len` is at most a page, and `from` is readable for `len` bytes.
    pub unsafe fn put(&self, fill: &Fill, within: usize, from: *const u8, len: usize) {
        // SAFETY: the caller's promise, and nobody else writes to the frame until the fill ends.
        unsafe { self.frames.copy_in(fill.frame, within, from, len) };
    }

    /// Zeroes a frame that is being filled from `from` on, in bytes.
    pub fn put_zeroes(&self, fill: &Fill, from: usize) {
        let from = from.min(PAGE_BYTES);
        // SAFETY: as for `put`.
        unsafe { self.frames.zero(fill.frame, from, PAGE_BYTES - from) };
    }

    /// What to wait on while somebody is at a page; `None` if nobody is. A page that is being flushed is busy only to those
    /// who want to flush it.
    pub fn waiter(&self, key: Key, hash: Hash, to_flush: bool) -> Option<Arc<Waiter>> {
        let (_, mut set) = self.directory.lock(hash);
        let busy = match set.find(key, hash) {
            Some(way) => Locked::has(set.filling() | if to_flush { set.flushing() } else { 0 }, way),
            None => self.waiters.in_transit(&set, key),
        };
        busy.then(|| self.waiters.enter(&mut set, key))
    }

    /// Begins to read a page past its full set; not if it is there by now, or somebody is at it.
    pub fn begin_bypass(&self, key: Key, hash: Hash) -> bool {
        let (_, mut set) = self.directory.lock(hash);
        set.find(key, hash).is_none()
            && !self.waiters.in_transit(&set, key)
            && self.waiters.begin_transit(&mut set, key)
    }

    /// Ends that.
    pub fn end_bypass(&self, key: Key, hash: Hash, outcome: Outcome) {
        let (_, mut set) = self.directory.lock(hash);
        self.waiters.end_transit(&mut set, key, outcome);
    }
}

/// A free way with a frame.
struct Room {
    way: usize,
    came: Came,
}

/// Sets in so much memory.
fn sets_of(bytes: u64, ways: u64) -> u64 {
    (bytes / PAGE_BYTES as u64 / ways).max(1)
}

/// The same for the size that a cache may ever have; an error where that is more frames than have numbers.
fn most_sets(bytes: u64, ways: u64) -> Result<u64> {
    let most = sets_of(bytes, ways);
    let pages_max = set::FRAMES_MAX / u64::from(SPARE_SHARE + 1) * u64::from(SPARE_SHARE);
    if most * ways > pages_max {
        let why = format!("the largest has {} bytes", pages_max * PAGE_BYTES as u64);
        return Err(Error::invalid(format!("a cache of {bytes} bytes"), why));
    }
    Ok(most)
}

/// Frames for so many pages.
fn with_spare(pages: u64) -> u32 {
    let pages = pages as u32;
    pages + (pages / SPARE_SHARE).max(4)
}

/// Looking ahead, and copying what was found.
impl Cache {
    /// Fetches ahead what a look-up of the page will wait for, the line with the tags and frames, and says where that is.
    #[inline(always)]
    pub fn prefetch<const DEFAULT: bool>(&self, hash: Hash) -> Place {
        let place = self.directory.place(hash);
        prefetch(self.directory.set_as::<DEFAULT>(place).line(0));
        place
    }

    /// Fetches ahead what filling the page will read and write.
    #[inline]
    pub fn prefetch_to_fill(&self, hash: Hash) {
        let set = self.directory.set(self.directory.place(hash));
        for line in 0..self.directory.header_lines() {
            prefetch(set.line(line));
        }
    }

    /// Fetches ahead the bytes of a page that was found by its tag, and its key.
    #[inline(always)]
    pub fn prefetch_seen(&self, key: *const u8, seen: Seen<'_>, within: usize, len: usize) {
        prefetch(key);
        let start = self.frames.at(seen.frame()).wrapping_add(within);
        let mut line = start.wrapping_sub(start as usize % 64);
        // Of a long range the processor fetches the rest by itself.
        while line < start.wrapping_add(len.min(256)) {
            prefetch(line);
            line = line.wrapping_add(64);
        }
    }

    /// Copies what was found; whether it was still there.
    ///
    /// # Safety
    /// As for [`Cache::read`].
    #[inline(always)]
    pub unsafe fn copy_seen(&self, seen: Seen<'_>, within: usize, to: *mut u8, len: usize) -> bool {
        // SAFETY: the caller's promise.
        unsafe { self.frames.copy_out(seen.frame(), within, to, len) };
        seen.is_still()
    }
}

#[inline]
fn prefetch(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint, which may name any address.
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

//! The page cache: many small page sets over one slab of frames, in a fixed amount of memory.
//!
//! Goals: a hit costs about as much as a memory access, and stores nothing that other processors read. A missing page
//! costs one I/O, however many threads ask for it. No written byte is lost. Non-goals: I/O, files and drives (`pager`
//! adds them), and the choice of the page to evict (`policy`).
//!
//! This room is a passive structure. A thread that misses gets the page to fill ([`Cache::begin_fill`]), reads it in
//! any way, and reports the end ([`Cache::end_fill`]). So the same code serves blocking calls, drive threads and a
//! simulation.
//!
//! - `directory.rs`, `set.rs`, `words.rs`: the page sets and their headers.
//! - `key.rs`: names of pages, and the one hash that places them.
//! - `memory.rs`, `frames.rs`: the bytes of all frames; which frames are free.
//! - `hints.rs`, `occupants.rs`: where a page probably is; which page is in each frame, and the proof of a copy.
//! - `writing.rs`, `dirty_sets.rs`: writes, flushes, and which sets have dirty pages.
//! - `wait.rs`: waiters for a page, and pages in transit past their set.
//! - `pins.rs`, `held.rs`: pins.
//! - `feeder.rs`, `policy/mod.rs`: a thread's last hits, and the eviction policies.
//! - `resize.rs`: the number of sets.
//!
//! # Rules
//!
//! Code cites these by number.
//!
//! 1. No `&[u8]` is formed over a frame that may change. Copies that race with changes go through `copy::copy_racing`.
//!    A reader believes them only under the frame's version (`occupants`). Reads never tear within a page.
//! 2. Pinned frames are immutable. A write to a pinned page takes a new frame, and the pin keeps its snapshot. A page
//!    is copied before its flush. A writer never waits for a pin.
//! 3. Per page at most one of fill, flush and bypassing read is in flight. The state of the page's way ensures that,
//!    or, when the set is full, the transit table (`wait`). A page stays findable until its flush has ended.
//! 4. A blocking call that owns unfinished fills issues and reaps all of them first. Only then may it wait for another
//!    thread's page, wait for room, or run a user's code. Fills of an operation without a blocking call are in a
//!    context that any thread may reap, or with a drive's thread. So such an operation may be left alone at any moment:
//!    a thread that waits for one of its pages completes the fill itself (`exec::shared`). The operation waits for
//!    another page only after its own fills have ended.
//! 5. A thread that holds fills never waits for a frame: it bypasses the cache, or splits its request. A thread may
//!    hold pins even while it waits, and pins may fill a set. So no thread waits for the end of a pin. Calls bypass a
//!    set that is full of pins. A range in place gets copies of pages that cannot be pinned. A single pin fails after a
//!    while. A page that is to be written to, and gets no other frame, leaves the cache (`Cache::write`).
//! 6. A fill belongs to the cache, not to the future or call that caused it. A drop, a cancellation or a panic
//!    completes the fill. The same holds for a flush and a bypass (`pager`: the drops of `Fills`, `Runs` and `Transit`
//!    end those that are left).
//! 7. A blocking call from inside a callback or a waker is an error, not a deadlock (`exec::pools`).
//!
//! # A lookup
//!
//! A hit reads the page's hint, the frame's occupant before and after the copy, and the bytes: a cache line each, if
//! the bytes are few. The hint names the frame in which the page probably is. The occupant is the key of the frame's
//! page, with a version: it proves the copy. The lines of the occupant and of the bytes are fetched at the same time. A
//! hit reads no hash, no set, no policy and no node.
//!
//! - Hints are one table for all files, four bytes a page, two to four entries for each page of the cache. A file's
//!   pages have adjacent entries, so a hit in a file that fits into the cache mostly finds its hint in the processor's
//!   caches. If two pages share an entry, the page that was found last has it.
//! - A hint is never cleared, and never believed. A reader believes its copy if the frame had the page's key, and the
//!   frame's version is the same afterwards (`occupants.rs`, rules 1 to 6).
//! - A page without a right hint is looked up in its set: tags, then keys. The same proof holds. Then its hint is right
//!   again.
//! - Memory of frames may be returned to the system while a late reader looks at them. Keys and versions are never
//!   returned.
//!
//! A hit by a right hint stores nothing that other threads read. The thread notes the page's key in a ring of its own.
//! The policy gets the keys of the ring when the thread needs room, or when the ring is full and other threads have
//! taken room. Only then is the page's set looked at. On recorded traces the delay makes no difference to the hit rate
//! (at most 0.04 points in the means of `docs/cache.md`).
//!
//! # A set's lock
//!
//! A set's lock is one bit of its header. It is held for a change of the set. A write copies into the frame under it,
//! and a flush copies out of the frame under it. No I/O happens under it. Readers do not look at it, so a locked set
//! delays no reader.
//!
//! # Pins
//!
//! - A second pin of a page costs two plain stores into the thread's own slot (hazard pointers). Counts in the header
//!   would cost two locked instructions, more than the rest of a short read.
//! - A thread that changes or reuses a frame that may be pinned pays for both sides, with the kernel's `membarrier`.
//!   Only a page that was pinned before may be pinned, so a program without pins pays nothing.
//! - A write to a pinned page takes another frame. If none is left, the page leaves the cache and the write bypasses
//!   it.
//! - If no slot is left, unused slots are taken from other threads by the same fence. So any number of threads share
//!   the slots.
//!
//! # Other decisions
//!
//! - Frames do not belong to sets. A free way has no frame, so memory is touched only as pages come in.
//! - A full set is bypassed, not waited for.
//! - If the policy holds on to its pages, a fill goes past its set: into a frame that no set has, with its page in the
//!   transit table. So it is an ordinary fill to the pager, and reads of many pages stay one wave. If no frame is free,
//!   the page comes in.
//! - All contenders of the default policy read the same notes, so a set changes its rule at once. They are compared in
//!   shadow sets, by the same code.
//! - A key has 40 bits for the page's number. No file is longer than 4 PiB, so every page has a key.
//! - Sets are split and joined one at a time while other threads read and write (linear hashing).
//! - A crash leaves the bytes that the drives had. Pages flushed since the last sync may be new and others old, each as
//!   a whole.
//!
//! `docs/cache.md` compares the policies, and describes read-ahead, limits, and resizing for users. `CONTRIBUTING.md`
//! says how to add a policy.

pub mod directory;
mod dirty_sets;
pub mod feeder;
mod frames;
mod held;
mod hints;
pub mod key;
mod lanes;
mod memory;
#[cfg(all(test, iomill_models))]
mod models;
mod occupants;
mod pins;
pub mod policy;
mod prefetch;
mod resize;
pub mod set;
mod wait;
mod words;
mod writing;

use std::ops::Range;
use std::sync::Arc;

pub use held::{Held, HeldParts};
pub use pins::PinBlock;
pub use resize::{CacheResize, Progress};
pub use wait::{Outcome, Waiter};

use crate::drive::PAGE_BYTES;
use crate::error::{Error, Result};
use crate::sys::sync::{AtomicU64, Mutex, Ordering, RwLock};
use directory::Directory;
pub use directory::SetIndex;
use dirty_sets::DirtySets;
use frames::Frames;
pub use hints::{Hint, HintBase};
use key::{Key, KeyHash};
use lanes::ways_of;
pub use memory::{CacheMemory, NO_READERS};
use policy::PolicyKind;
use prefetch::prefetch;
use set::Locked;
use wait::Waiters;

/// The number of pages per spare frame. A write to a pinned page takes a spare frame.
const SPARE_SHARE: u32 = 128;

/// Dirty pages that block an eviction are flushed once a set's dirty ways are this fraction of its ways (a quarter), so
/// that one I/O takes several pages.
const BATCH_SHARE: usize = 4;

/// The number of each cache's first frame is a multiple of this: its memory begins with a chunk, however large chunks
/// are.
const FRAMES_ALIGN: u64 = (64 << 20) / PAGE_BYTES as u64;

/// The settings of a cache.
#[derive(Clone, Copy, Debug)]
pub struct CacheConfig {
    /// Memory for pages in bytes.
    pub bytes: u64,
    /// The largest size after a resize, in bytes.
    pub max_bytes: u64,
    /// Ways of a set: a multiple of 4 from 4 to 32.
    pub set_pages: usize,
    /// The eviction policy.
    pub policy: PolicyKind,
    /// The bits of a hash that are used; all of them, except in tests.
    pub hash_mask: u64,
}

/// The duty to fill a page. Every fill ends in [`Cache::end_fill`] or [`Cache::abandon_fill`].
#[must_use = "a fill that does not end blocks its page for all threads"]
#[derive(Clone, Copy, Debug)]
pub struct Fill {
    /// The page.
    pub key: Key,
    /// Its hash.
    pub hash: KeyHash,
    /// Its frame. The owner of the fill alone writes to it until the end.
    pub frame: u32,
    /// How the page got its frame.
    pub came: Came,
    /// Whether the page goes past its set: it has no way, and is in transit until the end.
    pub is_passing: bool,
}

/// How a page got its frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Came {
    /// Whether another page was evicted for it.
    pub evicted: bool,
    /// Whether the set wants a flush: the policy chose a dirty page, a clean one was evicted instead, and the set has
    /// enough dirty pages for a batch.
    pub is_pressed: bool,
}

/// The result of asking for a page.
#[derive(Debug)]
pub enum Begun {
    /// The page is in the cache.
    Present,
    /// Another thread works on it: [`Cache::waiter`] tells the end.
    Busy,
    /// The caller fills it.
    Yours(Fill),
    /// No page of its set can be evicted now.
    Full,
}

/// The result of taking a dirty page for a flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flush {
    /// The caller writes the page to its drive, and ends the flush by [`Cache::end_flush`].
    Begun,
    /// The page is clean, or not in the cache.
    Clean,
    /// Another thread is flushing the page, with its present bytes or with earlier ones.
    Busy,
}

/// The result of a write to a page.
#[derive(Debug)]
pub enum Wrote {
    /// The bytes are in the cache.
    Done {
        /// The number of dirty pages in the set now.
        dirty: u32,
        /// How the page got its frame; `None` if it was in the cache before.
        came: Option<Came>,
    },
    /// Another thread works on the page.
    Busy,
    /// The caller fills the page first.
    Yours(Fill),
    /// No page of its set can be evicted now, or pins leave no frame.
    Full,
}

/// A page cache.
#[derive(Debug)]
pub struct Cache {
    memory: Arc<CacheMemory>,
    directory: Directory,
    frames: Frames,
    waiters: Waiters,
    /// The number of pages that are dirty or flushing. `end_flush` and `drop_page` count down with Release, which pairs
    /// with the Acquire in `dirty`.
    dirty: AtomicU64,
    /// The sets that have such pages.
    dirty_sets: DirtySets,
    /// Held by a resize, so that there is one at a time.
    resizing: Mutex<()>,
    /// Held for writing by a thread that moves pages between sets, and for reading by a thread that goes through all
    /// sets, so that no page moves past it.
    moves: RwLock<()>,
    /// See [`Cache::number`].
    number: usize,
}

impl Cache {
    /// An empty cache.
    pub fn new(config: CacheConfig) -> Result<Cache> {
        let mut caches = Cache::several(&[config])?;
        Ok(caches.remove(0))
    }

    /// Empty caches over one memory, each for the pages of one node.
    pub fn several(configs: &[CacheConfig]) -> Result<Vec<Cache>> {
        let directories = configs.iter().map(directory).collect::<Result<Vec<Directory>>>()?;
        let mut ranges = Vec::new();
        let mut frames = 0u64;
        for directory in &directories {
            let most = u64::from(directory.sets_max()) * directory.ways() as u64;
            let start = frames.next_multiple_of(FRAMES_ALIGN);
            frames = start + u64::from(with_spare(most));
            ranges.push(start..frames);
        }
        let pages = directories.iter().map(Directory::pages).sum();
        if frames > set::FRAMES_MAX {
            let why = format!("the largest has {} bytes on all nodes together", set::FRAMES_MAX * PAGE_BYTES as u64);
            return Err(Error::invalid(format!("a cache of {} bytes", frames * PAGE_BYTES as u64), why));
        }
        let memory = CacheMemory::new(frames as u32, pages, frames);
        let memory = Arc::new(memory.map_err(Error::memory("a cache", frames * PAGE_BYTES as u64))?);
        let each = directories.into_iter().zip(ranges).enumerate();
        each.map(|(number, (directory, range))| {
            let range = range.start as u32..range.end as u32;
            let frames = Frames::new(&memory, range.clone(), range.start + with_spare(directory.pages()));
            let sets = directory.sets_max();
            let dirty_sets =
                DirtySets::new(sets).map_err(Error::memory("the cache's list of dirty sets", u64::from(sets) / 8))?;
            Ok(Cache {
                memory: Arc::clone(&memory),
                directory,
                frames,
                waiters: Waiters::default(),
                dirty: AtomicU64::new(0),
                dirty_sets,
                resizing: Mutex::new(()),
                moves: RwLock::new(()),
                number,
            })
        })
        .collect()
    }

    /// The memory that the caches of all nodes share.
    pub fn memory(&self) -> &Arc<CacheMemory> {
        &self.memory
    }

    /// The number of this cache among the caches of all nodes: 0 for the only one.
    #[inline(always)]
    pub fn number(&self) -> usize {
        self.number
    }

    /// Binds the cache's memory, which must be unused so far, to a node. An error costs only speed.
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

    /// The number of pages that are dirty or being flushed. A thread that reads 0 sees everything that the flushing
    /// threads had seen.
    pub fn dirty(&self) -> u64 {
        // Acquire: pairs with the Release in `end_flush` and `drop_page`.
        self.dirty.load(Ordering::Acquire)
    }

    /// Copies bytes of a page out, if the page is in the cache.
    ///
    /// # Safety
    /// As for [`CacheMemory::read`].
    pub unsafe fn read(&self, key: Key, hash: KeyHash, within: usize, to: *mut u8, len: usize) -> bool {
        // A page that is being written to fails the proof, although it is in the cache: a few more tries.
        for _ in 0..4 {
            let Some(seen) = self.directory.find(key, hash) else { return false };
            // SAFETY: the caller's promise, and sets hold numbers of frames.
            if unsafe { self.memory.read_hinted(Hint::of(seen.frame), key, within, to, len) } {
                self.memory.hints.set(key, seen.frame);
                return true;
            }
        }
        false
    }

    /// Shows a page in a frame to all readers. The lock of the page's set is held.
    fn publish(&self, frame: u32, key: Key) {
        self.memory.occupants.publish(frame, key);
        self.memory.hints.set(key, frame);
    }

    /// Asks for a page that was not found.
    pub fn begin_fill(&self, key: Key, hash: KeyHash) -> Begun {
        self.begin(key, hash, false)
    }

    /// Asks for a page for a copy: the caller copies its bytes before it ends the fill, and keeps no frame. So the
    /// policy may keep the page out of its set.
    pub fn begin_read(&self, key: Key, hash: KeyHash) -> Begun {
        self.begin(key, hash, true)
    }

    #[inline]
    fn begin(&self, key: Key, hash: KeyHash, may_pass: bool) -> Begun {
        let (set_index, mut set) = self.directory.lock(hash);
        if let Some(way) = set.find(key, hash) {
            return if Locked::has(set.filling(), way) { Begun::Busy } else { Begun::Present };
        }
        if self.waiters.in_transit(&set, key) {
            return Begun::Busy;
        }
        self.directory.missed(set_index, &mut set, hash);
        if may_pass && let Some(fill) = self.pass(set_index, &mut set, key, hash) {
            return Begun::Yours(fill);
        }
        match self.room(set_index, &mut set, hash) {
            Some(room) => Begun::Yours(self.fill(set_index, &mut set, key, hash, room)),
            None => Begun::Full,
        }
    }

    fn fill(&self, SetIndex(index): SetIndex, set: &mut Locked<'_>, key: Key, hash: KeyHash, room: Room) -> Fill {
        set.begin_filling(room.way, key);
        self.directory.policy().inserted(index, set, room.way, hash);
        Fill { key, hash, frame: set.frame(room.way), came: room.came, is_passing: false }
    }

    /// The fill of a page that goes past its full set, if the policy wants that. Its frame belongs to no set, so no
    /// page is evicted for it. `None` also if no frame is free: then the page gets a way as any other.
    fn pass(&self, SetIndex(index): SetIndex, set: &mut Locked<'_>, key: Key, hash: KeyHash) -> Option<Fill> {
        if !self.directory.passes(SetIndex(index), set, hash) {
            return None;
        }
        let frame = self.frames.take()?;
        if !self.waiters.begin_transit(set, key) {
            self.frames.give(frame);
            return None;
        }
        let came = Came { evicted: false, is_pressed: false };
        Some(Fill { key, hash, frame, came, is_passing: true })
    }

    /// Ends a fill that went past its set.
    fn end_pass(&self, fill: Fill, set: &mut Locked<'_>, outcome: Outcome) {
        self.frames.give(fill.frame);
        self.waiters.end_transit(set, fill.key, outcome);
    }

    /// A way, with a frame, for a new page. The set is locked. The page is neither in the set nor in transit, and the
    /// policy knows of the miss.
    fn room(&self, set_index: SetIndex, set: &mut Locked<'_>, incoming: KeyHash) -> Option<Room> {
        let free = set.free();
        if free != 0
            && let Some(frame) = self.frames.take()
        {
            let way = free.trailing_zeros() as usize;
            set.set_frame(way, frame);
            return Some(Room { way, came: Came { evicted: false, is_pressed: false } });
        }
        let (way, is_pressed) = self.evict(set_index, set, set.all(), incoming)?;
        Some(Room { way, came: Came { evicted: true, is_pressed } })
    }

    /// Evicts a clean page from one of the ways `among`. The way keeps its frame, which the caller owns now, and which
    /// is changing. Also whether the set is pressed ([`Came::is_pressed`]).
    ///
    /// The policy chooses among dirty pages, too. Otherwise, where few pages are written to, dirty pages would stay for
    /// ever in the place of others.
    fn evict(
        &self,
        SetIndex(index): SetIndex,
        set: &mut Locked<'_>,
        among: u32,
        incoming: KeyHash,
    ) -> Option<(usize, bool)> {
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
        self.memory.occupants.begin_change(set.frame(way));
        set.set_free(way);
        Some((way, is_pressed))
    }

    /// Unmarks the marked ways `among` that are not pinned, and returns them (rule 2 of `pins`, rule 4 of `occupants`).
    /// Their frames are not changing any more: the caller begins the change that it wants.
    fn unmark(&self, set: &mut Locked<'_>, among: u32) -> u32 {
        let marked = among & set.marked();
        if marked == 0 {
            return 0;
        }
        let occupants = &self.memory.occupants;
        ways_of(marked).for_each(|way| occupants.begin_change(set.frame(way)));
        let pinned = self.memory.pins.pinned();
        let mut unmarked = 0;
        for way in ways_of(marked) {
            let frame = set.frame(way);
            if pinned.contains(frame) {
                occupants.restore(frame);
            } else {
                occupants.set_marked(frame, false);
                set.set_marked(way, false);
                unmarked |= 1 << way;
            }
        }
        unmarked
    }

    /// Ends a fill, and tells the page's waiters the outcome. After a success the page is in the cache, unless it went
    /// past its set. Returns the number of dirty pages in the set.
    pub fn end_fill(&self, fill: Fill, outcome: Outcome, dirty: bool) -> u32 {
        let hash = fill.hash;
        let (set_index, mut set) = self.directory.lock(hash);
        if fill.is_passing {
            debug_assert!(!dirty, "a page that goes past its set is only read");
            self.end_pass(fill, &mut set, outcome);
            return set.dirty().count_ones();
        }
        let Some(way) = set.find(fill.key, hash) else { unreachable!("a filling way stays until its fill ends") };
        debug_assert!(Locked::has(set.filling(), way) && set.frame(way) == fill.frame);
        match outcome {
            Ok(()) => {
                self.publish(fill.frame, fill.key);
                set.set_present(way, fill.key, hash);
                if dirty {
                    self.soil(set_index, &mut set, way);
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

    /// Ends a failed fill, and tells the threads that wait for the page to look again (rule 2 of `wait`). A read of their
    /// own then reports the page's error, if it has one.
    pub fn abandon_fill(&self, fill: Fill) {
        let hash = fill.hash;
        let (_, mut set) = self.directory().lock(hash);
        if fill.is_passing {
            return self.end_pass(fill, &mut set, Ok(()));
        }
        let Some(way) = set.find(fill.key, hash) else { unreachable!("a filling way stays until its fill ends") };
        set.set_free(way);
        self.frames.give(fill.frame);
        self.waiters.tell(&mut set, fill.key, Ok(()));
    }

    /// The frame of a fill, for the kernel to write to and for the owner to read. Other threads may still read its
    /// earlier bytes, so the owner writes by [`Cache::put`].
    pub fn filling(&self, fill: &Fill) -> *mut u8 {
        self.frames.at(fill.frame)
    }

    /// Copies bytes into the frame of a fill.
    ///
    /// # Safety
    /// `within + len` is at most a page, and `from` is readable for `len` bytes.
    pub unsafe fn put(&self, fill: &Fill, within: usize, from: *const u8, len: usize) {
        // SAFETY: the caller's promise, and no other thread writes to the frame until the fill ends.
        unsafe { self.frames.copy_in(fill.frame, within, from, len) };
    }

    /// Zeroes the frame of a fill from byte `from` on.
    pub fn put_zeroes(&self, fill: &Fill, from: usize) {
        let from = from.min(PAGE_BYTES);
        // SAFETY: as for `put`.
        unsafe { self.frames.zero(fill.frame, from, PAGE_BYTES - from) };
    }

    /// The waiter of a page on which another thread works; `None` if no thread does. A flush makes a page busy only for
    /// a caller that wants to flush it.
    pub fn waiter(&self, key: Key, hash: KeyHash, to_flush: bool) -> Option<Arc<Waiter>> {
        let (_, mut set) = self.directory.lock(hash);
        let busy = match set.find(key, hash) {
            Some(way) => Locked::has(set.filling() | if to_flush { set.flushing() } else { 0 }, way),
            None => self.waiters.in_transit(&set, key),
        };
        busy.then(|| self.waiters.enter(&mut set, key))
    }

    /// Begins a bypass: a read or write of a page past its full set. `false` if the page is in the cache by now, or
    /// another thread works on it.
    pub fn begin_bypass(&self, key: Key, hash: KeyHash) -> bool {
        let (_, mut set) = self.directory.lock(hash);
        set.find(key, hash).is_none()
            && !self.waiters.in_transit(&set, key)
            && self.waiters.begin_transit(&mut set, key)
    }

    /// Ends a bypass.
    pub fn end_bypass(&self, key: Key, hash: KeyHash, outcome: Outcome) {
        let (_, mut set) = self.directory.lock(hash);
        self.waiters.end_transit(&mut set, key, outcome);
    }

    /// Drops the clean pages of a file in a range, and returns their number. Pages that are dirty, pinned, being filled
    /// or being flushed stay.
    pub fn forget(&self, file: u32, pages: Range<u64>) -> u64 {
        if pages.end.saturating_sub(pages.start) < self.directory().pages() {
            return pages.filter(|&page| self.forget_page(file, page)).count() as u64;
        }
        let _all = self.moves.read().unwrap_or_else(|e| e.into_inner());
        let mut gone = 0;
        for index in 0..self.directory().sets() {
            let set = self.directory().set(SetIndex(index));
            if !set.may_hold(file) {
                continue;
            }
            let mut set = set.lock();
            for way in (0..set.ways()).filter(|&way| Locked::has(set.present(), way)).collect::<Vec<_>>() {
                let key = set.key(way);
                if key.file() == file && pages.contains(&key.page()) && self.forget_way(&mut set, way) {
                    gone += 1;
                }
            }
        }
        gone
    }

    fn forget_page(&self, file: u32, page: u64) -> bool {
        let Some(key) = Key::new(file, page) else { return false };
        let hash = self.directory().hash(key);
        let (_, mut set) = self.directory().lock(hash);
        let way = set.find(key, hash).filter(|&way| Locked::has(set.present(), way));
        way.is_some_and(|way| self.forget_way(&mut set, way))
    }

    /// Drops the page of a present way of a locked set, if it may go.
    fn forget_way(&self, set: &mut Locked<'_>, way: usize) -> bool {
        if Locked::has(set.dirty() | set.flushing(), way) {
            return false;
        }
        // A pinned page keeps its frame and stays in the cache (rule 2).
        if Locked::has(set.marked(), way) && self.unmark(set, 1 << way) == 0 {
            return false;
        }
        self.drop_page(set, way);
        true
    }
}

/// A free way with a frame.
struct Room {
    way: usize,
    came: Came,
}

/// The directory of a cache.
fn directory(config: &CacheConfig) -> Result<Directory> {
    let ways = config.set_pages.max(1) as u64;
    let (now, most) = (sets_of(config.bytes, ways), most_sets(config.max_bytes.max(config.bytes), ways)?);
    Directory::new(directory::DirectoryConfig {
        sets: key::even_sets(key::first_sets(now as u32), now as u32),
        sets_max: most as u32,
        ways: config.set_pages,
        policy: config.policy,
        hash_mask: config.hash_mask,
    })
}

/// The number of sets that fit in `bytes` bytes.
fn sets_of(bytes: u64, ways: u64) -> u64 {
    (bytes / PAGE_BYTES as u64 / ways).max(1)
}

/// The number of sets at a cache's largest size, or an error if there are not enough numbers for its frames.
fn most_sets(bytes: u64, ways: u64) -> Result<u64> {
    let most = sets_of(bytes, ways);
    let pages_max = set::FRAMES_MAX / u64::from(SPARE_SHARE + 1) * u64::from(SPARE_SHARE);
    if most * ways > pages_max {
        let why = format!("the largest has {} bytes", pages_max * PAGE_BYTES as u64);
        return Err(Error::invalid(format!("a cache of {bytes} bytes"), why));
    }
    Ok(most)
}

/// The end of the numbers of frames for `pages` pages, with spare frames. The first has number 1.
fn with_spare(pages: u64) -> u32 {
    let pages = pages as u32;
    1 + pages + (pages / SPARE_SHARE).max(4)
}

/// Prefetching.
impl Cache {
    /// Prefetches the line with the tags and frames, which the lookup of the page reads first.
    #[inline(always)]
    pub fn prefetch(&self, hash: KeyHash) {
        prefetch(self.directory.set_of(hash).line(0));
    }

    /// Prefetches the lines that a fill of the page reads and writes.
    #[inline]
    pub fn prefetch_to_fill(&self, key: Key, hash: KeyHash) {
        let set = self.directory.set_of(hash);
        for line in 0..self.directory.header_lines() {
            prefetch(set.line(line));
        }
        self.memory.prefetch_hint(self.memory.hint_base(key.file()), key.page());
    }
}

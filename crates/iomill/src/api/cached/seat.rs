//! What a thread keeps for a cache, so that its hits need nothing that is shared: counters, the hits that the policy has still to
//! be told of, and slots for pins.
//!
//! Telling later costs nothing that counts: a policy is asked when a page must go, and whoever needs room tells first. A thread that has
//! only hits tells too, once in a ring full of them, when others have taken room meanwhile; in a cache where all fits nobody tells,
//! and nothing shared is stored to.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::{Arc, Weak};

use super::Cached;
use crate::cache::feeder::Feeder;
use crate::cache::key::{Hash, Key};
use crate::cache::{Cache, Found, Held, PinBlock, Place};
use crate::counters::{Id, Tally};
use crate::error::{Error, Result};
use crate::sys::sync::Ordering;

thread_local! {
    /// This thread's seats, by cache. A seat goes when its cache is gone.
    static SEATS: RefCell<Vec<Rc<Seat>>> = const { RefCell::new(Vec::new()) };
    /// The instance of the seat that was used last, and the seat, which is in `SEATS`.
    static LAST: Cell<(u64, *const Seat)> = const { Cell::new((u64::MAX, std::ptr::null())) };
}

/// One thread's seat at a cache.
pub struct Seat {
    instance: u64,
    cached: Weak<Cached>,
    /// Where the thread counts.
    pub tally: Rc<Tally>,
    first: Part,
    /// The same for the caches of other nodes.
    others: Box<[Part]>,
    /// `Cached::taken` when this thread told last.
    taken_seen: Cell<u64>,
}

/// What a thread keeps for the cache of one node.
#[derive(Default)]
struct Part {
    pins: RefCell<Vec<Arc<PinBlock>>>,
    feeder: RefCell<Feeder>,
}

impl Cached {
    /// The calling thread's seat, if it was the last that the thread used.
    #[inline(always)]
    pub fn last_seat(self: &Arc<Self>) -> Option<&Seat> {
        let (instance, seat) = LAST.try_with(Cell::get).ok()?;
        // SAFETY: `LAST` names a seat in this thread's `SEATS`, where it stays until its cache is gone (`find`); this is
        // its cache, which is borrowed for as long.
        (instance == self.instance).then(|| unsafe { &*seat })
    }

    /// Calls `f` with the calling thread's seat.
    #[inline(always)]
    pub fn with_seat<R>(self: &Arc<Self>, f: impl FnOnce(&Seat) -> R) -> R {
        match self.last_seat() {
            Some(seat) => f(seat),
            None => self.with_found_seat(f),
        }
    }

    #[cold]
    fn with_found_seat<R>(self: &Arc<Self>, f: impl FnOnce(&Seat) -> R) -> R {
        // A thread that is ending has no table any more: its last calls get a seat for each.
        let seat =
            SEATS.try_with(|seats| self.find(&mut seats.borrow_mut())).unwrap_or_else(|_| Rc::new(self.new_seat()));
        f(&seat)
    }

    fn find(self: &Arc<Self>, seats: &mut Vec<Rc<Seat>>) -> Rc<Seat> {
        let found = seats.iter().find(|seat| seat.instance == self.instance).map(Rc::clone);
        let seat = found.unwrap_or_else(|| {
            seats.retain(|seat| seat.cached.strong_count() > 0);
            let seat = Rc::new(self.new_seat());
            seats.push(Rc::clone(&seat));
            seat
        });
        // Where it cannot be noted, it is found again the long way.
        let _noted = LAST.try_with(|last| last.set((self.instance, Rc::as_ptr(&seat))));
        seat
    }

    fn new_seat(self: &Arc<Self>) -> Seat {
        Seat {
            instance: self.instance,
            cached: Arc::downgrade(self),
            tally: self.board.tally(),
            first: Part::default(),
            others: self.caches().skip(1).map(|_| Part::default()).collect(),
            taken_seen: Cell::new(0),
        }
    }
}

impl Seat {
    #[inline(always)]
    fn part(&self, cache: &Cache) -> &Part {
        match cache.number() {
            0 => &self.first,
            number => &self.others[number - 1],
        }
    }

    /// Takes note of a hit in one of the caches.
    #[inline(always)]
    pub fn hit(&self, cached: &Cached, cache: &Cache, (place, seen): Found, hash: Hash) {
        self.hit_at(cached, cache, place, seen.way, hash);
    }

    /// The same, in that way of that set.
    #[inline]
    pub fn hit_at(&self, cached: &Cached, cache: &Cache, place: Place, way: usize, hash: Hash) {
        let full = self.part(cache).feeder.borrow_mut().push(place, way, hash);
        self.tally.add(Id::Hits, 1);
        if full {
            self.full(cached);
        }
    }

    /// Counts a page that was not there and comes in, and the one that had to go for it.
    pub fn came(&self, evicted: bool) {
        self.tally.add(Id::Misses, 1);
        self.tally.add(Id::Evictions, u64::from(evicted));
    }

    /// The ring is full: others may need to hear of it.
    #[cold]
    fn full(&self, cached: &Cached) {
        let taken = cached.taken.load(Ordering::Relaxed);
        if self.taken_seen.replace(taken) != taken {
            self.tell(cached);
        }
    }

    /// Tells the policies of the hits there were, before they have to choose.
    pub fn tell(&self, cached: &Cached) {
        for cache in cached.caches() {
            self.part(cache).feeder.borrow_mut().drain(cache.directory());
        }
    }

    /// Pins a page, if that takes no more than a look: the page is there and has been pinned before, and a slot is free.
    #[inline(always)]
    pub fn pin_found<'a>(&self, cached: &'a Cached, cache: &'a Cache, key: Key, hash: Hash) -> Option<Held<'a>> {
        let pins = self.part(cache).pins.borrow();
        let slot = pins.first()?.empty()?;
        // SAFETY: the blocks of a part are this thread's, from its cache.
        let (held, found) = unsafe { cache.pin_found(key, hash, slot) }?;
        self.tally.add(Id::Pins, 1);
        self.hit(cached, cache, found, hash);
        Some(held)
    }

    /// Pins a page in a slot of this thread. `Err` when as many are pinned as may be, `Ok(None)` when the page is not there.
    #[inline]
    pub fn pin<'a>(&self, cached: &'a Cached, cache: &'a Cache, key: Key, hash: Hash) -> Result<Option<Held<'a>>> {
        let mut pins = self.part(cache).pins.borrow_mut();
        let slot = match pins.iter().find_map(|block| block.empty()) {
            Some(slot) => slot,
            None => {
                let Some(block) = cache.pin_block() else { return Err(too_many(cache)) };
                pins.push(block);
                let Some(slot) = pins.last().and_then(|block| block.empty()) else { return Err(too_many(cache)) };
                slot
            }
        };
        // SAFETY: the blocks of a part are this thread's, from its cache.
        let pinned = unsafe { cache.pin(key, hash, slot) };
        Ok(pinned.map(|(held, found)| {
            self.tally.add(Id::Pins, 1);
            self.hit(cached, cache, found, hash);
            held
        }))
    }
}

#[cold]
fn too_many(cache: &Cache) -> Error {
    let why =
        format!("{} pages may be pinned at a time; drop some pins first, or open a larger cache", cache.pins_max());
    Error::Machine { what: "one more pin".into(), why }
}

impl Drop for Seat {
    fn drop(&mut self) {
        // Where the cache is gone, so are its blocks.
        let Some(cached) = self.cached.upgrade() else { return };
        for cache in cached.caches() {
            self.part(cache).pins.borrow().iter().for_each(|block| cache.give_pin_block(block));
        }
    }
}

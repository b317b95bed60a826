//! What a thread keeps for a cache, so that its hits need nothing that is shared: counters, the hits that the policy has still to
//! be told of, and slots for pins.
//!
//! Telling later costs nothing that counts: a policy is asked when a page must go, and whoever needs room tells first. A thread that has
//! only hits tells too, once in a ring full of them, when others have taken room meanwhile; in a cache where all fits nobody tells,
//! and nothing shared is stored to.

use std::cell::{Cell, RefCell};
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::{Arc, Weak};

use super::Pager;
use crate::cache::feeder::Feeder;
use crate::cache::key::{Hash, Key};
use crate::cache::{Cache, Came, Held, PinBlock};
use crate::counters::{Id, Tally};
use crate::error::{Error, Result};
use crate::exec::pools;
use crate::sys::process::Home;
use crate::sys::sync::{AtomicU32, Ordering};

thread_local! {
    /// This thread's locals, by cache. A local goes when its cache is gone.
    static LOCALS: RefCell<Vec<Rc<Local>>> = const { RefCell::new(Vec::new()) };
    /// The instance of the local that was used last, and the local, which is in `LOCALS`; nothing inside callbacks.
    static LAST: Cell<(u64, NonNull<Local>)> = const { Cell::new(NOBODY) };
}

const NOBODY: (u64, NonNull<Local>) = (u64::MAX, NonNull::dangling());

/// What no local's instance is.
pub(super) const CLOSED: u64 = u64::MAX - 1;

/// The calling thread begins a callback, and finds its locals the longer way until it has ended.
pub fn forget_last() {
    // Where a thread is ending, nothing is remembered any more.
    let _forgot = LAST.try_with(|last| last.set(NOBODY));
}

/// Rule 4 of `forked`: in a child the only thread finds nothing the short way.
pub(super) extern "C" fn forget_in_child() {
    forget_last();
}

/// One thread's local at a cache.
pub struct Local {
    instance: u64,
    home: Home,
    pager: Weak<Pager>,
    /// Where the thread counts.
    pub tally: Rc<Tally>,
    first: Part,
    /// The same for the caches of other nodes.
    others: Box<[Part]>,
    /// `Pager::taken` when this thread told last.
    taken_seen: Cell<u64>,
}

/// What a thread keeps for the cache of one node.
struct Part {
    pins: RefCell<Vec<Arc<PinBlock>>>,
    /// The first of them, or `none`.
    first_pins: Cell<NonNull<PinBlock>>,
    /// Which of them had an empty slot last.
    last_pins: Cell<usize>,
    /// A block without an empty slot.
    none: Arc<PinBlock>,
    feeder: Feeder,
}

impl Default for Part {
    fn default() -> Part {
        let none = PinBlock::none();
        let first_pins = Cell::new(NonNull::from(&*none));
        Part { pins: RefCell::default(), first_pins, last_pins: Cell::new(0), none, feeder: Feeder::default() }
    }
}

impl Part {
    /// Has `pin` use an empty slot of a block; `None` when as many are pinned as may be.
    fn with_slot<R>(&self, cache: &Cache, pin: impl FnOnce((&PinBlock, &AtomicU32)) -> R) -> Option<R> {
        let mut pins = self.pins.borrow_mut();
        if pins.iter().any(|block| block.is_gone()) {
            // Others have their slots (rule 6 of pins).
            pins.retain(|block| !block.is_gone());
            self.set_first(&pins);
        }
        if let Some((block, slot)) = pins.first().and_then(|block| Some((&**block, block.empty()?))) {
            let pinned = pin((block, slot));
            // Others may be in need of what this thread has no use for any more.
            give_back_empty(cache, &mut pins);
            return Some(pinned);
        }
        if let Some(block) = pins.get(self.last_pins.get())
            && let Some(slot) = block.empty()
        {
            let was_empty = block.is_empty();
            let pinned = pin((&**block, slot));
            if was_empty {
                // Then others are too, as a rule.
                give_back_empty(cache, &mut pins);
            }
            return Some(pinned);
        }
        let found = |(index, block): (usize, &Arc<PinBlock>)| block.empty().is_some().then_some(index);
        let index = match pins.iter().enumerate().rev().find_map(found) {
            Some(index) => index,
            None => {
                pins.push(cache.pin_block()?);
                self.set_first(&pins);
                pins.len() - 1
            }
        };
        self.last_pins.set(index);
        let slot = pins[index].empty()?;
        Some(pin((&*pins[index], slot)))
    }

    fn set_first(&self, pins: &[Arc<PinBlock>]) {
        self.first_pins.set(NonNull::from(&**pins.first().unwrap_or(&self.none)));
    }
}

/// Gives blocks back that nothing is pinned in, but for the first (rule 4 of pins).
fn give_back_empty(cache: &Cache, pins: &mut Vec<Arc<PinBlock>>) {
    if pins.len() > 1 {
        pins.extract_if(1.., |block| block.is_empty()).for_each(|block| cache.give_pin_block(block));
    }
}

impl Pager {
    /// The calling thread's local, if it was the last that the thread used, the array is open, and this is not a callback: three
    /// replies for the price of one.
    #[inline(always)]
    pub fn last_local(&self) -> Option<&Local> {
        self.last_local_as::<false>()
    }

    /// The same; with `DEFAULT` only if there is also one cache of the default shape, for which reads are made.
    #[inline(always)]
    pub fn last_local_as<const DEFAULT: bool>(&self) -> Option<&Local> {
        let (instance, local) = LAST.try_with(Cell::get).ok()?;
        let open = if DEFAULT { &self.open_default } else { &self.open };
        if instance != open.load(Ordering::Relaxed) {
            return None;
        }
        // SAFETY: `LAST` names a local in this thread's `LOCALS`, or nobody, which is no cache's instance: a local that goes takes its name
        // away (`drop`). It stays there until its cache is gone (`find`), and this is its cache, which is borrowed for as long,
        // or until the thread ends, which is not before whoever called this has returned: the locals of a thread go in a destructor
        // of theirs, which calls nothing that has one.
        Some(unsafe { local.as_ref() })
    }

    /// From now on nobody finds a local the short way.
    pub fn end_short_way(&self) {
        self.open.store(CLOSED, Ordering::Relaxed);
        self.open_default.store(CLOSED, Ordering::Relaxed);
    }

    /// Calls `f` with the calling thread's local.
    #[inline(always)]
    pub fn with_local<R>(self: &Arc<Self>, f: impl FnOnce(&Local) -> R) -> R {
        match self.last_local() {
            Some(local) => f(local),
            None => self.with_found_local(f),
        }
    }

    #[cold]
    fn with_found_local<R>(self: &Arc<Self>, f: impl FnOnce(&Local) -> R) -> R {
        // A thread that is ending has no table any more: its last calls get a local for each.
        let local =
            LOCALS.try_with(|locals| self.find(&mut locals.borrow_mut())).unwrap_or_else(|_| Rc::new(self.new_local()));
        f(&local)
    }

    fn find(self: &Arc<Self>, locals: &mut Vec<Rc<Local>>) -> Rc<Local> {
        let found = locals.iter().find(|local| local.instance == self.instance).map(Rc::clone);
        let local = found.unwrap_or_else(|| {
            locals.retain(|local| local.pager.strong_count() > 0);
            let local = Rc::new(self.new_local());
            locals.push(Rc::clone(&local));
            local
        });
        if pools::may_block() {
            // Where it cannot be noted, it is found again the long way.
            let _noted = LAST.try_with(|last| last.set((self.instance, NonNull::from(&*local))));
        }
        local
    }

    fn new_local(self: &Arc<Self>) -> Local {
        Local {
            instance: self.instance,
            home: Home::here(),
            pager: Arc::downgrade(self),
            tally: self.board.tally(),
            first: Part::default(),
            others: self.caches().skip(1).map(|_| Part::default()).collect(),
            taken_seen: Cell::new(0),
        }
    }
}

impl Local {
    #[inline(always)]
    fn part(&self, cache: &Cache) -> &Part {
        match cache.number() {
            0 => &self.first,
            number => &self.others[number - 1],
        }
    }

    /// The same; with `FIRST` there is one cache.
    #[inline(always)]
    fn part_as<const FIRST: bool>(&self, cache: &Cache) -> &Part {
        if FIRST { &self.first } else { self.part(cache) }
    }

    /// Takes note of a hit in one of the caches, and counts it.
    #[inline(always)]
    pub fn hit(&self, pager: &Pager, cache: &Cache, way: u32, hash: Hash) {
        self.tally.add(Id::Hits, 1);
        self.note::<false>(pager, cache, way, hash);
    }

    /// Takes note of a hit that is counted elsewhere; with `FIRST` there is one cache.
    #[inline(always)]
    pub fn note<const FIRST: bool>(&self, pager: &Pager, cache: &Cache, way: u32, hash: Hash) {
        if self.part_as::<FIRST>(cache).feeder.push(way, hash) {
            self.full(pager);
        }
    }

    /// Counts a page that was not there and comes in, and the one that had to go for it.
    pub fn came(&self, came: Came) {
        self.tally.add(Id::Misses, 1);
        self.tally.add(Id::Evictions, u64::from(came.evicted));
    }

    /// The ring is full: others may need to hear of it.
    #[cold]
    fn full(&self, pager: &Pager) {
        let taken = pager.taken.load(Ordering::Relaxed);
        if self.taken_seen.replace(taken) != taken {
            self.tell(pager);
        }
    }

    /// Tells the policy of the hits there were, before it has to choose.
    pub fn tell(&self, pager: &Pager) {
        for cache in pager.caches() {
            cache.directory().take_hits(&self.part(cache).feeder);
        }
    }

    /// Pins a page, if that takes no more than a look: the page is there and has been pinned before, and a slot is free.
    #[inline(always)]
    pub fn pin_found<'a, const DEFAULT: bool>(
        &self,
        pager: &'a Pager,
        cache: &'a Cache,
        key: Key,
        hash: Hash,
    ) -> Option<Held<'a>> {
        // SAFETY: it is `none` or the first in `pins`, which changes by `with_slot` only, and that is not under way here.
        let block = unsafe { self.part_as::<DEFAULT>(cache).first_pins.get().as_ref() };
        let slot = block.empty()?;
        // SAFETY: the blocks of a part are this thread's, from its cache; `none` has no empty slot.
        let (held, seen) = unsafe { cache.pin_found::<DEFAULT>(key, hash, (block, slot)) }?;
        self.tally.hit(Id::Pins, 1);
        self.note::<DEFAULT>(pager, cache, seen.way, hash);
        Some(held)
    }

    /// Pins a page in a slot of this thread. `Err` when as many are pinned as may be, `Ok(None)` when the page is not there. A page
    /// that has just come in for the pin was counted then and is no hit.
    #[inline]
    pub fn pin<'a>(
        &self,
        pager: &'a Pager,
        cache: &'a Cache,
        (key, hash): (Key, Hash),
        is_hit: bool,
    ) -> Result<Option<Held<'a>>> {
        let pinned = loop {
            // SAFETY: the blocks of a part are this thread's, from its cache.
            let pinned = self.part(cache).with_slot(cache, |place| unsafe { cache.pin(key, hash, place) });
            // Where another thread has taken the slots away, this one takes others.
            if let Ok(pinned) = pinned.ok_or_else(|| too_many(cache))? {
                break pinned;
            }
        };
        Ok(pinned.map(|(held, seen)| {
            self.tally.add(Id::Pins, 1);
            if is_hit {
                self.hit(pager, cache, seen.way, hash);
            }
            held
        }))
    }

    /// Gives slots back after many pins, for others to take.
    pub fn give_back_pins(&self, pager: &Pager) {
        for cache in pager.caches() {
            give_back_empty(cache, &mut self.part(cache).pins.borrow_mut());
        }
    }
}

#[cold]
fn too_many(cache: &Cache) -> Error {
    let why =
        format!("{} pages may be pinned at a time; drop some pins first, or open a larger cache", cache.pins_max());
    Error::Machine { what: "one more pin".into(), why }
}

impl Drop for Local {
    fn drop(&mut self) {
        // A thread that ends may still close files after its locals are gone. `LAST` has no destructor, so it is there.
        let _looked = LAST.try_with(|last| {
            if std::ptr::eq(last.get().1.as_ptr(), self) {
                last.set(NOBODY);
            }
        });
        if !self.home.is_here() {
            // Rule 2 of `forked`.
            return;
        }
        // Where the cache is gone, so are its blocks.
        let Some(pager) = self.pager.upgrade() else { return };
        for cache in pager.caches() {
            self.part(cache).pins.take().into_iter().for_each(|block| cache.give_pin_block(block));
        }
    }
}

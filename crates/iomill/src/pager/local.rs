//! A thread's [`Local`] for a pager, so that its hits store nothing that is shared: counters, hits that the policy does not know yet, and
//! slots for pins. Non-goals: what the policy does with hits (`cache::policy`).
//!
//! The policy may learn of hits late: it only needs them when a page must go, and a thread that needs room reports its hits first. A thread
//! with only hits reports them when its ring is full, if other threads have taken room meanwhile. If all pages fit into the cache, no
//! thread reports, and hits store nothing that is shared.

use std::cell::{Cell, RefCell};
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::{Arc, Weak};

use super::Pager;
use crate::cache::feeder::Feeder;
use crate::cache::key::{Key, KeyHash};
use crate::cache::{Cache, Came, Held, PinBlock};
use crate::counters::{Counter, Tally};
use crate::error::{Error, Result};
use crate::exec::pools;
use crate::sys::process::Home;
use crate::sys::sync::{AtomicU32, Ordering};

thread_local! {
    /// This thread's locals, by pager. A local goes when its pager is gone.
    static LOCALS: RefCell<Vec<Rc<Local>>> = const { RefCell::new(Vec::new()) };
    /// The instance of the local that was used last, and that local, which is in `LOCALS`. `NO_LOCAL` inside callbacks.
    static LAST: Cell<(u64, NonNull<Local>)> = const { Cell::new(NO_LOCAL) };
}

const NO_LOCAL: (u64, NonNull<Local>) = (u64::MAX, NonNull::dangling());

/// An instance that no local has.
pub(super) const CLOSED: u64 = u64::MAX - 1;

/// Called when this thread begins a callback: until the end of that it finds its locals by `LOCALS`.
pub fn forget_last() {
    // A thread that is ending may have no `LAST` any more.
    let _forgot = LAST.try_with(|last| last.set(NO_LOCAL));
}

/// Rule 4 of the fork (`exec`): in a child the only thread finds no local by `LAST`.
pub(super) extern "C" fn forget_in_child() {
    forget_last();
}

/// One thread's local for a pager.
pub struct Local {
    instance: u64,
    home: Home,
    pager: Weak<Pager>,
    /// Where the thread counts.
    pub tally: Rc<Tally>,
    first: LocalNode,
    /// The same for the caches of other nodes.
    others: Box<[LocalNode]>,
    /// `Pager::taken` when this thread last reported hits.
    taken_seen: Cell<u64>,
}

/// What a thread keeps for the cache of one node.
struct LocalNode {
    pins: RefCell<Vec<Arc<PinBlock>>>,
    /// The first of them, or `none`.
    first_pins: Cell<NonNull<PinBlock>>,
    /// Which of them had an empty slot last.
    last_pins: Cell<usize>,
    /// A block without an empty slot.
    none: Arc<PinBlock>,
    feeder: Feeder,
}

impl Default for LocalNode {
    fn default() -> LocalNode {
        let none = PinBlock::none();
        let first_pins = Cell::new(NonNull::from(&*none));
        LocalNode { pins: RefCell::default(), first_pins, last_pins: Cell::new(0), none, feeder: Feeder::default() }
    }
}

impl LocalNode {
    /// Calls `pin` with an empty slot of a block. `None` if the most pages are pinned.
    fn with_slot<R>(&self, cache: &Cache, pin: impl FnOnce((&PinBlock, &AtomicU32)) -> R) -> Option<R> {
        let mut pins = self.pins.borrow_mut();
        if pins.iter().any(|block| block.is_gone()) {
            // Other threads have taken their slots (rule 6 of pins).
            pins.retain(|block| !block.is_gone());
            self.set_first(&pins);
        }
        if let Some((block, slot)) = pins.first().and_then(|block| Some((&**block, block.empty()?))) {
            let pinned = pin((block, slot));
            // Other threads may need the blocks that this thread does not use any more.
            give_back_empty(cache, &mut pins);
            return Some(pinned);
        }
        if let Some(block) = pins.get(self.last_pins.get())
            && let Some(slot) = block.empty()
        {
            let was_empty = block.is_empty();
            let pinned = pin((&**block, slot));
            if was_empty {
                // Then other blocks are probably empty, too.
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

/// Gives back the blocks without pins, except the first (rule 4 of pins).
fn give_back_empty(cache: &Cache, pins: &mut Vec<Arc<PinBlock>>) {
    if pins.len() > 1 {
        pins.extract_if(1.., |block| block.is_empty()).for_each(|block| cache.give_pin_block(block));
    }
}

impl Pager {
    /// The calling thread's local, if it was the last that the thread used, the array is open, and this is not a callback. One comparison
    /// checks all three.
    #[inline(always)]
    pub fn last_local(&self) -> Option<&Local> {
        self.last_local_as::<false>()
    }

    /// The same. With `DEFAULT` it also checks that there is one cache of the default shape, for which reads have a faster path.
    #[inline(always)]
    pub fn last_local_as<const DEFAULT: bool>(&self) -> Option<&Local> {
        let (instance, local) = LAST.try_with(Cell::get).ok()?;
        let open = if DEFAULT { &self.open_default } else { &self.open };
        // Relaxed: the value only says whether the array is open, and a call may see it late.
        if instance != open.load(Ordering::Relaxed) {
            return None;
        }
        // SAFETY: `LAST` names a local in this thread's `LOCALS`: a local that is dropped takes its name away. `NO_LOCAL` is no pager's
        // instance. A local stays in `LOCALS` until its pager is gone (`find`), and this is its pager, which is borrowed for as long.
        // Or it goes when the thread ends, which is after the caller has returned: the destructor of `LOCALS` drops the locals, and
        // calls nothing that has one.
        Some(unsafe { local.as_ref() })
    }

    /// From now on no thread finds a local by `LAST`.
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
        // A thread that is ending has no table any more: each of its last calls gets a local of its own.
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
            // If `LAST` is gone, the next call finds the local by `LOCALS`.
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
            first: LocalNode::default(),
            others: self.caches().skip(1).map(|_| LocalNode::default()).collect(),
            taken_seen: Cell::new(0),
        }
    }
}

impl Local {
    #[inline(always)]
    fn part(&self, cache: &Cache) -> &LocalNode {
        match cache.number() {
            0 => &self.first,
            number => &self.others[number - 1],
        }
    }

    /// The same. With `FIRST` there is one cache.
    #[inline(always)]
    fn part_as<const FIRST: bool>(&self, cache: &Cache) -> &LocalNode {
        if FIRST { &self.first } else { self.part(cache) }
    }

    /// Notes a hit in one of the caches, and counts it.
    #[inline(always)]
    pub fn hit(&self, pager: &Pager, cache: &Cache, way: u32, hash: KeyHash) {
        self.tally.add(Counter::Hits, 1);
        self.note::<false>(pager, cache, way, hash);
    }

    /// Notes a hit that the caller counts. With `FIRST` there is one cache.
    #[inline(always)]
    pub fn note<const FIRST: bool>(&self, pager: &Pager, cache: &Cache, way: u32, hash: KeyHash) {
        if self.part_as::<FIRST>(cache).feeder.push(way, hash) {
            self.full(pager);
        }
    }

    /// Counts a page that was missing and comes in, and the page that it displaced.
    pub fn came(&self, came: Came) {
        self.tally.add(Counter::Misses, 1);
        self.tally.add(Counter::Evictions, u64::from(came.evicted));
    }

    /// The ring is full. Reports the hits if another thread has taken room since the last report.
    #[cold]
    fn full(&self, pager: &Pager) {
        let taken = pager.taken.load(Ordering::Relaxed);
        if self.taken_seen.replace(taken) != taken {
            self.tell(pager);
        }
    }

    /// Reports the hits to the policy, before it must choose a page.
    pub fn tell(&self, pager: &Pager) {
        for cache in pager.caches() {
            cache.directory().take_hits(&self.part(cache).feeder);
        }
    }

    /// Pins a page, if one look-up is enough: the page is there and has been pinned before, and the first block has an empty slot.
    #[inline(always)]
    pub fn pin_found<'a, const DEFAULT: bool>(
        &self,
        pager: &'a Pager,
        cache: &'a Cache,
        key: Key,
        hash: KeyHash,
    ) -> Option<Held<'a>> {
        // SAFETY: it is `none` or the first in `pins`. Only `with_slot` changes the first, and it does not run here.
        let block = unsafe { self.part_as::<DEFAULT>(cache).first_pins.get().as_ref() };
        let slot = block.empty()?;
        // SAFETY: the blocks of a part are this thread's, from its cache; `none` has no empty slot.
        let (held, seen) = unsafe { cache.pin_found::<DEFAULT>(key, hash, (block, slot)) }?;
        self.tally.hit(Counter::Pins, 1);
        self.note::<DEFAULT>(pager, cache, seen.way, hash);
        Some(held)
    }

    /// Pins a page in a slot of this thread. An error if the most pages are pinned, `Ok(None)` if the page is not there. A page that has
    /// just come in for the pin was counted then, so it is no hit.
    #[inline]
    pub fn pin<'a>(
        &self,
        pager: &'a Pager,
        cache: &'a Cache,
        (key, hash): (Key, KeyHash),
        is_hit: bool,
    ) -> Result<Option<Held<'a>>> {
        let pinned = loop {
            // SAFETY: the blocks of a part are this thread's, from its cache.
            let pinned = self.part(cache).with_slot(cache, |place| unsafe { cache.pin(key, hash, place) });
            // If another thread has taken the slots away, this one takes other slots.
            if let Ok(pinned) = pinned.ok_or_else(|| too_many(cache))? {
                break pinned;
            }
        };
        Ok(pinned.map(|(held, seen)| {
            self.tally.add(Counter::Pins, 1);
            if is_hit {
                self.hit(pager, cache, seen.way, hash);
            }
            held
        }))
    }

    /// Gives slots back after many pins, for other threads.
    pub fn give_back_pins(&self, pager: &Pager) {
        for cache in pager.caches() {
            give_back_empty(cache, &mut self.part(cache).pins.borrow_mut());
        }
    }
}

#[cold]
fn too_many(cache: &Cache) -> Error {
    Error::Pins { most: cache.pins_max() }
}

impl Drop for Local {
    fn drop(&mut self) {
        // A thread that is ending may still close files after its locals are gone. `LAST` has no destructor, so it is still there.
        let _looked = LAST.try_with(|last| {
            if std::ptr::eq(last.get().1.as_ptr(), self) {
                last.set(NO_LOCAL);
            }
        });
        if !self.home.is_here() {
            // Rule 2 of the fork (`exec`).
            return;
        }
        // If the pager is gone, so are its blocks.
        let Some(pager) = self.pager.upgrade() else { return };
        for cache in pager.caches() {
            self.part(cache).pins.take().into_iter().for_each(|block| cache.give_pin_block(block));
        }
    }
}

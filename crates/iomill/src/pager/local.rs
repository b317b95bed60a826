//! A thread's [`Local`] for a pager, so that its hits store nothing that is shared: counters, hits that the policy does
//! not know yet, and slots for pins. Non-goals: what the policy does with hits (`cache::policy`).
//!
//! The policy may receive hits late: it needs them only to choose a victim, and a thread that needs a frame reports its
//! hits first. A thread with only hits reports them when its ring is full, if other threads have taken frames
//! meanwhile. If all pages fit into the cache, no thread reports, and hits store nothing that is shared.

use std::cell::{Cell, RefCell};
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::{Arc, Weak};

use super::fill::FillLists;
use super::span::Span;
use super::{Paged, Pager};
use crate::cache::feeder::RecentHits;
use crate::cache::key::{Key, KeyHash};
use crate::cache::{Cache, CacheMemory, Came, Held, NO_READERS, PinBlock};
use crate::counters::{Counter, Tally};
use crate::error::{Error, Result};
use crate::exec::users_code;
use crate::sys::barrier;
use crate::sys::process::{self, Home};
use crate::sys::sync::{AtomicU32, Ordering};

thread_local! {
    /// This thread's locals, by pager. A local is removed when its pager has been dropped.
    static LOCALS: RefCell<Vec<Rc<Local>>> = const { RefCell::new(Vec::new()) };
    /// The address of the local that was used last, which begins with its instance. The local is in `LOCALS`.
    /// `NO_LOCAL` inside callbacks.
    static LAST: Cell<NonNull<u64>> = const { Cell::new(NO_LOCAL) };
}

/// The value of `LAST` without a local. No pager has this instance, and no file compares with it: closed files compare
/// with `NO_READERS`.
const NO_LOCAL: NonNull<u64> = {
    static NO_INSTANCE: u64 = u64::MAX;
    // SAFETY: no static has the address 0.
    unsafe { NonNull::new_unchecked((&raw const NO_INSTANCE).cast_mut()) }
};

/// Called when this thread begins a callback: until its end the thread finds its locals by `LOCALS`.
fn forget_last() {
    // In an ending thread `LAST` may be destroyed.
    let _forgot = LAST.try_with(|last| last.set(NO_LOCAL));
}

/// Rule 4 of the fork (`exec`): in a child the only thread finds no local by `LAST`.
extern "C" fn forget_in_child() {
    forget_last();
}

/// One thread's local for a pager.
#[repr(C)]
pub struct Local {
    /// The pager's. The first field, as `LAST` has it.
    instance: u64,
    home: Home,
    pager: Weak<Pager>,
    /// The counters of the thread.
    pub tally: Tally,
    pins: LocalPins,
    /// Hits that the policy does not know yet. `Counter::Hits` of `tally` counts them.
    recent: RecentHits,
    /// `Pager::taken` when this thread last reported hits.
    taken_seen: Cell<u64>,
    spare: Spare,
}

/// Lists of ended calls, for the thread's next calls: at most 1.5 MiB.
#[derive(Default)]
struct Spare {
    fills: RefCell<Vec<FillLists>>,
    /// Of missing spans.
    spans: RefCell<Vec<Span>>,
}

/// A longer list of spans is not kept: 384 KiB.
const KEPT_SPANS: usize = 16 << 10;

/// A thread's slots for pins.
struct LocalPins {
    blocks: RefCell<Vec<Arc<PinBlock>>>,
    /// The first of them, or `none`. Always `none` where the kernel has no barrier (`pin_hinted`).
    first: Cell<NonNull<PinBlock>>,
    /// The index of the block that had an empty slot last.
    last: Cell<usize>,
    /// A block without an empty slot.
    none: Arc<PinBlock>,
}

impl Default for LocalPins {
    fn default() -> LocalPins {
        let none = PinBlock::none();
        let first = Cell::new(NonNull::from(&*none));
        LocalPins { blocks: RefCell::default(), first, last: Cell::new(0), none }
    }
}

impl LocalPins {
    /// Calls `pin` with an empty slot of a block. `None` if the most pages are pinned.
    fn with_slot<R>(&self, memory: &CacheMemory, pin: impl FnOnce((&PinBlock, &AtomicU32)) -> R) -> Option<R> {
        let mut pins = self.blocks.borrow_mut();
        if pins.iter().any(|block| block.is_gone()) {
            // Other threads have taken their slots (rule 6 of pins).
            pins.retain(|block| !block.is_gone());
            self.set_first(&pins);
        }
        if let Some((block, slot)) = pins.first().and_then(|block| Some((&**block, block.empty()?))) {
            let pinned = pin((block, slot));
            // Returns unused blocks, which other threads may need.
            give_back_empty(memory, &mut pins);
            return Some(pinned);
        }
        if let Some(block) = pins.get(self.last.get())
            && let Some(slot) = block.empty()
        {
            let was_empty = block.is_empty();
            let pinned = pin((&**block, slot));
            if was_empty {
                // If this block is empty, others probably are, too.
                give_back_empty(memory, &mut pins);
            }
            return Some(pinned);
        }
        let found = |(index, block): (usize, &Arc<PinBlock>)| block.empty().is_some().then_some(index);
        let index = match pins.iter().enumerate().rev().find_map(found) {
            Some(index) => index,
            None => {
                pins.push(memory.pin_block()?);
                self.set_first(&pins);
                pins.len() - 1
            }
        };
        self.last.set(index);
        let slot = pins[index].empty()?;
        Some(pin((&*pins[index], slot)))
    }

    fn set_first(&self, pins: &[Arc<PinBlock>]) {
        let first = pins.first().filter(|_| barrier::available());
        self.first.set(NonNull::from(&**first.unwrap_or(&self.none)));
    }
}

/// Returns the blocks without pins, except the first (rule 4 of pins).
fn give_back_empty(memory: &CacheMemory, pins: &mut Vec<Arc<PinBlock>>) {
    if pins.len() > 1 {
        pins.extract_if(1.., |block| block.is_empty()).for_each(|block| memory.give_pin_block(block));
    }
}

impl Pager {
    /// The calling thread's local, if it was the last that the thread used, the array is open, and this is not a
    /// callback. One comparison checks all three.
    #[inline(always)]
    pub fn last_local(&self) -> Option<&Local> {
        // Relaxed: the value only says whether the array is open, and a call may see it late.
        // SAFETY: the instance is this pager's, or `NO_READERS`, which no local has. The pager is borrowed for as long.
        unsafe { Pager::last_local_if(self.open.load(Ordering::Relaxed)) }
    }

    /// The local that the thread used last, if its pager has this instance.
    ///
    /// # Safety
    /// While 'a lasts, this pager lives.
    #[inline(always)]
    pub(super) unsafe fn last_local_if<'a>(instance: u64) -> Option<&'a Local> {
        let last = LAST.try_with(Cell::get).ok()?;
        // SAFETY: `LAST` names a static, or a local that lives, as below.
        if unsafe { last.read() } != instance {
            return None;
        }
        let local = last.cast::<Local>();
        // SAFETY: with the instance of a pager, `LAST` names a local in this thread's `LOCALS`: the drop of a local
        // resets `LAST`. A local stays in `LOCALS` until its pager is dropped (`find`), and by the caller's promise the
        // pager lives. Or the thread ends, after the caller has returned: the destructor of `LOCALS` drops the locals,
        // and calls no code that uses one.
        Some(unsafe { local.as_ref() })
    }

    /// From now on no thread finds a local by `LAST`.
    pub fn end_short_way(&self) {
        self.open.store(NO_READERS, Ordering::Relaxed);
        self.memory.readers.store(NO_READERS, Ordering::Relaxed);
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
        // In an ending thread the table is destroyed: each of its last calls uses a new local.
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
        if users_code::may_block() {
            // If `LAST` is destroyed, the next call finds the local by `LOCALS`.
            let _noted = LAST.try_with(|last| last.set(NonNull::from(&*local).cast()));
        }
        local
    }

    fn new_local(self: &Arc<Self>) -> Local {
        static ONCE: std::sync::Once = std::sync::Once::new();
        // Before any local is in `LAST`.
        ONCE.call_once(|| {
            process::call_in_children(forget_in_child);
            users_code::before_users_code(forget_last);
        });
        let tally = self.board.tally();
        Local {
            instance: self.instance,
            home: Home::here(),
            pager: Arc::downgrade(self),
            recent: RecentHits::new(tally.get(Counter::Hits)),
            tally,
            pins: LocalPins::default(),
            taken_seen: Cell::new(0),
            spare: Spare::default(),
        }
    }
}

impl Local {
    /// Empty lists for fills.
    pub(super) fn spare_lists(&self) -> FillLists {
        self.spare.fills.borrow_mut().pop().unwrap_or_default()
    }

    /// Keeps the lists of fills that have ended.
    pub(super) fn keep_lists(&self, mut lists: FillLists) {
        lists.clear();
        lists.shorten(KEPT_SPANS);
        let mut kept = self.spare.fills.borrow_mut();
        if kept.len() < 2 {
            kept.push(lists);
        }
    }

    /// Adds a missing span. The first one takes the kept list.
    #[inline]
    pub(super) fn missed(&self, missing: &mut Vec<Span>, span: Span) {
        if missing.capacity() == 0 {
            *missing = self.spare.spans.take();
        }
        missing.push(span);
    }

    /// Keeps the memory of a list of spans for the next call, if it is longer than the kept list.
    pub(super) fn keep_spans(&self, mut spans: Vec<Span>) {
        let mut kept = self.spare.spans.borrow_mut();
        if spans.capacity() > kept.capacity() && spans.capacity() <= KEPT_SPANS {
            spans.clear();
            *kept = spans;
        }
    }

    /// Counts a hit, and notes it for the policy.
    #[inline(always)]
    pub fn hit(&self, paged: &Paged, key: Key) {
        if self.tally.hit(|hits| self.recent.push(hits, key)) {
            self.full(paged);
        }
    }

    /// `hit` that also adds to another counter.
    #[inline(always)]
    pub fn hit_and(&self, paged: &Paged, key: Key, (other, amount): (Counter, u64)) {
        if self.tally.hit_and(other, amount, |hits| self.recent.push(hits, key)) {
            self.full(paged);
        }
    }

    /// Counts a missing page that is read, and the page that it displaced.
    pub fn came(&self, came: Came) {
        self.tally.add(Counter::Misses, 1);
        self.tally.add(Counter::Evictions, u64::from(came.evicted));
    }

    /// Runs when the ring is full. Reports the hits if another thread has taken frames since the last report.
    #[cold]
    #[inline(never)]
    fn full(&self, paged: &Paged) {
        let taken = paged.pager.taken.load(Ordering::Relaxed);
        if self.taken_seen.replace(taken) != taken {
            self.tell(&paged.pager);
        }
    }

    /// Reports the hits to the policy, before it must choose a page.
    pub fn tell(&self, pager: &Pager) {
        let hits = self.tally.get(Counter::Hits);
        let lost = self.recent.lost(hits);
        if lost > 0 {
            self.lose(pager, lost);
        }
        self.recent.drain(hits, |keys| match pager.only_cache() {
            Some(cache) => cache.directory().hits(keys),
            None => keys.iter().for_each(|&key| pager.cache_of(key).directory().hits(&[key])),
        });
    }

    /// Reports the number of forgotten hits, divided among the nodes by their pages.
    #[cold]
    fn lose(&self, pager: &Pager, hits: u64) {
        let nodes = pager.caches().count() as u64;
        pager.caches().for_each(|cache| cache.directory().unseen(hits / nodes));
    }

    /// Pins a page, if its hint is enough: the page is cached and was pinned before, and the first slot is empty.
    #[inline(always)]
    pub fn pin_hinted<'a>(&self, paged: &Paged, memory: &'a CacheMemory, key: Key, page: u64) -> Option<Held<'a>> {
        // SAFETY: it is `none` or the first of `blocks`. Only `with_slot` changes the first, and it does not run here.
        let block = unsafe { self.pins.first.get().as_ref() };
        let slot = block.first()?;
        // SAFETY: the blocks are this thread's, from this memory; `none` has no empty slot. With another first block,
        // the kernel has a barrier (`set_first`).
        let held = unsafe { memory.pin(key, (paged.hints, page), (block, slot)) }?;
        self.hit_and(paged, key, (Counter::Pins, 1));
        Some(held)
    }

    /// Pins a page in a slot of this thread. An error if the most pages are pinned, `Ok(None)` if the page is not
    /// cached. A page that was just read for the pin is counted already, and not as a hit.
    #[inline]
    pub fn pin<'a>(
        &self,
        paged: &'a Paged,
        cache: &'a Cache,
        (key, hash): (Key, KeyHash),
        is_hit: bool,
    ) -> Result<Option<Held<'a>>> {
        let memory = &paged.memory;
        let pinned = loop {
            // SAFETY: the blocks are this thread's, from the memory of this cache.
            let pinned = self.pins.with_slot(memory, |place| unsafe { cache.pin(key, hash, place) });
            // If another thread has taken the slots, this one takes other slots.
            if let Ok(pinned) = pinned.ok_or_else(|| too_many(memory))? {
                break pinned;
            }
        };
        if pinned.is_some() {
            self.tally.add(Counter::Pins, 1);
            if is_hit {
                self.hit(paged, key);
            }
        }
        Ok(pinned)
    }

    /// Gives slots back after many pins, for other threads.
    pub fn give_back_pins(&self, pager: &Pager) {
        give_back_empty(&pager.memory, &mut self.pins.blocks.borrow_mut());
    }
}

#[cold]
fn too_many(memory: &CacheMemory) -> Error {
    Error::Pins { most: memory.pins_max() }
}

impl Drop for Local {
    fn drop(&mut self) {
        // An ending thread may still close files after its locals are destroyed. `LAST` has no destructor, so it still
        // exists.
        let _looked = LAST.try_with(|last| {
            if std::ptr::addr_eq(last.get().as_ptr(), self) {
                last.set(NO_LOCAL);
            }
        });
        if !self.home.is_here() {
            // Rule 2 of the fork (`exec`).
            return;
        }
        // If the pager was dropped, so were its blocks.
        let Some(pager) = self.pager.upgrade() else { return };
        self.pins.blocks.take().into_iter().for_each(|block| pager.memory.give_pin_block(block));
    }
}

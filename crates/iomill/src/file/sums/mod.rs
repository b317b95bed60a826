//! The sums of a file's pages: [`Sums`]. A sum covers the bytes of a page, the file, and the number of the page.
//!
//! Goals: a page that is not what was written is found before a call returns a byte of it. Non-goals: I/O on pages,
//! which the rooms above do; plain files, which have no sums.
//!
//! - `page.rs`: the sum of a page, and the pages of sums on the drives.
//! - `part.rs`: the sums of one part: in memory, and in the file beside it.
//! - `memory.rs`: the bound on pages of sums in memory.
//! - `zones.rs`: the log of zones with sums that a crash makes doubtful.
//! - `small.rs`: the sums of a small file, which are in its record.
//! - `writing.rs`: pages that are being written.
//! - `held.rs`: the pages that operations past the cache hold.
//!
//! Rules (C55 to C61 in `docs/catalog.md`):
//! 1. A page of zeros has no sum ([`NONE`]). So a page that was never written needs none.
//! 2. The sum in memory is right while no operation writes to the page, or it is [`UNKNOWN`]. It becomes unknown if a
//!    write of the page, or a cut within it, fails. Then any bytes are accepted until the page is written again.
//! 3. Sums in memory are those of a whole page of sums, which is loaded when an operation needs it. If there are too
//!    many, those leave memory that no operation holds ([`SumsMemory`]). A write holds those of its pages. A read takes
//!    the sums of its pages at its beginning, because no operation writes to a page that is being filled, or held.
//! 4. Before a page of a clean zone is written to, the zone is durably marked ([`Writing`]). After a crash the sums of
//!    marked zones are recomputed from the pages. A draft marks no zones, because a crash removes it.
//! 5. A zone becomes clean when its pages are durable, also those of an earlier writer, then its sums, and no write has
//!    begun since (`settle`).
//! 6. Beyond the length neither bytes nor sums mean anything. Before the file grows over them, both are cleared
//!    (`Writing::of_cut`).
//! 7. If a page of sums has rotted, its sums are lost. A page with a lost sum is not returned until it was written as a
//!    whole. No sum is computed from bytes that are not proved, except in marked zones.

mod held;
mod memory;
mod page;
mod part;
#[cfg(all(test, not(iomill_models)))]
mod part_tests;
mod small;
mod writing;
mod zones;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use crate::catalog::{Catalog, Draft, Record};
use crate::drive::{NoSum, PAGE_BYTES, PageSum};
use crate::error::{Error, Result};
use crate::layout::Map;
use crate::sys::sync::{AtomicU64, Ordering};
use small::SmallSums;

pub use held::{HeldPages, Holding};
pub use memory::SumsMemory;
use page::CHUNK_PAGES;
pub use page::{Identity, NONE, UNKNOWN};
pub use part::{OpenSums, Opening, PartSums, Settling};
pub use writing::Writing;

/// The reason for which a page is not returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// It is not what was written.
    Wrong,
    /// Its sum is not known.
    NoSum(NoSum),
}

/// See the module.
#[derive(Debug)]
pub struct Sums {
    identity: Identity,
    map: Map,
    block_pages: u64,
    small: SmallSums,
    /// That of the array.
    memory: Arc<SumsMemory>,
    /// Set when the file gets parts, with no operation inside the file, or before it is shared.
    parts: OnceLock<Box<[OpenSums]>>,
    /// Counts the syncs, for rule 5.
    epoch: AtomicU64,
    /// The time of the last search for idle zones, in nanoseconds of the clock, and its epoch.
    swept_ns: AtomicU64,
    swept_epoch: AtomicU64,
    /// Whether it is a draft that no publication has begun to name (rule 4).
    is_draft: AtomicBool,
    pub held: HeldPages,
}

impl Sums {
    /// The sums of a file. `None` if it has none.
    pub fn new(
        catalog: &Arc<Catalog>,
        record: &Record,
        draft: Option<&Arc<Draft>>,
        map: &Map,
        memory: &Arc<SumsMemory>,
    ) -> Option<Sums> {
        let field = record.sums.as_deref()?;
        let identity = Identity::new(catalog.id(), record.number);
        Some(Sums {
            identity,
            map: map.clone(),
            block_pages: u64::from(record.block_bytes) / PAGE_BYTES as u64,
            small: SmallSums::new(catalog, draft, record.number, field, record.extent.is_some()),
            memory: Arc::clone(memory),
            parts: OnceLock::new(),
            epoch: AtomicU64::new(1),
            swept_ns: AtomicU64::new(0),
            swept_epoch: AtomicU64::new(0),
            is_draft: AtomicBool::new(draft.is_some()),
            held: HeldPages::default(),
        })
    }

    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    pub fn memory(&self) -> &Arc<SumsMemory> {
        &self.memory
    }

    /// The sums of a small file, unless it has parts.
    pub fn small(&self) -> Option<&SmallSums> {
        self.parts.get().is_none().then_some(&self.small)
    }

    /// The sums of its parts, if it has some.
    pub fn parts(&self) -> &[OpenSums] {
        self.parts.get().map_or(&[], |parts| parts)
    }

    /// Gives the file its parts, with the sums of its first pages.
    pub fn take_parts(&self, parts: Box<[OpenSums]>) {
        let _set_once = self.parts.set(parts);
    }

    /// The position of a page's part, and the page's number there.
    fn place(&self, page: u64) -> (usize, u64) {
        let placed = self.map.place(page / self.block_pages);
        (usize::from(placed.drive), placed.block * self.block_pages + page % self.block_pages)
    }

    /// The number in the file of a page of a part. `u64::MAX` if there is none.
    fn page_of(&self, part: usize, page: u64) -> u64 {
        let block = self.map.block(part as u16, page / self.block_pages);
        block.checked_mul(self.block_pages).map_or(u64::MAX, |first| first + page % self.block_pages)
    }

    /// The sum that a page should have. It waits for the drive if the sum is not in memory. An error if the sum is
    /// lost.
    pub fn loaded(&self, page: u64) -> Result<u32> {
        let Some(parts) = self.parts.get() else { return Ok(self.small.sum(page)) };
        let (part, at) = self.place(page);
        self.part(parts, part)?.loaded(at, self.pages_of(part))
    }

    /// As `loaded`, for the verification of a page.
    pub fn taken(&self, page: u64) -> PageSum {
        self.loaded(page).map_err(|error| error.errno().map_or(NoSum::Lost, NoSum::Unread))
    }

    /// The function that computes the sum of a part's page, from its number in the file and the identity of the file.
    fn pages_of(&self, part: usize) -> impl Fn(u64, &[u8]) -> u32 + '_ {
        move |page, bytes| self.identity.sum(self.page_of(part, page), bytes)
    }

    fn part<'a>(&self, parts: &'a [OpenSums], part: usize) -> Result<&'a OpenSums> {
        parts.get(part).ok_or_else(|| Error::invalid(format!("part {part} of a file"), "its layout has no such part"))
    }

    /// The sum that a page should have. `None` if it is not in memory, or lost.
    pub fn sum(&self, page: u64) -> Option<u32> {
        match self.parts.get() {
            None => Some(self.small.sum(page)),
            Some(parts) => {
                let (part, at) = self.place(page);
                parts.get(part)?.sum(at)
            }
        }
    }

    /// Whether pages of one block have sums, so that they are not all zeros.
    pub fn has_some(&self, pages: Range<u64>) -> Result<bool> {
        let (Some(parts), mut page) = (self.parts.get(), pages.start) else { return Ok(true) };
        while page < pages.end {
            let (part, at) = self.place(page);
            let chunk = self.part(parts, part)?.chunk(at / CHUNK_PAGES, self.pages_of(part))?;
            let first = at % CHUNK_PAGES;
            let of_chunk = first..CHUNK_PAGES.min(first + (pages.end - page));
            page += of_chunk.end - first;
            if of_chunk.into_iter().any(|at| chunk.get(at) != Some(NONE)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Verifies the bytes of a page of a small file.
    pub fn check_small(&self, page: u64, bytes: &[u8]) -> std::result::Result<(), Doubt> {
        self.check_against(Ok(self.small.sum(page)), page, bytes)
    }

    /// Verifies the bytes of a page that should have this sum, if it is known.
    pub fn check_against(&self, sum: PageSum, page: u64, bytes: &[u8]) -> std::result::Result<(), Doubt> {
        match sum {
            Err(why) => Err(Doubt::NoSum(why)),
            Ok(UNKNOWN) => Ok(()),
            Ok(sum) if sum == self.identity.sum(page, bytes) => Ok(()),
            Ok(_) => Err(Doubt::Wrong),
        }
    }

    /// Notes the sum of a page that no operation writes to.
    pub fn set(&self, page: u64, sum: u32) -> Result<()> {
        let Some(parts) = self.parts.get() else {
            self.small.set(page, sum);
            return Ok(());
        };
        let (part, at) = self.place(page);
        self.part(parts, part)?.chunk(at / CHUNK_PAGES, self.pages_of(part))?.set(at % CHUNK_PAGES, sum);
        Ok(())
    }

    /// Begins a sync. Writes that have ended before are of an older epoch than the returned one.
    pub fn begin_sync(&self) -> u64 {
        // SeqCst: the marks of parts are taken after this, and were set before the writes ended (`Writing::end`).
        self.epoch.fetch_add(1, Ordering::SeqCst) + 1
    }

    fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::SeqCst)
    }

    /// Whether some sums were recomputed, or must be, because an earlier opening has left them doubtful.
    pub fn is_stale(&self) -> bool {
        self.small().map_or_else(|| self.parts().iter().any(|part| part.is_stale()), SmallSums::is_unknown)
    }

    /// Whether zones are marked before they are written to (rule 4).
    pub fn marks(&self) -> bool {
        !self.is_draft.load(Ordering::SeqCst)
    }

    /// A publication begins to name a draft: from now on zones are marked, also those that are being written to (rule
    /// 4).
    pub fn end_draft(&self) -> Result<()> {
        self.is_draft.store(false, Ordering::SeqCst);
        self.parts().iter().try_for_each(|part| part.end_draft())
    }

    /// Makes the sums of parts durable, and then makes zones clean in which no write has begun since the sync of this
    /// epoch (rule 5). `pages` returns the number of pages of a part.
    pub fn settle(&self, which: Settling, pages: impl Fn(usize) -> u64) -> Result<()> {
        let parts = self.parts().iter().enumerate();
        parts.map(|(at, part)| part.settle(which, pages(at), self.pages_of(at))).fold(Ok(()), Result::and)
    }

    /// The zones that a cut changes, by part. `unused` has the pages of each part that become zeros, as ranges in rising
    /// order (`PartSums::zones_of_cut`).
    fn zones_of_cut(&self, unused: &[Vec<Range<u64>>]) -> Result<BTreeMap<usize, BTreeSet<u64>>> {
        let mut zones = BTreeMap::new();
        for (at, (part, unused)) in self.parts().iter().zip(unused).enumerate() {
            let of_part = part.zones_of_cut(unused, self.pages_of(at))?;
            of_part.map(|of_part| zones.insert(at, of_part));
        }
        Ok(zones)
    }

    pub fn end_cut(&self, unused: &[Vec<Range<u64>>]) -> Result<()> {
        let mut parts = self.parts().iter().zip(unused).enumerate();
        parts.try_for_each(|(at, (part, unused))| part.end_cut(unused, self.pages_of(at)))
    }

    /// The zones that a sync of this epoch makes clean, at this time of the clock in nanoseconds: those without a write
    /// for a while. `None` if the last search was too recent.
    pub fn idle(&self, epoch: u64, now_ns: u64) -> Option<Settling> {
        let before_ns = self.swept_ns.load(Ordering::Relaxed);
        if before_ns == 0 {
            self.swept_ns.store(now_ns.max(1), Ordering::Relaxed);
            self.swept_epoch.store(epoch, Ordering::Relaxed);
            return None;
        }
        if now_ns.saturating_sub(before_ns) < IDLE_NS {
            return None;
        }
        self.swept_ns.store(now_ns.max(1), Ordering::Relaxed);
        // Syncs come one at a time.
        Some(Settling { before: self.swept_epoch.swap(epoch, Ordering::Relaxed) })
    }
}

/// The time without a write after which a sync makes a zone of an open file clean.
const IDLE_NS: u64 = 10_000_000_000;

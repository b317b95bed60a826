//! Well-known caches of Rust programs as caches of pages. Keys are page numbers, values are pages. Each read copies a
//! record out of a page.
//!
//! Each cache has the settings that make it cheaper. It hashes with one chain of multiplications instead of its own
//! hash. It has room for half as many entries again, so that it never evicts. foyer has S3-FIFO, because hits then take
//! only a shared lock. All three share one set of pages, which costs them nothing and saves memory. Non-goals: misses;
//! these crates do no I/O.

use std::fs::File;
use std::hash::{BuildHasher, Hasher};
use std::io::Read;
use std::sync::{Arc, Mutex, PoisonError};

use iomill::{Error, Result};

use crate::contender::{FOYER, MOKA, QUICK_CACHE, Slice};
use crate::pattern::{self, PAGE_BYTES};
use crate::records::{self, Copier, Data, InMemory, OneByOne, RECORD_BYTES, Record, RecordReads};

type Page = Arc<[u8; PAGE_BYTES]>;

/// The pages of the data, each in its own allocation. They are read at the first use.
#[derive(Debug, Default)]
pub struct Pages(Mutex<Option<Arc<[Page]>>>);

impl Pages {
    fn of(&self, data: &Data) -> Result<Arc<[Page]>> {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pages) = &*held {
            return Ok(pages.clone());
        }
        let mut file = File::open(data.path()).map_err(|e| Error::io("open", data.path(), e))?;
        let mut page = [0; PAGE_BYTES];
        let mut pages = Vec::with_capacity(data.pages() as usize);
        for _ in 0..data.pages() {
            file.read_exact(&mut page).map_err(|e| Error::io("read", data.path(), e))?;
            pages.push(Arc::new(page));
        }
        Ok(held.insert(pages.into()).clone())
    }
}

/// A hash for page numbers.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mixing(u64);

impl BuildHasher for Mixing {
    type Hasher = Mixing;

    fn build_hasher(&self) -> Mixing {
        Mixing(0)
    }
}

impl Hasher for Mixing {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(byte.into()));
    }

    #[inline(always)]
    fn write_u64(&mut self, value: u64) {
        self.0 = pattern::mix(self.0 ^ value);
    }

    #[inline(always)]
    fn finish(&self) -> u64 {
        self.0
    }
}

/// A crate's cache, in the form that this measurement uses.
pub trait PageCache: Clone + Send + Sync + 'static {
    /// Its contender's name.
    const NAME: &'static str;
    /// Its set-up, for the reader of its figures.
    const NOTE: &'static str;

    /// An empty cache with room for `pages` pages.
    fn with_room(pages: usize) -> Self;

    /// Puts a page in.
    fn put(&self, number: u64, page: Page);

    /// Is called when all pages are in.
    fn settle(&self) {}

    /// Copies a record out of a page. Returns whether the page is in the cache.
    fn copy(&self, number: u64, start: usize, record: &mut Record) -> bool;
}

#[inline(always)]
fn copy_out(page: &[u8; PAGE_BYTES], start: usize, record: &mut Record) -> bool {
    record.copy_from_slice(&page[start..start + RECORD_BYTES]);
    true
}

/// quick_cache.
#[derive(Clone)]
pub struct QuickCache(Arc<quick_cache::sync::Cache<u64, Page, quick_cache::UnitWeighter, Mixing>>);

impl PageCache for QuickCache {
    const NAME: &'static str = QUICK_CACHE;
    const NOTE: &'static str =
        "the crate quick_cache 0.7, page numbers to shared pages, with a faster hash than its own";

    fn with_room(pages: usize) -> QuickCache {
        let (weighter, hasher) = (quick_cache::UnitWeighter, Mixing::default());
        QuickCache(Arc::new(quick_cache::sync::Cache::with(pages, pages as u64, weighter, hasher, Default::default())))
    }

    fn put(&self, number: u64, page: Page) {
        self.0.insert(number, page);
    }

    #[inline(always)]
    fn copy(&self, number: u64, start: usize, record: &mut Record) -> bool {
        self.0.get(&number).is_some_and(|page| copy_out(&page, start, record))
    }
}

/// moka.
#[derive(Clone)]
pub struct Moka(moka::sync::Cache<u64, Page, Mixing>);

impl PageCache for Moka {
    const NAME: &'static str = MOKA;
    const NOTE: &'static str =
        "the crate moka 0.12 (sync), page numbers to shared pages, with a faster hash than its own";

    fn with_room(pages: usize) -> Moka {
        let builder = moka::sync::Cache::builder().max_capacity(pages as u64).initial_capacity(pages);
        Moka(builder.build_with_hasher(Mixing::default()))
    }

    fn put(&self, number: u64, page: Page) {
        self.0.insert(number, page);
    }

    fn settle(&self) {
        self.0.run_pending_tasks();
    }

    #[inline(always)]
    fn copy(&self, number: u64, start: usize, record: &mut Record) -> bool {
        self.0.get(&number).is_some_and(|page| copy_out(&page, start, record))
    }
}

/// foyer's in-memory cache.
#[derive(Clone)]
pub struct Foyer(foyer_memory::Cache<u64, Page, Mixing>);

impl PageCache for Foyer {
    const NAME: &'static str = FOYER;
    const NOTE: &'static str =
        "the crate foyer-memory 0.22 with S3-FIFO, page numbers to shared pages, with a faster hash than its own";

    fn with_room(pages: usize) -> Foyer {
        let builder =
            foyer_memory::CacheBuilder::new(pages).with_eviction_config(foyer_memory::S3FifoConfig::default());
        Foyer(builder.with_hash_builder(Mixing::default()).build())
    }

    fn put(&self, number: u64, page: Page) {
        self.0.insert(number, page);
    }

    #[inline(always)]
    fn copy(&self, number: u64, start: usize, record: &mut Record) -> bool {
        self.0.get(&number).is_some_and(|entry| copy_out(entry.value(), start, record))
    }
}

/// A crate's cache that holds all of the data. Its pages are shared with other contenders.
pub fn cached<C: PageCache>(data: &Arc<Data>, pages: &Arc<Pages>) -> InMemory {
    let pages = pages.clone();
    let mut filled: Option<C> = None;
    let read = move |slice: &Slice<'_>, reads: &RecordReads, data: &Data| {
        let cache = match &filled {
            Some(cache) => cache,
            None => filled.insert(fill(&pages.of(data)?)?),
        };
        records::run(slice, reads, data, || Ok(OneByOne(Lookup(cache.clone()))))
    };
    InMemory::new(C::NAME, data, read).noting(C::NOTE)
}

fn fill<C: PageCache>(pages: &[Page]) -> Result<C> {
    let cache = C::with_room(pages.len() + pages.len() / 2 + 1024);
    for (number, page) in (0..).zip(pages) {
        cache.put(number, page.clone());
    }
    cache.settle();
    let mut record = [0; RECORD_BYTES];
    match (0..pages.len() as u64).find(|&number| !cache.copy(number, 0, &mut record)) {
        Some(number) => Err(gone(C::NAME, number)),
        None => Ok(cache),
    }
}

#[cold]
fn gone(name: &str, number: u64) -> Error {
    let why = format!("it has lost page {number}, although it has room for all pages");
    Error::Tool { what: name.to_owned(), why }
}

struct Lookup<C>(C);

impl<C: PageCache> Copier for Lookup<C> {
    #[inline(always)]
    fn copy(&mut self, offset: u64, record: &mut Record) -> Result<()> {
        let (number, start) = (offset / PAGE_BYTES as u64, offset as usize % PAGE_BYTES);
        if self.0.copy(number, start, record) { Ok(()) } else { Err(gone(C::NAME, number)) }
    }
}

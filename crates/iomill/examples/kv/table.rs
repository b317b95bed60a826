//! A key-value store: a hash table of pages, a log that makes changes durable, and a sorted run of entries for scans.
//!
//! Rules:
//! 1. An entry lies in the first page from its key's home page on that has room for it. A page that once was full says
//!    so, and a search goes on behind it.
//! 2. A change is in the log before it is in a page. `commit` returns when the log up to there is durable. After a
//!    crash the log is repeated.
//! 3. A thread that changes or reads a key holds the key's lock, and the lock of the one page that it works on.
//! 4. The run is as the store was loaded. A key that has changed since then is in `changed` before its `put` returns. A
//!    scan reads the run, then `changed`, and looks up the keys of that in the table.
//!
//! It counts on pages of 4 KiB that are written as a whole, as SSDs do. Non-goals: removal, tables that grow, and logs
//! that shrink.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, RwLock};

/// A result of any error.
pub type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

pub const PAGE_BYTES: usize = 4096;
pub type Page = [u8; PAGE_BYTES];

/// Bytes of a page before its entries: how many bytes of entries it has, and whether it once was full.
const HEAD_BYTES: usize = 4;
/// Bytes of an entry before its value: its key, and the value's length.
const ENTRY_BYTES: usize = 10;
/// Longer values are refused.
pub const VALUE_MAX: usize = PAGE_BYTES - HEAD_BYTES - ENTRY_BYTES;

/// Locks of keys, and of pages. More than threads by far, so that two seldom meet.
const LOCKS: usize = 1024;

/// A file of a store.
pub trait Medium: Sync {
    /// Shows a page.
    fn page(&self, page: u64, look: &mut dyn FnMut(&Page)) -> Result<()>;
    /// Shows several pages, each with its index, in any order.
    fn pages(&self, pages: &[u64], look: &mut dyn FnMut(usize, &Page)) -> Result<()>;
    /// The length in bytes.
    fn len(&self) -> Result<u64>;
    /// Writes bytes at an offset. The file grows.
    fn write(&self, bytes: &[u8], offset: u64) -> Result<()>;
    /// Returns when everything that was written is durable.
    fn sync(&self) -> Result<()>;
}

/// Shows pages of a file of `len` bytes, which one gather reads. If the file ends within its last page, that comes
/// last, and is filled up with zeroes.
pub fn gather_pages(
    len: u64,
    pages: &[u64],
    gather: impl FnOnce(&mut [u8], &[(u64, usize)]) -> Result<()>,
    look: &mut dyn FnMut(usize, &Page),
) -> Result<()> {
    let range = |page: &u64| {
        let offset = page * PAGE_BYTES as u64;
        (offset, len.saturating_sub(offset).min(PAGE_BYTES as u64) as usize)
    };
    let ranges: Vec<(u64, usize)> = pages.iter().map(range).collect();
    if ranges.iter().rev().skip(1).any(|range| range.1 < PAGE_BYTES) {
        return Err("a page within which the file ends is not the last one of a gather".into());
    }
    let mut bytes = vec![0; pages.len() * PAGE_BYTES];
    let end = bytes.len() - ranges.last().map_or(0, |last| PAGE_BYTES - last.1);
    gather(&mut bytes[..end], &ranges)?;
    bytes.as_chunks().0.iter().enumerate().for_each(|(index, page)| look(index, page));
    Ok(())
}

/// What a page says of a key.
pub enum Found<'a> {
    Value(&'a [u8]),
    /// It may be in the next page.
    Behind,
    Nowhere,
}

/// Looks for a key in a page.
pub fn find(page: &Page, key: u64) -> Found<'_> {
    match entries(page).find(|(_, found, _)| *found == key) {
        Some((_, _, value)) => Found::Value(value),
        None if page[2] == 1 => Found::Behind,
        None => Found::Nowhere,
    }
}

/// The entries of a page: where each begins, its key and its value.
fn entries(page: &Page) -> impl Iterator<Item = (usize, u64, &[u8])> {
    let (mut at, end) = (HEAD_BYTES, HEAD_BYTES + used(page));
    std::iter::from_fn(move || {
        let head = page.get(at..at + ENTRY_BYTES).filter(|_| at < end)?;
        let key = u64::from_le_bytes(head[..8].try_into().ok()?);
        let value = page.get(at + ENTRY_BYTES..)?.get(..u16::from_le_bytes([head[8], head[9]]).into())?;
        let start = at;
        at += ENTRY_BYTES + value.len();
        Some((start, key, value))
    })
}

fn used(page: &Page) -> usize {
    usize::from(u16::from_le_bytes([page[0], page[1]]))
}

fn set_used(page: &mut Page, used: usize) {
    page[..2].copy_from_slice(&(used as u16).to_le_bytes());
}

/// A store in three files.
pub struct Table<M> {
    table: M,
    log: Log<M>,
    run: M,
    /// Pages of the table.
    pages: u64,
    /// The first key of each page of the run.
    fences: Vec<u64>,
    /// Entries of the run.
    run_entries: usize,
    /// Keys that have changed since the run was made (rule 4).
    changed: Mutex<BTreeSet<u64>>,
    key_locks: Vec<RwLock<()>>,
    page_locks: Vec<RwLock<()>>,
}

impl<M: Medium> Table<M> {
    /// Fills empty files with entries, which come in the order of their keys, and makes them durable. `pages` has room
    /// for them.
    pub fn load(files: [M; 3], pages: u64, entries: impl Iterator<Item = (u64, Vec<u8>)>) -> Result<Table<M>> {
        let mut made = Table::new(files, pages);
        // In memory, since its pages are filled without an order.
        let mut filled = vec![[0; PAGE_BYTES]; pages as usize];
        // Pages of the run that are not written yet.
        let mut sorted = Vec::new();
        for (key, value) in entries {
            made.probe(key).find(|page| insert(&mut filled[*page as usize], key, &value)).ok_or(FULL)?;
            made.extend_run(&mut sorted, key, &value)?;
        }
        made.write_run(&sorted)?;
        for (at, pages) in (0..).step_by(256).zip(filled.chunks(256)) {
            made.table.write(pages.as_flattened(), at * PAGE_BYTES as u64)?;
        }
        made.table.sync()?;
        made.run.sync()?;
        Ok(made)
    }

    /// Adds an entry to the run. `sorted` has its last pages, and is written when it has many.
    fn extend_run(&mut self, sorted: &mut Vec<Page>, key: u64, value: &[u8]) -> Result<()> {
        self.run_entries += 1;
        if sorted.last_mut().is_some_and(|page| insert(page, key, value)) {
            return Ok(());
        }
        if sorted.len() == 256 {
            self.write_run(sorted)?;
            sorted.clear();
        }
        let mut page = [0; PAGE_BYTES];
        insert(&mut page, key, value);
        sorted.push(page);
        self.fences.push(key);
        Ok(())
    }

    /// Writes the last pages of the run.
    fn write_run(&self, pages: &[Page]) -> Result<()> {
        self.run.write(pages.as_flattened(), ((self.fences.len() - pages.len()) * PAGE_BYTES) as u64)
    }

    /// Opens what was there before a crash: reads the first keys of the run's pages, and repeats the log.
    pub fn open(files: [M; 3], pages: u64) -> Result<Table<M>> {
        let mut opened = Table::new(files, pages);
        let pages: Vec<u64> = (0..opened.run.len()? / PAGE_BYTES as u64).collect();
        for pages in pages.chunks(256) {
            let mut read = vec![(None, 0); pages.len()];
            opened.run.pages(pages, &mut |index, page| {
                read[index] = (entries(page).next().map(|entry| entry.1), entries(page).count());
            })?;
            opened.run_entries += read.iter().map(|read| read.1).sum::<usize>();
            opened.fences.extend(read.iter().filter_map(|read| read.0));
        }
        for (key, value) in opened.log.read()? {
            opened.store(key, &value)?;
        }
        Ok(opened)
    }

    fn new([table, log, run]: [M; 3], pages: u64) -> Table<M> {
        let locks = || (0..LOCKS).map(|_| RwLock::new(())).collect();
        let (key_locks, page_locks) = (locks(), locks());
        let (log, changed) = (Log::new(log), Mutex::new(BTreeSet::new()));
        Table { table, log, run, pages, fences: Vec::new(), run_entries: 0, changed, key_locks, page_locks }
    }

    /// The pages in which a key may be, in the order in which they are searched.
    pub fn probe(&self, key: u64) -> impl Iterator<Item = u64> + use<M> {
        let (home, pages) = (mix(key) % self.pages, self.pages);
        (0..pages).map(move |step| (home + step) % pages)
    }

    /// The value of a key.
    pub fn get(&self, key: u64) -> Result<Option<Vec<u8>>> {
        let _key = self.key_locks[mix(key) as usize % LOCKS].read().unwrap_or_else(PoisonError::into_inner);
        self.search(key)
    }

    /// The same for a caller that holds the key's lock.
    fn search(&self, key: u64) -> Result<Option<Vec<u8>>> {
        for page in self.probe(key) {
            let mut answer = None;
            let _page = self.page_locks[page as usize % LOCKS].read().unwrap_or_else(PoisonError::into_inner);
            self.table.page(page, &mut |bytes| {
                answer = match find(bytes, key) {
                    Found::Value(value) => Some(Some(value.to_vec())),
                    Found::Nowhere => Some(None),
                    Found::Behind => None,
                }
            })?;
            if let Some(answer) = answer {
                return Ok(answer);
            }
        }
        Ok(None)
    }

    /// Gives a key a value, which is durable after the next `commit`.
    pub fn put(&self, key: u64, value: &[u8]) -> Result<()> {
        if value.len() > VALUE_MAX {
            return Err(format!("a value of {} bytes; the longest has {VALUE_MAX}", value.len()).into());
        }
        let _key = self.key_locks[mix(key) as usize % LOCKS].write().unwrap_or_else(PoisonError::into_inner);
        self.log.append(key, value)?;
        self.store(key, value)
    }

    /// The same without the log.
    fn store(&self, key: u64, value: &[u8]) -> Result<()> {
        self.replace(key, value)?;
        self.changed.lock().unwrap_or_else(PoisonError::into_inner).insert(key);
        Ok(())
    }

    /// Puts an entry into its page, and takes an older one of the key out.
    fn replace(&self, key: u64, value: &[u8]) -> Result<()> {
        let mut was_there = false;
        for page in self.probe(key) {
            let _page = self.page_locks[page as usize % LOCKS].write().unwrap_or_else(PoisonError::into_inner);
            let mut bytes = [0; PAGE_BYTES];
            self.table.page(page, &mut |found| bytes = *found)?;
            let offset = page * PAGE_BYTES as u64;
            let place = entries(&bytes).find(|entry| entry.1 == key).map(|(at, _, old)| (at, old.len()));
            if let Some((at, len)) = place {
                if len == value.len() {
                    self.table.write(value, offset + (at + ENTRY_BYTES) as u64)?;
                    return Ok(());
                }
                was_there = true;
                remove(&mut bytes, at, ENTRY_BYTES + len);
            }
            let is_last = was_there || bytes[2] == 0;
            let is_in = is_last && insert(&mut bytes, key, value);
            if place.is_some() || is_last {
                self.table.write(&bytes, offset)?;
            }
            if is_in {
                return Ok(());
            }
        }
        Err(FULL.into())
    }

    /// Returns when all changes before it are durable. Threads that wait at the same time share an fsync.
    pub fn commit(&self) -> Result<()> {
        self.log.commit()
    }

    /// Up to `count` keys from one on, in their order, with their values.
    pub fn scan(&self, from: u64, count: usize) -> Result<Vec<(u64, Vec<u8>)>> {
        let mut found = self.scan_run(from, count)?;
        // The scan ends at this key of the run, or before it.
        let last = found.keys().nth(count.saturating_sub(1)).copied().unwrap_or(u64::MAX);
        let changed: Vec<u64> = {
            let changed = self.changed.lock().unwrap_or_else(PoisonError::into_inner);
            changed.range(from..=last).take(count).copied().collect()
        };
        let homes: Vec<u64> = changed.iter().map(|key| mix(*key) % self.pages).collect();
        let mut values = vec![None; changed.len()];
        self.table.pages(&homes, &mut |index, page| {
            if let Found::Value(value) = find(page, changed[index]) {
                values[index] = Some(value.to_vec());
            }
        })?;
        for (key, value) in changed.into_iter().zip(values) {
            // Some lie behind their home page, or were being written.
            if let Some(value) = value.map_or_else(|| self.get(key), |value| Ok(Some(value)))? {
                found.insert(key, value);
            }
        }
        Ok(found.into_iter().take(count).collect())
    }

    /// Up to `count` entries of the run.
    fn scan_run(&self, from: u64, count: usize) -> Result<BTreeMap<u64, Vec<u8>>> {
        let mut page = self.fences.partition_point(|fence| *fence <= from).saturating_sub(1);
        let page_entries = self.run_entries / self.fences.len().max(1) + 1;
        let mut found = BTreeMap::new();
        while found.len() < count && page < self.fences.len() {
            let end = (page + (count - found.len()) / page_entries + 2).min(self.fences.len());
            let pages: Vec<u64> = (page as u64..end as u64).collect();
            self.run.pages(&pages, &mut |_, page| {
                let behind = entries(page).filter(|(_, key, _)| *key >= from);
                found.extend(behind.map(|(_, key, value)| (key, value.to_vec())));
            })?;
            page = end;
        }
        Ok(found)
    }
}

const FULL: &str = "the table is full; make it with more pages";

/// Puts an entry into a page, if it has room. If not, the page says that it was full.
fn insert(page: &mut Page, key: u64, value: &[u8]) -> bool {
    let at = HEAD_BYTES + used(page);
    if at + ENTRY_BYTES + value.len() > PAGE_BYTES {
        page[2] = 1;
        return false;
    }
    page[at..at + 8].copy_from_slice(&key.to_le_bytes());
    page[at + 8..at + ENTRY_BYTES].copy_from_slice(&(value.len() as u16).to_le_bytes());
    page[at + ENTRY_BYTES..][..value.len()].copy_from_slice(value);
    let used = used(page) + ENTRY_BYTES + value.len();
    set_used(page, used);
    true
}

fn remove(page: &mut Page, at: usize, len: usize) {
    let end = HEAD_BYTES + used(page);
    page.copy_within(at + len..end, at);
    set_used(page, end - HEAD_BYTES - len);
}

/// The log of changes.
struct Log<M> {
    file: M,
    state: Mutex<Tail>,
    synced: Condvar,
}

/// Offsets are in bytes from the log's start: `durable <= written <= written + buffer.len()`.
#[derive(Default)]
struct Tail {
    /// What is not written yet.
    buffer: Vec<u8>,
    written: u64,
    durable: u64,
    is_syncing: bool,
    /// An fsync has failed: what was before it may be lost.
    has_failed: bool,
}

impl<M: Medium> Log<M> {
    fn new(file: M) -> Log<M> {
        Log { file, state: Mutex::default(), synced: Condvar::new() }
    }

    fn tail(&self) -> MutexGuard<'_, Tail> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn append(&self, key: u64, value: &[u8]) -> Result<()> {
        let mut tail = self.tail();
        if tail.has_failed {
            return Err(FAILED.into());
        }
        let len = (value.len() as u16).to_le_bytes();
        tail.buffer.extend_from_slice(&sum(key, value).to_le_bytes());
        tail.buffer.extend_from_slice(&key.to_le_bytes());
        tail.buffer.extend_from_slice(&len);
        tail.buffer.extend_from_slice(value);
        Ok(())
    }

    fn commit(&self) -> Result<()> {
        let mut tail = self.tail();
        let goal = tail.written + tail.buffer.len() as u64;
        while tail.durable < goal {
            if tail.has_failed {
                return Err(FAILED.into());
            }
            if tail.is_syncing {
                tail = self.synced.wait(tail).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let (bytes, offset) = (std::mem::take(&mut tail.buffer), tail.written);
            tail.is_syncing = true;
            tail.written += bytes.len() as u64;
            drop(tail);
            let synced = self.file.write(&bytes, offset).and_then(|()| self.file.sync());
            tail = self.tail();
            tail.is_syncing = false;
            match synced {
                Ok(()) => tail.durable = offset + bytes.len() as u64,
                Err(_) => tail.has_failed = true,
            }
            self.synced.notify_all();
            synced?;
        }
        Ok(())
    }

    /// The changes that are whole. Behind them the log goes on.
    fn read(&mut self) -> Result<Vec<(u64, Vec<u8>)>> {
        let pages: Vec<u64> = (0..self.file.len()?.div_ceil(PAGE_BYTES as u64)).collect();
        let mut bytes = vec![0; pages.len() * PAGE_BYTES];
        self.file.pages(&pages, &mut |index, page| bytes[index * PAGE_BYTES..][..PAGE_BYTES].copy_from_slice(page))?;
        let (mut rest, mut changes) = (&bytes[..], Vec::new());
        while let Some((head, behind)) = rest.split_first_chunk::<18>() {
            let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| head[at + byte]));
            let Some(value) = behind.get(..u16::from_le_bytes([head[16], head[17]]).into()) else { break };
            if number(0) != sum(number(8), value) {
                break;
            }
            changes.push((number(8), value.to_vec()));
            rest = &behind[value.len()..];
        }
        let tail = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        tail.written = (bytes.len() - rest.len()) as u64;
        tail.durable = tail.written;
        Ok(changes)
    }
}

const FAILED: &str = "the log could not be written; changes since the last commit may be lost";

/// A checksum of a change. It is never 0, so that memory of zeroes is no change.
fn sum(key: u64, value: &[u8]) -> u64 {
    let words = value.chunks(8).map(|chunk| chunk.iter().fold(0, |word, byte| word << 8 | u64::from(*byte)));
    words.fold(mix(key ^ value.len() as u64), |sum, word| mix(sum ^ word)) | 1
}

/// The finaliser of SplitMix64.
pub fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

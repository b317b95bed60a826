//! The board: all banks of one array, if possible in memory that other processes can read.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::mm::{MapFlags, ProtFlags};

use super::bank::{BANK_BYTES, BANK_WORDS, BANKS_MAX, Bank, KIND_WORD};
use super::published::{CACHE_WORD, USED_WORD, encode, header_bytes};
use super::runtime::{self, OwnFile};
use super::snapshot::{Counters, load};
use crate::sys::memory::Slab;
use crate::sys::process::Home;

/// The step in bytes by which the board's memory is allocated: a page.
const STEP_BYTES: usize = 4096;

/// The number of the next board. It identifies the boards of this process in the threads' tables.
static INSTANCES: AtomicU64 = AtomicU64::new(0);

/// The array that a board describes.
#[derive(Clone, Debug)]
pub struct Subject {
    /// The array's id.
    pub array: [u8; 16],
    /// The drives' directories, by index.
    pub drives: Vec<String>,
}

/// All counters of one array in this process.
pub struct Board {
    pub(super) instance: u64,
    home: Home,
    pub(super) drives: u16,
    area: Area,
    pool: Mutex<BankPool>,
    /// Whether the board is hidden from other processes.
    pub(super) closed: AtomicBool,
}

/// The banks of a board.
struct BankPool {
    /// The file behind the area, until the board is closed.
    file: Option<OwnFile>,
    /// The number of banks in use, the first ones of the area. They have a kind.
    used: usize,
    /// The number of banks that may be touched, the first ones of the area (`runtime`, rule 3). At least `used`.
    ready: usize,
    /// Banks without an owner, by kind (rule 2).
    free: BTreeMap<u64, Vec<NonNull<Bank>>>,
    /// Banks outside the area. Each is a leaked box, which the board's drop frees.
    extra: Vec<NonNull<Bank>>,
}

/// The header and `BANKS_MAX` banks.
enum Area {
    Plain(Slab),
    Shared(SharedMapping),
}

impl Area {
    fn base(&self) -> *mut u8 {
        match self {
            Area::Plain(slab) => slab.base(),
            Area::Shared(mapping) => mapping.start.as_ptr(),
        }
    }
}

/// A shared mapping of a file.
struct SharedMapping {
    /// The start of a mapping of `len` bytes, which this value alone owns.
    start: NonNull<u8>,
    len: usize,
}

impl Drop for SharedMapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours. No owner of a bank lives any more, because each holds the board.
        let unmapped = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "unmapping own memory cannot fail");
    }
}

// SAFETY: the pointers lead to atomics, which are valid while the board lives and belong to no thread. The pool is
// under a lock.
unsafe impl Send for Board {}
// SAFETY: as above.
unsafe impl Sync for Board {}

impl Board {
    /// Makes a board in the first of `directories` that works, else in plain memory. If there are directories and none
    /// works, a notice says why. `salt` makes the file's name hard to guess.
    pub fn new(
        subject: &Subject,
        directories: &[PathBuf],
        salt: u64,
        notices: &mut Vec<String>,
    ) -> io::Result<Arc<Board>> {
        let header = encode(&subject.array, std::process::id(), &subject.drives);
        let len = header.len() + BANKS_MAX * BANK_BYTES;
        let mut reasons = Vec::new();
        let mut shown = None;
        for path in directories {
            match show(path, subject, salt, &header, len) {
                Ok(found) => {
                    shown = Some(found);
                    break;
                }
                Err(error) => reasons.push(format!("{}: {error}", path.display())),
            }
        }
        if shown.is_none() && !reasons.is_empty() {
            notices.push(format!("other processes cannot watch the counters of this one: {}", reasons.join("; ")));
        }
        let (area, file) = match shown {
            Some((mapping, file)) => (Area::Shared(mapping), Some(file)),
            None => {
                let slab = Slab::new(len)?;
                // SAFETY: the slab is longer than the header, and no other code has it.
                unsafe { slab.base().copy_from_nonoverlapping(header.as_ptr(), header.len()) };
                (Area::Plain(slab), None)
            }
        };
        let ready = if file.is_some() { 0 } else { BANKS_MAX };
        let pool = BankPool { file, used: 0, ready, free: BTreeMap::new(), extra: Vec::new() };
        Ok(Arc::new(Board {
            instance: INSTANCES.fetch_add(1, Ordering::Relaxed),
            home: Home::here(),
            drives: subject.drives.len() as u16,
            area,
            pool: Mutex::new(pool),
            closed: AtomicBool::new(false),
        }))
    }

    /// Takes a bank of a kind.
    pub(super) fn take(self: &Arc<Self>, kind: u64) -> Owned {
        let mut pool = self.pool();
        let freed = pool.free.get_mut(&kind).and_then(Vec::pop);
        let bank = freed.unwrap_or_else(|| self.begin(&mut pool, kind));
        Owned { board: Arc::clone(self), bank, not_sync: PhantomData }
    }

    /// A bank that had no owner before.
    fn begin(&self, pool: &mut BankPool, kind: u64) -> NonNull<Bank> {
        if pool.used == pool.ready && pool.used < BANKS_MAX {
            let offset = header_bytes(self.drives) + pool.ready * BANK_BYTES;
            let allocated = pool.file.as_ref().map(|file| file.allocate(offset as u64, STEP_BYTES as u64));
            // Without memory for more banks, or after the close of the file, the bank below is in plain memory.
            if matches!(allocated, Some(Ok(()))) {
                pool.ready += STEP_BYTES / BANK_BYTES;
            }
        }
        if pool.used < pool.ready {
            let bank = self.bank(pool.used);
            pool.used += 1;
            // SAFETY: the bank lies within the area, and may be touched.
            unsafe { bank.as_ref() }.0[KIND_WORD].store(kind, Ordering::Relaxed);
            // Release: pairs with the read in `Published::read` of another process, which must see the kind of every
            // bank in use.
            self.header(USED_WORD).store(pool.used as u64, Ordering::Release);
            return bank;
        }
        let words: [AtomicU64; BANK_WORDS] = std::array::from_fn(|_| AtomicU64::new(0));
        words[KIND_WORD].store(kind, Ordering::Relaxed);
        let bank = NonNull::from(Box::leak(Box::new(Bank(words))));
        pool.extra.push(bank);
        bank
    }

    /// Whether the calling process made the board, and is not a child of that process.
    pub(super) fn is_here(&self) -> bool {
        self.home.is_here()
    }

    fn give_back(&self, bank: NonNull<Bank>) {
        // SAFETY: the bank lives as long as the board.
        let kind = unsafe { bank.as_ref() }.0[KIND_WORD].load(Ordering::Relaxed);
        self.pool().free.entry(kind).or_default().push(bank);
    }

    /// Sets the size of the cache in bytes.
    pub fn set_cache_bytes(&self, cache_bytes: u64) {
        self.header(CACHE_WORD).store(cache_bytes, Ordering::Relaxed);
    }

    /// The sums now.
    pub fn counters(&self) -> Counters {
        let mut counters = Counters::new(self.drives);
        counters.cache_bytes = self.header(CACHE_WORD).load(Ordering::Relaxed);
        let pool = self.pool();
        let banks = (0..pool.used).map(|index| self.bank(index)).chain(pool.extra.iter().copied());
        for bank in banks {
            // SAFETY: banks in use may be touched and live as long as the board.
            let known = counters.add_bank(&load(unsafe { bank.as_ref() }));
            debug_assert!(known, "the board has banks only for its own drives");
        }
        counters
    }

    /// Hides the board from other processes. Counts go on.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        self.pool().file = None;
    }

    /// The number of banks that ever had an owner.
    #[cfg(test)]
    pub(super) fn banks_in_use(&self) -> usize {
        let pool = self.pool();
        pool.used + pool.extra.len()
    }

    fn pool(&self) -> MutexGuard<'_, BankPool> {
        // The pool is valid at every moment, so it may be used after a panic of an earlier holder.
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn header(&self, word: usize) -> &AtomicU64 {
        // SAFETY: the header is at the start of the area, aligned, and was allocated before the board was made. Its
        // words that change are accessed only as atomics.
        unsafe { AtomicU64::from_ptr(self.area.base().cast::<u64>().add(word)) }
    }

    fn bank(&self, index: usize) -> NonNull<Bank> {
        assert!(index < BANKS_MAX, "the board has no bank {index}");
        // SAFETY: the area has `BANKS_MAX` banks after its header and is not null; both are multiples of a bank's
        // alignment.
        unsafe { NonNull::new_unchecked(self.area.base().add(header_bytes(self.drives) + index * BANK_BYTES).cast()) }
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        let pool = self.pool.get_mut().unwrap_or_else(PoisonError::into_inner);
        for bank in pool.extra.drain(..) {
            // SAFETY: the bank is a box that `begin` leaked. No owner lives any more, because each holds the board.
            drop(unsafe { Box::from_raw(bank.as_ptr()) });
        }
    }
}

impl fmt::Debug for Board {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Board").field("instance", &self.instance).field("drives", &self.drives).finish_non_exhaustive()
    }
}

/// Creates the file, maps it, fills in the header, and gives the file its name.
fn show(path: &Path, subject: &Subject, salt: u64, header: &[u8], len: usize) -> io::Result<(SharedMapping, OwnFile)> {
    let directory = runtime::open_directory(path, true)?;
    // Removes the files of dead processes.
    runtime::living(&directory)?;
    let name = runtime::file_name(&subject.array, std::process::id(), salt);
    let file = runtime::create(directory, name, len as u64)?;
    file.allocate(0, header.len() as u64)?;
    let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
    // SAFETY: a new mapping at an address that the kernel chooses touches no memory that exists.
    let start = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, access, flags, &file.file, 0) }?;
    let start = NonNull::new(start.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
    let mapping = SharedMapping { start, len };
    // SAFETY: the mapping is longer than the header, for which memory is allocated. No other process knows the file
    // yet.
    unsafe { start.as_ptr().copy_from_nonoverlapping(header.as_ptr(), header.len()) };
    file.show()?;
    Ok((mapping, file))
}

/// The ownership of a bank. It is `Send` and not `Sync`, because only the thread that holds it writes (rule 1).
pub(super) struct Owned {
    pub(super) board: Arc<Board>,
    /// Valid while the board lives.
    pub(super) bank: NonNull<Bank>,
    /// Keeps `&Owned` on one thread.
    not_sync: PhantomData<Cell<u64>>,
}

// SAFETY: the bank consists of atomics in the board's memory, which belongs to no thread. A move to another thread
// orders the old owner's stores before the new owner's.
unsafe impl Send for Owned {}

impl Owned {
    pub(super) fn words(&self) -> &[AtomicU64; BANK_WORDS] {
        // SAFETY: `self` holds the board, so the bank is valid. It consists of atomics, which may be shared.
        unsafe { &self.bank.as_ref().0 }
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // A forked child leaves the bank to the parent. The pool's lock may be held for ever there, by a thread that
        // only the parent has.
        if self.board.is_here() {
            self.board.give_back(self.bank);
        }
    }
}

impl fmt::Debug for Owned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Owned").field(&self.bank).finish()
    }
}

//! The owners of banks: [`Tally`] of a thread, and [`DriveTally`] of a drive queue.

use std::cell::RefCell;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::bank::{BANK_WORDS, Bank, Counter, DriveCounter, KIND_DRIVE, KIND_THREAD, LATENCY_WORD};
use super::board::{Board, Owned};
use super::latency;

thread_local! {
    /// This thread's tallies, by board.
    static TALLIES: RefCell<Vec<(u64, Tally)>> = const { RefCell::new(Vec::new()) };
}

/// Adds to a word of the calling thread's bank.
#[inline(always)]
fn add(word: &AtomicU64, amount: u64) {
    // Only the bank's owner writes (rule 1), so nothing is lost between the load and the store.
    word.store(word.load(Ordering::Relaxed).wrapping_add(amount), Ordering::Relaxed);
}

/// Counts a hit. `note` gets the number of hits before it.
#[inline(always)]
fn hit<R>(hits: &AtomicU64, note: impl FnOnce(u64) -> R) -> R {
    let noted = note(hits.load(Ordering::Relaxed));
    add(hits, 1);
    noted
}

impl Owned {
    #[inline(always)]
    fn add(&self, word: usize, amount: u64) {
        add(&self.words()[word], amount);
    }

    fn set(&self, word: usize, value: u64) {
        self.words()[word].store(value, Ordering::Relaxed);
    }
}

/// A thread's counters for one array. [`Board::tally`] finds them.
#[derive(Clone, Debug)]
pub struct Tally {
    /// A copy of `owned.bank`, which saves a hit one load.
    bank: NonNull<Bank>,
    pub(super) owned: Rc<Owned>,
}

impl Tally {
    pub(super) fn new(owned: Owned) -> Tally {
        Tally { bank: owned.bank, owned: Rc::new(owned) }
    }

    #[inline(always)]
    fn words(&self) -> &[AtomicU64; BANK_WORDS] {
        // SAFETY: the bank is valid while `owned` lives. It consists of atomics, which may be shared.
        unsafe { &self.bank.as_ref().0 }
    }

    /// The value of a counter in this bank: of this thread and of the bank's earlier owners.
    #[inline(always)]
    pub fn get(&self, id: Counter) -> u64 {
        self.words()[id as usize].load(Ordering::Relaxed)
    }

    /// Adds to a counter.
    #[inline(always)]
    pub fn add(&self, id: Counter, amount: u64) {
        add(&self.words()[id as usize], amount);
    }

    /// Counts a hit. `note` gets the number of hits before it.
    #[inline(always)]
    pub fn hit<R>(&self, note: impl FnOnce(u64) -> R) -> R {
        hit(&self.words()[Counter::Hits as usize], note)
    }

    /// Counts a hit as [`Tally::hit`], and adds to another counter.
    #[inline(always)]
    pub fn hit_and<R>(&self, other: Counter, amount: u64, note: impl FnOnce(u64) -> R) -> R {
        // Loaded once: after a store to the words the compiler would load `bank` again.
        let words = self.words();
        add(&words[other as usize], amount);
        hit(&words[Counter::Hits as usize], note)
    }
}

/// A drive queue's counters.
#[derive(Debug)]
pub struct DriveTally(pub(super) Owned);

impl DriveTally {
    /// Counts a read that succeeded.
    #[inline]
    pub fn read(&self, bytes: u64) {
        self.0.add(DriveCounter::Reads as usize, 1);
        self.0.add(DriveCounter::ReadBytes as usize, bytes);
    }

    /// Counts a write that succeeded.
    #[inline]
    pub fn wrote(&self, bytes: u64) {
        self.0.add(DriveCounter::Writes as usize, 1);
        self.0.add(DriveCounter::WriteBytes as usize, bytes);
    }

    /// Counts a sync that succeeded.
    pub fn synced(&self) {
        self.0.add(DriveCounter::Syncs as usize, 1);
    }

    /// Counts a read, write or sync that failed, after all retries.
    #[cold]
    pub fn failed(&self) {
        self.0.add(DriveCounter::Errors as usize, 1);
    }

    /// Sets the number of requests in flight.
    #[inline]
    pub fn set_in_flight(&self, count: usize) {
        self.0.set(DriveCounter::InFlight as usize, count as u64);
    }

    /// Adds the latency of a timed read or write.
    pub fn took(&self, latency_ns: u64) {
        self.0.add(LATENCY_WORD + latency::bucket(latency_ns), 1);
        self.0.add(DriveCounter::LatencySumNs as usize, latency_ns);
    }
}

impl Drop for DriveTally {
    fn drop(&mut self) {
        // The bank stays in the sums, so its gauge is cleared. A forked child leaves the bank to the parent.
        if self.0.board.is_here() {
            self.set_in_flight(0);
        }
    }
}

impl Board {
    /// The calling thread's counters. The thread keeps them, so this only searches a short list. A caller with many
    /// counts in one call should ask once.
    #[inline]
    pub fn tally(self: &Arc<Self>) -> Tally {
        let found = TALLIES.try_with(|tallies| {
            let found =
                tallies.borrow().iter().find(|(instance, _)| *instance == self.instance).map(|(_, t)| t.clone());
            found.unwrap_or_else(|| self.enter(&mut tallies.borrow_mut()))
        });
        // A thread that is ending has no table any more: each of its last calls takes a bank.
        found.unwrap_or_else(|_| self.take_thread())
    }

    #[cold]
    fn enter(self: &Arc<Self>, tallies: &mut Vec<(u64, Tally)>) -> Tally {
        tallies.retain(|(_, tally)| !tally.owned.board.closed.load(Ordering::Relaxed));
        let tally = self.take_thread();
        tallies.push((self.instance, tally.clone()));
        tally
    }

    /// Counters for another owner, such as a worker that serves many threads.
    pub fn take_thread(self: &Arc<Self>) -> Tally {
        Tally::new(self.take(KIND_THREAD))
    }

    /// Counters for a queue of a drive.
    pub fn take_drive(self: &Arc<Self>, drive: u16) -> DriveTally {
        assert!(drive < self.drives, "drive {drive} of {}", self.drives);
        DriveTally(self.take(KIND_DRIVE + u64::from(drive)))
    }
}

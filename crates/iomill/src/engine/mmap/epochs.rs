//! Replacement of a value that other threads use, without any thread waiting.
//!
//! WiredTiger published a protocol for the same purpose: a flag, a count of users, and a second path. Its users looked
//! at the flag before they counted themselves in, and did not look again. Here a reader announces itself first and
//! looks afterwards, and there is no count.
//!
//! Rules:
//! 1. A reader announces the epoch in which it enters (`at`), then fences, and only then loads the current value. After
//!    its last use of any value it withdraws the announcement (0).
//! 2. A thread that replaces a value first takes it out of its place. Then it ends the present epoch, and retires the
//!    value with the number of that epoch.
//! 3. A retired value is dropped once every reader is outside or has entered in a later epoch than the value's. The
//!    thread that drops it fences after rule 2, and then looks at the readers.
//! 4. A reader that leaves fences, looks whether any value is retired, and if so tries rule 3 itself. So the last
//!    reader of a value drops it, even if no other thread ever comes.
//! 5. A reader is listed before it first enters. A reader that is listed after the look of rule 3 finds the new value.
//!
//! The fences of 1 and 3 ensure one of two things: the reader sees that the value is no longer in its place, or the
//! replacing thread sees the reader. The fences of 4 and 3 do the same for a reader that leaves: it sees the retired
//! value, or the retiring thread sees that the reader has left.

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use crate::sys::barrier;
use crate::sys::sync::{AtomicPtr, AtomicU64, AtomicUsize, Mutex, Ordering, lock};

/// The announcement of a reader that is outside.
const OUTSIDE: u64 = 0;

/// The number of looks of a thread that waits until replaced values are dropped, and the pause between two.
const SETTLE_LOOKS: u32 = 2000;
const SETTLE_PAUSE: Duration = Duration::from_micros(50);

/// All readers of values of one kind, and the retired values.
#[derive(Debug)]
pub(super) struct Epochs<T> {
    /// The present epoch; never [`OUTSIDE`].
    now: AtomicU64,
    /// The readers that exist.
    readers: Mutex<Vec<Arc<Announcement>>>,
    /// Replaced values, each with the last epoch in which a reader could find it.
    retired: Mutex<Vec<(u64, Box<T>)>>,
    /// The length of `retired`. Changed under its lock, read without it.
    waiting: AtomicUsize,
}

/// A reader's announcement (rule 1), in a cache line of its own, because it changes with every batch.
#[derive(Debug)]
#[repr(align(128))]
struct Announcement {
    at: AtomicU64,
}

/// The place where readers find the current value.
#[derive(Debug)]
pub(super) struct Current<T> {
    /// From `Box::into_raw`, or null. Owned by this place.
    value: AtomicPtr<T>,
    owns: PhantomData<Box<T>>,
}

/// A user of values, on one thread at a time.
#[derive(Debug)]
pub(super) struct Reader<T> {
    epochs: Arc<Epochs<T>>,
    announcement: Arc<Announcement>,
}

/// A reader that is inside. While it lives, no value that it found is dropped.
#[derive(Debug)]
pub(super) struct EpochGuard<'a, T> {
    reader: &'a Reader<T>,
}

impl<T> Default for Epochs<T> {
    fn default() -> Epochs<T> {
        Epochs {
            now: AtomicU64::new(OUTSIDE + 1),
            readers: Mutex::new(Vec::new()),
            retired: Mutex::new(Vec::new()),
            waiting: AtomicUsize::new(0),
        }
    }
}

impl<T> Epochs<T> {
    /// Lists a reader (rule 5).
    pub(super) fn reader(epochs: &Arc<Epochs<T>>) -> Reader<T> {
        let announcement = Arc::new(Announcement { at: AtomicU64::new(OUTSIDE) });
        lock(&epochs.readers).push(Arc::clone(&announcement));
        Reader { epochs: Arc::clone(epochs), announcement }
    }

    /// Puts a new value, or none, in a place. The old value is dropped as soon as no reader uses it.
    pub(super) fn replace(&self, place: &Current<T>, new: Option<Box<T>>) {
        let new = new.map_or(std::ptr::null_mut(), Box::into_raw);
        // Rule 2. Release: pairs with the Acquire in `EpochGuard::current`, so that a reader finds a new value whole.
        let old = place.value.swap(new, Ordering::AcqRel);
        if old.is_null() {
            return;
        }
        // SAFETY: the pointer came from a box that the place owned, and only this swap took it out.
        let old = unsafe { Box::from_raw(old) };
        {
            let mut retired = lock(&self.retired);
            // Release: pairs with the Acquire in `Reader::enter`, so that a reader of a later epoch sees that the value
            // is gone.
            let epoch = self.now.fetch_add(1, Ordering::AcqRel);
            retired.push((epoch, old));
            self.waiting.store(retired.len(), Ordering::Relaxed);
        }
        self.reclaim();
    }

    /// Waits until all replaced values are dropped. A reader is inside only for a few copies. The number of looks is
    /// bounded all the same: a copy from a failing drive takes long.
    pub(super) fn settle(&self) {
        for _ in 0..SETTLE_LOOKS {
            if self.waiting.load(Ordering::Relaxed) == 0 {
                return;
            }
            std::thread::sleep(SETTLE_PAUSE);
            self.reclaim();
        }
    }

    /// Drops retired values by rule 3.
    #[cold]
    fn reclaim(&self) {
        let mut droppable = Vec::new();
        {
            let mut retired = lock(&self.retired);
            if retired.is_empty() {
                return;
            }
            barrier::heavy();
            let oldest = {
                let readers = lock(&self.readers);
                // Acquire: pairs with the Release in the drop of `EpochGuard`. All uses by a reader that has left
                // precede the drop of the value.
                let inside = readers
                    .iter()
                    .map(|announcement| announcement.at.load(Ordering::Acquire))
                    .filter(|at| *at != OUTSIDE);
                inside.min().unwrap_or(u64::MAX)
            };
            let mut at = 0;
            while at < retired.len() {
                if retired[at].0 < oldest {
                    droppable.push(retired.swap_remove(at));
                } else {
                    at += 1;
                }
            }
            self.waiting.store(retired.len(), Ordering::Relaxed);
        }
        // Dropped outside the locks: unmapping takes long.
        drop(droppable);
    }
}

impl<T> Reader<T> {
    /// Lets the reader in.
    pub(super) fn enter(&mut self) -> EpochGuard<'_, T> {
        // Acquire: pairs with the Release of `now` in `replace`.
        let now = self.epochs.now.load(Ordering::Acquire);
        // Rule 1.
        self.announcement.at.store(now, Ordering::Relaxed);
        barrier::light();
        EpochGuard { reader: self }
    }
}

impl<T> EpochGuard<'_, T> {
    /// The value that is in a place now.
    pub(super) fn current<'b>(&'b self, place: &'b Current<T>) -> Option<&'b T> {
        // SAFETY: a value that was in a place after this reader had announced itself is not dropped while the reader is
        // inside (rule 3). The place itself is borrowed, so it does not drop the value either. Places are used with one
        // `Epochs` only. Acquire: pairs with the Release in `replace`.
        unsafe { place.value.load(Ordering::Acquire).as_ref() }
    }
}

impl<T> Drop for EpochGuard<'_, T> {
    fn drop(&mut self) {
        let Reader { epochs, announcement } = self.reader;
        // Release: pairs with the Acquire in `reclaim`.
        announcement.at.store(OUTSIDE, Ordering::Release);
        // Rule 4.
        barrier::light();
        if epochs.waiting.load(Ordering::Relaxed) != 0 {
            epochs.reclaim();
        }
    }
}

impl<T> Drop for Reader<T> {
    fn drop(&mut self) {
        lock(&self.epochs.readers).retain(|announcement| !Arc::ptr_eq(announcement, &self.announcement));
    }
}

impl<T> Default for Current<T> {
    fn default() -> Current<T> {
        Current { value: AtomicPtr::new(std::ptr::null_mut()), owns: PhantomData }
    }
}

impl<T> Drop for Current<T> {
    fn drop(&mut self) {
        // Acquire: pairs with the Release in `replace`.
        let value = self.value.load(Ordering::Acquire);
        if !value.is_null() {
            // SAFETY: the place owns the value. No reader uses it through `EpochGuard::current`, which would borrow the
            // place.
            drop(unsafe { Box::from_raw(value) });
        }
    }
}

#[cfg(all(test, iomill_models))]
mod models {
    use loom::thread;

    use super::*;
    use crate::sys::sync::model;

    /// A mapping that notices a use after its end.
    struct Mapping {
        number: u64,
        /// 1 while it is mapped.
        mapped: Arc<AtomicU64>,
    }

    impl Mapping {
        fn new(number: u64) -> (Box<Mapping>, Arc<AtomicU64>) {
            let mapped = Arc::new(AtomicU64::new(1));
            (Box::new(Mapping { number, mapped: Arc::clone(&mapped) }), mapped)
        }
    }

    impl Drop for Mapping {
        fn drop(&mut self) {
            self.mapped.store(0, Ordering::Relaxed);
        }
    }

    /// Uses the current value twice, as two requests of a batch do. Returns its number.
    fn read(reader: &mut Reader<Mapping>, place: &Current<Mapping>, mapped: &[Arc<AtomicU64>]) -> Option<u64> {
        let guard = reader.enter();
        let number = guard.current(place)?.number;
        // Not a field of the mapping itself: in a model that is broken on purpose that would read freed memory.
        for _ in 0..2 {
            assert_eq!(mapped[number as usize].load(Ordering::Relaxed), 1, "used after it was unmapped");
        }
        Some(number)
    }

    /// Rules 1 to 3 and 5: a mapping is replaced while another thread reads. Fails without the fence of rule 1, with
    /// `current` looked up before the announcement, without the comparison of rule 3, and with a relaxed `now`.
    #[test]
    fn loom_what_is_used_stays_mapped() {
        model(|| {
            let epochs = Arc::new(Epochs::default());
            let place = Arc::new(Current::default());
            let ((first, first_mapped), (second, second_mapped)) = (Mapping::new(0), Mapping::new(1));
            epochs.replace(&place, Some(first));
            let mapped = [Arc::clone(&first_mapped), Arc::clone(&second_mapped)];
            let reading = {
                let (epochs, place) = (Arc::clone(&epochs), Arc::clone(&place));
                thread::spawn(move || {
                    let mut reader = Epochs::reader(&epochs);
                    let seen = [read(&mut reader, &place, &mapped), read(&mut reader, &place, &mapped)];
                    assert!(seen[0].is_some() && seen[0] <= seen[1], "from {seen:?}");
                })
            };
            epochs.replace(&place, Some(second));
            reading.join().unwrap();
            assert_eq!(first_mapped.load(Ordering::Relaxed), 0, "no reader is inside, and it is still mapped");
            assert_eq!(second_mapped.load(Ordering::Relaxed), 1);
        });
    }

    /// Rule 4: of two readers the last one to leave drops the value that was replaced meanwhile. No other thread needs
    /// to come. Fails without the fence of rule 4 and without its look.
    #[test]
    fn loom_the_last_reader_unmaps() {
        model(|| {
            let epochs = Arc::new(Epochs::default());
            let place = Arc::new(Current::default());
            let (first, mapped) = Mapping::new(0);
            epochs.replace(&place, Some(first));
            let mut readers = [Epochs::reader(&epochs), Epochs::reader(&epochs)].map(Some);
            let threads: Vec<_> = readers
                .iter_mut()
                .map(|reader| {
                    let (mut reader, place, mapped) =
                        (reader.take().unwrap(), Arc::clone(&place), [Arc::clone(&mapped)]);
                    thread::spawn(move || read(&mut reader, &place, &mapped))
                })
                .collect();
            epochs.replace(&place, None);
            for thread in threads {
                let found = thread.join().unwrap();
                assert!(matches!(found, None | Some(0)));
            }
            assert_eq!(mapped.load(Ordering::Relaxed), 0, "no reader is inside, and it is still mapped");
        });
    }

    /// One thread forgets a file while another replaces its mapping. Each value is dropped once, and none is left.
    #[test]
    fn loom_forgotten_and_replaced() {
        model(|| {
            let epochs = Arc::new(Epochs::default());
            let place = Arc::new(Current::default());
            let ((first, first_mapped), (second, second_mapped)) = (Mapping::new(0), Mapping::new(1));
            epochs.replace(&place, Some(first));
            let forgetting = {
                let (epochs, place) = (Arc::clone(&epochs), Arc::clone(&place));
                thread::spawn(move || epochs.replace(&place, None))
            };
            epochs.replace(&place, Some(second));
            forgetting.join().unwrap();
            epochs.replace(&place, None);
            assert_eq!(first_mapped.load(Ordering::Relaxed) + second_mapped.load(Ordering::Relaxed), 0);
        });
    }
}

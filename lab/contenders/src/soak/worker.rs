//! The work of a soak thread: random reads, gathers, pins and writes. One thread also syncs and resizes.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use iomill::{Array, File, Result};

use super::slots::{PAGE_SLOTS, SLOT_BYTES, Slots};
use crate::draw::Zipf;
use crate::pattern::{PAGE_BYTES, Rng};
use crate::workload::shuffled;

/// Maximum number of slots of one read.
const READ_SLOTS: u64 = 16;
/// Slots of one gather.
const GATHER_SLOTS: usize = 32;
/// Number of calls between two checks of the clock.
const CALLS_PER_LOOK: u64 = 64;
/// Maximum time between syncs, and between resizes.
const SYNC_PAUSE: Duration = Duration::from_secs(2);
const RESIZE_PAUSE: Duration = Duration::from_secs(15);

/// Counts of calls.
#[derive(Clone, Debug, Default)]
pub struct Done {
    /// Reads, each record of a gather among them.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Pins.
    pub pins: u64,
    /// Syncs.
    pub syncs: u64,
    /// Changes of the cache's size.
    pub resizes: u64,
    /// Bytes that were read and checked.
    pub verified_bytes: u64,
}

impl Done {
    /// Adds the counts of another thread.
    pub fn add(&mut self, other: &Done) {
        self.reads += other.reads;
        self.writes += other.writes;
        self.pins += other.pins;
        self.syncs += other.syncs;
        self.resizes += other.resizes;
        self.verified_bytes += other.verified_bytes;
    }
}

/// The occasional work of one thread.
#[derive(Debug)]
pub struct Chores<'a> {
    array: &'a Array,
    cache_bytes: u64,
    /// True while the cache has half its size.
    is_half: bool,
    sync_pause: Duration,
    resize_pause: Duration,
    synced: Instant,
    resized: Instant,
}

impl<'a> Chores<'a> {
    /// The chores of a soak of that length.
    pub fn new(array: &'a Array, cache_bytes: u64, length: Duration) -> Chores<'a> {
        let now = Instant::now();
        let (sync_pause, resize_pause) = (SYNC_PAUSE.min(length / 8), RESIZE_PAUSE.min(length / 5));
        Chores { array, cache_bytes, is_half: false, sync_pause, resize_pause, synced: now, resized: now }
    }

    fn work(&mut self, file: &File, done: &mut Done) -> Result<()> {
        if self.synced.elapsed() >= self.sync_pause {
            file.sync()?;
            (self.synced, done.syncs) = (Instant::now(), done.syncs + 1);
        }
        if self.resized.elapsed() >= self.resize_pause {
            self.resize(!self.is_half, done)?;
        }
        Ok(())
    }

    fn resize(&mut self, is_half: bool, done: &mut Done) -> Result<()> {
        self.array.resize_cache(if is_half { self.cache_bytes / 2 } else { self.cache_bytes })?;
        (self.is_half, self.resized, done.resizes) = (is_half, Instant::now(), done.resizes + 1);
        Ok(())
    }
}

/// A thread of the soak.
#[derive(Debug)]
pub struct Worker<'a> {
    slots: &'a Slots,
    thread: u64,
    threads: u64,
    rng: Rng,
    zipf: Zipf,
    buffer: Vec<u8>,
    done: Done,
}

impl<'a> Worker<'a> {
    /// Thread `thread` of `threads`.
    pub fn new(slots: &'a Slots, thread: usize, threads: usize) -> Worker<'a> {
        let buffer = vec![0; GATHER_SLOTS.max(READ_SLOTS as usize) * SLOT_BYTES];
        let (zipf, rng) = (Zipf::new(slots.pages()), Rng::new(thread as u64));
        let (thread, threads) = (thread as u64, threads as u64);
        Worker { slots, thread, threads, rng, zipf, buffer, done: Done::default() }
    }

    /// Works until `stop` is set.
    pub fn work(&mut self, file: &File, chores: &mut Option<Chores<'_>>, stop: &AtomicBool) -> Result<Done> {
        while !stop.load(Ordering::Relaxed) {
            for _ in 0..CALLS_PER_LOOK {
                self.call(file)?;
            }
            if let Some(chores) = chores {
                chores.work(file, &mut self.done)?;
            }
        }
        if let Some(chores) = chores {
            // The figures of the end must be those of a cache of its full size.
            chores.resize(false, &mut self.done)?;
        }
        Ok(self.done.clone())
    }

    /// Draws a page: half of the draws are by a zipf law.
    fn page(&mut self) -> u64 {
        let pages = self.slots.pages();
        if self.rng.draw() & 1 == 0 {
            return self.rng.draw() % pages;
        }
        shuffled(self.zipf.draw(&mut self.rng) - 1, pages)
    }

    fn call(&mut self, file: &File) -> Result<()> {
        let (page, chosen) = (self.page(), self.rng.draw());
        let slot = page * PAGE_SLOTS + (chosen >> 32) % PAGE_SLOTS;
        match chosen % 100 {
            0..50 => self.read(file, slot, 1 + (chosen >> 40) % READ_SLOTS),
            50..60 => self.gather(file),
            60..75 => self.pin(file, page),
            75..95 => {
                let slot = self.own(page) * PAGE_SLOTS + slot % PAGE_SLOTS;
                self.write(file, slot..slot + 1)
            }
            _ => {
                let first = self.own(page) * PAGE_SLOTS;
                self.write(file, first..first + PAGE_SLOTS)
            }
        }
    }

    /// This thread's page in the same group of `threads` pages; past the end of the file, its page in the group before.
    fn own(&self, page: u64) -> u64 {
        let own = page - page % self.threads + self.thread;
        if own < self.slots.pages() { own } else { own - self.threads }
    }

    fn read(&mut self, file: &File, slot: u64, count: u64) -> Result<()> {
        let count = count.min(self.slots.pages() * PAGE_SLOTS - slot);
        let (offset, bytes) = (slot * SLOT_BYTES as u64, &mut self.buffer[..count as usize * SLOT_BYTES]);
        let seen = self.slots.seen_before(offset, bytes.len());
        let len = file.read_at(bytes, offset)?;
        seen.check(&bytes[..len])?;
        self.done.verified_bytes += len as u64;
        self.done.reads += 1;
        Ok(())
    }

    fn gather(&mut self, file: &File) -> Result<()> {
        let offsets: [u64; GATHER_SLOTS] =
            std::array::from_fn(|_| (self.page() * PAGE_SLOTS + self.rng.draw() % PAGE_SLOTS) * SLOT_BYTES as u64);
        let seen = offsets.map(|offset| self.slots.seen_before(offset, SLOT_BYTES));
        let bytes = &mut self.buffer[..GATHER_SLOTS * SLOT_BYTES];
        file.read_many(bytes, &offsets, SLOT_BYTES)?;
        let mut all = seen.iter().zip(bytes.chunks_exact(SLOT_BYTES));
        all.try_for_each(|(seen, bytes)| seen.check(bytes))?;
        self.done.verified_bytes += bytes.len() as u64;
        self.done.reads += 1;
        Ok(())
    }

    /// A pinned page does not change, even if other threads write to it.
    fn pin(&mut self, file: &File, page: u64) -> Result<()> {
        let seen = self.slots.seen_before(page * PAGE_BYTES as u64, PAGE_BYTES);
        let pin = file.pin(page)?;
        seen.check(&pin)?;
        let before = &mut self.buffer[..PAGE_BYTES];
        before.copy_from_slice(&pin);
        std::thread::yield_now();
        if *before != *pin {
            let what = format!("pinned page {page}");
            return Err(iomill::Error::Tool { what, why: "it changed while it was pinned".into() });
        }
        self.done.verified_bytes += PAGE_BYTES as u64;
        self.done.reads += 1;
        self.done.pins += 1;
        Ok(())
    }

    fn write(&mut self, file: &File, slots: Range<u64>) -> Result<()> {
        let bytes = &mut self.buffer[..(slots.end - slots.start) as usize * SLOT_BYTES];
        self.slots.begin(slots.clone(), bytes);
        file.write_at(bytes, slots.start * SLOT_BYTES as u64)?;
        self.slots.end(slots);
        self.done.writes += 1;
        Ok(())
    }
}

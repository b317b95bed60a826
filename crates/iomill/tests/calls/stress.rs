//! Many threads that do all kinds of calls at the same time, on one small cache, and check every byte that they read.
//! It is meant for the sanitizers, too. `IOMILL_ROUNDS` multiplies the number of each thread's calls.
//!
//! Each row has one owner, a thread. The number of its writes to the row is the row's generation, and each
//! word of the row has that number. A read must not find an older generation than the last one written before it,
//! nor one that had not begun. Some rows have no owner. They never change, and writes of the same bytes to them may
//! go on when their futures are gone.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};
use std::thread;

use fastrand::Rng;
use iomill::{Advice, Array, ArrayOptions, CacheOptions, File, FileOptions, Request};

use super::PAGE;
use crate::executor::block_on;

const THREADS: usize = 48;
/// Owners, and the places of rows without one.
const PLACES: usize = THREADS + 2;
const ROW: usize = 64;
const ROWS: usize = 32 << 10;
const PAGES: u64 = (ROWS * ROW / PAGE) as u64;
const CACHE_BYTES: u64 = 1 << 20;

/// A read that any thread may end.
type Moved = Pin<Box<dyn Future<Output = ()> + Send>>;

struct World {
    array: Array,
    file: File,
    /// The generation of each row that its owner has begun, or ended, to write.
    begun: Vec<AtomicU32>,
    ended: Vec<AtomicU32>,
    moved: Mutex<Vec<Moved>>,
}

/// The oldest generations that a read may find, noted before it began.
struct Before {
    first: usize,
    ended: Vec<u32>,
}

fn word(row: usize, place: usize, generation: u32) -> u64 {
    let mixed = ((row * ROW + place) as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    mixed ^ u64::from(generation) << 32 ^ u64::from(generation)
}

fn row_of(row: usize, generation: u32) -> [u8; ROW] {
    let mut bytes = [0; ROW];
    for (place, to) in bytes.chunks_exact_mut(8).enumerate() {
        to.copy_from_slice(&word(row, place, generation).to_le_bytes());
    }
    bytes
}

impl World {
    fn new(array: Array) -> World {
        let file = array.create_file("file", &FileOptions::new()).unwrap();
        let all: Vec<u8> = (0..ROWS).flat_map(|row| row_of(row, 0)).collect();
        file.write_at(&all, 0).unwrap();
        let none = || (0..ROWS).map(|_| AtomicU32::new(0)).collect();
        World { array, file, begun: none(), ended: none(), moved: Mutex::default() }
    }

    fn before(&self, first: usize, count: usize) -> Before {
        let ended = self.ended[first..first + count].iter().map(|ended| ended.load(Ordering::SeqCst)).collect();
        Before { first, ended }
    }

    /// Checks the bytes of whole rows.
    fn check(&self, before: &Before, bytes: &[u8]) {
        assert_eq!(bytes.len(), before.ended.len() * ROW);
        for (place, bytes) in bytes.chunks_exact(ROW).enumerate() {
            let row = before.first + place;
            let most = self.begun[row].load(Ordering::SeqCst);
            for (place_in, bytes) in bytes.chunks_exact(8).enumerate() {
                let found = u64::from_le_bytes(bytes.try_into().unwrap()) ^ word(row, place_in, 0);
                let generation = found as u32;
                assert_eq!((found >> 32) as u32, generation, "row {row} has a word that was never written");
                let least = before.ended[place];
                assert!((least..=most).contains(&generation), "row {row}: {generation} is not in {least}..={most}");
            }
        }
    }

    /// Begins to write a row. Its owner alone calls this.
    fn next(&self, row: usize) -> [u8; ROW] {
        let generation = self.begun[row].load(Ordering::SeqCst) + 1;
        self.begun[row].store(generation, Ordering::SeqCst);
        row_of(row, generation)
    }

    fn wrote(&self, row: usize) {
        self.ended[row].store(self.begun[row].load(Ordering::SeqCst), Ordering::SeqCst);
    }
}

struct Worker {
    world: Arc<World>,
    me: usize,
    random: Rng,
}

fn at(row: usize) -> u64 {
    (row * ROW) as u64
}

impl Worker {
    fn some(&mut self, most: usize) -> (usize, usize) {
        let count = self.random.usize(1..=most);
        (self.random.usize(0..ROWS - count), count)
    }

    fn own(&mut self) -> usize {
        self.random.usize(0..ROWS / PLACES) * PLACES + self.me
    }

    /// A row that never changes.
    fn fixed(&mut self) -> usize {
        self.random.usize(0..ROWS / PLACES) * PLACES + THREADS + self.random.usize(0..2)
    }

    fn run(&mut self, rounds: u64) {
        for _ in 0..rounds {
            match self.random.u32(0..100) {
                0..15 => self.read(),
                15..25 => self.gather(),
                25..45 => self.write(),
                45..60 => self.read_by_future(),
                60..70 => self.move_read(),
                70..75 => self.leave(),
                75..87 => self.pin(),
                87..92 => self.call_back(),
                92..96 => self.forget(),
                96..98 => self.sync(),
                _ => self.resize(),
            }
        }
    }

    fn read(&mut self) {
        let (first, count) = self.some(200);
        let before = self.world.before(first, count);
        let mut bytes = vec![0; count * ROW];
        assert_eq!(self.world.file.read_at(&mut bytes, at(first)).unwrap(), bytes.len());
        self.world.check(&before, &bytes);
    }

    fn gather(&mut self) {
        let rows: Vec<usize> = (0..60).map(|_| self.random.usize(0..ROWS)).collect();
        let before: Vec<Before> = rows.iter().map(|&row| self.world.before(row, 1)).collect();
        let offsets: Vec<u64> = rows.iter().map(|&row| at(row)).collect();
        let mut bytes = vec![0; rows.len() * ROW];
        if self.random.bool() {
            self.world.file.read_many(&mut bytes, &offsets, ROW).unwrap();
        } else {
            bytes = block_on(self.world.file.read_many_async(bytes, &offsets, ROW)).unwrap();
        }
        let each = before.iter().zip(bytes.chunks_exact(ROW));
        each.for_each(|(before, bytes)| self.world.check(before, bytes));
    }

    fn write(&mut self) {
        let mut rows: Vec<usize> = (0..self.random.usize(1..20)).map(|_| self.own()).collect();
        rows.sort_unstable();
        rows.dedup();
        let bytes: Vec<u8> = rows.iter().flat_map(|&row| self.world.next(row)).collect();
        let offsets: Vec<u64> = rows.iter().map(|&row| at(row)).collect();
        let file = if self.random.u32(0..8) == 0 { self.world.file.background() } else { self.world.file.clone() };
        match self.random.u32(0..3) {
            0 => file.write_many(&bytes, &offsets, ROW).unwrap(),
            1 => drop(block_on(file.write_many_async(bytes, &offsets, ROW)).unwrap()),
            _ => {
                let each = rows.iter().zip(bytes.chunks_exact(ROW));
                each.for_each(|(&row, bytes)| file.write_at(bytes, at(row)).unwrap());
            }
        }
        rows.iter().for_each(|&row| self.world.wrote(row));
    }

    /// A read that has begun. It checks its bytes when it ends.
    fn begin_read(&mut self, most: usize) -> Moved {
        let (first, count) = self.some(most);
        let (world, before) = (Arc::clone(&self.world), self.world.before(first, count));
        let reading = self.world.file.read_async(at(first), count * ROW);
        Box::pin(async move { world.check(&before, &reading.await.unwrap()) })
    }

    fn read_by_future(&mut self) {
        let mut reads: Vec<Moved> = (0..self.random.usize(1..8)).map(|_| self.begin_read(3)).collect();
        let all = async move {
            for read in &mut reads {
                read.await;
            }
        };
        if self.random.bool() { block_on(all) } else { iomill::block_on(all).unwrap() }
    }

    /// Leaves a read to another thread, and ends one that another thread has left.
    fn move_read(&mut self) {
        let mut read = self.begin_read(100);
        let is_ready = self.random.bool() && read.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready();
        let mut moved = self.world.moved.lock().unwrap();
        if !is_ready {
            moved.push(read);
        }
        let place = self.random.usize(0..moved.len().max(1));
        let other = (moved.len() > 20).then(|| moved.swap_remove(place));
        drop(moved);
        if let Some(other) = other {
            block_on(other);
        }
    }

    /// Begins calls that no thread waits for.
    fn leave(&mut self) {
        let row = self.fixed();
        let file = if self.random.bool() { self.world.file.background() } else { self.world.file.clone() };
        let mut write = file.write_at_async(row_of(row, 0).to_vec(), at(row));
        if self.random.bool() {
            let _not_waited_for = Pin::new(&mut write).poll(&mut Context::from_waker(Waker::noop()));
        }
        drop(write);
        drop(self.begin_read(3));
        let read = self.world.file.read_async(at(row), 3 * ROW);
        // A forgotten future keeps its memory for ever.
        if self.random.u32(0..50) == 0 { std::mem::forget(read) } else { drop(read) }
    }

    fn pin(&mut self) {
        let page = self.random.u64(0..PAGES);
        let before = self.world.before((page * PAGE as u64) as usize / ROW, PAGE / ROW);
        match self.random.u32(0..2) {
            0 => {
                // Too many pins are an error.
                let Ok(pin) = self.world.file.pin(page) else { return };
                self.world.check(&before, &pin);
                let copy = pin.to_vec();
                thread::yield_now();
                thread::scope(|scope| {
                    scope.spawn(|| assert!(pin[..] == copy, "a pinned page has changed"));
                });
                self.world.check(&before, &pin);
            }
            _ => {
                let check = |pages: &iomill::PinnedRange<'_>| {
                    let bytes: Vec<u8> = pages.iter().flatten().copied().collect();
                    self.world.check(&before, &bytes);
                };
                self.world.file.read_with(page * PAGE as u64, PAGE, check).unwrap();
            }
        }
    }

    fn call_back(&mut self) {
        let (first, count) = self.some(30);
        let (world, before) = (Arc::clone(&self.world), self.world.before(first, count));
        let (tell, told) = channel();
        let requests = vec![Request::Read { offset: at(first), len: count * ROW }];
        let check = move |outcome: iomill::Result<Vec<Vec<u8>>>| {
            world.check(&before, &outcome.unwrap()[0]);
            tell.send(()).unwrap();
        };
        self.world.file.submit(requests, check).unwrap();
        told.recv().expect("the callback has checked its bytes");
    }

    fn forget(&mut self) {
        let (first, count) = self.some(ROWS / 8);
        let advice = if self.random.bool() { Advice::DontNeed } else { Advice::WillNeed };
        self.world.file.advise(at(first)..at(first + count), advice).unwrap();
        // Another handle, of a thread's own.
        drop(self.world.array.open_file("file").unwrap());
    }

    fn sync(&mut self) {
        if self.random.bool() {
            self.world.file.sync().unwrap();
        } else {
            block_on(self.world.file.sync_async()).unwrap();
        }
    }

    fn resize(&mut self) {
        let bytes = CACHE_BYTES / 4 * self.random.u64(1..8);
        self.world.array.resize_cache(bytes).unwrap();
    }
}

#[test]
fn every_byte_is_right_under_many_threads() {
    let rounds = crate::rounds(60);
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let drives = [dir.path().join("a"), dir.path().join("b")];
    drives.iter().for_each(|drive| std::fs::create_dir(drive).unwrap());
    let array = ArrayOptions::new()
        .cache_bytes(CACHE_BYTES)
        .cache(CacheOptions::new().max_bytes(4 * CACHE_BYTES))
        .create(&drives)
        .unwrap();
    let world = Arc::new(World::new(array));
    thread::scope(|scope| {
        for me in 0..THREADS {
            let mut worker = Worker { world: Arc::clone(&world), me, random: Rng::with_seed(me as u64) };
            scope.spawn(move || worker.run(rounds));
        }
    });
    let left = std::mem::take(&mut *world.moved.lock().unwrap());
    left.into_iter().for_each(block_on);
    let before = world.before(0, ROWS);
    world.file.sync().unwrap();
    world.file.advise(.., Advice::DontNeed).unwrap();
    let mut all = vec![0; ROWS * ROW];
    assert_eq!(world.file.read_at(&mut all, 0).unwrap(), all.len());
    world.check(&before, &all);
    // A callback drops its reference to the world after it has reported its end.
    while Arc::strong_count(&world) > 1 {
        thread::yield_now();
    }
    let World { array, file, .. } = Arc::into_inner(world).unwrap();
    file.close().unwrap();
    array.close().unwrap();
}

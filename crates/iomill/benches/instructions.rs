//! Counts the instructions of single operations: `instructions KIND DIR`, under callgrind, by `cargo xtask budget`.
//!
//! Goals: the same instructions in every run. So places are fixed, one thread does the work, and no clock decides
//! anything. Instructions between begin and end of [`counted_work`] count, and the program prints the number of
//! operations. Non-goals: time, what the kernel does, and what the C library's allocator does: that goes by everything
//! which lies on the heap, even by the length of the directory's path. `tests/allocations.rs` counts allocations.

#![allow(clippy::unwrap_used)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::future::Future;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use iomill::engine::EngineKind;
use iomill::{Array, ArrayOptions, File, FileOptions, PutOptions};

const PAGE: usize = 4096;
const ROW: usize = 128;
/// Drives of the array.
const DRIVES: usize = 4;
/// The directory of the array, by a path of one length wherever the checkout lies: paths are joined and copied.
const HERE: &str = "/proc/self/cwd";
/// Rows of a call that takes several.
const BATCH: usize = 256;

/// Gives memory from one end to the other and takes none back, so an allocation costs the same whatever lies on the
/// heap.
struct Heap {
    /// Memory up to `used` has an owner each.
    memory: UnsafeCell<[u8; HEAP_BYTES]>,
    used: AtomicUsize,
}

const HEAP_BYTES: usize = 256 << 20;
/// More than this at a time comes from the system.
const HEAP_MAX_BYTES: usize = 128 << 10;

#[global_allocator]
static HEAP: Heap = Heap { memory: UnsafeCell::new([0; HEAP_BYTES]), used: AtomicUsize::new(0) };

// SAFETY: a part of the memory is reached only by its owner, and `used` gives each part one owner.
unsafe impl Sync for Heap {}

// SAFETY: `used` only grows, so parts do not overlap and are given once. A part begins at the alignment asked for and
// ends inside the memory, or there is none. What is above the bound comes from the system and goes back to it: the
// bound goes by the shape alone.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, shape: Layout) -> *mut u8 {
        if shape.size() > HEAP_MAX_BYTES {
            // SAFETY: the caller's promise.
            return unsafe { System.alloc(shape) };
        }
        let taken = self.used.fetch_add(shape.size() + shape.align(), Ordering::Relaxed);
        let memory = self.memory.get().cast::<u8>();
        let begin = (memory as usize + taken).next_multiple_of(shape.align()) - memory as usize;
        match begin + shape.size() <= HEAP_BYTES {
            // SAFETY: the part is inside the memory.
            true => unsafe { memory.add(begin) },
            false => ptr::null_mut(),
        }
    }

    unsafe fn dealloc(&self, memory: *mut u8, shape: Layout) {
        if shape.size() > HEAP_MAX_BYTES {
            // SAFETY: the caller's promise, and the system gave it.
            unsafe { System.dealloc(memory, shape) }
        }
    }
}

/// Does its work inside a function that callgrind finds by name.
#[inline(never)]
fn counted_work(work: &mut dyn FnMut()) {
    work();
    // Not the last statement, or the call would become a jump.
    black_box(());
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let [kind, dir] = &arguments[..] else {
        // `cargo bench` runs the program without arguments.
        println!(
            "usage: instructions copy|hit|pin|batched-hit|row-hit|future-hit|miss|create|put|append|append-sync DIR"
        );
        return;
    };
    let made = tempfile::tempdir_in(dir).unwrap();
    std::env::set_current_dir(made.path()).unwrap();
    let dir = Path::new(HERE);
    if let Err(error) = try_engine(&dir.join("tried")) {
        println!("unavailable the operations that are counted take io_uring: {error}");
        return;
    }
    let operations = match kind.as_str() {
        "copy" => copies(dir),
        "hit" => hits(dir),
        "pin" => pins(dir),
        "batched-hit" => batched_hits(dir),
        "row-hit" => row_hits(dir),
        "future-hit" => future_hits(dir),
        "miss" => misses(dir),
        "create" => creates(dir),
        "put" => puts(dir),
        "append" => appends(dir, false),
        "append-sync" => appends(dir, true),
        other => panic!("no operation is called {other}"),
    };
    println!("operations {operations}");
    made.close().unwrap();
}

/// An error if the engine that the budgets are for is not available.
fn try_engine(dir: &Path) -> iomill::Result<()> {
    let array = array(dir, ArrayOptions::new().cache_bytes(0))?;
    let file = array.create_file("f", &FileOptions::new())?;
    file.write_at(&[1; PAGE], 0)?;
    file.close()?;
    array.close()
}

fn drives(dir: &Path) -> Vec<PathBuf> {
    (0..DRIVES).map(|drive| dir.join(format!("ssd{drive}"))).collect()
}

fn array(dir: &Path, options: ArrayOptions) -> iomill::Result<Array> {
    let drives = drives(dir);
    drives.iter().for_each(|drive| std::fs::create_dir_all(drive).unwrap());
    options.engine(EngineKind::Uring).create(drives)
}

fn file(array: &Array, len: usize) -> File {
    let file = array.create_file("f", &FileOptions::new()).unwrap();
    let bytes: Vec<u8> = (0..len).map(|at| (at / 64) as u8).collect();
    file.write_at(&bytes, 0).unwrap();
    file.sync().unwrap();
    file
}

/// A file that is in the cache as a whole.
fn warm(dir: &Path) -> (Array, File) {
    let array = array(dir, ArrayOptions::new().cache_bytes(64 << 20)).unwrap();
    let file = file(&array, 4 << 20);
    // More than once: a page that was written may have left since, and policies learn.
    let mut all = vec![0; 4 << 20];
    (0..3).for_each(|_| assert_eq!(file.read_at(&mut all, 0).unwrap(), all.len()));
    (array, file)
}

/// Places of rows, not in sequence.
fn places(file: &File, count: usize) -> Vec<u64> {
    let rows = file.len() / ROW as u64;
    (0..count as u64).map(|index| index * 7919 % rows * ROW as u64).collect()
}

fn hits(dir: &Path) -> usize {
    let (_array, file) = warm(dir);
    let places = places(&file, 100_000);
    let read = |places: &[u64]| {
        let mut row = [0; ROW];
        for &place in places {
            file.read_at(&mut row, place).unwrap();
            black_box(&row);
        }
    };
    read(&places[..1000]);
    counted_work(&mut || read(&places));
    places.len()
}

/// What `hits` does with memory in place of a file: what is left when the hit itself costs nothing.
fn copies(dir: &Path) -> usize {
    let (_array, file) = warm(dir);
    let mut bytes = vec![0; file.len() as usize];
    file.read_at(&mut bytes, 0).unwrap();
    let places = places(&file, 100_000);
    counted_work(&mut || {
        let mut row = [0; ROW];
        for &place in &places {
            row.copy_from_slice(&bytes[place as usize..][..ROW]);
            black_box(&row);
        }
    });
    places.len()
}

/// The same as `hits` by pins.
fn pins(dir: &Path) -> usize {
    let (_array, file) = warm(dir);
    let places = places(&file, 100_000);
    let read = |places: &[u64]| {
        let mut row = [0; ROW];
        for &place in places {
            let page = file.pin(place / PAGE as u64).unwrap();
            row.copy_from_slice(&page[place as usize % PAGE..][..ROW]);
            black_box(&row);
        }
    };
    // A page's first pin marks it.
    read(&places);
    counted_work(&mut || read(&places));
    places.len()
}

fn batched_hits(dir: &Path) -> usize {
    let (_array, file) = warm(dir);
    let places = places(&file, 400 * BATCH);
    let mut out = vec![0; BATCH * ROW];
    let mut read = |places: &[u64]| {
        for places in places.chunks(BATCH) {
            file.read_many(&mut out, places, ROW).unwrap();
            black_box(&out);
        }
    };
    read(&places[..4 * BATCH]);
    counted_work(&mut || read(&places));
    places.len()
}

/// The same rows by their numbers.
fn row_hits(dir: &Path) -> usize {
    let (_array, file) = warm(dir);
    let ids: Vec<i64> = places(&file, 400 * BATCH).into_iter().map(|place| place as i64 / ROW as i64).collect();
    let mut out = vec![0; BATCH * ROW];
    let mut read = |ids: &[i64]| {
        for ids in ids.chunks(BATCH) {
            file.read_rows(&mut out, ids, ROW, 0).unwrap();
            black_box(&out);
        }
    };
    read(&ids[..4 * BATCH]);
    counted_work(&mut || read(&ids));
    ids.len()
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Inline, because under valgrind a thread that waits in io_uring stops all others. A hit uses no drive thread.
fn future_hits(dir: &Path) -> usize {
    let (_array, file) = warm(dir);
    let places = places(&file, 20_000);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut read = |places: &[u64]| {
        for &place in places {
            let mut reading = pin!(file.read_async(place, ROW));
            let bytes = loop {
                match reading.as_mut().poll(&mut context) {
                    Poll::Ready(bytes) => break bytes.unwrap(),
                    Poll::Pending => thread::park(),
                }
            };
            black_box(&bytes);
        }
    };
    read(&places[..1000]);
    counted_work(&mut || read(&places));
    places.len()
}

/// Each page is read once, at places in which read-ahead sees no order.
fn misses(dir: &Path) -> usize {
    let options = ArrayOptions::new();
    // Writes past the cache, so that no page is in it.
    let written = array(dir, options.clone().cache_bytes(0)).unwrap();
    file(&written, 16 << 20).close().unwrap();
    written.close().unwrap();
    let array = options.engine(EngineKind::Uring).cache_bytes(4 << 20).open_at(drives(dir)).unwrap();
    let file = array.open_file("f").unwrap();
    let pages = file.len() / PAGE as u64;
    let places: Vec<u64> = (0..pages).map(|index| index * 7919 % pages * PAGE as u64).collect();
    let mut page = vec![0; PAGE];
    let mut read = |places: &[u64]| {
        for &place in places {
            assert_eq!(file.read_at(&mut page, place).unwrap(), PAGE);
        }
    };
    // By then the cache is full of other pages.
    let (before, counted) = places.split_at(places.len() / 2);
    read(before);
    let misses = array.counters().misses;
    counted_work(&mut || read(counted));
    assert_eq!(array.counters().misses - misses, counted.len() as u64, "some of them were there");
    counted.len()
}

fn creates(dir: &Path) -> usize {
    // By itself the cache's size goes by the machine's memory.
    let array = array(dir, ArrayOptions::new().cache_bytes(64 << 20)).unwrap();
    let page = vec![7; PAGE];
    let create = |numbers: std::ops::Range<usize>| {
        for number in numbers {
            let file = array.create_file(&format!("created/{number:06}"), &FileOptions::new()).unwrap();
            file.write_at(&page, 0).unwrap();
            file.close().unwrap();
        }
    };
    create(0..20);
    counted_work(&mut || create(20..120));
    100
}

fn puts(dir: &Path) -> usize {
    let array = array(dir, ArrayOptions::new().cache_bytes(64 << 20)).unwrap();
    let row = [7; ROW];
    let put = |numbers: std::ops::Range<usize>| {
        for number in numbers {
            array.put(&format!("put/{number:06}"), &row, &PutOptions::new()).unwrap();
        }
    };
    put(0..20);
    counted_work(&mut || put(20..120));
    100
}

/// Each row goes to the end of one file, which is in the cache as a whole.
fn appends(dir: &Path, syncs: bool) -> usize {
    let array = array(dir, ArrayOptions::new().cache_bytes(64 << 20)).unwrap();
    let file = file(&array, 1 << 20);
    let row = [7; ROW];
    let append = |count: usize| {
        for _ in 0..count {
            file.write_at(&row, file.len()).unwrap();
            if syncs {
                file.sync().unwrap();
            }
        }
    };
    // Whole pages of rows each time.
    append(PAGE / ROW);
    let count = 8 * PAGE / ROW;
    counted_work(&mut || append(count));
    count
}

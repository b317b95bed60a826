//! How often calls allocate, as `docs/architecture.md` says it. A program of its own, because it counts what all threads allocate.

// Helpers of tests may unwrap as tests do.
#![allow(clippy::unwrap_used)]

mod executor;

use std::alloc::{GlobalAlloc, Layout as Shape, System};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Waker};

use executor::block_on;
use iomill::{ArrayOptions, Layout, Mode};

const PAGE: usize = 4096;
const PAGES: u64 = 4096;

struct Counting;

static COUNT: AtomicU64 = AtomicU64::new(0);

// SAFETY: all of it is the system's allocator, and the count is beside it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, shape: Shape) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(shape) }
    }

    unsafe fn alloc_zeroed(&self, shape: Shape) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc_zeroed(shape) }
    }

    unsafe fn realloc(&self, memory: *mut u8, shape: Shape, len: usize) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.realloc(memory, shape, len) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, shape: Shape) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(memory, shape) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// The median of what some calls allocate: other threads allocate now and then.
fn allocated(mut call: impl FnMut(u64)) -> u64 {
    let count = |number| {
        let before = COUNT.load(Ordering::Relaxed);
        call(number);
        COUNT.load(Ordering::Relaxed) - before
    };
    let mut counts: Vec<u64> = (0..101).map(count).collect();
    counts.sort_unstable();
    counts[counts.len() / 2]
}

#[test]
fn calls_allocate_as_often_as_the_docs_say() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    // A quarter of the file fits.
    let cache_bytes = PAGES * PAGE as u64 / 4;
    let options = ArrayOptions::new().mode(Mode::Auto).read_ahead_bytes(0).cache_bytes(cache_bytes);
    let array = options.create([dir.path()]).unwrap();
    let file = array.create_file("file", Layout::default()).unwrap();
    (0..PAGES).for_each(|page| file.write_at(&[1; PAGE], page * PAGE as u64).unwrap());
    file.sync().unwrap();

    let mut record = [0; 128];
    file.read_at(&mut record, 0).unwrap();
    assert_eq!(allocated(|number| assert_eq!(file.read_at(&mut record, number % 32 * 128).unwrap(), 128)), 0, "a hit");
    let offsets: Vec<u64> = (0..32).map(|number| number * 128).collect();
    let mut records = vec![0; 32 * 128];
    assert_eq!(allocated(|_| file.read_many(&mut records, &offsets, 128).unwrap()), 0, "a gather of hits");
    assert_eq!(allocated(|_| drop(file.pin(0).unwrap())), 0, "a pin");
    let ids: Vec<u32> = (0..32).collect();
    assert_eq!(allocated(|_| file.read_rows(&mut records, &ids, 128, 0).unwrap()), 0, "rows that hit");

    let ready = |future: &mut (dyn Future<Output = ()> + Unpin)| {
        assert!(Pin::new(future).poll(&mut Context::from_waker(Waker::noop())).is_ready());
    };
    let mut own = Some(vec![0; 128]);
    let mut read = |_| {
        let mut future = file.read_at_async(own.take().unwrap(), 128);
        ready(&mut poll_fn(|context| Pin::new(&mut future).poll(context).map(|ended| own = Some(ended.unwrap().0))));
    };
    assert_eq!(allocated(&mut read), 0, "a hit by a future into the caller's buffer");
    let mut own = Some(vec![0; 32 * 128]);
    let gather = |_| {
        let mut future = file.read_many_async(own.take().unwrap(), &offsets, 128);
        ready(&mut poll_fn(|context| Pin::new(&mut future).poll(context).map(|ended| own = Some(ended.unwrap()))));
    };
    assert_eq!(allocated(gather), 0, "a gather of hits by a future");

    // Each page was last used before all pages that fit.
    let mut page = PAGES;
    let mut next = || {
        page = (page + 1) % PAGES;
        page * PAGE as u64
    };
    (0..PAGES).for_each(|_| assert_eq!(file.read_at(&mut record, next()).unwrap(), 128));
    assert_eq!(allocated(|_| assert_eq!(file.read_at(&mut record, next()).unwrap(), 128)), 3, "a miss");

    block_on(file.write(vec![2; PAGE], 0)).unwrap();
    let mut buffers: Vec<Vec<u8>> = (0..101).map(|_| vec![2; PAGE]).collect();
    // The future is ready when `write` returns.
    let write = |_| {
        let mut future = file.write(buffers.pop().unwrap(), 0);
        assert!(Pin::new(&mut future).poll(&mut Context::from_waker(Waker::noop())).is_ready());
    };
    assert_eq!(allocated(write), 5, "a write by a future");
    file.close().unwrap();
    array.close().unwrap();
}

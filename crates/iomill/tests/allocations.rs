//! The numbers of allocations of calls, as in the tables of `docs/architecture.md`. The test has its own process,
//! because it counts the allocations of all threads.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Waker};

use iomill::{ArrayOptions, CacheOptions, FileOptions, PolicyKind};

use crate::counting;
use crate::executor::block_on;

const PAGE: usize = 4096;
const PAGES: u64 = 4096;

/// The median number of allocations of some calls: other threads allocate now and then.
fn allocated(mut call: impl FnMut(u64)) -> i64 {
    let count = |number| {
        let before = counting::calls();
        call(number);
        counting::calls() - before
    };
    let mut counts: Vec<i64> = (0..101).map(count).collect();
    counts.sort_unstable();
    counts[counts.len() / 2]
}

#[test]
fn calls_allocate_as_often_as_the_docs_say() {
    alone!();
    counting::start();
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    // The cache holds a quarter of the file. Under LRU a loop through the whole file never hits.
    let cache_bytes = PAGES * PAGE as u64 / 4;
    let options = ArrayOptions::new().cache(CacheOptions::new().read_ahead_bytes(0)).cache_bytes(cache_bytes);
    let options = options.with_cache(|cache| cache.policy(PolicyKind::Lru));
    let array = options.create([dir.path()]).unwrap();
    let file = array.create_file("file", &FileOptions::new()).unwrap();
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
    let mut own = Some(vec![0; 3 * PAGE]);
    file.read_at(own.as_mut().unwrap(), 100).unwrap();
    let mut read = |_| {
        let mut future = file.read_at_async(own.take().unwrap(), 100);
        ready(&mut poll_fn(|context| Pin::new(&mut future).poll(context).map(|ended| own = Some(ended.unwrap().0))));
    };
    assert_eq!(allocated(&mut read), 0, "a hit of several pages by a future");
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
    assert_eq!(allocated(|_| assert_eq!(file.read_at(&mut record, next()).unwrap(), 128)), 0, "a miss");
    let offsets: Vec<u64> = (0..PAGES).map(|page| (page * 1237 % PAGES) * PAGE as u64).collect();
    let mut rows = vec![0; PAGES as usize * 64];
    assert_eq!(allocated(|_| file.read_many(&mut rows, &offsets, 64).unwrap()), 1, "a gather of rows that miss");
    assert!(rows.iter().all(|byte| *byte == 1));

    block_on(file.write_at_async(vec![2; PAGE], 0)).unwrap();
    let mut buffers: Vec<Vec<u8>> = (0..2 * 101).map(|_| vec![2; PAGE]).collect();
    let mut write = |offset| {
        let mut future = file.write_at_async(buffers.pop().unwrap(), offset);
        assert!(Pin::new(&mut future).poll(&mut Context::from_waker(Waker::noop())).is_ready());
    };
    assert_eq!(allocated(|_| write(0)), 0, "a write to a cached page by a future");
    assert_eq!(allocated(|_| write(next())), 4, "a write of a page that is not cached by a future");
    file.close().unwrap();
    array.close().unwrap();
}

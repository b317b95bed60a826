//! Calls on one page of a file with sums at the same time, in the cache, without one, and past its full set. No sound
//! page is taken for rotten, no write is lost, and a read has the page before a write or after it.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use iomill::{Array, ArrayOptions, CacheOptions, File};
use iomill_sim::{DriveModel, World};

use super::harness::{assert_same, block_on};
use super::sums::{options, with_sums};

const PAGE: usize = 4096;
/// The page on which calls meet.
const AT: usize = 9;

type Call = Pin<Box<dyn Future<Output = Vec<u8>>>>;

fn read(file: &File) -> Call {
    let reading = file.read_async((AT * PAGE) as u64, PAGE);
    Box::pin(async move { reading.await.unwrap() })
}

fn write(file: &File, within: usize, bytes: Vec<u8>) -> Call {
    let writing = file.write_at_async(bytes, (AT * PAGE + within) as u64);
    Box::pin(async move {
        writing.await.unwrap();
        Vec::new()
    })
}

/// Begins a call, and lets it go on for some steps. Returns also whether it had not ended at its first poll.
fn begin(array: &Array, mut call: Call, steps: usize) -> (Call, bool) {
    let ended = match call.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    };
    (0..steps).for_each(|_| array.step());
    let is_pending = ended.is_none();
    (ended.map_or(call, |output| Box::pin(std::future::ready(output))), is_pending)
}

/// A file of 20 pages, each of its number, that no page of is in memory.
fn made(seed: u64, options: impl Fn(&World) -> ArrayOptions) -> (Array, File) {
    // Requests end in any order.
    let world = World::new(seed).with_drives(1, DriveModel { latency_ns: 10_000..2_000_000, ..DriveModel::default() });
    let array = options(&world).create(world.paths()).unwrap();
    let file = array.create_file("file", &with_sums()).unwrap();
    (0..20).for_each(|page| file.write_at(&[page as u8; PAGE], (page * PAGE) as u64).unwrap());
    file.close().unwrap();
    array.close().unwrap();
    let array = options(&world).open(world.path(0)).unwrap();
    let file = array.open_file("file").unwrap();
    (array, file)
}

fn assert_page(got: &[u8], allowed: &[&[u8]], context: &str) {
    assert!(allowed.contains(&got), "{context}: {:?}", &got[..8]);
}

/// A write of a page, or of a part of it, begins while a read of the page is under way, and the other way round.
#[test]
fn a_read_and_a_write_of_a_page_do_not_disturb_each_other() {
    let (old, mut met) = ([AT as u8; PAGE], 0);
    for (within, len) in [(0, PAGE), (100, 50)] {
        let mut new = old;
        new[within..within + len].fill(77);
        for (seed, cached) in (0..24).flat_map(|seed| [(seed, true), (seed, false)]) {
            let context = format!("seed {seed}, cached: {cached}, {len} bytes");
            let (array, file) = made(seed, |world| options(world, cached));
            let (reads_first, steps) = (seed % 2 == 0, seed as usize / 2 % 4);
            let (mut reading, mut writing) = (read(&file), write(&file, within, vec![77; len]));
            let (is_first, is_second);
            if reads_first {
                (reading, is_first) = begin(&array, reading, steps);
                (writing, is_second) = begin(&array, writing, 0);
            } else {
                (writing, is_first) = begin(&array, writing, steps);
                (reading, is_second) = begin(&array, reading, 0);
            }
            met += usize::from(is_first && is_second);
            assert_page(&block_on(&array, reading), &[&old, &new], &context);
            block_on(&array, writing);
            assert_same(&block_on(&array, read(&file)), &new, || context.clone());
            file.close().unwrap();
            array.close().unwrap();
        }
    }
    assert!(met > 10, "{met} pairs of calls met");
}

/// All frames of the only set are pinned, so a write goes past the cache. Then they are free, and a read or a write of a
/// part begins, which may get a frame now.
#[test]
fn a_page_past_its_full_set_is_filled_by_no_other_call() {
    let in_one_set = |world: &World| {
        let cache = CacheOptions::new().hash_mask(0).set_pages(4);
        ArrayOptions::new().platform(world.platform()).cache(cache).cache_bytes(64 * PAGE as u64)
    };
    let (one, mut both, mut met) = ([77; PAGE], [77; PAGE], 0);
    both[100..150].fill(78);
    for (seed, is_read) in (0..24).flat_map(|seed| [(seed, true), (seed, false)]) {
        let context = format!("seed {seed}, then a read: {is_read}");
        let (array, file) = made(seed, in_one_set);
        let pins: Vec<_> = (0..4).map(|page| file.pin(page).unwrap()).collect();
        let (writing, is_first) = begin(&array, write(&file, 0, vec![77; PAGE]), seed as usize % 4);
        drop(pins);
        let second = if is_read { read(&file) } else { write(&file, 100, vec![78; 50]) };
        let (second, is_second) = begin(&array, second, 0);
        met += usize::from(is_first && is_second);
        let brought = block_on(&array, second);
        block_on(&array, writing);
        if is_read {
            assert_page(&brought, &[&[AT as u8; PAGE], &one], &context);
        }
        let last: &[u8] = if is_read { &one } else { &both };
        assert_page(&block_on(&array, read(&file)), &[&one, last], &context);
        file.close().unwrap();
        array.close().unwrap();
    }
    assert!(met > 5, "{met} pairs of calls met");
}

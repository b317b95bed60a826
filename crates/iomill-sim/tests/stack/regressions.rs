//! Old bugs, each in the fewest calls that show it.

use fastrand::Rng;
use iomill::{Array, ArrayOptions, Error, FileOptions, Layout, PlainOptions, RuntimeOptions, Tuning};
use iomill_sim::{DriveModel, Fault, Injection, Kind, Survival, World};

use super::harness::{assert_same, assert_tidy, block_on, bytes};

const PAGE: usize = 4096;

fn array(world: &World) -> Array {
    array_with(world, 1 << 20)
}

fn array_with(world: &World, cache_bytes: u64) -> Array {
    // Faults hit requests by their number, so each piece must be one request.
    let options = ArrayOptions::new().platform(world.platform()).tuning(Tuning::new().merge(false));
    let options = options.with_cache(|cache| cache.set_pages(4)).cache_bytes(cache_bytes);
    if world.files(0).is_empty() {
        options.create(world.paths()).unwrap()
    } else {
        options.open(world.path(0)).unwrap()
    }
}

/// The zeroes of blocks that a shorter hash file does not use were not durable when it grew again.
#[test]
fn what_was_cut_stays_cut_after_growing_and_a_crash() {
    for kind in [Layout::Striping, Layout::Rotated, Layout::Hash] {
        for cut in [0, 1, PAGE, 3 * PAGE - 1, 17 * PAGE, 40 * PAGE, 40 * PAGE + 5, 63 * PAGE] {
            let world = World::new(cut as u64).with_drives(3, DriveModel::default());
            let file = array(&world);
            let file = file.create_file("file", &FileOptions::new().layout(kind).block_bytes(PAGE as u32)).unwrap();
            let content = bytes(&mut Rng::with_seed(1), 64 * PAGE);
            file.write_at(&content, 0).unwrap();
            file.set_len(cut as u64).unwrap();
            file.set_len(content.len() as u64).unwrap();
            world.crash_with(Survival::Nothing);
            world.reboot();
            let mut got = vec![1; content.len()];
            let again = array(&world);
            assert_eq!(again.open_file("file").unwrap().read_at(&mut got, 0).unwrap(), got.len());
            assert_same(&got[..cut], &content[..cut], || format!("{kind:?} before {cut}"));
            assert!(got[cut..].iter().all(|&byte| byte == 0), "{kind:?} behind {cut}");
        }
    }
}

/// A failed write left bytes beyond the end. They came into view when the file grew.
#[test]
fn growing_shows_nothing_of_a_write_that_failed() {
    for kind in [Layout::Striping, Layout::Hash] {
        for (asynchronous, cache_pages) in [(false, 0), (true, 0), (false, 4), (true, 4), (false, 64), (true, 64)] {
            let world = World::new(3).with_drives(2, DriveModel::default());
            let array = array_with(&world, cache_pages * PAGE as u64);
            let file = array.create_file("file", &FileOptions::new().layout(kind).block_bytes(PAGE as u32)).unwrap();
            file.write_at(&[7; 100], 0).unwrap();
            let no = Injection::new(Kind::Write, Fault::Errno(libc::EIO)).path("parts/").skip(9).times(1000);
            world.faults(|faults| faults.inject(no));
            let failed = if asynchronous {
                block_on(&array, file.write_at_async(vec![8; 20 * PAGE], 100)).map(drop).map_err(Error::from)
            } else {
                file.write_at(&[8; 20 * PAGE], 100)
            };
            if cache_pages == 64 {
                // All of it fits into the cache, and nothing has reached a drive.
                failed.unwrap();
                assert!(file.sync().is_err());
                world.faults(|faults| faults.clear());
                file.set_len(100).unwrap();
            } else {
                assert!(failed.is_err());
                world.faults(|faults| faults.clear());
            }
            assert_eq!(file.len(), 100);
            file.set_len(30 * PAGE as u64).unwrap();
            let mut got = vec![1; 30 * PAGE];
            assert_eq!(file.read_at(&mut got, 0).unwrap(), got.len());
            assert!(got[100..].iter().all(|&byte| byte == 0));
            drop(file);
            array.close().unwrap();
            assert_tidy(&world);
        }
    }
}

/// A file with an end that could not be cut off grew over the bytes that were left there.
#[test]
fn a_file_that_could_not_be_cut_does_not_grow() {
    for kind in [Kind::SetLen, Kind::Zero] {
        let world = World::new(4).with_drives(2, DriveModel::default());
        let array = array(&world);
        let file =
            array.create_file("file", &FileOptions::new().layout(Layout::Hash).block_bytes(PAGE as u32)).unwrap();
        file.write_at(&[7; 40 * PAGE], 0).unwrap();
        world.faults(|faults| faults.inject(Injection::new(kind, Fault::Errno(libc::EIO)).path("parts/")));
        assert!(matches!(file.set_len(10_000), Err(Error::Io { .. })));
        assert!(matches!(file.set_len(50_000), Err(Error::Poisoned { .. })));
        assert!(matches!(file.write_at(&[1], 50_000), Err(Error::Poisoned { .. })));
        assert_eq!(file.len(), 10_000);
        drop(file);
        let file = array.open_file("file").unwrap();
        file.set_len(40 * PAGE as u64).unwrap();
        let mut got = vec![1; 40 * PAGE];
        file.read_at(&mut got, 0).unwrap();
        assert!(got[..10_000].iter().all(|&byte| byte == 7) && got[10_000..].iter().all(|&byte| byte == 0));
        drop(file);
        array.close().unwrap();
        assert_tidy(&world);
    }
}

/// Batches come back at once while some thousand are unfinished, and are taken again later. Those of cached pages end at
/// once, and only their callbacks wait.
///
/// Seen to fail when the waiting callbacks did not count: there was no bound.
#[test]
fn no_more_batches_are_taken_than_callers_should_wait_for() {
    for cache_bytes in [0, 1 << 20] {
        check_bound_of_batches(cache_bytes);
    }
}

fn check_bound_of_batches(cache_bytes: u64) {
    let world = World::new(8).with_drives(2, DriveModel::default());
    let array = ArrayOptions::new().platform(world.platform()).cache_bytes(cache_bytes).create(world.paths()).unwrap();
    let file = array.create_file("file", &FileOptions::new().block_bytes(PAGE as u32)).unwrap();
    file.write_at(&[7; 4 * PAGE], 0).unwrap();
    let ended = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let send = |block: u64| {
        let ended = std::sync::Arc::clone(&ended);
        let task = iomill::Request::Read { offset: block * PAGE as u64, len: PAGE };
        let told = move |result: iomill::Result<Vec<Vec<u8>>>| {
            assert_eq!(result.unwrap(), [[7; PAGE]]);
            ended.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        };
        file.try_submit(vec![task.clone()], told).unwrap().inspect(|back| assert_eq!(*back, [task]))
    };
    // No step lets time pass meanwhile.
    let mut taken = 0;
    while send(taken as u64 % 4).is_none() {
        taken += 1;
        assert!(taken <= 100_000, "they are not bounded");
    }
    assert!(taken > 1000, "{taken}");
    (0..1_000_000).take_while(|_| ended.load(std::sync::atomic::Ordering::Relaxed) < taken).for_each(|_| array.step());
    assert!(send(2).is_none(), "there is room again");
    drop(file);
    array.close().unwrap();
    assert_eq!(ended.load(std::sync::atomic::Ordering::Relaxed), taken + 1);
    assert_tidy(&world);
}

/// A read beyond the end of the file, and one longer than the memory, were cut into 2^41 pieces before they were
/// refused.
#[test]
fn a_senseless_read_is_refused_at_once() {
    for len in [PAGE as u64, iomill::MAX_FILE_BYTES] {
        let world = World::new(9).with_drives(2, DriveModel::default());
        let options = ArrayOptions::new().platform(world.platform()).cache_bytes(0);
        let array = options.create(world.paths()).unwrap();
        let file = array.create_file("file", &FileOptions::new()).unwrap();
        file.set_len(len).unwrap();
        block_on(&array, file.read_async(0, PAGE)).unwrap();
        let (told, end) = std::sync::mpsc::channel();
        let asker = file.clone();
        std::thread::spawn(move || {
            let task = iomill::Request::Read { offset: 0, len: iomill::MAX_FILE_BYTES as usize };
            let refused = asker.try_submit(vec![task], |_| ()).is_err();
            drop(asker);
            told.send(refused).unwrap();
        });
        assert_eq!(end.recv_timeout(std::time::Duration::from_secs(60)), Ok(true), "in a file of {len} bytes");
        drop(file);
        array.close().unwrap();
    }
}

/// A blocking write waited for ever for the lock of a block that a future was writing to.
#[test]
fn a_blocking_call_beside_a_future_on_the_same_page_ends() {
    let world = World::new(5).with_drives(2, DriveModel::default());
    let array = array(&world);
    let file = array.create_file("file", &FileOptions::new()).unwrap();
    file.set_len(100_000).unwrap();
    let futures: Vec<_> = (0..50).map(|index| file.write_at_async(vec![1; 20], index * 40)).collect();
    (0..5).for_each(|_| array.step());
    (0..50).for_each(|index| file.write_at(&[2; 20], index * 40 + 20).unwrap());
    futures.into_iter().for_each(|future| drop(block_on(&array, future).unwrap()));
    let mut got = vec![0; 2000];
    file.read_at(&mut got, 0).unwrap();
    let wanted: Vec<u8> = (0..2000).map(|at| if at % 40 < 20 { 1 } else { 2 }).collect();
    assert_same(&got, &wanted, || "one page".into());
    drop(file);
    array.close().unwrap();
    assert_tidy(&world);
}

/// In a simulation, a change of the length waited for a callback's write, while the callback waited for the change.
#[test]
fn a_callback_may_submit_while_the_length_changes() {
    let world = World::new(6).with_drives(1, DriveModel::default());
    let array = array(&world);
    let file = array.create_file("file", &FileOptions::new().block_bytes(PAGE as u32)).unwrap();
    let inside = file.clone();
    let write = |offset| vec![iomill::Request::Write { offset, bytes: vec![3; 5000] }];
    file.submit(write(0), move |_| inside.submit(write(5000), |_| ()).unwrap()).unwrap();
    let synced = file.sync_async();
    file.set_len(5000).unwrap();
    block_on(&array, synced).unwrap();
    for _ in 0..1000 {
        array.step();
    }
    assert_eq!(file.len(), 10_000);
    drop(file);
    array.close().unwrap();
    assert_tidy(&world);
}

/// A file could not be deleted while a queued callback job had its last hold: the wait ran no callbacks.
#[test]
fn a_file_that_a_queued_sync_holds_is_deleted() {
    let world = World::new(5).with_drives(2, DriveModel::default());
    let array = array(&world);
    let file = array.create_file("file", &FileOptions::new()).unwrap();
    file.write_at(&[7; 100], 0).unwrap();
    let sync = file.sync_async();
    drop(file);
    array.delete("file").unwrap();
    block_on(&array, sync).unwrap();
    array.close().unwrap();
}

/// The pages of a set were being flushed, and were written to meanwhile. A write and a pin that needed room there
/// looked again and again, and gave no time to that flush.
#[test]
fn a_call_that_needs_room_waits_for_a_flush_of_others() {
    // After some of these numbers of steps the flush has begun and not ended.
    for (what, steps) in
        ["write", "awaited write", "pin"].into_iter().flat_map(|what| (0..8).map(move |steps| (what, steps)))
    {
        let (told, ended) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let world = World::new(17).with_drives(1, DriveModel::default());
            let array = array_with(&world, 4 * PAGE as u64);
            let file = array.create_file("file", &FileOptions::new().block_bytes(PAGE as u32)).unwrap();
            file.set_len(5 * PAGE as u64).unwrap();
            // All these dirty pages are flushed at once.
            let flushing = file.write_at_async(vec![7; 4 * PAGE], 0);
            (0..steps).for_each(|_| array.step());
            file.write_at(&[8; 4 * PAGE], 0).unwrap();
            match what {
                "write" => file.write_at(&[9], 4 * PAGE as u64).unwrap(),
                "awaited write" => drop(block_on(&array, file.write_at_async(vec![9], 4 * PAGE as u64)).unwrap()),
                _ => assert_eq!(file.pin(4).unwrap()[0], 0),
            }
            drop(block_on(&array, flushing).unwrap());
            told.send(()).unwrap();
        });
        ended
            .recv_timeout(std::time::Duration::from_secs(60))
            .unwrap_or_else(|_| panic!("{what} after {steps} steps hangs"));
    }
}

/// A plain file got a new length in memory, and its end could not be cut on the drive. Then it took writes at that
/// length, which was not durable.
#[test]
fn a_length_that_could_not_be_made_durable_ends_all_writes() {
    for (kind, skip, to) in [Kind::SetLen, Kind::Zero, Kind::Sync, Kind::Write]
        .into_iter()
        .flat_map(|kind| (0..4).flat_map(move |skip| [3 * PAGE + 7, 9 * PAGE + 7].map(|to| (kind, skip, to))))
    {
        let world = World::new(5).with_drives(1, DriveModel::default());
        let options = RuntimeOptions::new().platform(world.platform()).cache_bytes(16 * PAGE as u64);
        let runtime = options.start().unwrap();
        let file = PlainOptions::new().write(true).create(true).runtime(&runtime);
        let file = file.open(world.path(0).join("plain")).unwrap();
        file.write_at(&[7; 6 * PAGE], 0).unwrap();
        file.sync().unwrap();
        file.write_at(&[8; 100], 0).unwrap();
        world.faults(|faults| faults.inject(Injection::new(kind, Fault::Errno(libc::EIO)).path("plain").skip(skip)));
        let set = file.set_len(to as u64);
        let is_writable = file.write_at(&[1], 0).is_ok();
        match set {
            Ok(()) => assert!(file.len() == to as u64 && is_writable),
            Err(_) => {
                let what = format!("{kind:?} {skip}: {} bytes, wanted {to}, writable: {is_writable}", file.len());
                assert!(!is_writable || file.len() == 6 * PAGE as u64, "{what}");
            }
        }
    }
}

//! The page cache between calls and drives that fail. A read or write that failed is an error, and loses nothing.

use fastrand::Rng;
use iomill::{Advice, Array, ArrayOptions, CacheOptions, Error, File, FileOptions, PinnedRange, Request};
use iomill_sim::{DriveModel, Fault, Injection, Kind, Survival, World};

use super::harness::{Round, assert_same, assert_tidy, block_on, bytes, rounds};

const PAGE: usize = 4096;

fn made(world: &World, pages: usize) -> (Array, File) {
    let options = ArrayOptions::new().platform(world.platform()).cache(CacheOptions::new().set_pages(4));
    let array = options.cache_bytes((pages * PAGE) as u64).create(world.paths()).unwrap();
    let file = array.create_file("file", &FileOptions::new().block_bytes(8192)).unwrap();
    // It has parts from now on, so no fault hits the move of a small file.
    file.preallocate(8193).unwrap();
    (array, file)
}

fn eio(kind: Kind) -> Injection {
    Injection::new(kind, Fault::Errno(libc::EIO)).path("parts/")
}

/// A failed flush is the sync's error. The pages stay dirty, and the next sync writes them to the drives.
#[test]
fn a_flush_that_failed_is_tried_again_by_the_next_sync() {
    for seed in 0..3 {
        let world = World::new(seed).with_drives(2, DriveModel::default());
        let (array, file) = made(&world, 64);
        let content = bytes(&mut Rng::with_seed(7), 20 * PAGE + 100);
        file.write_at(&content, 0).unwrap();
        world.faults(|faults| faults.inject(eio(Kind::Write)));
        let error = file.sync().unwrap_err();
        assert!(matches!(&error, Error::Io { action: "write", .. }), "{error}");
        let mut got = vec![0; content.len()];
        file.read_at(&mut got, 0).unwrap();
        assert_same(&got, &content, || "the dirty file".into());
        file.sync().unwrap();
        world.crash_with(Survival::Nothing);
        drop((array, file));
        world.reboot();
        let array = ArrayOptions::new().platform(world.platform()).open(world.path(0)).unwrap();
        let file = array.open_file("file").unwrap();
        assert_eq!(file.read_at(&mut got, 0).unwrap(), content.len());
        assert_same(&got, &content, || "the file after the crash".into());
        drop(file);
        array.close().unwrap();
        assert_tidy(&world);
    }
}

/// One bad drive: a sync, and the end of the file, bring all pages of the other drives there. That holds also if they
/// need more than one flush.
#[test]
fn a_bad_drive_keeps_nothing_from_the_others() {
    for (seed, ended) in ["synced", "closed", "dropped"].into_iter().enumerate() {
        let world = World::new(40 + seed as u64).with_drives(2, DriveModel::default());
        let (array, file) = made(&world, 4096);
        let content = bytes(&mut Rng::with_seed(11), 700 * PAGE);
        file.write_at(&content, 0).unwrap();
        world.faults(|faults| faults.inject(eio(Kind::Write).drive(0).times(u64::MAX)));
        let is_write = |error: &Error| matches!(error, Error::Io { action: "write", .. });
        if ended == "synced" {
            let error = file.sync().unwrap_err();
            assert!(is_write(&error), "{error}");
            // The healthy drive has all its pages, so it may fail now.
            world.faults(|faults| faults.inject(eio(Kind::Write).drive(1).times(u64::MAX)));
        }
        if ended == "dropped" {
            drop(file);
            assert!(array.notices().iter().any(|notice| notice.contains("closing \"file\"")), "{:?}", array.notices());
            array.close().unwrap();
        } else {
            let error = array.close().unwrap_err();
            assert!(is_write(&error), "{error}");
            drop(file);
        }
        world.faults(|faults| faults.clear());
        assert_tidy(&world);
        let array = ArrayOptions::new().platform(world.platform()).open(world.path(0)).unwrap();
        let mut got = vec![0; content.len()];
        assert_eq!(array.open_file("file").unwrap().read_at(&mut got, 0).unwrap(), content.len(), "{ended}");
        let of_drive = |bytes: &[u8]| bytes.chunks(8192).skip(1).step_by(2).flatten().copied().collect::<Vec<u8>>();
        assert_same(&of_drive(&got), &of_drive(&content), || format!("the blocks of the healthy drive, {ended}"));
        array.close().unwrap();
    }
}

/// A write succeeded, and its page could not be written back later, when no call waited. Each open handle reports the
/// failure once, by its next sync. A later handle does not report it. Nothing is lost.
#[test]
fn a_flush_that_failed_late_is_reported_once_to_each_handle() {
    for seed in 0..3 {
        let world = World::new(20 + seed).with_drives(2, DriveModel::default());
        let (array, file) = made(&world, 64);
        let (clone, other) = (file.clone(), array.open_file("file").unwrap());
        let content = bytes(&mut Rng::with_seed(9), 48 * PAGE);
        world.faults(|faults| faults.inject(eio(Kind::Write)));
        // Sets get more than three dirty pages, so the writer flushes some of them. Its write does not fail when that
        // flush fails.
        for (page, bytes) in content.chunks(PAGE).enumerate() {
            file.write_at(bytes, (page * PAGE) as u64).unwrap();
        }
        assert_eq!(world.faults(|faults| faults.pending()), 0, "no flush met the fault");
        let late = array.open_file("file").unwrap();
        late.sync().unwrap();
        let is_write = |error: &Error| matches!(error, Error::Io { action: "write", .. });
        let error = file.sync().unwrap_err();
        assert!(is_write(&error), "{error}");
        let error = block_on(&array, clone.sync_async()).unwrap_err();
        assert!(is_write(&error), "{error}");
        block_on(&array, file.sync_async()).unwrap();
        clone.sync().unwrap();
        let error = other.close().unwrap_err();
        assert!(is_write(&error), "{error}");
        clone.close().unwrap();
        world.crash_with(Survival::Nothing);
        drop((array, file, late));
        world.reboot();
        let array = ArrayOptions::new().platform(world.platform()).open(world.path(0)).unwrap();
        let mut got = vec![0; content.len()];
        array.open_file("file").unwrap().read_at(&mut got, 0).unwrap();
        assert_same(&got, &content, || "the file after the crash".into());
        array.close().unwrap();
        assert_tidy(&world);
    }
}

/// A failure that no handle has reported is reported when the file ends. If the last handle is dropped, a notice
/// reports it, otherwise `Array::close`.
#[test]
fn a_flush_that_failed_late_is_reported_at_the_end() {
    for (seed, dropped) in [true, false].into_iter().enumerate() {
        let world = World::new(30 + seed as u64).with_drives(2, DriveModel::default());
        let (array, file) = made(&world, 64);
        world.faults(|faults| faults.inject(eio(Kind::Write)));
        for page in 0..48 {
            file.write_at(&[7; PAGE], page * PAGE as u64).unwrap();
        }
        assert_eq!(world.faults(|faults| faults.pending()), 0, "no flush met the fault");
        if dropped {
            drop(file);
            let notices = array.notices();
            assert!(notices.iter().any(|notice| notice.contains("closing \"file\"")), "{notices:?}");
            array.close().unwrap();
        } else {
            let error = array.close().unwrap_err();
            assert!(matches!(&error, Error::Io { action: "write", .. }), "{error}");
            drop(file);
        }
        assert_tidy(&world);
    }
}

/// A sync tries each page once, and not once more for each of its neighbours in a write that fails.
#[test]
fn a_sync_tries_a_bad_drive_once_for_each_write() {
    let world = World::new(60).with_drives(1, DriveModel::default());
    let options = ArrayOptions::new().platform(world.platform()).cache_bytes((2048 * PAGE) as u64);
    let array = options.create(world.paths()).unwrap();
    let file = array.create_file("file", &FileOptions::new().block_bytes(64 * PAGE as u32)).unwrap();
    file.preallocate(64 * PAGE as u64 + 1).unwrap();
    file.write_at(&bytes(&mut Rng::with_seed(12), 64 * PAGE), 0).unwrap();
    world.faults(|faults| faults.inject(eio(Kind::Write).times(u64::MAX)));
    let before = world.stats(0);
    let error = file.sync().unwrap_err();
    assert!(matches!(&error, Error::Io { action: "write", .. }), "{error}");
    let tried = world.stats(0).write_bytes - before.write_bytes;
    assert_eq!(tried, 64 * PAGE as u64);
    world.faults(|faults| faults.clear());
    file.sync().unwrap();
    drop(file);
    array.close().unwrap();
    assert_tidy(&world);
}

/// A failed fill is the error of the call that asked for the page, whatever the call. The next call can ask for the
/// page again.
#[test]
fn a_fill_that_failed_is_tried_again_by_the_next_call() {
    for seed in 0..3 {
        let world = World::new(seed).with_drives(2, DriveModel::default());
        let (array, file) = made(&world, 16);
        let content = bytes(&mut Rng::with_seed(8), 64 * PAGE);
        file.write_at(&content, 0).unwrap();
        file.sync().unwrap();
        // Without read-ahead each call asks for its own page.
        file.advise(.., Advice::Random).unwrap();
        let mut got = vec![0; PAGE];
        let mut failed = 0;
        for page in 0..64u64 {
            world.faults(|faults| faults.inject(eio(Kind::Read)));
            let at = page * PAGE as u64;
            let result = match page % 4 {
                0 => file.read_at(&mut got, at).map(drop),
                1 => block_on(&array, file.read_async(at, PAGE)).map(drop),
                2 => file.pin(page).map(drop),
                _ => file.write_at(&content[at as usize + 5..][..10], at + 5),
            };
            failed += usize::from(result.is_err());
            world.faults(|faults| faults.clear());
            file.read_at(&mut got, at).unwrap();
            assert_same(&got, &content[at as usize..][..PAGE], || format!("page {page}"));
        }
        assert!(failed >= 48, "{failed} of 64 failed, though 16 pages fit");
        drop(file);
        array.close().unwrap();
        assert_tidy(&world);
    }
}

/// A page fails a call only if its own I/O has failed: a call that waits for a page of another call's longer read, which
/// fails, then reads the page itself.
#[test]
fn a_read_that_failed_fails_no_call_for_a_part_of_it() {
    let world = World::new(70).with_drives(2, DriveModel::default());
    let (array, file) = made(&world, 64);
    let content = bytes(&mut Rng::with_seed(13), 40 * PAGE);
    file.write_at(&content, 0).unwrap();
    file.sync().unwrap();
    file.advise(.., Advice::Random).unwrap();
    file.advise(.., Advice::DontNeed).unwrap();
    for block in 0..20usize {
        // A block is two pages, read at once.
        let (first, second) = (block * 2 * PAGE, block * 2 * PAGE + PAGE);
        world.faults(|faults| faults.inject(eio(Kind::Read)));
        let whole = file.read_async(first as u64, 2 * PAGE);
        let part = file.read_async(second as u64, PAGE);
        assert!(matches!(block_on(&array, whole), Err(Error::Io { action: "read", .. })), "block {block}");
        let part = block_on(&array, part).unwrap();
        assert_same(&part, &content[second..second + PAGE], || format!("block {block}"));
    }
    drop(file);
    array.close().unwrap();
    assert_tidy(&world);
}

/// Read-ahead that fails is no call's error. A call that asks for the page, or waits for it, then reads it itself.
#[test]
fn failed_read_ahead_fails_no_call() {
    for seed in 0..3 {
        let world = World::new(seed).with_drives(2, DriveModel::default());
        let (array, file) = made(&world, 64);
        let content = bytes(&mut Rng::with_seed(9), 200 * PAGE);
        file.write_at(&content, 0).unwrap();
        file.sync().unwrap();
        file.advise(.., Advice::DontNeed).unwrap();
        let written = array.counters();
        let errors = || array.counters().drives.iter().map(|drive| drive.errors).sum::<u64>();
        for block in 0..50u64 {
            // A block is two pages, read at once. The second page is asked for while both are on their way.
            world.faults(|faults| faults.inject(eio(Kind::Read).times(1)));
            file.advise(block * 8192..(block + 1) * 8192, Advice::WillNeed).unwrap();
            let before = errors();
            array.step();
            let mut got = vec![0; PAGE];
            let at = block as usize * 8192 + PAGE;
            file.read_at(&mut got, at as u64).unwrap();
            assert_same(&got, &content[at..at + PAGE], || format!("block {block}"));
            assert_eq!(errors(), before + 1, "block {block}");
        }
        let counted = array.counters().since(&written);
        assert_eq!((counted.read_ahead, counted.misses), (100, 50));
        drop(file);
        array.close().unwrap();
        assert_tidy(&world);
    }
}

/// Pages that were advised come in, although other handles use up the share for pages on their way at the moment.
#[test]
fn advice_waits_for_its_share() {
    let world = World::new(50).with_drives(2, DriveModel::default());
    let (array, file) = made(&world, 64);
    file.write_at(&vec![3; 300 * PAGE], 0).unwrap();
    file.sync().unwrap();
    file.advise(.., Advice::DontNeed).unwrap();
    let written = array.counters();
    let other = array.open_file("file").unwrap();
    let reads = [(&file, 0), (&other, 100)].map(|(handle, page)| {
        handle.advise(.., Advice::Sequential).unwrap();
        // Each handle has a window of a 16th of the cache read ahead, which uses up the whole share.
        handle.read_async(page * PAGE as u64, PAGE)
    });
    file.advise(200 * PAGE as u64..230 * PAGE as u64, Advice::WillNeed).unwrap();
    for read in reads {
        block_on(&array, read).unwrap();
    }
    (0..1000).for_each(|_| array.step());
    let counted = array.counters().since(&written);
    assert_eq!((counted.misses, counted.read_ahead), (2, 8 + 30));
    drop((file, other));
    array.close().unwrap();
    assert_tidy(&world);
}

/// A batch that reads and writes owned two waves of pages at a time: half of the cache.
#[test]
fn a_batch_of_both_kinds_owns_no_more_pages_than_other_calls() {
    let world = World::new(51).with_drives(2, DriveModel::default());
    let (array, file) = made(&world, 64);
    let mut wanted = vec![3; 200 * PAGE];
    file.write_at(&wanted, 0).unwrap();
    let (sender, ends) = std::sync::mpsc::channel();
    for (reads, writes) in [(40, 40), (40, 0), (0, 40)] {
        // Only clean pages are evicted.
        file.sync().unwrap();
        file.advise(.., Advice::DontNeed).unwrap();
        let reads = (0..reads).map(|at| Request::Read { offset: 2 * at * PAGE as u64, len: PAGE });
        // Each page must be read first.
        let writes = (0..writes).map(|at| Request::Write { offset: (2 * at + 1) * PAGE as u64, bytes: vec![4; 100] });
        let requests: Vec<Request> = reads.chain(writes).collect();
        for request in &requests {
            if let Request::Write { offset, bytes } = request {
                wanted[*offset as usize..][..bytes.len()].copy_from_slice(bytes);
            }
        }
        let (before, sender) = (array.counters().fills, sender.clone());
        file.submit(requests, move |result| sender.send(result.map(drop)).unwrap()).unwrap();
        let fills = array.counters().fills - before;
        // No piece has ended yet. A full set may keep some of a wave's pages out.
        assert!((10..=16).contains(&fills), "{fills} pages of 64");
        let ended = (0..10_000).find_map(|_| {
            array.step();
            ends.try_recv().ok()
        });
        ended.expect("it ends").unwrap();
    }
    let mut got = vec![0; wanted.len()];
    file.read_at(&mut got, 0).unwrap();
    assert_same(&got, &wanted, || "after the batches".into());
    drop(file);
    array.close().unwrap();
    assert_tidy(&world);
}

/// One seed gives one run, also with read-ahead and advice: the events on the drives are the same each time.
#[test]
fn reading_ahead_is_reproducible() {
    let run = |seed: u64| {
        let world = World::new(seed).with_drives(3, DriveModel::default());
        let (array, file) = made(&world, 256);
        let content = bytes(&mut Rng::with_seed(seed), 700 * PAGE);
        file.write_at(&content, 0).unwrap();
        file.sync().unwrap();
        file.advise(.., Advice::DontNeed).unwrap();
        let written = array.counters();
        file.advise(PAGE as u64 * 500.., Advice::WillNeed).unwrap();
        let mut got = vec![0; 3000];
        for at in (0..600 * PAGE).step_by(3000) {
            assert_eq!(file.read_at(&mut got, at as u64).unwrap(), 3000);
            assert_same(&got, &content[at..at + 3000], || format!("{at} on"));
        }
        let counted = array.counters().since(&written);
        assert!(counted.read_ahead > 500 && counted.misses < 100, "{counted:?}");
        drop(file);
        array.close().unwrap();
        assert_tidy(&world);
        world.trace_hash()
    };
    for seed in 0..6 {
        assert_eq!(run(seed), run(seed), "seed {seed}");
    }
}

/// The last handle is dropped while the file's only write is on its way. The thread that ends the write closes the
/// file, and flushes it.
#[test]
fn a_file_closed_by_its_last_write_is_flushed() {
    rounds("a_file_closed_by_its_last_write_is_flushed", 30, &[], |Round { rng, world }| {
        for index in 0..2 {
            world.add_drive(format!("/sim/{index}"), DriveModel::default());
        }
        let (array, file) = made(world, 4 * rng.usize(1..10));
        let content = bytes(rng, 30_000);
        file.write_at(&content, 0).unwrap();
        file.sync().unwrap();
        // Each writes part of a page that is not in the cache, so the page must be read first.
        for _ in 0..200 {
            file.read_at(&mut [0; 1], rng.u64(0..30_000)).unwrap();
        }
        let at = rng.usize(0..29_000);
        let write = file.write_at_async(vec![0xAB; 900], at as u64);
        drop(file);
        block_on(&array, write).unwrap();
        let mut wanted = content;
        wanted[at..at + 900].fill(0xAB);
        world.crash_with(Survival::Nothing);
        drop(array);
        world.reboot();
        let array = ArrayOptions::new().platform(world.platform()).open(world.path(0)).unwrap();
        let mut got = vec![0; wanted.len()];
        array.open_file("file").unwrap().read_at(&mut got, 0).unwrap();
        assert_same(&got, &wanted, || "the file".into());
        array.close().unwrap();
        assert_tidy(world);
    });
}

/// A copy of the log that fails while the array is open is abandoned, with a notice to the user.
#[test]
fn a_copy_of_the_log_that_is_left_behind_is_noticed() {
    let world = World::new(77).with_drives(3, DriveModel::default());
    let (array, file) = made(&world, 64);
    assert!(!array.notices().iter().any(|notice| notice.contains("left behind")), "{:?}", array.notices());
    world.faults(|faults| faults.inject(Injection::new(Kind::Write, Fault::Errno(libc::EIO)).drive(2).times(u64::MAX)));
    array.create_file("another", &FileOptions::new()).unwrap();
    assert!(array.notices().iter().any(|notice| notice.contains("left behind")), "{:?}", array.notices());
    world.faults(|faults| faults.clear());
    drop(file);
    array.close().unwrap();
}

/// A task in place over far more than the file takes no longer than one over the file.
#[test]
fn a_task_in_place_ends_with_the_file() {
    let world = World::new(80).with_drives(2, DriveModel::default());
    let (array, file) = made(&world, 64);
    file.write_at(&[7; 3 * PAGE], 0).unwrap();
    let (send, receive) = std::sync::mpsc::channel();
    let task = move |range: iomill::Result<&PinnedRange<'_>>| send.send(range.unwrap().len()).unwrap();
    file.submit_with(PAGE as u64, (1 << 52) - PAGE, task).unwrap();
    let seen = loop {
        array.step();
        if let Ok(seen) = receive.try_recv() {
            break seen;
        }
    };
    assert_eq!(seen, 2 * PAGE);
    drop(file);
    array.close().unwrap();
    assert_tidy(&world);
}

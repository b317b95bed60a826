//! Promises of single calls when drives fail and processes end, each in the fewest calls that show it
//! (`docs/durability.md`).

use fastrand::Rng;
use iomill::{Array, ArrayOptions, Error, File, FileOptions, Layout, Request, Tuning};
use iomill_sim::{DriveModel, Fault, Injection, Kind, Survival, World};

use super::harness::{assert_same, assert_tidy, block_on, bytes};

const PAGE: usize = 4096;

fn options(world: &World, cache_pages: usize) -> ArrayOptions {
    // Faults hit requests by their number, so each piece must be one request.
    let options = ArrayOptions::new().platform(world.platform()).tuning(Tuning::new().merge(false));
    options.with_cache(|cache| cache.set_pages(4)).cache_bytes((cache_pages * PAGE) as u64)
}

fn made(world: &World, options: ArrayOptions) -> (Array, File) {
    let array = options.create(world.paths()).unwrap();
    let file = array.create_file("file", &FileOptions::new().block_bytes(PAGE as u32)).unwrap();
    (array, file)
}

fn eio(kind: Kind) -> Injection {
    Injection::new(kind, Fault::Errno(libc::EIO)).path("parts/")
}

/// The machine loses everything that no sync has covered. Returns the file after that.
fn after_a_crash(world: &World, array: Array) -> Vec<u8> {
    world.crash_with(Survival::Nothing);
    drop(array);
    world.reboot();
    let array = options(world, 0).open(world.path(0)).unwrap();
    let file = array.open_file("file").unwrap();
    let mut got = vec![0; file.len() as usize];
    assert_eq!(file.read_at(&mut got, 0).unwrap(), got.len());
    drop(file);
    array.close().unwrap();
    got
}

/// A cursor has no buffer, so its flush has nothing to do. Its sync makes the file durable.
#[test]
fn a_flush_of_a_cursor_is_no_sync() {
    use std::io::Write;

    for cache_pages in [0, 64] {
        let world = World::new(1).with_drives(2, DriveModel::default());
        let (array, file) = made(&world, options(&world, cache_pages));
        let syncs = || array.counters().drives.iter().map(|drive| drive.syncs).sum::<u64>();
        let mut cursor = file.cursor();
        cursor.write_all(&[1; 3 * PAGE]).unwrap();
        let before = syncs();
        cursor.flush().unwrap();
        assert_eq!(syncs(), before, "a flush is a sync");
        cursor.sync().unwrap();
        assert!(syncs() > before, "a sync is none");
        drop((cursor, file));
        assert_eq!(after_a_crash(&world, array), [1; 3 * PAGE]);
    }
}

/// Earlier bytes may be only in the drives' caches. A writer's sync covers them too, even if the writer wrote nothing
/// itself.
#[test]
fn a_sync_covers_what_an_earlier_writer_left() {
    let mut rng = Rng::with_seed(2);
    for (asynchronous, cache_pages) in [(false, 0), (false, 64), (true, 0), (true, 64)] {
        let world = World::new(1).with_drives(3, DriveModel::default());
        let (array, file) = made(&world, options(&world, 0));
        let (first, second) = (bytes(&mut rng, 21 * PAGE), bytes(&mut rng, 21 * PAGE));
        file.write_at(&first, 0).unwrap();
        drop(file);
        // The parts have exactly the length that they need, so that the next opening has nothing to cut.
        let file = array.open_file("file").unwrap();
        file.write_at(&second, 0).unwrap();
        world.kill_process();
        drop((array, file));
        let array = options(&world, cache_pages).open(world.path(0)).unwrap();
        let file = array.open_file("file").unwrap();
        let mut got = vec![0; second.len()];
        file.read_at(&mut got, 0).unwrap();
        assert_same(&got, &second, || "what the killed writer left".into());
        let before = (0..3).map(|drive| world.stats(drive).syncs).sum::<u64>();
        if asynchronous {
            block_on(&array, file.sync_async()).unwrap()
        } else {
            file.sync().unwrap()
        }
        file.sync().unwrap();
        let syncs = (0..3).map(|drive| world.stats(drive).syncs).sum::<u64>() - before;
        assert_eq!(syncs, 3, "one for each part, once");
        drop(file);
        assert_same(&after_a_crash(&world, array), &second, || {
            format!("after the crash, asynchronous {asynchronous}, {cache_pages}")
        });
        assert_tidy(&world);
    }
}

/// So may the names of parts: an opening that made them may have ended, or its sync may have failed, before they were
/// durable.
#[test]
fn a_sync_covers_the_names_of_parts_that_an_earlier_opening_made() {
    for is_killed in [true, false] {
        let world = World::new(1).with_drives(3, DriveModel::default());
        let (array, file) = made(&world, options(&world, 0));
        file.write_at(&[1; 30 * PAGE], 0).unwrap();
        let (array, file) = if is_killed {
            world.kill_process();
            drop((array, file));
            let array = options(&world, 0).open(world.path(0)).unwrap();
            let file = array.open_file("file").unwrap();
            (array, file)
        } else {
            let hit = Injection::new(Kind::Sync, Fault::Errno(libc::EIO)).drive(0).path("parts/");
            world.faults(|faults| faults.inject(hit));
            file.sync().unwrap_err();
            drop(file);
            let file = array.open_file("file").unwrap();
            (array, file)
        };
        let content = [2; 30 * PAGE];
        file.write_at(&content, 0).unwrap();
        file.sync().unwrap();
        drop(file);
        assert_same(&after_a_crash(&world, array), &content, || format!("after the crash, killed {is_killed}"));
    }
}

/// The same in one process, for a file that was discarded and for one that got no more writes.
#[test]
fn a_sync_covers_what_an_earlier_opening_left() {
    let world = World::new(2).with_drives(2, DriveModel::default());
    let (array, file) = made(&world, options(&world, 0));
    file.write_at(&[1; 8 * PAGE], 0).unwrap();
    file.sync().unwrap();
    file.write_at(&[2; 8 * PAGE], 0).unwrap();
    file.discard();
    let file = array.open_file("file").unwrap();
    file.sync().unwrap();
    // Now the sync of both parts fails, and the file is opened again.
    file.write_at(&[3; 8 * PAGE], 0).unwrap();
    world.faults(|faults| faults.inject(eio(Kind::Sync).times(2)));
    file.sync().unwrap_err();
    drop(file);
    let syncs = || [0, 1].map(|drive| world.stats(drive).syncs);
    world.faults(|faults| faults.clear());
    let before = syncs();
    let file = array.open_file("file").unwrap();
    file.sync().unwrap();
    assert_eq!(syncs(), before.map(|count| count + 1), "a file that is opened again was not synced");
    drop(file);
    let got = after_a_crash(&world, array);
    // No later sync restores bytes that a failed fdatasync has dropped.
    assert!(got.iter().all(|&byte| byte == 2 || byte == 3), "what a discarded handle left was not synced");
    assert_tidy(&world);
}

/// A file that is opened only for reading costs no fdatasync. A new file without writes costs none either.
#[test]
fn a_file_that_is_not_written_to_costs_no_sync_at_its_end() {
    let world = World::new(3).with_drives(2, DriveModel::default());
    let (array, file) = made(&world, options(&world, 64));
    let syncs = || (0..2).map(|drive| world.stats(drive).syncs).sum::<u64>();
    file.sync().unwrap();
    assert_eq!(syncs(), 0, "a new file holds nothing");
    file.write_at(&[1; 8 * PAGE], 0).unwrap();
    drop(file);
    let before = syncs();
    let file = array.open_file("file").unwrap();
    file.read_at(&mut [0; 100], 5000).unwrap();
    drop(file);
    let _file = array.open_file("file").unwrap();
    array.close().unwrap();
    assert_eq!(syncs(), before);
}

/// A page that cannot be written back does not stop writes to other pages, and its error is not theirs.
#[test]
fn a_write_fails_by_no_other_page() {
    for asynchronous in [false, true] {
        let world = World::new(4).with_drives(2, DriveModel::default());
        // One set of four pages.
        let (array, file) = made(&world, options(&world, 4));
        let (bad, good) = ([0, 2, 4, 6], [1, 3, 5, 7]);
        file.write_at(&[1; 8 * PAGE], 0).unwrap();
        file.sync().unwrap();
        world.faults(|faults| faults.inject(eio(Kind::Write).drive(0).times(u64::MAX)));
        for page in bad {
            file.write_at(&[2; PAGE], page * PAGE as u64).unwrap();
        }
        for page in good {
            let result = if asynchronous {
                block_on(&array, file.write_at_async(vec![3; 100], page * PAGE as u64 + 5))
                    .map(drop)
                    .map_err(Error::from)
            } else {
                file.write_at(&[3; 100], page * PAGE as u64 + 5)
            };
            assert!(result.is_ok(), "page {page} is healthy: {}", result.unwrap_err());
        }
        // A pin needs room. Its error names the page that takes the room, and the drive is asked once.
        let error = file.pin(1).unwrap_err();
        assert!(matches!(&error, Error::PinnedSet { page: 1, source: Some(_), .. }), "{error}");
        assert!(error.to_string().contains("cannot be written back (cannot write /sim/0"), "{error}");
        // Another page of the bad drive finds no room, and its write fails with its own offset.
        let error = file.write_at(&[4; PAGE], 8 * PAGE as u64).unwrap_err();
        assert!(matches!(&error, Error::Io { action: "write", offset: Some(0x4000), .. }), "{error}");
        let error = file.sync().unwrap_err();
        assert!(matches!(&error, Error::Io { path, .. } if path.starts_with(world.path(0))), "{error}");
        world.faults(|faults| faults.clear());
        file.sync().unwrap();
        drop(file);
        let got = after_a_crash(&world, array);
        for (page, bytes) in got.chunks(PAGE).enumerate() {
            let wanted: Vec<u8> = (0..PAGE)
                .map(|at| match page % 2 {
                    0 => 2,
                    _ if (5..105).contains(&at) => 3,
                    _ => 1,
                })
                .collect();
            assert_same(bytes, &wanted, || format!("page {page}, asynchronous {asynchronous}"));
        }
        assert_tidy(&world);
    }
}

/// A pinned page, in a cache without a free frame: once the page is clean, writes to it go past the cache. If it cannot
/// be written back, the write fails with its own offset, and does not try for ever.
#[test]
fn a_write_to_a_pinned_page_fails_by_itself() {
    let world = World::new(5).with_drives(1, DriveModel::default());
    let (array, file) = made(&world, options(&world, 64));
    file.write_at(&[1; 400 * PAGE], 0).unwrap();
    file.sync().unwrap();
    world.faults(|faults| faults.inject(eio(Kind::Write).times(u64::MAX)));
    // Each page has a frame. Four more frames exist, and at most eight pins.
    let pin = |page| file.pin(page).unwrap();
    let mut pins = Vec::from([396, 397, 398, 399].map(pin));
    for page in (396..400).chain(0..396) {
        // If all pages of a set are dirty, a write of one more page fails.
        let _full_or_not = file.write_at(&[2; 10], page * PAGE as u64);
    }
    pins.extend([396, 397, 398, 399].map(pin));
    for page in 396..400 {
        let at = page * PAGE as u64;
        let error = file.write_at(&[3; 10], at + 50).unwrap_err();
        assert!(matches!(&error, Error::Io { action: "write", offset: Some(found), .. } if *found == at), "{error}");
    }
    drop(pins);
    world.faults(|faults| faults.clear());
    (396..400).for_each(|page| file.write_at(&[4; 10], page * PAGE as u64 + 100).unwrap());
    // A failed write-back is reported once.
    file.sync().unwrap_err();
    file.sync().unwrap();
    drop(file);
    array.close().unwrap();
    assert_tidy(&world);
}

/// A failed write left bytes beyond the end. A later write that makes a hole there must not show them.
#[test]
fn a_hole_shows_nothing_of_a_write_that_failed() {
    for layout in [FileOptions::new(), FileOptions::new().layout(Layout::Hash)] {
        for (asynchronous, cache_pages) in [(false, 0), (true, 0), (false, 4), (true, 4), (false, 64)] {
            let world = World::new(6).with_drives(2, DriveModel::default());
            let array = options(&world, cache_pages).create(world.paths()).unwrap();
            let file = array.create_file("file", &layout.clone().block_bytes(PAGE as u32)).unwrap();
            file.write_at(&[7; 100], 0).unwrap();
            let write = |bytes: Vec<u8>, at: u64| match asynchronous {
                true => block_on(&array, file.write_at_async(bytes, at)).map(drop).map_err(Error::from),
                false => file.write_at(&bytes, at),
            };
            if cache_pages == 64 {
                // A page that must be read first, and the read fails. The other pages are in the cache by then.
                file.sync().unwrap();
                file.advise(.., iomill::Advice::DontNeed).unwrap();
                world.faults(|faults| faults.inject(eio(Kind::Read)));
            } else {
                world.faults(|faults| faults.inject(eio(Kind::Write).skip(9).times(1000)));
            }
            write(vec![8; 20 * PAGE], 50).unwrap_err();
            world.faults(|faults| faults.clear());
            assert_eq!(file.len(), 100);
            write(vec![9; 10], 30 * PAGE as u64).unwrap();
            let mut got = vec![1; 30 * PAGE + 10];
            assert_eq!(file.read_at(&mut got, 0).unwrap(), got.len());
            let what = || format!("{layout:?}, asynchronous {asynchronous}, {cache_pages} pages");
            assert!(got[..50].iter().all(|&byte| byte == 7), "{}", what());
            assert!(got[50..100].iter().all(|&byte| byte == 7 || byte == 8), "{}", what());
            assert_same(&got[100..30 * PAGE], &vec![0; 30 * PAGE - 100], what);
            // A failed write-back is reported once.
            let _told_or_not = file.sync();
            file.sync().unwrap();
            drop(file);
            let left = after_a_crash(&world, array);
            assert_same(&left, &got, what);
            assert_tidy(&world);
        }
    }
}

/// The same where the page with the end cannot be written back, with bytes of the failed write beyond the end. The
/// later write does not touch that page, and does not fail by it.
#[test]
fn a_far_write_after_one_that_failed_fails_by_no_other_page() {
    const LEN: usize = PAGE + 100;
    for asynchronous in [false, true] {
        let world = World::new(9).with_drives(2, DriveModel::default());
        let (array, file) = made(&world, options(&world, 64));
        file.write_at(&[7; LEN], 0).unwrap();
        file.sync().unwrap();
        file.advise(.., iomill::Advice::DontNeed).unwrap();
        // Page 0 must be read first, and the read fails. Pages 1 to 19 are in the cache by then.
        world.faults(|faults| faults.inject(eio(Kind::Read).drive(0)));
        file.write_at(&[8; 20 * PAGE], 50).unwrap_err();
        assert_eq!(file.len(), LEN as u64);
        // Odd pages, with the end among them, cannot be written back.
        world.faults(|faults| faults.inject(eio(Kind::Write).drive(1).times(u64::MAX)));
        let write = |bytes: Vec<u8>, at: u64| match asynchronous {
            true => block_on(&array, file.write_at_async(bytes, at)).map(drop).map_err(Error::from),
            false => file.write_at(&bytes, at),
        };
        write(vec![9; 10], 30 * PAGE as u64).unwrap();
        let mut got = vec![1; 30 * PAGE + 10];
        assert_eq!(file.read_at(&mut got, 0).unwrap(), got.len());
        assert!(got[..LEN].iter().all(|&byte| byte == 7 || byte == 8));
        assert_same(&got[LEN..30 * PAGE], &vec![0; 30 * PAGE - LEN], || "the hole".into());
        let error = file.sync().unwrap_err();
        assert!(matches!(&error, Error::Io { path, .. } if path.starts_with(world.path(1))), "{error}");
        world.faults(|faults| faults.clear());
        file.sync().unwrap();
        drop(file);
        assert_same(&after_a_crash(&world, array), &got, || "after the crash".into());
        assert_tidy(&world);
    }
}

/// A change of the length first writes earlier data back. If that fails, the length stays.
#[test]
fn a_length_that_cannot_be_synced_is_not_changed() {
    for len in [5000, 50_000] {
        let world = World::new(7).with_drives(2, DriveModel::default());
        let (array, file) = made(&world, options(&world, 64));
        file.write_at(&[1; 20_000], 0).unwrap();
        world.faults(|faults| faults.inject(eio(Kind::Write).times(u64::MAX)));
        file.set_len(len).unwrap_err();
        assert_eq!(file.len(), 20_000);
        world.faults(|faults| faults.clear());
        file.set_len(len).unwrap();
        assert_eq!(file.len(), len);
        drop(file);
        let got = after_a_crash(&world, array);
        assert_eq!(got.len() as u64, len);
        assert!(
            got[..5000].iter().all(|&byte| byte == 1)
                && got[5000.min(got.len())..].iter().skip(15_000).all(|&byte| byte == 0)
        );
        assert_tidy(&world);
    }
}

/// A batch takes the space of its ranges, like the same writes in turn, and none between its ranges.
#[test]
fn a_batch_takes_no_space_between_its_ranges() {
    const FAR: u64 = 8 << 40;
    for (call, cache_pages) in
        ["write_many", "write_ranges", "submit"].into_iter().flat_map(|call| [(call, 0), (call, 64)])
    {
        let model = DriveModel { capacity_bytes: Some(1 << 30), ..DriveModel::default() };
        let world = World::new(8).with_drives(2, model);
        let array = options(&world, cache_pages).create(world.paths()).unwrap();
        let file = array.create_file("file", &FileOptions::new()).unwrap();
        let offsets = [FAR, 0, FAR / 2, 100];
        let records: Vec<u8> = (1..=4).flat_map(|byte| [byte; 100]).collect();
        match call {
            "write_many" => file.write_many(&records, &offsets, 100).unwrap(),
            "write_ranges" => file.write_ranges(&records, &offsets.map(|offset| (offset, 100))).unwrap(),
            _ => {
                let tasks = offsets.iter().zip(records.chunks(100));
                let tasks = tasks.map(|(&offset, bytes)| Request::Write { offset, bytes: bytes.to_vec() }).collect();
                let (tell, told) = std::sync::mpsc::channel();
                file.submit(tasks, move |result| tell.send(result.map(drop)).unwrap()).unwrap();
                (0..10_000)
                    .find_map(|_| {
                        array.step();
                        told.try_recv().ok()
                    })
                    .expect("it ends")
                    .unwrap();
            }
        }
        file.sync().unwrap();
        assert_eq!(file.len(), FAR + 100);
        let mut got = vec![9; 400];
        file.read_many(&mut got, &offsets, 100).unwrap();
        assert_same(&got, &records, || call.into());
        let used: u64 = (0..2).map(|drive| world.used_bytes(drive)).sum();
        assert!(used < 600 << 20, "{call} took {used} bytes");
        drop(file);
        array.close().unwrap();
        let used: u64 = (0..2).map(|drive| world.used_bytes(drive)).sum();
        assert!(used < 3 << 20, "{call} keeps {used} bytes");
        assert_tidy(&world);
    }
}

/// A crash during a write of a page leaves the old page or the new one.
#[test]
fn a_crash_leaves_a_page_old_or_new() {
    let mut found = [0; 2];
    for (seed, cache_pages) in (0..60).flat_map(|seed| [(seed, 0), (seed, 16)]) {
        let world = World::new(seed).with_drives(1, DriveModel::default());
        let (array, file) = made(&world, options(&world, cache_pages));
        file.write_at(&[1; PAGE], 0).unwrap();
        file.sync().unwrap();
        let at = world.effects() + 1 + seed % 4;
        world.faults(|faults| faults.crash_at_effect = Some(at));
        let _crashed_or_not = file.write_at(&[2; 3900], 100).and_then(|()| file.sync());
        world.crash();
        world.faults(|faults| faults.crash_at_effect = None);
        drop((array, file));
        world.reboot();
        let array = options(&world, 0).open(world.path(0)).unwrap();
        let mut got = [0; PAGE];
        array.open_file("file").unwrap().read_at(&mut got, 0).unwrap();
        let is_new = got[100] == 2;
        let new = [vec![1; 100], vec![2; 3900], vec![1; 96]].concat();
        assert_same(&got, if is_new { &new } else { &[1; PAGE] }, || format!("seed {seed}, {cache_pages} pages"));
        found[usize::from(is_new)] += 1;
        array.close().unwrap();
    }
    assert!(found.iter().all(|&count| count > 10), "{found:?}: no crash was between them");
}

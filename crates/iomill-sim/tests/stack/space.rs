//! Space of small files: it returns to the drives, and no call fails for a full drive while free pages suffice.

use fastrand::Rng;
use iomill::{Array, ArrayOptions, FileOptions, PutOptions};
use iomill_sim::{DriveModel, Fault, Injection, Kind, World};

use super::harness::{assert_tidy, bytes};

const MIB: u64 = 1 << 20;
/// The most space of pages that stay ready, on a drive with few small files.
const READY_MOST_BYTES: u64 = 6 * MIB;

fn world(drives: usize, capacity_bytes: u64) -> World {
    World::new(9).with_drives(drives, DriveModel { capacity_bytes: Some(capacity_bytes), ..DriveModel::default() })
}

fn options(world: &World) -> ArrayOptions {
    ArrayOptions::new().platform(world.platform()).cache_bytes(0)
}

fn content(index: usize, len: usize) -> Vec<u8> {
    vec![1 + (index % 250) as u8; len]
}

/// Puts small files until the drives are full. Returns their number.
fn fill(array: &Array, len: usize) -> usize {
    let put = |index: usize| array.put(&format!("f{index}"), &content(index, len), &PutOptions::new());
    let failed = (0..100_000).find_map(|index| put(index).err().map(|error| (index, error)));
    let (count, error) = failed.expect("the drives are never full");
    assert_eq!(error.errno(), Some(libc::ENOSPC), "{error}");
    count
}

fn delete_all(array: &Array) {
    array.list("").names().unwrap().iter().for_each(|name| array.delete(name).unwrap());
}

fn assert_reads(array: &Array, name: &str, wanted: &[u8]) {
    let mut got = vec![0; wanted.len() + 1];
    let read = array.open_file(name).unwrap().read_at(&mut got, 0).unwrap();
    assert!(got[..read] == *wanted, "{name} has other bytes");
}

/// Deleted files leave room for a large one, in the same opening and in a later one, whether changes wait for an fsync
/// or not.
#[test]
fn space_of_deleted_small_files_is_free_for_large_ones() {
    for (reopens, syncs) in [(false, true), (true, true), (false, false), (true, false)] {
        let world = world(1, 64 * MIB);
        let array = options(&world).sync_changes(syncs).create(world.paths()).unwrap();
        let count = fill(&array, 60_000);
        assert!(count as u64 * 60_000 > 40 * MIB, "only {count} files fit");
        let array = if reopens {
            array.close().unwrap();
            options(&world).sync_changes(syncs).open(world.path(0)).unwrap()
        } else {
            array
        };
        delete_all(&array);
        let file = array.create_file("large", &FileOptions::new()).unwrap();
        let large = content(7, 40 << 20);
        file.write_at(&large, 0).unwrap();
        file.close().unwrap();
        assert_reads(&array, "large", &large);
        array.close().unwrap();
        assert_tidy(&world);
    }
}

/// Most of the space returns without a call that needs it, and a repair frees the rest.
#[test]
fn free_pages_go_back_in_the_background_and_by_a_repair() {
    let world = world(2, 256 * MIB);
    let array = options(&world).create(world.paths()).unwrap();
    for index in 0..1200 {
        array.put(&format!("f{index}"), &content(index, 60_000), &PutOptions::new()).unwrap();
    }
    let used = |drive: usize| world.used_bytes(drive);
    let before = [used(0), used(1)];
    let small = |array: &Array| -> Vec<_> { array.info().unwrap().drives.iter().map(|drive| drive.small).collect() };
    assert!(small(&array).iter().all(|small| small.used_bytes > 30 * MIB && small.given_back_bytes == 0));
    delete_all(&array);
    for (drive, before) in before.into_iter().enumerate() {
        let after = used(drive);
        assert!(after + 28 * MIB < before, "{after} of {before} bytes of drive {drive} are still used");
    }
    let spaces = small(&array);
    assert!(spaces.iter().all(|small| small.used_bytes == 0 && small.given_back_bytes > 25 * MIB), "{spaces:?}");
    assert!(spaces.iter().all(|small| (MIB..READY_MOST_BYTES).contains(&small.ready_bytes)), "{spaces:?}");
    array.close().unwrap();
    let report = options(&world).check([world.path(0)], true).unwrap();
    assert!(report.is_clean() && report.given_back_bytes >= 2 * MIB, "{report:?}");
    let array = options(&world).read_only(true).open(world.path(0)).unwrap();
    assert!(small(&array).iter().all(|small| small.ready_bytes == 0));
    array.close().unwrap();
    assert_tidy(&world);
}

/// The few bytes that free pages have are found for each kind of call: a small file, a longer file, room ahead, and a
/// change of the catalog.
#[test]
fn no_call_hears_of_a_full_drive_while_free_pages_would_do() {
    type Call = fn(&Array) -> iomill::Result<()>;
    let calls: [(&str, Call); 5] = [
        ("put", |array| {
            (0..60).try_for_each(|at| array.put(&format!("n{at}"), &[3; 65536], &PutOptions::new()).map(drop))
        }),
        ("write", |array| array.create_file("long", &FileOptions::new())?.write_at(&[4; 4 << 20], 0)),
        ("preallocate", |array| array.create_file("long", &FileOptions::new())?.preallocate(4 << 20)),
        ("a small file that moves", |array| {
            let file = array.create_file("long", &FileOptions::new())?;
            file.write_at(&[4; 60_000], 0)?;
            file.write_at(&[4; 3 << 20], 60_000)
        }),
        ("many changes", |array| {
            (0..400).try_for_each(|at| {
                array.set_attribute("filler", &format!("k{}", at % 7), Some(&format!("{at}{}", "v".repeat(5000))))
            })
        }),
    ];
    for (what, call) in calls {
        let world = world(1, 48 * MIB);
        let array = options(&world).create(world.paths()).unwrap();
        // Few enough that they stay ready when they are deleted.
        for index in 0..64 {
            array.put(&format!("f{index}"), &content(index, 65536), &PutOptions::new()).unwrap();
        }
        for index in 0..64 {
            array.put(&format!("g{index}"), &content(index, 65536), &PutOptions::new()).unwrap();
        }
        let filler = array.create_file("filler", &FileOptions::new()).unwrap();
        let mut at = 0;
        while filler.write_at(&[5; 65536], at).is_ok() {
            at += 65536;
        }
        filler.sync().unwrap();
        (0..64).for_each(|index| array.delete(&format!("f{index}")).unwrap());
        call(&array).unwrap_or_else(|error| panic!("{what}: {error}"));
        for index in 0..64 {
            assert_reads(&array, &format!("g{index}"), &content(index, 65536));
        }
        assert_reads(&array, "filler", &content(4, at as usize));
        drop(filler);
        array.close().unwrap();
        let report = options(&world).check([world.path(0)], false).unwrap();
        assert!(report.is_clean(), "{what}: {report:?}");
    }
}

/// Files are created and deleted at random, with crashes between. Each page has one owner, and acknowledged changes are
/// there.
#[test]
fn pages_that_were_given_back_are_used_again() {
    for seed in 0..6 {
        let rng = &mut Rng::with_seed(seed);
        let world = world(2, 64 * MIB);
        let mut array = options(&world).create(world.paths()).unwrap();
        let mut files: std::collections::BTreeMap<String, Vec<u8>> = Default::default();
        for _ in 0..4 {
            for _ in 0..200 {
                let name = format!("f{}", rng.usize(0..400));
                let len = rng.usize(1..65_000);
                let content = bytes(rng, len);
                array.put(&name, &content, &PutOptions::new()).unwrap();
                files.insert(name, content);
            }
            let gone: Vec<String> = files.keys().filter(|_| rng.u8(0..8) > 0).cloned().collect();
            for name in gone {
                array.delete(&name).unwrap();
                files.remove(&name);
            }
            if rng.bool() {
                world.crash();
                drop(array);
                world.reboot();
                array = options(&world).open(world.path(0)).unwrap();
            }
            assert_eq!(array.list("").names().unwrap(), files.keys().cloned().collect::<Vec<_>>());
            files.iter().for_each(|(name, content)| assert_reads(&array, name, content));
        }
        array.close().unwrap();
        assert!(options(&world).check([world.path(0)], true).unwrap().is_clean());
        let array = options(&world).open(world.path(0)).unwrap();
        files.iter().for_each(|(name, content)| assert_reads(&array, name, content));
        array.close().unwrap();
    }
}

/// A quota that is full is like a drive that is full: the space of deleted files helps.
#[test]
fn space_of_deleted_files_is_free_under_a_quota() {
    let world = world(1, 64 * MIB);
    let array = options(&world).sync_changes(false).create(world.paths()).unwrap();
    array.put("deleted", &content(0, 200_000), &PutOptions::new()).unwrap();
    array.delete("deleted").unwrap();
    let file = array.create_file("large", &FileOptions::new()).unwrap();
    // Both tries of the write, with space ahead and without.
    let full = Injection::new(Kind::Allocate, Fault::Errno(libc::EDQUOT)).path("parts/").times(2);
    world.faults(|faults| faults.inject(full));
    file.write_at(&content(1, 200_000), 0).unwrap();
    file.sync().unwrap();
    assert_reads(&array, "large", &content(1, 200_000));
    drop(file);
    array.close().unwrap();
    assert_tidy(&world);
}

/// Space for the log is set aside on each drive, also behind a drive that fails at that.
#[test]
fn each_drive_sets_space_aside() {
    let world = world(3, 64 << 20);
    world.faults(|faults| {
        faults.inject(Injection::new(Kind::Allocate, Fault::Errno(libc::EIO)).path("log/reserve").drive(0));
    });
    let array = options(&world).create(world.paths()).unwrap();
    array.put("small", b"bytes", &PutOptions::new()).unwrap();
    assert_eq!(world.faults(|faults| faults.pending()), 0);
    let told = array.notices();
    assert!(told.iter().any(|notice| notice.contains("log/reserve")), "{told:?}");
    let len = |drive| world.read(drive, "log/reserve").map_or(0, |bytes| bytes.len());
    assert!(len(0) == 0 && len(1) > 0 && len(2) > 0, "{:?}", [0, 1, 2].map(len));
}

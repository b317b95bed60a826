//! Failed fsyncs: which files report them, and that no sync succeeds for bytes that may be lost.

use iomill::{Array, ArrayOptions, Error, File, FileOptions, PutOptions};
use iomill_sim::{DriveModel, Fault, Injection, Kind, Survival, World};

fn options(world: &World) -> ArrayOptions {
    ArrayOptions::new().platform(world.platform()).cache_bytes(0)
}

/// Fails the next fsync of a file with this in its path.
fn fail_fsync(world: &World, path: &str) {
    world.faults(|faults| faults.inject(Injection::new(Kind::Sync, Fault::Errno(libc::EIO)).path(path)));
}

/// Lets the next operation of this kind on a file with this in its path succeed, while the fsync of another file of the
/// drive fails.
fn fail_beside_a(kind: Kind, world: &World, path: &str) {
    world.faults(|faults| faults.inject(Injection::new(kind, Fault::Beside).path(path).drive(0)));
}

/// The same for its next fsync.
fn fail_beside(world: &World, path: &str) {
    fail_beside_a(Kind::Sync, world, path);
}

fn struck(world: &World) -> bool {
    world.faults(|faults| faults.pending()) == 0
}

/// After a crash that loses all unsynced writes, a file has its bytes if its sync was `Ok`.
fn assert_survives(world: &World, name: &str, wanted: &[u8], context: &str) {
    world.reboot();
    let array = options(world).open(world.path(0)).unwrap();
    let mut got = vec![0; wanted.len()];
    array.open_file(name).unwrap().read_at(&mut got, 0).unwrap();
    assert!(got == wanted, "{context}: {name} was synced, and is lost");
    array.close().unwrap();
}

/// Makes a small file and overwrites it without a sync.
fn victim(array: &Array) -> File {
    let file = array.create_file("victim", &FileOptions::new()).unwrap();
    file.write_at(&[1; 4096], 0).unwrap();
    file.sync().unwrap();
    file
}

/// An fsync of a shared part that fails, fails all files with unsynced bytes there. The fsync may be that of a growth,
/// a put, a sync or a move.
#[test]
fn all_files_of_a_shared_part_report_its_failed_fsync() {
    type Cause = fn(&Array) -> iomill::Result<()>;
    let causes: [(&str, Cause); 4] = [
        ("a growth", |array| {
            (0..20).try_for_each(|at| array.put(&format!("grow{at}"), &[9; 65536], &PutOptions::new()).map(drop))
        }),
        ("a put", |array| array.put("more", &[9; 5000], &PutOptions::new()).map(drop)),
        ("a sync", |array| {
            let file = array.create_file("other", &FileOptions::new())?;
            file.write_at(&[3; 100], 0)?;
            file.sync()
        }),
        ("a move to more pages", |array| {
            let file = array.create_file("other", &FileOptions::new())?;
            file.write_at(&[3; 100], 0)?;
            file.write_at(&[3; 9000], 100)
        }),
    ];
    for (seed, (what, cause)) in (0..5).flat_map(|seed| causes.map(|cause| (seed, cause))) {
        let world = World::new(seed).with_drives(1, DriveModel::default());
        let array = options(&world).create(world.paths()).unwrap();
        let file = victim(&array);
        if what == "a growth" {
            // Without an fsync of the part the first growth ends at its 256 pages.
            (0..15).for_each(|at| drop(array.put(&format!("f{at}"), &[9; 65536], &PutOptions::new()).unwrap()));
        }
        file.write_at(&[2; 4096], 0).unwrap();
        fail_fsync(&world, "shared/");
        assert!(cause(&array).is_err(), "{what}");
        assert!(struck(&world), "{what}");
        let synced = file.sync();
        assert!(matches!(synced, Err(Error::Drive { .. })), "{what}: {synced:?}");
        // The file does not recover by itself.
        assert!(file.sync().is_err() && file.write_at(&[4; 10], 0).is_err(), "{what}");
        world.crash_with(Survival::Nothing);
        drop((file, array));
        assert_survives(&world, "victim", &[1; 4096], what);
    }
}

/// A failed fsync concerns the whole drive. Files with bytes there that no fsync has covered since take no more writes.
/// Others go on: those without such bytes, and those on other drives.
#[test]
fn a_failed_fsync_concerns_all_that_was_written_to_its_drive() {
    for (seed, path) in ["parts/", "shared/"].into_iter().enumerate() {
        let world = World::new(seed as u64).with_drives(2, DriveModel::default());
        let array = options(&world).create(world.paths()).unwrap();
        let on = |drive: u16| FileOptions::new().drives(vec![drive]);
        let long = |name: &str, drive: u16| {
            let file = array.create_file(name, &on(drive)).unwrap();
            file.write_at(&[1; 300_000], 0).unwrap();
            file.sync().unwrap();
            file
        };
        let (written, clean, elsewhere) = (long("written", 0), long("clean", 0), long("elsewhere", 1));
        let cause = match path {
            "parts/" => long("cause", 0),
            _ => {
                let file = array.create_file("cause", &on(0)).unwrap();
                file.write_at(&[1; 10], 0).unwrap();
                file.sync().unwrap();
                file
            }
        };
        for file in [&written, &elsewhere, &cause] {
            file.write_at(&[2; 10], 0).unwrap();
        }
        fail_fsync(&world, path);
        assert!(cause.sync().is_err() && struck(&world));
        // Writes after the failure are covered by their own fsync.
        clean.write_at(&[2; 10], 0).unwrap();
        clean.sync().unwrap();
        elsewhere.sync().unwrap();
        let synced = written.sync().unwrap_err();
        assert!(matches!(synced, Error::Drive { .. }) && synced.to_string().contains("/sim/0"), "{synced}");
        let refused = written.write_at(&[3; 10], 0).unwrap_err();
        assert!(matches!(refused, Error::Poisoned { .. }), "{refused}");
        drop(written);
        let again = array.open_file("written").unwrap();
        again.write_at(&[4; 10], 0).unwrap();
        again.sync().unwrap();
        world.crash_with(Survival::Nothing);
        drop((clean, elsewhere, cause, again, array));
        assert_survives(&world, "written", &[4; 10], path);
    }
}

/// A drive that is full, or a machine without memory, says nothing about other files of the drive.
#[test]
fn lack_of_space_concerns_its_own_file() {
    let world = World::new(3).with_drives(1, DriveModel::default());
    let array = options(&world).create(world.paths()).unwrap();
    let file = |name: &str| {
        let file = array.create_file(name, &FileOptions::new()).unwrap();
        file.write_at(&[1; 300_000], 0).unwrap();
        file
    };
    let (first, second) = (file("first"), file("second"));
    let full = Injection::new(Kind::Sync, Fault::Errno(libc::ENOSPC)).path("parts/");
    world.faults(|faults| faults.inject(full));
    assert!(first.sync().is_err());
    second.sync().unwrap();
}

/// A group of the log may be lost with the other writes of its drive. Its copy is abandoned, or the outcome is unknown.
#[test]
fn a_group_may_be_lost_by_the_failed_fsync_of_another_file() {
    for drives in [1, 2] {
        let world = World::new(4).with_drives(drives, DriveModel::default());
        let array = options(&world).create(world.paths()).unwrap();
        array.create_file("before", &FileOptions::new()).unwrap();
        fail_beside(&world, "log/");
        let created = array.create_file("file", &FileOptions::new()).map(drop);
        assert!(struck(&world));
        if drives == 1 {
            assert!(matches!(created, Err(Error::OutcomeUnknown { .. })), "{created:?}");
            let listed = array.list("").names();
            assert!(matches!(listed, Err(Error::ReadOnly { .. })), "{listed:?}");
            continue;
        }
        created.unwrap();
        let notices = array.notices();
        assert!(notices.iter().any(|notice| notice.contains("/sim/0: this copy")), "{notices:?}");
        world.crash_with(Survival::Nothing);
        drop(array);
        world.reboot();
        let array = options(&world).open(world.path(0)).unwrap();
        assert_eq!(array.list("").names().unwrap(), ["before", "file"]);
        array.close().unwrap();
    }
}

/// A call's own writes and fsyncs may be lost in the same way: zeros of new pages, and bytes that move. Then the call
/// fails.
#[test]
fn new_pages_and_moved_bytes_may_be_lost_by_the_failed_fsync_of_another_file() {
    let world = World::new(5).with_drives(1, DriveModel::default());
    let array = options(&world).create(world.paths()).unwrap();
    let assert_lost = |result: iomill::Result<()>, what: &str| {
        assert!(struck(&world), "{what}");
        assert!(matches!(result, Err(Error::Drive { .. })), "{what}: {result:?}");
    };
    fail_beside(&world, "shared/");
    assert_lost(array.put("first", &[1; 100], &PutOptions::new()).map(drop), "new pages");
    array.put("first", &[1; 100], &PutOptions::new()).unwrap();
    for (path, len) in [("shared/", 9000), ("parts/", 300_000)] {
        let file = array.create_file(path.trim_end_matches('/'), &FileOptions::new()).unwrap();
        file.write_at(&[2; 100], 0).unwrap();
        file.sync().unwrap();
        fail_beside(&world, path);
        assert_lost(file.write_at(&vec![3; len], 100), path);
        let mut got = [0; 100];
        file.read_at(&mut got, 0).unwrap();
        assert_eq!(got, [2; 100]);
    }
}

/// A write in flight when another file's fsync fails may be lost, however late its completion is taken; also the write
/// of a page that is flushed.
#[test]
fn a_write_under_way_may_be_lost_by_the_failed_fsync_of_another_file() {
    for (seed, (cache_bytes, len)) in
        [(0, 300_000), (0, 5000), (8 << 20, 300_000), (8 << 20, 5000)].into_iter().enumerate()
    {
        let world = World::new(seed as u64).with_drives(1, DriveModel::default());
        let array = options(&world).cache_bytes(cache_bytes).create(world.paths()).unwrap();
        for checksums in [false, true] {
            let file = array.create_file(&format!("{checksums}"), &FileOptions::new().checksums(checksums)).unwrap();
            let (path, what) =
                (if len > 65_536 { "parts/" } else { "shared/" }, format!("{cache_bytes} {len} {checksums}"));
            file.write_at(&vec![1; len], 0).unwrap();
            file.sync().unwrap();
            if cache_bytes == 0 {
                fail_beside_a(Kind::Write, &world, path);
                file.write_at(&vec![2; len], 0).unwrap();
            } else {
                file.write_at(&vec![2; len], 0).unwrap();
                fail_beside_a(Kind::Write, &world, path);
            }
            let synced = file.sync();
            assert!(struck(&world), "{what}");
            assert!(matches!(synced, Err(Error::Drive { .. })), "{what}: {synced:?}");
        }
    }
}

/// A name may be lost, too, although the fsync of its directory succeeds.
#[test]
fn a_name_may_be_lost_by_the_failed_fsync_of_another_file() {
    let world = World::new(6).with_drives(1, DriveModel::default());
    let array = options(&world).create(world.paths()).unwrap();
    let file = array.create_file("file", &FileOptions::new()).unwrap();
    file.write_at(&vec![1; 300_000], 0).unwrap();
    fail_beside_a(Kind::SyncDir, &world, "parts");
    let synced = file.sync();
    assert!(struck(&world));
    assert!(matches!(synced, Err(Error::Drive { .. })), "{synced:?}");
    assert!(file.write_at(&[1], 0).is_err(), "it is not known what a later sync would cover");
    fail_beside_a(Kind::SyncDir, &world, "shared");
    let put = array.put("first", &[1; 100], &PutOptions::new());
    assert!(struck(&world));
    assert!(matches!(put, Err(Error::Drive { .. })), "{put:?}");
    array.put("first", &[1; 100], &PutOptions::new()).unwrap();
    world.crash_with(Survival::Nothing);
    drop((file, array));
    assert_survives(&world, "first", &[1; 100], "a put after one that failed");
}

/// The names of parts may be lost with the fsync of their directory that failed, also where the next one succeeds.
#[test]
fn a_file_does_not_move_to_parts_whose_names_may_be_lost() {
    let world = World::new(8).with_drives(1, DriveModel::default());
    let array = ArrayOptions::new().platform(world.platform()).cache_bytes(0).create(world.paths()).unwrap();
    let file = array.create_file("file", &FileOptions::new()).unwrap();
    file.write_at(&[1; 3000], 0).unwrap();
    file.sync().unwrap();
    world.faults(|faults| faults.inject(Injection::new(Kind::SyncDir, Fault::Errno(libc::EIO)).path("parts")));
    file.write_at(&[2], 200_000).unwrap_err();
    file.write_at(&[2], 200_000).unwrap_err();
    assert_eq!(file.len(), 3000);
}

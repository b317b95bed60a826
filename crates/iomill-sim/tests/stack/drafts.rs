//! Puts and drafts: their fsyncs, and their outcomes after a crash.

use iomill::{ArrayOptions, CreateOptions, Error, FileOptions, PutOptions, When};
use iomill_sim::{DriveModel, Fault, Injection, Kind, Survival, World};

use super::crash::assert_clean_beside;
use super::harness::assert_tidy;

fn options(world: &World) -> ArrayOptions {
    ArrayOptions::new().platform(world.platform()).cache_bytes(1 << 20)
}

/// A put of a small file costs an fsync of its pages and one of the log.
#[test]
fn a_put_of_a_small_file_costs_two_fsyncs() {
    let world = World::new(1).with_drives(2, DriveModel::default());
    let array = options(&world).create_with(world.paths(), &CreateOptions::new().copies(1)).unwrap();
    // The first one makes room for others.
    array.put("first", &[1; 5000], &PutOptions::new()).unwrap();
    for name in ["second", "first"] {
        let before = world.fsyncs();
        array.put(name, &[2; 5000], &PutOptions::new().attribute("a", "b")).unwrap();
        assert_eq!(world.fsyncs() - before, 2);
    }
    array.close().unwrap();
    assert_tidy(&world);
}

/// A name keeps its content if the new content cannot be made durable, or if the record cannot be written.
#[test]
fn a_put_that_fails_changes_nothing() {
    for (len, fails) in [(5000, 1), (5000, 2), (100_000, 1), (100_000, 3), (100_000, 4)] {
        let world = World::new(2).with_drives(2, DriveModel::default());
        let array = options(&world).create_with(world.paths(), &CreateOptions::new().copies(1)).unwrap();
        let first = array.put("file", &[1; 5000], &PutOptions::new()).unwrap();
        let injection = Injection::new(Kind::Sync, Fault::Errno(libc::EIO)).skip(fails - 1).times(1);
        world.faults(|faults| faults.inject(injection));
        let error = array.put("file", &vec![2; len], &PutOptions::new()).unwrap_err();
        assert_eq!(error.errno(), Some(libc::EIO), "{error}");
        let is_unknown = matches!(error, Error::OutcomeUnknown { .. });
        if !is_unknown {
            assert_eq!(array.stat("file").unwrap().version, first.version, "{len} bytes, fsync {fails}");
            assert_eq!(array.unnamed_pages(), 0);
        }
        world.faults(|faults| faults.clear());
        // The failed fsync of the log has left the kernel's pages as they were written, and the next opening writes
        // them again.
        let _ = array.close();
        world.crash_with(Survival::Nothing);
        world.reboot();
        let array = options(&world).open(world.path(0)).unwrap();
        let file = array.open_file("file").unwrap();
        let mut got = vec![0; file.len() as usize];
        file.read_at(&mut got, 0).unwrap();
        assert!(got == [1; 5000] || (is_unknown && got == vec![2; len]), "{len} bytes, fsync {fails}");
        drop(file);
        assert_clean_beside(&world, array);
    }
}

/// The next opening removes a draft that a crash left.
#[test]
fn a_crash_leaves_nothing_of_a_draft() {
    for len in [5000, 60_000, 300_000] {
        for survival in [Survival::Nothing, Survival::Everything] {
            let world = World::new(3).with_drives(2, DriveModel::default());
            let array = options(&world).create(world.paths()).unwrap();
            let draft = array.draft(&FileOptions::new()).unwrap();
            draft.file().write_at(&vec![1; len], 0).unwrap();
            draft.file().sync().unwrap();
            world.crash_with(survival);
            drop((draft, array));
            world.reboot();
            let array = options(&world).open(world.path(1)).unwrap();
            assert_eq!(array.list("").names().unwrap(), [""; 0]);
            for drive in 0..2 {
                assert!(!world.files(drive).iter().any(|path| path.starts_with("parts/")), "{len} bytes");
            }
            array.put("after", &[3; 60_000], &PutOptions::new().when(When::Absent)).unwrap();
            assert_eq!(array.unnamed_pages(), 0);
            assert_clean_beside(&world, array);
        }
    }
}

/// An error of write-back is reported once. The publication that comes after it succeeds.
#[test]
fn a_publication_may_be_tried_again() {
    let world = World::new(3).with_drives(2, DriveModel::default());
    let array = options(&world).create(world.paths()).unwrap();
    let draft = array.draft(&FileOptions::new()).unwrap();
    draft.file().write_at(&[7; 5000], 0).unwrap();
    let injection = Injection::new(Kind::Write, Fault::Errno(libc::EIO)).times(1);
    world.faults(|faults| faults.inject(injection));
    let error = draft.publish("file", When::Absent).unwrap_err();
    assert_eq!(error.errno(), Some(libc::EIO), "{error}");
    world.faults(|faults| faults.clear());
    draft.publish("file", When::Absent).unwrap();
    drop(draft);
    assert_eq!(array.stat("file").unwrap().len_bytes, 5000);
    array.close().unwrap();
    assert_tidy(&world);
}

//! Finding and locking drives: missing, moved, copied, foreign, damaged and newer ones.

use super::*;

fn at(path: &str, mode: OpenMode, world: &World) -> Result<Catalog> {
    Catalog::open(&world.platform(), &[PathBuf::from(path)], mode)
}

/// The label of a disk with one piece of it changed, and signed again.
fn relabel(world: &World, disk: usize, from: &str, to: &str) {
    let text = String::from_utf8(world.read(disk, "label").unwrap()).unwrap();
    let body = text[..text.rfind("# checksum").unwrap()].replacen(from, to, 1);
    assert!(!text.starts_with(&body), "{from} is not in {text}");
    let signed = format!("{body}# checksum xxh3:{:016x}\n", crate::sys::hash::xxh3_64(body.as_bytes()));
    world.put(disk, "label", Some(signed.as_bytes()));
}

fn drive_error(result: Result<Catalog>) -> (String, String) {
    match result {
        Err(Error::NoDirectory { path }) => (path.display().to_string(), "there is no such directory".to_owned()),
        Err(
            Error::Drive { path, why, advice, .. }
            | Error::ArrayExists { path, why, advice, .. }
            | Error::NoArray { path, why, advice, .. }
            | Error::DriveMissing { path, why, advice, .. },
        ) => (path.display().to_string(), format!("{why}; {advice}")),
        other => panic!("{other:?}"),
    }
}

#[test]
fn any_drive_names_the_array() {
    let (world, catalog) = array(3);
    let id = catalog.id();
    drop(catalog);
    for place in ["/d0", "/d1", "/d2"] {
        let catalog = at(place, OpenMode::Writer, &world).unwrap();
        assert_eq!((catalog.id(), catalog.epoch()), (id, 1));
        let found: Vec<_> = catalog.drives().iter().map(|drive| (drive.index, drive.path().to_owned())).collect();
        assert_eq!(found, [(0, "/d0".into()), (1, "/d1".into()), (2, "/d2".into())]);
    }
    let named =
        Catalog::open(&world.platform(), &["/d2".into(), "/d0".into(), "/d2".into()], OpenMode::Reader).unwrap();
    assert_eq!(named.drives()[1].index, 1);
    assert!(matches!(Catalog::open(&world.platform(), &[], OpenMode::Peek), Err(Error::Invalid { .. })));
}

#[test]
fn moved_drives_are_found_and_noted() {
    let (world, catalog) = array(3);
    drop(catalog);
    // All drives move together: relative hints find them.
    for disk in 0..3 {
        world.move_disk(&format!("/d{disk}"), &format!("/mnt/far/d{disk}"));
    }
    let reader = at("/mnt/far/d1", OpenMode::Reader, &world).unwrap();
    assert_eq!((reader.epoch(), reader.list("").len()), (1, 2));
    drop(reader);
    let writer = at("/mnt/far/d1", OpenMode::Writer, &world).unwrap();
    assert_eq!(writer.epoch(), 2);
    assert!(writer.notices().all()[0].contains("epoch 2"), "{:?}", writer.notices().all());
    drop(writer);
    // One drive moves alone: a look at the neighbours finds it.
    world.move_disk("/mnt/far/d2", "/elsewhere");
    assert_eq!(at("/mnt/far/d0", OpenMode::Writer, &world).unwrap().epoch(), 3);
    assert_eq!(at("/elsewhere", OpenMode::Writer, &world).unwrap().epoch(), 3);
    // Two drives change places: ids decide.
    world.move_disk("/elsewhere", "/tmp");
    world.move_disk("/mnt/far/d1", "/elsewhere");
    world.move_disk("/tmp", "/mnt/far/d1");
    let catalog = at("/mnt/far/d0", OpenMode::Writer, &world).unwrap();
    assert_eq!(catalog.drives()[1].path(), PathBuf::from("/elsewhere"));
    assert_eq!(catalog.epoch(), 4);
}

#[test]
fn a_missing_drive_is_named() {
    let (world, catalog) = array(3);
    let id = catalog.drives()[2].id;
    drop(catalog);
    world.inner().places.remove(&PathBuf::from("/d2")).unwrap();
    for mode in [OpenMode::Writer, OpenMode::Reader, OpenMode::Peek] {
        let (path, why) = drive_error(open(&world, mode));
        assert_eq!(path, "/d2");
        assert!(
            why.contains("drive 2")
                && why.contains(&id.to_string())
                && why.contains("present directories of all its drives"),
            "{why}"
        );
    }
    // A drive of another array is in its place.
    let other = World::new(1);
    create(&other, 1).unwrap();
    let disk = other.inner().disks[0].clone();
    world.inner().disks.push(disk);
    world.inner().places.insert("/d2".into(), 3);
    let (path, why) = drive_error(open(&world, OpenMode::Writer));
    assert!(path == "/d2" && why.contains("now drive 0 of array"), "{path}: {why}");
    let both = Catalog::open(&world.platform(), &["/d0".into(), "/d2".into()], OpenMode::Writer);
    assert!(drive_error(both).1.contains("belongs to array"));
}

#[test]
fn a_directory_without_an_array_is_named() {
    let (world, catalog) = array(1);
    drop(catalog);
    world.inner().disks.push(world::Disk::default());
    world.inner().places.insert("/empty".into(), 1);
    assert!(drive_error(at("/empty", OpenMode::Peek, &world)).1.contains("make an array"));
    assert!(drive_error(at("/nowhere", OpenMode::Peek, &world)).1.contains("make an array"));
    world.put(0, "label", None);
    assert!(drive_error(at("/d0", OpenMode::Peek, &world)).1.contains("no label"));
}

#[test]
fn a_copied_drive_is_refused() {
    let (world, catalog) = array(2);
    drop(catalog);
    world.copy_disk("/d0", "/copy/d0");
    world.copy_disk("/d1", "/copy/d1");
    // The originals are where the labels say, so they are the array.
    assert_eq!(at("/d1", OpenMode::Writer, &world).unwrap().drives()[0].path(), PathBuf::from("/d0"));
    let both = Catalog::open(&world.platform(), &["/d0".into(), "/copy/d0".into()], OpenMode::Writer);
    let (path, why) = drive_error(both);
    assert!(path == "/copy/d0" && why.contains("/d0:") && why.contains("copy"), "{path}: {why}");
    // A copy is never mixed with originals.
    for mode in [OpenMode::Writer, OpenMode::Reader, OpenMode::Peek] {
        assert!(drive_error(at("/copy/d0", mode, &world)).1.contains("same id"));
    }
    // Alone, the copy is a moved array. Two candidates for one drive are refused.
    world.inner().places.remove(&PathBuf::from("/d0")).unwrap();
    world.inner().places.remove(&PathBuf::from("/d1")).unwrap();
    assert_eq!(at("/copy/d0", OpenMode::Reader, &world).unwrap().list(""), ["a", "b"]);
    world.move_disk("/copy/d1", "/x");
    world.copy_disk("/x", "/y");
    assert!(drive_error(at("/copy/d0", OpenMode::Writer, &world)).1.contains("same id"));
}

#[test]
fn one_directory_by_two_names_is_one_drive() {
    let (world, catalog) = array(2);
    drop(catalog);
    world.inner().places.insert("/alias".into(), 0);
    let both = Catalog::open(&world.platform(), &["/d0".into(), "/alias".into()], OpenMode::Writer).unwrap();
    assert_eq!(both.drives().len(), 2);
    drop(both);
    // The drive has not moved, so the labels stay as they are.
    assert_eq!(at("/alias", OpenMode::Writer, &world).unwrap().epoch(), 1);
    assert_spotless(&world, "by another name");
    let twice = Catalog::create(&world.platform(), &["/alias".into(), "/d0".into()], &[], None);
    assert!(drive_error(twice).1.contains("same directory"));
}

#[test]
fn damaged_and_newer_labels() {
    let whole = array(2).0.read(1, "label").unwrap();
    for damaged in [&b""[..], &whole[..whole.len() - 30], &[&whole[..40], b"#", &whole[41..]].concat()] {
        let (world, catalog) = array(2);
        drop(catalog);
        world.put(1, "label", Some(damaged));
        for start in ["/d0", "/d1"] {
            let Err(Error::Corrupt { path, advice, .. }) = at(start, OpenMode::Reader, &world) else {
                panic!("{damaged:?}")
            };
            assert!(path.to_str() == Some("/d1/iomill/label") && advice.contains("check the array"), "{advice}");
        }
    }
    let (world, catalog) = array(2);
    drop(catalog);
    relabel(&world, 1, "format = 2", "format = 3");
    for start in ["/d0", "/d1"] {
        let (path, why) = drive_error(at(start, OpenMode::Reader, &world));
        assert!(path == "/d1" && why.contains("format 3"), "{path}: {why}");
    }
    relabel(&world, 1, "format = 3", "format = 1");
    let (path, why) = drive_error(at("/d1", OpenMode::Reader, &world));
    assert!(
        path == "/d1" && why.contains("before its first release") && why.contains("copy the files out"),
        "{path}: {why}"
    );
}

#[test]
fn features_and_states_of_later_versions() {
    let opened = |from: &str, to: &str, mode| {
        let (world, catalog) = array(2);
        catalog.close().unwrap();
        [0, 1].iter().for_each(|disk| relabel(&world, *disk, from, to));
        open(&world, mode)
    };
    let refused = |from: &str, to: &str, mode| drive_error(opened(from, to, mode)).1;
    assert!(opened("\ncompatible = []", "\ncompatible = [\"x\"]", OpenMode::Writer).is_ok());
    assert!(opened("read_only = []", "read_only = [\"x\"]", OpenMode::Reader).is_ok());
    assert!(refused("read_only = []", "read_only = [\"x\"]", OpenMode::Writer).contains("\"x\""));
    for mode in [OpenMode::Reader, OpenMode::Writer, OpenMode::Peek] {
        assert!(refused("incompatible = []", "incompatible = [\"x\"]", mode).contains("\"x\""));
        assert!(refused("state = \"in\"", "state = \"coming\"", mode).contains("drive 0 is Coming"));
    }
}

#[test]
fn labels_of_one_epoch_agree_and_the_highest_rules() {
    let (world, catalog) = array(2);
    drop(catalog);
    relabel(&world, 1, "weight = 10", "weight = 20");
    assert!(matches!(open(&world, OpenMode::Reader), Err(Error::Corrupt { .. })));
    relabel(&world, 1, "epoch = 1", "epoch = 2");
    let reader = open(&world, OpenMode::Reader).unwrap();
    assert_eq!((reader.epoch(), reader.drives()[0].weight), (2, 20));
    drop(reader);
    drop(open(&world, OpenMode::Writer).unwrap());
    assert_eq!(parse_label(&world.read(0, "label").unwrap()).unwrap().epoch, 2);
    assert_spotless(&world, "updated");
    // The weights of the files that exist are their own.
    assert_eq!(open(&world, OpenMode::Peek).unwrap().record("a").unwrap().weights, [10, 10]);
}

#[test]
fn one_writer_or_many_readers() {
    let (world, writer) = array(2);
    let locked = |mode| match open(&world, mode) {
        Err(Error::Locked { path, .. }) => path.to_str() == Some("/d0"),
        _ => false,
    };
    assert!(locked(OpenMode::Writer) && locked(OpenMode::Reader));
    assert_eq!(open(&world, OpenMode::Peek).unwrap().list(""), ["a", "b"]);
    assert_eq!(writer.lock_handles().len(), 2);
    writer.close().unwrap();
    let readers = [open(&world, OpenMode::Reader).unwrap(), open(&world, OpenMode::Reader).unwrap()];
    assert!(locked(OpenMode::Writer) && !locked(OpenMode::Reader));
    drop(readers);
    assert!(open(&world, OpenMode::Writer).unwrap().is_writer());
    world.put(1, "lock", None);
    let Err(Error::Corrupt { path, advice, .. }) = open(&world, OpenMode::Writer) else {
        panic!("opened without a lock")
    };
    assert!(path.to_str() == Some("/d1/iomill/lock") && advice.contains("check and repair"), "{advice}");
}

/// A process that was killed has its lock until its last I/O has ended. An opening waits for that, and not for ever.
#[test]
fn an_opening_waits_for_a_process_that_has_ended() {
    let (world, catalog) = array(2);
    catalog.close().unwrap();
    for mode in [OpenMode::Reader, OpenMode::Writer] {
        for (lock, directory) in [(30, 0), (0, 30), (5, 5)] {
            (world.inner().ending, world.inner().ending_directories) = (lock, directory);
            assert_eq!(open(&world, mode).unwrap().list(""), ["a", "b"]);
        }
        for (lock, directory) in [(u32::MAX, 0), (0, u32::MAX)] {
            (world.inner().ending, world.inner().ending_directories) = (lock, directory);
            assert!(matches!(open(&world, mode), Err(Error::Locked { holder: None, .. })));
        }
        (world.inner().ending, world.inner().ending_directories) = (0, 0);
    }
}

#[test]
fn init_takes_no_drive_in_use() {
    let (world, catalog) = array(2);
    drop(catalog);
    let create = |drives: &[&str]| {
        let drives: Vec<PathBuf> = drives.iter().map(PathBuf::from).collect();
        Catalog::create(&world.platform(), &drives, &[], None)
    };
    assert!(drive_error(create(&["/d0", "/d1"])).1.contains("already"));
    assert!(drive_error(create(&["/nowhere"])).1.contains("no such directory"));
    // A drive without its label is still not free.
    world.put(1, "label", None);
    assert!(drive_error(create(&["/d1"])).1.contains("holds files"));
    world.inner().disks.push(world::Disk::default());
    world.inner().places.insert("/src".into(), 2);
    world.platform().attach(&PathBuf::from("/src"), true).unwrap();
    world.put(2, "Cargo.toml", Some(b""));
    let (path, why) = drive_error(create(&["/src"]));
    assert!(path == "/src" && why.contains("Cargo.toml"), "{why}");
}

/// In a container the lock of a process that has ended has no holder that shows. Seen to fail when only a holder that
/// is known to end was waited for: a parent could not write after a forked child had read.
#[test]
fn a_lock_without_a_known_holder_is_waited_for() {
    use crate::catalog::store::take_from_ending;
    use crate::sys::holder::Holder;
    let platform = World::new(1).platform();
    let tries = std::cell::Cell::new(0);
    let free_after = |most: u32| {
        let tries = &tries;
        tries.set(0);
        move || {
            tries.set(tries.get() + 1);
            Ok(tries.get() > most)
        }
    };
    assert_eq!(take_from_ending(&*platform, free_after(5), || Holder::Unknown).unwrap(), None);
    assert_eq!(take_from_ending(&*platform, free_after(u32::MAX), || Holder::Unknown).unwrap(), Some(Holder::Unknown));
    assert!(tries.get() < 1000);
    let lives = Holder::Process(7);
    assert_eq!(take_from_ending(&*platform, free_after(5), || lives).unwrap(), Some(lives));
    assert_eq!(tries.get(), 2);
}

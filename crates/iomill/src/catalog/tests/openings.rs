//! Drives and directories that were restored, cloned, swapped or used apart: all are refused by name, by every kind of
//! opening, and nothing is changed. A crash in the middle of an opening is no such fault.

use super::world::{Fault, Loss};
use super::*;
use by_hand::{export, import};

const DISKS: usize = 3;
const MODES: [OpenMode; 3] = [OpenMode::Reader, OpenMode::Peek, OpenMode::Writer];

/// An array with `copies` copies of the log on its first drives, closed.
fn closed(copies: usize) -> World {
    let world = World::new(DISKS);
    let catalog = Catalog::create(&world.platform(), &places(DISKS), &[], Some(copies)).unwrap();
    catalog.create_file("first", &spec(&[0, 1, 2])).unwrap();
    catalog.close().unwrap();
    world
}

/// One use of the array for writing, which makes a file, and ends well or not.
fn used(world: &World, name: &str, closes: bool) {
    let catalog = open(world, OpenMode::Writer).unwrap();
    catalog.create_file(name, &spec(&[0, 1, 2])).unwrap();
    if closes {
        catalog.close().unwrap();
    } else {
        world.crash(Loss::Power);
    }
}

/// Every way to look at the array is refused. Returns what a reader is told.
fn refusal(world: &World, context: &str) -> String {
    let before: Vec<_> = (0..DISKS).map(|disk| world.everything(disk)).collect();
    let mut told = String::new();
    for mode in MODES {
        let error = match open(world, mode) {
            Ok(catalog) => panic!("{context}: {mode:?} opened: {:?}", catalog.list("")),
            Err(error) => error,
        };
        assert!(
            matches!(error, Error::Drive { .. } | Error::DriveMissing { .. } | Error::Corrupt { .. }),
            "{context}, {mode:?}: {error}"
        );
        told = error.to_string();
    }
    assert!(export(&world.platform(), &places(1)).is_err(), "{context}");
    for repair in [false, true] {
        let report = checked(world, repair).unwrap_or_else(|error| panic!("{context}: {error}"));
        let is_error = |problem: &Problem| problem.severity == Severity::Error && !problem.repaired;
        assert!(report.problems.iter().any(is_error), "{context}: {report:?}");
        assert!(report.problems.iter().all(|problem| !problem.advice.contains("check the array")), "{report:?}");
    }
    let after: Vec<_> = (0..DISKS).map(|disk| world.everything(disk)).collect();
    assert!(before == after, "{context}: something was changed");
    told
}

#[test]
fn a_restored_drive_is_refused_by_name() {
    for copies in [1, 2, 3] {
        for closes in [true, false] {
            for disk in 0..DISKS {
                let world = closed(copies);
                let backup = world.fork();
                used(&world, "later", closes);
                world.put_back(disk, None, &backup);
                let context = format!("drive {disk}, {copies} copies, closed {closes}");
                let told = refusal(&world, &context);
                assert!(told.contains(&format!("/d{disk}:")) && told.contains("missed changes"), "{context}: {told}");
                // The other two are restored from the same backup.
                (0..DISKS).for_each(|disk| world.put_back(disk, None, &backup));
                assert_eq!(open(&world, OpenMode::Reader).unwrap().list(""), ["first"], "{context}");
                assert_spotless(&world, &context);
            }
        }
    }
}

/// A snapshot of one drive that was made while the array was open for writing, and put back when it was closed.
#[test]
fn a_copy_from_the_middle_of_an_opening_is_refused() {
    for (copies, disk) in [1, 3].into_iter().flat_map(|copies| (0..DISKS).map(move |disk| (copies, disk))) {
        let world = closed(copies);
        let catalog = open(&world, OpenMode::Writer).unwrap();
        catalog.create_file("before", &spec(&[0, 1, 2])).unwrap();
        let backup = world.fork();
        catalog.create_file("behind", &spec(&[0, 1, 2])).unwrap();
        catalog.close().unwrap();
        world.put_back(disk, None, &backup);
        let context = format!("drive {disk}, {copies} copies");
        let told = refusal(&world, &context);
        assert!(told.contains(&format!("/d{disk}:")) && told.contains("in the middle of opening"), "{context}: {told}");
    }
}

/// The log of all copies is older than what the drives know.
#[test]
fn a_restored_log_is_refused() {
    for (copies, closes) in [(1, true), (1, false), (2, true), (2, false)] {
        let world = closed(copies);
        let backup = world.fork();
        used(&world, "later", closes);
        (0..copies).for_each(|disk| world.put_back(disk, Some("log"), &backup));
        let told = refusal(&world, "log");
        assert!(told.contains("/d0/iomill/log") && told.contains("durable"), "{told}");
    }
}

/// One copy of the log is older, or gone. The drive took part in all, so its log is mended, and a reader says so.
#[test]
fn one_lost_copy_of_the_log_is_told_and_mended() {
    for is_gone in [false, true] {
        for disk in [0, 1] {
            let world = closed(2);
            let backup = world.fork();
            used(&world, "later", true);
            world.put_back(disk, Some("log"), &backup);
            if is_gone {
                world.names(disk, "log").iter().for_each(|name| world.put(disk, &format!("log/{name}"), None));
            }
            for mode in [OpenMode::Reader, OpenMode::Peek] {
                let reader = open(&world, mode).unwrap();
                let notices = reader.notices().all();
                assert_eq!(reader.list(""), ["first", "later"]);
                let names = format!("/d{disk}/iomill/log");
                assert!(notices.iter().any(|notice| notice.contains(&names)), "{disk} {mode:?}: {notices:?}");
            }
            used(&world, "last", true);
            assert_spotless(&world, "mended");
            assert_eq!(open(&world, OpenMode::Reader).unwrap().notices().all(), Vec::<String>::new());
        }
    }
}

/// An older label says nothing wrong of the drive's content.
#[test]
fn an_older_label_is_brought_up() {
    let world = closed(1);
    let old = world.read(1, "label").unwrap();
    world.move_disk("/d2", "/elsewhere");
    used(&world, "later", true);
    assert_ne!(world.read(1, "label").unwrap(), old);
    world.put(1, "label", Some(&old));
    assert_eq!(open(&world, OpenMode::Reader).unwrap().list(""), ["first", "later"]);
    used(&world, "last", true);
    assert_ne!(world.read(1, "label").unwrap(), old);
    assert_spotless(&world, "brought up");
}

#[test]
fn drives_of_two_lives_are_refused() {
    for copies in [1, 2, 3] {
        for (ours, theirs) in [(1, 1), (1, 3), (3, 1)] {
            for (closes, which) in [true, false].into_iter().flat_map(|closes| (1..7).map(move |which| (closes, which)))
            {
                let (world, clone) = (closed(copies), World::new(0));
                *clone.inner() = world.fork().inner().clone();
                // Ids are random, so they differ in the other life.
                clone.inner().ops += 1000;
                clone.platform().random(&mut [0; 800]).unwrap();
                (0..ours).for_each(|at| used(&world, &format!("ours{at}"), closes));
                (0..theirs).for_each(|at| used(&clone, &format!("theirs{at}"), closes));
                let context = format!("{copies} copies, {ours} and {theirs} uses, drives {which:03b}, {closes}");
                (0..DISKS).filter(|disk| which >> disk & 1 == 1).for_each(|disk| world.put_back(disk, None, &clone));
                let told = refusal(&world, &context);
                assert!(told.contains("apart"), "{context}: {told}");
            }
        }
    }
}

/// A drive's content is that of another, except for its label.
#[test]
fn a_drive_cloned_onto_another_is_refused() {
    let world = closed(1);
    used(&world, "later", true);
    let good = world.fork();
    let own = world.read(2, "label").unwrap();
    world.put_back(2, None, &good);
    good.everything(1).iter().for_each(|(path, bytes)| world.put(2, path, Some(bytes)));
    let told = refusal(&world, "with its label");
    assert!(told.contains("drive 2 ") && told.contains("now drive 1 of array"), "{told}");
    world.put(2, "label", Some(&own));
    let told = refusal(&world, "cloned onto another");
    assert!(told.contains("/d2/iomill/opening") && told.contains("not of this drive"), "{told}");
    // The contents of two drives change places, and their labels stay.
    good.everything(2).iter().for_each(|(path, bytes)| world.put(1, path, Some(bytes)));
    world.put(1, "label", good.read(1, "label").as_deref());
    assert!(refusal(&world, "swapped").contains("/d1/iomill/opening"));
}

/// Each opening has a number and an id of its own, on all drives, and groups carry it.
#[test]
fn each_opening_is_durable_on_all_drives_before_a_change() {
    let world = closed(1);
    let mut seen = Vec::new();
    for _ in 0..3 {
        let catalog = open(&world, OpenMode::Writer).unwrap();
        // The power is lost before anything else happens.
        let lost = world.fork();
        lost.crash(Loss::Power);
        let notes: Vec<Vec<u8>> = (0..DISKS).map(|disk| lost.read(disk, "opening").unwrap()).collect();
        let opening = |note: &Vec<u8>| {
            let newest = note.chunks(4096).max_by_key(|block| block[48..56].to_vec()).unwrap();
            newest[56..80].to_vec()
        };
        assert!(notes.iter().all(|note| opening(note) == opening(&notes[0])));
        assert!(!seen.contains(&opening(&notes[0])));
        seen.push(opening(&notes[0]));
        let segment = lost.read(0, "log/0000000000000001.segment").unwrap();
        assert!(segment.windows(24).any(|words| words == seen.last().unwrap().as_slice()));
        catalog.close().unwrap();
    }
}

/// An opening may be interrupted at any operation, several times, whatever of it is lost. That is never taken for a
/// restored drive.
#[test]
fn an_opening_may_crash_anywhere() {
    for (copies, loss) in [1, 3].into_iter().flat_map(|copies| [Loss::Kill, Loss::Power].map(|loss| (copies, loss))) {
        let start = closed(copies);
        for k in (1..).step_by(5) {
            let crashed = start.fork();
            crashed.arm(|at| Fault::Crash { at }, k);
            let opened = open(&crashed, OpenMode::Writer);
            if !crashed.disarm() {
                break;
            }
            crashed.crash(loss);
            drop(opened);
            for j in (1 + k % 29..).step_by(29) {
                let world = crashed.fork();
                world.arm(|at| Fault::Crash { at }, j);
                let opened = open(&world, OpenMode::Writer);
                let struck = world.disarm();
                world.crash(Loss::Mix(k * 100 + j));
                drop(opened);
                let context = format!("{copies} copies, {loss:?}, crash at {k} and {j}");
                for mode in MODES {
                    let catalog = open(&world, mode).unwrap_or_else(|error| panic!("{context}, {mode:?}: {error}"));
                    assert_eq!(catalog.list(""), ["first"], "{context}");
                }
                if !struck {
                    break;
                }
            }
        }
    }
}

/// A close may be interrupted at any operation, and the next opening, too. That is never taken for a copy of before.
#[test]
fn a_close_may_crash_anywhere() {
    for (copies, loss) in [1, 3].into_iter().flat_map(|copies| [Loss::Kill, Loss::Power].map(|loss| (copies, loss))) {
        for k in 1.. {
            let world = closed(copies);
            let catalog = open(&world, OpenMode::Writer).unwrap();
            catalog.create_file("later", &spec(&[0, 1, 2])).unwrap();
            world.arm(|at| Fault::Crash { at }, k);
            let ended = catalog.close();
            if !world.disarm() {
                ended.unwrap();
                break;
            }
            world.crash(loss);
            drop(catalog);
            let context = format!("{copies} copies, {loss:?}, crash at {k}");
            for mode in MODES {
                let catalog = open(&world, mode).unwrap_or_else(|error| panic!("{context}, {mode:?}: {error}"));
                assert_eq!(catalog.list(""), ["first", "later"], "{context}");
            }
        }
    }
}

/// A person takes drives as they are, by a step on each of them.
#[test]
fn removed_notes_are_made_anew_by_a_repair_only() {
    let world = closed(2);
    let backup = world.fork();
    used(&world, "later", true);
    world.put_back(2, None, &backup);
    refusal(&world, "restored");
    for disk in 0..DISKS {
        assert!(refusal(&world, "some notes are left").contains("`iomill/opening`"));
        world.put(disk, "opening", None);
    }
    for mode in MODES {
        assert!(open(&world, mode).unwrap_err().to_string().contains("check and repair the array"));
    }
    assert!(!checked(&world, false).unwrap().is_clean());
    assert!(checked(&world, true).unwrap().is_clean());
    assert_spotless(&world, "taken as it is");
    let number = open(&world, OpenMode::Peek).unwrap().next_number();
    assert!(number > 1 << 32, "numbers that were seen do not come back: {number}");
}

/// New files get no number of a part that is there, whatever became of the catalog.
#[test]
fn numbers_start_above_all_parts() {
    let (world, catalog) = array(2);
    catalog.close().unwrap();
    let text = export(&world.platform(), &places(1)).unwrap();
    let catalog = open(&world, OpenMode::Writer).unwrap();
    let lost = catalog.create_file("lost", &spec(&[0, 1])).unwrap().number;
    catalog.announce_parts(lost).unwrap();
    world.put(1, &part_path(lost), Some(b"precious"));
    let small = catalog.create_file("small", &spec(&[0])).unwrap().number;
    catalog.close().unwrap();
    assert_eq!(import(&world.platform(), &places(1), &text).unwrap(), 2);
    let catalog = open(&world, OpenMode::Writer).unwrap();
    assert!(catalog.create_file("new", &spec(&[0, 1])).unwrap().number > small);
    catalog.close().unwrap();
    assert_eq!(world.read(1, &part_path(lost)).unwrap(), b"precious");
    // A part of a number that was never given.
    world.put(0, &part_path(1 << 40), Some(b"copied"));
    let catalog = open(&world, OpenMode::Writer).unwrap();
    let notices = catalog.notices().all();
    assert!(notices.iter().any(|notice| notice.contains("0000010000000000")), "{notices:?}");
    assert!(catalog.create_file("newer", &spec(&[0, 1])).unwrap().number > 1 << 40);
    catalog.close().unwrap();
    assert_eq!(world.read(0, &part_path(1 << 40)).unwrap(), b"copied");
    let report = checked(&world, false).unwrap();
    assert_eq!(report.problems.iter().filter(|problem| problem.what.contains("no such file")).count(), 2, "{report:?}");
}

/// Two copies are each rotten in another group, and whole together. An import that is cut short anywhere leaves an
/// array that opens.
#[test]
fn an_import_keeps_a_log_that_two_copies_have_together() {
    let world = World::new(DISKS);
    let catalog = Catalog::create(&world.platform(), &places(DISKS), &[], Some(2)).unwrap();
    (0..8).for_each(|number| drop(catalog.create_file(&format!("file{number}"), &spec(&[0])).unwrap()));
    catalog.close().unwrap();
    let text = export(&world.platform(), &places(1)).unwrap();
    let path = world.names(0, "log").into_iter().find(|name| name.ends_with(".segment")).unwrap();
    for (disk, block) in [(0, 3), (1, 5)] {
        let mut bytes = world.read(disk, &format!("log/{path}")).unwrap();
        bytes[block * 4096 + 50] ^= 1;
        world.put(disk, &format!("log/{path}"), Some(&bytes));
    }
    let (mut at, mut struck) = (0, true);
    while struck {
        let world = world.fork();
        world.arm(|at| world::Fault::Crash { at }, at);
        let imported = import(&world.platform(), &places(1), &text);
        struck = world.disarm();
        world.crash(Loss::Power);
        let opened = open(&world, OpenMode::Writer).unwrap_or_else(|error| panic!("{at}, {imported:?}: {error}"));
        assert_eq!(opened.list("").len(), 8, "{at}, {imported:?}");
        at += 1;
    }
    assert!(at > 20);
}

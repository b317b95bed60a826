//! Damage of every kind: what opening does about it, what `check` reports and repairs, and what it never touches.

use super::*;

/// Problems as `path: what`, sorted.
fn problems(report: &Report) -> Vec<String> {
    let line = |problem: &Problem| format!("{}: {}", problem.path.display(), problem.what);
    let mut lines: Vec<String> = report.problems.iter().map(line).collect();
    lines.sort();
    lines
}

fn closed(disks: usize) -> World {
    let (world, catalog) = array(disks);
    catalog.close().unwrap();
    world
}

const SEGMENT: &str = "log/0000000000000001.segment";

/// One copy of the log is lost or damaged, in any way. A reader does not care, a check says it, and a writer or a
/// repair puts it right.
#[test]
fn a_bad_copy_of_the_log_is_put_right() {
    let good = closed(3).read(1, SEGMENT).unwrap();
    let rot = |at: usize| Some([&good[..at], &[good[at] ^ 1], &good[at + 1..]].concat());
    for (at, bytes) in [None, Some(Vec::new()), rot(30), rot(4096 + 66), rot(3 * 4096 + 66)].into_iter().enumerate() {
        let world = closed(3);
        world.put(1, SEGMENT, bytes.as_deref());
        let report = checked(&world, false).unwrap();
        assert_eq!(report.problems.len(), 1, "{at}: {report:?}");
        let problem = &report.problems[0];
        assert!(problem.severity == Severity::Warning && !problem.repaired, "{report:?}");
        assert!(problem.path.ends_with("d1/iomill/log") && problem.advice.contains("repair the array"), "{report:?}");
        let reader = open(&world, OpenMode::Reader).unwrap();
        assert_eq!(reader.list(""), ["a", "b"], "{at}");
        drop(reader);
        assert_eq!(world.read(1, SEGMENT), bytes, "{at}: a reader writes nothing");
        if at % 2 == 0 {
            let writer = open(&world, OpenMode::Writer).unwrap();
            assert!(
                writer.notices().all().iter().any(|notice| notice.contains("put right")),
                "{:?}",
                writer.notices().all()
            );
            writer.close().unwrap();
        } else {
            assert!(checked(&world, true).unwrap().is_clean(), "{at}");
        }
        assert_spotless(&world, "after a writer");
    }
}

/// A repair in which an operation fails says of no copy that it was repaired, if the copy was left behind.
#[test]
fn a_copy_that_a_repair_leaves_behind_is_no_repaired_one() {
    let rotten = closed(3);
    let mut segment = rotten.read(1, SEGMENT).unwrap();
    segment[2 * 4096 + 66] ^= 1;
    rotten.put(1, SEGMENT, Some(&segment));
    let mut left = 0;
    for k in 1.. {
        let world = rotten.fork();
        world.arm(|at| world::Fault::Once { at, done: false }, k);
        let repaired = checked(&world, true);
        if !world.disarm() {
            assert!(repaired.unwrap().is_clean());
            break;
        }
        let Ok(report) = repaired else { continue };
        let after = checked(&world, false).unwrap();
        assert!(after.is_clean() || !report.is_clean(), "operation {k}: {report:?} and then {after:?}");
        left += u32::from(report.notices.iter().any(|notice| notice.contains("left behind")));
    }
    assert!(left > 5, "{left}");
}

#[test]
fn a_cut_segment_is_found_and_repaired() {
    let world = closed(3);
    let segment = world.read(1, SEGMENT).unwrap();
    world.put(1, SEGMENT, Some(&segment[..segment.len() - 4096]));
    let report = checked(&world, false).unwrap();
    assert!(report.problems.len() == 1 && report.problems[0].what.contains("shorter"), "{report:?}");
    assert!(checked(&world, true).unwrap().is_clean());
    assert_spotless(&world, "made anew");
    assert_eq!(world.read(1, SEGMENT).unwrap().len(), segment.len());
}

#[test]
fn without_a_good_copy_of_the_log_nothing_is_changed() {
    let world = closed(2);
    let mut rotten = world.read(0, SEGMENT).unwrap();
    rotten[2 * 4096 + 66] ^= 1;
    for disk in 0..2 {
        world.put(disk, SEGMENT, Some(&rotten));
    }
    for mode in [OpenMode::Writer, OpenMode::Reader, OpenMode::Peek] {
        assert!(matches!(open(&world, mode), Err(Error::Corrupt { .. })));
    }
    for repair in [false, true] {
        let report = checked(&world, repair).unwrap();
        assert!(!report.is_clean() && report.problems[0].severity == Severity::Error, "{report:?}");
        assert!(report.problems.iter().all(|problem| !problem.what.contains("check the array") && !problem.advice.contains("check the array")), "{report:?}");
    }
    for disk in 0..2 {
        assert_eq!(world.read(disk, SEGMENT).unwrap(), rotten);
    }
}

#[test]
fn a_label_mended_by_hand_is_signed_by_a_repair_only() {
    let world = closed(3);
    let (own, template) = {
        let own = parse_label(&world.read(2, "label").unwrap()).unwrap().drive;
        (own, String::from_utf8(world.read(0, "label").unwrap()).unwrap())
    };
    world.put(2, "label", Some(b"rubbish\n"));
    let report = checked(&world, true).unwrap();
    assert_eq!(report.problems.len(), 1);
    assert!(report.problems[0].advice.contains("# checksum none"), "{report:?}");
    let problem = &report.problems[0];
    let whole = format!("{}; {}", problem.what, problem.advice);
    assert!(!whole.contains("check the array"), "a check does not advise a check: {report:?}");
    let Err(error) = open(&world, OpenMode::Writer) else { panic!("opened") };
    assert!(error.to_string().contains("check the array, which tells"), "{error}");
    let first = parse_label(template.as_bytes()).unwrap().drive;
    let mended =
        template.replacen(&format!("drive = \"{first}\"\nindex = 0"), &format!("drive = \"{own}\"\nindex = 2"), 1);
    let mended = format!("{}# checksum none\n", &mended[..mended.rfind("# checksum").unwrap()]);
    world.put(2, "label", Some(mended.as_bytes()));
    assert!(matches!(open(&world, OpenMode::Writer), Err(Error::Corrupt { .. })));
    let report = checked(&world, true).unwrap();
    assert!(report.is_clean() && report.problems.len() == 1, "{report:?}");
    assert_spotless(&world, "signed");
    assert_eq!(open(&world, OpenMode::Writer).unwrap().list(""), ["a", "b"]);
}

#[test]
fn a_missing_lock_is_made_anew_by_a_repair_only() {
    let world = closed(2);
    world.put(1, "lock", None);
    assert!(!checked(&world, false).unwrap().is_clean());
    assert!(checked(&world, true).unwrap().is_clean());
    assert_spotless(&world, "with a lock");
    let writer = open(&world, OpenMode::Writer).unwrap();
    assert!(matches!(checked(&world, false), Err(Error::Locked { .. })));
    assert!(matches!(checked(&world, true), Err(Error::Locked { .. })));
    drop(writer);
}

#[test]
fn parts_are_looked_at_and_never_removed() {
    let world = closed(2);
    let number = open(&world, OpenMode::Peek).unwrap().record("a").unwrap().number;
    world.put(0, &part_path(number), Some(&[1; 4999]));
    world.put(1, &part_path(number), None);
    let orphan = part_path(number + 1000);
    world.put(1, &orphan, Some(b"precious"));
    world.put(0, "parts/readme", Some(b""));
    world.put(0, "notes", Some(b"mine"));
    for repair in [false, true] {
        let report = checked(&world, repair).unwrap();
        let lines = problems(&report);
        assert_eq!(lines.len(), 5, "{lines:#?}");
        assert_eq!(lines[0], "/d0/iomill/notes: not a file of iomill");
        assert!(lines[1].contains("4999 bytes and should have at least 5000"), "{lines:#?}");
        assert!(lines[2].starts_with("/d0/iomill/parts/readme"), "{lines:#?}");
        assert!(lines[3].contains("missing; 5000 bytes"), "{lines:#?}");
        assert!(lines[4].contains("8 bytes, but the log has no such file"), "{lines:#?}");
        assert!(!report.is_clean());
    }
    assert_eq!(world.read(0, "notes").unwrap(), b"mine");
    assert_eq!(world.read(1, &orphan).unwrap(), b"precious");
    drop(open(&world, OpenMode::Writer).unwrap());
    assert_eq!(world.read(1, &orphan).unwrap(), b"precious");
}

#[test]
fn what_interrupted_changes_left_is_cleared_away() {
    let world = closed(2);
    world.put(0, "tmp-1", Some(b"x"));
    world.put(1, "log/tmp-2", Some(b"x"));
    {
        // The process ends between the deletion and the removal.
        let writer = open(&world, OpenMode::Writer).unwrap();
        let number = writer.delete("a").unwrap();
        assert!(world.read(1, &part_path(number)).is_some());
        world.put(0, "tmp-1", Some(b"x"));
        world.crash(world::Loss::Power);
    }
    let report = checked(&world, false).unwrap();
    assert!(report.problems.len() >= 2, "{report:?}");
    assert!(report.problems.iter().all(|problem| problem.severity == Severity::Note), "{report:?}");
    assert!(checked(&world, true).unwrap().is_clean());
    assert_spotless(&world, "cleared");
    assert!(world.names(0, "").iter().all(|name| name != "tmp-1"));
    assert_eq!((world.names(0, "parts").len(), world.names(1, "parts").len()), (1, 1));
    // A part without bytes need not be there.
    let catalog = open(&world, OpenMode::Writer).unwrap();
    let number = catalog.create_file("empty", &spec(&[0, 1])).unwrap().number;
    catalog.announce_parts(number).unwrap();
    catalog.close().unwrap();
    assert_spotless(&world, "without parts");
}

#[test]
fn a_failing_drive_does_not_end_a_check() {
    let world = closed(2);
    let clean = {
        let before = world.inner().ops;
        assert_spotless(&world, "whole");
        world.inner().ops - before
    };
    let mut told = 0;
    for k in 1..=clean {
        let world = world.fork();
        world.arm(|at| world::Fault::Once { at, done: false }, k);
        match checked(&world, false) {
            Ok(report) => {
                // A drive that cannot be looked at in one place is found in another, and what cannot be read of the log
                // is read again.
                told += u32::from(!report.is_clean());
            }
            // Without locks and lists of files there is nothing to check.
            // Without its note of openings a drive is not believed.
            Err(Error::Io { path, .. }) if path.ends_with("opening") => {}
            Err(Error::Io { path, .. }) => assert!(!path.to_string_lossy().contains("/parts/"), "{}", path.display()),
            Err(other) => panic!("operation {k}: {other}"),
        }
    }
    assert!(told > 8, "{told} of {clean}");
}

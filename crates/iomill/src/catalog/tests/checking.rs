//! Damage of every kind: what opening does about it, what `check` reports and repairs, and what it never touches.

use super::*;

/// Problems as `path: what`, sorted.
fn problems(report: &Report) -> Vec<String> {
    let line = |problem: &Problem| format!("{}: {}", problem.path.display(), problem.what);
    let mut lines: Vec<String> = report.problems.iter().map(line).collect();
    lines.sort();
    lines
}

fn id_of(world: &World, name: &str) -> Id {
    open(world, OpenMode::Peek).unwrap().record(name).unwrap().id
}

fn closed(disks: usize) -> World {
    let (world, catalog) = array(disks);
    drop(catalog);
    world
}

/// A version of a record with something changed, signed or not.
fn edited(world: &World, disk: usize, id: &Id, edit: impl Fn(&str) -> String, sign: bool) -> Vec<u8> {
    let text = String::from_utf8(world.read(disk, &record_path(id)).unwrap()).unwrap();
    let body = edit(&text[..text.rfind("# checksum").unwrap()]);
    let checksum =
        if sign { format!("xxh3:{:016x}", xxhash_rust::xxh3::xxh3_64(body.as_bytes())) } else { "none".to_owned() };
    format!("{body}# checksum {checksum}\n").into_bytes()
}

#[test]
fn bad_copies_of_records_are_put_right() {
    for bytes in [None, Some(&b""[..]), Some(b"rubbish")] {
        let world = closed(3);
        let id = id_of(&world, "a");
        let good = world.read(0, &record_path(&id)).unwrap();
        world.put(1, &record_path(&id), bytes);
        let report = checked(&world, false).unwrap();
        assert_eq!(report.problems.len(), 1, "{report:?}");
        assert_eq!(report.problems[0].severity, Severity::Warning);
        assert!(problems(&report)[0].starts_with(&format!("/d1/iomill/files/{id}.record")), "{report:?}");
        // A reader works all the same, and changes nothing.
        let reader = open(&world, OpenMode::Reader).unwrap();
        assert_eq!(reader.list(""), ["a", "b"]);
        assert_eq!(reader.notices().len(), 1);
        assert_eq!(world.read(1, &record_path(&id)).as_deref(), bytes);
        drop(reader);
        let writer = open(&world, OpenMode::Writer).unwrap();
        assert!(writer.notices()[0].contains("put right"), "{:?}", writer.notices());
        assert_eq!(world.read(1, &record_path(&id)).unwrap(), good);
        drop(writer);
        assert_spotless(&world, "after a writer");
    }
}

#[test]
fn copies_that_differ_or_all_fail_are_errors() {
    let world = closed(2);
    let id = id_of(&world, "a");
    let other = edited(&world, 1, &id, |text| text.replace("\"a\"", "\"z\""), true);
    world.put(1, &record_path(&id), Some(&other));
    let Err(Error::Corrupt { path, why }) = open(&world, OpenMode::Writer) else { panic!("opened") };
    let message = format!("{} {why}", path.display());
    assert!(message.contains("/d1/") && message.contains("drive 0") && message.contains("generation 2"), "{message}");
    for disk in 0..2 {
        world.put(disk, &record_path(&id), Some(b"rubbish\n"));
    }
    for mode in [OpenMode::Writer, OpenMode::Reader, OpenMode::Peek] {
        assert!(matches!(open(&world, mode), Err(Error::Corrupt { path, .. }) if path.ends_with(record_path(&id))));
    }
    // A repair that cannot repair everything changes nothing.
    world.put(0, "tmp-1", Some(b"x"));
    let report = checked(&world, true).unwrap();
    assert!(report.problems.iter().all(|problem| !problem.repaired) && !report.is_clean(), "{report:?}");
    assert!(report.problems.iter().all(|problem| !problem.advice.contains("iomill check")), "{report:?}");
    assert!(world.read(0, "tmp-1").is_some());
    assert_eq!(world.read(0, &record_path(&id)).unwrap(), b"rubbish\n");
}

#[test]
fn a_record_mended_by_hand_is_signed_by_a_repair_only() {
    let world = closed(2);
    let id = id_of(&world, "a");
    let raise = |text: &str| {
        format!("# mended\n{}", text.replace("generation = 2", "generation = 3").replace("\"a\"", "\"z\""))
    };
    let mended = edited(&world, 0, &id, raise, false);
    world.put(1, &record_path(&id), Some(&mended));
    world.put(0, &record_path(&id), Some(b"rubbish\n"));
    assert!(matches!(open(&world, OpenMode::Writer), Err(Error::Corrupt { .. })));
    assert!(!checked(&world, false).unwrap().is_clean());
    let report = checked(&world, true).unwrap();
    assert!(report.is_clean() && report.problems.len() == 2, "{report:?}");
    assert_eq!(open(&world, OpenMode::Writer).unwrap().list(""), ["b", "z"]);
    assert_eq!(world.read(0, &record_path(&id)), world.read(1, &record_path(&id)));
    assert_spotless(&world, "repaired");
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
    assert!(!report.problems[0].what.contains("iomill check"), "a check does not advise a check: {report:?}");
    let Err(error) = open(&world, OpenMode::Writer) else { panic!("opened") };
    assert!(error.to_string().contains("`iomill check` tells"), "{error}");
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
fn lengths_are_brought_up() {
    let world = closed(3);
    let id = id_of(&world, "a");
    let path = length_path(&id);
    let good = world.read(0, &path).unwrap();
    for (disk, bytes) in [(0, None), (1, Some(&b"short"[..]))] {
        world.put(disk, &path, bytes);
    }
    let report = checked(&world, false).unwrap();
    assert_eq!(report.problems.len(), 2, "{report:?}");
    let reader = open(&world, OpenMode::Reader).unwrap();
    assert_eq!(reader.open_length(&reader.record("a").unwrap()).unwrap().current(), 15_000);
    drop(reader);
    assert!(checked(&world, true).unwrap().is_clean());
    assert_spotless(&world, "repaired");
    for disk in 0..3 {
        world.put(disk, &path, Some(&vec![0; 8192]));
    }
    let writer = open(&world, OpenMode::Writer).unwrap();
    assert!(matches!(writer.open_length(&writer.record("a").unwrap()), Err(Error::Corrupt { .. })));
    drop(writer);
    let report = checked(&world, true).unwrap();
    assert!(!report.is_clean() && report.files == 2, "{report:?}");
    // Two copies of one sequence number must not differ.
    world.put(0, &path, Some(&good));
    let mut other = good.clone();
    other[40] ^= 1;
    let checksum = xxhash_rust::xxh3::xxh3_64(&other[..56]);
    other[56..64].copy_from_slice(&checksum.to_le_bytes());
    world.put(1, &path, Some(&other));
    let reader = open(&world, OpenMode::Reader).unwrap();
    assert!(matches!(reader.open_length(&reader.record("a").unwrap()), Err(Error::Corrupt { .. })));
}

#[test]
fn parts_are_looked_at_and_never_removed() {
    let world = closed(2);
    let id = id_of(&world, "a");
    world.put(0, &part_path(&id), Some(&[1; 4999]));
    world.put(1, &part_path(&id), None);
    let orphan = Id([1; 16]);
    world.put(1, &part_path(&orphan), Some(b"precious"));
    world.put(1, &length_path(&orphan), Some(b""));
    world.put(0, "parts/readme", Some(b""));
    world.put(0, "notes", Some(b"mine"));
    for repair in [false, true] {
        let report = checked(&world, repair).unwrap();
        let lines = problems(&report);
        assert_eq!(lines.len(), 5, "{lines:#?}");
        assert_eq!(lines[0], "/d0/iomill/notes: not a file of iomill");
        assert!(lines[1].contains("4999 bytes and should have at least 5000"), "{lines:#?}");
        assert!(lines[2].starts_with("/d0/iomill/parts/readme"), "{lines:#?}");
        assert!(lines[3].contains("8 bytes, but no drive has a record"), "{lines:#?}");
        assert!(lines[4].contains("missing; 5000 bytes"), "{lines:#?}");
        assert!(!report.is_clean());
    }
    assert_eq!(world.read(0, "notes").unwrap(), b"mine");
    assert_eq!(world.read(1, &part_path(&orphan)).unwrap(), b"precious");
    assert_eq!(open(&world, OpenMode::Writer).unwrap().notices().len(), 3);
    assert_eq!(world.read(1, &part_path(&orphan)).unwrap(), b"precious");
}

#[test]
fn what_interrupted_changes_left_is_cleared_away() {
    let world = closed(2);
    world.put(0, "tmp-1", Some(b"x"));
    world.put(1, "files/tmp-2", Some(b"x"));
    let orphan = Id([1; 16]);
    world.put(1, &part_path(&orphan), Some(b""));
    world.put(0, &length_path(&orphan), Some(b"whatever"));
    world.put(0, &length_path(&Id([2; 16])), Some(b""));
    let report = checked(&world, false).unwrap();
    assert_eq!(report.problems.len(), 4, "{report:?}");
    assert!(report.problems.iter().all(|problem| problem.severity == Severity::Note));
    assert!(checked(&world, true).unwrap().is_clean());
    assert_spotless(&world, "cleared");
    assert!(world.names(0, "").iter().all(|name| name != "tmp-1"));
    // A part without written bytes can be made again.
    let id = open(&world, OpenMode::Writer).unwrap().create_file("empty", &spec(&[0, 1])).unwrap().id;
    world.put(0, &part_path(&id), None);
    assert!(!checked(&world, false).unwrap().is_clean());
    assert!(checked(&world, true).unwrap().is_clean());
    assert_spotless(&world, "made anew");
}

#[test]
fn two_files_of_one_name_are_reported() {
    let world = closed(2);
    let id = id_of(&world, "a");
    let twin = edited(&world, 0, &id, |text| text.replace("name = \"a\"", "name = \"b\"").replace("= 2", "= 3"), true);
    world.put(0, &record_path(&id), Some(&twin));
    let Err(Error::Corrupt { why, .. }) = open(&world, OpenMode::Peek) else { panic!("opened") };
    assert!(why.contains("second file is named \"b\""), "{why}");
    assert!(!checked(&world, true).unwrap().is_clean());
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
                // A drive that cannot be looked at in one place is found in another.
                assert!(!report.is_clean() || k < 10, "operation {k}: {report:?}");
                told += 1;
            }
            // Without locks and lists of files there is nothing to check.
            Err(Error::Io { path, .. }) => assert!(!path.to_string_lossy().contains("/parts/"), "{}", path.display()),
            Err(other) => panic!("operation {k}: {other}"),
        }
    }
    assert!(told > 20, "{told} of {clean}");
}

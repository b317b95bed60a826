//! Damaged and missing drives: errors name them, and no read returns wrong bytes.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;

use crate::common::{Site, bytes, is_root};

#[test]
fn places_that_are_no_drives() {
    let site = Site::new(2);
    site.run_bare(["-a", "nowhere", "ls"]).failed(1, &["iomill: ls: ", "nowhere"]);
    fs::create_dir(site.path("empty")).unwrap();
    site.run_bare(["-a", "empty", "ls"]).failed(1, &["empty", "no array has a drive here", "iomill init"]);
    site.file("plain", b"");
    site.run_bare(["-a", "plain", "ls"]).failed(1, &["plain", "it is no directory"]);
    // Seen to fail: a directory with the program in it was said to be no directory.
    site.file("empty/iomill", b"program");
    site.run_bare(["-a", "empty", "ls"]).failed(1, &["or `iomill` in it is none"]);
    site.run_bare(["init", "empty"]).failed(1, &["or `iomill` in it is none"]);
}

/// A program that makes arrays where there are none must tell these apart.
#[test]
fn each_thing_that_can_be_missing_has_its_kind() {
    let site = Site::new(2);
    fs::create_dir(site.path("empty")).unwrap();
    fs::create_dir_all(site.path("half/iomill")).unwrap();
    site.file("plain", b"");
    fs::create_dir_all(site.path("deep/er")).unwrap();
    fs::rename(site.drive(1), site.path("deep/er/away")).unwrap();
    let kinds = [
        ("nowhere", "no_directory"),
        ("empty", "no_array"),
        ("half", "no_array"),
        ("plain", "drive"),
        ("ssd0", "drive_missing"),
    ];
    for (place, kind) in kinds {
        for command in [vec!["ls"], vec!["info"], vec!["put", "plain"], vec!["get", "a"]] {
            let ended = site.run_bare([&["-a", place, "--json"], command.as_slice()].concat());
            assert_eq!(ended.code, 1, "{place} {command:?}");
            let said: serde_json::Value = serde_json::from_str(&ended.err).unwrap();
            assert_eq!(said["error"]["kind"], kind, "{place} {command:?}: {said}");
        }
    }
    let said: serde_json::Value =
        serde_json::from_str(&site.run_bare(["init", "nowhere", "--json"]).failed(1, &[]).err).unwrap();
    assert_eq!(said["error"]["kind"], "no_directory");
}

/// In a container the drives often have other paths. Seen to fail when each such label was a problem.
#[test]
fn a_drive_in_another_place_is_no_problem() {
    let site = Site::new(2);
    site.feed(["put", "-", "a"], b"x").good();
    let moved = site.path("moved");
    fs::create_dir(&moved).unwrap();
    (0..2).for_each(|drive| fs::rename(site.drive(drive), moved.join(format!("ssd{drive}"))).unwrap());
    let check = site.run_bare(["-a", "moved/ssd0", "check"]).good();
    assert!(check.err.contains("note: the drives are in other places"), "{}", check.err);
    assert_eq!(check.text(), "2 drives, 1 file, 1 B: all is well\n");
    let check = site.run_bare(["-a", "moved/ssd0", "-q", "check"]).good();
    assert_eq!((check.text(), check.err.as_str()), ("2 drives, 1 file, 1 B: all is well\n", ""));
    let check = site.run_bare(["-a", "moved/ssd0", "check", "--json"]).good().json();
    assert_eq!((&check["clean"], check["notices"].as_array().unwrap().len()), (&true.into(), 1), "{check}");
    site.run_bare(["-a", "moved/ssd0", "check", "--repair"]).good();
    assert_eq!(site.run_bare(["-a", "moved/ssd0", "check"]).good().err, "");
}

/// A label that was left behind is a note with an advice, which `-q` leaves out. No line ends in the middle.
#[test]
fn lines_of_check_are_whole_and_quiet_ones_have_no_notes() {
    let site = Site::new(2);
    let old = fs::read(site.drive(1).join("iomill/label")).unwrap();
    let moved = site.path("moved");
    fs::create_dir(&moved).unwrap();
    (0..2).for_each(|drive| fs::rename(site.drive(drive), moved.join(format!("ssd{drive}"))).unwrap());
    site.run_bare(["-a", "moved/ssd0", "check", "--repair"]).good();
    fs::write(moved.join("ssd1/iomill/label"), old).unwrap();
    let check = site.run_bare(["-a", "moved/ssd0", "check"]).failed(1, &["1 problem found"]);
    let line = check.text().lines().next().unwrap();
    assert!(line.starts_with("note: ") && line.contains(": repair the array"), "{line}");
    assert!(check.text().lines().all(|line| !line.trim_end().ends_with(':')), "{}", check.text());
    let quiet = site.run_bare(["-a", "moved/ssd0", "-q", "check"]).failed(1, &["1 problem found"]);
    assert!(!quiet.text().contains("note: "), "{}", quiet.text());
}

#[test]
fn a_missing_drive_is_named() {
    let site = Site::new(3);
    site.feed(["put", "-", "a"], b"x").good();
    fs::rename(site.drive(1), site.path("away")).unwrap();
    // The search looks at siblings too, so the drive moves deeper.
    fs::create_dir_all(site.path("deep/er")).unwrap();
    fs::rename(site.path("away"), site.path("deep/er/away")).unwrap();
    for arguments in [vec!["ls"], vec!["get", "a", "-"], vec!["put", "-", "b"]] {
        site.run(arguments).failed(1, &["drive 1", "ssd1"]);
    }
    // `-a` names its new place.
    site.run(["ls", "-a", "ssd0", "-a", "deep/er/away"]).good();
}

#[test]
fn a_doubled_or_foreign_drive_is_named() {
    let site = Site::new(2);
    copy(&site.drive(1), &site.path("copy"));
    site.run(["ls", "-a", "ssd0", "-a", "ssd1", "-a", "copy"]).failed(1, &["copy", "ssd1"]);
    fs::create_dir(site.path("other")).unwrap();
    site.run_bare(["init", "other"]).good();
    site.run(["ls", "-a", "ssd0", "-a", "other"]).failed(1, &["other", "belongs to array"]);
    fs::remove_dir_all(site.path("copy")).unwrap();
    fs::remove_dir_all(site.drive(1)).unwrap();
    fs::rename(site.path("other"), site.drive(1)).unwrap();
    site.run(["ls"]).failed(1, &["ssd1"]);
}

#[test]
fn a_label_of_a_later_version_is_not_touched() {
    let site = Site::new(2);
    let label = site.drive(1).join("iomill/label");
    let text = fs::read_to_string(&label).unwrap();
    let later = text.replacen("format = 2", "format = 99", 1);
    assert_ne!(text, later);
    let body = later[..later.trim_end().rfind('\n').unwrap() + 1].to_owned();
    let checksum = twox_hash::XxHash3_64::oneshot(body.as_bytes());
    fs::write(&label, format!("{body}# checksum xxh3:{checksum:016x}\n")).unwrap();
    let before = fs::read(&label).unwrap();
    for arguments in [vec!["ls"], vec!["check"], vec!["check", "--repair"], vec!["put", "-", "a"]] {
        let ended = site.run(&arguments);
        assert_eq!(ended.code, 1, "{arguments:?} {}", ended.err);
        let said = format!("{}{}", ended.text(), ended.err);
        eprint!("{said}");
        assert!(said.contains("ssd1") && said.contains("99"), "{arguments:?}: {said}");
    }
    assert_eq!(fs::read(&label).unwrap(), before);
}

#[test]
fn cut_flipped_and_emptied_labels_are_named() {
    for damage in DAMAGE {
        let site = Site::new(2);
        site.feed(["put", "-", "a"], b"x").good();
        let label = site.drive(1).join("iomill/label");
        damage(&label);
        site.run(["ls"]).failed(1, &["ssd1/iomill/label", "iomill check"]);
        let check = site.run(["check"]).failed(1, &[]);
        assert!(check.text().contains("ssd1/iomill/label"), "{}", check.text());
    }
}

#[test]
fn a_damaged_copy_of_the_log_is_mended_from_the_others() {
    for damage in LOG_DAMAGE {
        let site = Site::new(2);
        site.feed(["put", "-", "a"], b"data").good();
        let segment = site.segment(1);
        damage(&segment);
        site.run(["check"]).failed(1, &["check --repair"]);
        let repaired = site.run(["check", "--repair"]).good();
        assert!(repaired.text().contains("ssd1/iomill/log"), "{}", repaired.text());
        site.run(["check"]).good();
        assert!(fs::read(&segment).unwrap() == fs::read(site.segment(0)).unwrap());
        assert_eq!(site.content("a"), b"data");
    }
}

#[test]
fn a_log_without_a_good_copy_is_named() {
    for damage in LOG_DAMAGE {
        let site = Site::new(2);
        site.feed(["put", "-", "a"], b"data").good();
        (0..2).for_each(|drive| damage(&site.segment(drive)));
        for arguments in [vec!["ls"], vec!["get", "a", "-"], vec!["put", "-", "b"]] {
            site.run(arguments).failed(1, &["iomill/log/"]);
        }
        let check = site.run(["check", "--repair"]).failed(1, &[]);
        assert!(check.text().contains("iomill/log/"), "{}", check.text());
    }
}

#[test]
fn a_cut_part_never_gives_wrong_bytes() {
    let site = Site::new(3);
    site.feed(["put", "-", "a"], &bytes(1_000_000)).good();
    site.feed(["put", "-", "b"], &bytes(1_000)).good();
    let stat = site.stat("a");
    let part = stat["parts"][1]["path"].as_str().unwrap();
    for len in [65_536 * 4, 1, 0] {
        fs::File::options().write(true).open(part).unwrap().set_len(len).unwrap();
        let ended = site.run(["get", "a", "dest"]).failed(1, &[part, "iomill check"]);
        assert!(ended.out.is_empty() && !site.path("dest").exists());
        site.run(["get", "a", "-"]).failed(1, &[part]);
        let check = site.run(["check"]).failed(1, &[]);
        assert!(check.text().contains(part), "{}", check.text());
    }
    fs::remove_file(part).unwrap();
    site.run(["get", "a", "-"]).failed(1, &[part]);
    assert!(site.content("b") == bytes(1_000));
}

#[test]
fn symbolic_links_inside_a_drive_are_not_followed() {
    let site = Site::new(2);
    site.feed(["put", "-", "a"], &bytes(100_000)).good();
    let part = site.stat("a")["parts"][1]["path"].as_str().unwrap().to_owned();
    fs::rename(&part, site.path("elsewhere")).unwrap();
    std::os::unix::fs::symlink(site.path("elsewhere"), &part).unwrap();
    site.run(["get", "a", "-"]).failed(1, &[&part, "ymbolic link"]);
}

#[test]
fn a_directory_that_refuses_writes() {
    if is_root() {
        println!("skipped: root writes to read-only directories all the same");
        return;
    }
    let site = Site::new(2);
    site.feed(["put", "-", "a"], b"data").good();
    let directory = site.drive(1).join("iomill/parts");
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o500)).unwrap();
    // A small file would share a part that is there already.
    site.feed(["put", "-", "b"], &bytes(1_000_000)).failed(1, &["ssd1", "Permission denied", "owner and mode"]);
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o700)).unwrap();
    assert_eq!(site.names(), ["a"]);
}

#[test]
fn check_is_content_with_a_good_array() {
    let site = Site::new(3);
    site.feed(["put", "-", "a"], &bytes(1_000_000)).good();
    let check = site.run(["check"]).good();
    assert!(check.text().contains("3 drives") && check.text().contains("1 file"), "{}", check.text());
    let check = site.run(["check", "--repair", "--json"]).good().json();
    assert_eq!((&check["clean"], &check["files"], &check["bytes"]), (&true.into(), &1.into(), &1_000_000.into()));
    fs::write(site.drive(2).join("iomill/parts/stranger"), "x").unwrap();
    let check = site.run(["check", "--json"]).failed(1, &["unsound"]).json();
    assert_eq!(check["notices"], serde_json::json!([]));
    let problem = &check["problems"][0];
    assert_eq!((&problem["severity"], &problem["repaired"]), (&"warning".into(), &false.into()));
    assert!(problem["path"].as_str().unwrap().ends_with("ssd2/iomill/parts/stranger"), "{problem}");
}

/// Flips a bit of the header or of the first group, or empties the segment.
const LOG_DAMAGE: [fn(&Path); 3] =
    [|path| flip(path, 20), |path| flip(path, 4096 + 30), |path| fs::write(path, b"").unwrap()];

fn flip(path: &Path, at: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at] ^= 1;
    fs::write(path, bytes).unwrap();
}

/// Cuts the file short, flips one bit, or empties the file.
const DAMAGE: [fn(&Path); 3] = [
    |path| {
        let bytes = fs::read(path).unwrap();
        fs::write(path, &bytes[..bytes.len() / 2]).unwrap();
    },
    |path| {
        let mut bytes = fs::read(path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(path, bytes).unwrap();
    },
    |path| fs::write(path, b"").unwrap(),
];

fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// `check --data` finds latent damage. A rotten page is named, and a file without checksums is only read.
#[test]
fn damaged_pages_are_found() {
    let site = Site::new(2);
    let content = bytes(1 << 20);
    site.feed(["put", "--checksums", "-", "sums"], &content).good();
    site.feed(["put", "-", "without"], &content).good();
    assert_eq!(site.stat("sums")["checksums"], true);
    let said = site.run(["check", "--data"]).good();
    assert!(said.text().contains("2 files read, 2 MiB") && said.text().contains("no damage"), "{}", said.text());
    for name in ["sums", "without"] {
        let part = site.stat(name)["parts"][1]["path"].as_str().unwrap().to_owned();
        let part = File::options().write(true).open(part).unwrap();
        part.write_all_at(&[1, 2, 3], 4096 + 50).unwrap();
    }
    let found = site.run(["check", "--data"]).failed(1, &["pages are damaged"]);
    assert!(found.text().contains("page 17 of \"sums\"") && !found.text().contains("\"without\""), "{}", found.text());
    let data = site.run(["check", "--data", "--json"]).failed(1, &["unsound"]).json()["data"].clone();
    let told = ["files", "bytes", "unproved_bytes", "damaged"].map(|key| data[key].as_u64().unwrap());
    assert_eq!(told, [2, 2 << 20, 1 << 20, 1], "{data}");
    assert_eq!(site.run(["check", "--data", "--after", "sums", "--json"]).good().json()["data"]["files"], 1);
    site.run(["check", "--after", "sums"]).failed(2, &["--data"]);
}

/// Seen to fail when the error of the reading was all that the command said.
#[test]
fn an_array_that_does_not_open_has_its_problems_told_with_data_too() {
    let site = Site::new(2);
    fs::write(site.drive(1).join("iomill/label"), "").unwrap();
    let plain = site.run(["check", "--json"]).failed(1, &["unsound"]).json();
    assert!(!plain["problems"].as_array().unwrap().is_empty(), "{plain}");
    let said = site.run(["check", "--data", "--json"]).failed(1, &["unsound"]).json();
    assert_eq!((&said["problems"], said.get("data")), (&plain["problems"], None));
}

/// The good files of a failing drive can be saved. Seen to fail when the first damaged file ended the copy.
#[test]
fn a_damaged_file_keeps_no_other_one_out() {
    let site = Site::new(2);
    for name in ["d/1", "d/2", "d/3", "d/4"] {
        site.feed(["put", "--checksums", "-", name], &bytes(300_000)).good();
    }
    let part = |name: &str| site.stat(name)["parts"][0]["path"].as_str().unwrap().to_owned();
    File::options().write(true).open(part("d/1")).unwrap().write_all_at(&[1, 2, 3], 50).unwrap();
    fs::remove_file(part("d/2")).unwrap();
    let got = site.run(["get", "-r", "d", "--json"]).failed(1, &["page 0 of \\\"d/1\\\"", "0000000000000002"]);
    assert_eq!(got.json()["files"].as_array().unwrap().len(), 2, "{}", got.text());
    for name in ["d/3", "d/4"] {
        assert!(fs::read(site.path(name)).unwrap() == bytes(300_000));
    }
    assert_eq!(fs::read_dir(site.path("d")).unwrap().count(), 2);
}

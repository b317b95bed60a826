//! Senseless arguments are refused before the command does anything. Messages of failures say what to do.

use std::fs;

use crate::common::{Ended, Site};

#[test]
fn weights_that_are_no_numbers_are_refused() {
    let site = Site::new(2);
    site.run_bare(["init", "a", "b", "--weights", "1,x"]).failed(2, &["--weights", "from 1 to 1000"]);
    assert_eq!(site.names(), Vec::<String>::new());
}

#[test]
fn pipes_in_the_place_of_files_are_named() {
    let site = Site::new(2);
    site.feed(["put", "-", "a"], &[7; 200_000]).good();
    let parts = fs::read_dir(site.drive(1).join("iomill/parts")).unwrap();
    parts.for_each(|part| in_place(&part.unwrap().path()));
    // Neither command waits for a process at the other end.
    for line in [vec!["get", "a", "-"], vec!["check"]] {
        site.run(line).failed(1, &["it is not a regular file"]);
    }
    in_place(&site.segment(0));
    site.run(["ls"]).failed(1, &["iomill/log/", "it is not a regular file"]);
    in_place(&site.drive(0).join("iomill/label"));
    site.run(["info"]).failed(1, &["ssd0/iomill/label", "it is not a regular file"]);
}

#[test]
fn a_lost_part_is_named() {
    let site = Site::new(2);
    site.feed(["put", "-", "a"], &[7; 200_000]).good();
    let part = fs::read_dir(site.drive(1).join("iomill/parts")).unwrap().next().unwrap().unwrap().path();
    fs::remove_file(&part).unwrap();
    site.run(["get", "a", "-"]).failed(1, &["ssd1/iomill/parts/", "has lost its part of \"a\"", "iomill check"]);
}

/// Replaces a file by a pipe.
fn in_place(path: &std::path::Path) {
    fs::remove_file(path).unwrap();
    let path = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: the path ends with a zero byte.
    assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
}

#[test]
fn places_that_are_no_drives_are_named() {
    let site = Site::bare(1);
    site.file("plain", b"");
    site.run_bare(["init", "plain"]).failed(1, &["plain", "no directory"]);
    site.run_bare(["-a", "plain", "ls"]).failed(1, &["plain", "no directory"]);
    site.run_bare(["-a", "nosuch", "ls"]).failed(1, &["nosuch", "no such directory"]);
    site.run_bare(["-a", "nosuch", "info"]).failed(1, &["nosuch", "no such directory"]);
    site.run_bare(["-a", "ssd0", "ls"]).failed(1, &["ssd0", "no array has a drive here"]);
    site.run_bare(["tune", "--persist", "--dir", "nosuch", "--state", "s.json"]).failed(2, &["nosuch", "--dir"]);
}

#[test]
fn undoing_nothing_makes_nothing() {
    let site = Site::bare(0);
    let state = site.path("state/tune.json");
    let ended = site.run_bare(["tune", "--undo", "--state", state.to_str().unwrap()]).good();
    assert!(ended.text().starts_with("nothing to undo"), "{}", ended.text());
    assert!(!site.path("state").exists());
}

#[test]
fn every_command_has_a_manual_page() {
    let site = Site::bare(1);
    site.run_bare(["man", "--out", "ssd0"]).good();
    for name in ["iomill.1", "iomill-bench.1", "iomill-bench-quick.1"] {
        assert!(site.drive(0).join(name).is_file(), "{name}");
    }
    let page = fs::read_to_string(site.drive(0).join("iomill-ls.1")).unwrap();
    assert!(page.contains("PREFIX") && !page.contains("engine"), "{page}");
}

#[test]
fn polling_what_cannot_be_polled_is_noted() {
    let site = Site::new(1);
    let notes = |engine: &str| {
        let ended: Ended = site.run(["info", "--poll", "--engine", engine]).good();
        ended.err
    };
    assert!(notes("posix").contains("posix cannot poll"));
}

//! `put`, `get`, `rm` and `stat` of many files: by directories, prefixes and patterns. Holes stay holes.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::Path;
use std::process::Command;

use crate::common::{Ended, Site, bytes, limited};
use serde_json::json;

/// A tree of files: paths and contents.
fn tree(site: &Site) -> Vec<(&'static str, Vec<u8>)> {
    let files = vec![
        ("dir/a", bytes(10)),
        ("dir/b.bin", bytes(70_000)),
        ("dir/sub/c.bin", bytes(3_000_000)),
        ("dir/sub/deep/d", Vec::new()),
    ];
    for (path, content) in &files {
        fs::create_dir_all(site.path(path).parent().unwrap()).unwrap();
        site.file(path, content);
    }
    files
}

/// All files below a directory, by path.
fn found(directory: &Path) -> Vec<String> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        match entry.file_type().unwrap().is_dir() {
            true => files.extend(found(&entry.path()).into_iter().map(|below| format!("{name}/{below}"))),
            false => files.push(name),
        }
    }
    files.sort();
    files
}

#[test]
fn directories_go_in_and_come_out() {
    let site = Site::new(2);
    let files = tree(&site);
    let all = ["dir/a", "dir/b.bin", "dir/sub/c.bin", "dir/sub/deep/d"];
    let below = ["a", "b.bin", "sub/c.bin", "sub/deep/d"];
    site.run(["put", "dir"]).failed(1, &["cannot read dir", "directory", "-r"]);
    let put = site.run(["put", "-r", "dir", "--json"]).good().json();
    assert_eq!((&put["bytes"], put["files"].as_array().unwrap().len()), (&json!(3_070_010), 4), "{put}");
    assert_eq!(put["files"][0]["replaced"], false);
    assert_eq!(site.names(), all);
    for (name, content) in &files {
        assert!(site.content(name) == *content, "{name}");
    }
    // Nothing is replaced without `--force`.
    site.run(["put", "-r", "dir"]).failed(1, &["\"dir/a\" exists already", "\"dir/sub/c.bin\" exists already"]);
    let put = site.run(["put", "-rf", "dir", "--json"]).good().json();
    assert_eq!(put["files"][2]["replaced"], true);
    site.run(["rm", "-r", "dir"]).good();
    assert_eq!(site.names(), [""; 0]);
    let with = |prefix: &str| below.map(|name| format!("{prefix}{name}"));
    for (arguments, names) in [
        (&["put", "-r", "dir", "to/"][..], with("to/dir/")),
        (&["put", "-r", "dir", "as"], with("as/")),
        (&["put", "-r", "dir/.", "in/"], with("in/")),
        (&["put", "-r", "--to", "at", "dir/"], with("at/dir/")),
        (&["put", "-r", "dir/."], with("")),
    ] {
        site.run(arguments).good();
        assert_eq!(site.names(), names, "{arguments:?}");
        site.run(["rm", "-r", "."]).good();
    }
    // Of a drive of the array all is copied but the array.
    fs::write(site.drive(1).join("other"), "x").unwrap();
    let drive = site.drive(1);
    let put = site.run(["put".as_ref(), "-r".as_ref(), drive.as_os_str(), "of/".as_ref()]).good();
    assert!(put.err.contains("is left out: the array itself is in it"), "{}", put.err);
    assert_eq!(site.names(), [format!("of/{}/other", drive.file_name().unwrap().to_str().unwrap())]);
    site.run(["rm", "-r", "."]).good();
    site.run(["put", "-r", "dir"]).good();
    let got = site.run(["get", "-r", "dir", "out", "--json"]).good().json();
    assert_eq!((&got["bytes"], got["files"].as_array().unwrap().len()), (&json!(3_070_010), 4), "{got}");
    assert_eq!(found(&site.path("out")), below);
    for (name, content) in &files {
        assert!(fs::read(site.path(&name.replacen("dir", "out", 1))).unwrap() == *content, "{name}");
    }
    // The destination is there now, so the name is kept below it.
    site.run(["get", "-r", "dir", "out"]).good();
    assert_eq!(found(&site.path("out/dir")), below);
    site.run(["get", "-r", "dir/.", "--to", "new/er"]).good();
    assert_eq!(found(&site.path("new/er")), below);
    site.run(["get", "-r", "dir/.", "new/er"]).failed(1, &["new/er/a exists already", "new/er/sub/deep/d exists"]);
    site.run(["get", "-rf", ".", "new/all"]).good();
    assert_eq!(found(&site.path("new/all/dir")), below);
    site.run(["get", "-r", "dir", "-"]).failed(2, &["one file"]);
}

#[test]
fn several_names_and_patterns() {
    let site = Site::new(2);
    tree(&site);
    site.run(["put", "dir/a", "dir/b.bin", "x/"]).good();
    site.run(["put", "dir/a", "dir/b.bin", "x"]).failed(2, &["prefix", "--to"]);
    site.run(["put", "--to", "y", "dir/a", "dir/sub/c.bin"]).good();
    site.run(["put", "dir/a", "lit*"]).good();
    assert_eq!(site.names(), ["lit*", "x/a", "x/b.bin", "y/a", "y/c.bin"]);
    site.run(["put", "dir/a", "out/../dir/a", "z/"]).failed(2, &["would both be the file \"z/a\""]);
    // A file that fails keeps no other one out.
    site.run(["put", "none", "dir/a", "w/"]).failed(1, &["cannot open none"]);
    assert_eq!(site.names().len(), 6);
    site.run(["get", "x/*", "out/"]).good();
    assert_eq!(found(&site.path("out")), ["a", "b.bin"]);
    site.run(["get", "**.bin", "--to", "bins"]).good();
    assert_eq!(found(&site.path("bins")), ["x/b.bin", "y/c.bin"]);
    site.run(["get", "x/a", "none", "y/c.bin", "some"]).failed(1, &["\"none\""]);
    assert_eq!(found(&site.path("some")), ["a", "c.bin"]);
    site.run(["get", "n*", "here"]).failed(1, &["\"n*\""]);
    site.run(["get", "x", "here"]).failed(1, &["\"x\"", "-r"]);
    // A name that looks like a pattern is that file first.
    site.run(["get", "lit*", "one"]).good();
    assert_eq!(fs::read(site.path("one")).unwrap(), bytes(10));
    let stat = site.run(["stat", "?/a", "--json"]).good().json();
    let names: Vec<_> = stat["files"].as_array().unwrap().iter().map(|file| file["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["w/a", "x/a", "y/a"]);
    let removed = site.run(["rm", "[xy]/*", "none", "--json"]).failed(1, &["not_found"]).json();
    assert_eq!(removed["removed"], json!(["x/a", "x/b.bin", "y/a", "y/c.bin"]));
    assert_eq!(site.names(), ["lit*", "w/a"]);
}

/// Seen to fail: with `--force` the second file replaced the first one, and `rm` missed the file that it had deleted.
#[test]
fn arguments_that_meet() {
    let site = Site::new(2);
    tree(&site);
    site.run(["put", "dir/a", "x/"]).good();
    site.run(["put", "dir/b.bin", "y/a"]).good();
    site.run(["put", "dir/sub/c.bin", "y/c"]).good();
    for arguments in [&["get", "x/a", "y/a", "out/"][..], &["get", "-f", "x/*", "y/*", "out/"]] {
        site.run(arguments).failed(2, &["\"x/a\" and \"y/a\" would both be the file \"a\""]);
    }
    assert!(!site.path("out").exists());
    site.run(["get", "y/*", "y/c", "y/a", "out/"]).good();
    assert_eq!(found(&site.path("out")), ["a", "c"]);
    let removed = site.run(["rm", "y/*", "y/a", "x/a", "x/a", "--json"]).good().json();
    assert_eq!(removed["removed"], json!(["y/a", "y/c", "x/a"]));
}

/// As `"$DIR/"` is in a script without that variable.
#[test]
fn an_empty_name_stands_for_no_files() {
    let site = Site::new(2);
    tree(&site);
    site.run(["put", "dir/a", "x/a"]).good();
    for name in ["", "/", "//", "/.", "/./"] {
        for command in ["rm", "stat"] {
            site.run([command, "-r", name]).failed(2, &["is no name", "`.`"]);
            site.run([command, name]).failed(2, &["is no name"]);
        }
    }
    for name in ["/", "/.", "/./"] {
        site.run(["get", "-r", name, "out"]).failed(2, &["is no name"]);
    }
    assert!(!site.path("out").exists());
    assert_eq!(site.names(), ["x/a"]);
}

/// Anything that is no file is left out and named. A link to a directory causes no endless loop.
#[test]
fn links_and_other_entries() {
    let site = Site::new(1);
    tree(&site);
    symlink("..", site.path("dir/sub/up")).unwrap();
    symlink("a", site.path("dir/link")).unwrap();
    symlink("nowhere", site.path("dir/broken")).unwrap();
    // By this call its path may be long.
    let socket = site.path("dir/socket");
    rustix::fs::mknodat(rustix::fs::CWD, &socket, rustix::fs::FileType::Socket, 0o600.into(), 0).unwrap();
    let put = site.run(["put", "-r", "dir"]).failed(1, &["dir/broken"]);
    assert!(
        put.err.contains("dir/socket\" is left out") && put.err.contains("dir/sub/up\" is left out"),
        "{}",
        put.err
    );
    assert_eq!(site.names(), ["dir/a", "dir/b.bin", "dir/link", "dir/sub/c.bin", "dir/sub/deep/d"]);
    assert_eq!(site.content("dir/link"), bytes(10));
}

#[test]
fn a_file_that_fails_keeps_no_other_one_out_and_the_count_is_right() {
    let site = Site::new(1);
    std::fs::create_dir(site.path("dir")).unwrap();
    // More than are under way at a time.
    let names: Vec<String> = (0..600).map(|number| format!("dir/{number:03}")).collect();
    for name in &names {
        std::fs::write(site.path(name), name).unwrap();
    }
    std::fs::write(site.path("dir/\nbad"), "bad").unwrap();
    site.run(["put", "-r", "dir"]).failed(2, &["control character"]);
    assert!(site.names() == names);
    // This file cannot be read. Seen to fail when that ended the copy.
    std::fs::remove_file(site.path("dir/\nbad")).unwrap();
    std::os::unix::fs::symlink("/proc/self/mem", site.path("dir/5000")).unwrap();
    let put = site.run(["put", "-rf", "dir", "--json"]).failed(1, &["cannot read"]);
    assert_eq!(put.json()["files"].as_array().unwrap().len(), 600);
    // The drive refuses this one, as it would the next files. The others are in flight at that moment.
    std::fs::remove_file(site.path("dir/5000")).unwrap();
    std::fs::File::create(site.path("dir/5000")).unwrap().set_len(1 << 30).unwrap();
    let mut command = site.command(["put", "-rf", "dir"]);
    limited(&mut command, libc::RLIMIT_FSIZE, 64 << 20);
    Ended::of(command.output().unwrap()).failed(1, &["ulimit -f", "501 of 601 files are in the array"]);
}

/// An array may have files below the name of a file; a file system cannot.
///
/// Seen to fail: the second copy put `a` in the place of `a/a`, and the exit code was 0.
#[test]
fn a_file_and_files_below_its_name() {
    let site = Site::new(1);
    site.feed(["put", "-", "a"], b"above").good();
    // This one is written at once, and small ones follow together.
    site.feed(["put", "-", "a/a"], &bytes(2 << 20)).good();
    for force in ["--json", "--force"] {
        let got = site.run(["get", "-r", ".", "--to", "out", force]).failed(1, &["out/a", "directory of that name"]);
        // It would not help.
        assert!(!got.err.contains("--force"), "{}", got.err);
        assert!(fs::read(site.path("out/a/a")).unwrap() == bytes(2 << 20));
    }
    assert_eq!(found(&site.path("out")), ["a/a"]);
    // Without their first part both are the same path. Seen to fail: of two long files the second replaced the first.
    site.run(["get", "-rf", "a", "new"]).failed(2, &["would both be the file \"a\" below the destination"]);
    // A directory that was there before is no place for the file either.
    fs::create_dir_all(site.path("other/a")).unwrap();
    site.run(["get", "a", "--to", "other"]).failed(1, &["other/a: there is a directory of that name"]);
    site.run(["get", "a", "other"]).failed(1, &["other/a", "directory"]);
}

#[test]
fn thousands_of_files_go_in_and_come_out() {
    let site = Site::new(2);
    for index in 0..3000 {
        if index % 100 == 0 {
            fs::create_dir_all(site.path(&format!("many/{:02}", index / 100))).unwrap();
        }
        site.file(&format!("many/{:02}/{index}", index / 100), &bytes(index));
    }
    let put = site.run(["put", "-r", "many", "--json"]).good().json();
    assert_eq!(put["files"].as_array().unwrap().len(), 3000);
    site.run(["get", "-r", "many", "out"]).good();
    for index in [0, 1, 777, 2999] {
        assert!(fs::read(site.path(&format!("out/{:02}/{index}", index / 100))).unwrap() == bytes(index), "{index}");
    }
    assert_eq!(found(&site.path("out")), found(&site.path("many")));
    let removed = site.run(["rm", "-r", "many", "--json"]).good().json();
    assert_eq!(removed["removed"].as_array().unwrap().len(), 3000);
    site.run(["check"]).good();
}

const MIB: u64 = 1 << 20;

/// Bytes that the parts of an array take.
fn taken(site: &Site) -> u64 {
    let parts = site.drives().flat_map(|drive| fs::read_dir(drive.join("iomill/parts")).unwrap());
    parts.map(|part| part.unwrap().metadata().unwrap().blocks() * 512).sum()
}

/// Seen to fail when holes were copied as data: 12 GiB were to be written.
#[test]
fn holes_stay_holes() {
    let site = Site::new(2);
    let len = (12 << 30) + 5;
    for (name, data) in
        [("middle", &[(0, 1), (3 * MIB, 100_000), (5 << 30, 5_000_000)][..]), ("end", &[(len - 3, 3)]), ("none", &[])]
    {
        let source = File::create(site.path(name)).unwrap();
        source.set_len(len).unwrap();
        data.iter().for_each(|&(offset, bytes_len)| source.write_all_at(&bytes(bytes_len), offset).unwrap());
        let before = taken(&site);
        let put = site.run(["put", name, "--json"]).good().json();
        assert_eq!(put["bytes"], json!(len));
        assert!(taken(&site) - before < 16 * MIB, "{name}: {} bytes", taken(&site) - before);
        site.run(["get", name, "out", "--force"]).good();
        let out = File::open(site.path("out")).unwrap();
        let found = out.metadata().unwrap();
        assert!(found.len() == len && found.blocks() * 512 < 16 * MIB, "{name}: {} blocks", found.blocks());
        for &(offset, bytes_len) in data {
            let mut read = vec![0; bytes_len];
            out.read_exact_at(&mut read, offset).unwrap();
            assert!(read == bytes(bytes_len), "{name} at {offset}");
            let mut behind = vec![1; 4096.min((len - offset) as usize - bytes_len)];
            out.read_exact_at(&mut behind, offset + bytes_len as u64).unwrap();
            assert!(behind.iter().all(|byte| *byte == 0), "{name} behind {offset}");
        }
        let before = taken(&site);
        site.run(["cp", name, "copy"]).good();
        assert!(taken(&site) - before < 16 * MIB, "the copy of {name}: {} bytes", taken(&site) - before);
        let copied = site.run(["stat", "copy", "--json"]).good().json().to_string();
        assert!(copied.contains(&format!("\"bytes\":{len}")), "{copied}");
        site.run(["rm", name, "copy"]).good();
    }
}

/// Seen to fail when the standard output got holes as data.
#[test]
fn holes_stay_holes_in_a_file_that_is_the_standard_output() {
    let site = Site::new(2);
    let len = (1 << 30) + 5;
    let source = File::create(site.path("source")).unwrap();
    source.set_len(len).unwrap();
    source.write_all_at(&bytes(100_000), 300 * MIB + 1).unwrap();
    site.run(["put", "source"]).good();
    // The shell writes before and behind. What is appended has no holes, and is as long.
    for (redirection, place, most) in
        [("> out", "-", 16 * MIB), ("> out", "/dev/stdout", 16 * MIB), (">> out", "-", 4 * len)]
    {
        let mut shell = Command::new("sh");
        let script = format!("{{ printf head; \"$IOMILL\" get source {place}; printf tail; }} {redirection}");
        shell.args(["-c", &script]).env("IOMILL", env!("CARGO_BIN_EXE_iomill")).env("IOMILL_ARRAY", site.drive(0));
        assert!(shell.current_dir(site.root()).status().unwrap().success());
        let out = File::open(site.path("out")).unwrap();
        let found = out.metadata().unwrap();
        assert!(found.len() == len + 8 && found.blocks() * 512 < most, "{redirection}: {} blocks", found.blocks());
        let read = |offset, len| {
            let mut read = vec![1; len];
            out.read_exact_at(&mut read, offset).unwrap();
            read
        };
        assert!(read(0, 4) == b"head" && read(len + 4, 4) == b"tail", "{redirection}");
        assert!(read(300 * MIB + 5, 100_000) == bytes(100_000), "{redirection}");
        assert!(read(4, 5000).iter().chain(&read(len, 4)).all(|byte| *byte == 0), "{redirection}");
        fs::remove_file(site.path("out")).unwrap();
    }
    // Where bytes of the file lie behind, all are written over.
    fs::write(site.path("old"), vec![7; 5 << 20]).unwrap();
    let small = File::create(site.path("small")).unwrap();
    small.set_len(3 << 20).unwrap();
    small.write_all_at(b"end", (3 << 20) - 3).unwrap();
    site.run(["put", "small"]).good();
    let old = File::options().write(true).open(site.path("old")).unwrap();
    assert!(site.command(["get", "small", "-"]).stdout(old).status().unwrap().success());
    let old = fs::read(site.path("old")).unwrap();
    assert!(old[..3 << 20] == fs::read(site.path("small")).unwrap() && old[3 << 20..] == vec![7; 2 << 20]);
}

/// Small holes, holes at the start and at the end, and a pipe, which has none.
#[test]
fn what_has_holes_comes_out_as_it_went_in() {
    let site = Site::new(3);
    for layout in ["striping", "rotated", "hash"] {
        let source = File::create(site.path("source")).unwrap();
        source.set_len(9_000_001).unwrap();
        for (offset, len) in [(200_000, 1), (1_048_576, 70_000), (4_194_300, 10), (8_000_000, 300_000)] {
            source.write_all_at(&bytes(len), offset).unwrap();
        }
        let whole = fs::read(site.path("source")).unwrap();
        site.run(["put", "source", "a", "--force", "--layout", layout]).good();
        assert!(site.content("a") == whole, "{layout}");
        site.run(["get", "a", "out", "--force"]).good();
        assert!(fs::read(site.path("out")).unwrap() == whole, "{layout}");
        site.run(["put", "-rf", "source", "b"]).good();
        assert!(site.content("b") == whole, "{layout}");
    }
    // A part that was cut is no hole.
    let stat = site.stat("a");
    let part = stat["parts"][1]["path"].as_str().unwrap();
    File::options().write(true).open(part).unwrap().set_len(8192).unwrap();
    site.run(["get", "a", "cut"]).failed(1, &["cut behind"]);
    assert!(!site.path("cut").exists());
}

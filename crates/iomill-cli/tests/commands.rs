//! Every command, with good and with bad arguments.

use std::fs;

use crate::common::{Site, bytes};
use serde_json::json;

#[test]
fn init_makes_an_array_that_any_drive_names() {
    let site = Site::bare(3);
    let made = site.run_bare(["init", "ssd0", "ssd1", "ssd2", "--weights", "10,11,12", "--json"]).good().json();
    assert_eq!(made["drives"].as_array().unwrap().len(), 3);
    for drive in site.drives() {
        let info = site.run_bare(["-a", drive.to_str().unwrap(), "info", "--json"]).good().json();
        assert_eq!(info["id"], made["id"]);
        let weights: Vec<_> = info["drives"].as_array().unwrap().iter().map(|drive| &drive["weight"]).collect();
        assert_eq!(weights, [10, 11, 12]);
    }
}

#[test]
fn init_refuses_what_cannot_be_an_array() {
    let site = Site::bare(2);
    site.run_bare(["init"]).failed(2, &["DRIVE"]);
    site.run_bare(["init", "ssd0", "nowhere"]).failed(1, &["iomill: init: drive ", "nowhere", "no such directory"]);
    site.run_bare(["init", "ssd0", "ssd0"]).failed(1, &["ssd0", "name each drive once"]);
    site.run_bare(["init", "ssd0", "ssd1", "--weights", "1"]).failed(2, &["weight"]);
    site.run_bare(["init", "ssd0", "ssd1", "--weights", "0,1"]).failed(2, &["weight"]);
    site.run_bare(["init", "ssd0", "ssd1", "--weights", "x,1"]).failed(2, &["weights"]);
    site.run_bare(["-a", "ssd0", "init", "ssd1"]).failed(2, &["leave `-a` out"]);
    site.file("plain", b"");
    site.run_bare(["init", "plain"]).failed(1, &["plain", "irectory"]);
    // None of these left anything that stops a later init.
    site.run_bare(["init", "ssd0", "ssd1"]).good();
    site.run_bare(["init", "ssd0", "ssd1"]).failed(1, &["ssd0", "array"]);
}

/// Seen to fail when each attempt left a directory `iomill`.
#[test]
fn a_refused_init_leaves_the_directories_as_they_were() {
    let site = Site::bare(3);
    let names = |drive| fs::read_dir(site.drive(drive)).unwrap().map(|entry| entry.unwrap().file_name());
    site.run_bare(["init", "ssd2"]).good();
    site.file("plain", b"");
    fs::create_dir(site.path("copy")).unwrap();
    fs::create_dir(site.path("copy/iomill")).unwrap();
    site.file("copy/iomill/README", b"something else");
    for other in ["nowhere", "ssd0", "plain", "copy", "ssd2"] {
        site.run_bare(["init", "ssd0", "ssd1", other]).failed(1, &[other]);
        for drive in 0..2 {
            assert_eq!(names(drive).collect::<Vec<_>>(), Vec::<std::ffi::OsString>::new(), "{other}");
        }
    }
    site.run_bare(["-a", "ssd2", "check"]).good();
    // The old file stays.
    fs::create_dir(site.drive(0).join("iomill")).unwrap();
    site.run_bare(["init", "ssd0", "ssd1", "nowhere"]).failed(1, &["nowhere"]);
    assert_eq!((names(0).count(), names(1).count()), (1, 0));
    site.run_bare(["init", "ssd0", "ssd1"]).good();
}

#[test]
fn init_says_which_drives_are_one_device() {
    let site = Site::bare(2);
    let made = site.run_bare(["init", "ssd0", "ssd1"]).good();
    assert!(made.err.contains("ssd0 and ") && made.err.contains("ssd1 are on one device"), "{}", made.err);
    assert_eq!(Site::bare(1).run_bare(["init", "ssd0"]).good().err.matches("one device").count(), 0);
    let site = Site::bare(2);
    let made = site.run_bare(["init", "ssd0", "ssd1", "--json"]).good().json();
    assert!(made["notices"].to_string().contains("one device"), "{made}");
}

#[test]
fn the_array_is_named_by_option_environment_or_directory() {
    let site = Site::new(2);
    site.run_bare(["ls"]).failed(2, &["iomill: ls: which array?", "-a DIR", "IOMILL_ARRAY", "iomill init"]);
    let out = site.bare_command(["ls"]).env("IOMILL_ARRAY", site.drive(1)).output().unwrap();
    crate::common::Ended::of(out).good();
    let out = site.bare_command(["ls"]).env("IOMILL_ARRAY", "").output().unwrap();
    crate::common::Ended::of(out).failed(2, &["which array?"]);
    let out = site.bare_command(["ls"]).current_dir(site.drive(1)).output().unwrap();
    crate::common::Ended::of(out).good();
    site.run_bare(["ls", "-a", "ssd1", "-a", "ssd0"]).good();
    site.run_bare(["ls", "-a", ""]).failed(2, &["--array"]);
}

#[test]
fn info_describes_drives() {
    let site = Site::new(4);
    site.feed(["put", "-", "a"], b"x").good();
    let text = site.run(["info"]).good();
    for words in ["array ", "files 1", "ssd3", "engine"] {
        assert!(text.text().contains(words), "{}", text.text());
    }
    let info = site.run(["--json", "info"]).good().json();
    assert_eq!((&info["files"], info["drives"].as_array().unwrap().len()), (&json!(1), 4));
    let drive = &info["drives"][2];
    assert_eq!((&drive["index"], drive["path"].as_str().unwrap()), (&json!(2), site.drive(2).to_str().unwrap()));
    assert!(drive["free_bytes"].as_u64().unwrap() <= drive["total_bytes"].as_u64().unwrap());
    assert!(drive["engine"].is_string() && drive["direct"].is_boolean(), "{drive}");
    let posix = site.run(["info", "--json", "--engine", "posix"]).good().json();
    assert_eq!(posix["drives"][0]["engine"], "posix");
    assert!(!posix["notices"].as_array().unwrap().is_empty());
    let mapped = site.run(["info", "--json", "--engine", "mmap"]).good().json();
    let drive = &mapped["drives"][0];
    assert_eq!((&drive["engine"], &drive["direct"]), (&json!("mmap"), &json!(false)));
    assert!(mapped["notices"][0].as_str().unwrap().contains("mapped parts were asked for"), "{mapped}");
}

#[test]
fn notes_go_to_the_standard_error_unless_quiet() {
    let site = Site::new(1);
    let loud = site.run(["info", "--engine", "posix"]).good();
    assert!(loud.err.contains("note: "), "{}", loud.err);
    assert_eq!(site.run(["info", "--engine", "posix", "--quiet"]).good().err, "");
    assert_eq!(site.run(["info", "--engine", "posix", "--json"]).good().err, "");
}

/// The table and the document are written file by file.
#[test]
fn a_long_list_takes_no_memory() {
    let site = Site::bare(2);
    let options = iomill::ArrayOptions::new().sync_changes(false).cache_bytes(0);
    let array = options.create(site.drives()).unwrap();
    for index in 0..30_000 {
        array
            .draft(&iomill::FileOptions::new().layout(iomill::Layout::Hash))
            .unwrap()
            .publish(&format!("folder/{index:05}"), iomill::When::Absent)
            .unwrap();
    }
    array.close().unwrap();
    let (names, least) = site.peak(["ls"]);
    assert_eq!(names.text().lines().count(), 30_000);
    let (long, peak) = site.peak(["ls", "-l"]);
    let lines: Vec<&str> = long.text().lines().collect();
    assert_eq!(
        (lines.len(), lines[0], lines[1]),
        (30_001, "size  layout   block  drives  name", " 0 B  hash    64 KiB       2  folder/00000",)
    );
    assert!(peak < least + (24 << 20), "{peak} bytes, and {least} for the names");
    let (document, peak) = site.peak(["ls", "-l", "--json"]);
    let document = document.json();
    assert_eq!(document["files"].as_array().unwrap().len(), 30_000);
    assert_eq!(document["files"][29_999]["name"], "folder/29999");
    assert!(peak < least + (24 << 20), "{peak} bytes, and {least} for the names");
}

#[test]
fn ls_lists_by_prefix() {
    let site = Site::new(2);
    assert_eq!(site.run(["ls"]).good().out, b"");
    assert_eq!(site.run(["ls", "-l"]).good().out, b"");
    for name in ["graph/nodes", "graph/edges", "other"] {
        site.feed(["put", "-", name, "--layout", "rotated"], &bytes(5000)).good();
    }
    assert_eq!(site.run(["ls"]).good().text(), "graph/edges\ngraph/nodes\nother\n");
    assert_eq!(site.run(["ls", "graph/n"]).good().text(), "graph/nodes\n");
    let long = site.run(["ls", "graph/", "-l"]).good();
    assert_eq!(
        long.text(),
        "   size  layout    block  drives  name\n4.9 KiB  rotated  64 KiB       2  graph/edges\n\
         4.9 KiB  rotated  64 KiB       2  graph/nodes\n"
    );
    let list = site.run(["ls", "o", "-l", "--json"]).good().json();
    let file = json!({"name": "other", "bytes": 5000, "layout": "rotated", "block_bytes": 65536, "drives": [0, 1]});
    assert_eq!(list["files"], json!([file]));
    assert_eq!(site.run(["ls", "o", "--json"]).good().json()["files"], json!([{"name": "other"}]));
}

#[test]
fn stat_tells_all() {
    let site = Site::new(3);
    let options = ["--layout", "hash", "--block-size", "4KiB", "--drives", "2,0"];
    site.feed([&["put", "-", "a"], options.as_slice()].concat(), &bytes(100_000)).good();
    site.run(["attr", "a", "key=value"]).good();
    let text = site.run(["stat", "a"]).good();
    for words in ["size", "97.7 KiB (100000 bytes)", "hash, blocks of 4 KiB", "drive 2", "attribute   key=value"] {
        assert!(text.text().contains(words), "{}", text.text());
    }
    let stat = site.stat("a");
    assert_eq!((&stat["bytes"], &stat["drives"]), (&json!(100_000), &json!([2, 0])));
    assert_eq!((&stat["attributes"], &stat["block_bytes"]), (&json!({"key": "value"}), &json!(4096)));
    for part in stat["parts"].as_array().unwrap() {
        let len = fs::metadata(part["path"].as_str().unwrap()).unwrap().len();
        assert!(len >= part["bytes"].as_u64().unwrap() && len < 200_000, "{part}");
    }
    let both = site.run(["stat", "b", "a"]).failed(1, &["no file named \"b\""]);
    assert!(both.text().starts_with("a\n"));
}

#[test]
fn rm_removes_what_it_can() {
    let site = Site::new(2);
    for name in ["a", "b"] {
        site.feed(["put", "-", name], b"x").good();
    }
    let ended = site.run(["rm", "a", "none", "b", "--json"]).failed(1, &["not_found", "none"]);
    assert_eq!(ended.json()["removed"], json!(["a", "b"]));
    assert!(site.names().is_empty());
    for drive in site.drives() {
        assert_eq!(fs::read_dir(drive.join("iomill/parts")).unwrap().count(), 0);
    }
}

#[test]
fn mv_renames_and_replaces_only_by_force() {
    let site = Site::new(2);
    site.feed(["put", "-", "a"], b"A").good();
    site.feed(["put", "-", "b"], b"B").good();
    site.run(["mv", "a", "b"]).failed(1, &["a file named \"b\" exists already", "--force"]);
    assert_eq!(site.content("b"), b"B");
    let moved = site.run(["mv", "a", "b", "--force", "--json"]).good().json();
    assert_eq!(moved["replaced"], true);
    assert_eq!((site.names(), site.content("b")), (vec!["b".to_owned()], b"A".to_vec()));
    site.run(["mv", "b", "dir/"]).good();
    assert_eq!(site.names(), ["dir/b"]);
    site.run(["mv", "b", "c"]).failed(1, &["no file named \"b\""]);
    site.run(["mv", "dir/b", "../b"]).failed(2, &["../b"]);
    site.run(["mv", "dir/b", "dir/b", "--force"]).good();
    assert_eq!(site.content("dir/b"), b"A");
}

#[test]
fn cp_copies_and_replaces_only_by_force() {
    let site = Site::new(2);
    site.feed(["put", "-", "a"], &[7; 100_000]).good();
    site.run(["attr", "a", "key=value"]).good();
    let copied = site.run(["cp", "a", "dir/", "--json"]).good().json();
    assert_eq!(
        (&copied["to"], &copied["bytes"], &copied["replaced"]),
        (&json!("dir/a"), &json!(100_000), &json!(false))
    );
    assert_eq!((site.content("a"), site.content("dir/a")), (vec![7; 100_000], vec![7; 100_000]));
    assert_eq!(site.run(["attr", "dir/a", "key"]).good().text(), "value\n");
    site.feed(["put", "-", "b"], b"B").good();
    site.run(["cp", "a", "b"]).failed(1, &["a file named \"b\" exists already", "--force"]);
    assert_eq!(site.content("b"), b"B");
    site.run(["cp", "a", "b", "--force"]).good();
    assert_eq!(site.content("b"), [7; 100_000]);
    site.run(["cp", "none", "c"]).failed(1, &["no file named \"none\""]);
    assert_eq!(site.names(), ["a", "b", "dir/a"]);
}

#[test]
fn attr_sets_shows_lists_and_removes() {
    let site = Site::new(2);
    site.feed(["put", "-", "a"], b"").good();
    assert_eq!(site.run(["attr", "a"]).good().out, b"");
    site.run(["attr", "a", "version=3"]).good();
    site.run(["attr", "a", "formula=a=b"]).good();
    assert_eq!(site.run(["attr", "a"]).good().text(), "formula=a=b\nversion=3\n");
    assert_eq!(site.run(["attr", "a", "formula"]).good().text(), "a=b\n");
    let removed = site.run(["attr", "a", "--remove", "formula", "--json"]).good().json();
    assert_eq!(removed["attributes"], json!({"version": "3"}));
    site.run(["attr", "a", "formula"]).failed(1, &["no attribute \"formula\""]);
    site.run(["attr", "a", "--remove", "formula"]).failed(1, &["no attribute \"formula\""]);
    site.run(["attr", "a", "=x"]).failed(2, &["attribute"]);
    site.run(["attr", "b"]).failed(1, &["no file named \"b\""]);
    let long = format!("key={}", "v".repeat(100_000));
    site.run(["attr", "a", &long]).failed(2, &["attribute"]);
    assert_eq!(site.run(["attr", "a"]).good().text(), "version=3\n");
}

#[test]
fn truncate_cuts_and_extends() {
    let site = Site::new(3);
    let data = bytes(300_000);
    site.feed(["put", "-", "a", "--block-size", "4KiB"], &data).good();
    let cut = site.run(["truncate", "a", "100001", "--json"]).good().json();
    assert_eq!((&cut["bytes"], &cut["bytes_before"]), (&json!(100_001), &json!(300_000)));
    site.run(["truncate", "a", "200KiB"]).good();
    let content = site.content("a");
    assert_eq!(content[..100_001], data[..100_001]);
    assert!(content.len() == 200 << 10 && content[100_001..].iter().all(|&byte| byte == 0));
    for bad in ["9223372036854775807", "9223372036854775808", "18446744073709551615", "8191P"] {
        site.run(["truncate", "a", bad]).failed(2, &["iomill: truncate: ", "4 PiB"]);
    }
    for bad in ["18446744073709551616", "16384P", "-1", "1.5G", "1MB", "x"] {
        site.run(["truncate", "a", bad]).failed(2, &[bad]);
    }
    site.run(["truncate", "b", "0"]).failed(1, &["no file named \"b\""]);
    assert_eq!(site.content("a"), content);
}

#[test]
fn bad_names_are_refused_and_shown_short() {
    let site = Site::new(1);
    let source = site.file("source", b"x");
    let long = "n".repeat(5000);
    let names = ["../a", "a/../b", "/a", "a//b", ".", "a/.", &long, "tab\there"];
    for name in names {
        let ended = site.run(["put", source.to_str().unwrap(), name]).failed(2, &["iomill: put: file name"]);
        assert!(ended.err.len() < 400, "{}", ended.err);
        site.run(["get", name, "-"]).failed(1, &["no file named"]);
    }
    assert!(site.names().is_empty());
}

#[test]
fn completions_and_manual_pages_come_from_one_definition() {
    let site = Site::bare(0);
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = site.run_bare(["completions", shell]).good();
        assert!(script.text().contains("truncate") && script.text().contains("block-size"), "{shell}");
    }
    site.run_bare(["completions", "csh"]).failed(2, &["csh", "bash"]);
    assert_eq!(site.run_bare(["completions", "fish", "--json"]).good().json()["shell"], "fish");
    assert!(site.run_bare(["man"]).good().text().contains(".TH iomill 1"));
    let pages = site.path("pages");
    fs::create_dir(&pages).unwrap();
    let made = site.run_bare(["man", "--out", "pages", "--json"]).good().json();
    assert_eq!(made["files"].as_array().unwrap().len(), fs::read_dir(&pages).unwrap().count());
    for page in fs::read_dir(&pages).unwrap() {
        let text = fs::read_to_string(page.unwrap().path()).unwrap();
        // As in "iomill\-put(1)".
        let named = text.split_whitespace().filter_map(|word| word.strip_suffix("(1)"));
        for name in named.map(|name| name.replace('\\', "")).filter(|name| name.starts_with("iomill")) {
            assert!(pages.join(format!("{name}.1")).exists(), "{name}(1) is referred to");
        }
    }
    let put = fs::read_to_string(pages.join("iomill-put.1")).unwrap();
    assert!(put.contains(".TH iomill-put 1") && put.contains("block\\-size"), "{put}");
    site.run_bare(["man", "--out", "nowhere"]).failed(1, &["iomill: man: cannot write nowhere/iomill.1"]);
}

#[test]
fn usage_help_and_versions() {
    let site = Site::bare(0);
    assert!(site.run_bare(["--version"]).good().text().starts_with("iomill "));
    for arguments in [vec!["--help"], vec!["put", "--help"], vec!["put", "-h"], vec!["help"], vec!["help", "put"]] {
        assert!(site.run_bare(arguments).good().text().contains("Example"));
    }
    // The most used commands come first: `-h` leaves the options of I/O to `--help`, and says so.
    for command in ["get", "put", "check", "info"] {
        let shown = |option| site.run_bare([command, option]).good().text().to_owned();
        let (short, long) = (shown("-h"), shown("--help"));
        for option in ["--engine", "--depth", "--io-nodes"] {
            assert!(!short.contains(option) && long.contains(option), "{command}: {option}");
        }
        assert!(short.contains("--array") && short.contains("--help` has the options of I/O"), "{command}: {short}");
    }
    let help = site.run_bare(["help", "bench", "quick"]).good();
    assert_eq!(help.text(), site.run_bare(["bench", "quick", "--help"]).good().text());
    site.run_bare(["help", "nonsense"]).failed(2, &["nonsense"]);
    site.run_bare(["nonsense"]).failed(2, &["nonsense"]);
    site.run_bare::<&str>([]).failed(2, &["Usage"]);
    let error = site.run_bare(["put", "--json"]).failed(2, &[]).err;
    let error: serde_json::Value = serde_json::from_str(&error).unwrap();
    assert_eq!(error["error"]["kind"], "usage");
    site.run_bare(["--parse-only", "-a", "/nowhere", "rm", "x"]).good();
    site.run_bare(["--parse-only", "rm"]).failed(2, &["NAME"]);
}

#[test]
fn errors_are_documents_for_programs() {
    let site = Site::new(1);
    let ended = site.run(["get", "none", "dest", "--json"]).failed(1, &[]);
    assert!(ended.out.is_empty());
    let error: serde_json::Value = serde_json::from_str(&ended.err).unwrap();
    assert_eq!(error["error"]["kind"], "not_found");
    assert!(error["error"]["message"].as_str().unwrap().contains("iomill ls") && error["notices"].is_array());
}

#[test]
fn the_page_about_json_names_every_key() {
    let page = include_str!("../../../docs/json.md");
    let site = Site::bare(2);
    let source = site.file("source", b"x");
    let source = source.to_str().unwrap();
    for (command, arguments) in [
        ("init", vec!["init", "ssd0", "ssd1"]),
        ("info", vec!["info", "-a", "ssd0"]),
        ("put", vec!["put", "-a", "ssd0", source, "a"]),
        ("ls", vec!["ls", "-a", "ssd0"]),
        ("get", vec!["get", "-a", "ssd0", "a"]),
        ("stat", vec!["stat", "-a", "ssd0", "a"]),
        ("attr", vec!["attr", "-a", "ssd0", "a"]),
        ("truncate", vec!["truncate", "-a", "ssd0", "a", "0"]),
        ("mv", vec!["mv", "-a", "ssd0", "a", "b"]),
        ("cp", vec!["cp", "-a", "ssd0", "b", "c"]),
        ("rm", vec!["rm", "-a", "ssd0", "b"]),
        ("check", vec!["check", "-a", "ssd0"]),
        ("completions", vec!["completions", "fish"]),
        ("man", vec!["man"]),
    ] {
        let document = site.run_bare([vec!["--json"], arguments].concat()).good().json();
        let start = format!("| `{command}` | ");
        let row = page.lines().find_map(|line| line.strip_prefix(&start)).unwrap_or_else(|| panic!("no row {command}"));
        let keys: Vec<&String> = document.as_object().unwrap().keys().collect();
        assert!(keys.iter().any(|key| *key == "notices"), "{command}");
        for key in keys.iter().filter(|key| **key != "notices") {
            assert!(row.contains(&format!("`{key}`")), "{command}: `{key}` is not in: {row}");
        }
    }
}

/// A drive from elsewhere cannot command the terminal, or forge lines of an answer.
///
/// Seen to fail when paths and attributes were printed as they are.
#[test]
fn control_characters_of_drives_are_shown_and_not_obeyed() {
    let site = Site::bare(0);
    let drive = "red\u{1b}[31m\nline";
    fs::create_dir(site.path(drive)).unwrap();
    let clean = |text: &str| {
        assert!(text.chars().all(|c| !c.is_control() || c == '\n'), "{text:?}");
        assert!(!text.lines().any(|line| line.starts_with("line")), "{text}");
    };
    let run = |arguments: &[&str]| site.run_bare([&["-a", drive][..], arguments].concat());
    clean(site.run_bare(["init", drive]).good().text());
    site.file("f", b"data");
    run(&["put", "f"]).good();
    run(&["attr", "f", "key=\u{1b}]0;x\u{7}\nline=2"]).good();
    assert_eq!(run(&["attr", "f"]).good().text(), "key=\\u{1b}]0;x\\u{7}\\u{a}line=2\n");
    // Programs get it as it is.
    assert_eq!(run(&["attr", "f", "key"]).good().text(), "\u{1b}]0;x\u{7}\nline=2\n");
    fs::rename(site.path(drive).join("iomill/parts"), site.path("parts")).unwrap();
    clean(run(&["check"]).failed(1, &[]).text());
    fs::rename(site.path("parts"), site.path(drive).join("iomill/parts")).unwrap();
    clean(run(&["stat", "f"]).good().text());
    let failed = site.run_bare(["-a", "no\u{1b}[31mway", "ls"]).failed(1, &["no\\u{1b}[31mway"]);
    clean(&failed.err);
}

//! `iomill rows`: it measures a user's own file, reports the contenders and their states, and leaves the file as it
//! was.

use std::fs;

use crate::common::{Site, bytes};
use serde_json::Value;

/// A measurement of about 100 ms per contender.
const SHORT: [&str; 4] = ["--rounds", "1", "--seconds", "0.1"];

fn bench<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&["rows", "features.bin"], &SHORT[..], more].concat()
}

/// The contenders that were measured or left out in a state.
fn told(document: &Value, list: &str, cache: &str) -> Vec<String> {
    let rows = document[list].as_array().unwrap().iter().filter(|row| row["cache"] == cache);
    rows.map(|row| row["contender"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn one_command_compares_gathers_cold_and_warm() {
    let site = Site::bare(0);
    let content = bytes((16 << 20) + 500);
    let path = site.file("features.bin", &content);
    let changed = fs::metadata(&path).unwrap().modified().unwrap();
    for more in [&["--rows", "64"][..], &["--rows", "64", "--row-size", "3000", "--threads", "2"]] {
        let document = site.run_bare([bench(more), vec!["--json"]].concat()).good().json();
        let name = if more.len() == 2 { "random-rows-512B" } else { "random-rows-3000B" };
        for list in ["results", "left_out"] {
            assert!(document[list].as_array().unwrap().iter().all(|row| row["workload"] == name), "{document}");
        }
        assert_eq!(told(&document, "results", "warm"), ["iomill-read_rows", "mmap", "pread"]);
        let loops = ["mmap", "mmap-random", "pread"];
        let held = [told(&document, "results", "held"), told(&document, "left_out", "held")].concat();
        assert_eq!(held.len(), 4, "{document}");
        // If memory cannot be limited, the rivals have all of it, provided that their reads can be counted as cold.
        let reasons = document["left_out"].to_string();
        if reasons.contains("cannot be limited") {
            assert_eq!(told(&document, "results", "cold"), loops, "{document}");
        }
        for row in document["results"].as_array().unwrap() {
            assert!(row["ops_per_s"].as_f64().unwrap() > 0.0 && row["rounds"] == 1, "{row}");
        }
    }
    let table = site.run_bare([bench(&["--rows", "64"]), vec!["--json", "out.json"]].concat()).good();
    let text = table.text();
    assert!(text.contains("iomill-read_rows") && text.contains("x mmap") && text.contains("as fast."), "{text}");
    assert!(text.contains("A gather of 64 rows in memory takes "), "{text}");
    assert!(fs::metadata(site.path("out.json")).unwrap().len() > 1000);
    assert!(fs::read(&path).unwrap() == content && fs::metadata(&path).unwrap().modified().unwrap() == changed);
    let mut names: Vec<_> = fs::read_dir(site.root()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["features.bin", "out.json"]);
}

#[test]
fn a_file_in_memory_has_no_cold_rows() {
    // If there is a file system in memory.
    let Ok(place) = tempfile::tempdir_in("/dev/shm") else { return };
    let path = place.path().join("f");
    fs::write(&path, bytes(16 << 20)).unwrap();
    let site = Site::bare(0);
    let line = [&["rows", path.to_str().unwrap(), "--rows", "64", "--json"], &SHORT[..]].concat();
    let document = site.run_bare(line).good().json();
    assert_eq!(told(&document, "results", "warm").len(), 3, "{document}");
    let why = document["left_out"].as_array().unwrap().iter().find(|out| out["contender"] == "iomill-read_rows");
    assert!(why.unwrap()["why"].as_str().unwrap().contains("brought nothing from a drive"), "{document}");
    assert!(told(&document, "results", "held").is_empty(), "{document}");
}

#[test]
fn what_cannot_be_measured_is_refused() {
    let site = Site::new(1);
    site.file("features.bin", &bytes(4 << 20));
    site.file("short", &bytes(1 << 20));
    crate::put(&site, "data", &bytes(200_000));
    let part = fs::read_dir(site.path("ssd0/iomill/parts")).unwrap().next().unwrap().unwrap().path();
    for (line, code, said) in [
        (&["none"][..], 1, "none"),
        (&["."], 1, "."),
        (&[part.to_str().unwrap()], 2, "belongs to an array"),
        (&["short"], 2, "at least 1MiB"),
        (&["features.bin", "--cache", "64KiB"], 2, "at least 1MiB"),
        (&["features.bin", "--cache", "3MiB"], 2, "twice as long"),
        (&["features.bin", "--cache", "9TiB"], 2, "smaller --cache"),
        (&["features.bin", "--cache", "1MiB", "--row-size", "3MiB", "--rows", "1"], 2, "smaller --row-size"),
        (&["features.bin", "--cache", "1MiB", "--row-size", "1MiB"], 2, "at most 1 GiB"),
        (&["features.bin", "--row-size", "0"], 2, "1 byte to 16MiB"),
        (&["features.bin", "--rows", "0"], 2, "--rows"),
        (&["features.bin", "-a", "ssd0"], 2, "belongs to no array"),
        (&["features.bin", "--io-nodes", "0"], 2, "--io-nodes"),
    ] {
        site.run_bare([&["rows"], line].concat()).failed(code, &[said]);
    }
    assert_eq!(fs::read(site.path("features.bin")).unwrap(), bytes(4 << 20));
}

//! `iomill warm`, `cold`, `mixed`, `small-writes` and `soak`: they report the promised keys, keep within their memory,
//! and leave nothing behind.

use std::fs;

use crate::common::Site;
use iomill_cli::human;
use serde_json::Value;

/// iomill's ways of reading cached data, in order.
const OURS: [&str; 9] = [
    "iomill-callback-1",
    "iomill-callback-512",
    "iomill-callback-64",
    "iomill-future-1",
    "iomill-future-512",
    "iomill-future-64",
    "iomill-pin",
    "iomill-read_at",
    "iomill-read_many",
];

/// A measurement of about 100 ms per contender.
const SHORT: [&str; 6] = ["--rounds", "1", "--seconds", "0.1", "--json", "out.json"];

fn entries(site: &Site) -> Vec<String> {
    let names = fs::read_dir(site.root()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with("iomill-bench-")).collect()
}

fn document(site: &Site, arguments: &[&str]) -> (Value, String) {
    let line = [arguments, &SHORT[..]].concat();
    let table = site.run(line).good().text().to_owned();
    (serde_json::from_str(&fs::read_to_string(site.path("out.json")).unwrap()).unwrap(), table)
}

fn names<'a>(rows: &'a Value, workload: &str) -> Vec<&'a str> {
    let rows = rows.as_array().unwrap().iter().filter(|row| row["workload"] == workload);
    rows.map(|row| row["contender"].as_str().unwrap()).collect()
}

/// Contenders that need a memory cgroup take part, or the report says why not.
fn held_or_explained(document: &Value, workload: &str, name: &str) -> bool {
    if names(&document["results"], workload).contains(&name) {
        return true;
    }
    let left_out = document["left_out"].as_array().unwrap();
    let out = left_out.iter().find(|out| out["contender"] == name && out["workload"] == workload).unwrap();
    let why = out["why"].as_str().unwrap();
    assert!(why.contains("cannot be limited") || why.contains("brought nothing from a drive"), "{out}");
    assert_eq!(out["cache"], "held");
    false
}

#[test]
fn warm_has_each_contender_and_its_keys() {
    let site = Site::new(2);
    let (document, table) = document(&site, &["warm", "--size", "8MiB", "--threads", "1,2"]);
    for workload in ["uniform", "zipf"] {
        let found = names(&document["results"], workload);
        for name in OURS.into_iter().chain(["mmap", "mmap-small-pages", "pread"]) {
            // With one thread, and with two.
            assert_eq!(found.iter().filter(|other| **other == name).count(), 2, "{workload}: {name} in {found:?}");
        }
    }
    for row in document["results"].as_array().unwrap() {
        assert!(row["cpu_ns_per_op"].as_f64().unwrap() > 0.0 && row["ops_per_s"].as_f64().unwrap() > 0.0, "{row}");
        assert!(row["contender"] == "mmap" || row["cpu_ratio_to"]["mmap"].is_f64(), "{row}");
        assert!(row["contender"] == "pread" || row["ops_ratio_to"]["pread"].is_f64(), "{row}");
        assert_eq!((&row["cache"], &row["hit_percent"]), (&Value::from("warm"), &Value::Null));
        let scaling = row["ops_ratio_to_one_thread"].as_f64().unwrap();
        assert!(if row["threads"] == 1 { scaling == 1.0 } else { scaling > 0.0 }, "{row}");
    }
    assert!(table.contains("x 1 thr"), "{table}");
    assert!(table.contains("x mmap"), "{table}");
    let ours = document["results"].as_array().unwrap().iter().filter(|row| row["contender"] == "iomill-pin");
    for row in ours {
        assert!(row["notes"][0].as_str().unwrap().contains("a cache of 32 MiB, in which "), "{row}");
    }
    assert!(crate::names(&site).is_empty());
}

/// Ratios of so short a run may be worse than any bound. Then the gate reports that, and the code is 1.
#[test]
fn the_gate_tells_of_all_ratios_and_fails_when_one_is_worse() {
    let site = Site::bare(0);
    let line = ["gate", "--size", "8MiB", "--rounds", "1", "--seconds", "0.1", "--json", "out.json"];
    let ended = site.run_bare(line);
    let document: Value = serde_json::from_str(&fs::read_to_string(site.path("out.json")).unwrap()).unwrap();
    let worse: Vec<&Value> =
        document["results"].as_array().unwrap().iter().filter(|ratio| ratio["verdict"] == "worse").collect();
    assert_eq!(ended.code, i32::from(!worse.is_empty()), "{}", ended.err);
    assert_eq!(document["passed"], worse.is_empty());
    for ratio in document["results"].as_array().unwrap() {
        let name = ratio["name"].as_str().unwrap();
        assert!(ended.text().contains(name) && ratio["bound"].as_f64().unwrap() > 0.0, "{}", ended.text());
        let is_told = ended.err.contains(&format!("{name} is "));
        assert_eq!(is_told, ratio["verdict"] == "worse", "{name}: {}", ended.err);
    }
    assert!(entries(&site).is_empty(), "{:?}", entries(&site));
}

#[test]
fn cold_misses_and_is_held_to_its_memory() {
    let site = Site::new(2);
    let (document, table) = document(&site, &["cold", "--cache", "8MiB", "--size", "64MiB"]);
    let rows = document["results"].as_array().unwrap();
    let with_uring = names(&document["results"], "random-read-4KiB").contains(&"uring-by-hand");
    assert!(with_uring || document["left_out"].to_string().contains("io_uring"), "{document}");
    assert!(table.contains("x uring-by-hand"), "{table}");
    for name in OURS.into_iter().filter(|name| *name != "iomill-pin") {
        let row = rows.iter().find(|row| row["contender"] == name).unwrap();
        let hits = row["hit_percent"].as_f64().unwrap();
        let slack = slack_percent(row);
        assert!((5.0 - slack..20.0 + slack).contains(&hits) && row["cache"] == "held", "{row}");
        assert!(row["notes"][0].as_str().unwrap().contains("a cache of 8 MiB"), "{row}");
    }
    for name in ["pread", "mmap"] {
        if !held_or_explained(&document, "random-read-4KiB", name) {
            continue;
        }
        let row = rows.iter().find(|row| row["contender"] == name).unwrap();
        // The memory holds an eighth of the file, and some pages that the kernel keeps for it.
        assert!(row["hit_percent"].as_f64().unwrap() < 30.0 + slack_percent(row), "{row}");
        assert!(row["cpu_ratio_to"]["uring-by-hand"].is_f64() == with_uring, "{row}");
        // Only some reads are timed, so a slice of few reads on a busy machine may have none.
        assert!(row["p99_us"].is_f64() || ops(row) < 200.0, "{row}");
        assert!(row["notes"][0].as_str().unwrap().contains("8 MiB for the page cache"), "{row}");
    }
    assert!(crate::names(&site).is_empty(), "the measured file is gone");
}

/// The allowed error of a share of hits, in percent. A slice of [`SHORT`] has few operations on a busy machine, so it
/// is six standard deviations at most.
fn slack_percent(row: &Value) -> f64 {
    300.0 / ops(row).max(1.0).sqrt()
}

/// The approximate number of operations of a slice of [`SHORT`].
fn ops(row: &Value) -> f64 {
    row["ops_per_s"].as_f64().unwrap() * 0.1
}

#[test]
fn mixed_hits_as_often_as_asked() {
    let site = Site::new(2);
    let memory = ["mixed", "--cache", "8MiB", "--size", "64MiB", "--svg", "mixed.svg"];
    let (document, _) = document(&site, &[&memory[..], &["--hit-percent", "0,80", "--rivals", "pread,mmap"]].concat());
    let picture = fs::read_to_string(site.path("mixed.svg")).unwrap();
    for said in ["<svg", "iomill-read_many", "reads that hit, %", "zipf0.99-95%read-1000B"] {
        assert!(picture.contains(said), "{said}");
    }
    for (percent, workload) in [(0.0, "0%hit-read-1000B"), (80.0, "80%hit-read-1000B")] {
        for name in ["iomill-read_at", "iomill-read_many", "iomill-future-64", "pread", "mmap"] {
            if name.starts_with("iomill-") || held_or_explained(&document, workload, name) {
                let rows = document["results"].as_array().unwrap();
                let row = rows.iter().find(|row| row["contender"] == name && row["workload"] == workload).unwrap();
                let hits = row["hit_percent"].as_f64().unwrap();
                assert!((hits - percent).abs() < 10.0 + slack_percent(row), "{workload}: {row}");
            }
        }
    }
    for workload in ["zipf0.99-read-1000B", "zipf0.99-95%read-1000B"] {
        let found = names(&document["results"], workload);
        assert!(found.contains(&"iomill-read_at") && found.contains(&"iomill-read_many"), "{found:?}");
    }
    held_or_explained(&document, "zipf0.99-read-1000B", "mmap");
    held_or_explained(&document, "zipf0.99-95%read-1000B", "pread");
    let left_out = document["left_out"].as_array().unwrap();
    assert!(left_out.iter().any(|out| out["contender"] == "mmap" && out["workload"] == "zipf0.99-95%read-1000B"));
}

#[test]
fn the_picture_needs_no_array_and_has_the_figures_of_the_table() {
    let site = Site::bare(0);
    let line = ["picture", "--size", "32MiB", "--rounds", "1", "--seconds", "0.1", "--json", "out.json"];
    let ended = site.run_bare(line).good();
    let document: Value = serde_json::from_str(&fs::read_to_string(site.path("out.json")).unwrap()).unwrap();
    let picture = fs::read_to_string(site.path("iomill-picture.svg")).unwrap();
    assert!(ended.err.contains("the picture is in iomill-picture.svg"), "{}", ended.err);
    for said in ["</svg>", "Cold: ", "Warm: ", "iomill read_many", &format!("$ iomill {}", line.join(" "))] {
        assert!(picture.contains(said), "{said}");
    }
    let warm = names(&document["results"], "uniform");
    assert_eq!(warm, ["iomill-read_at", "iomill-read_many", "mmap", "pread"]);
    let cold = names(&document["results"], "random-read-4KiB");
    assert_eq!(cold[..2], ["iomill-read_many", "iomill-read_at"]);
    for row in document["results"].as_array().unwrap() {
        let ops = row["ops_per_s"].as_f64().unwrap();
        assert!(picture.contains(&human::count(ops)) && ended.text().contains(&human::count(ops)), "{row}");
    }
    assert!(entries(&site).is_empty(), "{:?}", entries(&site));
}

#[test]
fn small_writes_without_an_array() {
    let site = Site::bare(0);
    let line = ["small-writes", "--cache", "16MiB", "--threads", "4"];
    let ended = site.run_bare([&line, &SHORT[..]].concat()).good();
    let document: Value = serde_json::from_str(&fs::read_to_string(site.path("out.json")).unwrap()).unwrap();
    let row = &document["results"][0];
    assert!(row["contender"] == "iomill-write_at" && row["ops_per_s"].as_f64().unwrap() > 0.0, "{row}");
    if held_or_explained(&document, "unaligned-write-1000B", "pwrite") {
        let row = &document["results"][1];
        assert!(row["ops_per_s"].as_f64().unwrap() > 0.0 && row["threads"] == 4, "{row}");
        assert!(ended.text().contains("pwrite (held)"), "{}", ended.text());
    }
    assert!(entries(&site).is_empty(), "{:?}", entries(&site));
}

#[test]
fn a_soak_keeps_to_its_memory_and_checks_all_bytes() {
    let site = Site::new(2);
    let soak = |seconds: &str| {
        let line = ["soak", "--seconds", seconds, "--cache", "256MiB", "--size", "256MiB", "--threads", "2", "--json"];
        site.run(line).good().json()
    };
    let keys = ["reads", "writes", "pins", "syncs", "resizes", "flushes", "verified_bytes"];
    let has_done_all = |document: &Value| {
        keys.iter().all(|key| document[key].as_u64().unwrap() > 0) && document["memory"].as_array().unwrap().len() > 10
    };
    // On a busy machine three seconds may not be enough for one of each.
    let mut document = soak("3");
    if !has_done_all(&document) {
        document = soak("60");
    }
    assert!(has_done_all(&document), "{document}");
    // At the end the soak reads the whole file.
    assert!(document["verified_bytes"].as_u64().unwrap() > 256 << 20, "{document}");
    let bytes = |key: &str| document[key].as_u64().unwrap();
    assert!(bytes("used_max_bytes") > 4 << 20 && bytes("used_max_bytes") <= bytes("limit_bytes"), "{document}");
    assert!(bytes("used_closed_bytes") < bytes("used_final_bytes"), "{document}");
    assert_eq!((&document["is_within"], &document["cancelled"]), (&true.into(), &false.into()));
    let memory = document["memory"].as_array().unwrap();
    assert!(memory.iter().all(|at| at["used_bytes"].is_u64() && at["seconds"].is_f64()));
    assert!(crate::names(&site).is_empty());
}

/// Threads and rings take no more memory when the cache is small.
#[test]
fn a_soak_keeps_to_its_memory_with_a_small_cache() {
    let site = Site::bare(0);
    let line = ["soak", "--seconds", "2", "--cache", "16MiB", "--size", "64MiB", "--threads", "4", "--json"];
    let document = site.run_bare(line).good().json();
    let bytes = |key: &str| document[key].as_u64().unwrap();
    assert_eq!(bytes("limit_bytes"), (16 << 20) + (16 << 20) * 3 / 100 + (8 << 20));
    assert!(bytes("used_max_bytes") > 12 << 20 && bytes("used_max_bytes") <= bytes("limit_bytes"), "{document}");
    assert!(entries(&site).is_empty(), "{:?}", entries(&site));
}

#[test]
fn what_makes_no_sense_is_refused() {
    let site = Site::bare(0);
    for (arguments, said) in [
        (vec!["warm", "--rivals", "nobody"], "mmap-small-pages"),
        (vec!["warm", "--threads", "0"], "0"),
        (vec!["warm", "--threads", "1,x"], "x"),
        (vec!["warm", "--skew", "normal"], "uniform"),
        (vec!["warm", "--batch", "0"], "0"),
        (vec!["warm", "--size", "1000"], "at least one page"),
        (vec!["warm", "--size", "1P"], "smaller --size"),
        (vec!["warm", "--size", "1MiB", "--cache", "1"], "larger --cache"),
        (vec!["warm", "--set-size", "5"], "12"),
        (vec!["cold", "--policy", "best"], "s3-fifo"),
        (vec!["cold", "--cache", "1000", "--size", "8MiB"], "at least 1MiB"),
        (vec!["cold", "--cache", "64MiB", "--size", "65MiB"], "2 times --cache"),
        (vec!["mixed", "--hit-percent", "100"], "100"),
        (vec!["mixed", "--hit-percent", ""], "hit-percent"),
        (vec!["small-writes", "--threads", "2000"], "2000"),
        (vec!["soak", "--seconds", "0"], "0"),
        (vec!["soak", "--cache", "8MiB", "--size", "4MiB"], "larger --size"),
        (vec!["cold", "--dir", "/nonexistent"], "/nonexistent"),
    ] {
        let line: Vec<&str> = arguments;
        let ended = site.run_bare(line.clone());
        assert!(ended.code == 1 || ended.code == 2, "{line:?}: {}", ended.code);
        assert!(ended.err.contains(said), "{line:?}: {}", ended.err);
    }
    assert!(entries(&site).is_empty(), "{:?}", entries(&site));
}

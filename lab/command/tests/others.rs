//! `iomill-lab`: the rivals of other crates take part with those of iomill's own command, and can be chosen.

use std::fs;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::common::Site;

const SHORT: [&str; 7] = ["warm", "--size", "8MiB", "--rounds", "1", "--seconds", "0.1"];

fn run(more: &[&str]) -> Output {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_iomill-lab"));
    command.args(SHORT).args(more).env_remove("IOMILL_ARRAY").current_dir(dir.path()).stdin(Stdio::null());
    let output = command.output().unwrap();
    assert_eq!(dir.path().read_dir().unwrap().count(), 0, "something was left behind");
    output
}

/// The contenders of the measurement with uniform reads by one thread.
fn contenders(more: &[&str]) -> Vec<String> {
    let output = run(&[&["--threads", "1", "--skew", "uniform", "--json"], more].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = document["results"].as_array().unwrap();
    assert!(rows.iter().all(|row| row["ops_per_s"].as_f64().unwrap() > 0.0 && row["cache"] == "warm"), "{document}");
    rows.iter().map(|row| row["contender"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn rivals_take_part_beside_those_of_iomill() {
    let named = |way: &str| [1, 64, 512].map(|in_flight| format!("iomill-{way}-{in_flight}"));
    let flying: Vec<String> = ["future", "callback", "chain", "tokio-current", "tokio-driven", "tokio-multi"]
        .into_iter()
        .flat_map(named)
        .collect();
    let ours = ["iomill-read_at", "iomill-pin", "iomill-read_many"];
    let ours: Vec<&str> = ours.into_iter().chain(flying.iter().map(String::as_str)).collect();
    let all = [&ours[..], &["mmap", "mmap-small-pages", "pread", "quick_cache", "moka", "foyer", "tokio-fs"]].concat();
    assert_eq!(contenders(&[]), all);
    assert_eq!(contenders(&["--rivals", "moka,mmap"]), [&ours[..], &["mmap", "moka"]].concat());
    assert_eq!(contenders(&["--rivals", "none"]), ours);
}

#[test]
fn a_rival_of_another_measurement_is_refused() {
    let output = run(&["--rivals", "pwrite"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && said.contains("quick_cache, moka, foyer, tokio-fs"), "{said}");
}

/// SQLite and redb take part beside plain files, and each operation is done by all stores that have it.
#[test]
fn stores_take_part_in_the_measurement_of_files() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_iomill-lab"));
    command.args(["files", "--files", "5", "--threads", "2", "--rounds", "1", "--seconds", "0.1", "--json"]);
    let output = command.env_remove("IOMILL_ARRAY").current_dir(dir.path()).stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(dir.path().read_dir().unwrap().count(), 0, "something was left behind");
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = document["results"].as_array().unwrap();
    let of = |workload: &str| {
        let rows = rows.iter().filter(|row| row["workload"] == workload);
        rows.map(|row| row["contender"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let (iomill, stores) = (["iomill-1-copy", "iomill-3-copies"], ["plain-files", "sqlite", "redb"]);
    for (workload, others, stores) in [
        ("create-5000B", &["iomill-futures"][..], &stores[..]),
        ("put-5000B", &["iomill-futures"], &stores),
        ("delete", &["iomill-futures"], &stores),
        ("rename", &["iomill-no-sync"], &stores),
        ("stat-5", &[], &stores),
        ("open-5", &[], &stores[..1]),
        ("open-read-4KiB-5", &[], &stores),
        ("list-5", &[], &stores),
    ] {
        assert_eq!(of(workload), [&iomill, others, stores].concat(), "{workload}");
    }
}

#[test]
fn small_files_are_measured_beside_plain_ones() {
    let site = Site::bare(0);
    let few = ["files", "--files", "5", "--threads", "1,2", "--rounds", "1", "--seconds", "0.1", "--json"];
    let document = site.run_bare(few).good().json();
    let rows = document["results"].as_array().unwrap();
    // For each of two numbers of threads: eight operations by five contenders, less two openings, which stores lack;
    // three operations by futures; one without sync.
    assert_eq!(rows.len(), 2 * (8 * 5 - 2 + 3 + 1), "{document}");
    assert!(rows.iter().all(|row| row["ops_per_s"].as_f64().unwrap() > 0.0));
    assert_eq!(fs::read_dir(site.root()).unwrap().count(), 0, "something was left behind");
    let only = site.run_bare([&few[..], &["--rivals", "none"]].concat()).good().json();
    assert_eq!(only["results"].as_array().unwrap().len(), 2 * (8 * 2 + 3 + 1));
}

//! The whole program on little data: all contenders of the rows without a memory limit, with their checks.

#![allow(clippy::unwrap_used)]

use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

fn run(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_judge-bench"));
    command.args(["--rounds", "2", "--cold-mib", "256", "--puts", "300"]).args(arguments).output().unwrap()
}

#[test]
fn all_contenders_find_the_same_and_each_slice_is_in_its_state() {
    // On the drive of the target directory: the usual one for temporary files may be in memory.
    let dir = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let run = run(&["--dir", dir.path().to_str().unwrap(), "--only", "cold", "--only", "puts", "--json"]);
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let rows: Value = serde_json::from_slice(&run.stdout).unwrap();
    let names = |row: usize| -> Vec<&str> {
        let contenders = rows[row]["contenders"].as_array().unwrap();
        assert!(
            contenders.iter().all(|one| one["rate"].as_f64().unwrap() > 0.0 && one["cpu_us"].as_f64().unwrap() > 0.0)
        );
        contenders.iter().map(|one| one["contender"].as_str().unwrap()).collect()
    };
    assert_eq!(names(0), ["local", "iomill-plain", "iomill-array"]);
    assert_eq!(names(1), ["local-fsync", "iomill-array"]);
    for contender in rows[0]["contenders"].as_array().unwrap() {
        assert!(contender["fetched_bytes"].as_f64().unwrap() > 3_600.0, "{contender}");
    }
}

#[test]
fn damaged_data_have_no_figure() {
    let dir = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let arguments = ["--dir", dir.path().to_str().unwrap(), "--only", "cold", "--cold-mib", "64"];
    assert!(run_small(&arguments).status.success());
    let pages = dir.path().join("plain").join("pages-16384");
    std::fs::write(&pages, vec![0; 64 << 20]).unwrap();
    let damaged = run_small(&arguments);
    let said = String::from_utf8_lossy(&damaged.stderr);
    assert!(
        !damaged.status.success() && said.contains("row cold, local, round 0") && said.contains("other bytes"),
        "{said}"
    );
}

fn run_small(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_judge-bench")).args(["--rounds", "1"]).args(arguments).output().unwrap()
}

#[test]
fn an_unknown_row_is_refused_with_the_names_of_all() {
    let dir = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let refused = run(&["--dir", dir.path().to_str().unwrap(), "--only", "wrm"]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains("cold, warm, puts"), "{said}");
}

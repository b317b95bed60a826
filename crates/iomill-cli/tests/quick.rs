//! `iomill bench quick`: it measures what it promises, says what is missing, and leaves nothing behind.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};

use crate::common::{Site, is_root, send};

fn entries(site: &Site) -> Vec<String> {
    fs::read_dir(site.root()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// Each contender has figures, or the reason why not: the tests may run where io_uring or direct I/O is missing.
#[test]
fn each_contender_has_figures_or_a_reason() {
    let site = Site::bare(0);
    let table = site.run_bare(["--quiet", "bench", "quick", "--size", "4MiB", "--json", "out.json"]).good();
    let document: serde_json::Value = serde_json::from_slice(&fs::read(site.path("out.json")).unwrap()).unwrap();
    assert_eq!(entries(&site), ["out.json"], "nothing is left behind");
    let [results, left_out] = ["results", "left_out"].map(|key| document[key].as_array().unwrap());
    let name =
        |row: &serde_json::Value| format!("{} {}", row["group"].as_str().unwrap(), row["contender"].as_str().unwrap());
    let mut names: Vec<String> = results.iter().chain(left_out).map(name).collect();
    names.sort();
    let cold = ["cold iomill-read_many", "cold uring-by-hand"];
    let one = ["cold-one iomill-read_at", "cold-one mmap", "cold-one pread", "cold-one uring-by-hand"];
    let warm = ["warm iomill-read_at", "warm iomill-read_many", "warm mmap", "warm pread"];
    assert_eq!(names, [&cold[..], &one, &warm].concat());
    assert!(left_out.iter().all(|out| !out["why"].as_str().unwrap().is_empty()), "{left_out:?}");
    assert_eq!(name(&results[0]), cold[0], "{document}");
    for row in results {
        for key in ["ops_per_s", "min_ops_per_s", "max_ops_per_s", "bytes_per_s", "cpu_us_per_op"] {
            assert!(row[key].as_f64().unwrap() > 0.0, "{key}: {row}");
        }
        let is_single = row["group"] != "cold" && row["contender"] != "iomill-read_many";
        assert_eq!(
            row["p50_us"].is_f64() && row["p99_us"].is_f64(),
            is_single,
            "a batch has no latency of a read: {row}"
        );
        assert!(row["ratio"].is_null() == row["ratio_to"].is_null(), "{row}");
    }
    assert_eq!((&document["bytes"], &document["warm_bytes"]), (&(4 << 20).into(), &(1 << 20).into()));
    let machine = &document["machine"];
    assert!(machine["cores"].as_u64().unwrap() > 0 && machine["drives"].as_array().unwrap().len() == 4, "{machine}");
    for said in [
        "from the drive, 128 at a time",
        "one at a time",
        "from memory",
        "iomill read_many",
        "io_uring by hand",
        "Limit: ",
    ] {
        assert!(table.text().contains(said), "{said}: {}", table.text());
    }
    assert_eq!(table.text().matches("No figures of").count() > 0, !left_out.is_empty(), "{}", table.text());
}

/// Starts a measurement, and waits until it says that it reads.
fn reading(site: &Site) -> Child {
    let mut command = site.bare_command(["bench", "quick", "--size", "16MiB"]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut told = BufReader::new(child.stderr.take().unwrap()).lines();
    // Without a terminal each phase is a line, once two seconds have passed.
    assert!(told.any(|line| line.unwrap().starts_with("round ")), "no phase was told");
    child
}

#[test]
fn a_signal_removes_all_and_the_next_measurement_what_a_killed_one_left() {
    let site = Site::bare(0);
    let mut child = reading(&site);
    send(&child, libc::SIGINT);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(entries(&site).is_empty(), "{:?}", entries(&site));

    let mut child = reading(&site);
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(entries(&site).iter().all(|name| name.starts_with("iomill-bench-")) && !entries(&site).is_empty());
    site.run_bare(["--quiet", "bench", "quick", "--size", "4MiB"]).good();
    assert!(entries(&site).is_empty(), "{:?}", entries(&site));
}

#[test]
fn memory_is_no_drive_to_measure() {
    // Only where a file system in memory can be written to.
    if let Ok(place) = tempfile::tempdir_in("/dev/shm") {
        let site = Site::bare(0);
        let ended = site.run_bare(["bench", "quick", "--dir", place.path().to_str().unwrap()]);
        ended.failed(1, &["in memory", "--dir"]);
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
    }
}

#[test]
fn what_cannot_be_measured_is_refused() {
    let site = Site::bare(0);
    let refused = |arguments: &[&str], code, words: &[&str]| {
        site.run_bare([&["bench", "quick"], arguments].concat()).failed(code, words);
    };
    refused(&["--dir", "/nonexistent"], 1, &["/nonexistent"]);
    refused(&["--dir", "/proc"], 1, &["/proc has 0 B free", "--dir"]);
    refused(&["--size", "3MiB"], 2, &["--size", "4 MiB"]);
    refused(&["--size", "65GiB"], 2, &["--size", "64 GiB"]);
    refused(&["--json", "no/such.json"], 1, &["no/such.json"]);
    if !is_root() {
        let locked = site.path("locked");
        fs::create_dir(&locked).unwrap();
        fs::set_permissions(&locked, std::os::unix::fs::PermissionsExt::from_mode(0o500)).unwrap();
        refused(&["--dir", "locked"], 1, &["cannot create", "locked", "--dir"]);
        fs::remove_dir(&locked).unwrap();
    }
    assert!(entries(&site).is_empty(), "{:?}", entries(&site));
}

//! `iomill probe`.

use std::fs;

use crate::common::{Ended, Site};

fn probe(site: &Site, arguments: &[&str]) -> Ended {
    let all = ["probe", "--quiet"].iter().chain(arguments).copied();
    Ended::of(site.bare_command(all).env_remove("IOMILL_ARRAY").output().unwrap())
}

const SHORT: [&str; 4] = ["--size", "4MiB", "--seconds", "0.1"];

#[test]
fn an_array_is_probed_and_left_as_it_was() {
    let site = Site::new(2);
    let before: Vec<usize> = site.drives().map(|drive| fs::read_dir(drive).unwrap().count()).collect();
    let document = probe(&site, &[&SHORT[..], &["-a", "ssd1", "--threads", "2", "--json"]].concat()).good().json();
    let verdict = document["verdict"][0].as_str().unwrap();
    assert!(verdict.contains("the limit"), "{verdict}");
    assert_eq!(document["drives"].as_array().unwrap().len(), 2);
    for (list, at_least) in [
        ("depths", 8),
        ("depths_wide", 8),
        ("sizes", 5),
        ("threads", 2),
        ("threads_wide", 2),
        ("drive_counts", 2),
        ("drive_counts_wide", 2),
        ("ways", 1),
        ("paths", 2),
    ] {
        let points = document[list].as_array().unwrap();
        assert!(points.len() >= at_least, "{list}: {points:?}");
        assert!(points.iter().all(|point| point["iops"].as_f64().unwrap() > 0.0), "{list}: {points:?}");
    }
    assert!(document["best_depth"].is_u64() && document["weights"].as_array().unwrap().len() == 2);
    assert!(document["costs"]["system_call_ns"].as_f64().unwrap() > 0.0);
    for drive in document["drives"].as_array().unwrap() {
        assert_eq!(drive["depths"].as_array().unwrap().len(), 8);
        let latency = &drive["latency"];
        let split = latency["device_us"].as_f64().unwrap() + latency["platform_us"].as_f64().unwrap();
        assert!((split - latency["split_us"].as_f64().unwrap()).abs() < 0.01, "{latency}");
        let by = latency["split_by"].as_str().unwrap();
        assert!(["tracing", "count", "subtraction"].iter().any(|word| by.contains(word)), "{by}");
        assert_eq!(latency["submit_us"].is_null(), !by.starts_with("the kernel's tracing"), "{latency}");
    }
    let counted = document["paths"].as_array().unwrap().iter().all(|path| path["cycles_per_op"].is_f64());
    assert_ne!(counted, document["cycles_by"].as_str().unwrap().starts_with("not counted: "));
    let polled = document["paths"].as_array().unwrap().iter().any(|path| path["polled"] == true);
    let left_out = document["paths_left_out"].as_array().unwrap();
    assert_ne!(polled, left_out.iter().any(|why| why.as_str().unwrap().starts_with("polling on ")), "{left_out:?}");
    let after: Vec<usize> = site.drives().map(|drive| fs::read_dir(drive).unwrap().count()).collect();
    assert_eq!(after, before);
}

#[test]
fn the_verdict_stands_on_top_of_the_tables_and_the_document_may_go_to_a_file() {
    let site = Site::bare(1);
    let ended = probe(
        &site,
        &[&SHORT[..], &["ssd0", "--threads", "1", "--json", "probe.json", "--html", "probe.html"]].concat(),
    )
    .good();
    assert!(ended.text().starts_with("- "), "{}", ended.text());
    for words in ["in flight on each drive are enough", "p50", "system call", "of linear", "aio-by-hand"] {
        assert!(ended.text().contains(words), "{words:?} is not in {}", ended.text());
    }
    assert_ne!(ended.text().contains("uring-by-hand"), ended.text().contains("not measured: io_uring: "));
    let page = fs::read_to_string(site.path("probe.html")).unwrap();
    assert!(page.contains("the limit") && page.matches("<svg").count() == 8, "{page}");
    let document: serde_json::Value = serde_json::from_slice(&fs::read(site.path("probe.json")).unwrap()).unwrap();
    assert_eq!(document["drives"].as_array().unwrap().len(), 1);
    assert_eq!(fs::read_dir(site.drive(0)).unwrap().count(), 0);
}

#[test]
fn of_a_plain_file_the_directory_is_probed() {
    let site = Site::bare(1);
    for name in ["ssd0/a.bin", "ssd0/b.bin"] {
        site.file(name, &[7; 5000]);
    }
    std::os::unix::fs::symlink("ssd0/a.bin", site.path("linked.bin")).unwrap();
    let line = ["ssd0/a.bin", "ssd0/b.bin", "linked.bin", "--threads", "1", "--json"];
    let document = probe(&site, &[&SHORT[..], &line].concat()).good().json();
    let drives = document["drives"].as_array().unwrap();
    let drive = site.drive(0).canonicalize().unwrap();
    assert!(drives.len() == 1 && drives[0]["path"] == drive.to_str().unwrap(), "{drives:?}");
    assert_eq!(document["notices"].to_string().matches("nothing in the file is read or changed").count(), 3);
    assert_eq!(fs::read_dir(site.drive(0)).unwrap().count(), 2);
    assert_eq!(fs::read(site.path("ssd0/a.bin")).unwrap(), [7; 5000]);
    probe(&site, &["ssd0/a.bin", "--profile", "ssds.toml"]).failed(2, &["--profile", "iomill init"]);
}

#[test]
fn nothing_to_measure_is_said_and_is_no_failure() {
    let site = Site::bare(1);
    assert!(probe(&site, &[]).good().text().contains("nothing to measure: name a directory"));
    assert!(probe(&site, &["/dev/shm"]).good().text().contains("nothing to measure: /dev/shm: "));
    let document = probe(&site, &["/dev/shm", "--json"]).good().json();
    assert!(
        document["drives"].as_array().unwrap().is_empty()
            && document["verdict"][0].as_str().unwrap().contains("/dev/shm")
    );
}

/// A probe that ends early leaves no empty result files, whether it fails or not.
#[test]
fn results_are_written_whole_or_not_at_all() {
    let site = Site::bare(1);
    let files = ["--html", "page.html", "--json", "probe.json"];
    let ended = probe(&site, &[&["/dev/shm"], &files[..]].concat()).good();
    assert!(ended.text().contains("no page was written"), "{}", ended.text());
    let document: serde_json::Value = serde_json::from_slice(&fs::read(site.path("probe.json")).unwrap()).unwrap();
    assert!(document["verdict"][0].as_str().unwrap().contains("/dev/shm"), "{document}");
    assert!(!site.path("page.html").exists());
    fs::remove_file(site.path("probe.json")).unwrap();
    probe(&site, &[&["ssd0", "--size", "4KiB"], &files[..]].concat()).failed(2, &["1MiB"]);
    assert!(!site.path("page.html").exists() && !site.path("probe.json").exists());
    site.file("kept", b"before");
    probe(&site, &["ssd0", "--size", "4KiB", "--html", "kept"]).failed(2, &["1MiB"]);
    assert_eq!(fs::read(site.path("kept")).unwrap(), b"before");
    probe(&site, &["ssd0", "--html", "same", "--json", "./same"]).failed(2, &["--html and --json", "same file"]);
    probe(&site, &["ssd0", "--html", "ssd0"]).failed(1, &["cannot write", "ssd0"]);
    // Any block device in /dev will do: the command looks at its type and does not open it.
    let devices = fs::read_dir("/dev").unwrap().flatten().map(|entry| entry.path());
    let is_block = |path: &std::path::PathBuf| {
        use std::os::unix::fs::FileTypeExt;
        fs::metadata(path).is_ok_and(|found| found.file_type().is_block_device())
    };
    for device in devices.filter(is_block).take(1) {
        // If the device were accepted by mistake, the size would be refused before any write.
        let line = ["ssd0", "--size", "4KiB", "--html", device.to_str().unwrap()];
        probe(&site, &line).failed(2, &["block device", "would be lost"]);
    }
}

#[test]
fn arguments_that_make_no_sense_are_refused() {
    let site = Site::bare(1);
    probe(&site, &["ssd0", "./ssd0"]).failed(2, &["ssd0", "same directory", "once"]);
    probe(&site, &["nowhere"]).failed(1, &["nowhere", "No such file"]);
    probe(&site, &["ssd0", "--size", "4KiB"]).failed(2, &["4096 bytes", "1MiB"]);
    probe(&site, &[&SHORT[..], &["ssd0", "--html", "no/such/file"]].concat())
        .failed(1, &["cannot write", "no/such/file"]);
    probe(&site, &["--raw", "ssd0"]).failed(1, &["ssd0", "no block device", "/dev/nvme0n1"]);
    probe(&site, &["--raw", "/dev/nowhere"]).failed(1, &["/dev/nowhere", "No such file"]);
    probe(&site, &["ssd0", "--seconds", "0"]).failed(2, &["0.1 to 600"]);
    probe(&site, &["ssd0", "--threads", "0"]).failed(2, &["--threads"]);
    assert_eq!(fs::read_dir(site.drive(0)).unwrap().count(), 0);
}

/// A place that cannot be measured is reported, and is no failure. A path that does not exist is one.
#[test]
fn places_that_cannot_be_written_are_left_out() {
    let site = Site::bare(0);
    let ended = probe(&site, &[&SHORT[..], &["/proc"]].concat()).good();
    assert!(ended.text().contains("/proc: it cannot be written to"), "{}", ended.text());
    probe(&site, &[&SHORT[..], &["/dev/null"]].concat()).failed(2, &["/dev/null", "not a directory", "--raw"]);
    probe(&site, &[&SHORT[..], &["nowhere"]].concat()).failed(1, &["nowhere", "No such file"]);
}

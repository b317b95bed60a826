//! `iomill-lab work` and `paper`: each program runs on each contender, all results are equal, and nothing is left
//! behind.

use std::fs;

use crate::common::Site;
use serde_json::Value;

/// The names in the site's directory that belong to a measurement.
fn leftovers(site: &Site) -> Vec<String> {
    let names = fs::read_dir(site.root()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with("iomill-bench-") || name.starts_with("iomill-paper-")).collect()
}

/// Whether the memory of processes can be limited here. Otherwise the measurement gives the reason and does not begin.
fn is_limited(site: &Site) -> bool {
    let Some(why) = iomill_contenders::held::why_not() else { return true };
    site.run_bare(["work", "labels", "--size", "8MiB", "--dir", "."]).failed(1, &[&why]);
    println!("skipped: no memory cgroup can be made here: {why}");
    false
}

#[test]
fn each_program_runs_on_each_contender() {
    let site = Site::bare(0);
    if !is_limited(&site) {
        return;
    }
    for (load, parts, rivals) in [
        ("kv", 6, &["mmap", "pread-16", "redb"][..]),
        ("graph", 5, &["mmap-16", "pread-16", "pread-256"]),
        ("labels", 2, &["mmap", "pread-16"]),
        ("vectors", 2, &["mmap", "mmap-16", "pread-16", "pread-256"]),
        ("train", 1, &["mmap", "mmap-16", "pread-16", "pread-256"]),
    ] {
        let line = ["work", load, "--size", "16MiB", "--rounds", "1", "--dir", ".", "--json", "out.json"];
        let table = site.run_bare(line).good().text().to_owned();
        let document: Value = serde_json::from_str(&fs::read_to_string(site.path("out.json")).unwrap()).unwrap();
        let results = document["results"].as_array().unwrap();
        for name in rivals.iter().chain(&["iomill"]) {
            let rows: Vec<&Value> = results.iter().filter(|row| row["contender"] == *name).collect();
            assert_eq!(rows.len(), parts, "{load} by {name}: {document}");
            for row in rows {
                assert!(row["per_s"].as_f64().unwrap() > 0.0 && row["cpu_us"].as_f64().unwrap() >= 0.0, "{row}");
                assert!(row["best_rival"].is_string() && row["ratio_to_best_rival"].as_f64().unwrap() > 0.0, "{row}");
            }
            assert!(table.contains(name), "{table}");
        }
        for out in document["left_out"].as_array().unwrap() {
            // The stores of others are not installed everywhere.
            let (who, why) = (out["contender"].as_str().unwrap(), out["why"].as_str().unwrap());
            assert!(["rocksdb", "lmdb", "wiredtiger"].contains(&who) && why.contains("install"), "{out}");
            assert!(table.contains(&format!("No figures of {who}")), "{table}");
        }
        assert_eq!(leftovers(&site), [""; 0], "{load}");
    }
    site.run_bare(["work", "train", "--rivals", "rocksdb"]).failed(2, &["rocksdb takes no part in train", "mmap"]);
    site.run_bare(["work", "sorting"]).failed(2, &["sorting", "graph"]);
    site.run_bare(["work", "kv", "--size", "1KiB"]).failed(2, &["8MiB to 1TiB"]);
}

#[test]
fn the_evaluation_is_a_report_that_goes_on_where_it_was() {
    let site = Site::bare(0);
    if !is_limited(&site) {
        return;
    }
    let line = ["paper", "--quick", "--only", "labels,policies", "--report", "r", "--dir", "."];
    let table = site.run_bare(line).good().text().to_owned();
    assert!(table.contains("labels") && table.contains("policies") && table.contains("not told"), "{table}");
    let report = fs::read_to_string(site.path("r/report.html")).unwrap();
    for said in ["<svg", "written and durable", "iomill-lab work labels", "SC'13, figure 11", "A quick run"] {
        assert!(report.contains(said), "{said}: {report}");
    }
    let document: Value = serde_json::from_str(&fs::read_to_string(site.path("r/report.json")).unwrap()).unwrap();
    let labels = &document["experiments"][1];
    assert_eq!(labels["name"], "labels");
    assert!(labels["points"].as_array().unwrap().iter().any(|point| point["series"] == "iomill"), "{labels}");
    assert!(labels["quiet"]["before"]["reads_per_s"].as_f64().unwrap() > 0.0, "{labels}");
    assert!(fs::read_to_string(site.path("r/report.csv")).unwrap().contains("labels,\"written and durable"));
    // A step with a document is not run again; a step without one is.
    let step = site.path("r/steps/labels/labels.json");
    let first = fs::read_to_string(&step).unwrap();
    site.run_bare(line).good();
    assert_eq!(fs::read_to_string(&step).unwrap(), first);
    fs::remove_file(&step).unwrap();
    site.run_bare(line).good();
    assert_ne!(fs::read_to_string(&step).unwrap(), first);
    assert_eq!(leftovers(&site), [""; 0]);
    site.run_bare(["paper", "--only", "figure-99"]).failed(2, &["figure-99", "policies", "labels"]);
}

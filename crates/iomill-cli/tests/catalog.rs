//! The catalog by hand, and the measurement of small files.

#![allow(clippy::unwrap_used)]

mod common;

use std::fs;

use common::Site;

#[test]
fn a_catalog_goes_out_as_text_and_comes_back() {
    let site = Site::new(2);
    site.feed(["put", "-", "kept"], b"content").good();
    site.run(["catalog", "export", "catalog.txt"]).good();
    let text = fs::read_to_string(site.path("catalog.txt")).unwrap();
    assert_eq!(site.run(["catalog", "export"]).good().text(), text);
    assert!(text.starts_with("iomill-catalog 2\narray ") && text.ends_with("end 1\n"), "{text}");
    site.run(["mv", "kept", "renamed"]).good();
    let said = site.run(["catalog", "import", "catalog.txt", "--json"]).good();
    assert_eq!(said.json()["files"], 1);
    assert_eq!(site.run(["ls"]).good().text(), "kept\n");
    assert_eq!(site.run(["get", "kept", "-"]).good().text(), "content");
    site.run(["check"]).good();
    site.file("wrong", text.replace(" live ", " alive ").as_bytes());
    site.run(["catalog", "import", "wrong"]).failed(2, &["line ", "alive"]);
    site.run(["catalog", "import", "nowhere"]).failed(1, &["nowhere"]);
    assert_eq!(site.run(["ls"]).good().text(), "kept\n");
    let document = site.run(["catalog", "export", "--json"]).good().json();
    assert!(document["catalog"].as_str().unwrap().contains("kept"));
}

#[test]
fn small_files_are_measured_beside_plain_ones() {
    let site = Site::bare(0);
    let few = ["bench", "files", "--files", "5", "--threads", "1,2", "--rounds", "1", "--seconds", "0.1", "--json"];
    let document = site.run_bare(few).good().json();
    let rows = document["results"].as_array().unwrap();
    // With two numbers of threads: eight operations by three contenders, three by futures, and one without sync.
    assert_eq!(rows.len(), 2 * (8 * 3 + 3 + 1), "{document}");
    assert!(rows.iter().all(|row| row["ops_per_s"].as_f64().unwrap() > 0.0));
    assert_eq!(fs::read_dir(site.root()).unwrap().count(), 0, "something was left behind");
    let only = site.run_bare([&few[..], &["--rivals", "none"]].concat()).good().json();
    assert_eq!(only["results"].as_array().unwrap().len(), 2 * (8 * 2 + 3 + 1));
    site.run_bare([&few[..], &["--rivals", "sqlite"]].concat()).failed(2, &["sqlite", "rivals/Cargo.toml"]);
}

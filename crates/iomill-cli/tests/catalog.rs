//! The catalog by hand, and the measurement of small files.

use std::fs;

use crate::common::Site;

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
    // `-` is a stream. Seen to fail when it was a file.
    assert_eq!(site.run(["catalog", "export", "-"]).good().text(), text);
    assert!(!site.path("-").exists());
    site.run(["mv", "kept", "renamed"]).good();
    site.feed(["catalog", "import", "-"], text.as_bytes()).good();
    assert_eq!(site.run(["ls"]).good().text(), "kept\n");
    site.file("wrong", text.replace(" live ", " alive ").as_bytes());
    site.run(["catalog", "import", "wrong"]).failed(2, &["line ", "alive"]);
    site.run(["catalog", "import", "nowhere"]).failed(1, &["nowhere"]);
    assert_eq!(site.run(["ls"]).good().text(), "kept\n");
    let document = site.run(["catalog", "export", "--json"]).good().json();
    assert!(document["catalog"].as_str().unwrap().contains("kept"));
}

/// A text from elsewhere cannot use up the numbers of files.
///
/// Seen to fail: the text was taken, and the next `put` panicked.
#[test]
fn a_text_with_an_impossible_number_is_refused() {
    let site = Site::new(2);
    site.feed(["put", "-", "a"], b"content").good();
    let text = site.run(["catalog", "export"]).good().text().to_owned();
    let next = text.lines().nth(2).unwrap();
    for number in ["9223372036854775808", "18446744073709551615"] {
        site.file("bad", text.replace(next, &format!("next {number}")).as_bytes());
        site.run(["catalog", "import", "bad"]).failed(2, &["line 3", number, "no file can have"]);
    }
    site.feed(["put", "-", "b"], b"content").good();
    assert_eq!(site.names(), ["a", "b"]);
}

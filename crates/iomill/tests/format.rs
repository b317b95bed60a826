//! `docs/format.md` is enough to read an array: a Python program written from it finds the same files and bytes.

use std::path::{Path, PathBuf};
use std::process::Command;

use iomill::{Array, ArrayOptions, CreateOptions, FileOptions, Layout};

/// The reader with some arguments; `None` where there is no Python that can run it.
fn read(arguments: &[&str], drives: &[PathBuf]) -> Option<Vec<u8>> {
    let reader = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/read_array.py");
    let has_toml =
        Command::new("python3").args(["-c", "import tomllib"]).output().is_ok_and(|ran| ran.status.success());
    if !has_toml {
        eprintln!("skipped: no python3 of version 3.11 or later");
        return None;
    }
    let output = Command::new("python3").arg("-B").arg(reader).args(arguments).args(drives).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{arguments:?}");
    Some(output.stdout)
}

fn bytes_of(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fastrand::Rng::with_seed(seed).fill(&mut bytes);
    bytes
}

/// The reader refuses a rotted page of a file with sums.
fn rot_is_found(drives: &[PathBuf], name: &str) {
    let array = ArrayOptions::new().read_only(true).open_at(drives).unwrap();
    let part = array.stat(name).unwrap().parts[0].0.clone();
    array.close().unwrap();
    let bytes = std::fs::read(&part).unwrap();
    let mut rotten = bytes.clone();
    rotten[5] ^= 1;
    std::fs::write(&part, rotten).unwrap();
    let reader = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/read_array.py");
    let output = Command::new("python3").arg("-B").arg(reader).args(["--get", name]).args(drives).output();
    if let Ok(output) = output {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "a rotten page was given out");
        assert!(said.contains("not what was written") || said.contains("tomllib"), "{said}");
    }
    std::fs::write(&part, bytes).unwrap();
}

#[test]
fn a_program_written_from_the_page_reads_an_array() {
    let dir = tempfile::tempdir().unwrap();
    let drives: Vec<PathBuf> = (0..3).map(|drive| dir.path().join(format!("d{drive}"))).collect();
    drives.iter().for_each(|drive| std::fs::create_dir(drive).unwrap());
    let array = ArrayOptions::new().create_with(&drives, &CreateOptions::new().weights([10, 11, 7])).unwrap();
    let mut expected = Vec::new();
    let summed = [
        FileOptions::new().layout(Layout::Rotated).checksums(true),
        FileOptions::new().layout(Layout::Hash).checksums(true),
    ];
    let layouts = [
        FileOptions::new(),
        FileOptions::new().layout(Layout::Rotated),
        FileOptions::new().layout(Layout::Hash),
        FileOptions::new().layout(Layout::Hash).drives([1]),
    ];
    let layouts = layouts.into_iter().chain(summed);
    for (kind, layout) in layouts.enumerate() {
        for (at, len) in [0, 5000, 700_001].into_iter().enumerate() {
            let (name, bytes) = (format!("dir {kind}/file-{at}"), bytes_of(len, at as u64));
            let file = array.create_file(&name, &layout.clone().block_bytes(4096 << (at % 2 * 3))).unwrap();
            file.write_at(&bytes, 0).unwrap();
            array.set_attribute(&name, "kind", Some("some value")).unwrap();
            file.close().unwrap();
            expected.push((name, bytes));
        }
    }
    // Created and deleted files, for a longer log, and a writer that did not close.
    array.create_file("round 0", &FileOptions::new()).unwrap().close().unwrap();
    for round in 0..120 {
        array.rename(&format!("round {round}"), &format!("round {}", round + 1)).unwrap();
    }
    array.delete("round 120").unwrap();
    check(&expected[..2], &drives, expected.len());
    array.close().unwrap();
    check(&expected, &drives, expected.len());
    rot_is_found(&drives, "dir 4/file-2");
    let again = ArrayOptions::new().open_at(&drives).unwrap();
    again.delete(&expected.remove(3).0).unwrap();
    again.close().unwrap();
    check(&expected[2..5], &drives, expected.len());
}

/// The reader lists `files` files, and finds these among them.
fn check(expected: &[(String, Vec<u8>)], drives: &[PathBuf], files: usize) {
    let Some(list) = read(&[], drives) else { return };
    let list = String::from_utf8(list).unwrap();
    assert_eq!(list.lines().count(), files, "{list}");
    for (name, bytes) in expected {
        let line = format!(" {} {name}", bytes.len());
        assert!(list.lines().any(|found| found.ends_with(&line)), "{name} is not in {list}");
        assert!(read(&["--get", name], drives).as_ref() == Some(bytes), "{name} differs");
    }
}

/// The catalog as text, and back: an older text restores older names, and repairs a damaged catalog.
#[test]
fn a_catalog_is_exported_and_imported() {
    let dir = tempfile::tempdir().unwrap();
    let drives: Vec<PathBuf> = (0..2).map(|drive| dir.path().join(format!("d{drive}"))).collect();
    drives.iter().for_each(|drive| std::fs::create_dir(drive).unwrap());
    let array = Array::create(&drives).unwrap();
    let bytes = bytes_of(500_000, 1);
    let file = array.create_file("kept", &FileOptions::new()).unwrap();
    file.write_at(&bytes, 0).unwrap();
    file.close().unwrap();
    array.close().unwrap();
    let text = ArrayOptions::new().export_catalog(&drives).unwrap();
    let array = ArrayOptions::new().open_at(&drives).unwrap();
    array.rename("kept", "renamed").unwrap();
    assert!(ArrayOptions::new().import_catalog(&drives, &text).is_err(), "a writer has it open");
    array.close().unwrap();
    for damage in [false, true] {
        if damage {
            for drive in &drives {
                for entry in std::fs::read_dir(drive.join("iomill/log")).unwrap() {
                    std::fs::write(entry.unwrap().path(), "damaged").unwrap();
                }
            }
            assert!(ArrayOptions::new().open_at(&drives).is_err());
        }
        assert_eq!(ArrayOptions::new().import_catalog(&drives, &text).unwrap(), 1);
        let array = ArrayOptions::new().open_at(&drives).unwrap();
        assert_eq!(array.list("").names().unwrap(), ["kept"]);
        let mut read = vec![0; bytes.len()];
        array.open_file("kept").unwrap().read_at(&mut read, 0).unwrap();
        assert!(read == bytes);
        array.close().unwrap();
        assert!(ArrayOptions::new().check(&drives, false).unwrap().is_clean());
    }
    assert_eq!(ArrayOptions::new().export_catalog(&drives).unwrap().lines().count(), text.lines().count());
}

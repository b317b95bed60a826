//! The command `iomill-cache`, beside an open cache.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Output};

use super::{Rig, expected, random, rows, scratch};

fn run(arguments: &[&str], index: &Path, dirs: &[std::path::PathBuf]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_iomill-cache"));
    command.args(arguments).arg("--index").arg(index).args(dirs).output().unwrap()
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[tokio::test]
async fn a_cache_is_made_looked_at_and_emptied() {
    let rig = Rig::immutable();
    let bytes = random(4 << 20, 1);
    rig.behind("a", bytes.clone()).await;
    let wanted = rows(bytes.len() as u64);
    rig.ranges("a", &wanted).await.unwrap();
    rig.cache.flush();
    rig.ranges("a", &wanted).await.unwrap();
    let drives = super::drives(&rig.dir);
    let stat = run(&["stat"], rig.dir.path(), &drives);
    let text = said(&stat);
    assert!(stat.status.success() && text.lines().count() == 2, "{text}");
    let cached: u64 = rig.cache.stat().iter().map(|drive| drive.filled_bytes).sum();
    assert_eq!(cached, bytes.len() as u64);
    assert!(rig.cache.stat().iter().all(|drive| drive.touched_bytes == drive.filled_bytes && drive.is_loaded));
    let blocks =
        || drives.iter().map(|drive| drive.join("iomill-origin/data").metadata().unwrap().blocks()).sum::<u64>();
    assert!(blocks() * 512 >= bytes.len() as u64);
    let evict = run(&["evict"], rig.dir.path(), &drives);
    assert!(evict.status.success() && said(&evict).contains("given back"), "{}", said(&evict));
    assert_eq!(blocks(), 0);
    // The open cache finds no granule, and fills them again.
    for round in 0..2 {
        let before = rig.cache.counters();
        assert_eq!(rig.ranges("a", &wanted).await.unwrap(), expected(&bytes, &wanted));
        rig.cache.flush();
        let done = rig.since(&before);
        assert_eq!((done.gets > 0, done.hits), (round == 0, round * wanted.len() as u64), "{done:?}");
    }
    // Nor does one that begins with the summaries.
    rig.cache.evict().unwrap();
    let rig = rig.reopened(|options| options, super::forget_index);
    assert!(rig.cache.stat().iter().all(|drive| drive.filled_bytes == 0));
}

/// Seen to fail by panics: of the macros that print, and of the arguments' text.
#[test]
fn output_that_fails_and_names_that_are_no_text_are_no_panics() {
    use std::fs::File;
    use std::os::unix::ffi::OsStringExt;
    let dir = scratch();
    let name = std::ffi::OsString::from_vec(b"drive-\xff".to_vec());
    let drive = dir.path().join(name);
    std::fs::create_dir(&drive).unwrap();
    let made = run(&["init"], dir.path(), std::slice::from_ref(&drive));
    assert!(made.status.success() && drive.join("iomill-origin").is_dir(), "{}", said(&made));
    let full = || File::options().write(true).open("/dev/full").unwrap();
    let help = || Command::new(env!("CARGO_BIN_EXE_iomill-cache"));
    let ended = help().stdout(full()).output().unwrap();
    assert!(ended.status.code() == Some(1) && said(&ended).contains("No space left"), "{}", said(&ended));
    assert_eq!(help().stdout(full()).stderr(full()).status().unwrap().code(), Some(1));
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let ended = help().stdout(writer).output().unwrap();
    assert!(ended.status.code() == Some(141) && said(&ended).is_empty(), "{}", said(&ended));
    let ended = help().args([std::ffi::OsString::from_vec(b"\xff".to_vec()), "x".into()]).output().unwrap();
    assert!(ended.status.code() == Some(2) && said(&ended).contains("no command"), "{}", said(&ended));
}

/// Seen to end with 0 when /dev/null took the place of a closed stream, and when EBADF counted as success.
#[test]
fn a_standard_output_that_is_closed_or_only_for_reading_is_an_error() {
    let dir = scratch();
    let drives = super::drives(&dir);
    assert!(run(&["init", "--bytes", "64MiB"], dir.path(), &drives).status.success());
    let stat = ["stat".as_ref(), "--index".as_ref(), dir.path().as_os_str(), drives[0].as_os_str()];
    for refused in [">&-", "1</dev/null"] {
        for arguments in [&["--help".as_ref()][..], &stat[..]] {
            let script = format!("exec \"$0\" \"$@\" {refused}");
            let mut shell = Command::new("sh");
            let ended = shell.args(["-c", &script, env!("CARGO_BIN_EXE_iomill-cache")]).args(arguments).output();
            let ended = ended.unwrap();
            let text = said(&ended);
            assert!(ended.status.code() == Some(1) && text.contains("standard output"), "{refused}: {text}");
        }
    }
}

#[test]
fn wrong_commands_are_refused_in_words_and_make_nothing() {
    let dir = scratch();
    let drives = super::drives(&dir);
    for (arguments, word) in [
        (&["stat"][..], "init"),
        (&["evict"][..], "no drive"),
        (&["nonsense"][..], "no command"),
        (&["init", "--nonsense"][..], "no option"),
        (&["init", "--bytes", "5X"][..], "M, G, T, P"),
        (&["init", "--bytes", "64MB"][..], "KiB"),
        (&["init", "--bytes", "64m"][..], "KiB"),
        (&["init", "--bytes", "M"][..], "no size"),
        (&["init", "--bytes", "20000P"][..], "too much"),
        (&["init", "--granule", "5K"][..], "power of two"),
        (&["stat", "--bytes", "5M"][..], "for init"),
        (&["pin"][..], "needs --url"),
        (&["ls", "--name", "x"][..], "needs --url"),
        (&["stat", "--url", "file:///x"][..], "whole drives"),
        (&["unpin", "--name", "x"][..], "--url names"),
    ] {
        let output = run(arguments, dir.path(), &drives);
        let is_about_drives = ["init", "no drive"].contains(&word);
        assert_eq!(output.status.code(), Some(if is_about_drives { 1 } else { 2 }), "{arguments:?}");
        assert!(!output.status.success() && said(&output).contains(word), "{arguments:?}: {}", said(&output));
    }
    assert!(drives.iter().all(|drive| std::fs::read_dir(drive).unwrap().count() == 0));
    let made = run(&["init", "--bytes", "64MiB", "--granule", "4k"], dir.path(), &drives);
    assert!(made.status.success() && said(&made).lines().count() == 2, "{}", said(&made));
    let label = std::fs::read_to_string(drives[0].join("iomill-origin/label")).unwrap();
    assert!(label.contains("granule 4096"), "{label}");
}

/// The value of a key of an object in JSON, as text.
fn value<'a>(json: &'a str, key: &str) -> &'a str {
    let begin = json.find(&format!("\"{key}\":")).unwrap_or_else(|| panic!("no {key} in {json}")) + key.len() + 3;
    let end = json[begin..].find([',', '}']).unwrap();
    &json[begin..begin + end]
}

#[test]
fn json_is_one_line_and_failures_have_a_kind() {
    let dir = scratch();
    let drives = super::drives(&dir);
    let said = |arguments: &[&str]| {
        let ended = run(arguments, dir.path(), &drives);
        (ended.status.code().unwrap(), said(&ended))
    };
    let (code, text) = said(&["stat", "--json"]);
    assert!(code == 1 && value(&text, "kind") == "\"no_array\"", "{text}");
    let (code, text) = said(&["stat", "--json", "--nonsense"]);
    assert!(code == 2 && value(&text, "kind") == "\"usage\"", "{text}");
    let (code, text) = said(&["init", "--json", "--bytes", "64MiB"]);
    assert!(code == 0 && text.lines().count() == 1 && value(&text, "bytes") == (32u64 << 20).to_string(), "{text}");
    let (code, text) = said(&["evict", "--json"]);
    assert!(code == 0 && value(&text, "evicted_bytes") == "0" && text.contains("\"notices\":[]"), "{text}");
    // A drive that is left out is a notice, and a failure.
    std::fs::write(drives[0].join("iomill-origin/label"), "damaged").unwrap();
    let (code, text) = said(&["stat", "--json"]);
    assert!(code == 1 && text.lines().count() == 2 && value(&text, "kind") == "\"drive\"", "{text}");
    let (code, text) = said(&["pin", "--json", "--url", "file:///nothing/is/here"]);
    let kind = if cfg!(feature = "clients") { (1, "\"not_found\"") } else { (2, "\"invalid\"") };
    assert_eq!((code, value(&text, "kind")), kind, "{text}");
}

/// A directory is the store.
#[cfg(feature = "clients")]
#[tokio::test]
async fn objects_are_pinned_listed_and_verified_by_their_url() {
    use std::os::unix::fs::FileExt;
    let dir = scratch();
    let drives = super::drives(&dir);
    let there = dir.path().join("there");
    std::fs::create_dir_all(there.join("kept")).unwrap();
    for (name, seed) in [("kept/a", 1), ("kept/b", 2), ("other", 3)] {
        std::fs::write(there.join(name), random(100_000, seed)).unwrap();
    }
    let url = |path: &str| format!("file://{}/{path}", there.display());
    let run = |verb: &str, path: &str| {
        let ended = run(&[verb, "--json", "--url", &url(path)], dir.path(), &drives);
        (ended.status.code().unwrap(), said(&ended))
    };
    assert!(self::run(&["init", "--bytes", "32MiB"], dir.path(), &drives).status.success());
    let (code, text) = run("pin", "kept");
    assert_eq!((code, value(&text, "pinned_bytes"), value(&text, "fetched_bytes")), (0, "200000", "200000"), "{text}");
    let (_, text) = run("pin", "kept/a");
    assert_eq!((value(&text, "pinned_bytes"), value(&text, "fetched_bytes")), ("100000", "0"), "{text}");
    let (_, text) = run("ls", "");
    for (name, cached) in [("kept/a", "100000"), ("kept/b", "100000"), ("other", "0")] {
        let at = text.find(name).unwrap_or_else(|| panic!("{text}"));
        let object = &text[at..];
        assert_eq!((value(object, "cached_bytes"), value(object, "pinned_bytes")), (cached, cached), "{text}");
    }
    // A program that gives the store the same name hits.
    let cache = iomill_origin::Cache::open(&drives, super::options(&dir)).unwrap();
    let local = std::sync::Arc::new(object_store_0_14::local::LocalFileSystem::new());
    let store = iomill_origin::v0_14::Cached::new(&cache, local, "file://");
    let path = object_store_0_14::path::Path::from_absolute_path(there.join("kept/a")).unwrap();
    let got = store.open(&path).await.unwrap().read(&[0..100_000]).await.unwrap();
    assert!(got[0] == random(100_000, 1) && cache.counters().gets == 0, "{:?}", cache.counters());
    drop((store, cache));
    // One bit of a granule flips.
    assert_eq!(value(&run("verify", "kept").1, "wrong_bytes"), "0");
    let data = drives.iter().map(|drive| drive.join("iomill-origin/data"));
    let file = data.map(|path| std::fs::File::options().read(true).write(true).open(path).unwrap());
    let file = file.into_iter().find(|file| file.metadata().unwrap().blocks() > 0).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, 4096).unwrap();
    file.write_all_at(&[byte[0] ^ 1], 4096).unwrap();
    let (code, text) = run("verify", "kept");
    assert!(code == 0 && value(&text, "wrong_bytes") == (16 << 10).to_string(), "{text}");
    assert_eq!(value(&run("verify", "kept").1, "wrong_bytes"), "0", "it is a miss by now");
    let (_, text) = run("unpin", "kept/b");
    assert_eq!(value(&text, "unpinned_objects"), "1", "{text}");
    let (_, text) = run("ls", "kept/b");
    assert_eq!(value(&text, "pinned_bytes"), "0", "{text}");
    assert_eq!(run("ls", "nothing").0, 1);
}

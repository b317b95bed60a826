//! The command `iomill-cache`, beside a cache that is open.

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
    use std::os::unix::fs::MetadataExt;
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
    // The open cache finds nothing of it, and fills it again.
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
    assert!(ended.status.code() == Some(1) && said(&ended).contains("no command"), "{}", said(&ended));
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
        (&["evict"][..], "no cache"),
        (&["nonsense"][..], "no command"),
        (&["init", "--nonsense"][..], "no option"),
        (&["init", "--bytes", "5X"][..], "M, G, T, P"),
        (&["init", "--bytes", "64MB"][..], "KiB"),
        (&["init", "--bytes", "64m"][..], "KiB"),
        (&["init", "--bytes", "M"][..], "no size"),
        (&["init", "--bytes", "20000P"][..], "too much"),
        (&["init", "--granule", "5K"][..], "power of two"),
        (&["stat", "--bytes", "5M"][..], "for init"),
    ] {
        let output = run(arguments, dir.path(), &drives);
        assert!(!output.status.success() && said(&output).contains(word), "{arguments:?}: {}", said(&output));
    }
    assert!(drives.iter().all(|drive| std::fs::read_dir(drive).unwrap().count() == 0));
    let made = run(&["init", "--bytes", "64MiB", "--granule", "4k"], dir.path(), &drives);
    assert!(made.status.success() && said(&made).lines().count() == 2, "{}", said(&made));
    let label = std::fs::read_to_string(drives[0].join("iomill-origin/label")).unwrap();
    assert!(label.contains("granule 4096"), "{label}");
}

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use super::bank::BANKS_MAX;
use super::*;
use crate::sys::clock::{Clock, MonotonicClock};

fn subject(drives: usize) -> Subject {
    Subject { array: *b"0123456789abcdef", drives: (0..drives).map(|drive| format!("/mnt/ssd{drive}")).collect() }
}

fn plain(drives: usize) -> Arc<Board> {
    let mut notices = Vec::new();
    let board = Board::new(&subject(drives), &[], 0, &mut notices).unwrap();
    assert_eq!(notices, [""; 0]);
    board
}

/// A board in a directory of its own.
fn shown(directory: &Path, drives: usize, salt: u64) -> Arc<Board> {
    let mut notices = Vec::new();
    let board = Board::new(&subject(drives), &[directory.join("iomill")], salt, &mut notices).unwrap();
    assert_eq!(notices, [""; 0]);
    board
}

/// All boards in the directory. All must be readable.
fn all(directory: &Path) -> Vec<Published> {
    let (found, notices) = find(&[directory.join("iomill")]);
    assert_eq!(notices, [""; 0]);
    found
}

fn only_file(directory: &Path) -> PathBuf {
    let mut files = fs::read_dir(directory.join("iomill")).unwrap().map(|entry| entry.unwrap().path());
    let file = files.next().unwrap();
    assert!(files.next().is_none());
    file
}

#[test]
fn threads_add_up_and_never_go_back() {
    let board = plain(1);
    for round in 1..=3 {
        std::thread::scope(|scope| {
            let count = || {
                for _ in 0..1000 {
                    board.tally().add(Counter::Hits, 1);
                }
                board.tally().add(Counter::BytesRead, 4096);
            };
            // A thread that is joined has given its bank back. At the end of the scope it may not have.
            [(); 4].map(|()| scope.spawn(count)).into_iter().for_each(|thread| thread.join().unwrap());
        });
        let counters = board.counters();
        assert_eq!((counters.hits, counters.bytes_read, counters.misses), (round * 4000, round * 16384, 0));
    }
    // The bank of a thread that has ended is the next thread's.
    assert!(board.counters().hits > 0 && format!("{board:?}").contains("drives: 1"));
    for _ in 0..100 {
        std::thread::scope(|scope| scope.spawn(|| board.tally().add(Counter::Pins, 1)).join().unwrap());
    }
    assert_eq!(board.counters().pins, 100);
    assert!(board.banks_in_use() <= 4, "{}", board.banks_in_use());
}

#[test]
fn each_id_is_counted_by_itself() {
    let board = plain(1);
    for (index, id) in Counter::ALL.into_iter().enumerate() {
        board.tally().add(id, 1 << index);
    }
    let c = board.counters();
    let cache = [c.hits, c.misses, c.fills, c.evictions, c.flushes, c.bypasses, c.waits, c.pins];
    let found: Vec<u64> = cache.into_iter().chain([c.bytes_read, c.bytes_written, c.read_ahead]).collect();
    assert_eq!(found, Counter::ALL.map(|id| 1 << (id as usize - 1)));
    assert_eq!(c.hit_rate(), Some(1.0 / 3.0));
    board.tally().add(Counter::Misses, 6);
    let passed = board.counters().since(&c);
    assert_eq!((passed.misses, passed.hits, passed.hit_rate()), (6, 0, Some(0.0)));
}

#[test]
fn boards_do_not_mix() {
    let boards = [plain(1), plain(2)];
    boards[0].tally().add(Counter::Fills, 1);
    boards[1].tally().add(Counter::Fills, 10);
    boards[0].tally().add(Counter::Fills, 1);
    assert_eq!(boards.each_ref().map(|board| board.counters().fills), [2, 10]);
    assert_eq!(boards.each_ref().map(|board| board.counters().drives.len()), [1, 2]);
}

#[test]
fn queues_of_a_drive_add_up() {
    let board = plain(2);
    let clock = Arc::new(MonotonicClock::default()) as Arc<dyn Clock>;
    let meter = Meter::new(&board, 1, &clock);
    let (mut one, two) = (meter.probe(), meter.probe());
    let stamps: Vec<u64> = (0..TIMED_ONE_IN).map(|_| one.start()).collect();
    assert_eq!(stamps.iter().filter(|stamp| **stamp != 0).count(), 1);
    stamps.iter().for_each(|stamp| one.stop(*stamp));
    one.tally.read(4096);
    two.tally.read(8192);
    two.tally.wrote(512);
    two.tally.failed();
    two.tally.synced();
    one.tally.set_in_flight(3);
    two.tally.set_in_flight(4);
    let drives = board.counters().drives;
    assert_eq!(drives[0], DriveCounters::default());
    let d = &drives[1];
    assert_eq!((d.reads, d.read_bytes, d.writes, d.write_bytes), (2, 12288, 1, 512));
    assert_eq!((d.errors, d.syncs, d.in_flight, d.latency.count()), (1, 1, 7, 1));
    drop((one, two));
    let after = board.counters();
    assert_eq!((after.drives[1].in_flight, after.drives[1].reads), (0, 2));
}

#[test]
fn banks_beyond_the_board_count_too() {
    let board = plain(1);
    let owners: Vec<Tally> = (0..BANKS_MAX + 3).map(|_| board.take_thread()).collect();
    owners.iter().for_each(|owner| owner.add(Counter::Waits, 1));
    assert_eq!(board.counters().waits, BANKS_MAX as u64 + 3);
    drop(owners);
    assert_eq!(board.counters().waits, BANKS_MAX as u64 + 3);
}

#[test]
fn others_can_watch_until_it_is_closed() {
    let dir = tempfile::tempdir().unwrap();
    let board = shown(dir.path(), 20, 1);
    board.set_cache_bytes(1 << 30);
    board.tally().add(Counter::Hits, 5);
    let probes: Vec<_> = (0..20).map(|drive| board.take_drive(drive)).collect();
    probes[19].read(100);
    let found = all(dir.path());
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].pid(), found[0].array()), (std::process::id(), *b"0123456789abcdef"));
    assert_eq!(found[0].drives(), subject(20).drives);
    let counters = found[0].read().unwrap().unwrap();
    assert_eq!((counters.hits, counters.cache_bytes, counters.drives[19].read_bytes), (5, 1 << 30, 100));
    assert_eq!(counters, board.counters());

    let file = only_file(dir.path());
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::metadata(dir.path().join("iomill")).unwrap().permissions().mode() & 0o777, 0o700);
    board.close();
    assert!(!file.exists());
    assert_eq!(found[0].read().unwrap(), None);
    assert!(all(dir.path()).is_empty());
    // Owners that still work on the array count on, in memory that no other process sees.
    let owners: Vec<Tally> = (0..10).map(|_| board.take_thread()).collect();
    owners.iter().for_each(|owner| owner.add(Counter::Hits, 1));
    assert_eq!(board.counters().hits, 15);
}

#[test]
fn files_of_the_dead_are_removed() {
    let dir = tempfile::tempdir().unwrap();
    let board = shown(dir.path(), 1, 1);
    let mine = only_file(dir.path());
    // A copy has no lock, like the file of a process that was killed.
    let stale = mine.with_file_name(runtime::file_name(b"0123456789abcdef", 1, 2));
    let other = mine.with_file_name("notes");
    fs::copy(&mine, &stale).unwrap();
    fs::write(&other, "mine").unwrap();
    assert_eq!(all(dir.path()).len(), 1);
    assert!(mine.exists() && other.exists() && !stale.exists());
    fs::copy(&mine, &stale).unwrap();
    let second = shown(dir.path(), 1, 3);
    assert!(!stale.exists(), "a start removes it too");
    assert_eq!(all(dir.path()).len(), 2);
    drop((board, second));
}

#[test]
fn directories_that_others_can_reach_are_not_used() {
    let dir = tempfile::tempdir().unwrap();
    let refused = |name: &str, words: &str| {
        let path = dir.path().join(name);
        let mut notices = Vec::new();
        let board = Board::new(&subject(1), std::slice::from_ref(&path), 7, &mut notices).unwrap();
        assert_eq!(notices.len(), 1);
        assert!(notices[0].contains(words) && notices[0].contains(name), "{notices:?}");
        board.tally().add(Counter::Hits, 1);
        assert_eq!(board.counters().hits, 1);
    };
    fs::create_dir(dir.path().join("open")).unwrap();
    fs::set_permissions(dir.path().join("open"), fs::Permissions::from_mode(0o755)).unwrap();
    refused("open", "0700");
    fs::create_dir(dir.path().join("real")).unwrap();
    fs::set_permissions(dir.path().join("real"), fs::Permissions::from_mode(0o700)).unwrap();
    symlink(dir.path().join("real"), dir.path().join("link")).unwrap();
    refused("link", "");
    assert_eq!(fs::read_dir(dir.path().join("real")).unwrap().count(), 0);
    fs::write(dir.path().join("file"), "").unwrap();
    refused("file", "");
    refused("missing/below", "");
    // The next directory is tried.
    let mut notices = Vec::new();
    let places = [dir.path().join("open"), dir.path().join("iomill")];
    let _board = Board::new(&subject(1), &places, 7, &mut notices).unwrap();
    assert_eq!((notices.len(), all(dir.path()).len()), (0, 1));
}

/// A locked file with any content, as a hostile or newer program may make it.
#[test]
fn whatever_a_file_holds_is_no_trouble() {
    let dir = tempfile::tempdir().unwrap();
    let board = shown(dir.path(), 2, 1);
    let file = fs::OpenOptions::new().write(true).open(only_file(dir.path())).unwrap();
    let good = fs::read(only_file(dir.path())).unwrap();
    let _drive = board.take_drive(0);
    let word = |index: u64, value: u64| file.write_all_at(&value.to_ne_bytes(), index * 8).unwrap();
    // Word, value, and the expected words of the notice.
    let headers = [
        (0, 7, "no counters"),
        (1, 2, "format 2"),
        (2, 4096, "sizes"),
        (3, 1 << 40, "too many drives"),
        (3, 60_000, "sizes"),
        (6, u64::MAX, "no process"),
        (9, 0, "sizes"),
        (512, u64::MAX, "name is too long"),
    ];
    for (index, value, words) in headers {
        word(index, value);
        let (found, notices) = find(&[dir.path().join("iomill")]);
        assert!(found.is_empty() && notices.len() == 1 && notices[0].contains(words), "{words}: {notices:?}");
        file.write_all_at(&good[index as usize * 8..][..8], index * 8).unwrap();
    }
    let published = all(dir.path()).remove(0);
    for (index, value, words) in
        [(8, u64::MAX, "too many banks"), (1024, 1 << 50, "not in its header"), (1024, 4, "not in its header")]
    {
        let before = fs::read(only_file(dir.path())).unwrap()[index as usize * 8..][..8].to_owned();
        word(index, value);
        let error = published.read().unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
        file.write_all_at(&before, index * 8).unwrap();
    }
    // Sums of invalid banks are invalid, but there is no panic.
    (1025..1152).for_each(|index| word(index, u64::MAX));
    let counters = published.read().unwrap().unwrap();
    assert_eq!(counters.drives[0].reads, u64::MAX);
    assert!(counters.metrics().contains("reads_total"));
    file.write_all_at(b"\x02\x00\x1b[", 4096).unwrap();
    assert_eq!(all(dir.path())[0].drives()[0], "\u{fffd}[", "no name steers a terminal");
    let len = file.metadata().unwrap().len();
    file.set_len(4097).unwrap();
    assert!(published.read().unwrap_err().to_string().contains("ends early"));
    // The owner's mapping is touched again when it ends.
    file.set_len(len).unwrap();
}

/// Parses metrics as a program would: types by name, and samples by name and labels.
fn parse(text: &str) -> (BTreeMap<String, String>, BTreeMap<String, f64>) {
    let (mut types, mut samples, mut helped) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').unwrap();
            assert!(!help.is_empty());
            helped.push(name.to_owned());
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert_eq!(helped.last().map(String::as_str), Some(name), "HELP comes first");
            assert!(types.insert(name.to_owned(), kind.to_owned()).is_none(), "{name} twice");
        } else {
            let (series, value) = line.rsplit_once(' ').unwrap();
            let name = series.split('{').next().unwrap();
            assert!(name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{name}");
            let of = helped.last().unwrap();
            assert!(name == of || [("_bucket"), ("_sum"), ("_count")].iter().any(|end| name == format!("{of}{end}")));
            if let Some(labels) = series.strip_prefix(name).filter(|labels| !labels.is_empty()) {
                let labels = labels.strip_prefix('{').unwrap().strip_suffix('}').unwrap();
                for label in labels.split(',') {
                    let (_, value) = label.split_once('=').unwrap();
                    assert!(value.starts_with('"') && value.ends_with('"') && value.len() > 2, "{label}");
                }
            }
            assert!(samples.insert(series.to_owned(), value.parse().unwrap()).is_none(), "{series} twice");
        }
    }
    (types, samples)
}

#[test]
fn metrics_are_what_prometheus_reads() {
    let board = plain(2);
    board.tally().add(Counter::Hits, 41);
    let drive = board.take_drive(1);
    drive.read(4096);
    [500, 1500, 3_000_000, 60_000_000_000].into_iter().for_each(|ns| drive.took(ns));
    let (types, samples) = parse(&board.counters().metrics());
    assert_eq!(types["iomill_cache_hits_total"], "counter");
    assert_eq!(types["iomill_drive_in_flight"], "gauge");
    assert_eq!(types["iomill_drive_latency_seconds"], "histogram");
    assert_eq!(samples["iomill_cache_hits_total"], 41.0);
    assert_eq!(samples["iomill_drive_read_bytes_total{drive=\"1\"}"], 4096.0);
    assert_eq!(samples["iomill_drive_read_bytes_total{drive=\"0\"}"], 0.0);
    let name = "iomill_drive_latency_seconds";
    assert_eq!(samples[&format!("{name}_count{{drive=\"1\"}}")], 4.0);
    assert!((samples[&format!("{name}_sum{{drive=\"1\"}}")] - 60.003002).abs() < 1e-9);
    let mut buckets: Vec<(f64, f64)> = samples
        .iter()
        .filter_map(|(series, value)| {
            let end = series.strip_prefix(&format!("{name}_bucket{{drive=\"1\",le=\""))?.strip_suffix("\"}")?;
            Some((end.parse().unwrap(), *value))
        })
        .collect();
    buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
    assert_eq!(buckets.last(), Some(&(f64::INFINITY, 4.0)));
    assert!(buckets.windows(2).all(|pair| pair[0].1 <= pair[1].1), "cumulative");
    let below = |end: f64| buckets.iter().filter(|bucket| bucket.0 <= end).map(|bucket| bucket.1).fold(0.0, f64::max);
    assert_eq!((below(2.1e-6), below(1e-3), below(5e-3), below(20.0)), (2.0, 2.0, 3.0, 3.0));
}

/// The lock ends with the process, however that ends.
#[test]
fn a_killed_process_is_seen_as_gone() {
    const PLACE: &str = "IOMILL_TEST_COUNTERS";
    if let Some(place) = std::env::var_os(PLACE) {
        let board = shown(Path::new(&place), 1, 9);
        board.tally().add(Counter::Hits, 3);
        fs::write(Path::new(&place).join("ready"), "").unwrap();
        // Until it is killed, or its parent has failed.
        std::thread::sleep(std::time::Duration::from_secs(600));
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let test = std::env::current_exe().unwrap();
    let mut child = Command::new(test)
        .args(["--exact", "counters::tests::a_killed_process_is_seen_as_gone"])
        .env(PLACE, dir.path())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    while !dir.path().join("ready").exists() {
        assert!(child.try_wait().unwrap().is_none(), "the child has failed");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let found = all(dir.path());
    assert_eq!(found[0].pid(), child.id());
    assert_eq!(found[0].read().unwrap().unwrap().hits, 3);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(found[0].read().unwrap(), None);
    let file = only_file(dir.path());
    assert!(all(dir.path()).is_empty());
    assert!(!file.exists());
}

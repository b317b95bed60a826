//! `iomill-lab`: it measures as promised, leaves nothing behind, and refuses senseless arguments.

use std::collections::HashSet;
use std::fs;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::common::{Ended, Site, limited, send};

/// A measurement of about 10 ms with iomill alone.
const SHORT: [&str; 9] = ["--rivals", "none", "--rounds", "1", "--seconds", "0.1", "--size", "4MiB", "--threads"];

fn entries(site: &Site) -> Vec<String> {
    let names = fs::read_dir(site.root()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

/// All loads on arrays of two numbers of drives, in two directories. Nothing is left behind.
#[test]
fn the_ladder_of_the_queues_climbs_on_arrays_of_its_own() {
    let site = Site::bare(0);
    let dirs = ["one", "two"].map(|name| site.path(name));
    dirs.iter().for_each(|dir| fs::create_dir(dir).unwrap());
    let fixed = "--quiet ladder --of falcon --size 4MiB --seconds 0.1 --rounds 1 --threads 1 --dir one --dir two";
    let run = |more: &[&str]| site.run_bare(fixed.split(' ').chain(more.iter().copied()));
    let document = run(&["--drives", "1,3", "--json"]).good().json();
    let ladders = document["ladders"].as_array().unwrap();
    assert_eq!(ladders.iter().map(|one| one["drives"].as_u64().unwrap()).collect::<Vec<_>>(), [1, 3]);
    for ladder in ladders {
        let results = ladder["results"].as_array().unwrap();
        assert_eq!(results.len(), 4 * 2 * 5, "loads, ways, steps");
        assert!(results.iter().all(|row| row["ops_per_s"].as_f64().unwrap() > 0.0));
        assert_eq!(ladder["machine"]["drives"].as_array().unwrap().len() as u64, ladder["drives"].as_u64().unwrap());
    }
    for dir in &dirs {
        assert_eq!(fs::read_dir(dir).unwrap().count(), 0, "{}", dir.display());
    }
    let document = run(&["--load", "random,mixed", "--drives", "2", "--json"]).good().json();
    let loads: HashSet<_> = workloads(&document["ladders"][0]).collect();
    assert_eq!(loads, HashSet::from(["random-read-4KiB", "mixed-read-4KiB"]));
    site.run_bare(["-a", "one", "ladder", "--of", "falcon"]).failed(2, &["--dir"]);
    for options in [&["--no-sort"][..], &["--no-merge"], &["--depth", "adaptive"], &["--drive-threads"]] {
        run(options).failed(2, &["falcon's steps choose", options[0]]);
    }
    run(&["--dir", "./one"]).failed(2, &["one is named twice", "--drives N"]);
    run(&["--json", "no/such/file"]).failed(1, &["cannot write", "no/such/file"]);
    site.run_bare(["--depth", "adaptive:3", "random"]).failed(2, &["fixed:N"]);
    site.run_bare(["--plug", "0", "random"]).failed(2, &["1..=1024"]);
}

fn workloads(document: &serde_json::Value) -> impl Iterator<Item = &str> {
    document["results"].as_array().unwrap().iter().map(|row| row["workload"].as_str().unwrap())
}

/// Replays two traces after a load, on as many drives as there are devices. One reads and writes at unaligned offsets
/// and beyond the file, the other only reads. After writes every byte is checked again.
#[test]
fn the_ladder_of_the_queues_replays_traces() {
    let site = Site::bare(0);
    let mixed: String =
        (0..600).map(|i| format!("{},{},{}\n", ["r", "w"][i % 2], i * 7 * 512, [512, 4096, 5000][i % 3])).collect();
    fs::write(site.path("mixed.csv"), mixed).unwrap();
    let stream: String = (0..600).map(|i| format!("7,{},4096,r,0.0\n", i * 8)).collect();
    fs::write(site.path("stream.spc"), stream).unwrap();
    fs::create_dir(site.path("arrays")).unwrap();
    let fixed =
        "--quiet ladder --of falcon --size 1MiB --seconds 0.1 --rounds 1 --threads 2 --dir arrays --trace mixed.csv";
    let run = |more: &[&str]| site.run_bare(fixed.split(' ').chain(more.iter().copied()));
    let document = run(&["--trace", "stream.spc", "--load", "random", "--json"]).good().json();
    let left_out = document["drives_left_out"].as_array().unwrap();
    assert_eq!(left_out.iter().map(|out| out["drives"].as_u64().unwrap()).collect::<Vec<_>>(), [2, 4, 8]);
    let [ladder] = &document["ladders"].as_array().unwrap()[..] else { panic!("{document}") };
    let expected = ["random-read-4KiB", "trace-mixed", "trace-stream"].map(|name| [name; 10]).concat();
    assert_eq!(workloads(ladder).collect::<Vec<_>>(), expected);
    for row in ladder["results"].as_array().unwrap() {
        let bytes_per_op = row["bytes_per_s"].as_f64().unwrap() / row["ops_per_s"].as_f64().unwrap();
        // The drives read whole pages, and many unaligned requests overlap one page more than their length.
        let expected = if row["workload"] == "trace-mixed" { 4096.0 * 1.5..4096.0 * 2.5 } else { 4095.9..4096.1 };
        assert!(expected.contains(&bytes_per_op), "{row}");
    }
    assert_eq!(fs::read_dir(site.path("arrays")).unwrap().count(), 0);
    let table = run(&["--limit", "9"]).good();
    assert!(table.text().contains("trace-mixed") && !table.text().contains("random"), "{}", table.text());
    assert!(table.text().contains("Not measured with 8 drives: there is only 1 device"), "{}", table.text());
    run(&["--trace", "mixed.csv"]).failed(2, &["two traces", "mixed"]);
    run(&["--trace", "nothing"]).failed(1, &["nothing"]);
    run(&["--trace", "stream.spc", "--format", "csv"]).failed(1, &["line 1", "op,offset,length"]);
    site.run_bare(["ladder", "--of", "falcon", "--limit", "3"]).failed(2, &["--trace"]);
    site.run_bare(["ladder", "--of", "sc13", "--trace", "mixed.csv"]).failed(2, &["which are for falcon"]);
    site.run_bare(["ladder", "--of", "falcon", "--size", "4095", "--trace", "mixed.csv"])
        .failed(2, &["at least one page"]);
}

#[test]
fn random_and_sequential_on_an_array() {
    let site = Site::new(3);
    for (what, more) in [
        ("random", vec!["--read-percent", "70"]),
        ("sequential", vec!["--request-size", "64KiB", "--layout", "rotated"]),
        ("random", vec!["--layout", "hash", "--block-size", "16KiB"]),
    ] {
        let arguments = [vec![what], SHORT.to_vec(), vec!["2", "--json", "out.json"], more].concat();
        let table = site.run(arguments).good();
        assert!(table.text().contains("iomill-inline"), "{}", table.text());
        let text = fs::read_to_string(site.path("out.json")).unwrap();
        let document: serde_json::Value = serde_json::from_str(&text).unwrap();
        let results = document["results"].as_array().unwrap();
        let names: Vec<&str> = results.iter().map(|row| row["contender"].as_str().unwrap()).collect();
        // The null engine takes no writes.
        let null = !more_writes(&document);
        assert_eq!(names.contains(&"iomill-null"), null);
        assert!(names.contains(&"iomill-inline") && names.contains(&"iomill-drive-threads"));
        for row in results {
            for key in ["ops_per_s", "cpu_us_per_op", "p50_us", "p99_us"] {
                assert!(row[key].as_f64().unwrap() > 0.0, "{key}: {row}");
            }
            assert_eq!(row["threads"], 2);
        }
    }
    assert!(crate::names(&site).is_empty(), "the measured file is gone");
}

fn more_writes(document: &serde_json::Value) -> bool {
    document["results"][0]["workload"].as_str().unwrap().contains('%')
}

#[test]
fn without_an_array_one_is_made_and_removed() {
    let site = Site::bare(0);
    let before = entries(&site);
    let arguments = [vec!["random", "--drive-threads=false"], SHORT.to_vec(), vec!["1"]].concat();
    let ended = site.run_bare(arguments).good();
    assert!(ended.text().contains("iomill-inline") && !ended.text().contains("iomill-drive-threads"));
    assert!(ended.err.contains("they share that device's limit"), "{}", ended.err);
    assert_eq!(entries(&site), before);
}

#[test]
fn mapped_parts_beside_system_calls() {
    let site = Site::bare(0);
    let short = ["--rounds", "1", "--seconds", "0.1", "--size", "4MiB", "--growth", "1MiB", "--threads", "1"];
    let narrow = ["--request-size", "512", "--order", "random", "--json"];
    let document = site.run_bare([&["mmap-vs-syscall"][..], &short, &narrow].concat()).good().json();
    let names: Vec<_> = document["results"].as_array().unwrap().iter().map(|row| &row["contender"]).collect();
    let ways = ["mmap-engine", "mmap-engine-by-system-calls", "pread", "process_vm_readv"];
    assert_eq!(names, [ways, ways].concat());
    assert_eq!((&document["results"][0]["cache"], &document["results"][4]["cache"]), (&"cold".into(), &"warm".into()));
    let growth = document["growth"].as_array().unwrap();
    let calls: Vec<u64> = growth.iter().map(|row| row["calls"].as_u64().unwrap()).collect();
    // 256 writes of 4 KiB, through a buffer of 1 MiB or one by one.
    assert!(calls[0] == 256 && calls[1] == 257 && calls[2] >= 512 && calls[3] <= 3, "{calls:?}");
    assert!(entries(&site).is_empty(), "{:?}", entries(&site));
    for bad in ["0", "17MiB"] {
        site.run_bare(["mmap-vs-syscall", "--request-size", bad]).failed(2, &["16 MiB"]);
    }
}

#[test]
fn an_interrupt_cleans_up_too() {
    let site = Site::bare(0);
    let mut command = site.bare_command(["random", "--seconds", "60", "--size", "16MiB", "--rivals", "none"]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let started = Instant::now();
    while !entries(&site).iter().any(|name| name.starts_with("iomill-bench-")) {
        assert!(started.elapsed() < Duration::from_secs(20), "the array did not appear");
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_millis(300));
    send(&child, libc::SIGINT);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(started.elapsed() < Duration::from_secs(50), "it ended long before its time");
    assert!(entries(&site).is_empty(), "{:?}", entries(&site));
}

/// A signal does not lose the complete rounds, which may have taken hours.
#[test]
fn an_interrupt_keeps_what_was_complete() {
    let site = Site::bare(0);
    let line = "random --seconds 0.1 --rounds 1000 --size 4MiB --threads 1 --rivals none --quiet --json out.json";
    // The length of the first round depends on other work of the machine.
    let waits = [4, 8, 16, 32, 64].map(Duration::from_secs);
    let ended = waits.into_iter().find_map(|wait| {
        let mut command = site.bare_command(line.split(' '));
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        std::thread::sleep(wait);
        send(&child, libc::SIGINT);
        let ended = child.wait_with_output().unwrap();
        site.path("out.json").exists().then_some(ended)
    });
    let ended = ended.expect("a round within a minute");
    let text = String::from_utf8_lossy(&ended.stdout);
    assert!(ended.status.code() == Some(130) && text.contains("iomill-inline"), "{:?} {text}", ended.status);
    let document: serde_json::Value = serde_json::from_slice(&fs::read(site.path("out.json")).unwrap()).unwrap();
    assert!(document["cancelled"] == true, "{document}");
    let rows = document["results"].as_array().unwrap();
    assert!(!rows.is_empty() && rows.iter().all(|row| row["rounds"].as_u64().unwrap() > 0), "{document}");
    fs::remove_file(site.path("out.json")).unwrap();
    assert!(entries(&site).is_empty(), "{:?}", entries(&site));
}

#[test]
fn memory_is_no_drive_to_measure() {
    // Only where a file system in memory can be written to.
    if let Ok(place) = tempfile::tempdir_in("/dev/shm") {
        let site = Site::bare(0);
        let ended = site.run_bare(["random", "--dir", place.path().to_str().unwrap()]);
        ended.failed(1, &["in memory", "--dir"]);
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
    }
}

#[test]
fn what_makes_no_sense_is_refused() {
    let site = Site::bare(0);
    for (arguments, said) in [
        (vec!["random", "--rivals", "nobody"], "uring-by-hand"),
        (vec!["random", "--request-size", "5000"], "multiple of 4096"),
        (vec!["random", "--seconds", "0"], "0.1 to 600"),
        (vec!["random", "--read-percent", "101"], "101"),
        (vec!["random", "--threads", "0"], "0"),
        (vec!["random", "--size", "1", "--rivals", "none"], "at least one page"),
        (vec!["random", "--layout", "hash", "--read-percent", "0"], "striping or rotated"),
        (vec!["random", "--dir", "/nonexistent"], "/nonexistent"),
        (vec!["gate", "--drive-threads=false"], "leave --drive-threads and --depth out"),
        (vec!["gate", "--depth", "8"], "leave --drive-threads and --depth out"),
        (vec!["picture", "--drive-threads=false"], "leave --drive-threads and --depth out"),
        (vec!["picture", "--size", "31MiB"], "at least 32MiB"),
        // A path that cannot be written is refused before a measurement of many hours.
        (vec!["picture", "--svg", "no/such/p.svg", "--seconds", "600"], "no/such/p.svg"),
    ] {
        let line: Vec<&str> = arguments;
        let ended = site.run_bare(line.clone());
        assert!(ended.code == 1 || ended.code == 2, "{line:?}: {}", ended.code);
        assert!(ended.err.contains(said), "{line:?}: {}", ended.err);
    }
    assert!(entries(&site).is_empty(), "{:?}", entries(&site));
}

#[test]
fn rivals_work_with_little_locked_memory() {
    let site = Site::new(2);
    let words =
        "random --drive-threads --rivals uring-by-hand --rounds 1 --seconds 0.1 --size 4MiB --threads 16 --json";
    let mut command = site.command(words.split(' '));
    limited(&mut command, libc::RLIMIT_MEMLOCK, 2 << 20);
    let document = Ended::of(command.output().unwrap()).good().json();
    let results = document["results"].as_array().unwrap();
    match results.iter().find(|row| row["contender"] == "uring-by-hand") {
        Some(row) => assert!(row["notes"].to_string().contains("ulimit -l"), "{row}"),
        None => assert!(document["left_out"].to_string().contains("io_uring"), "{document}"),
    }
}

#[test]
fn options_without_effect_are_refused() {
    let site = Site::new(2);
    site.file("t.csv", b"r,0,4096\n");
    for (line, words) in [
        ("replay t.csv --cache 1PiB", ["larger than the memory", "smaller --cache"]),
        ("warm --cache 1PiB", ["larger than the memory", "smaller --cache"]),
        ("cold --cache 1PiB", ["larger than the memory", "smaller --cache"]),
        ("soak --cache 1PiB", ["larger than the memory", "smaller --cache"]),
        ("mmap-vs-syscall --size 4MiB --request-size 16MiB", ["16 MiB", "larger --size"]),
        ("warm --size 8MiB --cache 4MiB", ["8 MiB", "larger --cache"]),
        ("random --size 4MiB --rivals pread,quick_cache", ["quick_cache", "fio-io_uring"]),
        ("mixed --rivals pwrite", ["pwrite", "pread, mmap"]),
        ("small-writes --batch 4", ["--batch", "unexpected"]),
        ("ladder --of falcon --state x", ["--state", "sc13"]),
        ("replay t.csv --cache 0 --policy lru", ["--policy", "--cache 0"]),
        ("replay t.csv --read-ahead 5MiB", ["--read-ahead", "at most 4MiB"]),
        ("cold --read-ahead 4097KiB", ["--read-ahead", "at most 4MiB"]),
    ] {
        site.run_bare(["-a", "ssd0"].into_iter().chain(line.split(' '))).failed(2, &words);
    }
    assert_eq!(crate::names(&site), Vec::<String>::new());
}

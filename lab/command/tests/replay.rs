//! `iomill-lab replay`: in simulated caches, and on an array, where it leaves nothing behind.

use std::fs;
use std::process::Stdio;
use std::time::Duration;

use crate::common::{Site, bytes, send};
use iomill::ArrayOptions;
use serde_json::Value;

const TRACE: &str = "op,offset,length\nr,0,4096\nw,8192,8192\nr,4096,1\nr,0,512\nR,100000,5000\n";

/// The objects of a text with one per line.
fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_simulation_prints_an_object_per_combination() {
    let site = Site::bare(0);
    site.file("small.csv", TRACE.as_bytes());
    site.file("other.spc", b"0,0,4096,r,0\n0,0,4096,w,1\n");
    let line = "replay --simulate small.csv other.spc --json --policy lru,global-lru --cache-pages 2,30 --set-size 4,8";
    let found = lines(site.run_bare(line.split(' ')).good().text());
    assert_eq!(found.len(), 2 * (2 * 2 + 2));
    let first = &found[0];
    assert_eq!((&first["trace"], &first["policy"]), (&"small".into(), &"lru".into()));
    assert_eq!(
        (&first["cache_pages"], &first["cache_pages_used"], &first["set_size"]),
        (&2.into(), &4.into(), &4.into())
    );
    assert_eq!((&found[3]["cache_pages"], &found[3]["cache_pages_used"]), (&30.into(), &24.into()));
    assert_eq!((&found[5]["policy"], &found[5]["set_size"]), (&"global-lru".into(), &Value::Null));
    // Pages 0, 2, 3, 1, 0, 24, 25: only one of all hits, and it is in the second half.
    assert_eq!((&found[5]["hit_rate_whole"], &found[5]["hit_rate_warm"]), (&(1.0 / 7.0).into(), &0.25.into()));
    assert_eq!(found[11]["trace"], "other");
    assert_eq!(found[11]["hit_rate_whole"], 0.5);
    assert!(found.iter().all(|object| object["notices"].as_array().is_some_and(Vec::is_empty)));
}

#[test]
fn a_simulation_has_a_table_a_picture_and_a_comparison() {
    let site = Site::bare(0);
    let trace: String = (0..2000u64).map(|at| format!("r,{},4096\n", at * at % 997 * 4096)).collect();
    site.file("t.csv", trace.as_bytes());
    let table = site.run_bare(["replay", "--simulate", "t.csv", "--svg", "t.svg"]).good();
    for said in ["optimum", "global-arc", "set size", "used"] {
        assert!(table.text().contains(said), "{}", table.text());
    }
    assert!(fs::read_to_string(site.path("t.svg")).unwrap().contains("</svg>"));
    let heading = "trace,cache_pages,fraction,policy,method,hit_rate,tool\n";
    let rows = "t,100,0.1,LRU,warm,0.25,x\nt,100,0.1,ARC,warm,0.125,x\n";
    site.file("ref.csv", format!("{heading}{rows}").as_bytes());
    let line = ["replay", "--simulate", "t.csv", "--reference", "ref.csv"];
    let compared = site.run_bare(line).good();
    assert!(compared.text().contains("over ARC") && compared.text().contains("25.00"), "{}", compared.text());
    let found = lines(site.run_bare([&line[..], &["--json"]].concat()).good().text());
    assert!(found.iter().all(|object| object["cache_pages"] == 100 && object["reference"]["LRU"] == 0.25));
    site.run_bare(["replay", "--simulate", "t.csv", "--reference", "t.csv"]).failed(1, &["t.csv, line 1", "no column"]);
    site.file("u.csv", trace.as_bytes());
    site.run_bare(["replay", "--simulate", "u.csv", "--reference", "ref.csv"]).failed(2, &["\"u\"", "--cache-pages"]);
}

#[test]
fn a_simulation_of_granules_compares_them_with_pages_of_the_same_memory() {
    let site = Site::bare(0);
    // Every 16th row is popular, so that a page has one popular row at most.
    let rows = (0..20_000u64).map(|at| if at % 8 == 0 { at * 7919 % 8000 } else { at * 31 % 500 * 16 });
    let trace: String = rows.map(|row| format!("r,{},512\n", row * 512)).collect();
    site.file("t.csv", trace.as_bytes());
    let line =
        ["replay", "--simulate", "t.csv", "--granule", "512B,4KiB,2KiB", "--cache-pages", "120", "--policy", "duel"];
    let found = lines(site.run_bare([&line[..], &["--json"]].concat()).good().text());
    let granules: Vec<_> = found.iter().map(|object| object["granule_bytes"].as_u64().unwrap()).collect();
    assert_eq!(granules, [4096, 512, 2048]);
    let figure = |at: usize, key: &str| found[at][key].as_f64().unwrap();
    assert_eq!((figure(0, "entries"), figure(1, "entries"), figure(0, "header_bytes")), (120.0, 864.0, 58.0));
    assert!(figure(1, "request_hit_rate_warm") > 0.8 && figure(0, "request_hit_rate_warm") < 0.5, "{found:?}");
    for at in 0..3 {
        let (hits, read) = (figure(at, "request_hit_rate_whole"), figure(at, "pages_read_whole"));
        assert!((hits + read - 1.0).abs() < 1e-9, "{found:?}");
    }
    let table = site.run_bare(line).good();
    assert!(table.text().contains("pages read/request") && table.text().contains("512 B"), "{}", table.text());
    let all = lines(site.run_bare(["replay", "--simulate", "t.csv", "--granule", "1KiB", "--json"]).good().text());
    assert_eq!(all.len(), 2 * 11 * 3, "two granules, all policies, default sizes");
    for (more, said) in [
        (&["--granule", "500"][..], "power of two"),
        (&["--granule", "8KiB"], "power of two"),
        (&["--granule", "512", "--svg", "x"], "--svg"),
        (&["--granule", "512", "--reference", "x"], "--reference"),
    ] {
        site.run_bare([&["replay", "--simulate", "t.csv"], more].concat()).failed(2, &[said]);
    }
    site.run_bare(["replay", "t.csv", "--granule", "512"]).failed(2, &["--simulate"]);
}

#[test]
fn bad_traces_and_arguments_are_refused() {
    let site = Site::new(1);
    site.file("bad.csv", b"r,0,4096\nr,x,1\n");
    site.file("good.csv", b"r,0,4096\n");
    site.file("odd", b"hello\n");
    let expected = ["bad.csv, line 2", "offset \"x\"", "op,offset,length"];
    site.run_bare(["replay", "--simulate", "bad.csv"]).failed(1, &expected);
    site.run(["replay", "bad.csv"]).failed(1, &expected);
    site.run(["replay", "odd"]).failed(1, &["odd", "--format"]);
    site.run(["replay", "odd", "--format", "spc"]).failed(1, &["odd, line 1", "fewer than 5 fields"]);
    site.run(["replay", "nowhere"]).failed(1, &["nowhere"]);
    site.run(["replay", "/dev/null"]).failed(1, &["no regular file"]);
    let json = site.run(["replay", "bad.csv", "--json"]).failed(1, &["\"kind\":\"trace\""]);
    assert_eq!(json.text(), "");
    for (arguments, said) in [
        (vec![], "TRACE"),
        (vec!["good.csv", "good.csv"], "--simulate"),
        (vec!["good.csv", "--policy", "lru,lfu"], "one policy; --simulate"),
        (vec!["good.csv", "--policy", "optimum"], "gclock"),
        (vec!["good.csv", "--set-size", "4,8"], "one set size; --simulate"),
        (vec!["good.csv", "--cache", "40000"], "49152 bytes; give more"),
        (vec!["good.csv", "--cache", "9TiB"], "smaller --cache"),
        (vec!["good.csv", "--cache", "lots"], "64KiB"),
        (vec!["good.csv", "--simulate", "--cache", "1MiB"], "--cache"),
        (vec!["good.csv", "--svg", "x"], "--simulate"),
        (vec!["good.csv", "--writes"], "--file"),
        (vec!["good.csv", "--sparse", "--file", "f"], "--file"),
        (vec!["good.csv", "--simulate", "--file", "f"], "--file"),
        (vec!["good.csv", "--simulate", "--policy", "lru,best"], "global-lru"),
        (vec!["good.csv", "--simulate", "--cache-pages", "0"], "0"),
        (vec!["good.csv", "--simulate", "--set-size", "6"], "12"),
        (vec!["good.csv", "--format", "xml"], "blkparse"),
        (vec!["good.csv", "--limit", "0"], "0"),
        (vec!["good.csv", "--threads", "0"], "0"),
        (vec!["good.csv", "--file", "none"], "none"),
    ] {
        let ended = site.run([vec!["replay"], arguments.clone()].concat());
        assert!(ended.code == 1 || ended.code == 2, "{arguments:?}: {}", ended.code);
        assert!(ended.err.contains(said), "{arguments:?}: {}", ended.err);
    }
    assert_eq!(crate::names(&site), Vec::<String>::new());
}

#[test]
fn a_replay_on_a_temporary_file_leaves_nothing() {
    let site = Site::new(3);
    site.file("t.csv", TRACE.as_bytes());
    for more in [&["--threads", "3"][..], &["--sparse"], &["--drive-threads"], &["--limit", "3"]] {
        let figures = site.run([&["replay", "t.csv", "--json"], more].concat()).good().json();
        let (reads, bytes) = if more[0] == "--limit" { (2, 4096 + 8192 + 1) } else { (4, 17_801) };
        assert_eq!((&figures["trace"], &figures["file"]), (&"t".into(), &Value::Null));
        assert_eq!(
            (&figures["reads"], &figures["writes"], &figures["bytes"]),
            (&reads.into(), &1.into(), &bytes.into())
        );
        assert_eq!(figures["writes_left_out"], 0);
        for key in ["seconds", "ops_per_s", "bytes_per_s", "p50_us", "p99_us", "threads"] {
            assert!(figures[key].as_f64().unwrap() > 0.0, "{key}: {figures}");
        }
        let is_sparse =
            figures["notices"].as_array().unwrap().iter().any(|note| note.as_str().unwrap().contains("holes"));
        assert_eq!(is_sparse, more[0] == "--sparse");
        assert_eq!(crate::names(&site), Vec::<String>::new());
    }
    assert!(site.run(["replay", "t.csv"]).good().text().contains("p99"));
}

#[test]
fn a_named_file_is_changed_only_when_that_is_asked_for() {
    let site = Site::new(2);
    site.file("t.csv", TRACE.as_bytes());
    let content = bytes(105_000);
    crate::put(&site, "data", &content);
    let replay = site.run(["replay", "t.csv", "--file", "data", "--json"]).good().json();
    assert_eq!((&replay["reads"], &replay["writes"], &replay["writes_left_out"]), (&4.into(), &0.into(), &1.into()));
    assert!(replay["notices"][0].as_str().unwrap().contains("--writes"));
    assert_eq!(crate::content(&site, "data"), content);
    let replay = site.run(["replay", "t.csv", "--file", "data", "--writes", "--json"]).good().json();
    assert_eq!((&replay["writes"], &replay["file"]), (&1.into(), &"data".into()));
    let changed = crate::content(&site, "data");
    assert!(changed.len() == content.len() && changed[8192..16_384] != content[8192..16_384]);
    assert!(changed[..8192] == content[..8192] && changed[16_384..] == content[16_384..]);
    crate::put(&site, "short", b"abc");
    site.run(["replay", "t.csv", "--file", "short"]).failed(2, &["short", "105000", "truncate"]);
}

#[test]
fn a_plain_file_is_replayed_on_and_only_read() {
    let site = Site::bare(0);
    site.file("t.csv", TRACE.as_bytes());
    let content = bytes(105_000);
    let path = site.file("features.bin", &content);
    let changed = || fs::metadata(&path).unwrap().modified().unwrap();
    let before = changed();
    for more in [&["--threads", "3"][..], &["--cache", "0"], &["--drive-threads"], &["--engine", "posix"]] {
        let line = ["replay", "t.csv", "--plain", "features.bin", "--json"];
        let replay = site.run_bare([&line[..], more].concat()).good().json();
        assert_eq!((&replay["file"], &replay["plain"]), (&Value::Null, &"features.bin".into()));
        assert_eq!((&replay["reads"], &replay["bytes"]), (&4.into(), &(4096 + 1 + 512 + 5000).into()));
        assert_eq!((&replay["writes"], &replay["writes_left_out"]), (&0.into(), &1.into()));
        let notes = replay["notices"].to_string();
        assert!(notes.contains("1 writes are left out; a plain file is only read"), "{notes}");
        assert_eq!(replay["hit_rate_whole"].is_null(), more[0] == "--cache");
    }
    assert!(fs::read(&path).unwrap() == content && changed() == before);
    site.file("short", &content[..104_999]);
    let said = ["\"short\"", "104999 bytes", "reaches 105000", "--limit"];
    site.run_bare(["replay", "t.csv", "--plain", "short"]).failed(2, &said);
    site.run_bare(["replay", "t.csv", "--plain", "short", "--limit", "4"]).good();
}

#[test]
fn a_plain_file_is_refused_where_it_makes_no_sense() {
    let site = Site::new(1);
    site.file("t.csv", TRACE.as_bytes());
    site.file("f", &bytes(105_000));
    crate::put(&site, "data", &bytes(105_000));
    let part = fs::read_dir(site.path("ssd0/iomill/parts")).unwrap().next().unwrap().unwrap().path();
    for (more, code, said) in [
        (&["--plain", "none"][..], 1, "none"),
        (&["--plain", "."], 1, "."),
        (&["--plain", part.to_str().unwrap()], 2, "belongs to an array"),
        (&["--plain", "f", "--file", "data"], 2, "--file"),
        (&["--plain", "f", "--writes"], 2, "--writes"),
        (&["--plain", "f", "--sparse"], 2, "--sparse"),
        (&["--plain", "f", "--simulate"], 2, "--simulate"),
        (&["--plain", "f", "-a", "ssd0"], 2, "--array"),
        (&["--plain", "f", "--topology", "one"], 2, "--topology"),
        (&["--plain", "f", "--policy", "lru,lfu"], 2, "one policy; --simulate"),
        (&["--plain", "f", "--set-size", "6"], 2, "12"),
    ] {
        site.run_bare([&["replay", "t.csv"], more].concat()).failed(code, &[said]);
    }
}

/// Reads and writes of all lengths. Some pages are used often.
fn mixed_trace() -> String {
    let mut text = String::new();
    let mut random = 1u64;
    for at in 0..6000u64 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (often, any) = ((random >> 33) % 300, (random >> 13) % 3000);
        let page = if at % 3 == 0 { any } else { often };
        let op = if random >> 60 < 5 { 'w' } else { 'r' };
        text += &format!("{op},{},{}\n", page * 4096 + (random >> 40) % 4096, 1 + (random >> 20) % 9000);
    }
    text
}

#[test]
fn the_array_s_cache_hits_as_often_as_the_simulated_one() {
    let site = Site::new(2);
    site.file("t.csv", mixed_trace().as_bytes());
    for (policy, set_size) in [("lru", "8"), ("duel", "12"), ("s3-fifo", "16")] {
        let line = ["replay", "--simulate", "t.csv", "--json", "--cache-pages", "480", "--policy", policy];
        let simulated = site.run_bare([&line[..], &["--set-size", set_size]].concat()).good().json();
        let line = ["replay", "t.csv", "--json", "--cache", "1920KiB", "--policy", policy, "--set-size", set_size];
        let real = site.run(line).good().json();
        assert_eq!((&real["cache_bytes"], &real["file"]), (&(480 * 4096).into(), &Value::Null));
        for key in ["hit_rate_warm", "hit_rate_whole"] {
            let (ours, theirs) = (real[key].as_f64().unwrap(), simulated[key].as_f64().unwrap());
            assert!(theirs > 0.2 && theirs < 0.9, "{policy}, {key}: {theirs}");
            // The real cache evicts clean pages before dirty ones.
            assert!((ours - theirs).abs() < 0.03, "{policy}, {key}: {ours}, simulated {theirs}");
        }
    }
    let reads: String =
        mixed_trace().lines().filter(|line| line.starts_with('r')).map(|line| format!("{line}\n")).collect();
    site.file("reads.csv", reads.as_bytes());
    site.file("plain", &bytes(3100 * 4096));
    let line = ["replay", "reads.csv", "--json", "--policy", "lru", "--set-size", "8"];
    let simulated = site.run_bare([&line[..], &["--simulate", "--cache-pages", "480"]].concat()).good().json();
    let real = site.run_bare([&line[..], &["--plain", "plain", "--cache", "1920KiB"]].concat()).good().json();
    for key in ["hit_rate_warm", "hit_rate_whole"] {
        let (ours, theirs) = (real[key].as_f64().unwrap(), simulated[key].as_f64().unwrap());
        assert!((ours - theirs).abs() < 0.03, "a plain file, {key}: {ours}, simulated {theirs}");
    }
    let none = site.run(["replay", "t.csv", "--json", "--cache", "0"]).good().json();
    assert_eq!((&none["cache_bytes"], &none["hit_rate_warm"]), (&0.into(), &Value::Null));
    assert!(site.run(["replay", "t.csv"]).good().text().contains("warm hits"));
    assert_eq!(crate::names(&site), Vec::<String>::new());
}

#[test]
fn an_interrupted_replay_leaves_nothing() {
    let site = Site::new(2);
    // More requests than any machine serves before the signal.
    let trace: String = (0..6_000_000u64).map(|at| format!("w,{},4096\n", at * 7919 % 50_000 * 4096)).collect();
    site.file("w.csv", trace.as_bytes());
    let line = ["replay", "w.csv", "--sparse", "--cache", "40MiB", "--threads", "2"];
    for wait_ms in [0, 1000] {
        let mut child = site.command(line).stderr(Stdio::null()).spawn().unwrap();
        // The command makes the temporary file after it has installed its signal handlers.
        let parts = site.path("ssd0/iomill/parts");
        while fs::read_dir(&parts).unwrap().next().is_none() {
            assert!(child.try_wait().unwrap().is_none(), "it has ended");
            std::thread::sleep(Duration::from_millis(10));
        }
        std::thread::sleep(Duration::from_millis(wait_ms));
        send(&child, libc::SIGINT);
        assert_eq!(child.wait().unwrap().code(), Some(130));
        let report = ArrayOptions::new().check([site.drive(0)], false).unwrap();
        assert!(report.problems.is_empty() && crate::names(&site).is_empty(), "{report:?}");
    }
}

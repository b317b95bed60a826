use std::collections::BTreeMap;
use std::time::Duration;

use super::*;
use crate::contender::Sample;
use crate::report::LeftOut;
use crate::rounds::{Measured, Outcome, Plan};
use crate::workload::Workload;

/// One element of a picture.
#[derive(Debug)]
struct Element {
    name: String,
    attributes: BTreeMap<String, String>,
    text: String,
}

impl Element {
    fn number(&self, attribute: &str) -> f64 {
        self.attributes[attribute].parse().unwrap()
    }

    /// Left, top, right and bottom. Text is taken as wide as in a wide font.
    fn edges(&self) -> [f64; 4] {
        let (x, y) = (self.number("x"), self.number("y"));
        if self.name == "rect" {
            return [x, y, x + self.number("width"), y + self.number("height")];
        }
        let size = self.number("font-size");
        let width = 0.6 * size * self.text.chars().count() as f64;
        let left = if self.attributes["text-anchor"] == "end" { x - width } else { x };
        [left, y - size / 2.0, left + width, y + size / 2.0]
    }
}

/// The elements of a well-formed picture. Panics if a tag is open, an attribute has no quotes, or a character is not
/// escaped.
fn elements(picture: &str) -> Vec<Element> {
    let (mut elements, mut open) = (Vec::new(), Vec::new());
    assert!(picture.starts_with("<svg "), "{picture}");
    for piece in picture.split('<').skip(1) {
        let (tag, text) = piece.split_once('>').unwrap();
        for rest in text.split('&').skip(1).chain(tag.split('&').skip(1)) {
            assert!(["lt;", "gt;", "amp;", "quot;", "apos;"].iter().any(|name| rest.starts_with(name)), "{piece}");
        }
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop().as_deref(), Some(name), "{piece}");
            continue;
        }
        let (name, mut rest) = tag.trim_end_matches('/').split_once(' ').unwrap();
        let mut attributes = BTreeMap::new();
        while let Some((key, more)) = rest.trim_start().split_once("=\"") {
            let (value, more) = more.split_once('"').unwrap();
            assert!(attributes.insert(key.to_owned(), value.to_owned()).is_none(), "{piece}");
            rest = more;
        }
        assert_eq!(rest.trim(), "", "{piece}");
        if !tag.ends_with('/') {
            open.push(name.to_owned());
        }
        elements.push(Element { name: name.to_owned(), attributes, text: text.trim().to_owned() });
    }
    assert!(open.is_empty(), "{open:?} are open");
    elements
}

/// A report with these contenders: name, state, operations per second, and CPU time per operation in microseconds. The
/// rounds differ by a tenth.
fn report(contenders: &[(&'static str, Cache, f64, f64)]) -> Report {
    let time = Duration::from_secs(1);
    let plan = Plan { workload: Workload::RANDOM_READ, threads: 1, rounds: 3, slice: time, warm_up: time };
    let outcomes = contenders.iter().map(|&(contender, cache, ops, cpu_us)| {
        let sample = |factor: f64| Sample {
            ops: (ops * factor) as u64,
            wall: time,
            cpu_us: ops * cpu_us,
            ..Sample::empty().unwrap()
        };
        Outcome { contender, cache, samples: [0.9, 1.0, 1.1].map(sample).to_vec(), notes: Vec::new() }
    });
    let measured = Measured { outcomes: outcomes.collect(), ..Measured::of(plan) };
    Report::new(Machine { cpu_model: "A <CPU> & more".into(), cores: 2, ..Machine::default() }, &[measured])
}

fn fixed() -> Report {
    report(&[
        (IOMILL_READ_AT, Cache::Held, 17_000.0, 9.0),
        (IOMILL_READ_MANY, Cache::Held, 108_000.0, 4.0),
        (URING_BY_HAND, Cache::Direct, 120_000.0, 3.5),
        (IOMILL_FUTURE_512, Cache::Held, 119_000.0, 6.0),
        (PREAD, Cache::Cold, 16_000.0, 31.0),
        (MMAP, Cache::Cold, 15_000.0, 35.5),
        (IOMILL_READ_AT, Cache::Warm, 11e6, 0.09),
        (IOMILL_READ_MANY, Cache::Warm, 24e6, 0.041),
        (MMAP, Cache::Warm, 25e6, 0.04),
        (PREAD, Cache::Warm, 1.2e6, 0.82),
    ])
}

#[test]
fn the_picture_is_well_formed_and_names_all() {
    let picture = svg(&fixed(), "iomill-lab picture --svg 'a<b>.svg'").unwrap();
    let elements = elements(&picture);
    let said: Vec<&str> = elements.iter().map(|one| one.text.as_str()).collect();
    for text in [
        "Random reads by one thread",
        "Cold: reads of 4 KiB from drives",
        "Warm: reads of 128 bytes from memory",
        "108k",
        "25.0M",
        "31.0 µs",
        "820 ns",
        "iomill, 512 futures",
        "$ iomill-lab picture --svg &apos;a&lt;b&gt;.svg&apos;",
    ] {
        assert!(said.contains(&text), "{text} is not in {said:?}");
    }
    assert!(said.iter().any(|text| text.starts_with("A &lt;CPU&gt; &amp; more, ")), "{said:?}");
    assert!(said.iter().any(|text| text.contains("median of 3 rounds")), "{said:?}");
    assert_eq!(said.iter().filter(|text| **text == "reads per second: more is better").count(), 2);
    // A browser with a dark page shows the picture's own background.
    let ground = elements.iter().find(|one| one.name == "rect").unwrap();
    assert_eq!((ground.attributes["fill"].as_str(), ground.number("x"), ground.number("y")), ("#FFFFFF", 0.0, 0.0));
    assert!(ground.number("width") >= elements[0].number("width") - 1.0);
}

/// The names of the rows from top to bottom.
fn names(elements: &[Element]) -> Vec<&str> {
    let rows = elements.iter().filter(|one| one.attributes.get("text-anchor").is_some_and(|anchor| anchor == "end"));
    rows.map(|row| row.text.as_str()).collect()
}

#[test]
fn the_fastest_is_at_the_top_whichever_it_is() {
    let picture = svg(&fixed(), "it").unwrap();
    let elements = elements(&picture);
    let cold = ["io_uring by hand", "iomill, 512 futures", "iomill read_many", "iomill read_at", "pread", "mmap"];
    let warm = ["mmap", "iomill read_many", "iomill read_at", "pread"];
    assert_eq!(names(&elements), [&cold[..], &warm].concat());
}

#[test]
fn bars_are_in_proportion() {
    let picture = svg(&report(&[(MMAP, Cache::Warm, 2e6, 0.5), (PREAD, Cache::Warm, 1e6, 1.0)]), "it").unwrap();
    let bars: Vec<f64> = bars(&elements(&picture)).iter().map(|bar| bar[2] - bar[0]).collect();
    // Reads per second, and then CPU time per read.
    let [mmap_ops, pread_ops, mmap_cpu, pread_cpu] = bars[..] else { panic!("{bars:?}") };
    assert!((mmap_ops / pread_ops - 2.0).abs() < 0.03 && (pread_cpu / mmap_cpu - 2.0).abs() < 0.03, "{bars:?}");
}

/// The edges of all bars, without background and frame.
fn bars(elements: &[Element]) -> Vec<[f64; 4]> {
    let bars = elements.iter().filter(|one| one.name == "rect" && one.number("x") > 0.0);
    bars.map(Element::edges).collect()
}

fn overlap(one: &[f64; 4], other: &[f64; 4]) -> bool {
    one[0] < other[2] && other[0] < one[2] && one[1] < other[3] && other[1] < one[3]
}

/// Neither with usual figures nor with extreme ones and long texts.
#[test]
fn nothing_overlaps_or_is_cut() {
    let mut wide = report(&[
        (IOMILL_READ_MANY, Cache::Held, 1.0, 99_999_999.0),
        (PREAD, Cache::Cold, 987_654_321.0, 0.00001),
        (MMAP, Cache::Warm, 0.0, 0.0),
    ]);
    wide.machine.cpu_model = "A very long name of a processor ".repeat(9);
    let why = "it cannot".to_owned();
    let out = |contender: &str, cache: &str| LeftOut {
        contender: contender.to_owned(),
        workload: "random-read-4KiB".into(),
        cache: cache.to_owned(),
        why: why.clone(),
    };
    wide.left_out = vec![out(URING_BY_HAND, "direct"), out(PREAD, "warm"), out(MMAP, "cold")];
    for (report, command) in [(fixed(), "iomill-lab picture"), (wide, &*"iomill-lab picture ".repeat(20))] {
        let picture = svg(&report, command).unwrap();
        let elements = elements(&picture);
        let (width, height) = (elements[0].number("width"), elements[0].number("height"));
        let texts: Vec<&Element> = elements.iter().filter(|one| one.name == "text").collect();
        let edges: Vec<[f64; 4]> = texts.iter().map(|one| one.edges()).chain(bars(&elements)).collect();
        for (at, one) in edges.iter().enumerate() {
            assert!(one[0] >= 0.0 && one[1] >= 0.0 && one[2] <= width && one[3] <= height, "{at} {one:?}: {picture}");
            let other = edges[..at].iter().position(|other| overlap(one, other));
            assert_eq!(other, None, "{at} {one:?}: {picture}");
        }
    }
}

#[test]
fn what_was_not_measured_is_said() {
    let mut report = report(&[(MMAP, Cache::Warm, 2e6, 0.5)]);
    let (contender, workload) = (PREAD.to_owned(), "uniform".to_owned());
    report.left_out.push(LeftOut { contender, workload, cache: "warm".into(), why: "it cannot".into() });
    let picture = svg(&report, "a\u{1}b\nc").unwrap();
    let elements = elements(&picture);
    let said: Vec<&str> = elements.iter().map(|one| one.text.as_str()).collect();
    for text in ["not measured", "Not measured: pread (warm).", "$ a b c"] {
        assert!(said.contains(&text), "{text} is not in {said:?}");
    }
}

#[test]
fn all_contenders_take_part_in_one_run_that_leaves_nothing() {
    let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let arena = Arena::fresh(&dir.path().join("array"), 2).unwrap();
    let settings =
        Settings { size_bytes: 32 << 20, options: ArrayOptions::new(), rounds: 2, slice: Duration::from_millis(60) };
    let report = arena.measured(|arena| run(arena, &settings, &AtomicBool::new(false), &mut |_| ())).unwrap();
    let cold = [IOMILL_READ_MANY, IOMILL_READ_AT, URING_BY_HAND, PREAD, MMAP, IOMILL_FUTURE_512];
    let warm = [IOMILL_READ_AT, IOMILL_READ_MANY, MMAP, PREAD];
    for (names, workload) in [(&cold[..], "random-read-4KiB"), (&warm, "uniform")] {
        for &name in names {
            let row = report.results.iter().find(|row| row.contender == name && row.workload == workload);
            let out = report.left_out.iter().find(|out| out.contender == name && out.workload == workload);
            let is_explained = out.is_some_and(|out| out.why.contains("io_uring") || out.why.contains("a drive"));
            assert!(
                row.is_some_and(|row| row.rounds == 2 && row.ops_per_s > 0.0) || is_explained,
                "{name}: {report:?}"
            );
        }
    }
    assert_eq!(report.results.len() + report.left_out.len(), cold.len() + warm.len());
    let shares = report.results.iter().filter(|row| row.cache == "held").map(|row| row.hit_percent.unwrap());
    assert!(shares.into_iter().all(|percent| percent < 25.0), "{report:?}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "something is left");
}

#[test]
fn a_file_that_would_fit_in_the_smallest_cache_is_refused() {
    let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let arena = Arena::fresh(&dir.path().join("array"), 1).unwrap();
    let (options, slice) = (ArrayOptions::new(), Duration::from_millis(30));
    let settings = Settings { size_bytes: (32 << 20) - 1, options, rounds: 1, slice };
    let error =
        arena.measured(|arena| run(arena, &settings, &AtomicBool::new(false), &mut |_| ())).unwrap_err().to_string();
    assert!(error.contains("a --size of at least 32MiB"), "{error}");
}

#[test]
fn a_cancelled_run_has_no_reads_from_memory_and_leaves_nothing() {
    let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let arena = Arena::fresh(&dir.path().join("array"), 1).unwrap();
    let (options, slice) = (ArrayOptions::new(), Duration::from_millis(30));
    let settings = Settings { size_bytes: 32 << 20, options, rounds: 1, slice };
    let cancel = AtomicBool::new(false);
    let mut cancels = |stage| {
        if let Stage::Measuring(_) = stage {
            cancel.store(true, std::sync::atomic::Ordering::Relaxed);
        }
    };
    let report = arena.measured(|arena| run(arena, &settings, &cancel, &mut cancels)).unwrap();
    assert!(report.cancelled && report.results.is_empty(), "{report:?}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "something is left");
}

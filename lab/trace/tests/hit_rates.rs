//! Hit rates on whole traces. There is always a made-up trace. If `IOMILL_TRACES` names a directory of traces with a
//! `reference_hit_rates.csv`, the rates are compared with the published ones.

#![allow(clippy::unwrap_used)]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use iomill_trace::reference::{ARC, LRU, Reference, distances};
use iomill_trace::simulate::{self, Outcome, Policy, SetPolicy};
use iomill_trace::{Pages, Reader, pages};

static NEVER: AtomicBool = AtomicBool::new(false);

const LRU_SETS: Policy = Policy::Sets(SetPolicy::Lru);

fn load(path: &Path) -> Pages {
    Pages::load(&mut Reader::open(path, None).unwrap(), u64::MAX, pages::memory_bytes()).unwrap()
}

fn run(pages: &Pages, sizes: &[u64]) -> Vec<Outcome> {
    simulate::run(pages, &simulate::cases(&Policy::all(), sizes, &[12]), &NEVER, &|_| {}).unwrap().unwrap()
}

/// The traces of a directory, by name.
fn traces(dir: &Path) -> Vec<(String, PathBuf)> {
    let paths = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let named = paths.filter_map(|path| Some((path.file_name()?.to_str()?.strip_suffix(".csv.xz")?.to_owned(), path)));
    named.collect()
}

#[test]
fn published_traces_have_the_hit_rates_that_others_found() {
    let Some(dir) = std::env::var_os("IOMILL_TRACES").map(PathBuf::from) else {
        eprintln!("skipped: IOMILL_TRACES names no directory with traces and reference_hit_rates.csv");
        return;
    };
    let reference = Reference::open(&dir.join("reference_hit_rates.csv")).unwrap();
    let mut all = Vec::new();
    for (name, path) in traces(&dir) {
        let pages = load(&path);
        all.extend(run(&pages, &reference.sizes(&name)).into_iter().map(|outcome| (name.clone(), outcome)));
    }
    assert!(all.len() >= 4 * 30, "{} cells", all.len());
    for (name, outcome) in &all {
        let of = |policy| reference.rate(name, outcome.case.cache_pages, policy).unwrap();
        // These two policies are defined exactly. Adaptive replacement has variants.
        let (expected, tolerance) = match outcome.case.policy {
            Policy::GlobalLru => (of(LRU), 1e-6),
            Policy::Optimum => (of("Belady-MIN"), 1e-6),
            Policy::GlobalArc => (of(ARC), 0.005),
            Policy::Sets(_) => continue,
        };
        let difference = (outcome.hit_rate_warm - expected).abs();
        assert!(difference <= tolerance, "{name}: {outcome:?}, and the reference has {expected}");
    }
    let outcomes: Vec<_> = all.iter().map(|(name, outcome)| (name.as_str(), *outcome)).collect();
    let sets = distances(&reference, &outcomes).into_iter().find(|distance| distance.policy == LRU_SETS).unwrap();
    assert!(sets.over_lru > -0.01, "{sets:?}");
}

/// A compressed trace of two devices, with popular pages, and scans between.
fn made_up(path: &Path) {
    let mut random = fastrand::Rng::with_seed(42);
    let mut text = String::new();
    for at in 0..60_000u64 {
        let often = random.u64(0..4000) * random.u64(0..4000) / 4000;
        let (unit, page) = if at / 500 % 20 == 3 { (1, at) } else { (0, often) };
        text += &format!("{unit},{},{},{},0.5\n", page * 8, 4096, if at % 5 == 0 { "W" } else { "r" });
    }
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(text.as_bytes()).unwrap();
    std::fs::write(path, encoder.finish().unwrap()).unwrap();
}

#[test]
fn page_sets_cost_little_on_a_made_up_trace() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("made-up.spc");
    made_up(&path);
    let pages = load(&path);
    assert_eq!(pages.len(), 60_000);
    let outcomes = run(&pages, &simulate::default_sizes(pages.unique()));
    let mean = |policy| {
        let rates: Vec<f64> = outcomes
            .iter()
            .filter(|outcome| outcome.case.policy == policy)
            .map(|outcome| outcome.hit_rate_warm)
            .collect();
        rates.iter().sum::<f64>() / rates.len() as f64
    };
    let [sets, lru, arc, optimum] = [LRU_SETS, Policy::GlobalLru, Policy::GlobalArc, Policy::Optimum].map(mean);
    assert!((sets - lru).abs() < 0.01, "{sets} {lru}");
    assert!(lru < arc && arc < optimum && optimum < 1.0 && lru > 0.2, "{lru} {arc} {optimum}");
}

use std::time::Duration;

use super::*;
use crate::contender::Cache;
use crate::rounds::Plan;

fn sample(cpu_us: f64) -> Sample {
    Sample { ops: 1, wall: Duration::from_micros(cpu_us as u64), cpu_us, ..Sample::empty().unwrap() }
}

/// The results of two contenders with these ratios by round.
fn measured(ratios: &[f64]) -> Measured {
    let time = Duration::from_secs(1);
    let plan = Plan { workload: Workload::RANDOM_READ, threads: 1, rounds: ratios.len(), slice: time, warm_up: time };
    let outcome = |contender, samples| Outcome { contender, cache: Cache::Direct, samples, notes: Vec::new() };
    // The machine gets slower from round to round. No ratio shows that.
    let by_hand: Vec<f64> = (0..ratios.len()).map(|round| 1000.0 * (1 + round) as f64).collect();
    let ours = ratios.iter().zip(&by_hand).map(|(ratio, by_hand)| sample(ratio * by_hand)).collect();
    let theirs = by_hand.iter().map(|&by_hand| sample(by_hand)).collect();
    let outcomes = vec![outcome(IOMILL_INLINE, ours), outcome(URING_BY_HAND, theirs)];
    Measured { outcomes, ..Measured::of(plan) }
}

fn bound(at_most: f64) -> Bound {
    Bound { name: "drives-by-hand".into(), what: "it".into(), at_most }
}

/// Nine rounds around 1.2. One of them is disturbed.
const ROUNDS: [f64; 9] = [1.2, 1.18, 1.22, 1.19, 9.0, 1.21, 1.2, 1.17, 1.23];

#[test]
fn a_ratio_is_worse_only_beyond_its_noise() {
    for (pair, at_most, verdict) in [
        (DRIVES[0], 1.25, Verdict::Within),
        (DRIVES[0], 1.18, Verdict::Within),
        (DRIVES[0], 1.17, Verdict::Worse),
        (DRIVES[1], 1.18, Verdict::Within),
        (DRIVES[1], 1.17, Verdict::Worse),
    ] {
        let ratio = ratio(&pair, &bound(at_most), &measured(&ROUNDS));
        let (seen, noise) = (ratio.seen.unwrap(), ratio.noise.unwrap());
        assert!((seen - 1.2).abs() < 1e-9 && (noise - 0.025).abs() < 1e-9, "{ratio:?}");
        assert_eq!((ratio.verdict, ratio.why), (verdict, None), "{at_most}");
        assert_eq!(ratio.rounds.len(), 9);
    }
}

#[test]
fn noise_that_may_hide_anything_is_no_pass() {
    let noisy = measured(&[0.5, 1.2, 2.1]);
    let verdict = |at_most| ratio(&DRIVES[0], &bound(at_most), &noisy).verdict;
    // Half of the range is 0.8.
    assert_eq!(
        [0.3, 0.5, 3.1, 3.3].map(verdict),
        [Verdict::Worse, Verdict::TooNoisy, Verdict::TooNoisy, Verdict::Within]
    );
}

#[test]
fn what_was_cancelled_before_its_first_round_is_not_told() {
    let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let arena = Arena::fresh(&dir.path().join("array"), 1).unwrap();
    let turns = Turns { threads: vec![1], rounds: 2, slice: Duration::from_millis(30) };
    let settings = Settings { size_bytes: 1 << 20, options: ArrayOptions::new(), turns };
    let cancel = AtomicBool::new(false);
    let mut cancels = |stage| {
        if let Stage::Measuring(_) = stage {
            cancel.store(true, std::sync::atomic::Ordering::Relaxed);
        }
    };
    let gate = arena.measured(|arena| run(arena, &settings, &cancel, &mut cancels)).unwrap();
    assert!(gate.cancelled && gate.results.is_empty(), "{gate:?}");
}

#[test]
fn few_rounds_count_all_of_them() {
    assert_eq!(spread(&[3.0, 1.0, 2.0]), Some((2.0, 1.0)));
    assert_eq!(spread(&[1.5]), Some((1.5, 0.0)));
    assert_eq!(spread(&[]), None);
}

#[test]
fn a_contender_that_did_not_take_part_is_named_and_is_no_failure() {
    let mut without = measured(&ROUNDS);
    without.outcomes.pop();
    without.left_out.push((URING_BY_HAND, Cache::Direct, "forbidden".into()));
    let ratio = ratio(&DRIVES[0], &bound(1.0), &without);
    assert_eq!((ratio.verdict, ratio.seen), (Verdict::NotMeasured, None));
    assert_eq!(ratio.why.as_deref(), Some("uring-by-hand: forbidden"));
    let gate = Gate { machine: Machine::default(), results: vec![ratio], passed: true, cancelled: false };
    assert!(gate.table(None).contains("drives-by-hand was not measured: uring-by-hand: forbidden"));
    assert_eq!(gate.fault(), None);
}

#[test]
fn what_is_worse_is_reported_with_its_noise() {
    let results = vec![ratio(&DRIVES[0], &bound(1.0), &measured(&ROUNDS))];
    let gate = Gate { machine: Machine::default(), results, passed: false, cancelled: false };
    assert_eq!(gate.fault().unwrap(), "drives-by-hand is 1.20 ± 0.03 where at most 1.00 is allowed");
    let line = gate.table(None).lines().find(|line| line.contains("drives-by-hand")).unwrap().to_owned();
    assert!(["1.20x", "± 0.03", "1.00x", "WORSE"].iter().all(|part| line.contains(part)), "{line}");
    let document: serde_json::Value = serde_json::from_str(&gate.json().unwrap()).unwrap();
    let first = &document["results"][0];
    assert_eq!((&first["verdict"], &first["figure"]), (&"worse".into(), &"cpu_per_op".into()));
    assert_eq!((first["bound"].as_f64(), document["passed"].as_bool()), (Some(1.0), Some(false)));
}

#[test]
fn every_ratio_has_a_bound_and_every_bound_a_ratio() {
    let bounds = bounds::recorded().unwrap();
    let recorded: Vec<&str> = bounds.iter().map(|bound| bound.name.as_str()).collect();
    let measured: Vec<&str> = [&DRIVES[..], &COLD, &WARM, &CREATES].concat().iter().map(|pair| pair.name).collect();
    assert_eq!(recorded, measured);
    assert!(bounds.iter().all(|bound| bound.at_most > 0.0 && !bound.what.is_empty()), "{bounds:?}");
}

#[test]
fn it_measures_all_and_leaves_nothing() {
    let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let arena = Arena::fresh(&dir.path().join("array"), 2).unwrap();
    let settings = Settings {
        size_bytes: 8 << 20,
        options: ArrayOptions::new(),
        turns: Turns { threads: vec![1], rounds: 2, slice: Duration::from_millis(30) },
    };
    let gate = arena.measured(|arena| run(arena, &settings, &AtomicBool::new(false), &mut |_| ())).unwrap();
    assert_eq!(gate.results.len(), bounds::recorded().unwrap().len());
    for ratio in &gate.results {
        let is_explained = ratio.why.as_deref().is_some_and(|why| why.starts_with(URING_BY_HAND));
        assert!(ratio.rounds.len() == 2 && ratio.seen > Some(0.0) || is_explained, "{ratio:?}");
    }
    assert_eq!(gate.passed, gate.fault().is_none());
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "something is left");
}

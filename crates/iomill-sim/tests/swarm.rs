//! Programs of the swarm: those that once showed a fault, and some more.

use iomill_sim::swarm::{Coverage, run};

/// Seeds that once showed a fault, of iomill or of the swarm.
const ONCE_FAILED: &[u64] = &[
    1547,
    17885237372911638142,
    101126,
    101942,
    102622,
    103366,
    104240,
    109592,
    109630,
    136194,
    142026,
    7020093,
    9002381,
    20005500,
];

#[test]
fn random_programs_are_right() {
    let mut coverage = Coverage::default();
    let times = std::env::var("IOMILL_ROUNDS").ok().map(|text| text.parse::<u64>().unwrap());
    let new =
        (0..times.map_or(150, |times| 150 * times)).map(|seed| if times.is_some() { fastrand::u64(..) } else { seed });
    for seed in ONCE_FAILED.iter().copied().chain(new) {
        if let Err(failure) = run(seed, None, &mut coverage) {
            let again = format!("cargo run --release -p iomill-sim -- --seed {seed}");
            panic!("{}\n{}\nseed {seed}: {}\nagain: {again}", failure.events, failure.story.join("\n"), failure.what);
        }
    }
}

#[test]
fn a_program_does_the_same_each_time() {
    for seed in 0..10 {
        let first = run(seed, None, &mut Coverage::default()).unwrap_or_default();
        let second = run(seed, None, &mut Coverage::default()).unwrap_or_default();
        assert_eq!(first, second, "seed {seed}");
    }
}

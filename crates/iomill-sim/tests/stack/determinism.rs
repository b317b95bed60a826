//! One seed gives one run.

use iomill_sim::{Rates, World};

use super::harness::{Round, machine};
use super::script::Script;

/// A run with faults, futures, a crash and its recovery. Returns a hash over all events.
fn run(seed: u64) -> (u64, u64) {
    let mut round = Round { rng: fastrand::Rng::with_seed(seed), world: World::new(seed) };
    let array = machine(&mut round);
    let Round { rng, world } = &mut round;
    let rates = Rates { short_read: 50, short_write: 50, interrupted: 50, ..Rates::default() };
    world.faults(|faults| faults.rates = rates);
    let mut script = Script::new(array);
    script.run(rng, world, 30).unwrap();
    world.crash();
    drop(script);
    world.reboot();
    super::harness::open(rng, world).unwrap().close().unwrap();
    (world.trace_hash(), world.operations())
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let runs: Vec<(u64, u64)> = (0..15).map(run).collect();
    for (seed, first) in runs.iter().enumerate() {
        assert!(first.1 > 100);
        // The heap differs from that of the run before.
        let _ballast = vec![vec![0u8; 777]; 100 + seed];
        assert_eq!(run(seed as u64), *first, "seed {seed}");
    }
    assert!(runs.windows(2).all(|pair| pair[0] != pair[1]), "different seeds give different runs");
}

//! The cache's size changes while calls of every kind are under way.

use iomill::cache::policy::PolicyKind;
use iomill::{ArrayOptions, Topology};
use iomill_sim::Rates;

use super::futures::mixed_with;
use super::harness::{Round, assert_same, assert_tidy, drive, file_options, options, rounds};

/// Pages of a set.
const WAYS: u64 = 4;
const SET_BYTES: u64 = WAYS * 4096;

/// Seeds that once showed a bug.
const ONCE_FAILED: &[u64] = &[1179998709006811502];

#[test]
fn a_cache_is_resized_beside_calls() {
    rounds("a_cache_is_resized_beside_calls", 60, ONCE_FAILED, run);
}

fn run(round: &mut Round) {
    let drives = round.rng.usize(1..4);
    for index in 0..drives {
        let model = drive(&mut round.rng);
        round.world.add_drive(format!("/sim/{index}"), model);
    }
    let (rng, world) = (&mut round.rng, &round.world);
    let rates = Rates { short_read: 100, short_write: 100, interrupted: 100, ..Rates::default() };
    let rates = if rng.bool() { rates } else { Rates::default() };
    world.faults(|faults| faults.rates = rates);
    // A bad hash fills sets, so that calls go past them and have to wait.
    let mask = [u64::MAX, u64::MAX, 0x7000_0000_0000_0007][rng.usize(0..3)];
    // A node has at least one set.
    let nodes = [1, 2, 1, 4][(rng.get_seed() >> 20) as usize % 4];
    let sets_max = rng.u64(1..200).max(nodes);
    let sets = rng.u64(1..=sets_max).max(nodes);
    let policies: Vec<PolicyKind> = PolicyKind::all().collect();
    let array = options(rng, world)
        .cache_bytes(sets * SET_BYTES)
        .with_cache(|cache| {
            cache
                .max_bytes(sets_max * SET_BYTES)
                .set_pages(WAYS as usize)
                .policy(policies[rng.usize(0..policies.len())])
                .hash_mask(mask)
        })
        .with_tuning(|tuning| tuning.topology(Topology::Emulate(nodes as usize)))
        .create(world.paths())
        .unwrap();
    let file = array.create_file("file", &file_options(rng, drives)).unwrap();
    let mut model = Vec::new();
    for _ in 0..rng.usize(3..12) {
        mixed_with(rng, &array, &file, &mut model, |rng, ended| {
            // A thread of `begins` does what a dropped write could not do at once. Here a step does that, and nothing
            // else makes steps while the length changes.
            (0..if ended { 2000 } else { 0 }).for_each(|_| array.step());
            if rng.u8(0..3) == 0 {
                let sets = rng.u64(1..=sets_max).max(nodes);
                array.resize_cache(sets * SET_BYTES).unwrap();
                assert_eq!(array.counters().cache_bytes, sets * SET_BYTES);
            }
        });
        assert_eq!(world.violations(), Vec::<String>::new());
    }
    let mut got = vec![0; model.len()];
    assert_eq!(file.read_at(&mut got, 0).unwrap(), model.len());
    assert_same(&got, &model, || "the file".to_owned());
    array.resize_cache(nodes * SET_BYTES).unwrap();
    drop(file);
    array.close().unwrap();
    let array = ArrayOptions::new().platform(world.platform()).cache_bytes(0).open(world.path(0)).unwrap();
    let file = array.open_file("file").unwrap();
    assert_eq!(file.read_at(&mut got, 0).unwrap(), model.len());
    assert_same(&got, &model, || "the file on the drives".to_owned());
    drop(file);
    array.close().unwrap();
    assert_tidy(world);
}

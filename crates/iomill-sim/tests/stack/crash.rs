//! A crash at any change of any drive. All bytes that were acknowledged as durable are there, and no bytes that no call
//! wrote. The array goes on.

use fastrand::Rng;
use iomill::{Array, ArrayOptions, FileOptions, Layout};
use iomill_sim::World;
use iomill_sim::testing::check_clean;

use super::harness::{Round, machine_with, open, options, rounds};
use super::script::{Files, Script};

/// Seeds that once showed a bug.
const ONCE_FAILED: &[u64] = &[10256331696482578948];

/// The number of random moments at which each script's machine crashes.
const CRASHES: usize = 8;

#[test]
fn a_crash_loses_nothing_that_was_acknowledged() {
    rounds("a_crash_loses_nothing_that_was_acknowledged", 40, ONCE_FAILED, |round| {
        crash_often(round, true);
    });
}

/// Changes of names that wait for no sync are lost together with all later changes. A crash leaves a past state, and
/// none from before the last sync of anything.
#[test]
fn without_syncs_a_crash_leaves_a_state_since_the_last_one() {
    rounds("without_syncs_a_crash_leaves_a_state_since_the_last_one", 20, ONCE_FAILED, |round| {
        crash_often(round, false);
    });
}

fn crash_often(round: &mut Round, syncs_changes: bool) {
    let seed = round.rng.u64(..);
    let effects = play(&mut round.world, seed, None, syncs_changes);
    // A short script that waits for no sync may change nothing.
    let crashes = if effects == 0 { 0 } else { CRASHES };
    for _ in 0..crashes {
        let at = round.rng.u64(1..=effects);
        play(&mut round.world, seed, Some(at), syncs_changes);
    }
}

/// Options for changes that wait for no sync.
fn unsynced(rng: &mut Rng, world: &World) -> ArrayOptions {
    options(rng, world).sync_changes(false)
}

/// Plays one script, with a crash after a number of changes of the drives since the array was made. Returns how many
/// changes there are without a crash.
fn play(world: &mut World, seed: u64, crash: Option<u64>, syncs_changes: bool) -> u64 {
    // The caller looks at the round's world after a failure, so this replaces that one.
    *world = World::new(seed);
    let mut round = Round { rng: Rng::with_seed(seed), world: world.clone() };
    let array = machine_with(&mut round, if syncs_changes { options } else { unsynced });
    let (rng, world) = (&mut round.rng, &round.world);
    let torn = rng.bool();
    let before = world.effects();
    world.faults(|faults| {
        faults.torn_sectors = torn;
        faults.crash_at_effect = crash.map(|at| before + at);
    });
    let mut script = if syncs_changes { Script::new(array) } else { Script::without_syncs(array, unsynced) };
    let calls = rng.usize(5..30);
    let ended = script.run(rng, world, calls);
    let effects = world.effects() - before;
    match (ended, world.crashed()) {
        (Err(error), false) => panic!("without a crash: {error}"),
        (Ok(()), false) => world.crash(),
        (_, true) => {}
    }
    let outcomes = std::mem::take(&mut script.outcomes);
    drop(script);
    survive(rng, world, &outcomes, if torn { 512 } else { 4096 });
    effects
}

/// Boots, and checks the remaining files. Sometimes it crashes again meanwhile.
fn survive(rng: &mut Rng, world: &World, outcomes: &[Files], granule: usize) {
    let mut crashes = rng.usize(0..3);
    let (array, found) = loop {
        world.reboot();
        if crashes > 0 {
            crashes -= 1;
            let at = world.effects() + rng.u64(1..30);
            world.faults(|faults| faults.crash_at_effect = Some(at));
        } else {
            world.faults(|faults| faults.crash_at_effect = None);
        }
        let found = open(rng, world).and_then(|array| Ok((read_all(&array)?, array)));
        match found {
            Ok((found, array)) if !world.crashed() => break (array, found),
            Ok(_) => {}
            Err(error) => assert!(world.crashed(), "the array does not open: {error}"),
        }
    };
    world.faults(|faults| faults.crash_at_effect = None);
    let wrong: Vec<String> = outcomes.iter().filter_map(|files| fits(files, &found, granule).err()).collect();
    assert!(wrong.len() < outcomes.len(), "the crash left what no outcome allows:\n{}", wrong.join("\n"));
    assert_eq!(array.unnamed_pages(), 0);
    assert_clean_beside(world, array);
    go_on(rng, world, &found);
    assert_eq!(world.violations(), Vec::<String>::new());
}

/// A file after a crash.
struct Found {
    name: String,
    bytes: Vec<u8>,
    attributes: std::collections::BTreeMap<String, String>,
}

fn read_all(array: &Array) -> iomill::Result<Vec<Found>> {
    let mut found = Vec::new();
    for name in array.list("").names().unwrap() {
        let file = array.open_file(&name)?;
        let mut bytes = vec![0; file.len() as usize];
        let read = file.read_at(&mut bytes, 0)?;
        assert_eq!(read, bytes.len());
        found.push(Found { attributes: array.stat(&name)?.attributes, name, bytes });
    }
    Ok(found)
}

fn fits(files: &Files, found: &[Found], granule: usize) -> Result<(), String> {
    let names: Vec<&String> = found.iter().map(|found| &found.name).collect();
    if !names.iter().copied().eq(files.keys()) {
        return Err(format!("files {names:?}, not {:?}", files.keys()));
    }
    for (found, known) in found.iter().zip(files.values()) {
        if found.attributes != known.attributes {
            return Err(format!("{}: attributes {:?}, not {:?}", found.name, found.attributes, known.attributes));
        }
        known.versions.fits(&found.bytes, granule).map_err(|why| format!("{}: {why}", found.name))?;
    }
    Ok(())
}

/// `check` finds nothing to report.
pub fn assert_clean(world: &World) {
    assert_eq!(check_clean(world), Ok(()));
}

/// The same for an open array. Closes it.
pub fn assert_clean_beside(world: &World, array: Array) {
    array.close().unwrap();
    assert_clean(world);
}

/// Works on the remaining files: a file that grows reads as zeroes there, also after one more crash.
fn go_on(rng: &mut Rng, world: &World, found: &[Found]) {
    let array = open(rng, world).unwrap();
    let mut grown = Vec::new();
    for found in found {
        let file = array.open_file(&found.name).unwrap();
        let mut bytes = found.bytes.clone();
        bytes.resize(bytes.len() + rng.usize(1..1_000_000), 0);
        if rng.bool() {
            file.set_len(bytes.len() as u64).unwrap();
        } else {
            let last = bytes.len() - 1;
            bytes[last] = 7;
            file.write_at(&[7], last as u64).unwrap();
            file.sync().unwrap();
        }
        grown.push((&found.name, bytes));
    }
    assert_grown(&array, &grown, "grown");
    array.create_file("after the crash", &FileOptions::new().layout(Layout::Hash)).unwrap();
    if rng.bool() {
        array.close().unwrap();
    }
    world.crash();
    world.reboot();
    let array = open(rng, world).unwrap();
    assert_grown(&array, &grown, "grown, and crashed once more");
    array.close().unwrap();
}

fn assert_grown(array: &Array, grown: &[(&String, Vec<u8>)], what: &str) {
    for (name, bytes) in grown {
        let file = array.open_file(name).unwrap();
        let mut got = vec![1; bytes.len() + 1];
        let read = file.read_at(&mut got, 0).unwrap();
        super::harness::assert_same(&got[..read], bytes, || format!("{name} {what}"));
    }
}

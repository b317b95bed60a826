//! Plain files on simulated drives: against a byte vector, and after a crash at any change.

use fastrand::Rng;
use iomill::{Error, File, PlainOptions, Result, Runtime, RuntimeOptions};
use iomill_sim::World;

use super::harness::{Round, assert_tidy, drive, rounds};

const PAGE: usize = 4096;

fn runtime(rng: &mut Rng, world: &World) -> Runtime {
    let cache = [0, 16 * PAGE, 64 * PAGE][rng.usize(0..3)] as u64;
    RuntimeOptions::new().platform(world.platform()).cache_bytes(cache).start().unwrap()
}

fn open(runtime: &Runtime, world: &World) -> Result<File> {
    PlainOptions::new().write(true).create(true).runtime(runtime).open(world.path(0).join("plain"))
}

/// A file as calls have left it.
#[derive(Clone, Debug, Default)]
struct Model {
    /// The content that the last call with that promise has made durable.
    durable: Vec<u8>,
    /// With everything since.
    now: Vec<u8>,
    /// The writes since, partial or complete: offset and bytes.
    since: Vec<(usize, Vec<u8>)>,
    /// A length that is being set.
    setting: Option<usize>,
}

impl Model {
    fn is_durable(&mut self) {
        self.durable = self.now.clone();
        self.since.clear();
        self.setting = None;
    }

    fn step(&mut self, file: &File, rng: &mut Rng) -> Result<()> {
        match rng.u32(0..10) {
            0..=5 => {
                let offset = if rng.bool() { self.now.len() } else { rng.usize(0..=self.now.len() + PAGE) };
                let bytes: Vec<u8> = (0..rng.usize(1..2 * PAGE)).map(|_| rng.u8(1..)).collect();
                self.since.push((offset, bytes.clone()));
                file.write_at(&bytes, offset as u64)?;
                self.now.resize(self.now.len().max(offset + bytes.len()), 0);
                self.now[offset..][..bytes.len()].copy_from_slice(&bytes);
            }
            6 => {
                let len = rng.usize(0..self.now.len() + PAGE);
                self.setting = Some(len);
                file.set_len(len as u64)?;
                self.now.resize(len, 0);
                self.is_durable();
            }
            7 => {
                let mut bytes = vec![0; self.now.len() + 10];
                let read = file.read_at(&mut bytes, 0)?;
                assert!(bytes[..read] == self.now, "{read} bytes of {}", self.now.len());
            }
            _ => {
                file.sync()?;
                self.is_durable();
            }
        }
        assert_eq!(file.len(), self.now.len() as u64);
        Ok(())
    }

    /// Checks the bytes that a crash has left.
    fn check(&self, found: &[u8]) {
        let kept = self.setting.unwrap_or(usize::MAX).min(self.durable.len());
        assert!(found.len() >= kept, "{} bytes are left of {kept}", found.len());
        let ends = self.since.iter().map(|(offset, bytes)| offset + bytes.len());
        let longest = ends.chain([self.now.len(), self.durable.len(), self.setting.unwrap_or(0)]).max().unwrap();
        assert!(found.len() <= longest.next_multiple_of(PAGE), "{} bytes, and at most {longest}", found.len());
        if self.since.is_empty() && self.setting.is_none() {
            assert_eq!(found.len(), self.durable.len(), "nothing was written since the length was durable");
        }
        for (at, &byte) in found.iter().enumerate() {
            let written = || self.since.iter().filter_map(|(offset, bytes)| bytes.get(at.checked_sub(*offset)?));
            let was = self.durable.get(at).copied().unwrap_or(0);
            let may_be_cut = self.setting.is_some_and(|len| at >= len) && byte == 0;
            assert!(
                byte == was || may_be_cut || written().any(|&written| written == byte),
                "{byte} at {at}, not {was}"
            );
        }
    }
}

/// Plays one script, with a crash after a number of changes of the drive. Returns how many changes there are without a
/// crash.
fn play(world: &mut World, seed: u64, crash: Option<u64>) -> u64 {
    *world = World::new(seed);
    let mut rng = Rng::with_seed(seed);
    let model = drive(&mut rng);
    world.add_drive("/sim/0", model);
    let runtime = runtime(&mut rng, world);
    let mut file = Some(open(&runtime, world).unwrap());
    let before = world.effects();
    world.faults(|faults| faults.crash_at_effect = crash.map(|at| before + at));
    let mut model = Model::default();
    let calls = rng.usize(3..25);
    let ended = (0..calls).try_for_each(|_| model.step(file.as_ref().unwrap(), &mut rng));
    let is_closed = ended.is_ok() && rng.bool();
    let ended = if is_closed { file.take().unwrap().close() } else { ended };
    let effects = world.effects() - before;
    match (ended, world.crashed()) {
        (Err(error), false) => panic!("without a crash: {error}"),
        (Ok(()), false) => {
            if is_closed {
                model.is_durable();
            }
            world.crash();
        }
        (_, true) => {}
    }
    drop((file, runtime));
    world.reboot();
    let found = world.read(0, "plain").unwrap();
    model.check(&found);
    // The next opening takes the file as it is.
    let runtime = self::runtime(&mut rng, world);
    let file = open(&runtime, world).unwrap();
    let mut bytes = vec![0; found.len() + 1];
    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), found.len());
    assert!(bytes[..found.len()] == found);
    drop((file, runtime));
    assert_tidy(world);
    effects
}

#[test]
fn a_plain_file_keeps_what_was_synced_over_a_crash() {
    rounds("a_plain_file_keeps_what_was_synced_over_a_crash", 60, &[], |round| {
        let seed = round.rng.u64(..);
        let effects = play(&mut round.world, seed, None);
        for _ in 0..8 {
            let at = round.rng.u64(1..=effects.max(1));
            play(&mut round.world, seed, Some(at));
        }
    });
}

/// Writes and syncs that fail leave old or new bytes, and the next good sync the exact length.
#[test]
fn a_plain_file_survives_errors() {
    rounds("a_plain_file_survives_errors", 100, &[], |Round { rng, world }| {
        let model = drive(rng);
        world.add_drive("/sim/0", model);
        let runtime = runtime(rng, world);
        let file = open(&runtime, world).unwrap();
        let mut model = Model::default();
        for _ in 0..20 {
            let before = model.now.clone();
            world.faults(|faults| faults.rates.write_error = if rng.bool() { 300 } else { 0 });
            let result = model.step(&file, rng);
            world.faults(|faults| faults.rates.write_error = 0);
            if result.is_err() {
                // Bytes of a write that failed may be there. Read the present bytes.
                let mut bytes = vec![0; file.len() as usize];
                assert_eq!(file.read_at(&mut bytes, 0).unwrap(), bytes.len());
                let failed = model.since.last().cloned().unwrap_or_default();
                for (at, &byte) in bytes.iter().enumerate() {
                    let new = at.checked_sub(failed.0).and_then(|at| failed.1.get(at));
                    let old = before.get(at).copied().unwrap_or(0);
                    assert!(byte == old || Some(&byte) == new, "{byte} at {at}");
                }
                model.now = bytes;
                model.setting = None;
            }
        }
        match file.sync() {
            Ok(()) => assert!(world.read(0, "plain").unwrap() == model.now),
            Err(Error::Poisoned { .. }) => {}
            // A page that could not be written in the background is reported once.
            Err(_reported) => {
                file.sync().unwrap();
                assert!(world.read(0, "plain").unwrap() == model.now);
            }
        }
    });
}

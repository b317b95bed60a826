//! The journal against its own past: after a crash it shows all that was acknowledged, and a prefix of what came later.

mod model;
mod upkeep;

use std::sync::{Arc, Mutex};

use arbitrary::Unstructured;

use self::model::{Step, View, apply, layout, name_of, view};
use super::commits::Ticket;
use super::{FilesReplay, Journal, Upkeep, finish, read_files};
use crate::catalog::log::group::OpeningId;
use crate::catalog::log::merged::{LogEnd, Merged, Replay, Stop, Visit, read_beside_writer};
use crate::catalog::log::place::LogFiles;
use crate::catalog::log::record::{FileLife, FileRecord, LayoutRecord, LogRecord};
use crate::catalog::log::test_log::{ARRAY, Labels, TestLog};
use crate::catalog::log::writer::Announce;
use crate::catalog::state::files::Files;
use crate::catalog::tests::world::{Fault, Loss};
use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::sys::property::{check, list, weighted};
use crate::sys::sync::lock;

const UPKEEP: Upkeep = Upkeep { checkpoint_bytes: 24 << 10, instalment_bytes: 1500 };

/// Labels that outlive the process.
#[derive(Clone)]
struct SharedLabels(Arc<Mutex<Labels>>);

impl Announce for SharedLabels {
    fn announce(&mut self, epoch: u64, voters: &[usize]) -> Vec<usize> {
        self.0.lock().unwrap().announce(epoch, voters)
    }

    fn begin(&mut self, merged: &Merged, end: &LogEnd) -> Result<OpeningId> {
        self.0.lock().unwrap().begin(merged, end)
    }

    fn use_begun(&mut self, sequence: u64, checksum: u64) -> Result<()> {
        self.0.lock().unwrap().use_begun(sequence, checksum)
    }

    fn prove(&mut self, sequence: u64, checksum: u64) {
        self.0.lock().unwrap().prove(sequence, checksum);
    }

    fn notice(&mut self, text: String) {
        self.0.lock().unwrap().notice(text);
    }
}

struct Machine {
    log: TestLog,
    labels: SharedLabels,
}

impl Machine {
    fn new(drives: usize) -> Machine {
        let log = TestLog::new(drives);
        let labels = SharedLabels(Arc::new(Mutex::new(log.labels.clone())));
        Machine { log, labels }
    }

    fn open(&mut self) -> Result<Journal> {
        self.log.labels = self.labels.0.lock().unwrap().clone();
        let (voters, epoch) = (self.log.voters(), self.log.labels.epoch);
        let mut back: Vec<_> = (0..self.log.drives).map(|drive| self.log.voter(drive)).collect();
        back.retain(|voter| !self.log.labels.voters.contains(&voter.drive));
        let labels = Box::new(self.labels.clone());
        let journal = Journal::open(self.log.place(), UPKEEP, &voters, &back, epoch, labels)?;
        self.log.labels = self.labels.0.lock().unwrap().clone();
        Ok(journal)
    }

    /// What a reader sees.
    fn read(&mut self) -> Result<Files> {
        self.log.labels = self.labels.0.lock().unwrap().clone();
        read_files(&self.log.voters(), ARRAY).map(|(files, _)| files)
    }
}

/// Makes a change, as far as it has a sense.
fn change(journal: &Journal, step: &Step, commit: bool) -> Result<()> {
    let ticket = apply(journal, step)?;
    if commit { journal.commit(ticket) } else { Ok(()) }
}

fn step(bytes: &mut Unstructured<'_>) -> arbitrary::Result<Step> {
    let kind = weighted(bytes, &[(5, 0), (2, 1), (2, 2), (2, 3), (1, 4)])?;
    let name = bytes.int_in_range(0..=11)?;
    Ok(match kind {
        0 => Step::Create(name),
        1 => Step::Rename(name, bytes.int_in_range(0..=11)?),
        2 => Step::Delete(name),
        3 => Step::Attribute(name, bytes.int_in_range(0..=899)?),
        _ => Step::Bury,
    })
}

#[derive(Clone, Copy, Debug)]
enum Accident {
    None,
    /// The machine crashes at this operation, and keeps pieces of what was not synced.
    Crash(u64, u64),
    /// One drive dies at this operation. Later the machine crashes.
    Dead(u64, usize),
    /// One operation fails.
    Once(u64, bool),
    Close,
}

fn accident(bytes: &mut Unstructured<'_>) -> arbitrary::Result<Accident> {
    let kind = weighted(bytes, &[(1, 0), (1, 1), (5, 2), (2, 3), (2, 4)])?;
    let at = bytes.int_in_range(1..=199)?;
    Ok(match kind {
        0 => Accident::None,
        1 => Accident::Close,
        2 => Accident::Crash(at, bytes.arbitrary()?),
        3 => Accident::Dead(at, bytes.int_in_range(0..=2)?),
        _ => Accident::Once(at, bytes.arbitrary()?),
    })
}

/// Runs one life of a process. Returns what it showed after each change, and how many of these views are acknowledged.
fn live(machine: &mut Machine, steps: &[(Step, bool)], accident: Accident) -> Result<(Vec<View>, usize)> {
    let journal = machine.open()?;
    let world = machine.log.world.clone();
    match accident {
        Accident::Crash(at, _) => world.arm(|at| Fault::Crash { at }, at),
        Accident::Dead(at, disk) => world.arm(|at| Fault::Dead { at, disk: disk % machine.log.drives }, at),
        Accident::Once(at, done) => world.arm(|at| Fault::Once { at, done }, at),
        Accident::None | Accident::Close => {}
    }
    let mut views = vec![view(&journal.files())];
    let mut durable = 0;
    for (step, commit) in steps {
        let result = change(&journal, step, *commit);
        views.push(view(&journal.files()));
        match result {
            Ok(()) if *commit => durable = views.len() - 1,
            Ok(()) => {}
            Err(Error::OutcomeUnknown { .. } | Error::ReadOnly { .. }) => break,
            Err(error) => panic!("{error}"),
        }
    }
    if let (Accident::Close, Ok(())) = (accident, journal.close()) {
        durable = views.len() - 1;
    }
    drop(journal);
    world.disarm();
    if let Accident::Crash(_, seed) = accident {
        world.crash(Loss::Mix(seed));
    } else if let Accident::Dead(..) = accident {
        world.crash(Loss::Power);
    }
    Ok((views, durable))
}

#[test]
fn a_crash_leaves_what_was_acknowledged_and_a_prefix_of_the_rest() {
    let committed = |bytes: &mut Unstructured<'_>| Ok((step(bytes)?, bytes.arbitrary::<bool>()?));
    let life = |bytes: &mut Unstructured<'_>| Ok((accident(bytes)?, list(bytes, 1..=59, committed)?));
    let make = |bytes: &mut Unstructured<'_>| Ok((bytes.int_in_range(1..=3)?, list(bytes, 1..=4, life)?));
    check(60, make, |(drives, lives)| {
        let mut machine = Machine::new(drives);
        let mut highest = 0;
        for (life, (accident, steps)) in lives.iter().enumerate() {
            let (views, durable) = live(&mut machine, steps, *accident).unwrap();
            let read = machine.read().unwrap();
            let found = view(&read);
            let fits = views[durable..].contains(&found);
            assert!(fits, "{:?}: {:?} is none of {:#?}", accident, found, &views[durable..]);
            // A number that was given is not given again (C24).
            let seen = views.iter().flat_map(|(live, _)| live.values().map(|(number, _)| *number)).max().unwrap_or(0);
            highest = highest.max(seen);
            let journal = machine.open().unwrap();
            assert_eq!(view(&journal.files()), found);
            let fresh = 100 + life as u8;
            change(&journal, &Step::Create(fresh), true).unwrap();
            let number = journal.files().named(&name_of(fresh)).unwrap().number;
            assert!(number > highest);
            highest = number;
            drop(journal);
        }
        // A world in which an opening fails after it has taken effect keeps the file open.
        let leaks = lives.iter().any(|(accident, _)| matches!(accident, Accident::Once(_, true)));
        assert!(leaks || machine.log.world.open_files() == 0);
    });
}

/// Two lives of one log make a checkpoint of the same group. A drive that has the one of the other life was apart, and
/// nothing else shows it.
#[test]
fn a_checkpoint_of_another_life_is_refused() {
    let mut ours = Machine::new(2);
    ours.open().unwrap().close().unwrap();
    let log = TestLog { world: ours.log.world.fork(), labels: ours.log.labels.clone(), drives: 2 };
    let mut theirs = Machine { labels: SharedLabels(Arc::new(Mutex::new(log.labels.clone()))), log };
    let [kept, other] = [(&mut ours, 1), (&mut theirs, 2)].map(|(machine, name)| {
        // Salts are random.
        machine.log.world.platform().random(&mut vec![0; 1000 * usize::from(name)]).unwrap();
        let journal = machine.open().unwrap();
        change(&journal, &Step::Create(name), true).unwrap();
        (0..30).for_each(|_| change(&journal, &Step::Attribute(name, 900), true).unwrap());
        journal.close().unwrap();
        LogFiles::list(&*machine.log.voter(1).fs).unwrap().checkpoints
    });
    assert_eq!((kept.len(), &kept), (1, &other));
    let path = crate::catalog::log::place::checkpoint_path(kept[0]);
    let checkpoint = theirs.log.world.read(1, &path).unwrap();
    ours.log.world.put(1, &path, Some(&checkpoint));
    let before = [0, 1].map(|disk| ours.log.world.everything(disk));
    let told = ours.open().expect_err("the drive is refused").to_string();
    assert!(told.contains("went apart") && told.contains("different checkpoints"), "{told}");
    assert!(before == [0, 1].map(|disk| ours.log.world.everything(disk)), "something was changed");
}

/// Many changes pass over many checkpoints. Old segments and checkpoints go.
#[test]
fn checkpoints_keep_the_log_short() {
    let mut machine = Machine::new(2);
    let journal = machine.open().unwrap();
    for round in 0..600u32 {
        let name = (round % 97) as u8;
        change(&journal, &Step::Create(name), false).unwrap();
        change(&journal, &Step::Attribute(name, 300), false).unwrap();
        change(&journal, &Step::Delete(name.wrapping_add(40)), round % 2 == 0).unwrap();
        change(&journal, &Step::Bury, false).unwrap();
    }
    journal.close().unwrap();
    let before = view(&journal.files());
    drop(journal);
    assert!(machine.labels.0.lock().unwrap().notices.is_empty());
    for drive in 0..2 {
        let files = LogFiles::list(&*machine.log.voter(drive).fs).unwrap();
        assert_eq!(files.checkpoints.len(), 1);
        assert!(files.segments.len() <= 3 && files.segments[0] > 1, "{files:?}");
    }
    assert_eq!(view(&machine.read().unwrap()), before);
    machine.log.labels = machine.labels.0.lock().unwrap().clone();
    // Rot in the checkpoint of one copy is mended from the other.
    let files = LogFiles::list(&*machine.log.voter(0).fs).unwrap();
    let path = crate::catalog::log::place::checkpoint_path(files.checkpoints[0]);
    let good = machine.log.world.read(0, &path).unwrap();
    for at in [3, 4096 + 70, good.len() - 4096 + 70] {
        let mut rotten = good.clone();
        rotten[at] ^= 1;
        machine.log.world.put(0, &path, Some(&rotten));
        assert_eq!(view(&machine.read().unwrap()), before, "byte {at}");
    }
    // The last writer did not close, so the next one compares all.
    let journal = machine.open().unwrap();
    change(&journal, &Step::Create(200), true).unwrap();
    drop(journal);
    drop(machine.open().unwrap());
    assert_eq!(machine.log.world.read(0, &path), Some(good));
}

/// A checkpoint that shows a change which is queued and not durable gets no name: after a crash it would show one half
/// of a rename.
#[test]
fn a_checkpoint_waits_until_what_it_shows_is_durable() {
    let mut machine = Machine::new(1);
    let journal = machine.open().unwrap();
    let mut name = 0;
    while lock(&journal.shared.checkpoint).is_none() {
        change(&journal, &Step::Create(name), true).unwrap();
        name += 1;
    }
    change(&journal, &Step::Rename(0, name - 1), false).unwrap();
    let checkpoints = || LogFiles::list(&*machine.log.voter(0).fs).unwrap().checkpoints.len();
    // As other leaders do after their turns.
    for _ in 0..100 {
        journal.keep_up(0);
    }
    assert_eq!(checkpoints(), 0);
    assert!(lock(&journal.shared.checkpoint).as_ref().is_some_and(|checkpoint| checkpoint.shows.is_some()));
    journal.commit(journal.shared.commits.last()).unwrap();
    assert_eq!(checkpoints(), 1);
    drop(journal);
    machine.log.world.crash(Loss::Power);
    assert_eq!(view(&machine.read().unwrap()).0.len(), usize::from(name) - 1);
}

/// On a full drive changes that need space are refused, and every file can still be deleted (C29, C30).
#[test]
fn a_full_drive_can_still_be_emptied() {
    for drives in [1, 2] {
        let mut machine = Machine::new(drives);
        let world = machine.log.world.clone();
        let journal = machine.open().unwrap();
        change(&journal, &Step::Create(0), true).unwrap();
        // Another program takes the rest of the drive.
        let disk = drives - 1;
        let used = world.inner().disks[disk].used_bytes();
        world.inner().disks[disk].capacity_bytes = Some(used + (40 << 10));
        let mut made = 1;
        let error = loop {
            match change(&journal, &Step::Create(made), true) {
                Ok(()) => made += 1,
                Err(error) => break error,
            }
        };
        assert_eq!(error.errno(), Some(libc::ENOSPC), "{error}");
        assert_eq!(journal.files().len(), usize::from(made));
        for name in 0..made {
            let (deleted, gone) = (Step::Delete(name), Step::Bury);
            for step in [deleted, gone] {
                delete(&journal, &step).unwrap_or_else(|error| panic!("{step:?} of {made}: {error}"));
            }
        }
        for _ in 0..200 {
            delete(&journal, &Step::Bury).unwrap();
        }
        assert!(journal.files().is_empty());
        drop(journal);
        world.crash(Loss::Power);
        assert!(machine.read().unwrap().is_empty());
        // With space again all goes on.
        world.inner().disks[disk].capacity_bytes = None;
        let journal = machine.open().unwrap();
        for name in 0..100 {
            change(&journal, &Step::Create(name), true).unwrap();
        }
        assert_eq!(machine.labels.0.lock().unwrap().voters.len(), drives, "a full drive is no failed one");
    }
}

/// Makes a change that needs no space.
fn delete(journal: &Journal, step: &Step) -> Result<()> {
    let ((), ticket) = journal.change(false, |files, change| {
        match step {
            Step::Delete(name) => {
                let file = files.named(&name_of(*name)).expect("it is there");
                change.push(&LogRecord::File(FileRecord { life: FileLife::Dying, name: "", ..file }));
            }
            _ => files.dying().for_each(|number| change.push(&LogRecord::Gone(number))),
        }
        // A change without a record makes no group.
        change.push(&LogRecord::Numbers(1));
        Ok(())
    })?;
    journal.commit(ticket)
}

/// A reader that is overtaken: at one of its groups the writer makes changes.
struct Overtaken<'a> {
    inner: FilesReplay,
    journal: &'a Journal,
    groups_until: u32,
    changes: u32,
}

impl Replay for Overtaken<'_> {
    fn reset(&mut self) {
        self.inner.reset();
    }

    fn take(&mut self, visit: &Visit<'_>) -> Result<(), Stop> {
        if self.groups_until == 0 {
            for round in 0..std::mem::take(&mut self.changes) {
                change(self.journal, &Step::Attribute((round % 20) as u8, 400), true)?;
                change(self.journal, &Step::Create((round % 20) as u8), true)?;
            }
        }
        self.groups_until = self.groups_until.saturating_sub(1);
        self.inner.take(visit)
    }
}

/// A reader beside a writer sees a whole state, also if the writer removes the files that it reads (C31).
#[test]
fn a_reader_that_is_overtaken_begins_again() {
    for groups_until in 0..60 {
        let mut machine = Machine::new(1);
        let journal = machine.open().unwrap();
        for round in 0..60 {
            change(&journal, &Step::Create(round), true).unwrap();
        }
        let (inner, changes) = (FilesReplay::default(), 1 + groups_until % 3 * 60);
        let mut replay = Overtaken { inner, journal: &journal, groups_until, changes };
        read_beside_writer(&machine.log.voters(), ARRAY, &mut replay).unwrap();
        let inner = replay.inner;
        let files = finish(inner, &machine.log.voters()).unwrap();
        assert_eq!(files.len(), 60, "overtaken at group {groups_until}");
    }
}

/// A queue that is full is synced by the caller that finds it full.
#[test]
fn changes_without_sync_are_synced_when_the_queue_is_full() {
    let mut machine = Machine::new(1);
    let journal = machine.open().unwrap();
    change(&journal, &Step::Create(1), true).unwrap();
    let before = machine.log.world.inner().ops;
    for _ in 0..20 {
        change(&journal, &Step::Attribute(1, 900), false).unwrap();
    }
    assert_eq!(machine.log.world.inner().ops, before, "a change without sync does no I/O");
    for _ in 0..200 {
        change(&journal, &Step::Attribute(1, 900), false).unwrap();
    }
    assert!(machine.log.world.inner().ops > before);
    let too_large = change(&journal, &Step::Attribute(1, 40_000), true);
    assert!(matches!(too_large, Err(Error::Invalid { .. })), "{too_large:?}");
    assert_eq!(view(&journal.files()).0[&name_of(1)].1, 900);
    drop(journal);
    machine.log.world.crash(Loss::Power);
    assert_eq!(view(&machine.read().unwrap()).0.len(), 1);
}

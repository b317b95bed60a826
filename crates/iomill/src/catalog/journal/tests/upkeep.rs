//! Segments and checkpoints beside changes: nothing waits for them, and copies that fail there.

use super::*;
use crate::catalog::log::writer::LogPlace;
use crate::catalog::tests::world::World;

/// Makes changes until the drives hold an fsync back, and many more meanwhile. Returns how many.
fn changes_beside(journal: &Journal, world: &World, held: &'static str) -> u32 {
    world.inner().held = Some(held);
    let mut made = 0;
    let mut beside = 0;
    while beside < 60 {
        let name = (made % 90) as u8;
        change(journal, &Step::Create(name), true).unwrap();
        change(journal, &Step::Attribute(name, 40), true).unwrap();
        change(journal, &Step::Delete((made % 90 + 30) as u8 % 90), true).unwrap();
        made += 1;
        beside += u32::from(world.inner().waits_held > 0);
        assert!(made < 100_000, "nothing of `{held}` is synced");
    }
    made
}

/// No change waits for a checkpoint (C25), nor for the next segment as long as there is room in the last one (C29).
/// Their fsyncs do not end before the changes do.
#[test]
fn changes_wait_for_no_checkpoint_and_no_segment() {
    for held in [".checkpoint", ".segment"] {
        let mut machine = Machine::new(2);
        let world = machine.log.world.clone();
        world.inner().threads = true;
        let journal = machine.open().unwrap();
        if held == ".segment" {
            // One group is half of the first segment.
            change(&journal, &Step::Create(0), true).unwrap();
            for _ in 0..30 {
                change(&journal, &Step::Attribute(0, 900), false).unwrap();
            }
            world.inner().held = Some(held);
            journal.commit(journal.shared.commits.last()).unwrap();
            for _ in 0..3 {
                change(&journal, &Step::Attribute(0, 9), true).unwrap();
            }
        } else {
            changes_beside(&journal, &world, held);
        }
        world.inner().held = None;
        journal.close().unwrap();
        let before = view(&journal.files());
        drop(journal);
        world.crash(Loss::Power);
        assert_eq!(view(&machine.read().unwrap()), before, "{held}");
        assert!(machine.labels.0.lock().unwrap().notices.is_empty());
    }
}

/// With a thread the log is kept as short as without, and a crash leaves what was acknowledged.
#[test]
fn a_thread_keeps_the_log_up() {
    let mut machine = Machine::new(2);
    let world = machine.log.world.clone();
    world.inner().threads = true;
    for round in 0..3u64 {
        let journal = machine.open().unwrap();
        let checkpoint = |drive| LogFiles::list(&*machine.log.voter(drive).fs).unwrap().checkpoints.last().copied();
        let opened = [0, 1].map(checkpoint);
        std::thread::scope(|scope| {
            for thread in 0..4u32 {
                let journal = &journal;
                scope.spawn(move || {
                    for at in 0..150 {
                        let name = (thread * 25 + at % 25) as u8;
                        change(journal, &Step::Create(name), at % 3 == 0).unwrap();
                        change(journal, &Step::Attribute(name, 300), true).unwrap();
                        change(journal, &Step::Delete(name), at % 2 == 0).unwrap();
                    }
                });
            }
        });
        journal.commit(journal.shared.commits.last()).unwrap();
        // A change does not wait for the thread, so the thread's checkpoint may come after the last change.
        while [0, 1].iter().any(|drive| checkpoint(*drive) <= opened[*drive]) {
            std::thread::yield_now();
        }
        let before = view(&journal.files());
        // Threads of a machine that crashes do not go on.
        drop(journal);
        world.crash(Loss::Mix(round));
        assert_eq!(view(&machine.read().unwrap()), before);
    }
}

/// A voter that fails while something beside the log is written is left behind, and costs neither a change nor the
/// checkpoint.
#[test]
fn a_copy_that_fails_at_a_checkpoint_is_left_behind() {
    for done in [false, true] {
        let (mut at, mut left_behind) = (0, 0);
        loop {
            at += 1;
            let (struck, is_noted) = fail_once_beside_a_checkpoint(at, done);
            left_behind += u32::from(is_noted);
            if !struck {
                break;
            }
        }
        assert!(left_behind > 50, "{left_behind}");
    }
}

/// Makes changes until a checkpoint is made. One operation fails. Returns whether it came to that, and whether a copy
/// was left behind.
fn fail_once_beside_a_checkpoint(at: u64, done: bool) -> (bool, bool) {
    let mut machine = Machine::new(3);
    let world = machine.log.world.clone();
    let journal = machine.open().unwrap();
    change(&journal, &Step::Create(0), true).unwrap();
    world.arm(|at| Fault::Once { at, done }, at);
    let mut groups = 0;
    while done_checkpoints(&machine) == 0 {
        change(&journal, &Step::Create(groups), true).unwrap();
        change(&journal, &Step::Attribute(groups, 700), true).unwrap();
        groups += 1;
        assert!(groups < 100, "operation {at}: no checkpoint");
    }
    let struck = world.disarm();
    // A failure at the next segment is noticed when that is entered.
    for _ in 0..60 {
        change(&journal, &Step::Attribute(1, 900), true).unwrap();
    }
    let labels = machine.labels.0.lock().unwrap().clone();
    assert_eq!(journal.voters(), labels.voters);
    let says = |what: &str| labels.notices.iter().any(|text| text.contains(what));
    let (is_noted, is_spare) = (says("left behind"), says("set aside"));
    assert_eq!(is_noted, labels.voters.len() == 2, "operation {at}: {:?}", labels.notices);
    // To remove what is not there fails in the same way.
    let is_silent = done && struck && labels.notices.is_empty();
    assert_eq!(struck, is_noted || is_spare || is_silent, "operation {at}: {:?}", labels.notices);
    change(&journal, &Step::Create(200), true).unwrap();
    let before = view(&journal.files());
    drop(journal);
    world.crash(Loss::Power);
    assert_eq!(view(&machine.read().unwrap()), before, "operation {at}");
    drop(machine.open().unwrap());
    assert_eq!(machine.labels.0.lock().unwrap().voters.len(), 3, "operation {at}");
    (struck, is_noted)
}

/// How many voters have a checkpoint, all of those that are left.
fn done_checkpoints(machine: &Machine) -> usize {
    let voters = machine.labels.0.lock().unwrap().voters.clone();
    let has = |drive: &&usize| {
        machine
            .log
            .world
            .names(**drive, "log")
            .iter()
            .any(|name| name.ends_with(".checkpoint") && !name.starts_with("tmp"))
    };
    if voters.iter().all(|drive| has(&drive)) { voters.len() } else { 0 }
}

/// The last voter is not given up for a checkpoint that fails: changes go on, and the checkpoint is tried again.
#[test]
fn a_checkpoint_that_fails_on_the_last_copy_is_tried_again() {
    let mut machine = Machine::new(1);
    let world = machine.log.world.clone();
    let journal = machine.open().unwrap();
    let mut name = 0;
    while lock(&journal.shared.checkpoint).is_none() {
        change(&journal, &Step::Create(name), true).unwrap();
        name += 1;
    }
    world.arm(|at| Fault::Once { at, done: false }, 1);
    journal.keep_up(0);
    assert!(world.disarm() && lock(&journal.shared.checkpoint).is_none());
    assert!(machine.labels.0.lock().unwrap().notices[0].contains("a checkpoint failed"));
    while done_checkpoints(&machine) == 0 {
        change(&journal, &Step::Create(name), true).unwrap();
        change(&journal, &Step::Delete(name), true).unwrap();
    }
    assert_eq!(machine.labels.0.lock().unwrap().voters, [0]);
}

/// Rot after a clean close is mended by an opening that compares all. The simulator found that it stayed, and that the
/// good copy could then fail.
#[test]
fn rot_after_a_clean_close_is_mended_by_an_opening_that_compares_all() {
    let mut machine = Machine::new(2);
    let journal = machine.open().unwrap();
    let mut name = 0;
    while done_checkpoints(&machine) == 0 {
        change(&journal, &Step::Create(name), true).unwrap();
        name += 1;
    }
    journal.close().unwrap();
    drop(journal);
    let checkpoint = LogFiles::list(&*machine.log.voter(1).fs).unwrap().checkpoints[0];
    let path = crate::catalog::log::place::checkpoint_path(checkpoint);
    let good = machine.log.world.read(1, &path).unwrap();
    let mut rotten = good.clone();
    rotten[5000] ^= 1;
    machine.log.world.put(1, &path, Some(&rotten));
    let open = |machine: &Machine, compares_all| {
        let place = LogPlace { compares_all, ..machine.log.place() };
        let (voters, epoch) = (machine.log.voters(), machine.log.labels.epoch);
        drop(Journal::open(place, UPKEEP, &voters, &[], epoch, Box::new(machine.labels.clone())).unwrap());
    };
    open(&machine, false);
    assert_eq!(machine.log.world.read(1, &path), Some(rotten));
    open(&machine, true);
    assert_eq!(machine.log.world.read(1, &path), Some(good));
}

/// When a copy is lost, what is left may be rotten. So the next checkpoint begins at once, and replaces it.
#[test]
fn a_copy_that_is_lost_brings_the_next_checkpoint_forward() {
    let mut machine = Machine::new(2);
    let journal = machine.open().unwrap();
    change(&journal, &Step::Create(0), true).unwrap();
    assert!(lock(&journal.shared.checkpoint).is_none());
    machine.log.world.arm(|at| Fault::Dead { at, disk: 0 }, 1);
    change(&journal, &Step::Create(1), true).unwrap();
    assert_eq!(machine.labels.0.lock().unwrap().voters, [1]);
    for name in 2..8 {
        change(&journal, &Step::Create(name), true).unwrap();
    }
    assert_eq!(done_checkpoints(&machine), 1);
    // One is enough.
    let first = LogFiles::list(&*machine.log.voter(1).fs).unwrap().checkpoints;
    for name in 8..11 {
        change(&journal, &Step::Create(name), true).unwrap();
    }
    assert_eq!(LogFiles::list(&*machine.log.voter(1).fs).unwrap().checkpoints, first);
}

/// A checkpoint has room for one file with more attributes than fit into a group, and for more layouts than that.
#[test]
fn a_checkpoint_takes_files_and_layouts_of_any_size() {
    let mut machine = Machine::new(2);
    let journal = machine.open().unwrap();
    change(&journal, &Step::Create(0), true).unwrap();
    let push_many = |count: u32, push: &dyn Fn(u32, &mut super::super::ChangeRecords)| {
        for first in (0..count).step_by(100) {
            let add = |_: &Files, change: &mut super::super::ChangeRecords| {
                (first..first + 100).for_each(|at| push(at, change));
                Ok(())
            };
            journal.change(true, add).unwrap();
        }
    };
    push_many(8000, &|at, change| {
        let layout = LayoutRecord { number: at + 2, block_bytes: (at + 1) * 4096, ..layout() };
        change.push(&LogRecord::Layout(layout));
    });
    let number = journal.files().named(&name_of(0)).unwrap().number;
    push_many(8000, &|at, change| {
        let key = format!("k{at:05}");
        change.push(&LogRecord::Attribute { number, key: &key, value: Some("") });
    });
    let log_of = |machine: &Machine| LogFiles::list(&*machine.log.voter(0).fs).unwrap();
    let mut made = 0;
    let first = journal.shared.commits.last();
    journal.commit(first).unwrap();
    let since = lock(&journal.shared.writing).log.sequence();
    while log_of(&machine).checkpoints.last().is_none_or(|number| *number < since) {
        change(&journal, &Step::Attribute(0, made % 900), true).unwrap();
        made += 1;
        assert!(made < 20_000, "no checkpoint is made: {:?}", machine.labels.0.lock().unwrap().notices);
    }
    let (before, layouts) = (view(&journal.files()), journal.files().layouts().count());
    assert_eq!((layouts, journal.files().attributes(number).count()), (8001, 8001));
    drop(journal);
    let files = machine.read().unwrap();
    assert_eq!((view(&files), files.layouts().count()), (before, layouts));
    assert_eq!(files.attributes(number).count(), 8001);
    // What was before the checkpoint is gone, so the log is short again.
    assert!(log_of(&machine).segments.len() < 4, "{:?}", log_of(&machine));
}

/// A file that is made beside a checkpoint, of a layout that came since its last instalment: a reader of the checkpoint
/// knows both.
#[test]
fn a_checkpoint_has_layouts_that_come_beside_it() {
    let mut machine = Machine::new(2);
    let journal = machine.open().unwrap();
    for at in 0..1000_u32 {
        let add = |files: &Files, change: &mut super::super::ChangeRecords| {
            let layout = LayoutRecord { number: at + 1, block_bytes: (at + 1) * 4096, ..layout() };
            change.push(&LogRecord::Layout(layout));
            change.push(&LogRecord::File(FileRecord {
                number: files.next_number(),
                length: 0,
                created_ns: 1,
                modified_ns: 2,
                key: 3,
                layout: at + 1,
                life: FileLife::Live,
                has_parts: false,
                name: &format!("file {at}"),
                extent: None,
                sums: None,
            }));
            Ok(())
        };
        let ((), ticket) = journal.change(true, add).unwrap();
        journal.commit(ticket).unwrap();
    }
    let before = view(&journal.files());
    drop(journal);
    assert!(LogFiles::list(&*machine.log.voter(0).fs).unwrap().checkpoints.last().is_some_and(|number| *number > 1));
    assert_eq!(view(&machine.read().unwrap()), before);
}

//! A life of a machine: an opening, changes, an accident, and a look at the remaining files.

use fastrand::Rng;
use iomill::Error;
use iomill::catalog::journal::Journal;
use iomill_sim::{Death, Fault, Faults, Injection, Kind, Rates};

use super::machine::Machine;
use super::model::{Step, View, apply, name_of, view};
use super::reader::read_overtaken;

const NAMES: u8 = 14;

fn step(rng: &mut Rng) -> Step {
    let name = rng.u8(0..NAMES);
    match rng.u8(0..12) {
        0..5 => Step::Create(name),
        5..7 => Step::Rename(name, rng.u8(0..NAMES)),
        7..9 => Step::Delete(name),
        9..11 => Step::Attribute(name, rng.u16(0..1500)),
        _ => Step::Bury,
    }
}

/// Plans the faults of this life. Returns whether nothing fails by itself.
fn plan(machine: &Machine<'_>, rng: &mut Rng) -> bool {
    let drive = rng.usize(0..machine.drives);
    let skip = rng.u64(0..200);
    let now = machine.world.effects();
    let kind = rng.u8(0..12);
    machine.world.faults(|faults| match kind {
        0..4 => faults.crash_at_effect = Some(now + rng.u64(1..600)),
        4 => faults.rates = Rates { catalog_error: rng.u16(1..15), ..Rates::default() },
        5 => faults.rates = Rates { no_space: rng.u16(1..15), ..Rates::default() },
        6 => {
            let kind = [Kind::Sync, Kind::SyncDir, Kind::Rename, Kind::Create][rng.usize(0..4)];
            faults.inject(Injection::new(kind, Fault::Errno(libc::EIO)).drive(drive).skip(skip));
        }
        7 => {
            let path = [".segment", ".checkpoint", "label"][rng.usize(0..3)];
            let kind = if rng.bool() { Kind::Write } else { Kind::Sync };
            faults.inject(Injection::new(kind, Fault::Errno(libc::EIO)).path(path).skip(skip / 2).times(rng.u64(1..4)));
        }
        8 => fail_some(faults, machine.drives, rng),
        _ => {}
    });
    kind > 8
}

/// One kind of operation on the log fails a few times, as by a cable that is loose.
fn fail_some(faults: &mut Faults, drives: usize, rng: &mut Rng) {
    for _ in 0..rng.usize(1..3) {
        let kind = [Kind::Read, Kind::Read, Kind::Read, Kind::Open, Kind::List][rng.usize(0..5)];
        let path = if rng.bool() { ".segment" } else { "log" };
        let failed = Injection::new(kind, Fault::Errno(libc::EIO)).path(path).drive(rng.usize(0..drives));
        faults.inject(failed.skip(rng.u64(0..40)).times(rng.u64(1..5)));
    }
}

/// Opens, makes changes, and ends somehow. Then looks at the remaining files.
pub fn live(machine: &mut Machine<'_>, rng: &mut Rng) {
    machine.counts.lives += 1;
    machine.is_sound = plan(machine, rng);
    machine.notices.lock().unwrap().clear();
    let opened = machine.open();
    // A clean close is over as soon as a writer has begun.
    machine.is_closed &= opened.is_err() && !machine.world.crashed();
    match opened {
        Ok(journal) => {
            let views = machine.allowed.clone();
            assert!(
                views.contains(&view(&journal.files())),
                "{:?}\n{}",
                view(&journal.files()),
                machine.world.trace_tail()
            );
            // What a writer has seen stays (C11).
            machine.is(view(&journal.files()));
            work(machine, rng, journal);
        }
        Err(_) => machine.counts.failed_openings += 1,
    }
    let left = machine.notices.lock().unwrap().iter().filter(|text| text.contains("left behind")).count();
    machine.counts.left_behind += left as u64;
    if machine.world.crashed() {
        machine.counts.crashes += 1;
    } else if rng.u8(0..3) > 0 {
        machine.world.crash();
        machine.counts.crashes += 1;
    } else {
        machine.world.kill_process();
        machine.counts.kills += 1;
    }
    machine.world.faults(|faults| faults.clear());
    for drive in 0..machine.drives {
        machine.world.set_capacity(drive, None);
    }
    if machine.world.crashed() {
        machine.world.reboot();
    }
    look(machine, rng);
}

fn work(machine: &mut Machine<'_>, rng: &mut Rng, journal: Journal) {
    let steps = rng.usize(1..160);
    let accident = (rng.usize(0..steps), rng.u8(0..14), rng.usize(0..machine.drives));
    // A full drive fails no accepted change (C29, C30).
    machine.is_sound &= accident.1 > 2;
    let commits = rng.u8(1..5);
    for at in 0..steps {
        match accident {
            (when, 0..2, drive) if when == at => machine.world.faults(|faults| faults.kill(drive, Death::Error)),
            (when, 2, drive) if when == at => machine.world.faults(|faults| faults.kill(drive, Death::Empty)),
            (when, 3 | 6..8, drive) if when == at => {
                let used = machine.world.used_bytes(drive);
                machine.world.set_capacity(drive, Some(used + rng.u64(0..20) * 4096));
            }
            (when, 4, _) if when == at => overtake(machine, rng, &journal),
            (when, 5, _) if when == at => {
                let read = machine.read();
                assert!(read.as_ref().is_err() || machine.allowed.contains(read.as_ref().unwrap()), "{read:?}");
            }
            _ => {}
        }
        if !change(machine, &journal, &step(rng), rng.u8(0..commits) == 0) {
            machine.counts.failed_changes += 1;
            return;
        }
    }
    if rng.u8(0..3) == 0 && journal.close().is_ok() {
        machine.counts.closes += 1;
        machine.is_closed = true;
        machine.is(view(&journal.files()));
    }
}

/// Makes one change. `false` if the life is over.
fn change(machine: &mut Machine<'_>, journal: &Journal, step: &Step, commits: bool) -> bool {
    machine.counts.changes += 1;
    let ticket = match apply(journal, step) {
        Ok(ticket) => ticket,
        // A full drive refuses changes that need space, and no others.
        Err(error @ Error::Io { .. }) if error.errno() == Some(libc::ENOSPC) => {
            assert!(!matches!(step, Step::Delete(_) | Step::Bury), "{error}");
            machine.counts.refused += 1;
            return true;
        }
        Err(_) => return false,
    };
    let seen = view(&journal.files());
    machine.highest = seen.0.values().map(|(number, _)| *number).fold(machine.highest, u64::max);
    machine.may_be(seen);
    if !commits {
        return true;
    }
    if let Err(error) = journal.commit(ticket) {
        // A drive that was full before the opening has no space to set aside for the log (C30), and the opening says
        // so.
        let lacks_reserve =
            machine.notices.lock().unwrap().iter().any(|text| text.contains("no space could be set aside"));
        assert!(!machine.is_sound || lacks_reserve, "{error:?}\n{}", machine.world.trace_tail());
        return false;
    }
    machine.counts.acknowledged += 1;
    let last = machine.allowed.pop().unwrap();
    machine.is(last);
    true
}

/// A reader begins, and changes are made before it ends. It sees one of the states since it began.
fn overtake(machine: &mut Machine<'_>, rng: &mut Rng, journal: &Journal) {
    if machine.world.faults(|faults| faults.rates != Rates::default() || faults.pending() > 0) {
        return;
    }
    let ticket = apply(journal, &Step::Create(0)).unwrap_or_default();
    machine.may_be(view(&journal.files()));
    if journal.commit(ticket).is_err() || machine.world.crashed() {
        return;
    }
    machine.is(view(&journal.files()));
    let mut views: Vec<View> = machine.allowed.clone();
    let (count, groups_until) = (rng.usize(1..150), rng.usize(0..40));
    let mut rolls = Vec::new();
    for _ in 0..count {
        rolls.push(step(rng));
    }
    let read = read_overtaken(machine, groups_until, &mut || {
        for step in rolls.drain(..) {
            let Ok(ticket) = apply(journal, &step) else { return };
            views.push(view(&journal.files()));
            if journal.commit(ticket).is_err() {
                return;
            }
        }
    });
    let now = view(&journal.files());
    machine.highest =
        views.iter().flat_map(|view| view.0.values()).map(|(number, _)| *number).fold(machine.highest, u64::max);
    if machine.world.crashed() {
        machine.allowed = views;
        return;
    }
    machine.counts.overtaken += 1;
    // Changes that failed belong to a life that is over.
    machine.allowed = if views.last() == Some(&now)
        && journal.commit(apply(journal, &Step::Delete(NAMES)).unwrap_or_default()).is_ok()
    {
        vec![now]
    } else {
        views.clone()
    };
    if !machine.world.crashed() {
        let read = read.unwrap_or_else(|error| panic!("{error}\n{}", machine.world.trace_tail()));
        assert!(views.contains(&read), "{read:?} is none of {} states", views.len());
    }
}

/// The remaining files are one of the allowed states, for readers and for writers, also with damage to all copies but
/// one, and after openings that failed or crashed.
fn look(machine: &mut Machine<'_>, rng: &mut Rng) {
    let voters = machine.voters().unwrap();
    let rots = rng.u8(0..3) == 0;
    if voters.len() == 1 {
        rot_in_the_only_copy(machine, rng, voters[0].drive);
    } else if rots {
        let good = voters[rng.usize(0..voters.len())].drive;
        for voter in voters.iter().filter(|voter| voter.drive != good) {
            for _ in 0..rng.usize(1..4) {
                damage(machine, rng, voter.drive, good);
            }
        }
    }
    // Rot is not looked for after a clean close. If the good copy failed next, it would matter.
    machine.compares_all = rots;
    for _ in 0..rng.usize(0..8).saturating_sub(4) {
        try_to_open(machine, rng);
    }
    let found = machine.read().unwrap_or_else(|error| panic!("{error}\n{}", machine.world.trace_tail()));
    machine.check_allowed(&found);
    let journal = machine.open().unwrap_or_else(|error| panic!("{error}\n{}", machine.world.trace_tail()));
    assert_eq!(view(&journal.files()), found);
    if rng.u8(0..4) == 0 {
        // What a writer has seen stays, also if the machine crashes before its first change (C11).
        machine.world.crash();
        machine.world.reboot();
        machine.is(found);
        machine.is_closed = false;
        return;
    }
    (machine.is_closed, machine.compares_all) = (false, false);
    machine.is(found.clone());
    let voters = machine.voters().unwrap();
    assert_eq!(voters.len(), machine.drives, "those that were left behind are back");
    for voter in &voters {
        assert_eq!(machine.read_alone(voter).as_ref(), Ok(&found), "drive {} alone", voter.drive);
    }
    // No number is given twice (C24).
    let before = machine.highest;
    machine.looks += 1;
    assert!(change(machine, &journal, &Step::Create(NAMES + machine.looks), true));
    let number = machine.allowed[0].0[&name_of(NAMES + machine.looks)].0;
    assert!(number > before, "number {number} again, after {before}");
    machine.counts.checkpoints += checkpoints(machine);
    if rng.bool() {
        journal.close().unwrap();
        machine.is_closed = true;
    }
    drop(journal);
    machine.world.kill_process();
}

/// An opening with an accident in it: the machine crashes, a drive is full, or operations fail. Nothing is lost by it.
fn try_to_open(machine: &mut Machine<'_>, rng: &mut Rng) {
    machine.counts.tries += 1;
    let drives = machine.drives;
    let now = machine.world.effects();
    let kind = rng.u8(0..7);
    machine.world.faults(|faults| match kind {
        0..3 => faults.crash_at_effect = Some(now + rng.u64(1..60)),
        3 => faults.rates = Rates { catalog_error: rng.u16(1..50), ..Rates::default() },
        4..6 => fail_some(faults, drives, rng),
        _ => {}
    });
    if kind == 6 {
        let drive = rng.usize(0..drives);
        let used = machine.world.used_bytes(drive);
        machine.world.set_capacity(drive, Some(used + rng.u64(0..4) * 4096));
    }
    match machine.open() {
        Ok(journal) => {
            let seen = view(&journal.files());
            machine.check_allowed(&seen);
            machine.is(seen);
        }
        Err(_) => machine.counts.failed_tries += 1,
    }
    machine.is_closed = false;
    if rng.bool() && !machine.world.crashed() {
        machine.world.kill_process();
    } else {
        machine.world.crash();
    }
    machine.world.faults(|faults| faults.clear());
    for drive in 0..drives {
        machine.world.set_capacity(drive, None);
    }
    if machine.world.crashed() {
        machine.world.reboot();
    }
    let read = machine.read().unwrap_or_else(|error| panic!("{error}\n{}", machine.world.trace_tail()));
    machine.check_allowed(&read);
}

/// Damages a copy of the log that is not the good one: rot, a lost file, a cut file, or a lost directory.
fn damage(machine: &mut Machine<'_>, rng: &mut Rng, drive: usize, good: usize) {
    let files = machine.world.files(drive).into_iter().filter(|path| path.starts_with("log/"));
    let files: Vec<String> = files.collect();
    let Some(path) = files.get(rng.usize(0..files.len().max(1))) else { return };
    match rng.u8(0..10) {
        0 => machine.world.remove(drive, path).unwrap(),
        1 => {
            let len = machine.world.read(drive, path).unwrap().len() as u64;
            // The header of a segment that was made ahead stays (see `rot`).
            machine.world.cut(drive, path, rng.u64(len.min(4096)..len.max(4097))).unwrap();
        }
        2 => files.iter().for_each(|path| machine.world.remove(drive, path).unwrap()),
        _ => return drop(rot(machine, rng, drive, good)),
    }
    machine.counts.lost += 1;
}

fn checkpoints(machine: &Machine<'_>) -> u64 {
    machine.world.files(0).iter().filter(|path| path.ends_with(".checkpoint")).count() as u64
}

/// Spoils a piece of a copy of the log that `good` has, too. Returns the spoilt piece.
fn rot(machine: &mut Machine<'_>, rng: &mut Rng, drive: usize, good: usize) -> Option<(String, u64, usize)> {
    let is_log = |path: &String| path.starts_with("log/") && !path.contains("tmp-") && !path.ends_with("reserve");
    let has = machine.world.files(good);
    let files = machine.world.files(drive).into_iter().filter(is_log);
    let paths: Vec<String> = files.filter(|path| has.contains(path)).collect();
    let path = paths.get(rng.usize(0..paths.len().max(1)))?.clone();
    let content = machine.world.read(drive, &path).unwrap();
    // Most of a segment is empty.
    let until = content.iter().rposition(|byte| *byte != 0).map_or(1, |last| last as u64 + 1);
    if path.ends_with(".segment") && until <= 4096 {
        // It was made ahead. An opening may remove it from all copies and leave all but one behind, and a crash may bring
        // it back on that one. Then a rotten header makes the log unreadable. That is refused, and nothing is lost.
        return None;
    }
    let (offset, bytes) = (rng.u64(0..until), rng.usize(1..6000));
    // Rot in the last group of an only copy and in the group of the clean close together looks like a tail (C8).
    let bytes = if drive == good { bytes.min(4096 - offset as usize % 4096) } else { bytes };
    machine.world.corrupt(drive, &path, offset, bytes).unwrap();
    machine.counts.rotten += 1;
    Some((path, offset, bytes))
}

/// Rot in the only copy is found, or harmless. It is taken back.
fn rot_in_the_only_copy(machine: &mut Machine<'_>, rng: &mut Rng, drive: usize) {
    // Without a clean close the last group may look like a tail (C8).
    if !machine.is_closed {
        return;
    }
    for _ in 0..8 {
        let Some((path, offset, bytes)) = rot(machine, rng, drive, drive) else { return };
        match machine.read() {
            Ok(found) => assert!(machine.allowed.contains(&found), "{path} at {offset}: {found:?}"),
            Err(_) => machine.counts.damage_found += 1,
        }
        machine.world.corrupt(drive, &path, offset, bytes).unwrap();
    }
}

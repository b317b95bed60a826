//! The catalog's log on simulated drives. A crash tears unsynced writes. Operations fail. Drives die, come back, rot,
//! and are full. Readers run beside the writer. A seed decides everything.
//!
//! After each accident a reader and a writer must see the same files: those of the last acknowledged change, or of one
//! after it.

mod life;
mod machine;
#[path = "../../../iomill/src/catalog/journal/tests/model.rs"]
mod model;
mod reader;

use std::cell::RefCell;

use self::machine::{Counts, Machine};
use self::model::{Step, apply, view};
// For the model.
use iomill::catalog::journal::{Journal, commits::Ticket};
use iomill::catalog::log::record::{FileLife, FileRecord, LayoutRecord, LogRecord};
use iomill::catalog::state::files::Files;
use iomill::{Layout, Result};
use iomill_sim::{DriveModel, Fault, Injection, Kind, World};

/// Seeds that once showed a fault, of the test too.
const ONCE_FAILED: [u64; 4] = [17041108380535943686, 11372865050257043862, 16230957780113610766, 13086150898118764300];

/// Runs the seeds that once failed and `count` more, or `IOMILL_ROUNDS` times as many new ones, or `IOMILL_SEED`.
fn seeds(count: u64, body: impl Fn(u64, &mut Counts)) -> Counts {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let all: Vec<u64> = match (number("IOMILL_SEED"), number("IOMILL_ROUNDS")) {
        (Some(seed), _) => vec![seed],
        (None, Some(times)) => (0..count * times).map(|_| fastrand::u64(..)).collect(),
        (None, None) => ONCE_FAILED.into_iter().chain(0..count).collect(),
    };
    let counts = RefCell::new(Counts::default());
    for seed in all {
        let run = std::panic::AssertUnwindSafe(|| body(seed, &mut counts.borrow_mut()));
        if let Err(panic) = std::panic::catch_unwind(run) {
            eprintln!("seed {seed} failed; again: IOMILL_SEED={seed} cargo test -p iomill-sim --test all log::");
            std::panic::resume_unwind(panic);
        }
        counts.borrow_mut().seeds += 1;
    }
    counts.into_inner()
}

#[test]
fn what_is_acknowledged_outlives_all_accidents() {
    let counts = seeds(120, |seed, counts| {
        let mut rng = fastrand::Rng::with_seed(seed);
        let drives = rng.usize(1..=3);
        let world = World::new(seed).with_drives(drives, DriveModel::default());
        world.faults(|faults| faults.torn_sectors = rng.bool());
        let mut machine = Machine::new(world, drives, counts);
        for _ in 0..rng.usize(2..6) {
            life::live(&mut machine, &mut rng);
        }
        assert_eq!(machine.world.violations(), Vec::<String>::new());
    });
    println!("{counts:?}");
    if counts.seeds > 100 {
        assert!(
            counts.crashes > 20 && counts.rotten > 20 && counts.left_behind > 20 && counts.overtaken > 5,
            "{counts:?}"
        );
        assert!(counts.lost > 20 && counts.tries > 100 && counts.failed_tries > 20, "{counts:?}");
        assert!(counts.failed_openings > 5 && counts.checkpoints > 20 && counts.refused > 5, "{counts:?}");
    }
}

/// Opens a log of two copies, each of which fails one of its reads, or that one and all later ones. Returns how many
/// faults did not strike.
fn opening_with_failed_reads(reads: [u64; 2], times: u64) -> usize {
    let context = format!("reads {reads:?} fail, {times} times");
    let mut counts = Counts::default();
    let mut machine = Machine::new(World::new(1).with_drives(2, DriveModel::default()), 2, &mut counts);
    let journal = machine.open().unwrap();
    for name in 0..6 {
        journal.commit(apply(&journal, &Step::Create(name)).unwrap()).unwrap();
    }
    machine.is(view(&journal.files()));
    drop(journal);
    machine.world.kill_process();
    machine.world.faults(|faults| {
        for (drive, read) in reads.into_iter().enumerate() {
            let failed = Injection::new(Kind::Read, Fault::Errno(libc::EIO)).path("log/").drive(drive);
            faults.inject(failed.skip(read).times(times));
        }
    });
    if let Ok(journal) = machine.open() {
        assert_eq!(vec![view(&journal.files())], machine.allowed, "{context}");
        let changed = apply(&journal, &Step::Create(6));
        machine.may_be(view(&journal.files()));
        if changed.is_ok_and(|ticket| journal.commit(ticket).is_ok()) {
            machine.is(view(&journal.files()));
        }
    }
    let left = machine.world.faults(|faults| {
        let left = faults.pending();
        faults.clear();
        left
    });
    machine.world.crash();
    machine.world.reboot();
    let read = machine.read().unwrap_or_else(|error| panic!("{context}: {error}"));
    assert!(machine.allowed.contains(&read), "{context}: {read:?}");
    let journal = machine.open().unwrap_or_else(|error| panic!("{context}: {error}"));
    assert_eq!(view(&journal.files()), read, "{context}");
    left
}

/// A copied drive may have the length of the reserve, and no space for it. It has space again after an opening (C30).
#[test]
fn a_reserve_without_space_is_filled_again() {
    let mut counts = Counts::default();
    let mut machine = Machine::new(World::new(1).with_drives(2, DriveModel::default()), 2, &mut counts);
    let change = |machine: &mut Machine<'_>, name| {
        let journal = machine.open().unwrap();
        journal.commit(apply(&journal, &Step::Create(name)).unwrap()).unwrap();
        drop(journal);
        machine.world.kill_process();
        (0..2).map(|drive| machine.world.used_bytes(drive)).collect::<Vec<_>>()
    };
    let before = change(&mut machine, 0);
    let reserve = machine.world.read(1, "log/reserve").unwrap().len() as u64;
    assert!(reserve > 0);
    machine.punch_reserve(1);
    assert_eq!(machine.world.used_bytes(1), before[1] - reserve);
    assert_eq!(machine.world.read(1, "log/reserve").unwrap().len() as u64, reserve);
    assert_eq!(change(&mut machine, 1), before);
}

#[test]
fn failed_reads_of_both_copies_end_no_log_early() {
    const READS: u64 = 64;
    for times in [1, u64::MAX] {
        for first in 0..READS {
            for second in (first % 7..READS).step_by(7) {
                opening_with_failed_reads([first, second], times);
            }
        }
    }
    assert_eq!(opening_with_failed_reads([READS, READS], 1), 2, "an opening has more reads than are tried");
}

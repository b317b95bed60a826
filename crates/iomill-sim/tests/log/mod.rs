//! The catalog's log on simulated drives. A crash tears what was not synced. Operations fail. Drives die, come back, rot, and are full. Readers
//! run beside the writer. A seed decides all of it.
//!
//! After each accident a reader and a writer must see the same files: those of the last acknowledged change, or of one after it.

mod life;
mod machine;
#[path = "../../../iomill/src/catalog/journal/tests/model.rs"]
mod model;
mod reader;

use std::cell::RefCell;

use self::machine::{Counts, Machine};
// For the model.
use iomill::catalog::journal::{Journal, commits::Ticket};
use iomill::catalog::log::record::{FileLife, FileRecord, LayoutRecord, LogRecord};
use iomill::catalog::state::files::Files;
use iomill::{LayoutKind, Result};
use iomill_sim::{DriveModel, World};

/// Seeds that once showed a fault, of the test too.
const ONCE_FAILED: [u64; 2] = [17041108380535943686, 11372865050257043862];

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
        assert!(counts.failed_openings > 5 && counts.checkpoints > 20 && counts.refused > 5, "{counts:?}");
    }
}

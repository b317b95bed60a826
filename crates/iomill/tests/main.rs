//! The tests of the library on this machine's files, as one program: one link serves them all.
//!
//! `cargo test -p iomill --test all NAME` runs some of them. A test that needs a process of its own begins with
//! `alone!()`. `IOMILL_ROUNDS=10` lets tests of races do ten times as many rounds. No test depends on the machine's
//! speed: waits end after [`PATIENCE`], and other work is counted in rounds.

// Helpers of tests may unwrap as tests do.
#![allow(clippy::unwrap_used)]

#[macro_use]
mod alone;
#[macro_use]
mod forward;

mod address_space;
mod allocations;
mod bare_root;
mod bounce;
mod cached;
mod calls;
mod counting;
mod engines;
mod executor;
mod features;
mod forbid;
mod forbidden;
mod fork;
mod format;
mod hangs;
mod kill;
mod many;
mod no_ring;
mod nodes;
mod on_event;
mod policies;
mod polls;
mod resize;
mod shutdown;
mod threads;

use std::time::Duration;

/// A wait that takes longer hangs, also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(600);

/// `rounds` rounds, or `IOMILL_ROUNDS` times as many.
fn rounds(usual: u64) -> u64 {
    usual * std::env::var("IOMILL_ROUNDS").map_or(1, |times| times.parse::<u64>().expect("IOMILL_ROUNDS is a number"))
}

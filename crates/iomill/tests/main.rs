//! The tests of the library on this machine's files, as one program: one link serves them all.
//!
//! `cargo test -p iomill --test all NAME` runs some of them. A test that needs a process of its own begins with `alone!()`.

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
mod policies;
mod polls;
mod resize;
mod threads;

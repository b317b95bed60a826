//! The tests on simulated machines, as one program: one link serves them all.
//!
//! `cargo test -p iomill-sim --test all NAME` runs some of them.

// Helpers of tests may unwrap, as tests do.
#![allow(clippy::unwrap_used)]

mod common;
mod durability;
mod log;
mod machine;
mod pieces;
mod slow;
mod stack;
mod swarm;

//! The command as a user runs it, and findings on recorded machines.
//!
//! One program for all tests: linking it costs more than running most of them.

#![allow(clippy::unwrap_used)]

mod advice;
mod bulk;
mod catalog;
mod commands;
mod common;
mod copying;
mod damage;
mod limits;
mod probe;
mod profile;
mod quick;
mod top;
mod trees;
mod tune;

/// A wait that takes longer hangs, also on a busy machine.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(600);

/// The command.
const PROGRAM: &str = env!("CARGO_BIN_EXE_iomill");

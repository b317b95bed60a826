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

/// The command.
const PROGRAM: &str = env!("CARGO_BIN_EXE_iomill");

//! Measurements and figures: the costs of iomill compared with fio, `pread`, `mmap`, and io_uring and libaio by hand.
//!
//! Goals: the choice of contenders for a measurement, and its figures, tables, charts and documents ([`report`]). The
//! contenders and their loops are in `iomill-contenders`, and its rooms have their names here too. Non-goals: code that
//! a clock times. This crate is not optimised, which saves time of each build.

pub mod bench;
pub mod chart;
pub mod falcon;
pub mod files;
pub mod gate;
pub mod ladder;
pub mod limited;
pub mod mapped;
pub mod nodes;
pub mod picture;
pub mod report;
pub mod rows;
pub mod soak;
pub mod warm;

pub use iomill_contenders::{
    access, arena, asynchronous, cached, contender, creates, draw, flat, held, iomill, leftovers, loads, machine,
    pattern, records, rivals, rounds, seen, slots, small_writes, state, target, task, threads, traces, workload,
};

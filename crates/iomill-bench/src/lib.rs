//! Workloads, rivals and figures: what iomill costs compared with fio, `pread`, `mmap`, and io_uring and libaio by hand.
//!
//! A measurement goes through these rooms. A [`target::Target`] holds known bytes. A [`workload::Workload`] says what to do with
//! them. Several [`contender::Contender`]s do it in turns ([`rounds`]). [`report`] computes the figures.

mod access;
pub mod arena;
pub mod asynchronous;
pub mod bench;
pub mod cached;
pub mod chart;
pub mod contender;
pub mod draw;
pub mod falcon;
pub mod flat;
pub mod gate;
pub mod held;
pub mod human;
pub mod iomill;
pub mod ladder;
pub mod leftovers;
pub mod limited;
pub mod machine;
pub mod mapped;
mod memory;
pub mod nodes;
pub mod pattern;
pub mod picture;
pub mod records;
pub mod report;
pub mod rivals;
pub mod rounds;
pub mod seen;
mod slots;
mod small_writes;
pub mod soak;
pub mod state;
pub mod table;
pub mod target;
pub mod task;
pub mod threads;
pub mod warm;
pub mod workload;

//! Facts about the machine from the kernel: mounts, CPUs, NUMA nodes, memory, block devices, interrupts. The library
//! places threads and memory by them, and all tools use them.
//!
//! Goals: one parser for each file of sysfs and procfs, for the library and its tools. All reads and writes of sysfs,
//! procfs and controllers go through one [`tree::Tree`], so that a recorded machine can replace a real one. The crate
//! is light, because the library is built with it: it needs `rustix` and `libc` only, and its errors are those of
//! `std::io`. Non-goals: judging the facts, and deciding what to change, which the module `tune` of `iomill-cli` does;
//! system calls (`iomill::sys`).
//!
//! The facts are in [`devices`], [`drives`] and [`machine::Machine`]:
//!
//! - `mounts.rs` parses `mountinfo`, `cpus.rs` parses lists of CPUs, `memory.rs` parses `meminfo`, and `interrupts.rs`
//!   reads the interrupts of drives.
//! - `machine.rs` reads the nodes, `devices.rs` the directories of block devices, and `drives.rs` the drives and
//!   controllers below them.

pub mod cpus;
pub mod devices;
pub mod drives;
pub mod interrupts;
pub mod machine;
pub mod memory;
pub mod mounts;
mod nvme;
pub mod record;
pub mod tree;

//! What the kernel says of the machine: mounts, CPUs, NUMA nodes, memory, block devices, interrupts.
//!
//! Goals: one parser for each file of sysfs and procfs, for the library and its tools. Everything that is read from sysfs,
//! procfs and controllers, or written there, goes through one [`tree::Tree`]. So a recorded machine can replace a real one.
//! It is light, because the library is built with it. Non-goals: judging what is read, and deciding what to change.
//!
//! [`devices`], [`drives`] and [`machine::Machine`] hold what is read.

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

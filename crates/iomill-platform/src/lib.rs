//! The machine under an array: what it is, what of it costs I/Os, and how to mend that.
//!
//! Goals: everything that is read from sysfs, procfs and controllers, and everything that is written there, goes through one
//! [`tree::Tree`], so that a recorded machine stands for a real one; nothing is changed before what was is on the drives.
//! Non-goals: measuring; restarting controllers or drivers; anything that could lose data, such as switching a write cache off.
//!
//! A [`drives::Drive`] and a [`machine::Machine`] are looked up, [`findings`] judges them, [`apply`] sets and puts back,
//! [`persist`] writes what a restart would lose.

pub mod apply;
pub mod cpus;
pub mod drives;
pub mod finding;
pub mod findings;
pub mod interrupts;
pub mod machine;
pub mod mounts;
mod nvme;
pub mod persist;
pub mod record;
pub mod state;
pub mod tree;

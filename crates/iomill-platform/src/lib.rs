//! The machine under an array: its state, the parts of it that cost I/Os, and how to mend them.
//!
//! Goals: everything that is read from sysfs, procfs and controllers, or written there, goes through one
//! [`tree::Tree`]. So a recorded machine can replace a real one. Nothing changes before the old values are durable.
//! Non-goals: measuring; restarting controllers or drivers; anything that could lose data, such as switching a write
//! cache off.
//!
//! [`drives`] and [`machine::Machine`] hold what is read. [`findings`] judges it, [`apply`] makes settings and puts the
//! old values back, and [`persist`] writes files for settings that a restart would lose.

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

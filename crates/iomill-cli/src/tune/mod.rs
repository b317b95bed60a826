//! The settings of a machine under an array: judged, made, and put back. It is behind `iomill tune`.
//!
//! Goals: nothing changes before the old values are durable. Non-goals: reading the machine, which is [`iomill_platform`]'s;
//! measuring; restarting controllers or drivers; anything that could lose data, such as switching a write cache off.
//!
//! [`findings`] judges what was read. [`apply`] makes settings and puts the old values back. [`persist`] writes files for
//! settings that a restart would lose.

pub mod apply;
pub mod finding;
pub mod findings;
pub mod persist;
pub mod state;

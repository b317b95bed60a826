//! `iomill tune`: judges the settings of the machine under an array, makes better ones, and puts the old ones back.
//! `docs/tuning.md` says what it checks, what it promises, and what its steps are worth.
//!
//! Goals: nothing changes before the old values are durable (`apply.rs`, rules 1 to 5). Non-goals: reading the machine,
//! which is [`iomill_platform`]'s; measuring; restarting controllers or drivers; anything that could lose data, such as
//! switching a write cache off.
//!
//! [`findings`] judges what was read. [`apply`] makes settings and puts the old values back. [`persist`] writes files
//! for settings that a restart would lose.

pub mod apply;
pub mod finding;
pub mod findings;
pub mod persist;
pub mod state;

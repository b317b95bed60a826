//! The common code of the crates `iomill-object-store` and `iomill-origin`, not for their users: faults and their
//! errors, pieces of ranges, turns of tasks, results of each version of `object_store`. Non-goals: anything that only
//! one of the two needs.

mod fault;
mod pieces;
mod turns;

#[cfg(feature = "v0_13")]
pub mod v0_13;
#[cfg(feature = "v0_14")]
pub mod v0_14;

pub use fault::{Fault, Kind, Result, kind_of_io};
pub use pieces::pieces;
pub use turns::give_turn;

//! The code that measurements run: iomill's ways and its rivals, each with its loop.
//!
//! Goals: all code that works while a clock runs, compiled together and optimised. A [`target::Target`] has known
//! bytes. A [`task::Task`] describes the work on them. Several [`contender::Contender`]s do it in turns ([`rounds`]).
//! Non-goals: the choice of contenders, and figures. `iomill-bench` has these, and it is not optimised.

pub mod access;
pub mod arena;
pub mod asynchronous;
pub mod cached;
pub mod contender;
pub mod creates;
pub mod draw;
pub mod files;
pub mod flat;
pub mod held;
pub mod iomill;
pub mod loads;
pub mod machine;
pub mod mapped;
mod memory;
pub mod pattern;
pub mod records;
pub mod rivals;
pub mod rounds;
pub mod rows;
pub mod seen;
pub mod slots;
pub mod small_writes;
pub mod soak;
pub mod state;
pub mod target;
pub mod task;
pub mod threads;
pub mod traces;
pub mod workload;

pub use iomill_loops::leftovers;

//! The loops that the command times, and what they need: files, draws, clocks.
//!
//! Goals: all code that runs while a clock runs, compiled with optimisation. [`quick`] has the loops of
//! `iomill bench quick`; [`loops`], [`paths`], [`latency`] and [`served`] have those of `iomill probe`. Non-goals:
//! rounds, figures, tables. The command has them, and is built without optimisation, which saves 14 to 27 s of CPU time
//! of its build. A generic loop is compiled in the crate that names its types, so none is generic over a type of the
//! command.

pub mod aio_context;
pub mod clock;
pub mod cycles;
pub mod draw;
pub mod latency;
pub mod leftovers;
pub mod loops;
pub mod parts;
pub mod paths;
pub mod quick;
pub mod served;
pub mod trace;

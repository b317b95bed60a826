//! Whole programs as loads, on iomill and on its rivals, each with the same memory.
//!
//! The programs are the examples of the library (`crates/iomill/examples`), compiled here with other stores of their
//! bytes. Each contender runs in a process of its own, in a memory group. The group has the memory of the process
//! itself, and the memory for the data, which is the same for all. The results of a program must be equal for all
//! contenders.
//!
//! Goals: figures of the loads of users. Non-goals: single calls, which `iomill-contenders` measures.

mod bytes;
mod child;
mod fleet;
mod job;
mod kv;
mod loads;
mod stores;

pub use child::serve;
pub use fleet::{Figures, Outcome, Settings, run};
pub use job::{Contender, Load};

//! The whole stack (interface, drive queues, catalog) on simulated machines, against plain models.
//!
//! Every test is a number of rounds, and one seed decides each. A round that fails prints its seed, the last events of
//! its machine, and the command that runs it again. `IOMILL_SEED=<seed>` runs one round. `IOMILL_ROUNDS=<n>` runs n
//! times as many, with new seeds. `IOMILL_SHOW=1` prints each seed before its round begins, for rounds that end the
//! process.

mod ailing;
mod answers;
mod cached;
mod capacity;
mod crash;
mod cut;
mod determinism;
mod doubts;
mod drafts;
mod errors;
mod fsyncs;
mod futures;
mod harness;
mod heap;
mod lacks;
mod limits;
mod model;
mod overlaps;
mod places;
mod plain;
mod promises;
mod regressions;
mod resizing;
mod script;
mod sharing;
mod space;
mod sums;
mod sums_memory;
mod unsynced;
mod versions;

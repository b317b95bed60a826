//! The kernel's edge: memory, files, devices, CPUs. Nearly all `unsafe` code outside engines is here.

pub mod barrier;
mod calls;
pub mod clock;
pub mod copy;
pub mod cpu;
pub mod descriptor;
pub mod errno;
pub mod event;
pub mod events;
pub mod fair;
pub mod flushes;
pub mod fs;
pub mod grown;
pub mod holder;
pub mod limits;
pub mod memory;
pub mod neighbours;
pub mod notices;
pub mod parker;
pub mod plain_fs;
pub mod process;
#[cfg(test)]
pub mod property;
pub mod real_fs;
pub mod retry;
pub mod sync;
pub mod thread;
pub mod topology;
pub mod versions;

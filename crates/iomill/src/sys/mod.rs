//! The kernel's edge: memory, files, devices, CPUs. Nearly all `unsafe` code that is not an engine's lives here.

pub mod block;
pub mod clock;
pub mod fs;
pub mod real_fs;

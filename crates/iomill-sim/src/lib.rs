//! A simulated machine for iomill: drives with latency, faults and crashes, under a virtual clock, on one thread. One
//! seed decides all its events. It replaces the real machine as an [`iomill::engine::platform::Platform`].
//!
//! Goals: the same seed gives the same run, byte for byte. No call ever hangs: an endless wait is an error. A crash
//! leaves any state that real file systems and drives may leave, or a worse one. Non-goals: speed figures, real
//! threads, and file system functions beyond [`iomill::sys::fs::DriveFs`].
//!
//! Everything that does I/O is a state machine, so the library runs on this platform unchanged. Files go through
//! `DriveFs`, requests through `Engine`, time through `Clock`, and the `Platform` provides all three. This platform has
//! no threads. A call that waits therefore steps the drives' servers, and the whole stack runs on one thread.
//!
//! ```
//! use iomill::sys::fs::Access;
//! use iomill_sim::{DriveModel, World};
//!
//! let world = World::new(42).with_drives(1, DriveModel::default());
//! let drive = world.platform().attach(&world.path(0), true)?;
//! let file = drive.open("label", Access::CREATE)?;
//! drive.write_at(file, b"synced", 0)?;
//! drive.sync_data(file)?;
//! drive.sync_dir("")?;
//! world.crash();
//! assert!(drive.list("").is_err());
//! world.reboot();
//! assert_eq!(world.read(0, "label")?, b"synced");
//! # Ok::<(), std::io::Error>(())
//! ```

mod dice;
mod disk;
mod engine;
mod fault;
mod flight;
mod fs;
mod image;
mod memory;
mod platform;
mod state;
pub mod swarm;
pub mod testing;
mod trace;
mod tree;
mod world;

use std::io;

pub use dice::Survival;
pub use fault::{Ailment, Death, Fault, Faults, Injection, Kind, Met, Rates};
pub use state::{DriveModel, DriveStats};
pub use world::World;

/// The kernel's error with this errno.
fn errno(code: i32) -> io::Error {
    io::Error::from_raw_os_error(code)
}

//! A way to drive asynchronous operations.

use std::fmt;

use iomill::Result;

use super::lane::Flights;

/// Makes the drivers of operations, for each measuring thread and before the clock starts.
pub trait Way: fmt::Debug + Send + Sync {
    /// A driver for the calling thread. It starts no operation yet.
    fn driver(&self, flights: Flights) -> Result<Box<dyn Driver>>;
}

/// Drives operations to their ends.
pub trait Driver {
    /// Keeps one operation of each lane in flight until the lanes end. Returns the number of operations.
    fn drive(&mut self) -> Result<u64>;
}

//! The work of a measurement, in the form that is the same for all contenders.
//!
//! Non-goals: the kinds of work, which are types of their own, such as [`crate::workload::Workload`].

use std::fmt;
use std::ops::RangeInclusive;

use iomill::Result;

/// The description of a measurement, the same for all contenders.
pub trait Task: fmt::Display + Copy {
    /// Checks the numbers. `Display` gives the stable name for reports.
    fn check(&self) -> Result<()>;

    /// The share of operations that may find their bytes in memory, if that depends on the size of the memory.
    fn finds(&self) -> Option<Finds> {
        None
    }
}

/// The number of operations of a workload that may find their bytes in a contender's memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Finds {
    /// Bytes that a drive delivers for an operation that finds nothing in memory.
    pub miss_bytes: u64,
    /// The share of operations that find their bytes in memory.
    pub share: RangeInclusive<f64>,
}

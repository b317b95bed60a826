//! The page cache.

pub mod directory;
pub mod feeder;
pub mod key;
pub mod policy;
pub mod set;
mod words;

//! The catalog in memory: which files there are, by number, by name and in order.
//!
//! Goals: under 200 bytes a file with a name of 60 bytes, a lookup by name with two or three cache misses, and no pause
//! when it grows. Non-goals: drives and the log. What changes it is records of the log, the same at replay and later.

pub mod files;
pub mod order;
pub mod slots;

#[cfg(test)]
mod tests;

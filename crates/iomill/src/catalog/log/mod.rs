//! The catalog as a log on up to three drives.
//!
//! Goals: a change costs one fsync of each copy, shared by all concurrent callers. After a crash at any point each
//! change is whole or absent. Non-goals: the consequences of a change for handles and parts (above); directories, which
//! the log replaces.
//!
//! `docs/catalog.md` has the rules, C1 and up. `docs/format.md` has the bytes.

pub mod bytes;
pub mod compare;
pub mod group;
pub mod header;
pub mod mend;
pub mod merged;
pub mod place;
pub mod record;
pub mod writer;

#[cfg(test)]
mod copies_tests;
#[cfg(test)]
mod format_tests;
#[cfg(test)]
pub(crate) mod test_log;

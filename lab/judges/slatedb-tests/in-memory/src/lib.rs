//! The crate `object_store`, but [`memory::InMemory`] is an array of iomill in a temporary directory.
//!
//! Tests that make an `InMemory` run on iomill, unchanged, if this crate replaces `object_store` in their manifest. All
//! types and traits are those of `object_store`, so other crates work with it.

pub use object_store::*;

pub mod memory;

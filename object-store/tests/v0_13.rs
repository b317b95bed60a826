//! The tests of object_store 0.13's own suite, and ours, on the store for that version.

use iomill_object_store::v0_13::IomillStore;
use object_store_0_13 as object_store;

#[path = "suite/mod.rs"]
mod suite;

//! The cache over stores of object_store 0.14. The crate `objects-common` has the differences to other versions:
//! results and errors.

use object_store_0_14 as object_store;

#[path = "versioned/mod.rs"]
mod versioned;

pub use versioned::{Cached, Content};

/// Results and errors in the form of this version.
use crate::common::v0_14 as result;

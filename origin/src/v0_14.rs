//! The cache over stores of object_store 0.14. What differs from other versions is in the crate `objects-common`: results and errors.

use object_store_0_14 as object_store;

#[path = "versioned/mod.rs"]
mod versioned;

pub use versioned::{Cached, Content};

/// Results and errors as this version has them.
use crate::common::v0_14 as result;

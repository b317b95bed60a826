//! The cache over stores of object_store 0.13. What differs from other versions is here: the results.

use object_store_0_13 as object_store;

#[path = "versioned/mod.rs"]
mod versioned;

/// Results as this version has them.
mod result {
    use super::object_store::{Attributes, GetResult, GetResultPayload, ObjectMeta};
    use std::ops::Range;

    pub fn get(payload: GetResultPayload, meta: ObjectMeta, range: Range<u64>, attributes: Attributes) -> GetResult {
        GetResult { payload, meta, range, attributes }
    }
}

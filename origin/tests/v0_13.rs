//! The tests of object_store 0.13's own suite, and ours, on the cache over stores of that version.

use iomill_origin::v0_13::Cached;
use object_store_0_13 as object_store;

#[path = "suite/mod.rs"]
mod suite;

/// Results in the form of this version.
mod result {
    use super::object_store::{Attributes, GetResult, GetResultPayload, ObjectMeta};
    use std::ops::Range;

    pub fn get(payload: GetResultPayload, meta: ObjectMeta, range: Range<u64>, attributes: Attributes) -> GetResult {
        GetResult { payload, meta, range, attributes }
    }
}

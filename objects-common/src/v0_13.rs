//! Errors and results of object_store 0.13.

use std::ops::Range;

use object_store::path::Path;
use object_store::{Attributes, GetResult, GetResultPayload, ListResult, ObjectMeta, PutResult};
use object_store_0_13 as object_store;

#[path = "errors.rs"]
mod errors;

pub use errors::{error, fault};

/// The result of a put.
pub fn put(e_tag: String) -> PutResult {
    PutResult { e_tag: Some(e_tag), version: None }
}

/// The result of a get.
pub fn get(payload: GetResultPayload, meta: ObjectMeta, range: Range<u64>, attributes: Attributes) -> GetResult {
    GetResult { payload, meta, range, attributes }
}

/// The result of a listing.
pub fn list(common_prefixes: Vec<Path>, objects: Vec<ObjectMeta>) -> ListResult {
    ListResult { common_prefixes, objects }
}

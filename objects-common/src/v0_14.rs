//! Errors and results of object_store 0.14.

use std::ops::Range;

use object_store::path::Path;
use object_store::{Attributes, Extensions, GetResult, GetResultPayload, ListResult, ObjectMeta, PutResult};
use object_store_0_14 as object_store;

#[path = "errors.rs"]
mod errors;

pub use errors::{error, fault};

/// The result of a put. There are no extensions: those of this version are for answers of HTTP.
pub fn put(e_tag: String) -> PutResult {
    PutResult { e_tag: Some(e_tag), version: None, extensions: Extensions::new() }
}

/// The result of a get.
pub fn get(payload: GetResultPayload, meta: ObjectMeta, range: Range<u64>, attributes: Attributes) -> GetResult {
    GetResult { payload, meta, range, attributes, extensions: Extensions::new() }
}

/// The result of a listing.
pub fn list(common_prefixes: Vec<Path>, objects: Vec<ObjectMeta>) -> ListResult {
    ListResult { common_prefixes, objects, extensions: Extensions::new() }
}

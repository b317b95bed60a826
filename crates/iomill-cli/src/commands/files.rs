//! What the commands that copy or remove files have in common: a document, and the failure of one file of several.

use serde_json::{Value, json};

use crate::failure::{Failure, Result};
use crate::human;

/// The JSON document of `put` and `get`.
pub fn copied(name: &str, bytes: u64, seconds: f64) -> Value {
    json!({ "name": name, "bytes": bytes, "seconds": seconds, "bytes_per_second": human::per_second(bytes, seconds) })
}

/// After a failure of one file the others follow. After another failure they do not: it would repeat itself.
pub fn several(result: Result<()>, failures: &mut Vec<Failure>) -> Result<()> {
    match result {
        Err(failure) if failure.is_of_one_file() => failures.push(failure),
        other => return other,
    }
    Ok(())
}

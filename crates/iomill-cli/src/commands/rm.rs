//! `iomill rm`: deletes files. If one cannot be deleted, the others are deleted all the same.

use serde_json::json;

use crate::arguments::Names;
use crate::console::Answer;
use crate::context::Context;
use crate::failure::Result;

pub fn run(context: &Context<'_>, arguments: &Names) -> Result<Answer> {
    context.with_writer(|array| {
        let mut removed = Vec::new();
        let mut failures = Vec::new();
        for name in &arguments.names {
            match array.delete(name) {
                Ok(()) => removed.push(name),
                Err(error) => failures.push(error.into()),
            }
        }
        Ok(Answer { failures, ..Answer::new("", json!({ "removed": removed })) })
    })
}

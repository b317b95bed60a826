//! `iomill truncate`: sets a file's length.

use serde_json::json;

use crate::arguments::Truncate;
use crate::console::Answer;
use crate::context::Context;
use crate::failure::Result;

pub fn run(context: &Context<'_>, arguments: &Truncate) -> Result<Answer> {
    context.with_writer(|array| {
        let file = array.open_file(&arguments.name)?;
        let before = file.len();
        file.set_len(arguments.size)?;
        file.close()?;
        let document = json!({ "name": arguments.name, "bytes": arguments.size, "bytes_before": before });
        Ok(Answer::new("", document))
    })
}

//! `iomill cp`: copies a file within the array. The copy appears whole or not at all.

use iomill::When;
use serde_json::json;

use crate::arguments::Cp;
use crate::console::Answer;
use crate::context::Context;
use crate::failure::Result;
use crate::naming;

pub fn run(context: &Context<'_>, arguments: &Cp) -> Result<Answer> {
    let to = naming::for_target(&arguments.from, &arguments.to)?;
    context.with_writer(|array| {
        array.stat(&arguments.from)?;
        let replaces = naming::refuse_taken(array, &to, arguments.force)?;
        let copy = array.copy(&arguments.from, &to, if replaces { When::Always } else { When::Absent })?;
        let document = json!({ "from": arguments.from, "to": to, "bytes": copy.len_bytes, "replaced": replaces });
        Ok(Answer::new("", document))
    })
}

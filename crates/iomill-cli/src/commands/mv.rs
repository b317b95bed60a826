//! `iomill mv`: gives a file another name.

use serde_json::json;

use crate::arguments::Mv;
use crate::console::Answer;
use crate::context::Context;
use crate::failure::Result;
use crate::naming;

pub fn run(context: &Context<'_>, arguments: &Mv) -> Result<Answer> {
    let to = naming::for_target(&arguments.from, &arguments.to)?;
    context.with_writer(|array| {
        array.stat(&arguments.from)?;
        let replaces = naming::refuse_taken(array, &to, arguments.force)?;
        array.rename(&arguments.from, &to)?;
        let is_other = replaces && arguments.from != to;
        Ok(Answer::new("", json!({ "from": arguments.from, "to": to, "replaced": is_other })))
    })
}

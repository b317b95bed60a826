//! `iomill init`: directories become the drives of a new array.

use serde_json::json;

use super::info;
use crate::arguments::Init;
use crate::console::Answer;
use crate::context::Context;
use crate::failure::{Failure, Result};

pub fn run(context: &Context<'_>, arguments: &Init) -> Result<Answer> {
    if !context.global.array.is_empty() {
        let why = "init makes a new array of the drives in its arguments; leave `-a` out";
        return Err(Failure::Usage(why.to_owned()));
    }
    let mut options = context.options();
    if let Some(weights) = &arguments.weights {
        options = options.weights(weights.clone());
    }
    if let Some(copies) = arguments.copies {
        options = options.copies(usize::from(copies));
    }
    let array = options.create(&arguments.drives)?;
    context.with(array, |array| {
        let info = array.info()?;
        let (count, first) = (info.drives.len(), info.drives[0].path.display());
        let drives = if count == 1 { "drive" } else { "drives" };
        let text = format!("array {} of {count} {drives}; name it by any of them, as in `-a {first}`\n", info.id);
        let drives: Vec<_> = info.drives.iter().map(info::drive_document).collect();
        Ok(Answer::new(text, json!({ "id": info.id, "drives": drives })))
    })
}

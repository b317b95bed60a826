//! `iomill completions`: completions for a shell, made from the definition of the command line.

use serde_json::json;

use crate::arguments::{self, Completions};
use crate::console::Answer;
use crate::failure::Result;

pub fn run(arguments: &Completions) -> Result<Answer> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut arguments::definition(), "iomill", &mut script);
    let script = String::from_utf8_lossy(&script).into_owned();
    let document = json!({ "shell": arguments.shell.to_string(), "script": script });
    Ok(Answer::new(script, document))
}

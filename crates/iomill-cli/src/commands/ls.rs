//! `iomill ls`: the files with names that begin with a prefix.

use iomill_bench::human;
use serde_json::{Value, json};

use crate::arguments::Ls;
use crate::console::Answer;
use crate::context::Context;
use crate::failure::Result;
use crate::naming;
use crate::table::Table;

pub fn run(context: &Context<'_>, arguments: &Ls) -> Result<Answer> {
    let peek = context.peek()?;
    context.note(peek.notices());
    let mut names = peek.list(&arguments.prefix);
    if !arguments.prefix.starts_with(naming::UNFINISHED) {
        names.retain(|name| !name.starts_with(naming::UNFINISHED));
    }
    if !arguments.long {
        let text = names.iter().map(|name| format!("{name}\n")).collect::<String>();
        let files: Vec<Value> = names.iter().map(|name| json!({ "name": name })).collect();
        return Ok(Answer::new(text, json!({ "files": files })));
    }
    let mut table = Table::new(&[">size", "?layout", "?>block", "?>drives", "name"]);
    let mut files = Vec::new();
    let mut failures = Vec::new();
    for name in &names {
        let stat = match peek.stat(name) {
            Ok(stat) => stat,
            Err(error) => {
                failures.push(error.into());
                continue;
            }
        };
        let layout = stat.layout.name();
        let (size, block) = (human::size(stat.len_bytes), human::size(u64::from(stat.block_bytes)));
        table.row([size, layout.to_owned(), block, stat.drives.len().to_string(), name.clone()]);
        files.push(json!({
            "name": name,
            "bytes": stat.len_bytes,
            "layout": layout,
            "block_bytes": stat.block_bytes,
            "drives": stat.drives,
        }));
    }
    let text = if files.is_empty() { String::new() } else { table.render() };
    Ok(Answer { failures, ..Answer::new(text, json!({ "files": files })) })
}

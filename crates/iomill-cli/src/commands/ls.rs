//! `iomill ls`: the files with names that begin with a prefix.

use std::io::{BufWriter, Write, stdout};

use crate::human;
use iomill::{Listed, Peek};
use serde_json::{Value, json};

use crate::arguments::Ls;
use crate::console::Answer;
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::table::Table;

pub fn run(context: &Context<'_>, arguments: &Ls) -> Result<Answer> {
    let peek = context.peek()?;
    context.note(peek.notices());
    if arguments.long {
        return long(&peek, &arguments.prefix);
    }
    if context.global.wants_document() {
        let names = names(&peek, &arguments.prefix).collect::<Result<Vec<_>>>()?;
        let files: Vec<Value> = names.into_iter().map(|name| json!({ "name": name })).collect();
        return Ok(Answer::new("", json!({ "files": files })));
    }
    // Name by name, so that a list of any length takes no memory.
    let mut out = BufWriter::new(stdout().lock());
    for name in names(&peek, &arguments.prefix) {
        writeln!(out, "{}", name?).map_err(Failure::stdout)?;
    }
    out.flush().map_err(Failure::stdout)?;
    Ok(Answer { is_silent: true, ..Answer::default() })
}

/// Names that begin with a prefix.
fn names(peek: &Peek, prefix: &str) -> impl Iterator<Item = Result<String>> {
    peek.entries(prefix).filter_map(|entry| match entry {
        Ok(Listed::File(file)) => Some(Ok(file.name)),
        Ok(_) => None,
        Err(error) => Some(Err(error.into())),
    })
}

fn long(peek: &Peek, prefix: &str) -> Result<Answer> {
    let mut table = Table::new(&[">size", "?layout", "?>block", "?>drives", "name"]);
    let mut files = Vec::new();
    let mut failures = Vec::new();
    for name in names(peek, prefix) {
        let name = name?;
        let stat = match peek.stat(&name) {
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

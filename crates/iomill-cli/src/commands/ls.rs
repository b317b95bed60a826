//! `iomill ls`: the files with names that begin with a prefix.
//!
//! Goals: a list of any length takes no memory, as text and as JSON.

use std::fs::File;
use std::io::{BufWriter, Write};

use crate::human;
use iomill::{Listed, ListedFile, Peek};
use serde_json::{Value, json};

use crate::arguments::Ls;
use crate::console::Answer;
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::streams;
use crate::table::Table;

/// The output is written in pieces of this size.
const PIECE_BYTES: usize = 64 << 10;

pub fn run(context: &Context<'_>, arguments: &Ls) -> Result<Answer> {
    let peek = context.peek()?;
    context.note(peek.notices());
    let mut out = BufWriter::with_capacity(PIECE_BYTES, streams::stdout().map_err(Failure::stdout)?);
    match (context.global.wants_document(), arguments.long) {
        (true, long) => document(&peek, &arguments.prefix, long, &context.notices(), &mut out)?,
        (false, true) => table(&peek, &arguments.prefix, &mut out)?,
        (false, false) => {
            for file in files(&peek, &arguments.prefix) {
                writeln!(out, "{}", file?.name).map_err(Failure::stdout)?;
            }
        }
    }
    out.flush().map_err(Failure::stdout)?;
    Ok(Answer { is_silent: true, ..Answer::default() })
}

/// The files with names that begin with a prefix.
fn files(peek: &Peek, prefix: &str) -> impl Iterator<Item = Result<ListedFile>> {
    peek.list(prefix).filter_map(|entry| match entry {
        Ok(Listed::File(file)) => Some(Ok(file)),
        Ok(_) => None,
        Err(error) => Some(Err(error.into())),
    })
}

/// One object, file by file. Its keys are in the order in which other commands have them.
fn document(peek: &Peek, prefix: &str, long: bool, notices: &[String], out: &mut BufWriter<File>) -> Result<()> {
    write!(out, "{{\"files\":[").map_err(Failure::stdout)?;
    for (index, file) in files(peek, prefix).enumerate() {
        let (comma, file) = (if index > 0 { "," } else { "" }, file?);
        let object: Value = match long {
            false => json!({ "name": file.name }),
            true => json!({
                "name": file.name,
                "bytes": file.len_bytes,
                "layout": file.layout.name(),
                "block_bytes": file.block_bytes,
                "drives": *file.drives,
            }),
        };
        write!(out, "{comma}{object}").map_err(Failure::stdout)?;
    }
    writeln!(out, "],\"notices\":{}}}", json!(notices)).map_err(Failure::stdout)
}

/// A table in two passes: the first one measures the columns. A look at an array does not change between them.
fn table(peek: &Peek, prefix: &str, out: &mut BufWriter<File>) -> Result<()> {
    let mut table = Table::new(&[">size", "?layout", "?>block", "?>drives", "name"]);
    let mut is_empty = true;
    for file in files(peek, prefix) {
        table.fit(&cells(file?));
        is_empty = false;
    }
    if is_empty {
        return Ok(());
    }
    let lines = table.lines();
    let mut text = lines.head();
    for file in files(peek, prefix) {
        lines.push(&mut text, &cells(file?));
        out.write_all(text.as_bytes()).map_err(Failure::stdout)?;
        text.clear();
    }
    out.write_all(lines.foot().as_bytes()).map_err(Failure::stdout)
}

fn cells(file: ListedFile) -> [String; 5] {
    let (size, block) = (human::size(file.len_bytes), human::size(u64::from(file.block_bytes)));
    [size, file.layout.name().to_owned(), block, file.drives.len().to_string(), file.name]
}

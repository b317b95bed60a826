//! `iomill stat`: all details of files.

use iomill::FileStat;
use iomill_bench::human;
use serde_json::{Value, json};

use crate::arguments::Names;
use crate::console::Answer;
use crate::context::Context;
use crate::failure::Result;

pub fn run(context: &Context<'_>, arguments: &Names) -> Result<Answer> {
    let peek = context.peek()?;
    context.note(peek.notices());
    let mut texts = Vec::new();
    let mut files = Vec::new();
    let mut failures = Vec::new();
    for name in &arguments.names {
        match peek.stat(name) {
            Ok(stat) => {
                texts.push(text(&stat));
                files.push(document(&stat));
            }
            Err(error) => failures.push(error.into()),
        }
    }
    Ok(Answer { failures, ..Answer::new(texts.join("\n"), json!({ "files": files })) })
}

fn text(stat: &FileStat) -> String {
    let mut lines = vec![
        stat.name.clone(),
        format!("  size        {}", size(stat.len_bytes)),
        format!("  layout      {}, blocks of {}", stat.layout.name(), human::size(u64::from(stat.block_bytes))),
        format!("  id          {}", stat.id),
        format!("  generation  {}", stat.generation),
    ];
    for (drive, (path, bytes)) in stat.drives.iter().zip(&stat.parts) {
        lines.push(format!("  drive {drive:<4}  {}: {}", path.display(), size(*bytes)));
    }
    for (key, value) in &stat.attributes {
        lines.push(format!("  attribute   {key}={value}"));
    }
    lines.push(String::new());
    lines.join("\n")
}

/// `1.2 GiB (1288490189 bytes)`; below 1 KiB only the number of bytes.
fn size(bytes: u64) -> String {
    if bytes < 1024 { format!("{bytes} bytes") } else { format!("{} ({bytes} bytes)", human::size(bytes)) }
}

fn document(stat: &FileStat) -> Value {
    let parts = stat.drives.iter().zip(&stat.parts);
    let parts: Vec<Value> = parts
        .map(|(drive, (path, bytes))| json!({ "drive": drive, "path": path.display().to_string(), "bytes": bytes }))
        .collect();
    json!({
        "name": stat.name,
        "id": stat.id,
        "bytes": stat.len_bytes,
        "layout": stat.layout.name(),
        "block_bytes": stat.block_bytes,
        "drives": stat.drives,
        "parts": parts,
        "generation": stat.generation,
        "attributes": stat.attributes,
    })
}

//! `iomill stat`: all details of files.

use std::time::SystemTime;

use crate::human;
use iomill::FileStat;
use serde_json::{Value, json};

use crate::arguments::Names;
use crate::console::Answer;
use crate::context::Context;
use crate::failure::Result;
use crate::selection;

pub fn run(context: &Context<'_>, arguments: &Names) -> Result<Answer> {
    let peek = context.peek()?;
    context.note(peek.notices());
    let mut texts = Vec::new();
    let mut files = Vec::new();
    let mut failures = Vec::new();
    for name in &arguments.names {
        let selected = match selection::select(&|prefix| peek.list(prefix), name, arguments.recursive) {
            Ok(selection) => selection.files,
            Err(failure) => {
                failures.push(failure);
                continue;
            }
        };
        for selected in selected {
            match peek.stat(&selected.file.name) {
                Ok(stat) => {
                    texts.push(text(&stat));
                    files.push(document(&stat));
                }
                Err(error) => failures.push(error.into()),
            }
        }
    }
    Ok(Answer { failures, ..Answer::new(texts.join("\n"), json!({ "files": files })) })
}

fn text(stat: &FileStat) -> String {
    let sums = if stat.checksums { ", with checksums" } else { "" };
    let mut lines = vec![
        stat.name.clone(),
        format!("  size        {}", size(stat.len_bytes)),
        format!("  layout      {}, blocks of {}{}", stat.layout.name(), human::size(u64::from(stat.block_bytes)), sums),
        format!("  id          {}", stat.id),
        format!("  created     {}", utc(ns(stat.created))),
        format!("  modified    {}", utc(ns(stat.modified))),
    ];
    for (drive, (path, bytes)) in stat.drives.iter().zip(&stat.parts) {
        lines.push(format!("  drive {drive:<4}  {}: {}", human::printable(&path.display().to_string()), size(*bytes)));
    }
    for (key, value) in &stat.attributes {
        lines.push(format!("  attribute   {}", human::printable(&format!("{key}={value}"))));
    }
    lines.push(String::new());
    lines.join("\n")
}

/// `1.2 GiB (1288490189 bytes)`; below 1 KiB only the number of bytes.
fn size(bytes: u64) -> String {
    if bytes < 1024 { format!("{bytes} bytes") } else { format!("{} ({bytes} bytes)", human::size(bytes)) }
}

/// A time in nanoseconds since 1970 as `2026-01-31 12:00:59 UTC`.
fn utc(ns: u64) -> String {
    let (days, second) = (ns / 86_400_000_000_000, ns / 1_000_000_000 % 86_400);
    let mut year = 1970;
    let mut left = days;
    let is_leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    while left >= 365 + u64::from(is_leap(year)) {
        left -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let months = [31, 28 + u64::from(is_leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while left >= months[month] {
        left -= months[month];
        month += 1;
    }
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year}-{:02}-{:02} {hour:02}:{minute:02}:{second:02} UTC", month + 1, left + 1)
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
        "checksums": stat.checksums,
        "drives": stat.drives,
        "parts": parts,
        "version": stat.version,
        "created_ns": ns(stat.created),
        "modified_ns": ns(stat.modified),
        "attributes": stat.attributes,
    })
}

/// Nanoseconds since the start of 1970 (UTC).
fn ns(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        assert_eq!(utc(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(utc(951_827_696_999_999_999), "2000-02-29 12:34:56 UTC");
        assert_eq!(utc(4_107_542_399_000_000_000), "2100-02-28 23:59:59 UTC");
        assert_eq!(utc(4_107_542_400_000_000_000), "2100-03-01 00:00:00 UTC");
    }
}

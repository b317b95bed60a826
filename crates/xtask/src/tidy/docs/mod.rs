//! The documentation: its links must lead somewhere, its commands must exist, and so must the files and symbols that it
//! names.

mod commands;
mod links;
mod named;
mod page;

use std::fs;

use super::finding::Finding;
use super::source::Source;
use crate::workspace::{Result, Workspace};
use commands::Known;
use named::Files;
use page::parse;

/// `paths` are the repository's Markdown files, and `sources` its Rust files.
pub fn check(workspace: &Workspace, paths: &[String], sources: &[Source]) -> Result<Vec<Finding>> {
    let (mut pages, mut findings) = (Vec::new(), Vec::new());
    let files = Files::new(sources);
    for path in paths {
        let text = fs::read_to_string(workspace.root.join(path))?;
        pages.push(parse(path, &text));
        findings.extend(files.check(path, &named::named(&text)));
    }
    for source in sources {
        let text = fs::read_to_string(workspace.root.join(&source.path))?;
        findings.extend(files.check_comments(&source.path, &text));
    }
    findings.extend(links::check(&pages, |path| workspace.root.join(path).exists()));
    findings.extend(commands::check(&pages, &Known::load(workspace)?)?);
    Ok(findings)
}

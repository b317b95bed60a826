//! The documentation: its links must lead somewhere, and its commands must exist.

mod commands;
mod links;
mod page;

use std::fs;

use super::finding::Finding;
use crate::workspace::{Result, Workspace};
use commands::Known;
use page::parse;

/// `paths` are the repository's Markdown files.
pub fn check(workspace: &Workspace, paths: &[String]) -> Result<Vec<Finding>> {
    let mut pages = Vec::new();
    for path in paths {
        pages.push(parse(path, &fs::read_to_string(workspace.root.join(path))?));
    }
    let mut findings = links::check(&pages, |path| workspace.root.join(path).exists());
    findings.extend(commands::check(&pages, &Known::load(workspace)?)?);
    Ok(findings)
}

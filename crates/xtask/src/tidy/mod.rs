//! Rules of style and structure that neither the compiler nor clippy checks. Each has a file of its own, with a test that
//! shows that it finds violations.
//!
//! Rust files are read as tokens. So the checks see into macros, need no grammar that gets old, and ignore words in
//! strings and comments. Only `prose` reads comments, and scans the text for them. Non-goals: formatting (rustfmt),
//! correctness (clippy).

mod circles;
mod crates;
mod docs;
mod lab;
mod length;
mod licences;
mod markdown;
mod modules;
mod prose;
mod public;
mod rooms;
mod source;
mod words;

use std::fmt;
use std::fs;
use std::path::Path;

use serde::Deserialize;

use crate::workspace::{Result, Workspace};
use prose::Prose;
use source::Source;

/// The file of exceptions: violations that still exist.
const EXCEPTIONS: &str = "crates/xtask/tidy.toml";

/// The content of [`EXCEPTIONS`].
#[derive(Deserialize)]
struct Exceptions {
    #[serde(flatten)]
    lengths: length::Exceptions,
    #[serde(default)]
    prose: prose::Exceptions,
}

/// A violation of a rule.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    path: String,
    /// From 1; 0 means the whole file.
    line: usize,
    what: String,
}

impl Finding {
    fn new(path: impl Into<String>, line: usize, what: impl Into<String>) -> Finding {
        Finding { path: path.into(), line, what: what.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.path, self.what),
            line => write!(f, "{}:{line}: {}", self.path, self.what),
        }
    }
}

/// Every finding, in order of file and line.
pub fn check(workspace: &Workspace) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    let mut sources = Vec::new();
    for path in files(workspace, "rs")? {
        let text = read(workspace, &path)?;
        match Source::parse(&path, &text) {
            Ok(source) => sources.push(source),
            Err(error) => findings.push(Finding::new(path, 0, format!("not Rust: {error}"))),
        }
    }
    findings.extend(modules::check(&mut sources, &modules::roots(workspace)?));
    findings.extend(rooms::check(&sources));
    findings.extend(public::check(&sources, &read(workspace, public::LISTING).unwrap_or_default()));
    findings.extend(words::check(&sources));
    let exceptions: Exceptions =
        toml::from_str(&read(workspace, EXCEPTIONS)?).map_err(|e| format!("{EXCEPTIONS}: {e}"))?;
    findings.extend(length::check(&sources, &exceptions.lengths));
    findings.extend(circles::check(&sources));
    findings.extend(prose::check(&prose(workspace)?, &exceptions.prose));
    findings.extend(crates::check(workspace)?);
    findings.extend(licences::check(workspace.dependencies()));
    findings.extend(docs::check(workspace, &files(workspace, "md")?)?);
    findings.sort();
    Ok(findings)
}

/// The exceptions for prose that the files need now, in the form of [`EXCEPTIONS`].
pub fn prose_exceptions(workspace: &Workspace) -> Result<String> {
    Ok(prose::exceptions(&prose(workspace)?))
}

/// The list of the library's public interface as it is now, and the path of the committed one.
pub fn public_interface(workspace: &Workspace) -> Result<(String, &'static str)> {
    let parse = |path: &String| -> Result<Source> {
        let text = read(workspace, path)?;
        Source::parse(path, &text).map_err(|e| format!("{path}: {e}").into())
    };
    let mut sources = files(workspace, "rs")?.iter().map(parse).collect::<Result<Vec<_>>>()?;
    modules::check(&mut sources, &modules::roots(workspace)?);
    Ok((public::listing(&sources), public::LISTING))
}

fn prose(workspace: &Workspace) -> Result<Vec<Prose>> {
    let paths = [files(workspace, "md")?, files(workspace, "rs")?].concat();
    paths.iter().map(|path| Ok(Prose::read(path, &read(workspace, path)?))).collect()
}

fn read(workspace: &Workspace, path: &str) -> Result<String> {
    Ok(fs::read_to_string(workspace.root.join(path)).map_err(|e| format!("{path}: {e}"))?)
}

/// The repository's files of one kind, relative to its root, in order. Hidden directories, and those that git ignores, such as
/// build directories, are left out.
fn files(workspace: &Workspace, extension: &str) -> Result<Vec<String>> {
    let mut files = Vec::new();
    collect(workspace, &workspace.root, extension, &mut files)?;
    files.sort();
    Ok(files)
}

fn collect(workspace: &Workspace, directory: &Path, extension: &str, files: &mut Vec<String>) -> Result<()> {
    let ignored = ["target", "corpus", "artifacts", "node_modules"];
    for entry in fs::read_dir(directory).map_err(|e| format!("{}: {e}", directory.display()))? {
        let entry = entry?;
        let (name, kind, path) = (entry.file_name(), entry.file_type()?, entry.path());
        let name = name.to_string_lossy();
        if name.starts_with('.') {
            continue;
        }
        if kind.is_dir() && !ignored.contains(&&*name) {
            collect(workspace, &path, extension, files)?;
        } else if kind.is_file() && path.extension().is_some_and(|found| found == extension) {
            files.push(workspace.relative(&path));
        }
    }
    Ok(())
}

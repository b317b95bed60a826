//! Rules of style and structure that neither the compiler nor clippy checks. Each has a file of its own, with a test
//! that shows that it finds violations.
//!
//! Rust files are read as tokens. So the checks see into macros, need no grammar that gets old, and ignore words in
//! strings and comments. Only `prose` and `docs` read comments, and scan the text for them. Non-goals: formatting
//! (rustfmt), correctness (clippy).

mod circles;
mod crates;
mod docs;
mod files;
mod finding;
mod imports;
mod knots;
mod lab;
mod length;
mod licences;
mod markdown;
mod merge;
mod modules;
mod prose;
mod public;
mod rooms;
mod source;
mod words;

use serde::Deserialize;

use crate::workspace::{Result, Workspace};
use files::{files, read};
use finding::{EXCEPTIONS, Finding};
use prose::Prose;
use source::Source;

/// The content of [`EXCEPTIONS`].
#[derive(Deserialize)]
struct Exceptions {
    #[serde(flatten)]
    lengths: length::Exceptions,
    #[serde(default)]
    prose: prose::Exceptions,
    #[serde(default)]
    knots: knots::Exceptions,
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
    findings.extend(knots::check(&sources, &exceptions.knots));
    findings.extend(prose::check(&prose(workspace)?, &exceptions.prose));
    findings.extend(merge::check(workspace)?);
    findings.extend(crates::check(workspace)?);
    findings.extend(licences::check(workspace.dependencies()));
    findings.extend(docs::check(workspace, &files(workspace, "md")?, &sources)?);
    findings.sort();
    Ok(findings)
}

/// The exceptions for prose that the files need now, in the form of [`EXCEPTIONS`].
pub fn prose_exceptions(workspace: &Workspace) -> Result<String> {
    Ok(prose::exceptions(&prose(workspace)?))
}

/// The list of the library's public interface as it is now, and the path of the committed one.
pub fn public_interface(workspace: &Workspace) -> Result<(String, &'static str)> {
    Ok((public::listing(&sources(workspace)?), public::LISTING))
}

/// The files that import each other, with these imports.
pub fn knots(workspace: &Workspace) -> Result<String> {
    Ok(knots::listing(&sources(workspace)?))
}

/// All Rust files.
fn sources(workspace: &Workspace) -> Result<Vec<Source>> {
    let parse = |path: &String| -> Result<Source> {
        let text = read(workspace, path)?;
        Source::parse(path, &text).map_err(|e| format!("{path}: {e}").into())
    };
    let mut sources = files(workspace, "rs")?.iter().map(parse).collect::<Result<Vec<_>>>()?;
    modules::check(&mut sources, &modules::roots(workspace)?);
    Ok(sources)
}

fn prose(workspace: &Workspace) -> Result<Vec<Prose>> {
    let paths = [files(workspace, "md")?, files(workspace, "rs")?].concat();
    paths.iter().map(|path| Ok(Prose::read(path, &read(workspace, path)?))).collect()
}

//! A page or a comment that names a file of code names one that exists, and a symbol that it names with the file is
//! defined there. So a page cannot outlive a rename.
//!
//! Three forms are checked, all with backticks: a file alone; a file and its symbols, as in "`pager/fill.rs`
//! `Fills::end`", also with a comma between them, and with more symbols after a comma or an "and"; and "`prepare` in
//! `pager/batch.rs`". Non-goals: what a page says of the symbol.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{Delimiter, TokenTree};

use crate::tidy::finding::Finding;
use crate::tidy::markdown::{Block, Inline, blocks, inline};
use crate::tidy::prose::text::{Kind, stretches};
use crate::tidy::source::{Source, each_run, group, ident, inner, punct};

/// Directories in which a page may leave out the beginning of a path.
const KNOWN_ROOTS: [&str; 3] = ["crates/iomill/src/", "crates/iomill/", ""];
/// The words before the name of an item or a variable.
const KEYWORDS: [&str; 10] = ["fn", "struct", "enum", "union", "trait", "type", "const", "static", "mod", "let"];

/// A file that a text names.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Named {
    line: usize,
    file: String,
    /// The symbols that the text says are in it.
    symbols: Vec<String>,
}

/// The files that a text names.
pub(super) fn named(text: &str) -> Vec<Named> {
    let mut found = Vec::new();
    for block in blocks(text) {
        let (Block::Heading(prose) | Block::Prose(prose)) = block else { continue };
        let parts = inline(&prose.text);
        for (at, part) in parts.iter().enumerate() {
            let Inline::Code(offset, file) = part else { continue };
            if is_file(file) {
                let line = prose.line + prose.text[..*offset].matches('\n').count();
                found.push(Named { line, file: (*file).to_owned(), symbols: symbols(&parts, at) });
            }
        }
    }
    found
}

/// The symbols that a text puts beside the file at `at`.
fn symbols(parts: &[Inline<'_>], at: usize) -> Vec<String> {
    let between = |part: Option<&Inline<'_>>| match part {
        Some(Inline::Words(_, words)) => words.trim().to_owned(),
        _ => ".".to_owned(),
    };
    let symbol = |part: Option<&Inline<'_>>| match part {
        Some(Inline::Code(_, code)) => symbol(code),
        _ => None,
    };
    let mut found = Vec::new();
    if at >= 2 && between(parts.get(at - 1)) == "in" {
        found.extend(symbol(parts.get(at - 2)));
    }
    let mut next = at + 1;
    let mut allowed = &["", ","][..];
    while allowed.contains(&between(parts.get(next)).as_str())
        && let Some(name) = symbol(parts.get(next + 1))
    {
        found.push(name);
        next += 2;
        allowed = &[",", "and", ", and"];
    }
    found
}

/// Whether code between backticks is the path of a Rust file, and not a pattern or a command. `mod.rs` alone is any of
/// them.
fn is_file(code: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '/' | '.');
    code.strip_suffix(".rs").is_some_and(|path| !matches!(path, "" | "mod") && path.chars().all(plain))
}

/// The name that code between backticks stands for, such as `Fills::end`, `open()` and `alone!`.
fn symbol(code: &str) -> Option<String> {
    let name = code.strip_suffix("()").or_else(|| code.strip_suffix('!')).unwrap_or(code);
    let is_name = |name: &str| {
        name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    name.split("::").all(is_name).then(|| name.to_owned())
}

/// The Rust files, by path.
pub(super) struct Files<'a>(BTreeMap<&'a str, &'a Source>);

impl<'a> Files<'a> {
    pub(super) fn new(sources: &'a [Source]) -> Files<'a> {
        Files(sources.iter().map(|source| (source.path.as_str(), source)).collect())
    }

    /// What is wrong with the files that a page names.
    pub(super) fn check(&self, page: &str, named: &[Named]) -> Vec<Finding> {
        let mut findings = Vec::new();
        for Named { line, file, symbols } in named {
            let Some(source) = self.find(page, file) else {
                findings.push(Finding::new(page, *line, format!("`{file}`: no such file")));
                continue;
            };
            for symbol in symbols.iter().filter(|symbol| !defines(source, symbol)) {
                findings.push(Finding::new(page, *line, format!("`{symbol}`: not defined in `{}`", source.path)));
            }
        }
        findings
    }

    /// What is wrong with the files that a Rust file's comments name.
    pub(super) fn check_comments(&self, path: &str, text: &str) -> Vec<Finding> {
        let comments = stretches(text).into_iter().filter(|stretch| stretch.kind == Kind::Comment);
        let named: Vec<Named> = comments
            .flat_map(|comment| {
                let first = comment.line - 1;
                named(&comment.text).into_iter().map(move |named| Named { line: first + named.line, ..named })
            })
            .collect();
        self.check(path, &named)
    }

    /// The file that a page means: below the page's directory, one above it, or a known root.
    fn find(&self, page: &str, file: &str) -> Option<&'a Source> {
        let mut starts = vec![format!("{}/", page.trim_end_matches(".rs"))];
        let mut above = page;
        while let Some((directory, _)) = above.rsplit_once('/') {
            starts.extend(["", "src/", "tests/"].map(|inside| format!("{directory}/{inside}")));
            above = directory;
        }
        starts.extend(KNOWN_ROOTS.map(String::from));
        starts.iter().find_map(|start| self.0.get(format!("{start}{file}").as_str()).copied())
    }
}

/// Whether a file defines a symbol. Of `A::b` it must define `b`, and name `A`: the type of an `impl` may be defined
/// elsewhere.
fn defines(source: &Source, symbol: &str) -> bool {
    let (owners, name) = symbol.rsplit_once("::").unwrap_or(("", symbol));
    let mut named = BTreeSet::new();
    each_run(&source.tokens, &mut |run| named.extend(run.iter().filter_map(|t| Some(ident(Some(t))?.to_string()))));
    defined(source).contains(name) && owners.split("::").all(|owner| owner.is_empty() || named.contains(owner))
}

/// The names of a file's items, with their methods, fields and variants.
fn defined(source: &Source) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    each_run(&source.tokens, &mut |run| {
        for (at, token) in run.iter().enumerate() {
            let Some(word) = ident(Some(token)).map(ToString::to_string) else { continue };
            let named = if word == "macro_rules" { run.get(at + 2) } else { run.get(at + 1) };
            if !KEYWORDS.contains(&word.as_str()) && word != "macro_rules" {
                continue;
            }
            names.extend(ident(named).map(ToString::to_string));
            if matches!(word.as_str(), "struct" | "enum" | "union") {
                let ends = |t: &&TokenTree| punct(Some(t), ';') || group(Some(t), Delimiter::Brace).is_some();
                let body = group(run[at..].iter().find(ends), Delimiter::Brace).map(inner).unwrap_or_default();
                names.extend(members(&body));
            }
        }
    });
    names
}

/// The fields or variants in the body of a type: the first name of each.
fn members(body: &[TokenTree]) -> Vec<String> {
    let mut found = Vec::new();
    let mut begins = true;
    for token in body {
        if punct(Some(token), ',') {
            begins = true;
        } else if let Some(name) = ident(Some(token)).filter(|_| begins) {
            begins = name == "pub";
            found.extend((!begins).then(|| name.to_string()));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILL: &str = "pub struct Fills { pub(super) at: u8 } impl Fills { fn end() {} } enum Want { Read, #[doc = \"x\"] Write { all: bool } } \
                        macro_rules! alone { () => {} } impl Other { fn of_other() {} } const MAX: u8 = 1;";

    fn findings(page: &str, text: &str) -> Vec<String> {
        let sources = ["crates/iomill/src/pager/fill.rs", "crates/iomill/src/pager/wave.rs", "lab/tests/hits.rs"];
        let sources = sources.map(|path| Source::parse(path, FILL).unwrap());
        let files = Files::new(&sources);
        let found = match page.ends_with(".rs") {
            true => files.check_comments(page, text),
            false => files.check(page, &named(text)),
        };
        found.into_iter().map(|finding| finding.to_string()).collect()
    }

    #[test]
    fn bites() {
        assert_eq!(findings("docs/a.md", "x\n`pager/gone.rs` y"), ["docs/a.md:2: `pager/gone.rs`: no such file"]);
        for stale in [
            "`pager/fill.rs` `gone`",
            "`pager/fill.rs`, `gone`",
            "`pager/fill.rs`, `end` and `gone`",
            "`pager/fill.rs`, `end`, `gone` x",
            "`gone` in `pager/fill.rs`",
            "`Gone::end` in `pager/fill.rs`",
            "| a | `pager/fill.rs` `Fills::gone` |",
            "- a\n  `gone` in\n  `pager/fill.rs`",
        ] {
            let found = findings("docs/a.md", stale);
            assert!(
                found.len() == 1 && found[0].contains("not defined in `crates/iomill/src/pager/fill.rs`"),
                "{stale}: {found:?}"
            );
        }
    }

    #[test]
    fn finds_symbols() {
        for good in [
            "`pager/fill.rs` `Fills::end`, `Fills` and `at`",
            "`pager/fill.rs`, `pager/wave.rs` `end()`",
            "`crates/iomill/src/pager/fill.rs`, `Want::Write` and `alone!`",
            "`Other::of_other` in `pager/fill.rs`, and `gone` is elsewhere",
            "`pager/fill.rs`: `gone`",
            "`MAX` in `pager/fill.rs`; `pager/*.rs`; `cargo run x.rs`",
            "```text\n`pager/gone.rs`\n```",
            "the top of its `mod.rs`",
        ] {
            assert_eq!(findings("docs/a.md", good), [""; 0], "{good}");
        }
        assert_eq!(findings("lab/README.md", "`hits.rs`"), [""; 0]);
        assert_eq!(findings("docs/a.md", "`hits.rs`").len(), 1, "in the directory of another page");
    }

    #[test]
    fn reads_comments() {
        let text = "//! `fill.rs` `end`\n\n/// a\n/// `fill.rs` `gone`\nfn f() { let x = \"`gone.rs` in a text\"; }\n";
        let path = "crates/iomill/src/pager/mod.rs";
        assert_eq!(
            findings(path, text),
            [format!("{path}:4: `gone`: not defined in `crates/iomill/src/pager/fill.rs`")]
        );
    }
}

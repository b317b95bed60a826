//! The length of files and functions. Exceptions are listed with their length, and may only shrink.

use std::collections::BTreeMap;

use proc_macro2::Delimiter;
use serde::Deserialize;

use super::finding::{EXCEPTIONS, Finding};
use super::source::{Source, each_run, group, ident, line, punct};

/// Lines of a file, tests included. The page about a room at the top of its `mod.rs` does not count.
const FILE_MAX: usize = 1000;
/// Lines of a function, from `fn` to its closing brace.
const FUNCTION_MAX: usize = 70;

/// What may be longer, with its present length.
#[derive(Debug, Default, Deserialize)]
pub struct Exceptions {
    /// By path.
    #[serde(default)]
    files: BTreeMap<String, usize>,
    /// By path, `#` and name. Of several functions with one name in a file the longest counts.
    #[serde(default)]
    functions: BTreeMap<String, usize>,
}

pub fn check(sources: &[Source], exceptions: &Exceptions) -> Vec<Finding> {
    let files = sources.iter().map(|s| (s.path.clone(), (0, s.lines))).collect();
    let mut functions: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    for source in sources {
        for (name, start, lines) in lengths(source) {
            let longest = functions.entry(format!("{}#{name}", source.path)).or_default();
            if lines > longest.1 {
                *longest = (start, lines);
            }
        }
    }
    let mut findings = ratchet(&files, FILE_MAX, &exceptions.files);
    findings.extend(ratchet(&functions, FUNCTION_MAX, &exceptions.functions));
    findings
}

/// Compares lengths with the exceptions. Beside each length is its first line.
fn ratchet(
    lengths: &BTreeMap<String, (usize, usize)>,
    max: usize,
    exceptions: &BTreeMap<String, usize>,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (key, &(start, lines)) in lengths {
        let allowed = exceptions.get(key).copied().unwrap_or(max).max(max);
        if lines > allowed {
            let (path, name) = key.split_once('#').unwrap_or((key, "the file"));
            findings.push(Finding::new(path, start, format!("{name} has {lines} lines, {allowed} are allowed")));
        }
    }
    for (key, &allowed) in exceptions {
        let what = match lengths.get(key) {
            None => format!("{key} is gone: remove its exception"),
            Some(&(_, lines)) if lines <= max => format!("{key} has {lines} lines: remove its exception"),
            Some(&(_, lines)) if lines < allowed => format!("{key} has {lines} lines: lower its exception to that"),
            Some(_) => continue,
        };
        findings.push(Finding::new(EXCEPTIONS, 0, what));
    }
    findings
}

/// Name, first line and lines of every function with a body.
fn lengths(source: &Source) -> Vec<(String, usize, usize)> {
    let mut found = Vec::new();
    each_run(&source.tokens, &mut |run| {
        for (at, token) in run.iter().enumerate() {
            let is_fn = ident(Some(token)).is_some_and(|word| word == "fn");
            let Some(name) = ident(run.get(at + 1)).filter(|_| is_fn) else { continue };
            let end = run[at..].iter().find(|t| punct(Some(t), ';') || group(Some(t), Delimiter::Brace).is_some());
            if let Some(body) = group(end, Delimiter::Brace) {
                let start = line(token);
                found.push((name.to_string(), start, body.span_close().end().line + 1 - start));
            }
        }
    });
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(function_lines: usize, file_lines: usize) -> Source {
        let body = "\n".repeat(function_lines - 1);
        let rest = "\n".repeat(file_lines - function_lines);
        Source::parse("a.rs", &format!("impl A {{ fn b(f: fn(u8) -> u8) {{{body}}} fn short(); }}{rest}// end"))
            .unwrap()
    }

    fn findings(source: Source, exceptions: &str) -> Vec<String> {
        let exceptions = toml::from_str(exceptions).unwrap();
        check(&[source], &exceptions).into_iter().map(|f| f.to_string()).collect()
    }

    #[test]
    fn bites() {
        assert_eq!(findings(source(70, 1000), ""), [""; 0]);
        assert_eq!(findings(source(71, 1000), ""), ["a.rs:1: b has 71 lines, 70 are allowed"]);
        assert_eq!(findings(source(70, 1001), ""), ["a.rs: the file has 1001 lines, 1000 are allowed"]);
    }

    #[test]
    fn a_page_at_the_top_does_not_count() {
        let text = |page: &str| format!("{}{}// end", page.repeat(40), "\n".repeat(999));
        let found = |text: &str| check(&[Source::parse("a.rs", text).unwrap()], &Exceptions::default()).len();
        assert_eq!((found(&text("//! A.\n")), found(&text("// A.\n"))), (0, 1));
    }

    #[test]
    fn ratchets() {
        let exceptions = "files = { 'a.rs' = 1010 }\nfunctions = { 'a.rs#b' = 80 }";
        assert_eq!(findings(source(80, 1010), exceptions), [""; 0]);
        assert_eq!(findings(source(81, 1011), exceptions).len(), 2);
        assert_eq!(
            findings(source(79, 1010), exceptions),
            [format!("{EXCEPTIONS}: a.rs#b has 79 lines: lower its exception to that")]
        );
        assert_eq!(findings(source(70, 1000), exceptions).len(), 2, "no longer needed");
        assert_eq!(findings(source(70, 1000), "files = { 'b.rs' = 1900 }").len(), 1, "gone");
    }
}

//! A Rust file as tokens, with and without its tests, and the paths that it names.

use proc_macro2::{Delimiter, Group, Ident, LexError, TokenStream, TokenTree};

/// A Rust file.
pub struct Source {
    /// Relative to the repository's root.
    pub path: String,
    /// Lines of text, without the comment at the top that describes the module.
    pub lines: usize,
    /// All tokens.
    pub tokens: Vec<TokenTree>,
    /// The tokens without those that are compiled for tests only.
    pub code: Vec<TokenTree>,
    /// Number of modules above the content of this file, with its own: `crate::sys::fs` has 2. The check of modules
    /// sets it.
    pub depth: usize,
}

/// A path such as `crate::sys::fs`; `use std::{fs, io}` gives two.
pub struct NamedPath {
    pub names: Vec<String>,
    pub line: usize,
    /// How many inline modules are around it.
    pub inside: usize,
}

impl Source {
    pub fn parse(path: &str, text: &str) -> Result<Source, LexError> {
        let tokens: Vec<TokenTree> = text.parse::<TokenStream>()?.into_iter().collect();
        let lines = text.lines().skip_while(|line| line.starts_with("//!")).count();
        let mut source = Source { path: path.into(), lines, code: without_tests(&tokens), tokens, depth: 0 };
        // Integration tests, benchmarks and fuzz targets.
        if path.split('/').any(|part| matches!(part, "tests" | "benches" | "fuzz_targets")) {
            source.set_test();
        }
        Ok(source)
    }

    /// Marks the whole file as compiled for tests only.
    pub fn set_test(&mut self) {
        self.code.clear();
    }
}

pub fn line(token: &TokenTree) -> usize {
    token.span().start().line
}

pub fn punct(token: Option<&TokenTree>, char: char) -> bool {
    matches!(token, Some(TokenTree::Punct(p)) if p.as_char() == char)
}

pub fn ident(token: Option<&TokenTree>) -> Option<&Ident> {
    match token {
        Some(TokenTree::Ident(ident)) => Some(ident),
        _ => None,
    }
}

pub fn group(token: Option<&TokenTree>, delimiter: Delimiter) -> Option<&Group> {
    match token {
        Some(TokenTree::Group(group)) if group.delimiter() == delimiter => Some(group),
        _ => None,
    }
}

pub fn inner(group: &Group) -> Vec<TokenTree> {
    group.stream().into_iter().collect()
}

/// Whether the attribute with its `#` at `at` limits the next item to tests: `#[test]`, `#[cfg(test)]`,
/// `#[cfg(all(test, loom))]`, also with `!`.
pub fn is_test_attribute(tokens: &[TokenTree], at: usize) -> bool {
    let bang = usize::from(punct(tokens.get(at + 1), '!'));
    let Some(attribute) = group(tokens.get(at + 1 + bang), Delimiter::Bracket).filter(|_| punct(tokens.get(at), '#'))
    else {
        return false;
    };
    let attribute = inner(attribute);
    match ident(attribute.first()) {
        Some(name) if name == "test" => attribute.len() == 1,
        Some(name) if name == "cfg" => {
            group(attribute.get(1), Delimiter::Parenthesis).is_some_and(|condition| names_test(condition.stream()))
        }
        _ => false,
    }
}

/// Whether a condition holds in tests only: it names `test`, but not inside `not` or `any`.
fn names_test(condition: TokenStream) -> bool {
    let tokens: Vec<TokenTree> = condition.into_iter().collect();
    tokens.iter().enumerate().any(|(at, token)| match token {
        TokenTree::Ident(name) => name == "test" && !punct(tokens.get(at + 1), '='),
        TokenTree::Group(group) => {
            at > 0 && ident(tokens.get(at - 1)).is_some_and(|n| n == "all") && names_test(group.stream())
        }
        _ => false,
    })
}

/// The tokens without items for tests. An item ends with its first `{}` or `;`.
fn without_tests(tokens: &[TokenTree]) -> Vec<TokenTree> {
    let mut code = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        if is_test_attribute(tokens, at) {
            if punct(tokens.get(at + 1), '!') {
                return Vec::new();
            }
            let ends = |t: &TokenTree| punct(Some(t), ';') || group(Some(t), Delimiter::Brace).is_some();
            at = tokens[at..].iter().position(ends).map_or(tokens.len(), |length| at + length + 1);
        } else {
            code.push(match &tokens[at] {
                TokenTree::Group(group) => {
                    let mut stripped =
                        Group::new(group.delimiter(), without_tests(&inner(group)).into_iter().collect());
                    stripped.set_span(group.span());
                    TokenTree::Group(stripped)
                }
                token => token.clone(),
            });
            at += 1;
        }
    }
    code
}

/// The `use` items of a file that are public, and all its other tokens. Those inside of groups count as other tokens.
pub fn reexports(tokens: &[TokenTree]) -> (Vec<TokenTree>, Vec<TokenTree>) {
    let (mut shown, mut rest) = (Vec::new(), Vec::new());
    let mut at = 0;
    while at < tokens.len() {
        let is_word = |at: usize, word: &str| ident(tokens.get(at)).is_some_and(|name| name == word);
        let restricted = usize::from(group(tokens.get(at + 1), Delimiter::Parenthesis).is_some());
        let length = match is_word(at, "pub") && is_word(at + 1 + restricted, "use") {
            true => tokens[at..].iter().position(|t| punct(Some(t), ';')).map_or(tokens.len() - at, |end| end + 1),
            false => 1,
        };
        let kind = if length > 1 { &mut shown } else { &mut rest };
        kind.extend_from_slice(&tokens[at..at + length]);
        at += length;
    }
    (shown, rest)
}

/// Calls `visit` with every run of tokens: first that of the file, then that of each group in it, outer ones first.
pub fn each_run(tokens: &[TokenTree], visit: &mut dyn FnMut(&[TokenTree])) {
    visit(tokens);
    for token in tokens {
        if let TokenTree::Group(group) = token {
            each_run(&inner(group), visit);
        }
    }
}

/// Every path of two names or more.
pub fn paths(tokens: &[TokenTree]) -> Vec<NamedPath> {
    let mut paths = Vec::new();
    collect_paths(tokens, &[], 0, &mut paths);
    paths
}

fn collect_paths(tokens: &[TokenTree], prefix: &[String], inside: usize, paths: &mut Vec<NamedPath>) {
    let mut at = 0;
    while at < tokens.len() {
        match &tokens[at] {
            TokenTree::Ident(name) if name == "mod" && group(tokens.get(at + 2), Delimiter::Brace).is_some() => {
                if let Some(body) = group(tokens.get(at + 2), Delimiter::Brace) {
                    collect_paths(&inner(body), &[], inside + 1, paths);
                }
                at += 3;
            }
            TokenTree::Ident(_) => at = one_path(tokens, at, prefix, inside, paths),
            TokenTree::Group(group) => {
                collect_paths(&inner(group), &[], inside, paths);
                at += 1;
            }
            _ => at += 1,
        }
    }
}

/// Collects the path that starts at the name at `at`. Returns its end.
fn one_path(
    tokens: &[TokenTree],
    mut at: usize,
    prefix: &[String],
    inside: usize,
    paths: &mut Vec<NamedPath>,
) -> usize {
    let start = line(&tokens[at]);
    let mut names = prefix.to_vec();
    loop {
        if let Some(name) = ident(tokens.get(at)) {
            names.push(name.to_string());
            at += 1;
        }
        if !(punct(tokens.get(at), ':') && punct(tokens.get(at + 1), ':')) {
            break;
        }
        at += 2;
        if let Some(tree) = group(tokens.get(at), Delimiter::Brace) {
            collect_paths(&inner(tree), &names, inside, paths);
            return at + 1;
        }
        if ident(tokens.get(at)).is_none() {
            break;
        }
    }
    if names.len() > 1 {
        paths.push(NamedPath { names, line: start, inside });
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(text: &str) -> Vec<String> {
        let source = Source::parse("a.rs", text).unwrap();
        paths(&source.tokens).iter().map(|p| p.names.join("::")).collect()
    }

    #[test]
    fn finds_paths() {
        let text =
            "use crate::{a::{B, c}, d}; fn f(x: std::io::Result<crate::e::F>) { g::h::<crate::i::J>(1); m!(super::k) }";
        let paths = ["crate::a::B", "crate::a::c", "crate::d", "std::io::Result", "crate::e::F", "g::h", "crate::i::J"];
        assert_eq!(named(text), [&paths[..], &["super::k"]].concat());
    }

    #[test]
    fn tells_reexports_apart() {
        let source = Source::parse("a.rs", "pub use a::B; use c::D; pub(crate) use e::F; pub fn f() {}").unwrap();
        let (shown, rest) = reexports(&source.tokens);
        let text = |tokens: Vec<TokenTree>| tokens.into_iter().collect::<TokenStream>().to_string().replace(' ', "");
        assert_eq!((text(shown), text(rest)), ("pubusea::B;pub(crate)usee::F;".into(), "usec::D;pubfnf(){}".into()));
    }

    #[test]
    fn leaves_tests_out() {
        let code = |text: &str| {
            let source = Source::parse("a.rs", text).unwrap();
            source.code.into_iter().collect::<TokenStream>().to_string().replace(' ', "")
        };
        assert_eq!(code("fn a() {} #[cfg(test)] mod tests { fn b() {} } fn c() {}"), "fna(){}fnc(){}");
        assert_eq!(
            code("#[test] #[x] fn a() {} impl B { #[cfg(all(test, loom))] fn c() {} fn d() {} }"),
            "implB{fnd(){}}"
        );
        assert_eq!(code("#[cfg(not(test))] fn a() {}"), "#[cfg(not(test))]fna(){}");
        assert_eq!(code("#[cfg(any(test, unix))] fn a() {}"), "#[cfg(any(test,unix))]fna(){}");
        assert_eq!(code("#[cfg(feature = \"test\")] fn a() {}"), "#[cfg(feature=\"test\")]fna(){}");
        assert_eq!(code("#![cfg(test)] fn a() {}"), "");
    }
}

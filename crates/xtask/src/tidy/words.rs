//! Words that code must not contain: unfinished work, careless ends, and printing from the library.

use proc_macro2::{Delimiter, TokenTree};

use super::finding::Finding;
use super::source::{Source, each_run, group, ident, inner, line, punct};

const UNFINISHED: [&str; 3] = ["todo", "unimplemented", "dbg"];
const PRINTING: [&str; 4] = ["print", "println", "eprint", "eprintln"];

pub fn check(sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in sources {
        let library = source.path.starts_with("crates/iomill/src/");
        let mut found = |token: &TokenTree, what: &str| findings.push(Finding::new(&source.path, line(token), what));
        each_run(&source.code, &mut |run| {
            for (at, token) in run.iter().enumerate() {
                if let Some(name) = ident(Some(token)).filter(|_| punct(run.get(at + 1), '!')) {
                    let name = name.to_string();
                    if UNFINISHED.contains(&&*name) {
                        found(token, &format!("`{name}!`: finish it"));
                    }
                    if library && PRINTING.contains(&&*name) {
                        found(token, &format!("`{name}!`: the library does not print"));
                    }
                }
                let unwraps = ident(run.get(at + 1)).is_some_and(|name| name == "unwrap");
                let call = group(run.get(at + 2), Delimiter::Parenthesis);
                if punct(Some(token), '.') && unwraps && call.is_some_and(|c| c.stream().is_empty()) {
                    found(token, "`.unwrap()`: return the error, or say in an `expect` why there is none");
                }
            }
        });
        each_run(&source.tokens, &mut |run| {
            for (at, token) in run.iter().enumerate() {
                let attribute = group(run.get(at + 1), Delimiter::Bracket).map(inner).unwrap_or_default();
                if punct(Some(token), '#') && names_ignore(&attribute) {
                    found(token, "`#[ignore]`: let the test run, or remove it");
                }
            }
        });
    }
    findings
}

/// Recognizes `ignore`, `ignore = "why"`, `cfg_attr(.., ignore)`.
fn names_ignore(attribute: &[TokenTree]) -> bool {
    match ident(attribute.first()) {
        Some(name) if name == "ignore" => true,
        Some(name) if name == "cfg_attr" => group(attribute.get(1), Delimiter::Parenthesis)
            .is_some_and(|list| inner(list).iter().any(|t| ident(Some(t)).is_some_and(|name| name == "ignore"))),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        check(&[Source::parse(path, text).unwrap()]).into_iter().map(|f| f.line).collect()
    }

    #[test]
    fn bites() {
        let text = "fn a() {\n todo!();\n b.unwrap();\n assert!(dbg!(c.unwrap()));\n unimplemented!()\n}";
        assert_eq!(lines("crates/iomill-cli/src/a.rs", text), [2, 3, 5, 4, 4]);
        assert_eq!(lines("crates/iomill/src/a.rs", "fn a() { println!(); }\nfn b() { eprint!() }"), [1, 2]);
        assert_eq!(
            lines(
                "a.rs",
                "#[cfg(test)] mod tests { #[test]\n#[ignore]\nfn a() {}\n#[cfg_attr(x, ignore)]\nfn b() {} }"
            ),
            [2, 4,]
        );
    }

    #[test]
    fn spares_the_innocent() {
        let text = "/// `.unwrap()` and todo!()\nfn unwrap() { \"todo!()\"; a.unwrap_or(1); todo; b.expect(\"why\"); println!() }";
        assert_eq!(lines("crates/iomill-cli/src/a.rs", text), [0; 0]);
        assert_eq!(
            lines("crates/iomill/src/a.rs", "#[cfg(test)] mod tests { fn a() { b.unwrap(); println!() } }"),
            [0; 0]
        );
        assert_eq!(lines("crates/iomill/tests/a.rs", "fn a() { b.unwrap(); println!() }"), [0; 0]);
    }
}

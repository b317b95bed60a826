//! Knots: files that import each other, directly or through others. A parent's own items and its children are apart
//! here. So a child that uses a type of its parent, and a parent that uses a type of that child, are a knot of two
//! files.
//!
//! A re-export by itself is no import: a child that takes `super::B` from its parent's `pub use b::B` imports from `b`.
//! The parent imports `B` only if it uses it, too. The table `knots` of the exceptions has the sizes that are allowed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use proc_macro2::TokenTree;

use super::circles::{Edges, Import, circles};
use super::finding::{EXCEPTIONS, Finding};
use super::imports::{Modules, module};
use super::source::{Source, each_run, ident, paths, reexports};

/// The numbers of files of the knots in a directory, largest first, by directory.
pub type Exceptions = BTreeMap<String, Vec<usize>>;

/// Files that import each other.
pub struct Knot {
    /// The module that has all of them.
    level: String,
    /// The modules that the files hold.
    modules: BTreeSet<String>,
}

/// All knots, the largest of each directory first, and the imports between files.
fn find(sources: &[Source]) -> (Vec<Knot>, Edges) {
    let modules = Modules::new(sources);
    let mut edges = Edges::new();
    for source in sources {
        let Some(from) = module(&source.path) else { continue };
        let (shown, rest) = reexports(&source.code);
        let used = names(&rest);
        let shown = paths(&shown).into_iter().filter(|path| path.names.last().is_some_and(|name| used.contains(name)));
        for path in paths(&rest).into_iter().chain(shown) {
            if let Some(to) = modules.target(&from, path.inside, &path.names).filter(|to| *to != from) {
                let import = Import { path: source.path.clone(), line: path.line };
                edges.entry((from.join("/"), to.join("/"))).or_insert(import);
            }
        }
    }
    let mut knots: Vec<Knot> =
        circles(&edges).into_iter().map(|modules| Knot { level: level(&modules), modules }).collect();
    knots.sort_by(|a, b| (&a.level, b.modules.len()).cmp(&(&b.level, a.modules.len())));
    (knots, edges)
}

/// The names in some code, without those of declared modules: `mod check;` uses no function `check`.
fn names(tokens: &[TokenTree]) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    each_run(tokens, &mut |run| {
        let idents: Vec<String> =
            run.iter().map(|token| ident(Some(token)).map(ToString::to_string).unwrap_or_default()).collect();
        let is_declared = |index: usize| index > 0 && idents[index - 1] == "mod";
        names.extend((0..idents.len()).filter(|&index| !is_declared(index)).map(|index| idents[index].clone()));
    });
    names
}

/// The module that has all of these.
fn level(modules: &BTreeSet<String>) -> String {
    let mut common: Option<Vec<&str>> = None;
    for module in modules {
        let parts: Vec<&str> = module.split('/').collect();
        common = Some(match common {
            None => parts,
            Some(common) => common.into_iter().zip(parts).take_while(|(a, b)| a == b).map(|(a, _)| a).collect(),
        });
    }
    common.unwrap_or_default().join("/")
}

/// A finding for each directory that has more in knots than the exceptions allow, or less.
pub fn check(sources: &[Source], exceptions: &Exceptions) -> Vec<Finding> {
    let mut sizes: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for knot in find(sources).0 {
        sizes.entry(knot.level).or_default().push(knot.modules.len());
    }
    let mut findings = Vec::new();
    for level in sizes.keys().chain(exceptions.keys()).collect::<BTreeSet<_>>() {
        let now = sizes.get(level).map(Vec::as_slice).unwrap_or_default();
        let allowed = exceptions.get(level).map(Vec::as_slice).unwrap_or_default();
        let is_more = now.len() > allowed.len() || now.iter().zip(allowed).any(|(now, allowed)| now > allowed);
        if is_more {
            let what = format!(
                "knots of {now:?} files, and {allowed:?} are allowed: move what they share into a file of its own \
                 (`cargo xtask tidy --knots` lists them)"
            );
            findings.push(Finding::new(level, 0, what));
        } else if now != allowed {
            let what = format!("{level} has knots of {now:?} files: lower its exception to that, or remove it");
            findings.push(Finding::new(EXCEPTIONS, 0, what));
        }
    }
    findings
}

/// All knots as a text, with their imports.
pub fn listing(sources: &[Source]) -> String {
    let (knots, edges) = find(sources);
    let mut text = String::new();
    for knot in &knots {
        let inside = |module: &str| match module.strip_prefix(&knot.level) {
            Some("") | None => "mod".to_owned(),
            Some(inside) => inside.trim_start_matches('/').to_owned(),
        };
        let names: Vec<String> = knot.modules.iter().map(|module| inside(module)).collect();
        let _ = writeln!(text, "{}: {} files: {}", knot.level, names.len(), names.join(", "));
        for ((from, to), import) in &edges {
            if knot.modules.contains(from) && knot.modules.contains(to) {
                let _ = writeln!(text, "    {} -> {} ({}:{})", inside(from), inside(to), import.path, import.line);
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources(files: &[(&str, &str)]) -> Vec<Source> {
        files.iter().map(|(path, text)| Source::parse(path, text).unwrap()).collect()
    }

    fn findings(files: &[(&str, &str)], exceptions: &str) -> Vec<String> {
        check(&sources(files), &toml::from_str(exceptions).unwrap()).into_iter().map(|f| f.to_string()).collect()
    }

    /// A parent and its child use each other's types. A second child uses the first.
    const TIED: [(&str, &str); 3] = [
        ("c/src/m/mod.rs", "mod a; mod b; use a::A; pub struct S(A);"),
        ("c/src/m/a.rs", "use super::S; pub struct A(Box<S>);"),
        ("c/src/m/b.rs", "use super::a::A; pub struct B(A);"),
    ];

    #[test]
    fn sees_a_parent_and_its_children_apart() {
        let found = findings(&TIED, "");
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("c/src/m: knots of [2] files, and [] are allowed"), "{found:?}");
        assert_eq!(
            listing(&sources(&TIED)),
            "c/src/m: 2 files: mod, a\n    mod -> a (c/src/m/mod.rs:1)\n    a -> mod (c/src/m/a.rs:1)\n"
        );
    }

    #[test]
    fn ratchets() {
        assert_eq!(findings(&TIED, "'c/src/m' = [2]"), [""; 0]);
        let lower = |was: &str| {
            vec![format!("{EXCEPTIONS}: c/src/m has knots of {was} files: lower its exception to that, or remove it")]
        };
        assert_eq!(findings(&TIED, "'c/src/m' = [3]"), lower("[2]"));
        assert_eq!(findings(&TIED, "'c/src/m' = [2, 2]"), lower("[2]"));
        assert_eq!(findings(&TIED[2..], "'c/src/m' = [2]"), lower("[]"));
        assert_eq!(findings(&TIED, "'c/src/m' = [1, 1]").len(), 1);
    }

    #[test]
    fn a_reexport_is_no_import() {
        let untied = [
            ("c/src/m/mod.rs", "mod a; mod b; pub use a::A; pub(crate) use b::B; pub struct S;"),
            ("c/src/m/a.rs", "use super::S; pub struct A(S);"),
            ("c/src/m/b.rs", "use super::{A, S}; pub struct B(A, S);"),
        ];
        assert_eq!(findings(&untied, ""), [""; 0]);
        let named_alike = [
            ("c/src/m/mod.rs", "mod a; pub use a::{A, a}; pub struct S;"),
            ("c/src/m/a.rs", "use super::S; pub struct A(S); pub fn a() {}"),
        ];
        assert_eq!(findings(&named_alike, ""), [""; 0]);
        let mut tied = untied;
        tied[0].1 = "mod a; mod b; pub use a::A; pub(crate) use b::B; pub struct S(B);";
        assert!(findings(&tied, "")[0].contains("[3]"));
    }

    #[test]
    fn imports_of_tests_do_not_count() {
        let files = [
            ("c/src/a.rs", "use crate::b::B; pub struct A(B);"),
            ("c/src/b.rs", "pub struct B; #[cfg(test)] mod tests { use crate::a::A; }"),
        ];
        assert_eq!(findings(&files, ""), [""; 0]);
    }
}

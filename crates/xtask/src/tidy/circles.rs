//! Imports between siblings form no circle. A module and its children are one node, so a child may import from its parent,
//! and a parent from its children.
//!
//! Paths are resolved through re-exports and other `use` items, as far as tokens show. Imports of tests do not count.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::Finding;
use super::source::{Source, paths};

/// The most re-exports that the resolution of one path follows.
const HOPS_MAX: usize = 8;

/// A module: its crate's source directory and its names, as in `["crates/iomill/src", "sys", "fs"]`.
type Module = Vec<String>;

/// The place of an import from a sibling.
struct Import {
    path: String,
    line: usize,
}

/// Siblings that import from siblings: the importing one, the other one, and the first place.
type Edges = BTreeMap<(String, String), Import>;

pub fn check(sources: &[Source]) -> Vec<Finding> {
    let modules = Modules::new(sources);
    let mut levels: BTreeMap<Module, Edges> = BTreeMap::new();
    for source in sources {
        let Some(from) = module(&source.path) else { continue };
        for path in paths(&source.code) {
            let Some(to) = modules.resolve(&from, path.inside, &path.names, HOPS_MAX) else { continue };
            let common = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
            if let (Some(a), Some(b)) = (from.get(common), to.get(common)) {
                let import = Import { path: source.path.clone(), line: path.line };
                levels.entry(from[..common].to_vec()).or_default().entry((a.clone(), b.clone())).or_insert(import);
            }
        }
    }
    let described = |(level, edges): (&Module, &Edges)| -> Vec<Finding> {
        circles(edges).iter().map(|circle| describe(&level.join("/"), circle, edges)).collect()
    };
    levels.iter().flat_map(described).collect()
}

fn describe(level: &str, circle: &BTreeSet<String>, edges: &Edges) -> Finding {
    let within = edges.iter().filter(|((a, b), _)| circle.contains(a) && circle.contains(b));
    let arrows: Vec<String> =
        within.map(|((a, b), import)| format!("{a} -> {b} ({}:{})", import.path, import.line)).collect();
    let names: Vec<&str> = circle.iter().map(String::as_str).collect();
    Finding::new(level, 0, format!("{} import each other in a circle: {}", names.join(", "), arrows.join("; ")))
}

/// The module that a file of a crate's sources holds.
fn module(path: &str) -> Option<Module> {
    let (package, inside) = path.split_once("/src/")?;
    let mut module = vec![format!("{package}/src")];
    let names = inside.strip_suffix(".rs")?.split('/');
    module.extend(names.filter(|name| !matches!(*name, "lib" | "main" | "mod")).map(String::from));
    Some(module)
}

/// All modules, each with the names that its file imports.
struct Modules(HashMap<Module, HashMap<String, Vec<String>>>);

impl Modules {
    fn new(sources: &[Source]) -> Modules {
        let mut modules: HashMap<Module, HashMap<String, Vec<String>>> = HashMap::new();
        for source in sources {
            let Some(module) = module(&source.path) else { continue };
            let bound = modules.entry(module).or_default();
            for path in paths(&source.code).into_iter().filter(|path| path.inside == 0) {
                if let Some(name) = path.names.last() {
                    bound.entry(name.clone()).or_insert_with(|| path.names.clone());
                }
            }
        }
        Modules(modules)
    }

    /// The module of the item that a path names, if that item is in the same crate.
    fn resolve(&self, from: &[String], inside: usize, names: &[String], hops: usize) -> Option<Module> {
        let mut at = from.to_vec();
        let mut up = inside;
        let mut names = names;
        match names.first()?.as_str() {
            "crate" => {
                at.truncate(1);
                names = &names[1..];
            }
            "self" | "super" => {
                while let [first, rest @ ..] = names
                    && matches!(first.as_str(), "self" | "super")
                {
                    // The first steps up leave inline modules of the file itself.
                    match (first.as_str(), up) {
                        ("self", _) => {}
                        (_, 0) => drop(at.pop()),
                        _ => up -= 1,
                    }
                    names = rest;
                }
            }
            first => {
                let child = [&at[..], &[first.to_string()]].concat();
                self.0.get(&child)?;
            }
        }
        self.walk(at, names, hops)
    }

    fn walk(&self, mut at: Module, names: &[String], hops: usize) -> Option<Module> {
        for name in names {
            at.push(name.clone());
            if self.0.contains_key(&at) {
                continue;
            }
            at.pop();
            let bound = self.0.get(&at).and_then(|bound| bound.get(name));
            return match bound {
                Some(path) if hops > 0 => Some(self.resolve(&at, 0, path, hops - 1).unwrap_or(at)),
                _ => Some(at),
            };
        }
        Some(at)
    }
}

/// The sets of siblings that reach each other.
fn circles(edges: &Edges) -> Vec<BTreeSet<String>> {
    let mut next: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (from, to) in edges.keys() {
        next.entry(from).or_default().insert(to);
    }
    let reached: BTreeMap<&str, BTreeSet<&str>> = next.keys().map(|from| (*from, reach(&next, from))).collect();
    let mut found: Vec<BTreeSet<String>> = Vec::new();
    for (from, all) in &reached {
        if !all.contains(from) || found.iter().any(|circle| circle.contains(*from)) {
            continue;
        }
        let back = all.iter().filter(|to| reached.get(*to).is_some_and(|all| all.contains(from)));
        found.push(back.map(|name| name.to_string()).collect());
    }
    found
}

fn reach<'a>(next: &BTreeMap<&'a str, BTreeSet<&'a str>>, from: &str) -> BTreeSet<&'a str> {
    let mut seen = BTreeSet::new();
    let mut open = vec![from];
    while let Some(at) = open.pop() {
        for to in next.get(at).into_iter().flatten() {
            if seen.insert(*to) {
                open.push(to);
            }
        }
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(files: &[(&str, &str)]) -> Vec<String> {
        let sources: Vec<Source> = files.iter().map(|(path, text)| Source::parse(path, text).unwrap()).collect();
        check(&sources).into_iter().map(|f| f.to_string()).collect()
    }

    #[test]
    fn bites() {
        let files = [
            ("c/src/lib.rs", "mod a; mod b; mod d;"),
            ("c/src/a.rs", "use crate::b::deep::X;"),
            ("c/src/b/mod.rs", "mod deep;"),
            ("c/src/b/deep.rs", "\nfn f() { super::super::d::g() }"),
            ("c/src/d.rs", "use super::a::Y;"),
        ];
        let text = "c/src: a, b, d import each other in a circle: a -> b (c/src/a.rs:1); b -> d (c/src/b/deep.rs:2); \
                    d -> a (c/src/d.rs:1)";
        assert_eq!(findings(&files), [text]);
    }

    #[test]
    fn sees_through_names_that_a_parent_brings_in() {
        let files = [
            ("c/src/m/mod.rs", "mod a; mod b; pub use a::A; pub(crate) use b::B;"),
            ("c/src/m/a.rs", "use super::B;"),
            ("c/src/m/b.rs", "mod inline { use super::super::A; }"),
        ];
        assert_eq!(findings(&files).len(), 1);
    }

    #[test]
    fn spares_parents_and_tests() {
        let files = [
            ("c/src/m/mod.rs", "mod a; mod b; use a::A; struct S;"),
            ("c/src/m/a.rs", "use super::S; use super::b::B;"),
            ("c/src/m/b.rs", "use std::a::A; #[cfg(test)] mod tests { use super::super::a::A; }"),
        ];
        assert_eq!(findings(&files), [""; 0]);
    }
}

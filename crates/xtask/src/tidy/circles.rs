//! Imports between siblings form no circle. A module and its children are one node here, so a child may import from its
//! parent, and a parent from its children. `knots` takes them apart. Imports of tests do not count.

use std::collections::{BTreeMap, BTreeSet};

use super::finding::Finding;
use super::imports::{Module, Modules, module};
use super::source::{Source, paths};

/// The place of an import.
pub struct Import {
    pub path: String,
    pub line: usize,
}

/// Imports between modules: the importing one, the imported one, and the first place.
pub type Edges = BTreeMap<(String, String), Import>;

pub fn check(sources: &[Source]) -> Vec<Finding> {
    let modules = Modules::new(sources);
    let mut levels: BTreeMap<Module, Edges> = BTreeMap::new();
    for source in sources {
        let Some(from) = module(&source.path) else { continue };
        for path in paths(&source.code) {
            let Some(to) = modules.target(&from, path.inside, &path.names) else { continue };
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

/// The sets of modules that reach each other.
pub fn circles(edges: &Edges) -> Vec<BTreeSet<String>> {
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

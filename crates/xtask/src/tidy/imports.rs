//! Which module of a crate an import names. Paths are resolved through re-exports and other `use` items, as far as
//! tokens show. Non-goals: imports of everything (`*`), and names that a macro makes.

use std::collections::HashMap;

use super::source::{Source, paths};

/// The most re-exports that the resolution of one path follows.
const HOPS_MAX: usize = 8;

/// A module: its crate's source directory and its names, as in `["crates/iomill/src", "sys", "fs"]`.
pub type Module = Vec<String>;

/// The module that a file of a crate's sources holds.
pub fn module(path: &str) -> Option<Module> {
    let (package, inside) = path.split_once("/src/")?;
    let mut module = vec![format!("{package}/src")];
    let names = inside.strip_suffix(".rs")?.split('/');
    module.extend(names.filter(|name| !matches!(*name, "lib" | "main" | "mod")).map(String::from));
    Some(module)
}

/// All modules, each with the names that its file imports.
pub struct Modules(HashMap<Module, HashMap<String, Vec<String>>>);

impl Modules {
    pub fn new(sources: &[Source]) -> Modules {
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

    /// The module of the item that a path names, if that item is in the same crate. `inside` is the number of inline
    /// modules around the path.
    pub fn target(&self, from: &[String], inside: usize, names: &[String]) -> Option<Module> {
        self.resolve(from, inside, names, HOPS_MAX)
    }

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

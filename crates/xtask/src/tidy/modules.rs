//! A file that no `mod` reaches is dead. A file that only tests reach is a test.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use proc_macro2::{Delimiter, TokenTree};
use serde::Deserialize;

use super::finding::Finding;
use super::lab;
use super::source::{Source, group, ident, inner, is_test_attribute, punct};
use crate::workspace::{Result, Workspace};

/// Workspaces of their own. Their `Cargo.toml` names their root files.
const APART: [&str; 7] = ["examples/http-rows", "fuzz", "models", "object-store", "objects-common", "origin", "python"];

/// The parts of such a `Cargo.toml` that name root files.
#[derive(Deserialize)]
struct Manifest {
    package: Package,
    lib: Option<Target>,
    #[serde(default)]
    bin: Vec<Target>,
    #[serde(default)]
    test: Vec<Target>,
    #[serde(default)]
    example: Vec<Target>,
}

#[derive(Deserialize)]
struct Package {
    /// The build script.
    build: Option<String>,
}

#[derive(Deserialize)]
struct Target {
    path: String,
}

/// The root files of everything that is built.
pub fn roots(workspace: &Workspace) -> Result<Vec<String>> {
    let targets = workspace.members().flat_map(|package| &package.targets);
    let mut roots: Vec<String> = targets.map(|target| workspace.relative(&target.src_path)).collect();
    for (apart, manifest) in manifests(workspace)? {
        let named = manifest.lib.into_iter().chain(manifest.bin).chain(manifest.test).chain(manifest.example);
        roots.extend(
            named.map(|target| target.path).chain(manifest.package.build).map(|path| format!("{apart}/{path}")),
        );
    }
    roots.extend(lab::crates(workspace)?.into_iter().flat_map(|one| one.roots));
    Ok(roots)
}

/// The names of the examples of workspaces of their own. Pages there may have commands that run them.
pub fn examples_apart(workspace: &Workspace) -> Result<Vec<String>> {
    let examples = manifests(workspace)?.into_iter().flat_map(|(_, manifest)| manifest.example);
    Ok(examples.filter_map(|example| Some(Path::new(&example.path).file_stem()?.to_str()?.to_owned())).collect())
}

fn manifests(workspace: &Workspace) -> Result<Vec<(&'static str, Manifest)>> {
    let manifest = |apart| {
        let file = workspace.root.join(apart).join("Cargo.toml");
        let text = fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
        Ok((apart, toml::from_str(&text).map_err(|e| format!("{}: {e}", file.display()))?))
    };
    APART.into_iter().map(manifest).collect()
}

/// A `mod name;` in a file.
struct Declaration {
    /// Directories below that of the file's modules: the inline modules around the declaration.
    within: Vec<String>,
    name: String,
    /// From a `#[path]` attribute.
    path: Option<String>,
    test: bool,
}

/// Walks the modules from the roots. Sets the depth of each source and whether it is a test.
pub fn check(sources: &mut [Source], roots: &[String]) -> Vec<Finding> {
    let index: HashMap<String, usize> = sources.iter().enumerate().map(|(at, s)| (s.path.clone(), at)).collect();
    // The files reached so far, and whether any way to them is not for tests only.
    let mut reached: HashMap<usize, bool> = HashMap::new();
    let mut open: Vec<(String, bool, bool, usize)> = roots.iter().map(|root| (root.clone(), true, false, 0)).collect();
    while let Some((path, owns_directory, test, depth)) = open.pop() {
        let Some(&at) = index.get(&path) else { continue };
        let known = reached.entry(at).or_insert(test);
        *known = *known && test;
        sources[at].depth = depth;
        let (directory, file) = path.rsplit_once('/').unwrap_or(("", &path));
        for declaration in declarations(&sources[at].tokens, &[]) {
            let inside = declaration.within.iter().fold(String::new(), |all, name| all + "/" + name);
            let test = test || declaration.test;
            let depth = depth + 1 + declaration.within.len();
            if let Some(path) = declaration.path {
                open.push((normal(&format!("{directory}{inside}/{path}")), true, test, depth));
                continue;
            }
            let base = match owns_directory {
                true => format!("{directory}{inside}"),
                false => format!("{directory}/{}{inside}", file.trim_end_matches(".rs")),
            };
            open.push((format!("{base}/{}.rs", declaration.name), false, test, depth));
            open.push((format!("{base}/{}/mod.rs", declaration.name), true, test, depth));
        }
    }
    for (&at, &test) in &reached {
        if test {
            sources[at].set_test();
        }
    }
    let dead = sources.iter().enumerate().filter(|(at, _)| !reached.contains_key(at));
    dead.map(|(_, source)| Finding::new(&source.path, 0, "no `mod` reaches this file")).collect()
}

/// `a/b/../c` as `a/c`.
fn normal(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            ".." => drop(parts.pop()),
            "." => {}
            part => parts.push(part),
        }
    }
    parts.join("/")
}

fn declarations(tokens: &[TokenTree], within: &[String]) -> Vec<Declaration> {
    let mut found = Vec::new();
    let (mut path, mut test) = (None, false);
    for (at, token) in tokens.iter().enumerate() {
        if punct(Some(token), '#') && !punct(tokens.get(at + 1), '!') {
            test |= is_test_attribute(tokens, at);
            let attribute = group(tokens.get(at + 1), Delimiter::Bracket).map(inner).unwrap_or_default();
            if let ([TokenTree::Ident(name), _, TokenTree::Literal(value)], true) = (&attribute[..], path.is_none()) {
                path = (name == "path").then(|| value.to_string().trim_matches('"').to_string());
            }
        }
        let name = ident(tokens.get(at + 1)).filter(|_| ident(Some(token)).is_some_and(|word| word == "mod"));
        if let Some(name) = name.map(|name| name.to_string()) {
            if let Some(body) = group(tokens.get(at + 2), Delimiter::Brace) {
                let inside = declarations(&inner(body), &[within, &[name]].concat());
                found.extend(inside.into_iter().map(|d| Declaration { test: d.test || test, ..d }));
            } else {
                found.push(Declaration { within: within.to_vec(), name, path: path.take(), test });
            }
        }
        if punct(Some(token), ';') || group(Some(token), Delimiter::Brace).is_some() {
            (path, test) = (None, false);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Dead files, and files of tests.
    fn walk(files: &[(&str, &str)]) -> (Vec<String>, Vec<String>) {
        let mut sources: Vec<Source> = files.iter().map(|(path, text)| Source::parse(path, text).unwrap()).collect();
        let dead = check(&mut sources, &["a/src/lib.rs".into()]).into_iter().map(|f| f.path).collect();
        (dead, sources.into_iter().filter(|s| s.code.is_empty()).map(|s| s.path).collect())
    }

    #[test]
    fn bites() {
        let (dead, _) = walk(&[
            ("a/src/lib.rs", "mod b; pub mod c; mod inline { mod d; } #[path = \"../odd/e.rs\"] mod e; // mod f;"),
            ("a/src/b.rs", "mod g;"),
            ("a/src/b/g.rs", "fn x() {}"),
            ("a/src/c/mod.rs", "mod h;"),
            ("a/src/c/h.rs", "fn x() {}"),
            ("a/src/inline/d.rs", "fn x() {}"),
            ("a/odd/e.rs", "fn x() {}"),
            ("a/src/f.rs", "fn x() {}"),
            ("a/src/g.rs", "fn x() {}"),
            ("a/src/b/h.rs", "fn x() {}"),
        ]);
        assert_eq!(dead, ["a/src/f.rs", "a/src/g.rs", "a/src/b/h.rs"]);
    }

    #[test]
    fn knows_files_of_tests() {
        let (dead, tests) = walk(&[
            ("a/src/lib.rs", "#[cfg(test)] mod b; mod c; #[cfg(test)] mod both; pub mod both;"),
            ("a/src/b.rs", "mod d;"),
            ("a/src/b/d.rs", "fn x() {}"),
            ("a/src/c.rs", "fn x() {}"),
            ("a/src/both.rs", "fn x() {}"),
        ]);
        assert_eq!(dead, [""; 0]);
        assert_eq!(tests, ["a/src/b.rs", "a/src/b/d.rs"]);
    }

    #[test]
    fn knows_depth() {
        let mut sources =
            [("a/src/lib.rs", "mod b;"), ("a/src/b/mod.rs", "mod c { mod d; }"), ("a/src/b/c/d.rs", "fn x() {}")]
                .map(|(path, text)| Source::parse(path, text).unwrap());
        check(&mut sources, &["a/src/lib.rs".into()]);
        assert_eq!(sources.map(|s| s.depth), [0, 1, 3]);
    }
}

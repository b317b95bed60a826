//! The rooms of the library: imports point downward only, and some rooms may not use some things.

use std::collections::HashMap;

use super::finding::Finding;
use super::source::{Source, each_run, ident, line, paths};

const LIBRARY: &str = "crates/iomill/src/";
/// The rooms, lowest first. A room imports from itself and from those before it.
const ROOMS: [&str; 12] =
    ["error", "sys", "counters", "engine", "drive", "layout", "catalog", "cache", "exec", "file", "pager", "api"];
/// Modules of std that the catalog must not use: it goes through the drive's file operations, so that it can be
/// simulated.
const CATALOG_BANS: [&str; 3] = ["fs", "thread", "time"];

pub fn check(sources: &[Source]) -> Vec<Finding> {
    let reexports = sources.iter().find(|s| s.path == format!("{LIBRARY}lib.rs")).map(reexports).unwrap_or_default();
    let mut findings = Vec::new();
    for source in sources {
        let Some(inside) = source.path.strip_prefix(LIBRARY) else { continue };
        let room = inside.split('/').next().unwrap_or_default().trim_end_matches(".rs");
        if room == "lib" {
            continue;
        }
        let Some(rank) = ROOMS.iter().position(|r| *r == room) else {
            let what = format!("`{room}` has no place in the order of rooms ({})", ROOMS.join(" < "));
            findings.push(Finding::new(&source.path, 0, what));
            continue;
        };
        imports(source, room, rank, &reexports, &mut findings);
        if room == "layout" {
            each_run(&source.tokens, &mut |run| {
                let found = run.iter().filter(|t| ident(Some(t)).is_some_and(|name| name == "unsafe"));
                findings.extend(found.map(|t| Finding::new(&source.path, line(t), "`unsafe` in a layout")));
            });
        }
        if room == "catalog" {
            // A length of time is a number.
            let is_number = |names: &[String]| names.last().is_some_and(|name| name == "Duration");
            let banned =
                |names: &[String]| names[0] == "std" && CATALOG_BANS.contains(&&*names[1]) && !is_number(names);
            let found = paths(&source.code).into_iter().filter(|path| banned(&path.names));
            findings.extend(found.map(|path| {
                let what = format!("`{}` in the catalog: go through the file operations", path.names.join("::"));
                Finding::new(&source.path, path.line, what)
            }));
        }
    }
    findings
}

fn imports(source: &Source, room: &str, rank: usize, reexports: &HashMap<String, String>, findings: &mut Vec<Finding>) {
    for path in paths(&source.tokens) {
        let supers = path.names.iter().take_while(|name| *name == "super").count();
        let from_root = match path.names[0].as_str() {
            "crate" => &path.names[1..],
            "super" if supers == source.depth + path.inside => &path.names[supers..],
            _ => continue,
        };
        let Some(name) = from_root.first() else { continue };
        let target = reexports.get(name).unwrap_or(name);
        match ROOMS.iter().position(|r| r == target) {
            Some(other) if other <= rank => {}
            Some(_) => {
                let what = format!("`{}`: `{room}` must not import from `{target}` above it", path.names.join("::"));
                findings.push(Finding::new(&source.path, path.line, what));
            }
            None => {
                let what = format!("`{}`: name the room it comes from", path.names.join("::"));
                findings.push(Finding::new(&source.path, path.line, what));
            }
        }
    }
}

/// The names that the library's root re-exports, and the room of each.
fn reexports(root: &Source) -> HashMap<String, String> {
    let named = paths(&root.code).into_iter().filter_map(|path| {
        let names: Vec<String> = path.names.into_iter().filter(|name| name != "crate" && name != "self").collect();
        let room = names.first().filter(|room| ROOMS.contains(&room.as_str()))?;
        Some((names.last()?.clone(), room.clone()))
    });
    named.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, depth: usize, text: &str) -> Vec<usize> {
        let root =
            Source::parse("crates/iomill/src/lib.rs", "pub use error::{Error, Result}; pub use api::Array;").unwrap();
        let mut source = Source::parse(path, text).unwrap();
        source.depth = depth;
        check(&[root, source]).into_iter().map(|f| f.line).collect()
    }

    #[test]
    fn imports_point_downward() {
        let text =
            "use crate::sys::fs;\nuse crate::cache::Cache;\nuse crate::{Error, Array};\nfn f() {\n m!(crate::api::X) }";
        assert_eq!(lines("crates/iomill/src/engine/mod.rs", 1, text), [2, 3, 5]);
        assert_eq!(lines("crates/iomill/src/api/mod.rs", 1, text), [0; 0]);
        assert_eq!(lines("crates/iomill/src/error.rs", 1, "use crate::sys;\nuse crate::Nowhere;"), [1, 2]);
    }

    #[test]
    fn supers_are_counted() {
        let text = "use super::super::api::A;\nmod tests { use super::*; use super::super::super::cache::B; }";
        assert_eq!(lines("crates/iomill/src/sys/fs.rs", 2, text), [1, 2]);
        assert_eq!(lines("crates/iomill/src/sys/fs.rs", 2, "use super::clock::A;"), [0; 0]);
    }

    #[test]
    fn rooms_do_without() {
        assert_eq!(lines("crates/iomill/src/layout/a.rs", 2, "fn f() {\n unsafe {} }"), [2]);
        let text = "use std::{io,\n fs};\nfn f() { std::thread::spawn(g); }\n#[cfg(test)] mod t { use std::fs; }";
        assert_eq!(lines("crates/iomill/src/catalog/a.rs", 2, text), [2, 3]);
        assert_eq!(lines("crates/iomill/src/sys/a.rs", 2, &format!("{text} unsafe fn g() {{}}")), [0; 0]);
    }

    #[test]
    fn rooms_are_known() {
        assert_eq!(lines("crates/iomill/src/attic/a.rs", 2, "fn f() {}"), [0]);
    }
}

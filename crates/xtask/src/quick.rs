//! `cargo xtask quick` checks what a change of one room is most likely to break: the rules of tidy, the format, clippy
//! of the changed crates, and the tests of the changed rooms. Non-goals: the effects of the change on other crates, and
//! other workspaces. `.ci/run` checks those.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use crate::tidy;
use crate::workspace::{Package, Result, Workspace, cargo};

/// A command that checks something.
#[derive(Debug, PartialEq, Eq)]
struct Step {
    program: &'static str,
    arguments: Vec<String>,
}

impl Step {
    fn new(program: &'static str, arguments: &[&str]) -> Step {
        Step { program, arguments: arguments.iter().map(|a| (*a).to_owned()).collect() }
    }
}

/// Runs all checks, and prints which failed. Returns whether none did. `base` is a commit: files that changed since are
/// checked.
pub fn check(workspace: &Workspace, base: &str) -> Result<bool> {
    let changed = changed(workspace, base)?;
    let mut failed = Vec::new();
    let start = Instant::now();
    let findings = tidy::check(workspace)?;
    findings.iter().for_each(|finding| println!("{finding}"));
    told("cargo xtask tidy", findings.is_empty(), start, &mut failed);
    for step in steps(&workspace.members().collect::<Vec<_>>(), &workspace.root, &changed) {
        let start = Instant::now();
        let mut command = if step.program == "cargo" { cargo() } else { Command::new(step.program) };
        let line = shown(&step);
        println!("{line}");
        let status = command.args(&step.arguments).current_dir(&workspace.root).status();
        let status = status.map_err(|e| format!("`{line}` did not start: {e}"))?;
        told(&line, status.success(), start, &mut failed);
    }
    let apart = apart(&changed);
    if !apart.is_empty() {
        let apart: Vec<&str> = apart.iter().map(String::as_str).collect();
        println!(
            "not checked, because they are workspaces of their own: {} (`.ci/run plan` names their checks)",
            apart.join(", ")
        );
    }
    match &failed[..] {
        [] => println!("quick: nothing is wrong in {} changed files", changed.len()),
        _ => println!("quick: FAILED:\n   {}", failed.join("\n   ")),
    }
    Ok(failed.is_empty())
}

fn told(line: &str, is_good: bool, start: Instant, failed: &mut Vec<String>) {
    println!("   {} in {:.1} s", if is_good { "passed" } else { "FAILED" }, start.elapsed().as_secs_f64());
    if !is_good {
        failed.push(line.to_owned());
    }
}

/// A command as it is typed.
fn shown(step: &Step) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,".contains(c);
    let words = std::iter::once(step.program).chain(step.arguments.iter().map(String::as_str));
    let quoted = words.map(|word| match word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    });
    quoted.collect::<Vec<_>>().join(" ")
}

/// The files that differ from `base`, new ones included and removed ones left out, relative to the root.
fn changed(workspace: &Workspace, base: &str) -> Result<BTreeSet<String>> {
    let listed = |arguments: &[&str]| -> Result<String> {
        let output = Command::new("git").arg("-C").arg(&workspace.root).args(arguments).output();
        let output = output.map_err(|e| format!("git did not start: {e}"))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(format!("`git {}`: {said}", arguments.join(" ")).into());
        }
        Ok(String::from_utf8(output.stdout)?)
    };
    let differ = listed(&["diff", "--name-only", "--relative", "--diff-filter=d", "-z", base, "--"])?;
    let new = listed(&["ls-files", "--others", "--exclude-standard", "-z"])?;
    Ok(differ.split('\0').chain(new.split('\0')).filter(|path| !path.is_empty()).map(str::to_owned).collect())
}

/// What checks these files, quickest first.
fn steps(members: &[&Package], root: &Path, changed: &BTreeSet<String>) -> Vec<Step> {
    let mut steps = Vec::new();
    let rust: Vec<&str> = changed.iter().map(String::as_str).filter(|path| path.ends_with(".rs")).collect();
    if !rust.is_empty() {
        steps.push(Step::new("rustfmt", &[&["--check", "--edition", "2024"], &rust[..]].concat()));
    }
    if changed.iter().any(|path| path.starts_with(".ci/")) {
        steps.push(Step::new("bash", &[".ci/test"]));
    }
    let mut crates = BTreeSet::new();
    let mut tests: BTreeMap<(&str, Vec<String>), Filter> = BTreeMap::new();
    for path in changed {
        let Some(package) = members.iter().find(|package| root.join(path).starts_with(package.directory())) else {
            continue;
        };
        crates.insert(package.name.as_str());
        if let Some((target, module)) = tested(package, root, path) {
            tests.entry((&package.name, target)).or_default().add(module);
        }
    }
    if !crates.is_empty() {
        let packages = crates.iter().flat_map(|name| ["--package", name]);
        let words = ["clippy", "--quiet"].into_iter().chain(packages).chain(["--all-targets", "--", "-D", "warnings"]);
        steps.push(Step::new("cargo", &words.collect::<Vec<_>>()));
    }
    for ((package, target), filter) in &tests {
        let target = target.iter().map(String::as_str);
        let mut words: Vec<&str> = ["test", "--quiet", "--package", package].into_iter().chain(target).collect();
        if let Filter::Modules(modules) = filter {
            words.push("--");
            words.extend(modules.iter().map(String::as_str));
        }
        steps.push(Step::new("cargo", &words));
    }
    steps
}

/// Which tests of a program are run.
#[derive(Debug)]
enum Filter {
    All,
    /// Those with names that start with one of these.
    Modules(BTreeSet<String>),
}

impl Default for Filter {
    fn default() -> Filter {
        Filter::Modules(BTreeSet::new())
    }
}

impl Filter {
    fn add(&mut self, module: Option<String>) {
        match (&mut *self, module) {
            (Filter::Modules(modules), Some(module)) => {
                modules.insert(module);
            }
            (_, None) => *self = Filter::All,
            (Filter::All, _) => {}
        }
    }
}

/// The test program that has the tests of this file, as arguments of cargo, and the module; `None` for that is the
/// whole program.
fn tested(package: &Package, root: &Path, path: &str) -> Option<(Vec<String>, Option<String>)> {
    let file = root.join(path);
    let inside = file.strip_prefix(package.directory()).ok()?;
    let place = inside.components().next()?.as_os_str().to_str()?;
    if place == "examples" || place == "benches" || path.ends_with(".md") {
        return None;
    }
    let kind = if place == "tests" { "test" } else { "lib" };
    // The program with the nearest root file above.
    let candidates = package.targets.iter().filter(|target| target.kind.iter().any(|k| k == kind));
    let nearest = candidates
        .filter(|target| {
            target.src_path == file || target.src_path.parent().is_some_and(|above| file.starts_with(above))
        })
        .max_by_key(|target| (target.src_path == file, target.src_path.components().count()));
    let Some(target) = nearest else {
        // `Cargo.toml`, or a program without a library.
        return Some((vec!["--lib".into(), "--bins".into(), "--tests".into()], None));
    };
    let arguments = if kind == "test" { vec!["--test".into(), target.name.clone()] } else { vec!["--lib".into()] };
    if target.src_path == file {
        return Some((arguments, None));
    }
    let module = file.strip_prefix(target.src_path.parent()?).ok()?.components().next()?;
    let module = module.as_os_str().to_str()?.trim_end_matches(".rs");
    Some((arguments, Some(format!("{module}::"))))
}

/// The workspaces beside that of the root that have changed files, by their folders.
fn apart(changed: &BTreeSet<String>) -> BTreeSet<String> {
    const APART: [&str; 8] =
        ["lab/", "models/", "object-store/", "objects-common/", "origin/", "python/", "fuzz/", "examples/"];
    let found = |path: &String| APART.into_iter().find(|folder| path.starts_with(folder));
    changed.iter().filter_map(found).map(|folder| folder.trim_end_matches('/').to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::Target;

    fn package(name: &str, targets: &[(&str, &str, &str)]) -> Package {
        let directory = Path::new("/r/crates").join(name);
        let targets = targets.iter().map(|(kind, name, path)| Target {
            name: (*name).to_owned(),
            kind: vec![(*kind).to_owned()],
            src_path: directory.join(path),
        });
        Package {
            name: name.to_owned(),
            manifest_path: directory.join("Cargo.toml"),
            targets: targets.collect(),
            ..Package::default()
        }
    }

    /// The commands for these files.
    fn commands(changed: &[&str]) -> Vec<String> {
        let library = package(
            "iomill",
            &[
                ("lib", "iomill", "src/lib.rs"),
                ("test", "main", "tests/main.rs"),
                ("test", "features", "tests/features/main.rs"),
            ],
        );
        let tool = package("iomill-tool", &[("bin", "tool", "src/main.rs")]);
        let changed = changed.iter().map(|path| (*path).to_owned()).collect();
        steps(&[&library, &tool], Path::new("/r"), &changed).iter().map(shown).collect()
    }

    #[test]
    fn rooms_are_tested_by_themselves() {
        assert_eq!(
            commands(&["crates/iomill/src/cache/policy/tests.rs", "crates/iomill/src/error.rs"]),
            [
                "rustfmt --check --edition 2024 crates/iomill/src/cache/policy/tests.rs crates/iomill/src/error.rs",
                "cargo clippy --quiet --package iomill --all-targets -- -D warnings",
                "cargo test --quiet --package iomill --lib -- cache:: error::",
            ]
        );
    }

    #[test]
    fn what_all_rooms_share_needs_all_tests() {
        let found = commands(&["crates/iomill/src/cache/mod.rs", "crates/iomill/src/lib.rs"]);
        assert_eq!(found.last().unwrap(), "cargo test --quiet --package iomill --lib");
        let found = commands(&["crates/iomill/Cargo.toml"]);
        assert_eq!(found.last().unwrap(), "cargo test --quiet --package iomill --lib --bins --tests");
        let found = commands(&["crates/iomill-tool/src/main.rs"]);
        assert_eq!(found.last().unwrap(), "cargo test --quiet --package iomill-tool --lib --bins --tests");
    }

    #[test]
    fn tests_of_calls_are_found_in_their_program() {
        let found = commands(&["crates/iomill/tests/kill/job.rs", "crates/iomill/tests/features/traces.rs"]);
        assert_eq!(
            found[2..],
            [
                "cargo test --quiet --package iomill --test features -- traces::",
                "cargo test --quiet --package iomill --test main -- kill::"
            ]
        );
        let found = commands(&["crates/iomill/tests/main.rs"]);
        assert_eq!(found.last().unwrap(), "cargo test --quiet --package iomill --test main");
    }

    #[test]
    fn what_has_no_tests_needs_none() {
        assert_eq!(commands(&["docs/format.md"]), [""; 0]);
        assert_eq!(commands(&[".ci/common", ".ci/run"]), ["bash .ci/test"]);
        assert_eq!(commands(&["crates/iomill/examples/quickstart.rs"]).len(), 2);
        assert_eq!(commands(&["python/src/lib.rs"]), ["rustfmt --check --edition 2024 python/src/lib.rs"]);
        let changed = ["python/src/lib.rs", "lab/a", "lab/b", "docs/a.md"].map(str::to_owned).into();
        assert_eq!(apart(&changed), ["lab", "python"].map(str::to_owned).into());
    }
}

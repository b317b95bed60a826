//! Commands in `sh` blocks must parse: those of `iomill` by the command itself (`iomill --parse-only`), those of cargo
//! by what the workspace has. Other commands are not checked.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Deserialize;

use super::page::Page;
use crate::tidy::finding::Finding;
use crate::tidy::lab;
use crate::tidy::modules::examples_apart;
use crate::workspace::{Result, Workspace, cargo};

/// Subcommands of cargo itself and of rustup's components that our pages use.
const BUILT_IN: [&str; 13] =
    ["add", "bench", "build", "check", "clippy", "doc", "fmt", "install", "metadata", "publish", "run", "test", "tree"];
/// Subcommands of `cargo xtask`, as its `main` has them.
const XTASK: [&str; 5] = ["forbidden", "tidy", "budget", "public", "quick"];
/// Subcommands that are installed separately. Their arguments are not checked.
const INSTALLED: [&str; 3] = ["audit", "deny", "fuzz"];

/// The names that commands may use.
#[derive(Debug, Default)]
pub(super) struct Known {
    root: PathBuf,
    packages: BTreeSet<String>,
    /// Such as `example x` and `bin x`.
    targets: BTreeSet<String>,
    aliases: BTreeSet<String>,
}

#[derive(Default, Deserialize)]
struct CargoConfig {
    #[serde(default)]
    alias: std::collections::BTreeMap<String, toml::Value>,
}

impl Known {
    pub(super) fn load(workspace: &Workspace) -> Result<Known> {
        let mut known = Known { root: workspace.root.clone(), ..Known::default() };
        for package in workspace.members() {
            known.packages.insert(package.name.clone());
            for target in &package.targets {
                known.targets.extend(target.kind.iter().map(|kind| format!("{kind} {}", target.name)));
            }
        }
        known.targets.extend(examples_apart(workspace)?.into_iter().map(|name| format!("example {name}")));
        for one in lab::crates(workspace)? {
            known.targets.extend(one.bins.into_iter().map(|name| format!("bin {name}")));
            known.targets.extend(one.roots.iter().filter_map(|root| Some(format!("example {}", example(root)?))));
            known.packages.insert(one.package);
        }
        let config = workspace.root.join(".cargo/config.toml");
        if config.exists() {
            let config: CargoConfig = toml::from_str(&fs::read_to_string(config)?)?;
            known.aliases.extend(config.alias.into_keys());
        }
        Ok(known)
    }
}

pub(super) fn check(pages: &[Page], known: &Known) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    let mut iomill = Vec::new();
    for page in pages {
        for (line, text) in &page.shell {
            let words = match words(text) {
                Ok(words) => words,
                Err(what) => {
                    findings.push(Finding::new(&page.path, *line, what));
                    continue;
                }
            };
            match words.first().map(String::as_str) {
                Some("iomill") => iomill.push((page, *line, words)),
                Some("cargo") => {
                    let objection = cargo_objection(&words[1..], known);
                    findings.extend(objection.map(|what| Finding::new(&page.path, *line, what)));
                    // A directory with packages of its own has other programs.
                    if !known.root.join(&page.path).with_file_name("Cargo.toml").exists() || !page.path.contains('/') {
                        iomill.extend(run_by_cargo(&words).map(|words| (page, *line, words)));
                    }
                }
                _ => {}
            }
        }
    }
    let Some((first, line, _)) = iomill.first() else { return Ok(findings) };
    let binary = build()?;
    // A binary that accepts every argument would prove nothing.
    if parse_only(&binary, &["no-such-command".into()])?.is_none() {
        let what = "cannot be checked: `iomill --parse-only no-such-command` succeeds";
        findings.push(Finding::new(&first.path, *line, what));
        return Ok(findings);
    }
    for (page, line, words) in &iomill {
        let objection = parse_only(&binary, &words[1..])?;
        findings.extend(objection.map(|what| Finding::new(&page.path, *line, what)));
    }
    Ok(findings)
}

/// The words of a line's first command, without `$ `, assignments of variables, `sudo` and redirections.
fn words(line: &str) -> std::result::Result<Vec<String>, String> {
    let line = line.trim();
    let line = line.strip_prefix("$ ").unwrap_or(line);
    if !["iomill ", "cargo "].iter().any(|command| line.contains(command)) {
        return Ok(Vec::new());
    }
    let words = split(line).ok_or_else(|| format!("`{line}`: a quote is open"))?;
    let is_variable = |word: &String| word.split_once('=').is_some_and(|(name, _)| is_name(name)) || word == "sudo";
    let ends = |word: &String| matches!(word.as_str(), "|" | "||" | "&&" | "&" | ";" | ">" | ">>" | "<" | "2>");
    Ok(words.into_iter().skip_while(is_variable).take_while(|word| !ends(word)).collect())
}

/// The words of a line as a shell takes them: quotes, escapes, and a comment at the end. `None` if a quote is open.
fn split(line: &str) -> Option<Vec<String>> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    let mut chars = line.chars();
    while let Some(char) = chars.next() {
        match (quote, char) {
            (Some(end), char) if char == end => quote = None,
            (Some('"') | None, '\\') => word.get_or_insert_default().push(chars.next()?),
            (Some(_), char) => word.get_or_insert_default().push(char),
            (None, '\'' | '"') => {
                quote = Some(char);
                word.get_or_insert_default();
            }
            (None, '#') if word.is_none() => break,
            (None, char) if char.is_whitespace() => words.extend(word.take()),
            (None, char) => word.get_or_insert_default().push(char),
        }
    }
    words.extend(word);
    quote.is_none().then_some(words)
}

/// The name of the example that has this root file.
fn example(root: &str) -> Option<&str> {
    let (directory, file) = root.rsplit_once('/')?;
    file.strip_suffix(".rs").filter(|_| directory.ends_with("/examples"))
}

/// The command that `cargo run -- ARGUMENTS` runs, where that is `iomill`, the only program of the workspace's default
/// members.
fn run_by_cargo(words: &[String]) -> Option<Vec<String>> {
    let end = words.iter().position(|word| word == "--")?;
    let ours: Vec<&str> = words[1..end].iter().map(String::as_str).collect();
    let names_another = |word: &&str| ["-p", "--package", "--bin", "--example", "--manifest-path"].contains(word);
    let runs_it = ours.first() == Some(&"run") && !ours.iter().any(names_another);
    runs_it.then(|| std::iter::once("iomill".to_owned()).chain(words[end + 1..].iter().cloned()).collect())
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
}

/// The objection to a command of cargo, if there is one.
fn cargo_objection(words: &[String], known: &Known) -> Option<String> {
    let words: Vec<&str> = words.iter().map(String::as_str).skip_while(|word| word.starts_with('+')).collect();
    let Some((&subcommand, rest)) = words.split_first() else { return Some("cargo without a subcommand".into()) };
    if subcommand == "xtask" {
        let command = rest.first().copied().unwrap_or_default();
        return (!XTASK.contains(&command)).then(|| format!("`cargo xtask {command}`: no such command"));
    }
    if INSTALLED.contains(&subcommand) {
        return None;
    }
    if !BUILT_IN.contains(&subcommand) && !known.aliases.contains(subcommand) {
        return Some(format!("`cargo {subcommand}`: neither a subcommand that our pages use nor an alias"));
    }
    let ours = || rest.iter().take_while(|word| **word != "--");
    let mut named: Vec<(&str, &str)> = Vec::new();
    for (word, next) in ours().zip(ours().skip(1).chain([&""])) {
        named.push(word.split_once('=').unwrap_or((word, next)));
    }
    // In `cargo add iomill` the package is the first argument.
    if let ("add" | "install", Some(first)) = (subcommand, rest.first().filter(|first| !first.starts_with('-'))) {
        named.push(("--package", first));
    }
    let missing = named.into_iter().find(|(option, value)| match *option {
        "-p" | "--package" => !known.packages.contains(*value),
        "--example" | "--bin" | "--test" | "--bench" => !known.targets.contains(&format!("{} {value}", &option[2..])),
        "--path" | "--manifest-path" => !known.root.join(value).exists(),
        _ => false,
    });
    missing.map(|(option, value)| format!("`cargo {subcommand}`: there is no `{option} {value}` here"))
}

/// Builds the command and returns its path.
fn build() -> Result<PathBuf> {
    #[derive(Deserialize)]
    struct Message {
        executable: Option<PathBuf>,
    }
    let arguments = ["build", "--quiet", "--package", "iomill-cli", "--bin", "iomill", "--message-format", "json"];
    let output = cargo().args(arguments).stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        return Err("the command `iomill` does not build".into());
    }
    let messages = serde_json::Deserializer::from_slice(&output.stdout).into_iter::<Message>();
    let executables = messages.filter_map(|message| message.ok()?.executable);
    executables.last().ok_or_else(|| "cargo named no executable for `iomill`".into())
}

/// The command's objection to these arguments, if it has one.
fn parse_only(binary: &Path, arguments: &[String]) -> Result<Option<String>> {
    let output = Command::new(binary).arg("--parse-only").args(arguments).stdin(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(None);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.lines().next().unwrap_or("refused");
    Ok(Some(format!("`iomill {}`: {said}", arguments.join(" "))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known() -> Known {
        let set = |names: &[&str]| names.iter().map(|name| name.to_string()).collect();
        Known {
            root: env!("CARGO_MANIFEST_DIR").into(),
            packages: set(&["iomill", "iomill-cli"]),
            targets: set(&["example quickstart", "bin iomill"]),
            aliases: set(&["xtask"]),
        }
    }

    fn objection(line: &str) -> Option<String> {
        cargo_objection(&words(line).unwrap()[1..], &known())
    }

    #[test]
    fn bites() {
        for line in [
            "cargo frobnicate",
            "cargo test -p iomil",
            "cargo test --package=iomil",
            "cargo run --release --example slowstart -- --flag",
            "cargo install --path crates/nowhere",
            "cargo install iomil",
            "cargo xtask untidy",
            "RUST_LOG=x cargo build --bin iomil",
        ] {
            assert!(objection(line).is_some(), "{line}");
        }
        assert!(words("iomill ls 'a").is_err());
    }

    #[test]
    fn allows() {
        for line in [
            "cargo test --workspace",
            "cargo +nightly test -p iomill -- -p nothing",
            "$ RUSTFLAGS=\"--cfg loom\" cargo test -p iomill --lib --release loom_ | cat -p x",
            "cargo run --example quickstart -- /mnt/a",
            "cargo install --path src --bin iomill",
            "cargo add iomill --features x",
            "cargo xtask tidy",
            "cargo fuzz run label",
        ] {
            assert_eq!(objection(line), None, "{line}");
        }
    }

    #[test]
    fn finds_what_cargo_runs() {
        let found = |line| run_by_cargo(&words(line).unwrap()).map(|words| words.join(" "));
        assert_eq!(found("cargo run --release -- bench quick").as_deref(), Some("iomill bench quick"));
        assert_eq!(found("cargo run --release"), None);
        assert_eq!(found("cargo run -p iomill --example kv -- /mnt/a"), None);
        assert_eq!(found("cargo test -- --nocapture"), None);
    }

    #[test]
    fn finds_the_command() {
        let found = |line| words(line).unwrap().join(" ");
        assert_eq!(found("sudo A_B=1 iomill put 'a b' x > log # note"), "iomill put a b x");
        assert_eq!(found("iomill ls --json | jq ."), "iomill ls --json");
        assert_eq!(found("echo it's"), "");
    }

    #[test]
    fn asks_the_command() {
        assert!(parse_only(Path::new("/bin/false"), &["ls".into()]).unwrap().unwrap().contains("iomill ls"));
        assert_eq!(parse_only(Path::new("/bin/true"), &["ls".into()]).unwrap(), None);
        assert!(parse_only(Path::new("/nowhere"), &[]).is_err());
    }
}

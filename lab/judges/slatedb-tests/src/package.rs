//! The published source of a package: its place, a copy of it, and the copy's manifest.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value as Json;
use toml::{Table, Value};

/// The source of a package by the lock file, and the target directory.
pub fn find(name: &str, workspace: &Path) -> Result<(PathBuf, PathBuf)> {
    let mut command = Command::new("cargo");
    command.args(["metadata", "--format-version", "1", "--locked"]).current_dir(workspace);
    let output = command.stderr(Stdio::inherit()).output().context("cannot run cargo metadata")?;
    ensure!(output.status.success(), "cargo metadata ended with {}; its messages are above", output.status);
    let metadata: Json = serde_json::from_slice(&output.stdout).context("cargo metadata printed no JSON")?;
    let packages = metadata["packages"].as_array().context("cargo metadata lists no packages")?;
    let manifest = packages.iter().find(|package| package["name"] == name).and_then(|p| p["manifest_path"].as_str());
    let manifest = manifest.with_context(|| format!("the lock file has no package {name}"))?;
    let source = Path::new(manifest).parent().context("a manifest is in no directory")?;
    let target = metadata["target_directory"].as_str().context("cargo metadata has no target directory")?;
    Ok((source.to_owned(), PathBuf::from(target)))
}

/// Makes `to` a copy of a directory. Files that differ are removed first, so that no old file is built.
pub fn copy(from: &Path, to: &Path) -> Result<()> {
    if to.exists() {
        fs::remove_dir_all(to).with_context(|| format!("cannot remove the old {}", to.display()))?;
    }
    copy_all(from, to)
}

fn copy_all(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("cannot make {}", to.display()))?;
    for entry in fs::read_dir(from).with_context(|| format!("cannot list {}", from.display()))? {
        let entry = entry.with_context(|| format!("cannot list {}", from.display()))?;
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if entry.file_type().with_context(|| format!("cannot look at {}", from.display()))?.is_dir() {
            copy_all(&from, &to)?;
        } else {
            fs::copy(&from, &to).with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
        }
    }
    Ok(())
}

/// Changes a manifest: another crate replaces `object_store`, and the package is a workspace of its own. Benchmarks are
/// removed with their dependencies.
pub fn replace_store(manifest: &Path, by: &Path) -> Result<()> {
    let text = fs::read_to_string(manifest).with_context(|| format!("cannot read {}", manifest.display()))?;
    let changed = with_store(&text, by).with_context(|| format!("cannot change {}", manifest.display()))?;
    fs::write(manifest, changed).with_context(|| format!("cannot write {}", manifest.display()))
}

fn with_store(manifest: &str, by: &Path) -> Result<String> {
    let mut manifest: Table = toml::from_str(manifest)?;
    let by = by.to_str().context("the path of judge-in-memory is not UTF-8")?;
    let store = Table::from_iter([("package", "judge-in-memory"), ("path", by)].map(|(k, v)| (k.to_owned(), v.into())));
    let dependencies = manifest.get_mut("dependencies").and_then(Value::as_table_mut);
    let old = dependencies.and_then(|table| table.insert("object_store".to_owned(), store.into()));
    ensure!(old.is_some(), "the package does not depend on object_store");
    for (name, within) in [("dev-dependencies", &["criterion"][..]), ("target", &[]), ("bench", &[])] {
        match manifest.get_mut(name).and_then(Value::as_table_mut) {
            Some(table) if !within.is_empty() => within.iter().for_each(|dependency| _ = table.remove(*dependency)),
            _ => _ = manifest.remove(name),
        }
    }
    let quick = Table::from_iter([("debug", false), ("incremental", false)].map(|(k, v)| (k.to_owned(), v.into())));
    manifest.insert("workspace".to_owned(), Table::new().into());
    manifest.insert("profile".to_owned(), Table::from_iter([("dev".to_owned(), Value::Table(quick))]).into());
    Ok(toml::to_string(&manifest)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_store_is_replaced() {
        let manifest = "[package]\nname = \"db\"\n[dependencies.object_store]\nversion = \"0.14\"\n[dependencies.log]\nversion = \"0.4\"\n\
                        [dev-dependencies.criterion]\nversion = \"0.5\"\n[dev-dependencies.insta]\nversion = \"1\"\n[[bench]]\nname = \"b\"\n";
        let changed: Table = toml::from_str(&with_store(manifest, Path::new("/x/in-memory")).unwrap()).unwrap();
        let store = changed["dependencies"]["object_store"].as_table().unwrap();
        assert_eq!(
            (store["package"].as_str(), store["path"].as_str()),
            (Some("judge-in-memory"), Some("/x/in-memory"))
        );
        assert!(store.get("version").is_none() && changed["dependencies"]["log"]["version"].as_str() == Some("0.4"));
        assert!(changed["dev-dependencies"].get("criterion").is_none() && changed.get("bench").is_none());
        assert_eq!(changed["dev-dependencies"]["insta"]["version"].as_str(), Some("1"));
        let without = with_store("[dependencies]\n", Path::new("/x")).unwrap_err();
        assert!(without.to_string().contains("object_store"), "{without}");
    }
}

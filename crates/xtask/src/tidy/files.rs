//! The repository's files. Non-goals: what is in them.

use std::fs;
use std::path::Path;

use crate::workspace::{Result, Workspace};

/// The text of a file of the repository.
pub fn read(workspace: &Workspace, path: &str) -> Result<String> {
    Ok(fs::read_to_string(workspace.root.join(path)).map_err(|e| format!("{path}: {e}"))?)
}

/// The repository's files of one kind, relative to its root, in order. Hidden directories, and those that git ignores,
/// such as build directories, are left out.
pub fn files(workspace: &Workspace, extension: &str) -> Result<Vec<String>> {
    let mut files = Vec::new();
    collect(workspace, &workspace.root, extension, &mut files)?;
    files.sort();
    Ok(files)
}

fn collect(workspace: &Workspace, directory: &Path, extension: &str, files: &mut Vec<String>) -> Result<()> {
    let ignored = ["target", "corpus", "artifacts", "node_modules"];
    for entry in fs::read_dir(directory).map_err(|e| format!("{}: {e}", directory.display()))? {
        let entry = entry?;
        let (name, kind, path) = (entry.file_name(), entry.file_type()?, entry.path());
        let name = name.to_string_lossy();
        if name.starts_with('.') {
            continue;
        }
        if kind.is_dir() && !ignored.contains(&&*name) {
            collect(workspace, &path, extension, files)?;
        } else if kind.is_file() && path.extension().is_some_and(|found| found == extension) {
            files.push(workspace.relative(&path));
        }
    }
    Ok(())
}

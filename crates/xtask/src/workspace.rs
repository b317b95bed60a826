//! What cargo reports about the workspace: its packages, their targets, and the licences of all dependencies.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

/// A result of a check. An error means that the check itself failed.
pub type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The part of `cargo metadata` that the checks use.
#[derive(Debug, Default, Deserialize)]
pub struct Workspace {
    /// The root directory of the repository.
    #[serde(rename = "workspace_root")]
    pub root: PathBuf,
    /// The build directory of cargo.
    #[serde(rename = "target_directory")]
    pub target: PathBuf,
    /// Members and all they depend on.
    pub packages: Vec<Package>,
    /// The packages of this repository.
    workspace_members: Vec<String>,
}

/// A package.
#[derive(Debug, Default, Deserialize)]
pub struct Package {
    /// How cargo names it.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// The path of its `Cargo.toml`.
    pub manifest_path: PathBuf,
    /// An SPDX expression, in most packages.
    pub license: Option<String>,
    /// The programs and libraries that it builds.
    pub targets: Vec<Target>,
}

/// A program or library that cargo builds.
#[derive(Debug, Default, Deserialize)]
pub struct Target {
    /// Its name.
    pub name: String,
    /// `lib`, `bin`, `example`, `test`, `bench`, `custom-build`.
    pub kind: Vec<String>,
    /// Path of its root file.
    pub src_path: PathBuf,
}

impl Package {
    /// Where its files are.
    pub fn directory(&self) -> &Path {
        self.manifest_path.parent().unwrap_or(&self.manifest_path)
    }
}

impl Workspace {
    /// Asks cargo.
    pub fn load() -> Result<Workspace> {
        let output = cargo().args(["metadata", "--format-version", "1"]).output()?;
        if !output.status.success() {
            return Err(format!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr)).into());
        }
        Ok(serde_json::from_slice(&output.stdout)?)
    }

    /// The packages of this repository.
    pub fn members(&self) -> impl Iterator<Item = &Package> {
        self.packages.iter().filter(|p| self.workspace_members.contains(&p.id))
    }

    /// The dependencies of the packages of this repository.
    pub fn dependencies(&self) -> impl Iterator<Item = &Package> {
        self.packages.iter().filter(|p| !self.workspace_members.contains(&p.id))
    }

    /// A path as the findings show it: relative to the root, with `/`.
    pub fn relative(&self, path: &Path) -> String {
        path.strip_prefix(&self.root).unwrap_or(path).to_string_lossy().replace('\\', "/")
    }
}

/// The cargo that runs this program, or else the one on the path.
pub fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

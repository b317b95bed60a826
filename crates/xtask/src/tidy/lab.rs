//! The crates of the workspace `lab`. Cargo finds their targets by their places.

use std::fs;
use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::workspace::{Result, Workspace};

const APART: &str = "lab";

#[derive(Deserialize)]
struct Whole {
    workspace: Members,
}

#[derive(Deserialize)]
struct Members {
    members: Vec<String>,
}

#[derive(Deserialize)]
struct Manifest {
    package: Package,
}

#[derive(Deserialize)]
struct Package {
    name: String,
}

/// A crate there.
pub struct Crate {
    pub package: String,
    /// The names of its programs that are not the package's.
    pub bins: Vec<String>,
    /// Files where cargo looks for root files. Some may not be there.
    pub roots: Vec<String>,
}

/// All crates there.
pub fn crates(workspace: &Workspace) -> Result<Vec<Crate>> {
    let whole: Whole = read(&workspace.root.join(APART).join("Cargo.toml"))?;
    whole.workspace.members.iter().map(|member| member_crate(workspace, &format!("{APART}/{member}"))).collect()
}

fn member_crate(workspace: &Workspace, at: &str) -> Result<Crate> {
    let manifest: Manifest = read(&workspace.root.join(at).join("Cargo.toml"))?;
    let mut roots = ["src/lib.rs", "src/main.rs"].map(|root| format!("{at}/{root}")).to_vec();
    let mut bins = Vec::new();
    for place in ["src/bin", "tests", "examples", "benches"] {
        let directory = workspace.root.join(at).join(place);
        if !directory.exists() {
            continue;
        }
        for entry in fs::read_dir(&directory).map_err(|e| format!("{}: {e}", directory.display()))? {
            let Ok(name) = entry?.file_name().into_string() else { continue };
            let Some(stem) = name.strip_suffix(".rs") else { continue };
            if place == "src/bin" {
                bins.push(stem.to_owned());
            }
            roots.push(format!("{at}/{place}/{name}"));
        }
    }
    Ok(Crate { package: manifest.package.name, bins, roots })
}

fn read<T: DeserializeOwned>(file: &Path) -> Result<T> {
    let text = fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?;
    Ok(toml::from_str(&text).map_err(|e| format!("{}: {e}", file.display()))?)
}

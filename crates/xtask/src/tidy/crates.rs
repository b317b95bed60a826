//! How many packages a build takes on this machine. Each package costs time in the first build of iomill.
//!
//! `Cargo.lock` lists more: those are for other systems and for models, and the README's commands do not build them.

use std::collections::BTreeSet;

use super::Finding;
use crate::workspace::{Result, cargo};

/// The limit, with the packages of this repository. It may only shrink.
const PACKAGES_MAX: usize = 110;

/// Counts the packages of `cargo test --workspace`. `cargo run --release` needs fewer.
pub fn check() -> Result<Vec<Finding>> {
    let arguments = ["tree", "--workspace", "--edges", "normal,build,dev", "--prefix", "none", "--format", "{p}"];
    let output = cargo().args(arguments).output()?;
    if !output.status.success() {
        return Err(format!("cargo tree: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    let packages = packages(&String::from_utf8_lossy(&output.stdout)).len();
    Ok(objection(packages, PACKAGES_MAX).map(|what| Finding::new("Cargo.toml", 0, what)).into_iter().collect())
}

/// Name and version of each package in a tree, which may show a package several times.
fn packages(tree: &str) -> BTreeSet<(&str, &str)> {
    tree.lines().filter_map(|line| line.split_once(' ')).map(|(name, rest)| (name, version(rest))).collect()
}

fn version(rest: &str) -> &str {
    rest.split(' ').next().unwrap_or(rest)
}

fn objection(packages: usize, max: usize) -> Option<String> {
    let advice = "remove one, or move the code that needs it into a workspace of its own, like `rivals`";
    (packages > max).then(|| format!("a build takes {packages} packages, of at most {max}: {advice}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bites() {
        assert!(objection(111, 110).is_some_and(|what| what.contains("111 packages")));
        assert_eq!(objection(110, 110), None);
    }

    #[test]
    fn a_package_counts_once_and_each_version_of_it() {
        let tree = "iomill v0.1.0 (/x/iomill)\nsyn v2.0.1\nsyn v2.0.1 (*)\n\niomill v0.1.0 (/x/iomill) (*)\nsyn v3.0.0\n\
                    serde_derive v1.0.0 (proc-macro)\nserde_derive v1.0.0 (proc-macro) (*)\n";
        let names: Vec<&str> = packages(tree).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["iomill", "serde_derive", "syn", "syn"]);
    }

    #[test]
    fn this_workspace_is_counted() {
        assert_eq!(check().unwrap(), []);
    }
}

//! How many packages the lock file of the root has. Each costs time in the first build of iomill, or trust.

use super::files::read;
use super::finding::Finding;
use crate::workspace::{Result, Workspace};

/// The limit, with the packages of this repository. It may only shrink.
const PACKAGES_MAX: usize = 60;

/// Counts the packages of `Cargo.lock`.
pub fn check(workspace: &Workspace) -> Result<Vec<Finding>> {
    let packages = packages(&read(workspace, "Cargo.lock")?);
    Ok(objection(packages, PACKAGES_MAX).map(|what| Finding::new("Cargo.lock", 0, what)).into_iter().collect())
}

fn packages(lock: &str) -> usize {
    lock.lines().filter(|line| *line == "[[package]]").count()
}

fn objection(packages: usize, max: usize) -> Option<String> {
    let advice = "remove one, or move the code that needs it into a workspace of its own, like `lab`";
    (packages > max).then(|| format!("{packages} packages, of at most {max}: {advice}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bites() {
        let lock = "version = 4\n\n[[package]]\nname = \"a\"\n\n[[package]]\nname = \"b\"\n";
        assert_eq!(packages(lock), 2);
        assert!(objection(2, 1).is_some_and(|what| what.contains("2 packages")));
        assert_eq!(objection(2, 2), None);
    }
}

//! The remains of a merge: git's marks of two versions.

use super::files::{files, read};
use super::finding::Finding;
use crate::workspace::{Result, Workspace};

/// The endings of the files that people write.
const ENDINGS: [&str; 7] = ["md", "rs", "py", "pyi", "toml", "sh", "c"];

pub fn check(workspace: &Workspace) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for ending in ENDINGS {
        for path in files(workspace, ending)? {
            findings.extend(remains(&path, &read(workspace, &path)?));
        }
    }
    Ok(findings)
}

fn remains(path: &str, text: &str) -> Vec<Finding> {
    let is_mark = |line: &str| line.starts_with("<<<<<<< ") || line.starts_with(">>>>>>> ");
    let marks = text.lines().enumerate().filter(|(_, line)| is_mark(line));
    marks.map(|(index, _)| Finding::new(path, index + 1, "the remains of a merge: choose a version")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_marks_are_found() {
        let text = format!("a\n{} HEAD\nb\n=======\nc\n{} main\n<<<<<<<\n", "<".repeat(7), ">".repeat(7));
        let found: Vec<String> = remains("p.md", &text).iter().map(ToString::to_string).collect();
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("p.md:2: ") && found[1].starts_with("p.md:6: "), "{found:?}");
        assert!(remains("p.md", "a << b\nTitle\n=======\n").is_empty());
    }
}

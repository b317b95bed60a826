//! Tests that change their process: they run again in a child.

use std::path::PathBuf;

use crate::alone;

const VALUE: &str = "IOMILL_TEST_CHILD";
const MARK: &str = "IOMILL_TEST_CHILD_MARK";

/// Runs the test of this name, below `calls`, again in a child for each value. Returns the value in the child, and
/// `None` in the parent. The child reports its success by `ended_well`.
#[track_caller]
pub fn in_child(test: &str, values: &[&str]) -> Option<String> {
    if let Ok(value) = std::env::var(VALUE) {
        return Some(value);
    }
    let dir = tempfile::tempdir().unwrap();
    for (number, value) in values.iter().enumerate() {
        let mark = dir.path().join(number.to_string());
        let mut command = alone::command(&format!("calls::{test}"));
        let command = command.env(VALUE, value).env(MARK, &mark);
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        let said = std::fs::read_to_string(&mark);
        assert!(output.status.success() && said.is_ok(), "{value}: {}: {text}", output.status);
        print!("{}", said.unwrap());
    }
    None
}

/// Reports the child's success, with a result for the parent.
pub fn ended_well(says: &str) {
    std::fs::write(PathBuf::from(std::env::var_os(MARK).unwrap()), says).unwrap();
}

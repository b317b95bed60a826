//! Tests that change their process: they run again in a child.

use std::path::PathBuf;

use crate::alone;

const VALUE: &str = "IOMILL_TEST_CHILD";
const MARK: &str = "IOMILL_TEST_CHILD_MARK";

/// Runs the test of this name, below `calls`, again in a child for each value. In the child it returns the value, and in the parent `None`. The child says by
/// `ended_well` that it has done what it was to do.
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

/// The child has done all, and has this to say.
pub fn ended_well(says: &str) {
    std::fs::write(PathBuf::from(std::env::var_os(MARK).unwrap()), says).unwrap();
}

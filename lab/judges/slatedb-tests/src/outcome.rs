//! The output of a run of tests, by test.

use std::collections::BTreeMap;

/// The text after the name of a test that takes long.
const SLOW: &str = " has been running for over 60 seconds";

/// Names of tests, with the output of those that failed.
#[derive(Debug, Default)]
pub struct Outcome {
    tests: BTreeMap<String, Option<String>>,
    /// Tests that take long.
    slow: Vec<String>,
}

impl Outcome {
    /// Reads the standard output of `cargo test`. A test of one file and a test of another that have the same name
    /// count as one: it fails if one of them does.
    pub fn read(text: &str) -> Outcome {
        let mut outcome = Outcome::default();
        let mut said: Option<&str> = None;
        for line in text.lines() {
            if let Some(name) = line.strip_prefix("test ").and_then(|rest| rest.strip_suffix(SLOW)) {
                outcome.slow.push(name.to_owned());
            } else if let Some((name, result)) = line.strip_prefix("test ").and_then(|rest| rest.rsplit_once(" ... ")) {
                let name = name.trim_end_matches(" - should panic");
                match result {
                    "ok" => _ = outcome.tests.entry(name.to_owned()).or_insert(None),
                    "FAILED" => _ = outcome.tests.insert(name.to_owned(), Some(String::new())),
                    _ => {}
                }
            } else if let Some(name) = line.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" stdout ----")) {
                said = Some(name);
            } else if line == "failures:" {
                said = None;
            } else if let Some(Some(text)) = said.and_then(|name| outcome.tests.get_mut(name)) {
                text.push_str(line);
                text.push('\n');
            }
        }
        outcome
    }

    /// The number of tests that ran.
    pub fn ran(&self) -> usize {
        self.tests.len()
    }

    /// The names of the tests that failed.
    pub fn failed(&self) -> Vec<String> {
        self.tests.iter().filter(|(_, said)| said.is_some()).map(|(name, _)| name.clone()).collect()
    }

    /// The tests that take long and have not ended.
    pub fn running(&self) -> Vec<&str> {
        self.slow.iter().map(String::as_str).filter(|name| !self.tests.contains_key(*name)).collect()
    }

    /// The output of a failed test.
    pub fn said(&self, name: &str) -> &str {
        self.tests.get(name).and_then(Option::as_deref).unwrap_or_default()
    }

    /// Adds the results of a later run.
    pub fn replace(&mut self, later: Outcome) {
        self.tests.extend(later.tests);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: &str = "
running 4 tests
test a::passes ... ok
test a::panics - should panic ... ok
test a::waits ... ignored
test a::fails has been running for over 60 seconds
test a::hangs has been running for over 60 seconds
test a::fails ... FAILED

failures:

---- a::fails stdout ----
thread 'a::fails' panicked: 1 is not 2

failures:
    a::fails

test result: FAILED. 2 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s
test other_file ... ok
";

    #[test]
    fn a_run_is_read() {
        let outcome = Outcome::read(RUN);
        assert_eq!((outcome.ran(), outcome.failed()), (4, vec!["a::fails".to_owned()]));
        assert_eq!(outcome.running(), ["a::hangs"]);
        assert!(outcome.said("a::fails").contains("1 is not 2") && outcome.said("a::passes").is_empty());
    }

    #[test]
    fn a_later_run_counts() {
        let mut outcome = Outcome::read(RUN);
        outcome.replace(Outcome::read("test a::fails ... ok\n"));
        assert_eq!((outcome.ran(), outcome.failed().len()), (4, 0));
    }
}

//! `judge-slatedb-tests`: SlateDB's own tests on iomill.
//!
//! SlateDB's tests make a store of the type `InMemory` of `object_store`. This program copies the published crate to
//! the target directory. In the copy's manifest the crate `judge-in-memory` replaces `object_store`: its `InMemory` is
//! an array of iomill. No source is changed. Then it runs all tests. A failure is an error, except for the tests in
//! `expected.toml`, each with a reason there. Nothing of SlateDB is in this repository.

mod group;
mod outcome;
mod package;

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use outcome::Outcome;

/// Features of SlateDB that its tests need, without those of remote stores.
const FEATURES: &str = "compaction_filters,foyer,moka,test-util,wal_disable";

/// If fewer tests than this run, some are left out.
const TESTS_MIN: usize = 2_000;

/// The time of the build and the tests together, on a busy machine.
const LONGEST: Duration = Duration::from_secs(50 * 60);

/// Further runs of a test that failed.
const CHANCES: usize = 2;

/// Tests that fail, by name, each with its reason.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Expected {
    /// Tests that cannot pass. Remove one that passes from the list.
    fail: BTreeMap<String, String>,
    /// Tests with a result that depends on the machine's speed.
    may_fail: BTreeMap<String, String>,
}

impl Expected {
    /// The reason for which a test may fail.
    fn reason(&self, name: &str) -> Option<&str> {
        self.fail.get(name).or_else(|| self.may_fail.get(name)).map(String::as_str)
    }
}

fn main() -> Result<()> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let expected = expected(&here.join("expected.toml"))?;
    let (source, target) = package::find("slatedb", here)?;
    let copy = target.join("slatedb-tests");
    package::copy(&source, &copy)?;
    package::replace_store(&copy.join("Cargo.toml"), &here.join("in-memory"))?;
    let lock = here.join("../../Cargo.lock");
    std::fs::copy(&lock, copy.join("Cargo.lock")).with_context(|| format!("cannot copy {}", lock.display()))?;

    let mut outcome = test(&copy, &target, &[])?;
    // A test that waits for other threads may fail on a busy machine. It has more chances, by itself.
    for _ in 0..CHANCES {
        let mut failed = outcome.failed();
        failed.retain(|name| expected.reason(name).is_none());
        if failed.is_empty() {
            break;
        }
        println!("runs these failed tests again, one at a time: {failed:?}");
        outcome.replace(test(&copy, &target, &failed)?);
    }
    judge(&outcome, &expected)
}

fn expected(path: &Path) -> Result<Expected> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    toml::from_str(&text).with_context(|| format!("{} does not hold two tables of names and reasons", path.display()))
}

/// Runs tests of the copy: all, or only the named ones.
fn test(copy: &Path, target: &Path, only: &[String]) -> Result<Outcome> {
    let log = target.join("slatedb-tests.log");
    let output = File::create(&log).with_context(|| format!("cannot make {}", log.display()))?;
    let mut command = Command::new("cargo");
    command.args(["test", "--no-fail-fast", "--lib", "--tests", "--no-default-features", "--features", FEATURES]);
    command.current_dir(copy).env("CARGO_TARGET_DIR", target).env("RUST_LOG", "off").stdout(output);
    if !only.is_empty() {
        command.args(["--", "--exact", "--test-threads=1"]).args(only);
    }
    let ended = group::run(&mut command, LONGEST)?;
    let text = std::fs::read(&log).with_context(|| format!("cannot read {}", log.display()))?;
    let outcome = Outcome::read(&String::from_utf8_lossy(&text));
    let Some(status) = ended else {
        let slow = outcome.running();
        bail!(
            "the tests have not ended within {} minutes; these still run: {slow:?}; see {}",
            LONGEST.as_secs() / 60,
            log.display()
        )
    };
    ensure!(outcome.ran() > 0, "no test ran: cargo ended with {status}; its messages are above");
    Ok(outcome)
}

/// Fails if a test failed unexpectedly. The names and messages of these tests are the last lines.
fn judge(outcome: &Outcome, expected: &Expected) -> Result<()> {
    let (known, unknown): (Vec<_>, Vec<_>) =
        outcome.failed().into_iter().partition(|name| expected.reason(name).is_some());
    for name in &known {
        println!("{name} fails as expected: {}", expected.reason(name).unwrap_or_default());
    }
    let passed = outcome.ran() - known.len() - unknown.len();
    println!("{} tests of SlateDB ran on iomill, {passed} passed", outcome.ran());
    for name in &unknown {
        println!("{name} FAILED:\n{}", outcome.said(name));
    }
    ensure!(unknown.is_empty(), "these tests of SlateDB failed on iomill; their messages are above: {unknown:?}");
    ensure!(
        outcome.ran() >= TESTS_MIN,
        "only {} tests ran, of at least {TESTS_MIN}; see what cargo left out",
        outcome.ran()
    );
    let passing: Vec<_> = expected.fail.keys().filter(|name| !known.contains(name)).collect();
    ensure!(passing.is_empty(), "these tests pass or are gone; remove them from expected.toml: {passing:?}");
    Ok(())
}

//! `judge-slatedb-tests`: SlateDB's own tests on iomill.
//!
//! SlateDB's tests make a store of the type `InMemory` of `object_store`. This program copies the published crate to
//! the target directory, and in the copy's manifest the crate `judge-in-memory` takes the place of `object_store`: its
//! `InMemory` is an array of iomill. No source is changed. Then it runs all tests, and judges: a failure is an error,
//! but for those in `expected.toml`, each of which has a reason there. Nothing of SlateDB is in this repository.

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

/// Fewer tests than this mean that something is left out.
const TESTS_MIN: usize = 2_000;

/// The build and the tests together, on a busy machine.
const LONGEST: Duration = Duration::from_secs(50 * 60);

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
    let failed = outcome.failed();
    if !failed.is_empty() {
        // A test that waits for other threads may fail on a busy machine. It has one more chance, by itself.
        println!("runs {} failed tests again, one at a time", failed.len());
        outcome.replace(test(&copy, &target, &failed)?);
    }
    judge(&outcome, &expected)
}

/// Names of tests that cannot pass, with the reason.
fn expected(path: &Path) -> Result<BTreeMap<String, String>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    toml::from_str(&text).with_context(|| format!("{} is not a table of names and reasons", path.display()))
}

/// Runs tests of the copy: all, or only those that are named.
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

fn judge(outcome: &Outcome, expected: &BTreeMap<String, String>) -> Result<()> {
    let failed = outcome.failed();
    for name in &failed {
        match expected.get(name) {
            Some(reason) => println!("{name} fails as expected: {reason}"),
            None => println!("{name} FAILED:\n{}", outcome.said(name)),
        }
    }
    println!("{} tests of SlateDB ran on iomill, {} passed", outcome.ran(), outcome.ran() - failed.len());
    let unexpected = failed.iter().filter(|name| !expected.contains_key(*name)).count();
    ensure!(unexpected == 0, "{unexpected} tests failed; their messages are above");
    ensure!(
        outcome.ran() >= TESTS_MIN,
        "only {} tests ran, of at least {TESTS_MIN}; see what cargo left out",
        outcome.ran()
    );
    let passing: Vec<_> = expected.keys().filter(|name| !failed.contains(*name)).collect();
    ensure!(passing.is_empty(), "these tests pass or are gone; remove them from expected.toml: {passing:?}");
    Ok(())
}

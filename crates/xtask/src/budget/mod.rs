//! Budgets of instructions: callgrind counts the cost of an operation, and the check compares it with the recorded cost.
//!
//! Goals: a count that does not depend on the machine's load, so that a change which costs more is seen at once.
//! Non-goals: time, and the work of the kernel.

mod counts;
mod recorded;

use std::process::Command;

use crate::workspace::{Result, Workspace, cargo};
use recorded::{Recorded, Row};

/// The operations, by their names in the program and in the file of budgets.
const KINDS: [&str; 5] = ["hit", "batched-hit", "future-hit", "miss", "create"];

/// An operation is over its budget if it exceeds that by more than this share.
const TOLERANCE: f64 = 0.005;

/// How the count of an operation compares with its budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Within,
    Over,
    /// So far below the budget that the budget should be lowered.
    Loose,
    /// There is no budget for it.
    New,
}

fn verdict(counted: f64, budget: Option<f64>) -> Verdict {
    match budget {
        None => Verdict::New,
        Some(budget) if counted > budget * (1.0 + TOLERANCE) => Verdict::Over,
        Some(budget) if counted < budget * (1.0 - TOLERANCE) => Verdict::Loose,
        Some(_) => Verdict::Within,
    }
}

/// Counts and compares, or records the counts. Prints a table. Returns `false` if an operation is over its budget.
pub fn check(workspace: &Workspace, records: bool) -> Result<bool> {
    if Command::new("valgrind").arg("--version").output().is_err() {
        println!("skipped: valgrind is not installed (`apt-get install valgrind`)");
        return Ok(true);
    }
    let versions = versions()?;
    let mut recorded = Recorded::load(workspace)?;
    if recorded.row(&versions).is_none() && !records {
        println!(
            "skipped: {} has no budgets for rustc {versions}; `cargo xtask budget --record` adds them",
            recorded::PATH
        );
        return Ok(true);
    }
    let counted = match counts::count(workspace, &KINDS)? {
        Ok(counted) => counted,
        Err(why) => {
            println!("skipped: {why}");
            return Ok(true);
        }
    };
    let before = recorded.row(&versions).cloned();
    println!("instructions of an operation, built as a release by rustc {versions}\n");
    let is_good = table(&counted, before.as_ref());
    if records {
        recorded.put(versions, counted);
        recorded.save(workspace)?;
        println!("\nwritten to {}", recorded::PATH);
        return Ok(true);
    }
    Ok(is_good)
}

/// Prints the table. Returns whether every operation is within its budget.
fn table(counted: &Row, budgets: Option<&Row>) -> bool {
    let mut is_good = true;
    println!("{:<12} {:>12} {:>12} {:>8}", "operation", "counted", "budget", "");
    for (kind, &counted) in counted {
        let budget = budgets.and_then(|row| row.get(kind)).copied();
        let (shown, change) = match budget {
            Some(budget) => (format!("{budget:.1}"), format!("{:+.2}%", 100.0 * (counted / budget - 1.0))),
            None => ("-".to_owned(), "-".to_owned()),
        };
        let verdict = verdict(counted, budget);
        let said = match verdict {
            Verdict::Within | Verdict::New => "",
            Verdict::Over => "  OVER its budget",
            Verdict::Loose => "  below: lower the budget (cargo xtask budget --record)",
        };
        println!("{kind:<12} {counted:>12.1} {shown:>12} {change:>8}{said}");
        is_good &= verdict != Verdict::Over;
    }
    is_good
}

/// The versions that counts depend on: the compiler's, and the C library's, because copies and allocations count too. Such as
/// `1.88.0, glibc 2.36`.
fn versions() -> Result<String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let text = String::from_utf8(Command::new(rustc).arg("--version").output()?.stdout)?;
    let compiler = text.split_whitespace().nth(1).ok_or_else(|| format!("`rustc --version` said {text:?}"))?;
    let library = String::from_utf8(Command::new("getconf").arg("GNU_LIBC_VERSION").output()?.stdout)?;
    Ok(format!("{compiler}, {}", library.trim()))
}

/// Builds the program and returns its path.
fn build() -> Result<std::path::PathBuf> {
    let arguments = ["build", "--quiet", "--release", "--package", "iomill", "--bench", "instructions"];
    let output = cargo().args(arguments).arg("--message-format=json").output()?;
    if !output.status.success() {
        return Err(format!("the program did not build: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    counts::executable(&String::from_utf8(output.stdout)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_a_percent_is_allowed_both_ways() {
        for (counted, expected) in [
            (100.0, Verdict::Within),
            (100.4, Verdict::Within),
            (99.6, Verdict::Within),
            (100.6, Verdict::Over),
            (99.4, Verdict::Loose),
        ] {
            assert_eq!(verdict(counted, Some(100.0)), expected, "{counted}");
        }
        assert_eq!(verdict(1.0, None), Verdict::New);
    }

    #[test]
    fn only_what_is_over_fails() {
        let row = |hit: f64, miss: f64| Row::from([("hit".to_owned(), hit), ("miss".to_owned(), miss)]);
        assert!(table(&row(100.0, 50.0), Some(&row(100.0, 100.0))));
        assert!(table(&row(100.0, 50.0), None));
        assert!(!table(&row(101.0, 50.0), Some(&row(100.0, 100.0))));
    }

    #[test]
    fn the_compiler_and_the_library_have_versions() {
        let versions = versions().unwrap();
        let (compiler, library) = versions.split_once(", ").unwrap();
        assert!(compiler.split('.').count() >= 3 && compiler.starts_with(|c: char| c.is_ascii_digit()), "{versions}");
        assert!(library.contains('.'), "{versions}");
    }
}

//! Budgets of instructions: callgrind counts the cost of an operation, and the check compares it with the recorded
//! cost.
//!
//! Goals: a count that does not depend on the machine's load, so that a change which costs more is seen at once.
//! Non-goals: time, and the work of the kernel.

mod counts;
mod recorded;

use std::process::Command;

use crate::workspace::{Result, Workspace};
use recorded::{Recorded, Row};

/// The operations, by their names in the program and in the file of budgets.
const KINDS: [&str; 11] =
    ["copy", "hit", "pin", "batched-hit", "row-hit", "future-hit", "miss", "create", "put", "append", "append-sync"];

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
    let Some(valgrind) = valgrind() else {
        println!("skipped: valgrind is not installed (`apt-get install valgrind`)");
        return Ok(true);
    };
    let versions = versions(&valgrind)?;
    let mut recorded = Recorded::load(workspace)?;
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
    if before.is_none() {
        // `.ci/run` recognizes a skipped check by these words.
        println!(
            "skipped: counted, no budget: {} has none for rustc {versions}; `cargo xtask budget --record` adds it",
            recorded::PATH
        );
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

/// Valgrind's version, such as `3.19.0`; `None` if it is not installed.
fn valgrind() -> Option<String> {
    let text = said("valgrind", &["--version"]).ok()?;
    Some(text.trim().trim_start_matches("valgrind-").to_owned())
}

/// What counts depend on, on this machine.
fn versions(valgrind: &str) -> Result<String> {
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    versions_of(&said(&rustc, &["--version"])?, &said("getconf", &["GNU_LIBC_VERSION"])?, valgrind)
}

/// What counts depend on, such as `1.88.0, glibc 2.36, valgrind 3.19.0, x86_64 with AVX2`: the compiler and the C
/// library, by what they say; the latter for its copies; valgrind; and the processor, for which the copies are chosen.
fn versions_of(rustc: &str, library: &str, valgrind: &str) -> Result<String> {
    let compiler = rustc.split_whitespace().nth(1).ok_or_else(|| format!("`rustc --version` said {rustc:?}"))?;
    let processor = if has_avx2() { "with AVX2" } else { "without AVX2" };
    Ok(format!("{compiler}, {}, valgrind {valgrind}, {} {processor}", library.trim(), std::env::consts::ARCH))
}

#[cfg(target_arch = "x86_64")]
fn has_avx2() -> bool {
    std::arch::is_x86_feature_detected!("avx2")
}

#[cfg(not(target_arch = "x86_64"))]
fn has_avx2() -> bool {
    false
}

/// The output of a program. An error names the program.
fn said(program: &str, arguments: &[&str]) -> Result<String> {
    let command = format!("`{program} {}`", arguments.join(" "));
    let output = Command::new(program).args(arguments).output().map_err(|e| format!("{command} did not start: {e}"))?;
    if !output.status.success() {
        return Err(format!("{command}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim()).into());
    }
    Ok(String::from_utf8(output.stdout).map_err(|e| format!("{command}: {e}"))?)
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
    fn a_budget_is_for_all_that_changes_counts() {
        let versions = versions_of("rustc 1.95.0 (59807616e 2026-04-14)\n", "glibc 2.36\n", "3.19.0").unwrap();
        let avx2 = if has_avx2() { "with AVX2" } else { "without AVX2" };
        assert_eq!(versions, format!("1.95.0, glibc 2.36, valgrind 3.19.0, {} {avx2}", std::env::consts::ARCH));
        assert!(versions_of("", "glibc 2.36", "3.19.0").is_err());
    }

    #[test]
    fn an_error_names_the_program() {
        let error = said("iomill-no-such-program", &["--version"]).unwrap_err().to_string();
        assert!(error.starts_with("`iomill-no-such-program --version` did not start: "), "{error}");
        let error = said("sh", &["-c", "echo it >&2; exit 3"]).unwrap_err().to_string();
        assert!(error.contains("`sh -c ") && error.contains("exit status: 3: it"), "{error}");
    }
}

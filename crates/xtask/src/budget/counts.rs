//! Counts instructions with callgrind.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use serde::Deserialize;

use super::recorded::Row;
use crate::workspace::{Result, Workspace, cargo};

/// Instructions are counted in this function and in everything that it calls.
const COUNTED: &str = "*counted_work*";

/// glibc chooses between `rep stosb` and a loop by the model and the caches of the processor, and callgrind counts each
/// step of either. Fixed thresholds give one count on all processors.
const TUNABLES: &str = "glibc.cpu.x86_rep_stosb_threshold=0x100000:glibc.cpu.x86_rep_movsb_threshold=0x100000:\
                        glibc.cpu.x86_non_temporal_threshold=0x1000000";

/// Builds the program and returns its path.
fn build() -> Result<PathBuf> {
    let arguments = ["build", "--quiet", "--release", "--package", "iomill", "--bench", "instructions"];
    let output = cargo().args(arguments).arg("--message-format=json").output()?;
    if !output.status.success() {
        return Err(format!("the program did not build: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    executable(&String::from_utf8(output.stdout)?)
}

/// Counts each kind of operation, or returns why none can be counted here.
pub fn count(workspace: &Workspace, kinds: &[&str]) -> Result<std::result::Result<Row, String>> {
    let program = build()?;
    // Beside the build: direct I/O works differently in memory.
    let dir = workspace.target.join(format!("instructions-{}", std::process::id()));
    fs::create_dir_all(&dir)?;
    let counted = count_in(&program, &dir, kinds);
    fs::remove_dir_all(&dir)?;
    counted
}

fn count_in(program: &PathBuf, dir: &PathBuf, kinds: &[&str]) -> Result<std::result::Result<Row, String>> {
    let mut row = Row::new();
    for &kind in kinds {
        let output = Command::new("valgrind")
            .env("GLIBC_TUNABLES", TUNABLES)
            .args(["--tool=callgrind", "--collect-atstart=no", "--callgrind-out-file=/dev/null"])
            .arg(format!("--toggle-collect={COUNTED}"))
            .arg(program)
            .arg(kind)
            .arg(dir)
            .output()?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        if let Some(why) = said.trim().strip_prefix("unavailable ") {
            return Ok(Err(why.to_owned()));
        }
        row.insert(kind.to_owned(), per_operation(kind, &output, &said)?);
    }
    Ok(Ok(row))
}

fn per_operation(kind: &str, output: &Output, said: &str) -> Result<f64> {
    let told = String::from_utf8_lossy(&output.stderr);
    let failed = || format!("{kind} under callgrind, {}: {said}{told}", output.status);
    if !output.status.success() {
        return Err(failed().into());
    }
    let operations: f64 = said.trim().strip_prefix("operations ").ok_or_else(failed)?.parse()?;
    match collected(&told) {
        Some(instructions) if instructions > 0.0 => Ok(instructions / operations),
        _ => Err(format!("callgrind counted nothing in {COUNTED}: {}", failed()).into()),
    }
}

/// The sum that callgrind prints at the end: `==4711== Collected : 123456`.
fn collected(text: &str) -> Option<f64> {
    let line = text.lines().find(|line| line.contains("Collected :"))?;
    line.rsplit(':').next()?.trim().parse().ok()
}

#[derive(Deserialize)]
struct Message {
    executable: Option<PathBuf>,
}

/// The path of the program in cargo's messages.
pub fn executable(messages: &str) -> Result<PathBuf> {
    let each = messages.lines().filter_map(|line| serde_json::from_str::<Message>(line).ok());
    each.filter_map(|message| message.executable).next_back().ok_or_else(|| "cargo built no program".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    fn output(status: i32, told: &str) -> Output {
        Output { status: ExitStatus::from_raw(status), stdout: Vec::new(), stderr: told.as_bytes().to_vec() }
    }

    #[test]
    fn counts_are_by_operation() {
        let told = "==9== Events    : Ir\n==9== Collected : 123400\n==9== \n";
        assert_eq!(per_operation("hit", &output(0, told), "operations 100\n").unwrap(), 1234.0);
    }

    #[test]
    fn what_was_not_counted_is_an_error() {
        let none = "==9== Collected : 0\n";
        for (status, told, said, expected) in [
            (0, none, "operations 100\n", "counted nothing"),
            (0, "", "operations 100\n", "counted nothing"),
            (0, "==9== Collected : 5\n", "", "hit under callgrind"),
            (256, "a panic", "operations 1\n", "a panic"),
        ] {
            let error = per_operation("hit", &output(status, told), said).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn the_program_is_found_in_what_cargo_says() {
        let messages = "{\"reason\":\"compiler-artifact\",\"executable\":null}\n\
                        {\"reason\":\"compiler-artifact\",\"executable\":\"/t/instructions-1\"}\n\
                        {\"reason\":\"build-finished\",\"success\":true}\n";
        assert_eq!(executable(messages).unwrap(), PathBuf::from("/t/instructions-1"));
        assert!(executable("{\"reason\":\"build-finished\"}").is_err());
    }
}

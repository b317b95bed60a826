//! Checks inside the guests of `.ci/qemu`. Each boot runs one set: `guest_check=NAME` on the kernel's command line
//! names it.
//!
//! Goals: compare the command's answers with the kernel's own; each check prints what it found. Non-goals: speed, which
//! an emulated machine does not show. On other machines it does nothing, because it changes settings freely.

mod machine;
mod memory;

use std::error::Error;
use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> ExitCode {
    let line = fs::read_to_string("/proc/cmdline").unwrap_or_default();
    let boot = line.split_whitespace().find_map(|word| word.strip_prefix("guest_check="));
    let Some(boot) = boot.filter(|_| Path::new("/init").exists() && std::process::id() != 1) else {
        println!("this is not a guest of .ci/qemu: nothing to do");
        return ExitCode::SUCCESS;
    };
    let result = match boot {
        "machine" => machine::checks(),
        "memory" => memory::checks(),
        "memory-after" => memory::checks_after_power_failed(),
        other => Err(format!("there are no checks named {other}").into()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("FAILED: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Fails with this text unless the condition holds.
pub fn check(is_so: bool, what: impl Into<String>) -> Result<()> {
    if is_so { Ok(()) } else { Err(what.into().into()) }
}

/// A file as text, without white space at its end.
pub fn read(path: impl AsRef<Path>) -> Result<String> {
    let path = path.as_ref();
    Ok(fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?.trim_end().to_owned())
}

/// Writes a file.
pub fn write(path: impl AsRef<Path>, value: &str) -> Result<()> {
    let path = path.as_ref();
    Ok(fs::write(path, value).map_err(|e| format!("{value} to {}: {e}", path.display()))?)
}

/// Runs the command. Returns its exit code, standard output and standard error.
pub fn iomill(arguments: &[&str]) -> Result<(i32, String, String)> {
    run("iomill", arguments)
}

/// Runs the command, which must succeed.
pub fn iomill_good(arguments: &[&str]) -> Result<String> {
    good("iomill", arguments)
}

/// Runs the lab's command, which must succeed.
pub fn lab_good(arguments: &[&str]) -> Result<String> {
    good("iomill-lab", arguments)
}

fn run(program: &str, arguments: &[&str]) -> Result<(i32, String, String)> {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output()?;
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ok((output.status.code().unwrap_or(-1), text(output.stdout), text(output.stderr)))
}

fn good(program: &str, arguments: &[&str]) -> Result<String> {
    let (code, out, err) = run(program, arguments)?;
    check(code == 0, format!("{program} {} ended with {code}: {err}", arguments.join(" ")))?;
    Ok(out)
}

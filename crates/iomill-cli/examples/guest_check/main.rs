//! Checks inside the guests of `.ci/qemu`. Each boot runs one set: `guest_check=NAME` on the kernel's command line
//! names it.
//!
//! Goals: compare the command's answers with the kernel's own; each check prints what it found. Non-goals: speed, which
//! an emulated machine does not show. On other machines it does nothing, because it changes settings freely.

mod faults;
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
        "faults" => faults::checks(),
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

/// Numbers that are the same in each run. The number is not 0.
pub struct Random(pub u64);

impl Random {
    /// Those of a list of numbers: other numbers for each list.
    pub fn of(numbers: &[u64]) -> Random {
        let mix = |seed: u64, number: &u64| {
            let mixed = (seed ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            (mixed ^ (mixed >> 29)).wrapping_add(1)
        };
        Random(numbers.iter().fold(1, mix) | 1 << 63)
    }

    /// A number below this one.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }

    /// As many bytes.
    pub fn bytes(&mut self, len: u64) -> Vec<u8> {
        (0..len.div_ceil(8)).flat_map(|_| self.below(u64::MAX).to_le_bytes()).take(len as usize).collect()
    }

    /// As many bytes, with eight of their own for each sector: quicker than `bytes`, which an emulated machine feels.
    pub fn sectors(&mut self, len: u64) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len.next_multiple_of(512) as usize);
        (0..len.div_ceil(512)).for_each(|_| bytes.extend(self.below(u64::MAX).to_le_bytes().repeat(64)));
        bytes.truncate(len as usize);
        bytes
    }
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

//! A command with all processes that it starts, within a bound of time.

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process_group};

const PAUSE: Duration = Duration::from_millis(200);

/// Runs a command. If it takes longer than `longest`, kills it and all processes that it has started, and returns
/// `None`.
pub fn run(command: &mut Command, longest: Duration) -> Result<Option<ExitStatus>> {
    let mut child = command.process_group(0).spawn().with_context(|| format!("cannot run {command:?}"))?;
    let begun = Instant::now();
    while begun.elapsed() < longest {
        if let Some(status) = child.try_wait().context("cannot wait for a process")? {
            return Ok(Some(status));
        }
        thread::sleep(PAUSE);
    }
    kill_process_group(Pid::from_child(&child), Signal::KILL).context("cannot end a process group")?;
    child.wait().context("cannot wait for a process")?;
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_has_its_time_and_no_more() {
        let status = run(Command::new("sh").args(["-c", "exit 3"]), Duration::from_secs(60)).unwrap();
        assert_eq!(status.and_then(|status| status.code()), Some(3));
        let begun = Instant::now();
        let ended = run(Command::new("sh").args(["-c", "sleep 600 & sleep 600"]), Duration::from_millis(300)).unwrap();
        assert!(ended.is_none() && begun.elapsed() < Duration::from_secs(60));
    }
}

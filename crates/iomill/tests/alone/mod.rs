//! Tests that need a process to themselves: they change its limits, its root or its signals, fork it, or measure the
//! whole process.
//!
//! Such a test begins with `alone!()`. The process of all tests then starts itself again for this one test, and waits
//! for it. The new process has no descriptors but the first three. An alarm ends it if it hangs.

use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Stdio};

/// The variable that names the test for which a process was started.
const CHILD: &str = "IOMILL_TEST_ALONE";

/// A test that takes longer hangs. Its own waits end sooner, with a better message.
const PATIENCE_SECONDS: u32 = 3600;

/// Lets a test go on only in a process that runs nothing else.
macro_rules! alone {
    () => {
        if $crate::alone::ran_elsewhere(crate::alone::test_name!()) {
            return;
        }
    };
}

/// The name of the enclosing function, as `--exact` takes it.
macro_rules! test_name {
    () => {{
        fn here() {}
        let path = std::any::type_name_of_val(&here);
        let (_, name) = path.split_once("::").expect("the crate's name comes first");
        name.strip_suffix("::here").expect("a function within the test")
    }};
}

pub(crate) use test_name;

/// Runs the test in a process of its own. Does nothing in that process, and returns whether the test ran elsewhere.
pub fn ran_elsewhere(test: &str) -> bool {
    let is_here = is_child(test);
    if !is_here {
        run(command(test));
    }
    !is_here
}

/// Whether this process was started for the test.
pub fn is_child(test: &str) -> bool {
    std::env::var_os(CHILD).is_some_and(|name| name == test)
}

/// Starts this program for one test. The caller may add variables and limits.
pub fn command(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]).env(CHILD, test).stdin(Stdio::null());
    // SAFETY: the calls between fork and exec allocate nothing and take no locks.
    unsafe {
        command.pre_exec(|| {
            libc::signal(libc::SIGALRM, libc::SIG_DFL);
            libc::alarm(PATIENCE_SECONDS);
            // Closes the descriptors that the process of all tests has inherited. Kernels without the call keep them
            // open.
            libc::syscall(libc::SYS_close_range, 3_u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC);
            Ok(())
        });
    }
    command
}

/// Bounds the address space of the child, in bytes.
pub fn limit_addresses(command: &mut Command, bytes: u64) {
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
    // SAFETY: one system call between fork and exec. It reads a structure that the closure owns.
    unsafe {
        command.pre_exec(move || match libc::setrlimit(libc::RLIMIT_AS, &raw const limit) {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        });
    }
}

/// Runs the child to its end, prints its output, and fails if its test fails. Returns the output.
pub fn run(mut command: Command) -> String {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    print!("{said}");
    let signal = output.status.signal().map_or("", |signal| if signal == libc::SIGALRM { ": it hung" } else { "" });
    assert!(output.status.success(), "the test in its own process: {}{signal}", output.status);
    assert!(said.contains("test result: ok. 1 passed"), "the process ran another number of tests");
    said
}

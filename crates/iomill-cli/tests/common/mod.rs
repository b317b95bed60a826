//! A directory with an array in it, and ways to run a command on it: [`crate::PROGRAM`], which is iomill's or the
//! lab's.

// Each test program uses only a part of this.
#![allow(dead_code)]

use std::ffi::OsStr;
use std::fs;
use std::io::{self, ErrorKind, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

/// How a command ended.
pub struct Ended {
    pub code: i32,
    pub out: Vec<u8>,
    pub err: String,
}

impl Ended {
    pub fn of(output: Output) -> Ended {
        let err = String::from_utf8(output.stderr).unwrap();
        assert!(!err.contains("panicked"), "{err}");
        Ended { code: output.status.code().unwrap_or(-1), out: output.stdout, err }
    }

    /// Checks that the command succeeded and printed only notes on the standard error.
    #[track_caller]
    pub fn good(self) -> Ended {
        assert_eq!(self.code, 0, "{}", self.err);
        assert!(self.err.lines().all(|line| line.starts_with("note: ")), "{}", self.err);
        self
    }

    /// Checks that the command failed with this code, and that its message has all these words.
    #[track_caller]
    pub fn failed(self, code: i32, words: &[&str]) -> Ended {
        // `--nocapture` shows the messages as a user sees them.
        eprint!("{}", self.err);
        assert_eq!(self.code, code, "{}", self.err);
        for word in words {
            assert!(self.err.contains(word), "{word:?} is not in: {}", self.err);
        }
        self
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.out).unwrap()
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.out).unwrap_or_else(|error| panic!("{error}: {:?} {}", self.text(), self.err))
    }
}

/// A directory with drives.
pub struct Site {
    root: TempDir,
    drives: usize,
}

impl Site {
    /// A site with an array of this number of drives.
    pub fn new(drives: usize) -> Site {
        Site::bare(drives).init()
    }

    /// The same in memory, if there is such a file system; for tests that count work per time.
    pub fn in_memory(drives: usize) -> Site {
        let root = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")));
        Site::bare_in(root.unwrap(), drives).init()
    }

    fn init(self) -> Site {
        iomill::Array::create(self.drives()).unwrap().close().unwrap();
        self
    }

    /// A site with directories that are no drives yet.
    pub fn bare(drives: usize) -> Site {
        Site::bare_in(tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap(), drives)
    }

    fn bare_in(root: TempDir, drives: usize) -> Site {
        let site = Site { root, drives };
        (0..drives).for_each(|drive| fs::create_dir(site.drive(drive)).unwrap());
        site
    }

    pub fn root(&self) -> &Path {
        self.root.path()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.root().join(name)
    }

    pub fn drive(&self, index: usize) -> PathBuf {
        self.path(&format!("ssd{index}"))
    }

    pub fn drives(&self) -> impl Iterator<Item = PathBuf> {
        (0..self.drives).map(|index| self.drive(index))
    }

    /// Makes a file beside the drives.
    pub fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, bytes).unwrap();
        path
    }

    /// The command, on the array, in the root directory.
    pub fn command<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Command {
        let mut command = self.bare_command(["-a"]);
        command.arg(self.drive(0)).args(arguments);
        command
    }

    pub fn bare_command<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(crate::PROGRAM);
        alone(listening(&mut command, &[]))
            .args(arguments)
            .env_remove("IOMILL_ARRAY")
            .current_dir(self.root())
            .stdin(Stdio::null());
        command
    }

    pub fn run<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Ended {
        Ended::of(self.command(arguments).output().unwrap())
    }

    pub fn run_bare<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Ended {
        Ended::of(self.bare_command(arguments).output().unwrap())
    }

    /// Runs the command. Also returns its peak memory, in bytes.
    #[expect(clippy::zombie_processes, reason = "wait4 waits for it")]
    pub fn peak<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> (Ended, u64) {
        let out = self.path("peak.out");
        let mut command = self.command(arguments);
        let child = command.stdout(fs::File::create(&out).unwrap()).spawn().unwrap();
        let (mut status, mut usage) = (0, std::mem::MaybeUninit::<libc::rusage>::zeroed());
        // SAFETY: the child is ours and is waited for only here. Both places live until the call returns.
        let waited = unsafe { libc::wait4(child.id() as i32, &raw mut status, 0, usage.as_mut_ptr()) };
        assert_eq!((waited, status), (child.id() as i32, 0));
        // SAFETY: the call has filled it, and zeroes are a valid value, too.
        let kib = unsafe { usage.assume_init() }.ru_maxrss;
        (Ended { code: 0, out: fs::read(out).unwrap(), err: String::new() }, kib as u64 * 1024)
    }

    /// Runs the command with bytes on the standard input.
    pub fn feed<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>, bytes: &[u8]) -> Ended {
        let mut command = self.command(arguments);
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let fed = child.stdin.take().unwrap().write_all(bytes);
        // A command that fails early does not read its input.
        assert!(fed.is_ok() || fed.is_err_and(|error| error.kind() == ErrorKind::BrokenPipe));
        Ended::of(child.wait_with_output().unwrap())
    }

    /// The content of a file of the array.
    #[track_caller]
    pub fn content(&self, name: &str) -> Vec<u8> {
        self.run(["get", name, "-"]).good().out
    }

    /// The names in the array.
    #[track_caller]
    pub fn names(&self) -> Vec<String> {
        self.run(["ls"]).good().text().lines().map(str::to_owned).collect()
    }

    /// `stat --json` of one file.
    #[track_caller]
    pub fn stat(&self, name: &str) -> Value {
        self.run(["stat", name, "--json"]).good().json()["files"][0].clone()
    }

    /// The path of the first segment of a drive's log.
    pub fn segment(&self, drive: usize) -> PathBuf {
        self.drive(drive).join("iomill/log/0000000000000001.segment")
    }
}

/// Bytes that do not repeat after a block's length.
pub fn bytes(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64 ^ len as u64;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Gives the command the default answer to the signals that end it, except for those in `ignored`. `nohup` and a
/// shell's background jobs ignore some signals. The tests may run under these, and children inherit it.
pub fn listening<'a>(command: &'a mut Command, ignored: &[libc::c_int]) -> &'a mut Command {
    let signals = [libc::SIGINT, libc::SIGHUP, libc::SIGTERM];
    let answers = signals.map(|signal| (signal, if ignored.contains(&signal) { libc::SIG_IGN } else { libc::SIG_DFL }));
    let set = move || {
        for (signal, answer) in answers {
            // SAFETY: both answers are constants of the C library, not functions.
            if unsafe { libc::signal(signal, answer) } == libc::SIG_ERR {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    };
    // SAFETY: between fork and exec the function makes system calls only, allocates nothing and takes no lock.
    unsafe { command.pre_exec(set) }
}

/// Lets the command inherit no descriptor but the standard streams. A shell, `make -j` or a CI runner may leave others
/// open, and limits count them.
pub fn alone(command: &mut Command) -> &mut Command {
    let close = || {
        // SAFETY: the call reads no memory of ours. Marked descriptors stay usable until the exec, which closes them.
        match unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    // SAFETY: between fork and exec the function makes one system call, allocates nothing and takes no lock.
    unsafe { command.pre_exec(close) }
}

/// Sends a signal.
pub fn send(child: &Child, signal: libc::c_int) {
    // SAFETY: the call reads none of our memory. The child has not been waited for, so its number is still its own.
    assert_eq!(unsafe { libc::kill(child.id() as i32, signal) }, 0);
}

pub fn is_root() -> bool {
    // SAFETY: the call has no arguments and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// Gives the command a limit.
pub fn limited(command: &mut Command, resource: libc::__rlimit_resource_t, limit: u64) {
    let mut most = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure lives until the call returns.
    assert_eq!(unsafe { libc::getrlimit(resource, &raw mut most) }, 0);
    // Only a privileged process may raise its own limit.
    let limit = limit.min(most.rlim_max);
    let limit = libc::rlimit { rlim_cur: limit, rlim_max: limit };
    // SAFETY: both calls are allowed between fork and exec; `setrlimit` reads a value of the closure's own.
    unsafe {
        command.pre_exec(move || {
            // CAP_IPC_LOCK lifts the limit of locked memory. If the process may not drop it, the process does not have
            // it.
            const IPC_LOCK: libc::c_ulong = 14;
            libc::prctl(libc::PR_CAPBSET_DROP, IPC_LOCK, 0, 0, 0);
            match libc::setrlimit(resource, &raw const limit) {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            }
        })
    };
}

/// Every file of the recorded machine.
pub fn snapshot(directory: &Path) -> Vec<(PathBuf, String)> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        match path.symlink_metadata().unwrap().file_type() {
            kind if kind.is_dir() => files.extend(snapshot(&path)),
            kind if kind.is_file() => files.push((path.clone(), fs::read_to_string(path).unwrap())),
            _ => {}
        }
    }
    files.sort();
    files
}

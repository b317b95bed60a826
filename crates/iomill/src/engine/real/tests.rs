//! Tests of the real platform. Tests that forbid system calls run in their own process.

use std::cell::Cell;
use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::process::Command;

use super::*;

#[path = "../../../tests/forbid/mod.rs"]
mod seccomp;

/// The variable with the errno of forbidden system calls, for a child: this test program, started again.
const CHILD: &str = "IOMILL_TEST_FORBIDDEN";

/// `None` where the build directory is in memory too.
fn direct_file() -> Option<(tempfile::TempDir, File)> {
    // The directory lies beside the test binary, since /tmp may be in memory.
    let dir = tempfile::tempdir_in(std::env::current_exe().unwrap().parent().unwrap()).unwrap();
    let path = dir.path().join("probe");
    fs::write(&path, vec![1u8; 8192]).unwrap();
    if is_in_memory(Handle(File::open(&path).unwrap().as_raw_fd())).unwrap() {
        println!("skipped: the build directory is in memory");
        return None;
    }
    let file = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path).unwrap();
    Some((dir, file))
}

/// Makes this process's `forbidden` system calls fail with `errno` from now on.
fn forbid(forbidden: &[libc::c_long], errno: i32) {
    seccomp::install(&seccomp::filter(forbidden, errno)).unwrap();
}

/// Runs the named test of this file again in a child, in which `CHILD` has `value`. `None` in that child.
fn in_child(test: &str, value: &str) -> Option<()> {
    if std::env::var_os(CHILD).is_some() {
        return None;
    }
    let name = format!("{}::{test}", module_path!().split_once("::").unwrap().1);
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &name, "--nocapture"])
        .env(CHILD, value)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    Some(())
}

#[test]
fn a_forbidden_io_uring_gives_way_to_libaio() {
    for errno in [libc::EPERM, libc::ENOSYS, libc::ENOMEM] {
        if in_child("a_forbidden_io_uring_gives_way_to_libaio", &errno.to_string()).is_some() {
            continue;
        }
        let errno: i32 = std::env::var(CHILD).unwrap().parse().unwrap();
        forbid(&[libc::SYS_io_uring_setup], errno);
        let Some((_dir, file)) = direct_file() else { return };
        let probe = Handle(file.as_raw_fd());
        let Choice { kind, why } = choose(probe, true).unwrap();
        let why = why.unwrap();
        assert_eq!(kind, EngineKind::Aio, "{why}");
        assert!(why.ends_with(", using libaio"), "{why}");
        let reason = match errno {
            libc::EPERM => "io_uring is forbidden here (",
            libc::ENOSYS => "io_uring is not there (",
            _ => "io_uring is refused here (memory lock limit",
        };
        assert!(why.starts_with(reason), "{why}");
        assert_eq!(choose(probe, false).unwrap().kind, EngineKind::Posix, "libaio is no use on buffered files");
        let refusal = grant(EngineKind::Uring, probe, true).unwrap_err();
        assert!(refusal.to_string().starts_with(reason), "{refusal}");
        let config = EngineConfig { capacity: 8, poll: false, hold: Vec::new(), shared: false };
        let refusal = RealPlatform::default().engine(EngineKind::Uring, &config).err().unwrap();
        assert!(refusal.to_string().starts_with(reason), "{refusal}");
        return;
    }
}

#[test]
fn without_both_there_is_posix() {
    if in_child("without_both_there_is_posix", "both").is_some() {
        return;
    }
    forbid(&[libc::SYS_io_uring_setup, libc::SYS_io_setup], libc::EAGAIN);
    let Some((_dir, file)) = direct_file() else { return };
    let Choice { kind, why } = choose(Handle(file.as_raw_fd()), true).unwrap();
    let why = why.unwrap();
    assert_eq!(kind, EngineKind::Posix);
    assert!(why.contains("fs.aio-max-nr") && why.ends_with(", using posix"), "{why}");
    let refusal = grant(EngineKind::Aio, Handle(file.as_raw_fd()), true).unwrap_err();
    assert!(refusal.to_string().contains("fs.aio-max-nr"), "{refusal}");
}

#[test]
fn the_choice_here_can_be_made() {
    let Some((_dir, file)) = direct_file() else { return };
    let probe = Handle(file.as_raw_fd());
    let choice = choose(probe, true).unwrap();
    assert_eq!(choice.why.is_none(), choice.kind == EngineKind::Uring, "{choice:?}");
    let platform = RealPlatform::default();
    let config = EngineConfig { capacity: 8, poll: false, hold: vec![probe], shared: false };
    assert_eq!(platform.engine(choice.kind, &config).unwrap().kind(), choice.kind);
    for kind in [EngineKind::Posix, EngineKind::Null] {
        assert_eq!(grant(kind, probe, true).unwrap().kind, kind);
        assert_eq!(platform.engine(kind, &config).unwrap().kind(), kind);
    }
    assert!(grant(EngineKind::Simulated, probe, true).is_err());
    assert!(platform.engine(EngineKind::Simulated, &config).is_err());
    assert!(choose(Handle(-1), true).is_err());
}

/// The rings that tried out four drives are dropped. A fifth ring meets the limit of locked memory while the kernel
/// still takes the others down.
#[test]
fn locked_memory_that_comes_back_is_waited_for() {
    let error = |errno| io::Error::from_raw_os_error(errno);
    let calls = Cell::new(0);
    let lacks_thrice = || {
        calls.set(calls.get() + 1);
        if calls.get() < 4 { Err(error(libc::ENOMEM)) } else { Ok(calls.get()) }
    };
    assert_eq!(patiently(lacks_thrice).unwrap(), 4);
    for (errno, expected) in [(libc::ENOMEM, RING_PAUSES_MS.len() + 1), (libc::EPERM, 1)] {
        calls.set(0);
        let fails = || -> io::Result<()> {
            calls.set(calls.get() + 1);
            Err(error(errno))
        };
        assert_eq!((patiently(fails).unwrap_err().raw_os_error(), calls.get()), (Some(errno), expected));
    }
}

#[test]
fn files_in_memory_are_for_posix() {
    let Ok(dir) = tempfile::tempdir_in("/dev/shm") else { return };
    let path = dir.path().join("probe");
    fs::write(&path, vec![1u8; 8192]).unwrap();
    let file = File::open(path).unwrap();
    let probe = Handle(file.as_raw_fd());
    if !is_in_memory(probe).unwrap() {
        return;
    }
    for direct in [false, true] {
        let Choice { kind, why } = choose(probe, direct).unwrap();
        assert_eq!(kind, EngineKind::Posix);
        assert_eq!(
            why.as_deref(),
            Some("io_uring would hand every request to worker threads on a file system in memory, using posix")
        );
    }
    let asked = grant(EngineKind::Aio, probe, false).unwrap();
    assert!(asked.why.unwrap().contains("one request at a time"));
}

#[test]
fn a_file_system_without_reads_that_do_not_wait_is_not_for_io_uring() {
    // Files of /proc stand in for network and user file systems, which behave in the same way.
    let file = File::open("/proc/self/maps").unwrap();
    let Choice { kind, why } = choose(Handle(file.as_raw_fd()), false).unwrap();
    assert_eq!(kind, EngineKind::Posix);
    assert!(why.unwrap().contains("worker threads on this file system"));
}

#[test]
fn randomness_fills_everything() {
    let platform = RealPlatform::default();
    let mut bytes = vec![0u8; 1000];
    platform.random(&mut bytes).unwrap();
    assert!(bytes.chunks(100).all(|chunk| chunk.iter().any(|byte| *byte != 0)));
    platform.random(&mut []).unwrap();
    assert!(platform.threads());
    assert!(platform.attach(Path::new("/"), false).is_err());
    assert!(platform.neighbours(Path::new("/nonexistent/x")).contains(&PathBuf::from("/")));
}

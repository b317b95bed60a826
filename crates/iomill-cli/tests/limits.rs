//! Machines with full disks, low limits or forbidden system calls. The command works, or says why it does not.

#[path = "../../iomill/tests/forbid/mod.rs"]
mod forbid;

use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::common::{Ended, Site, bytes, is_root, limited};

#[test]
fn a_disk_that_fills_up_gives_all_back() {
    let site = Site::bare(2);
    let Some(_small) = SmallDisk::mount(&site.drive(1), &site.path("image")) else { return };
    site.run_bare(["init", "ssd0", "ssd1"]).good();
    let data = bytes(1_000_000);
    site.feed(["put", "-", "a"], &data).good();
    let free = || site.run(["info", "--json"]).good().json()["drives"][1]["free_bytes"].as_u64().unwrap();
    let before = free();
    // A source of known length is refused before any write, one of unknown length in the middle.
    let big = bytes(100_000_000);
    site.file("big", &big);
    let words = ["ssd1/iomill/parts/", "No space left", "free space on that drive", "the new data has been removed"];
    site.run(["put", "big", "b"]).failed(1, &words);
    let mut put = site.command(["put", "-", "a", "--force"]);
    let mut cat = Command::new("cat").arg(site.path("big")).stdout(io_pipe(&mut put)).spawn().unwrap();
    Ended::of(put.output().unwrap()).failed(1, &words);
    drop(put);
    cat.wait().unwrap();
    assert_eq!(site.names(), ["a"]);
    assert!(site.content("a") == data);
    assert!(free() >= before, "{} of {before} bytes came back", free());
    site.feed(["put", "-", "c"], &data).good();
}

#[test]
fn a_full_disk_refuses_a_destination_before_it_is_written() {
    let site = Site::new(2);
    fs::create_dir(site.path("small")).unwrap();
    let Some(small) = SmallDisk::mount(&site.path("small"), &site.path("image")) else { return };
    site.feed(["put", "-", "a"], &bytes(100_000_000)).good();
    site.run(["get", "a", "small/a"]).failed(1, &["cannot make room for small/a", "No space left"]);
    let left: Vec<_> = fs::read_dir(&small.0).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["lost+found"]);
}

#[test]
fn a_read_only_mount_is_named() {
    let site = Site::bare(2);
    let Some(small) = SmallDisk::mount(&site.drive(1), &site.path("image")) else { return };
    site.run_bare(["init", "ssd0", "ssd1"]).good();
    site.feed(["put", "-", "a"], b"data").good();
    run_until_free("mount", &["-o", "remount,ro", small.0.to_str().unwrap()]);
    assert_eq!(site.content("a"), b"data");
    site.feed(["put", "-", "b"], b"data").failed(1, &["ssd1", "mounted read-only"]);
    site.run(["rm", "a"]).failed(1, &["ssd1", "mounted read-only"]);
    run_until_free("mount", &["-o", "remount,rw", small.0.to_str().unwrap()]);
    assert_eq!(site.names(), ["a"]);
}

#[test]
fn few_open_files_or_little_locked_memory() {
    let site = Site::new(4);
    let data = bytes(3_000_000);
    site.feed(["put", "-", "a"], &data).good();
    let mut refused = 0;
    // Every small limit, because the test starts with an unknown number of open files, and each step should meet the
    // limit.
    let files: Vec<u64> = (4..=40).chain([64, 256]).collect();
    for (resource, limits) in [(libc::RLIMIT_NOFILE, &files[..]), (libc::RLIMIT_MEMLOCK, &[65_536, 4096, 0])] {
        for &limit in limits {
            let mut command = site.command(["get", "a", "-"]);
            limited(&mut command, resource, limit);
            let ended = Ended::of(command.output().unwrap());
            if ended.code == 0 {
                assert!(ended.out == data, "limit {limit}");
                continue;
            }
            assert_eq!(resource, libc::RLIMIT_NOFILE, "locked memory is never needed: {}", ended.err);
            refused += 1;
            ended.failed(1, &["iomill: get: ", "open files", "ulimit -n"]);
        }
    }
    assert!(refused > 0, "no limit was low enough");
}

#[test]
fn a_limit_of_file_sizes_is_named() {
    let site = Site::new(2);
    let source = site.file("source", &bytes(1_000_000));
    let mut command = site.command(["put", source.to_str().unwrap(), "a"]);
    limited(&mut command, libc::RLIMIT_FSIZE, 300_000);
    Ended::of(command.output().unwrap()).failed(1, &["ssd", "ulimit -f", "the new data has been removed"]);
    site.feed(["put", "-", "a"], &bytes(1_000_000)).good();
    let mut command = site.command(["get", "a", "out"]);
    limited(&mut command, libc::RLIMIT_FSIZE, 100_000);
    Ended::of(command.output().unwrap()).failed(1, &["out", "ulimit -f"]);
}

#[test]
fn without_io_uring_another_engine_serves() {
    let site = Site::new(2);
    let data = bytes(3_000_000);
    site.feed(["put", "-", "a"], &data).good();
    let allowed = site.run(["info", "--json"]).good().json();
    if allowed["drives"][0]["engine"] != "io_uring" {
        println!("skipped: io_uring does not work here in any case");
        return;
    }
    let run = |arguments: &[&str]| {
        let mut command = site.command(arguments);
        forbid_uring(&mut command);
        Ended::of(command.output().unwrap())
    };
    let info = run(&["info"]).good();
    assert!(info.text().contains("libaio"), "{}", info.text());
    assert!(info.err.contains("io_uring is forbidden here") && info.err.contains("using libaio"), "{}", info.err);
    assert!(run(&["get", "a", "-"]).good().out == data);
    run(&["get", "a", "-", "--engine", "io_uring"]).failed(1, &["ssd0", "io_uring is forbidden here"]);
}

/// A small file system for this test alone.
struct SmallDisk(PathBuf);

impl SmallDisk {
    const BYTES: u64 = 40 << 20;

    /// Mounts it, or prints why that is not possible and returns `None`.
    fn mount(at: &Path, image: &Path) -> Option<SmallDisk> {
        if !is_root() {
            println!("skipped: only root mounts file systems");
            return None;
        }
        fs::File::create(image).unwrap().set_len(SmallDisk::BYTES).unwrap();
        let (image, at_text) = (image.to_str().unwrap(), at.to_str().unwrap());
        if !run("mkfs.ext4", &["-q", "-F", image]) || !run("mount", &["-o", "loop", image, at_text]) {
            println!("skipped: no ext4 on a loop device here");
            return None;
        }
        Some(SmallDisk(at.to_owned()))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        run_until_free("umount", &[self.0.to_str().unwrap()]);
    }
}

fn run(program: &str, arguments: &[&str]) -> bool {
    Command::new(program).args(arguments).output().is_ok_and(|output| output.status.success())
}

/// Runs until it succeeds: the kernel frees rings, and their files, a little after the end of their process.
#[track_caller]
fn run_until_free(program: &str, arguments: &[&str]) {
    let patience = Instant::now();
    while !run(program, arguments) {
        assert!(patience.elapsed() < crate::PATIENCE, "{program} {arguments:?}");
        sleep(Duration::from_millis(20));
    }
}

/// A file that no rename can replace is durable, too, when the command ends.
///
/// Seen to fail when only new files were synced.
#[test]
fn a_destination_that_is_written_in_place_is_synced() {
    let site = Site::new(1);
    site.feed(["put", "-", "a"], b"data").good();
    let file = fs::File::create_new(site.path("out")).unwrap();
    fs::remove_file(site.path("out")).unwrap();
    let mut command = site.command(["get", "a", "/proc/self/fd/0", "--force"]);
    command.stdin(file.try_clone().unwrap());
    Ended::of(command.output().unwrap()).good();
    assert_eq!(file.metadata().unwrap().len(), 4);
    let filter = forbid::filter(&[libc::SYS_fsync, libc::SYS_fdatasync], libc::EIO);
    // SAFETY: installing the filter, which the closure owns, is allowed between fork and exec.
    unsafe { command.pre_exec(move || forbid::install(&filter)) };
    Ended::of(command.output().unwrap()).failed(1, &["cannot sync /proc/self/fd/0"]);
}

/// A pipe to a command's standard input.
fn io_pipe(command: &mut Command) -> io::PipeWriter {
    let (reader, writer) = io::pipe().unwrap();
    command.stdin(reader);
    writer
}

/// Makes the kernel refuse `io_uring_setup` with EPERM, as containers do.
fn forbid_uring(command: &mut Command) {
    let filter = forbid::filter(&[libc::SYS_io_uring_setup], libc::EPERM);
    // SAFETY: installing the filter, which the closure owns, is allowed between fork and exec.
    unsafe { command.pre_exec(move || forbid::install(&filter)) };
}

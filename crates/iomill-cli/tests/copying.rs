//! `put` and `get`: the bytes are the same after both, and a failed copy leaves nothing behind.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::common::{Ended, Site, bytes, listening, send};
use serde_json::json;

#[test]
fn what_goes_in_comes_out() {
    let site = Site::new(4);
    for layout in ["striping", "rotated", "hash"] {
        for (block, sizes) in [
            ("4KiB", &[0, 1, 4095, 4096, 4097, 100_003, 5_000_000][..]),
            ("64KiB", &[1, 65_535, 262_145, 4_194_304, 9_000_001]),
            ("12KiB", &[12_289, 1_234_567]),
            ("8MiB", &[1, 17_000_000]),
        ] {
            for &size in sizes {
                let (data, name) = (bytes(size), format!("{layout}/{block}/{size}"));
                site.file("source", &data);
                site.run(["put", "source", &name, "--layout", layout, "--block-size", block]).good();
                let got = site.run(["get", &name, "dest", "--force", "--json"]).good().json();
                assert_eq!((&got["bytes"], &got["destination"]), (&json!(size), &json!("dest")));
                assert!(fs::read(site.path("dest")).unwrap() == data, "{name}");
                let stat = site.stat(&name);
                let parts = stat["parts"].as_array().unwrap().iter().map(|part| part["bytes"].as_u64().unwrap());
                assert!(parts.sum::<u64>() >= size as u64, "{stat}");
            }
        }
    }
}

#[test]
fn engines_write_the_same_with_drive_threads_and_without() {
    let site = Site::new(3);
    let data = bytes(3_000_001);
    let ways: [&[&str]; 6] = [
        &["--engine", "posix"],
        &["--engine", "libaio"],
        &["--engine", "posix", "--drive-threads"],
        &["--engine", "mmap"],
        &["--engine", "mmap", "--drive-threads"],
        &["--depth", "1", "--drive-threads"],
    ];
    for (index, options) in ways.into_iter().enumerate() {
        let name = index.to_string();
        site.feed([&["put", "-", &name], options].concat(), &data).good();
        let got = site.run([&["get", &name, "-"], options].concat()).good();
        assert!(got.out == data && site.content(&name) == data, "{options:?}");
    }
    site.run(["put", "none", "x", "--depth", "0"]).failed(2, &["--depth"]);
    site.run(["put", "none", "x", "--depth", "1025"]).failed(2, &["1024"]);
}

#[test]
fn streams_go_through_dashes() {
    let site = Site::new(2);
    let data = bytes(10_000_019);
    site.feed(["put", "-", "a"], &data).good();
    assert!(site.content("a") == data);
    site.feed(["put", "-"], b"").failed(2, &["standard input has no name", "iomill put - NAME"]);
    site.run(["get", "a", "-", "--json"]).failed(2, &["--json"]);
    site.feed(["put", "-", "empty"], b"").good();
    assert_eq!(site.content("empty"), b"");
}

/// A standard stream may be a socket, which has no path that can be opened. A file keeps the bytes that were written to
/// it before.
#[test]
fn streams_have_paths_of_their_own() {
    use std::os::unix::net::UnixStream;
    let site = Site::new(2);
    let data = bytes(10_000);
    for name in ["/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"] {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let child =
            site.command(["put", "--force", name, "a"]).stdin(OwnedFd::from(theirs)).stderr(Stdio::piped()).spawn();
        ours.write_all(&data).unwrap();
        drop(ours);
        Ended::of(child.unwrap().wait_with_output().unwrap()).good();
        assert!(site.content("a") == data, "{name}");
    }
    for name in ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"] {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let child = site.command(["get", "a", name]).stdout(OwnedFd::from(theirs)).stderr(Stdio::piped()).spawn();
        let mut got = Vec::new();
        ours.read_to_end(&mut got).unwrap();
        Ended::of(child.unwrap().wait_with_output().unwrap()).good();
        assert!(got == data, "{name}");
        assert!(site.run(["get", "a", name]).good().out == data, "a pipe, {name}");
        let mut file = File::create(site.path("out")).unwrap();
        file.write_all(b"before").unwrap();
        Ended::of(site.command(["get", "a", name]).stdout(file).output().unwrap()).good();
        assert!(fs::read(site.path("out")).unwrap() == [b"before", &data[..]].concat(), "{name}");
        site.run(["get", "a", name, "--json"]).failed(2, &["--json"]);
    }
}

#[test]
fn sources_and_destinations_give_their_names() {
    let site = Site::new(2);
    fs::create_dir(site.path("dir")).unwrap();
    site.file("dir/data.bin", b"data");
    site.run(["put", "dir/data.bin"]).good();
    site.run(["put", "dir/data.bin", "sub/"]).good();
    assert_eq!(site.names(), ["data.bin", "sub/data.bin"]);
    site.run(["get", "sub/data.bin"]).good();
    assert_eq!(fs::read(site.path("data.bin")).unwrap(), b"data");
    site.run(["get", "sub/data.bin", "dir"]).failed(1, &["dir/data.bin exists already", "--force"]);
    site.run(["get", "sub/data.bin", "dir/other"]).good();
    // Seen to fail when it was the path of a file, which cannot be made.
    site.run(["get", "sub/data.bin", "new/dir/"]).good();
    assert_eq!(fs::read(site.path("new/dir/data.bin")).unwrap(), b"data");
    site.run(["put", "dir"]).failed(1, &["cannot read dir", "directory"]);
    site.run(["put", "none"]).failed(1, &["cannot open none", "No such file"]);
    site.run(["get", "data.bin", "none/x"]).failed(1, &["none/x", "No such file"]);
    site.run(["get", "data.bin", "/dev/null"]).good();
}

#[test]
fn taken_names_are_replaced_by_force_only() {
    let site = Site::new(2);
    site.feed(["put", "-", "a"], &bytes(200_000)).good();
    site.feed(["put", "-", "a"], b"new").failed(1, &["a file named \"a\" exists already", "--force replaces it"]);
    assert_eq!(site.content("a"), bytes(200_000));
    let before = site.stat("a");
    let new = bytes(300_000);
    site.file("new", &new);
    let put = site.run(["put", "new", "a", "--force", "--json"]).good().json();
    assert_eq!((&put["replaced"], &put["bytes"]), (&json!(true), &json!(300_000)));
    assert_eq!(site.content("a"), new);
    assert_ne!(site.stat("a")["id"], before["id"]);
    site.file("dest", b"mine");
    site.run(["get", "a", "dest"]).failed(1, &["dest exists already", "--force"]);
    assert_eq!(fs::read(site.path("dest")).unwrap(), b"mine");
    site.run(["get", "a", "dest", "--force"]).good();
    assert_eq!(fs::read(site.path("dest")).unwrap(), new);
    assert_eq!(parts(&site), 2);
}

#[test]
fn options_of_put_are_checked() {
    let site = Site::new(2);
    site.file("source", b"x");
    for (options, words) in [
        (["--block-size", "5000"], ["block size 5000", "must be a multiple of 4096 bytes"]),
        (["--block-size", "0"], ["block size 0", "multiple of 4096"]),
        (["--block-size", "128MiB"], ["block size 134217728", "67108864"]),
        (["--block-size", "1T"], ["1T", "64 MiB"]),
        (["--drives", "2"], ["drive 2", "drives 0 to 1"]),
        (["--drives", "0,0"], ["drive 0", "twice"]),
        (["--drives", ""], ["--drives", "invalid"]),
        (["--layout", "mirror"], ["mirror", "striping"]),
    ] {
        site.run([&["put", "source"], options.as_slice()].concat()).failed(2, &words);
    }
    assert!(site.names().is_empty());
    assert_eq!(parts(&site), 0);
}

#[test]
fn a_reader_that_goes_away_is_no_error_to_talk_about() {
    let site = Site::new(2);
    site.feed(["put", "-", "a"], &bytes(30_000_000)).good();
    for arguments in [vec!["get", "a", "-"], vec!["catalog", "export", "/dev/stdout"], vec!["ls"], vec!["--help"]] {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let ended = Ended::of(site.command(&arguments).stdout(writer).output().unwrap());
        // Where io_uring is forbidden, a note names the engine that is used instead.
        let is_quiet = ended.err.lines().all(|line| line.starts_with("note: "));
        assert!(ended.code == 141 && is_quiet, "{arguments:?}: {} {}", ended.code, ended.err);
    }
}

#[test]
fn a_full_standard_output_is_an_error() {
    let site = Site::new(2);
    site.feed(["put", "-", "a"], &bytes(100_000)).good();
    for arguments in [vec!["get", "a", "-"], vec!["ls"], vec!["info", "--json"]] {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let ended = Ended::of(site.command(&arguments).stdout(full).output().unwrap());
        ended.failed(1, &["standard output", "No space left"]);
    }
}

/// `ls >&-`, and `ls 1</dev/null`: the file of that descriptor takes no writes.
///
/// Seen to fail when /dev/null took the place of a closed stream, and when EBADF counted as success.
#[test]
fn a_standard_output_that_is_closed_is_an_error() {
    let site = Site::new(2);
    site.feed(["put", "-", "a"], &bytes(100_000)).good();
    let file = site.file("f", b"data").into_os_string().into_string().unwrap();
    let printing: [&[&str]; 14] = [
        &["get", "a", "-"],
        &["get", "a", "/dev/stdout"],
        &["catalog", "export"],
        &["catalog", "export", "-", "--json"],
        &["ls"],
        &["ls", "--long"],
        &["ls", "--json"],
        &["stat", "a"],
        &["info"],
        &["check", "--json"],
        &["top", "--count", "1", "--interval", "100ms"],
        &["completions", "bash"],
        &["man"],
        &["--help"],
    ];
    for arguments in printing {
        let ended = Ended::of(closing(site.command(arguments), libc::STDOUT_FILENO).output().unwrap());
        ended.failed(1, &["cannot write to standard output", "Bad file descriptor"]);
        let reads_only = File::open("/dev/null").unwrap();
        let ended = Ended::of(site.command(arguments).stdout(reads_only).output().unwrap());
        ended.failed(1, &["cannot write to standard output", "Bad file descriptor"]);
    }
    // A report is refused before the measurement.
    let ended = Ended::of(
        closing(site.bare_command(["probe", "--html", "/dev/stdout"]), libc::STDOUT_FILENO).output().unwrap(),
    );
    ended.failed(1, &["cannot write to standard output", "Bad file descriptor"]);
    // A command that prints nothing needs no standard output.
    let silent: [&[&str]; 2] = [&["put", &file, "b"], &["get", "b", "copy"]];
    for arguments in silent {
        Ended::of(closing(site.command(arguments), libc::STDOUT_FILENO).output().unwrap()).good();
    }
    assert_eq!(fs::read(site.path("copy")).unwrap(), b"data");
}

/// Seen to fail as the test above: an empty file took the place of the old one.
#[test]
fn a_standard_input_that_is_closed_is_an_error() {
    let site = Site::new(2);
    let data = bytes(100_000);
    site.feed(["put", "-", "a"], &data).good();
    let reading: [&[&str]; 4] = [
        &["put", "--force", "-", "a"],
        &["put", "--force", "/dev/stdin", "a"],
        &["catalog", "import", "-"],
        &["catalog", "import", "/dev/stdin"],
    ];
    for arguments in reading {
        let ended = Ended::of(closing(site.command(arguments), libc::STDIN_FILENO).output().unwrap());
        ended.failed(1, &["cannot read standard input", "Bad file descriptor"]);
        let writes_only = File::create(site.path("w")).unwrap();
        let ended = Ended::of(site.command(arguments).stdin(writes_only).output().unwrap());
        ended.failed(1, &["cannot read standard input", "Bad file descriptor"]);
    }
    assert!(site.content("a") == data);
    let both = closing(closing(site.command(["ls"]), libc::STDIN_FILENO), libc::STDOUT_FILENO).output();
    Ended::of(both.unwrap()).failed(1, &["Bad file descriptor"]);
}

/// Lets the command start with this descriptor closed.
fn closing(mut command: Command, descriptor: libc::c_int) -> Command {
    let close = move || {
        // SAFETY: the call reads no memory of ours, and the child uses the descriptor for nothing.
        match unsafe { libc::close(descriptor) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    // SAFETY: between fork and exec the function makes one system call, allocates nothing and takes no lock.
    unsafe { command.pre_exec(close) };
    command
}

#[test]
fn a_source_that_fails_leaves_nothing() {
    let site = Site::new(2);
    site.feed(["put", "-", "a"], &bytes(200_000)).good();
    // Reads at the start of a process's memory fail.
    let ended = site.run(["put", "/proc/self/mem", "a", "--force"]);
    ended.failed(1, &["cannot read /proc/self/mem", "the new data has been removed", "\"a\" is unchanged"]);
    assert_eq!((site.names(), site.content("a")), (vec!["a".to_owned()], bytes(200_000)));
    assert_eq!(parts(&site), 2);
}

#[test]
fn an_interrupted_put_removes_what_it_wrote() {
    let site = Site::new(2);
    site.feed(["put", "-", "a"], &bytes(200_000)).good();
    for (signal, code) in [(libc::SIGINT, 130), (libc::SIGTERM, 143)] {
        let mut child = stalled_put(&site);
        // The standard input stays open; the command must not wait for its end.
        let stdin = child.stdin.take();
        send(&child, signal);
        let ended = Ended::of(child.wait_with_output().unwrap());
        drop(stdin);
        ended.failed(code, &["interrupted", "the new data has been removed", "\"a\" is unchanged"]);
        assert_eq!((site.names(), site.content("a")), (vec!["a".to_owned()], bytes(200_000)));
        assert_eq!(parts(&site), 2);
    }
}

#[test]
fn what_a_killed_put_leaves_is_removed_by_the_next_writer() {
    let site = Site::new(2);
    site.feed(["put", "-", "a"], b"old").good();
    let mut child = stalled_put(&site);
    child.kill().unwrap();
    child.wait().unwrap();
    // The array's lock is released with the I/O in flight, a little after the process.
    let patience = Instant::now();
    while site.run(["check"]).err.contains("in use") {
        assert!(patience.elapsed() < crate::PATIENCE, "the lock stays");
        sleep(Duration::from_millis(10));
    }
    assert_eq!((site.names(), site.content("a")), (vec!["a".to_owned()], b"old".to_vec()));
    let check = site.run(["check"]).failed(1, &["check --repair"]);
    assert!(check.text().contains("an unfinished file still has its space"), "{}", check.text());
    site.feed(["put", "-", "b"], b"x").good();
    site.run(["check"]).good();
}

#[test]
fn an_interrupted_get_leaves_nothing() {
    let site = Site::new(2);
    site.feed(["put", "-", "a"], &bytes(40_000_000)).good();
    // A pipe that no process reads stalls the command in the middle.
    let mut command = site.command(["get", "a", "-"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut first = [0];
    child.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    send(&child, libc::SIGINT);
    let code = wait(&mut child);
    assert_eq!(code, Some(130));
    site.feed(["put", "-", "b"], b"x").good();
}

/// `timeout -s INT` sends the signal to the process and to its group.
#[test]
fn two_signals_at_once_are_one() {
    let site = Site::new(2);
    site.feed(["put", "-", "a"], &bytes(40_000_000)).good();
    let out = site.path("out");
    fs::create_dir(&out).unwrap();
    let mut interrupted = 0;
    for (round, delay_ms) in [5, 20, 40, 80, 160].into_iter().cycle().enumerate() {
        if round == 200 || round >= 5 && interrupted > 0 {
            break;
        }
        let mut child = site.command(["get", "a", "out/a", "--force"]).stderr(Stdio::null()).spawn().unwrap();
        let started = Instant::now();
        while fs::read_dir(&out).unwrap().next().is_none() && started.elapsed() < crate::PATIENCE {}
        sleep(Duration::from_millis(delay_ms));
        send(&child, libc::SIGINT);
        sleep(Duration::from_millis(2));
        send(&child, libc::SIGINT);
        interrupted += usize::from(wait(&mut child) == Some(130));
        let left = fs::read_dir(&out).unwrap().map(|entry| entry.unwrap().file_name()).filter(|name| name != "a");
        assert_eq!(left.collect::<Vec<_>>(), Vec::<std::ffi::OsString>::new());
        // This copy ended before its signals.
        let _ = fs::remove_file(out.join("a"));
    }
    assert!(interrupted > 0, "every copy ended before its signals came");
}

/// A pipe without another end, and one that is full, may make a command wait for ever.
///
/// Seen to fail: the first signal was not noticed while a pipe was opened, and `timeout` sends no other.
#[test]
fn a_signal_ends_a_wait_for_the_other_end_of_a_pipe() {
    let site = Site::new(2);
    site.feed(["put", "-", "d/a"], b"data").good();
    site.feed(["put", "-", "d/b"], b"data").good();
    make_pipe(&site.path("pipe"));
    fs::create_dir(site.path("d")).unwrap();
    make_pipe(&site.path("d/a"));
    make_pipe(&site.path("full"));
    let full = File::options().read(true).write(true).open(site.path("full")).unwrap();
    fill(&full);
    fs::create_dir(site.path("e")).unwrap();
    std::os::unix::fs::symlink(site.path("full"), site.path("e/a")).unwrap();
    for waiting in [
        &["get", "d/a", "pipe"][..],
        &["get", "-r", "d/.", "--to", "d"],
        &["get", "d/a", "full"],
        &["get", "-r", "d/.", "--to", "e"],
        &["put", "pipe", "d/a", "x/"],
    ] {
        let mut child = site.command(waiting).stderr(Stdio::null()).spawn().unwrap();
        until_caught(&child, libc::SIGTERM);
        // It waits by then, or ends before it does.
        sleep(Duration::from_millis(300));
        send(&child, libc::SIGTERM);
        assert_eq!(wait_for(&mut child, Duration::from_secs(60)), Some(143), "{waiting:?}");
    }
    assert_eq!(site.names(), ["d/a", "d/b"]);
}

/// Writes until there is no more room.
fn fill(mut pipe: &File) {
    rustix::fs::fcntl_setfl(pipe, rustix::fs::OFlags::NONBLOCK).unwrap();
    while pipe.write(&[0; 4096]).is_ok() {}
}

/// A second signal, some time after the first, ends a command that hangs.
#[test]
fn a_signal_after_a_second_ends_it_at_once() {
    let site = Site::new(2);
    site.feed(["put", "-", "a"], b"data").good();
    // The answer does not fit into this pipe, which no process reads.
    let (reader, writer) = io::pipe().unwrap();
    fill(&File::from(OwnedFd::from(writer.try_clone().unwrap())));
    rustix::fs::fcntl_setfl(&writer, rustix::fs::OFlags::empty()).unwrap();
    let mut command = site.command(["get", "a", "out", "--json"]);
    let mut child = command.stdout(writer).stderr(Stdio::null()).spawn().unwrap();
    drop(command);
    until_caught(&child, libc::SIGINT);
    // The second comes too soon where the process has not seen the first for a while.
    let mut status = None;
    let patience = Instant::now();
    while status.is_none() && patience.elapsed() < crate::PATIENCE {
        send(&child, libc::SIGINT);
        sleep(Duration::from_millis(1500));
        status = child.try_wait().unwrap();
    }
    assert_eq!(wait(&mut child), Some(130));
    drop(reader);
}

/// Waits until the process handles a signal. Before that the signal ends it at once.
fn until_caught(child: &Child, signal: libc::c_int) {
    let patience = Instant::now();
    let caught = || {
        let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
        u64::from_str_radix(mask.trim(), 16).unwrap() & (1 << (signal - 1)) != 0
    };
    while !caught() {
        assert!(patience.elapsed() < crate::PATIENCE, "the signal is not handled");
        sleep(Duration::from_millis(5));
    }
}

fn make_pipe(path: &std::path::Path) {
    let path = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: the path ends with a zero byte.
    assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
}

/// Signals that `nohup` or a shell's background job ignores stay ignored.
#[test]
fn ignored_signals_stay_ignored() {
    let site = Site::new(2);
    let signals = [libc::SIGINT, libc::SIGHUP, libc::SIGTERM];
    let mut command = site.command(["put", "-", "a"]);
    listening(&mut command, &signals).stdin(Stdio::piped()).stderr(Stdio::piped());
    let child = feed_some(&site, command);
    signals.iter().for_each(|&signal| send(&child, signal));
    ended(child).good();
    assert_eq!(site.content("a").len(), 9_000_000);
}

#[test]
fn one_writer_keeps_others_out_but_not_lookers() {
    let site = Site::new(2);
    site.feed(["put", "-", "a"], b"old").good();
    let child = stalled_put(&site);
    site.run(["rm", "a"]).failed(1, &["in use by another process"]);
    site.run(["get", "a", "-"]).failed(1, &["in use by another process"]);
    for looking in [vec!["ls", "-l"], vec!["info"], vec!["stat", "a"], vec!["attr", "a"]] {
        site.run(looking).good();
    }
    ended(child).good();
    assert_eq!(site.content("a").len(), 9_000_000);
}

/// A `put --force` of the name `a` that has written some bytes and waits for more.
fn stalled_put(site: &Site) -> Child {
    let mut command = site.command(["put", "-", "a", "--force"]);
    command.stdin(Stdio::piped()).stderr(Stdio::piped());
    feed_some(site, command)
}

/// Starts a put and feeds it until some bytes have reached the drives.
fn feed_some(site: &Site, mut command: Command) -> Child {
    let before = used_bytes(site);
    let mut child = command.spawn().unwrap();
    child.stdin.as_mut().unwrap().write_all(&bytes(9_000_000)).unwrap();
    let patience = Instant::now();
    while used_bytes(site) < before + 4_000_000 {
        assert!(patience.elapsed() < crate::PATIENCE, "nothing was written");
        sleep(Duration::from_millis(10));
    }
    child
}

fn used_bytes(site: &Site) -> u64 {
    let parts = site.drives().flat_map(|drive| fs::read_dir(drive.join("iomill/parts")).unwrap());
    parts.filter_map(|part| part.unwrap().metadata().ok()).map(|metadata| metadata.len()).sum()
}

fn parts(site: &Site) -> usize {
    site.drives().map(|drive| fs::read_dir(drive.join("iomill/parts")).unwrap().count()).sum()
}

fn wait(child: &mut Child) -> Option<i32> {
    wait_for(child, crate::PATIENCE)
}

fn wait_for(child: &mut Child, most: Duration) -> Option<i32> {
    let patience = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        if patience.elapsed() > most {
            let _ = child.kill();
            panic!("it hangs");
        }
        sleep(Duration::from_millis(10));
    }
}

/// Closes the standard input after some time, and waits for the end.
fn ended(mut child: Child) -> Ended {
    let stdin = child.stdin.take();
    sleep(Duration::from_millis(300));
    drop(stdin);
    Ended::of(child.wait_with_output().unwrap())
}

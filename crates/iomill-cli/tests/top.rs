//! `iomill top`: watches processes that use an array.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::{Ended, Site, send};
use iomill::{Array, ArrayOptions, FileOptions};
use serde_json::Value;

/// Works on an array in this process while `watch` runs.
fn with_work(array: &Array, watch: impl FnOnce() -> Vec<Value>) -> Vec<Value> {
    let file = array.create_file("busy", &FileOptions::new().block_bytes(4096)).unwrap();
    file.write_at(&vec![1; 1 << 20], 0).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut bytes = vec![0; 8192];
            while !stop.load(Ordering::Relaxed) {
                file.read_at(&mut bytes, 0).unwrap();
                file.write_at(&bytes[..4096], 4096).unwrap();
                std::thread::sleep(Duration::from_micros(100));
            }
        });
        let seen = std::panic::catch_unwind(std::panic::AssertUnwindSafe(watch));
        stop.store(true, Ordering::Relaxed);
        seen.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn lines(ended: &Ended) -> Vec<Value> {
    ended.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_busy_process_has_rates() {
    let site = Site::in_memory(2);
    // Without a cache every read reaches the drives.
    let array = ArrayOptions::new().cache_bytes(0).open(site.drive(0)).unwrap();
    if array.notices().iter().any(|notice| notice.contains("cannot watch this process")) {
        // There is no shared memory for counters here.
        return;
    }
    let top = ["top", "--json", "--count", "2", "--interval", "300ms"];
    // If other processes keep the disk busy, an interval may have no I/O. Then the test looks again.
    let is_busy = |page: &Value| page["processes"][0]["read_bytes_per_s"].as_f64().is_some_and(|rate| rate > 1e5);
    let pages = with_work(&array, || {
        let mut looks = std::iter::repeat_with(|| lines(&site.run(top).good())).take(50);
        looks.find(|pages| pages.iter().all(is_busy)).unwrap()
    });
    assert_eq!(pages.len(), 2);
    for page in &pages {
        let processes = page["processes"].as_array().unwrap();
        assert_eq!(processes.len(), 1, "{page}");
        let process = &processes[0];
        assert_eq!(process["pid"], std::process::id());
        assert_eq!(process["array"], array.info().unwrap().id);
        assert!(process["seconds"].as_f64().unwrap() >= 0.3);
        let of = |value: &Value, key: &str| value[key].as_f64().unwrap_or_else(|| panic!("{key} of {value}"));
        let drives = process["drives"].as_array().unwrap();
        assert_eq!(drives.len(), 2);
        // Each round reads a page of each drive and writes one of the second.
        for (drive, path) in drives.iter().zip(site.drives()) {
            assert_eq!(drive["path"], path.canonicalize().unwrap().to_str().unwrap());
            assert!(of(drive, "reads_per_s") > 1.0 && of(drive, "read_bytes_per_s") >= 4096.0, "{page}");
            assert!(of(drive, "in_flight") <= 32.0);
            assert_eq!(drive["errors"], 0);
        }
        assert_eq!(of(&drives[0], "writes_per_s"), 0.0);
        assert!(of(&drives[1], "writes_per_s") > 1.0);
        let ratio = of(&drives[1], "read_bytes_per_s") / of(process, "read_bytes_per_s");
        assert!((0.3..0.7).contains(&ratio), "half of what is read is on the second drive: {ratio}");
    }
    // Selected by process, and as a table.
    let pid = std::process::id().to_string();
    site.run_bare(["-a", "x", "top", "--pid", &pid]).failed(2, &["--pid", "--array"]);
    let text = with_work_text(&site, &pid);
    assert!(text.contains(&format!("process {pid}, array ")) && text.contains("p99.9"), "{text}");
    array.close().unwrap();
    let ended = site.run(["top", "--count", "1", "--interval", "100ms"]).good();
    assert!(ended.text().starts_with("no process of this user uses array "), "{}", ended.text());
}

fn with_work_text(site: &Site, pid: &str) -> String {
    let ended = site.run_bare(["top", "--pid", pid, "--count", "1", "--interval", "100ms"]).good();
    ended.text().to_owned()
}

#[test]
fn top_says_that_no_process_has_counters_and_waits_for_one() {
    let site = Site::new(1);
    let ended = site.run(["top", "--json", "--count", "2", "--interval", "100ms"]).good();
    let pages = lines(&ended);
    assert_eq!(pages.len(), 2);
    assert!(pages.iter().all(|page| page["processes"].as_array().unwrap().is_empty()));
    // Without --count it runs until a signal comes.
    let mut child = spawn(site.command(["top", "--interval", "100ms"]));
    let mut said = BufReader::new(child.stdout.take().unwrap()).lines();
    for _ in 0..3 {
        assert!(said.next().unwrap().unwrap().starts_with("no process"));
    }
    send(&child, libc::SIGTERM);
    assert_eq!(child.wait().unwrap().code(), Some(128 + 15));
}

fn spawn(mut command: Command) -> Child {
    command.stdout(Stdio::piped()).spawn().unwrap()
}

/// On a terminal the page is drawn repeatedly. `q` restores the terminal and ends the command.
#[test]
fn on_a_terminal_a_key_ends_it() {
    let site = Site::new(1);
    let Some((mut ours, path)) = pseudo_terminal() else { return };
    // Without the flag the pseudo terminal becomes the test's controlling terminal, and closing it ends the test.
    let options = || OpenOptions::new().read(true).write(true).custom_flags(libc::O_NOCTTY).open(&path);
    let open = || Stdio::from(options().unwrap());
    let mut command = site.command(["top", "--interval", "100ms"]);
    let mut child = command.stdin(open()).stdout(open()).stderr(Stdio::piped()).spawn().unwrap();
    let mut seen = String::new();
    let mut bytes = [0; 4096];
    use std::io::{Read, Write};
    while seen.matches("no process of this user").count() < 2 {
        let count = ours.read(&mut bytes).unwrap();
        seen.push_str(std::str::from_utf8(&bytes[..count]).unwrap());
    }
    assert!(seen.starts_with("\x1b[?1049h"), "{seen:?}");
    ours.write_all(b"xq").unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    while !seen.ends_with("\x1b[?1049l") {
        let count = ours.read(&mut bytes).unwrap();
        seen.push_str(std::str::from_utf8(&bytes[..count]).unwrap());
    }
}

/// Our end of a pseudo terminal, and the path of the other end. `None` if the machine has no pseudo terminals.
fn pseudo_terminal() -> Option<(std::fs::File, String)> {
    use std::os::fd::{AsRawFd, FromRawFd};
    // SAFETY: the call uses no memory of ours.
    let fd = unsafe { libc::posix_openpt(libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC) };
    if fd < 0 {
        return None;
    }
    // SAFETY: the descriptor is open, and this is its only owner.
    let ours = unsafe { std::fs::File::from_raw_fd(fd) };
    let mut name = [0u8; 128];
    // SAFETY: the descriptor is open, and the buffer has the length that is given.
    let named = unsafe {
        libc::grantpt(ours.as_raw_fd()) == 0
            && libc::unlockpt(ours.as_raw_fd()) == 0
            && libc::ptsname_r(ours.as_raw_fd(), name.as_mut_ptr().cast(), name.len()) == 0
    };
    assert!(named);
    let end = name.iter().position(|byte| *byte == 0).unwrap();
    Some((ours, String::from_utf8(name[..end].to_vec()).unwrap()))
}

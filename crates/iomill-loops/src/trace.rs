//! When the driver has a read, from the kernel's tracing: the block layer's events `block_rq_issue` and
//! `block_rq_complete` (Linux, include/trace/events/block.h; Documentation/trace/ftrace.rst).
//!
//! Goals: a separate instance of tracing, which disturbs no other and is removed at the end. Its times use the clock
//! that also times the reads. Non-goals: devices without requests (zram, device-mapper), which have no such events.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::time::{ClockId, clock_gettime};

use super::leftovers::{self, By};

/// Where the kernel's tracing may be mounted.
const MOUNTS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
/// The two events, in order.
const EVENTS: [&str; 2] = ["block_rq_issue", "block_rq_complete"];
/// Buffer for events on each CPU: some 20,000 reads. Newer events overwrite older ones. With many CPUs each buffer is
/// smaller: every CPU gets one, but one thread's reads appear on a few CPUs only. This limits the kernel memory in use.
const BUFFER_KIB_MAX: usize = 4096;
const BUFFERS_KIB: usize = 64 << 10;
const BUFFER_KIB_MIN: usize = 256;

/// The time of a read in the driver, in microseconds of the monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// When the driver got the read.
    pub issued_us: u64,
    /// When the read had ended.
    pub completed_us: u64,
}

/// A running instance of tracing. It is removed on drop.
#[derive(Debug)]
pub struct Trace {
    directory: PathBuf,
}

/// The time on the monotonic clock.
pub fn now_us() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000 + now.tv_nsec.unsigned_abs() / 1000
}

impl Trace {
    /// Starts to trace the reads of the device `major:minor` on a machine with `cpus` CPUs, or returns why this is not
    /// possible.
    pub fn start(device: (u32, u32), cpus: usize) -> Result<Trace, String> {
        let Some(mount) = MOUNTS.iter().map(Path::new).find(|mount| mount.join("instances").is_dir()) else {
            return Err(match fs::read_dir(MOUNTS[0]) {
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    "the kernel's tracing is for root only".to_owned()
                }
                _ => format!("the kernel's tracing is not mounted (`mount -t tracefs tracefs {}`)", MOUNTS[0]),
            });
        };
        let instances = mount.join("instances");
        leftovers::remove_in(&instances);
        let directory = instances.join(leftovers::name(By::Probe));
        fs::create_dir(&directory).map_err(|e| match e.kind() {
            io::ErrorKind::PermissionDenied => "the kernel's tracing is for root only".to_owned(),
            _ => format!("the kernel's tracing is refused: {}: {e}", directory.display()),
        })?;
        // From here on the drop removes it.
        let trace = Trace { directory };
        trace.set("trace_clock", "mono")?;
        trace.set("buffer_size_kb", &buffer_kib(cpus).to_string())?;
        let filter = format!("dev == {}", (u64::from(device.0) << 20) | u64::from(device.1));
        for event in EVENTS {
            trace.set(&format!("events/block/{event}/filter"), &filter)?;
            trace.set(&format!("events/block/{event}/enable"), "1")?;
        }
        Ok(trace)
    }

    fn set(&self, file: &str, value: &str) -> Result<(), String> {
        let path = self.directory.join(file);
        fs::write(&path, value)
            .map_err(|e| format!("the kernel's tracing is refused: {value:?} to {}: {e}", path.display()))
    }

    /// Ends the tracing. Returns the reads of which both events were seen.
    pub fn finish(self) -> Result<Vec<Span>, String> {
        self.set("tracing_on", "0")?;
        let path = self.directory.join("trace");
        let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        Ok(spans(&text))
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        // An error is ignored: an instance without events costs only its memory, and a restart removes it.
        let _gone = fs::remove_dir(&self.directory);
    }
}

fn buffer_kib(cpus: usize) -> usize {
    (BUFFERS_KIB / cpus.max(1)).clamp(BUFFER_KIB_MIN, BUFFER_KIB_MAX)
}

/// Pairs the events with the same sector.
fn spans(text: &str) -> Vec<Span> {
    let mut issued: Vec<(u64, u64)> = Vec::new();
    let mut spans = Vec::new();
    for (event, at_us, sector) in text.lines().filter_map(event) {
        if event == EVENTS[0] {
            issued.push((sector, at_us));
        } else if let Some(place) = issued.iter().rposition(|(other, _)| *other == sector) {
            let (_, issued_us) = issued.swap_remove(place);
            spans.push(Span { issued_us, completed_us: at_us });
        }
    }
    spans
}

/// Parses a line such as `cat-70 [001] d..1. 1234.567890: block_rq_issue: 259,0 R 4096 () 2048 + 8 none,0,0 [cat]` into
/// event, time, and sector of a read.
fn event(line: &str) -> Option<(&str, u64, u64)> {
    let (name, at) = EVENTS.into_iter().find_map(|name| Some((name, line.find(&format!(": {name}: "))?)))?;
    let time = line[..at].split_whitespace().next_back()?;
    let (seconds, micros) = time.split_once('.')?;
    let at_us = seconds.parse::<u64>().ok()? * 1_000_000 + micros.parse::<u64>().ok().filter(|_| micros.len() == 6)?;
    let told = &line[at + name.len() + 4..];
    let (what, _) = told.split_once(" + ")?;
    let mut words = what.split_whitespace();
    let is_read = words.nth(1)?.contains('R');
    let sector = words.next_back()?.parse().ok()?;
    is_read.then_some((name, at_us, sector))
}

/// Where the time of the middle reads went, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Split {
    /// From the call until the driver had the read.
    pub submit_us: f64,
    /// In the driver and the drive.
    pub device_us: f64,
    /// From then until the return of the call.
    pub complete_us: f64,
    /// Reads of which both events were seen.
    pub reads: usize,
}

/// Finds for each read the one span within it. Reads come one after the other. Only the middle fifth by duration
/// counts, so that reads that other programs slow down do not count.
pub fn split(reads: &[(u64, u64)], spans: &[Span]) -> Option<Split> {
    let mut spans = spans.to_vec();
    spans.sort_by_key(|span| span.issued_us);
    let mut seen: Vec<[u64; 3]> = Vec::new();
    for &(begun, ended) in reads {
        let first = spans.partition_point(|span| span.issued_us < begun);
        let within: Vec<&Span> = spans[first..].iter().take_while(|span| span.issued_us <= ended).collect();
        // Several spans mean that the kernel cut the read, or that another program read at the same time.
        let [span] = within[..] else { continue };
        let Some(after) = ended.checked_sub(span.completed_us) else { continue };
        seen.push([span.issued_us - begun, span.completed_us.saturating_sub(span.issued_us), after]);
    }
    seen.sort_by_key(|parts| parts.iter().sum::<u64>());
    let each_side = seen.len() * 2 / 5;
    let middle = &seen[each_side..seen.len() - each_side];
    let mean = |part: usize| middle.iter().map(|parts| parts[part]).sum::<u64>() as f64 / middle.len() as f64;
    (!middle.is_empty()).then(|| Split {
        submit_us: mean(0),
        device_us: mean(1),
        complete_us: mean(2),
        reads: seen.len(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines as Linux 6.18, 6.1 and 4.19 write them.
    const TEXT: &str = "\
# tracer: nop
#
#           TASK-PID     CPU#  |||||  TIMESTAMP  FUNCTION
 iomill: x-812     [001] d..1.  1000.000010: block_rq_issue: 254,0 R 4096 () 800 + 8 none,0,0 [iomill]
          <idle>-0       [000] d.h2.  1000.000090: block_rq_complete: 254,0 R () 800 + 8 none,0,0 [0]
          iomill-812     [001] d..1.  1000.000100: block_rq_issue: 254,0 WS 4096 () 64 + 8 none,0,0 [jbd2]
          <idle>-0       [000] d.h2.  1000.000105: block_rq_complete: 254,0 WS () 64 + 8 none,0,0 [0]
          iomill-812     [001] d..1  1000.000110: block_rq_issue: 254,0 RA 4096 () 1600 + 8 [iomill]
          <idle>-0       [000] d.h2  1000.000130: block_rq_complete: 254,0 RA () 1600 + 8 [0]
          <idle>-0       [000] d.h2  1000.000140: block_rq_complete: 254,0 R () 9600 + 8 [0]
";

    #[test]
    fn all_buffers_together_stay_small() {
        assert_eq!([1, 2, 16, 64, 256, 1024].map(buffer_kib), [4096, 4096, 4096, 1024, 256, 256]);
    }

    #[test]
    fn events_are_paired() {
        let at = |issued: u64, completed: u64| Span {
            issued_us: 1_000_000_000 + issued,
            completed_us: 1_000_000_000 + completed,
        };
        assert_eq!(spans(TEXT), [at(10, 90), at(110, 130)]);
        assert_eq!(spans("garbage\n 12.5: block_rq_issue: 1,2 R\n"), []);
    }

    #[test]
    fn reads_are_split_where_one_request_lies_within() {
        let span = |issued_us, completed_us| Span { issued_us, completed_us };
        let spans = [span(1005, 1085), span(2010, 2070), span(3001, 3002), span(3003, 3004), span(4001, 4099)];
        let reads = [(1000, 1090), (2000, 2100), (3000, 3100), (4000, 4050), (5000, 5100)];
        let split = split(&reads, &spans).unwrap();
        assert_eq!(split, Split { submit_us: 7.5, device_us: 70.0, complete_us: 17.5, reads: 2 });
        assert_eq!(super::split(&reads[4..], &spans), None);
        // Of five reads only the middle one counts, not the slowest.
        let reads: Vec<(u64, u64)> =
            [100, 9_000, 80, 70, 90].iter().zip(1..).map(|(len, at)| (at * 10_000, at * 10_000 + len)).collect();
        let spans: Vec<Span> = reads.iter().map(|(begun, ended)| span(begun + 5, ended - 15)).collect();
        let split = super::split(&reads, &spans).unwrap();
        assert_eq!(split, Split { submit_us: 5.0, device_us: 70.0, complete_us: 15.0, reads: 5 });
    }

    #[test]
    fn an_instance_is_made_and_removed_where_that_is_allowed() {
        match Trace::start((0, 1), 2) {
            Err(why) => assert!(why.contains("tracing"), "{why}"),
            Ok(trace) => {
                let directory = trace.directory.clone();
                assert!(directory.is_dir());
                assert_eq!(trace.finish(), Ok(Vec::new()));
                assert!(!directory.exists());
            }
        }
    }
}

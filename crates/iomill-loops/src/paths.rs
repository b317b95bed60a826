//! The cost of a 4 KiB read by each path to the drive: engine, direct or buffered, file or block device, with and
//! without polling.
//!
//! Goals: iomill's own engines, one thread, with as many reads in flight as a queue has slots by default. The CPU time
//! is that of the whole process, including the kernel's threads for it; cycles are counted if possible. Each path is
//! measured, or left out with its reason. Each page is read at most once, so that a buffered read finds nothing in the
//! page cache. Non-goals: the mapped engine, which has its own measurement.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use iomill::engine::platform::Platform;
use iomill::engine::real::RealPlatform;
use iomill::engine::{Completion, Engine, EngineConfig, EngineKind, FileRef, IoRequest, Memory, NO_REGION, Op};
use iomill::sys::fs::Handle;
use iomill::sys::memory::PageBuf;
use iomill::{Error, Result};
use rustix::fs::Advice;
use serde::Serialize;

use super::clock::{Sample, Watch};
use super::cycles::Cycles;
use super::draw::{PAGE_BYTES, Pages};
use super::parts::{advise, open};

/// Reads in flight.
pub const DEPTH: u32 = 32;
/// Maximum number of completions per wait.
const BATCH: usize = 16;

/// The engines, the best first.
const ENGINES: [EngineKind; 3] = [EngineKind::Uring, EngineKind::Aio, EngineKind::Posix];

/// One path and what it costs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cost {
    /// The engine's name.
    pub engine: String,
    /// `file` or `block device`.
    pub on: &'static str,
    /// The directory on the drive, or the device.
    pub path: PathBuf,
    /// Whether reads bypass the kernel's page cache.
    pub direct: bool,
    /// Whether the engine polls for completions.
    pub polled: bool,
    /// Reads per second by one thread.
    pub iops: f64,
    /// CPU time per read in microseconds.
    pub cpu_us_per_op: f64,
    /// CPU cycles per read; null if they are not counted.
    pub cycles_per_op: Option<f64>,
}

impl Cost {
    /// The path in words: `io_uring, direct, file`.
    pub fn words(&self) -> String {
        let io = if self.direct { "direct" } else { "buffered" };
        format!("{}, {io}, {}{}", self.engine, self.on, if self.polled { ", polled" } else { "" })
    }
}

/// The file or device that is read.
#[derive(Clone, Debug)]
pub struct Ground<'a> {
    /// The path that is opened.
    pub node: &'a Path,
    /// The path that is reported.
    pub name: &'a Path,
    /// `file` or `block device`.
    pub on: &'static str,
    /// Its length in bytes.
    pub len_bytes: u64,
    /// Why polling is not possible here; `None` if it is.
    pub unpolled: Option<String>,
}

/// A path to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    kind: EngineKind,
    direct: bool,
    polled: bool,
}

/// Returns the paths to `ground` that can be measured. Adds the reasons for the others to `left_out`.
pub fn ways(ground: &Ground<'_>, left_out: &mut Vec<String>) -> Vec<Way> {
    let mut ways = Vec::new();
    for kind in ENGINES {
        let config = EngineConfig { capacity: DEPTH, poll: false, hold: Vec::new(), shared: false };
        if let Err(error) = RealPlatform::default().engine(kind, &config) {
            left_out.push(format!("{kind}: {error}"));
            continue;
        }
        ways.extend([true, false].map(|direct| Way { kind, direct, polled: false }));
    }
    let name = ground.name.display();
    match &ground.unpolled {
        Some(why) => left_out.push(format!("polling on {name}: {why}")),
        None => {
            let can_poll = [EngineKind::Uring, EngineKind::Posix];
            let polled = ways.iter().filter(|way| way.direct && can_poll.contains(&way.kind));
            let polled: Vec<Way> = polled.map(|way| Way { polled: true, ..*way }).collect();
            ways.extend(polled);
        }
    }
    ways
}

impl Way {
    /// Whether it is direct and not polled. The first such way has the best available engine.
    pub fn is_plain(self) -> bool {
        self.direct && !self.polled
    }
}

/// Maximum number of ways.
pub const WAYS_MAX: usize = 8;

/// Measures one path.
pub fn measure(ground: &Ground<'_>, way: Way, depth: u32, slice: Duration, cancel: &AtomicBool) -> Result<Cost> {
    let file = open(ground.node, way.direct)?;
    // Drops cached pages of other programs, and switches read-ahead off.
    advise(&file, ground.node, Advice::DontNeed)?;
    if !way.direct {
        advise(&file, ground.node, Advice::Random)?;
    }
    // Started before the engine, so that it also counts the engine's threads.
    let cycles = Cycles::start().ok();
    let mut run = Run::new(&file, ground, way, depth)?;
    let counted = |cycles: &Option<Cycles>| cycles.as_ref().and_then(|cycles| cycles.count().ok());
    let cycles_before = counted(&cycles);
    let sample = run.serve(slice, cancel)?;
    let cycles_after = counted(&cycles);
    Ok(Cost {
        engine: way.kind.to_string(),
        on: ground.on,
        path: ground.name.to_owned(),
        direct: way.direct,
        polled: way.polled,
        iops: sample.iops(),
        cpu_us_per_op: sample.cpu_us_per_op(),
        cycles_per_op: cycles_after
            .zip(cycles_before)
            .map(|(after, before)| after.saturating_sub(before) as f64 / sample.reads.max(1) as f64),
    })
}

/// How CPU cycles are counted, or why they are not.
pub fn cycles_by() -> String {
    match Cycles::start().and_then(|cycles| cycles.count()) {
        Ok(_) => "the processor's counter of cycles, user and kernel".to_owned(),
        Err(why) => format!("not counted: {why}"),
    }
}

/// A run of reads by one path. The engine is dropped first, because the kernel may write to the memory until then.
struct Run<'a> {
    engine: Box<dyn Engine>,
    memory: PageBuf,
    region: u16,
    depth: u32,
    free: Vec<u32>,
    pages: Pages,
    file: FileRef,
    node: &'a Path,
    done: Vec<Completion>,
    requests: Vec<IoRequest>,
}

impl<'a> Run<'a> {
    fn new(file: &File, ground: &'a Ground<'_>, way: Way, depth: u32) -> Result<Run<'a>> {
        let failed = |e: std::io::Error| Error::Tool { what: format!("the engine {}", way.kind), why: e.to_string() };
        let config = EngineConfig { capacity: depth, poll: way.polled, hold: Vec::new(), shared: false };
        let mut memory = PageBuf::new(depth as usize * PAGE_BYTES).map_err(failed)?;
        let mut engine = RealPlatform::default().engine(way.kind, &config).map_err(failed)?;
        // SAFETY: the field order drops the engine before it unmaps the memory.
        let region = unsafe { engine.register(memory.as_mut_ptr(), memory.len()) };
        Ok(Run {
            engine,
            memory,
            region: region.unwrap_or(NO_REGION),
            depth,
            free: (0..depth).collect(),
            pages: Pages::new(ground.len_bytes / PAGE_BYTES as u64),
            file: FileRef { handle: Handle(file.as_raw_fd()), key: 1 },
            node: ground.node,
            done: Vec::new(),
            requests: Vec::new(),
        })
    }

    /// Reads until the time is over or all pages were read.
    fn serve(&mut self, slice: Duration, cancel: &AtomicBool) -> Result<Sample> {
        let watch = Watch::start()?;
        let mut reads = 0;
        loop {
            self.push(watch.goes_on(slice, cancel));
            let in_flight = self.depth as usize - self.free.len();
            if in_flight == 0 {
                return watch.end(reads);
            }
            self.done.clear();
            let waited = self.engine.wait(in_flight.min(BATCH), None, &mut self.done);
            waited.map_err(|e| Error::Tool { what: "waiting for reads".into(), why: e.to_string() })?;
            for end in &self.done {
                self.free.push(end.slot);
                if end.result != PAGE_BYTES as i32 {
                    let source = match end.result {
                        errno if errno < 0 => std::io::Error::from_raw_os_error(-errno),
                        short => std::io::Error::other(format!("a read returned only {short} bytes of a page")),
                    };
                    return Err(Error::io("read", self.node, source));
                }
                reads += 1;
            }
        }
    }

    fn push(&mut self, goes_on: bool) {
        self.requests.clear();
        while goes_on && !self.free.is_empty() {
            let Some(page) = self.pages.draw() else { break };
            let Some(slot) = self.free.pop() else { break };
            // SAFETY: slots are below the depth, and the memory has a page for each slot.
            let buf = unsafe { self.memory.as_mut_ptr().add(slot as usize * PAGE_BYTES) };
            self.requests.push(IoRequest {
                slot,
                op: Op::Read,
                len: PAGE_BYTES as u32,
                file: self.file,
                offset: page * PAGE_BYTES as u64,
                memory: Memory::One { buf, region: self.region },
            });
        }
        // SAFETY: each slot has its own page, and nothing else uses that page until the slot's completion. The file
        // stays open for as long as this run lives, or the engine is dropped before the file is closed.
        unsafe { self.engine.push(&self.requests) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_to_a_file_reads_all_of_it_or_says_why_not() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, vec![7; 100 * PAGE_BYTES]).unwrap();
        File::open(&path).unwrap().sync_all().unwrap();
        let unpolled = Some("no queues for it".to_owned());
        let ground = Ground { node: &path, name: dir.path(), on: "file", len_bytes: 100 * PAGE_BYTES as u64, unpolled };
        let mut left_out = Vec::new();
        let all = ways(&ground, &mut left_out);
        assert!(left_out.last().unwrap().contains("no queues for it"), "{left_out:?}");
        assert!(all.len() + 2 * (left_out.len() - 1) == 6 && all.iter().all(|way| !way.polled), "{all:?} {left_out:?}");
        let never = AtomicBool::new(false);
        for way in all {
            let file = open(&path, way.direct).unwrap();
            let all = Run::new(&file, &ground, way, DEPTH).unwrap().serve(Duration::from_secs(60), &never).unwrap();
            assert_eq!(all.reads, 100);
            let cost = measure(&ground, way, DEPTH, Duration::from_millis(20), &never).unwrap();
            assert!(cost.iops > 0.0 && cost.cpu_us_per_op > 0.0, "{cost:?}");
        }
        // A file that is shorter than its stated length is an error, not a fast drive.
        let long = Ground { len_bytes: 200 * PAGE_BYTES as u64, ..ground.clone() };
        let way = Way { kind: EngineKind::Posix, direct: false, polled: false };
        let error = measure(&long, way, DEPTH, Duration::from_secs(5), &never).unwrap_err().to_string();
        assert!(error.contains("bytes of a page"), "{error}");
        // If polling is possible, each path that can poll is tried with it.
        let polled = ways(&Ground { unpolled: None, ..ground }, &mut Vec::new());
        assert!(polled.iter().filter(|way| way.polled).all(|way| way.direct && way.kind != EngineKind::Aio));
        assert!(polled.iter().any(|way| way.polled) && polled.len() <= WAYS_MAX);
    }
}

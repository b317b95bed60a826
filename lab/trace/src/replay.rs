//! The requests of a trace on a file, of an array or a plain one, in their order, as fast as iomill does them.
//!
//! Goals: a survey of the whole trace first, so that no error occurs half way. Threads take the requests in turn. The
//! time of each call is measured around it. Non-goals: the recorded times between requests; the file and its options,
//! which belong to the caller.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use iomill::{Array, Buffer, Counters, Error, File, Runtime};

use crate::error::{Result, TraceError};
use crate::format::{END_BYTES_MAX, Op};
use crate::pages::PAGE_BYTES;
use crate::reader::{Reader, Request};

/// The devices of a trace are one after the other in the file. Each begins at a multiple of this, in bytes.
const DEVICE_UNIT_BYTES: u64 = 1 << 30;

/// Requests in a batch of the reading thread, and the number of batches that it may be ahead.
const BATCH: usize = 4096;
const BATCHES: usize = 4;

/// Latencies from 1 ns to 1,000 s, to three digits.
const LATENCY_NS_MAX: u64 = 1_000_000_000_000;
const DIGITS: u8 = 3;

/// The sum of all requests of a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Survey {
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Bytes that are read.
    pub read_bytes: u64,
    /// Bytes that are written.
    pub write_bytes: u64,
    /// Page accesses of reads: a request touches every page that it overlaps.
    pub read_pages: u64,
    /// Page accesses of writes.
    pub write_pages: u64,
    /// The longest request, in bytes.
    pub longest_bytes: u32,
    /// The end of the last device when the devices lie one after the other, in bytes.
    pub end_bytes: u64,
    /// The start of each device, in bytes.
    bases: Vec<u64>,
}

impl Survey {
    /// Reads the first `limit` requests of a trace. `cancel` ends it soon, with the requests so far.
    pub fn of(reader: &mut Reader, limit: u64, cancel: &AtomicBool) -> Result<Survey> {
        let (mut survey, mut ends) = (Survey::default(), Vec::<u64>::new());
        for _ in 0..limit {
            if cancel.load(Ordering::Relaxed) {
                break;
            }
            let Some(request) = reader.next_request()? else { break };
            let (count, bytes, pages) = match request.op {
                Op::Read => (&mut survey.reads, &mut survey.read_bytes, &mut survey.read_pages),
                Op::Write => (&mut survey.writes, &mut survey.write_bytes, &mut survey.write_pages),
            };
            *count += 1;
            *pages += page_count(request);
            *bytes += u64::from(request.len);
            survey.longest_bytes = survey.longest_bytes.max(request.len);
            let device = request.device as usize;
            if device == ends.len() {
                ends.push(0);
            }
            ends[device] = ends[device].max(request.end());
        }
        for end in ends {
            let base = survey.end_bytes.next_multiple_of(DEVICE_UNIT_BYTES);
            survey.bases.push(base);
            survey.end_bytes = base + end;
            if survey.end_bytes > END_BYTES_MAX {
                let why = "its devices together are longer than 4 PiB; split it by devices".to_owned();
                return Err(TraceError::Whole { path: reader.path().to_owned(), why });
            }
        }
        if survey.requests() == 0 && !cancel.load(Ordering::Relaxed) {
            let why = "it has no requests, so there is nothing to replay".to_owned();
            return Err(TraceError::Whole { path: reader.path().to_owned(), why });
        }
        Ok(survey)
    }

    /// Reads and writes.
    pub fn requests(&self) -> u64 {
        self.reads + self.writes
    }

    /// Page accesses of a replay in that manner.
    fn pages(&self, mode: ReplayMode) -> u64 {
        self.read_pages + if mode == ReplayMode::ReadsOnly { 0 } else { self.write_pages }
    }

    /// The offset of a request in the file, in bytes. An error if the trace is not the surveyed one, and exceeds it.
    pub fn place(&self, request: Request, path: &str) -> Result<u64> {
        let base = self.bases.get(request.device as usize);
        let end = base.and_then(|base| base.checked_add(request.end()));
        match (base, end) {
            (Some(base), Some(end)) if end <= self.end_bytes => Ok(base + request.offset),
            _ => {
                let why = "it changed while it was being read; replay it again".to_owned();
                Err(TraceError::Whole { path: path.to_owned(), why })
            }
        }
    }
}

/// Pages that a request overlaps. Devices begin at whole pages, so the start of the device does not matter.
fn page_count(request: Request) -> u64 {
    match request.len {
        0 => 0,
        _ => (request.end() - 1) / PAGE_BYTES - request.offset / PAGE_BYTES + 1,
    }
}

/// The treatment of requests in a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayMode {
    /// As recorded.
    AsRecorded,
    /// Reads only; writes are left out.
    ReadsOnly,
    /// Every page that a request touches is written, so that reads find data on the drives.
    Prepare,
}

/// The array or runtime of a file. It counts the operations on the file.
#[derive(Clone, Copy, Debug)]
pub enum Owner<'a> {
    /// An array.
    Array(&'a Array),
    /// The runtime of a plain file.
    Runtime(&'a Runtime),
}

impl Owner<'_> {
    fn counters(self) -> Counters {
        match self {
            Owner::Array(array) => array.counters(),
            Owner::Runtime(runtime) => runtime.counters(),
        }
    }

    fn buffer(self, len: usize) -> Result<Buffer> {
        Ok(match self {
            Owner::Array(array) => array.buffer(len),
            Owner::Runtime(runtime) => runtime.buffer(len),
        }?)
    }
}

/// The settings of a replay.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Threads that take requests in turn; at least 1.
    pub threads: usize,
    /// The treatment of requests by the threads.
    pub mode: ReplayMode,
    /// The number of requests of the trace.
    pub limit: u64,
}

/// The result of a replay.
#[derive(Clone, Debug)]
pub struct Figures {
    /// Reads that were done.
    pub reads: u64,
    /// Writes that were done.
    pub writes: u64,
    /// Bytes of both.
    pub bytes: u64,
    /// From the first request to the end of the last one.
    pub wall: Duration,
    /// The counters of the array or the runtime, over the replay.
    pub whole: Counters,
    /// The same counters in the second half of the page accesses. The first half warms the cache. With several threads
    /// the halves are only about equal.
    pub warm: Counters,
    latency_ns: Histogram<u64>,
}

impl Figures {
    fn new() -> Result<Figures> {
        let latency_ns = Histogram::new_with_bounds(1, LATENCY_NS_MAX, DIGITS);
        let latency_ns = latency_ns.map_err(|error| machine("a table of latencies", &error.to_string()))?;
        let (whole, warm) = Default::default();
        Ok(Figures { reads: 0, writes: 0, bytes: 0, wall: Duration::ZERO, whole, warm, latency_ns })
    }

    /// Requests per second.
    pub fn ops_per_s(&self) -> f64 {
        (self.reads + self.writes) as f64 / self.wall.as_secs_f64().max(1e-9)
    }

    /// Bytes per second.
    pub fn bytes_per_s(&self) -> f64 {
        self.bytes as f64 / self.wall.as_secs_f64().max(1e-9)
    }

    /// The latency that this percentage of the requests does not exceed, in microseconds.
    pub fn latency_us(&self, percent: f64) -> f64 {
        self.latency_ns.value_at_percentile(percent) as f64 / 1e3
    }

    fn add(&mut self, other: &Figures) -> Result<()> {
        self.reads += other.reads;
        self.writes += other.writes;
        self.bytes += other.bytes;
        self.latency_ns.add(&other.latency_ns).map_err(|error| machine("a table of latencies", &error.to_string()))
    }
}

/// The common state of the threads.
struct Course<'a> {
    owner: Owner<'a>,
    file: &'a File,
    survey: &'a Survey,
    settings: Settings,
    path: String,
    /// Requests that were read and that no thread has taken: the rest of a batch, and the batches after it.
    coming: Mutex<(std::vec::IntoIter<Request>, Receiver<Vec<Request>>)>,
    /// The remaining page accesses of the first half. Below 0 in the second half.
    to_half: AtomicI64,
    /// The counters when the second half began.
    at_half: OnceLock<Counters>,
    /// Bytes done so far, for a progress display.
    done_bytes: &'a AtomicU64,
    cancel: &'a AtomicBool,
    /// A thread has failed, so the others need not continue.
    stop: AtomicBool,
}

/// Does the requests of the trace of `survey`, on a file that is at least as long as the survey's end. `done_bytes`
/// grows meanwhile. `cancel` ends it soon, with the figures so far.
pub fn run(
    reader: Reader,
    (owner, file): (Owner<'_>, &File),
    survey: &Survey,
    settings: Settings,
    done_bytes: &AtomicU64,
    cancel: &AtomicBool,
) -> Result<Figures> {
    let (give, take) = sync_channel(BATCHES);
    let course = Course {
        owner,
        file,
        survey,
        settings,
        path: reader.path().to_owned(),
        coming: Mutex::new((Vec::new().into_iter(), take)),
        to_half: AtomicI64::new((survey.pages(settings.mode) / 2) as i64),
        at_half: OnceLock::new(),
        done_bytes,
        cancel,
        stop: AtomicBool::new(false),
    };
    let (started, before) = (Instant::now(), owner.counters());
    let mut figures = Figures::new()?;
    thread::scope(|scope| {
        let course = &course;
        let spawn = |name: String| thread::Builder::new().name(name);
        let read = spawn("trace".to_owned())
            .spawn_scoped(scope, move || course.guard(|| read_ahead(reader, settings.limit, &give)))
            .map_err(|error| machine("the thread that reads the trace", &error.to_string()))?;
        let mut workers = Vec::with_capacity(settings.threads);
        let mut result = Ok(());
        for number in 0..settings.threads {
            match spawn(format!("replay-{number}")).spawn_scoped(scope, || course.guard(|| course.work())) {
                Ok(worker) => workers.push(worker),
                Err(error) => {
                    course.stop.store(true, Ordering::Relaxed);
                    result = Err(machine("a thread", &format!("{error}; give fewer with --threads")));
                    break;
                }
            }
        }
        for worker in workers {
            let one = worker.join().unwrap_or_else(|_| Err(machine("a replaying thread", "it panicked")));
            // There is no early return here, because the reading thread must still be ended.
            result = result.and_then(|()| one.and_then(|one| figures.add(&one)));
        }
        // No thread takes requests any more, so the reading thread must not wait for one.
        course.coming.lock().unwrap_or_else(PoisonError::into_inner).1 = sync_channel(0).1;
        let read = read.join().unwrap_or_else(|_| Err(machine("the thread that reads the trace", "it panicked")));
        // The trace's own error is reported first, because it ends the other threads early.
        read.and(result)
    })?;
    figures.wall = started.elapsed();
    let after = owner.counters();
    figures.whole = after.since(&before);
    figures.warm = after.since(course.at_half.get().unwrap_or(&before));
    Ok(figures)
}

/// Reads requests for the other threads, until all are read or all receivers have ended.
fn read_ahead(mut reader: Reader, limit: u64, give: &SyncSender<Vec<Request>>) -> Result<()> {
    let mut left = limit;
    while left > 0 {
        let mut batch = Vec::with_capacity(BATCH);
        while batch.len() < BATCH && left > 0 {
            match reader.next_request()? {
                Some(request) => batch.push(request),
                None => left = 1,
            }
            left -= 1;
        }
        if batch.is_empty() || give.send(batch).is_err() {
            break;
        }
    }
    Ok(())
}

impl Course<'_> {
    /// Does a thread's work. Its failure, or panic, stops the others.
    fn guard<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        struct Stop<'a>(&'a AtomicBool);
        impl Drop for Stop<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let stop = Stop(&self.stop);
        let result = work();
        if result.is_ok() {
            std::mem::forget(stop);
        }
        result
    }

    fn work(&self) -> Result<Figures> {
        let len = (u64::from(self.survey.longest_bytes) + 2 * PAGE_BYTES).next_multiple_of(PAGE_BYTES);
        // The bytes of writes never come from reads, because drives may skip the zeroes of holes.
        let (mut buffer, mut content) = (self.owner.buffer(len as usize)?, self.owner.buffer(len as usize)?);
        content.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at % 251) as u8 | 1);
        let mut figures = Figures::new()?;
        while !self.stop.load(Ordering::Relaxed) && !self.cancel.load(Ordering::Relaxed) {
            let Some(request) = self.next() else { break };
            self.one(request, &mut buffer, &content, &mut figures)?;
        }
        Ok(figures)
    }

    fn next(&self) -> Option<Request> {
        let mut coming = self.coming.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(request) = coming.0.next() {
                return Some(request);
            }
            coming.0 = coming.1.recv().ok()?.into_iter();
        }
    }

    /// Called before a request to `pages` pages. It stores the counters if the second half of all page accesses begins
    /// with this request, or within it.
    fn look_for_half(&self, pages: u64) {
        let left = self.to_half.fetch_sub(pages as i64, Ordering::Relaxed);
        if left >= 0 && left < pages as i64 {
            let _first_here = self.at_half.set(self.owner.counters());
        }
    }

    fn one(&self, request: Request, buffer: &mut Buffer, content: &[u8], figures: &mut Figures) -> Result<()> {
        let (mut offset, mut op) = (self.survey.place(request, &self.path)?, request.op);
        let mut len = request.len as usize;
        match self.settings.mode {
            ReplayMode::ReadsOnly if op == Op::Write => return Ok(()),
            ReplayMode::AsRecorded | ReplayMode::ReadsOnly => {}
            ReplayMode::Prepare if len == 0 => return Ok(()),
            ReplayMode::Prepare => {
                let end = (offset + len as u64).next_multiple_of(PAGE_BYTES);
                offset -= offset % PAGE_BYTES;
                (op, len) = (Op::Write, (end - offset) as usize);
            }
        }
        self.look_for_half(page_count(request));
        let begin = Instant::now();
        match op {
            Op::Read => {
                let read = self.file.read_at(&mut buffer[..len], offset)?;
                if read < len {
                    let why = format!("it ended at {}, within a read: it was cut meanwhile", offset + read as u64);
                    return Err(Error::invalid(format!("file {:?}", self.file.name()), why).into());
                }
                figures.reads += 1;
            }
            Op::Write => {
                self.file.write_at(&content[..len], offset)?;
                figures.writes += 1;
            }
        }
        figures.latency_ns.saturating_record(begin.elapsed().as_nanos() as u64);
        figures.bytes += len as u64;
        self.done_bytes.fetch_add(u64::from(request.len), Ordering::Relaxed);
        Ok(())
    }
}

fn machine(what: &str, why: &str) -> TraceError {
    Error::Tool { what: what.to_owned(), why: why.to_owned() }.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    static NEVER: AtomicBool = AtomicBool::new(false);

    const TRACE: &str = "0,0,4096,r,0\n7,9,512,w,0\n0,24,12288,w,0\n7,0,100,r,0\n0,1,512,r,0\n";

    fn reader(text: &str) -> Reader {
        Reader::new(std::io::Cursor::new(text.to_owned()), "t".into(), None).unwrap()
    }

    fn array() -> (TempDir, Array) {
        let dir = tempfile::tempdir().unwrap();
        let drives = ["a", "b"].map(|name| dir.path().join(name));
        drives.iter().for_each(|drive| std::fs::create_dir(drive).unwrap());
        let array = Array::create(drives).unwrap();
        (dir, array)
    }

    /// Replays on a new file. Returns the figures and the file.
    fn replay(text: &str, array: &Array, name: &str, mode: ReplayMode) -> Result<(Figures, File)> {
        let survey = Survey::of(&mut reader(TRACE), u64::MAX, &NEVER)?;
        let file = array.create_file(name, &iomill::FileOptions::new())?;
        file.set_len(survey.end_bytes.next_multiple_of(PAGE_BYTES))?;
        let (settings, done) = (Settings { threads: 3, mode, limit: u64::MAX }, AtomicU64::new(0));
        let figures = run(reader(text), (Owner::Array(array), &file), &survey, settings, &done, &NEVER)?;
        Ok((figures, file))
    }

    /// Whether a byte of a file is set.
    fn is_set(file: &File, offset: u64) -> bool {
        let mut byte = [0];
        assert_eq!(file.read_at(&mut byte, offset).unwrap(), 1);
        byte[0] != 0
    }

    #[test]
    fn a_survey_lays_devices_end_to_end() {
        let survey = Survey::of(&mut reader(TRACE), u64::MAX, &NEVER).unwrap();
        let expected = Survey {
            reads: 3,
            writes: 2,
            read_bytes: 4096 + 100 + 512,
            write_bytes: 512 + 12_288,
            read_pages: 3,
            write_pages: 4,
            longest_bytes: 12_288,
            end_bytes: DEVICE_UNIT_BYTES + 5120,
            bases: vec![0, DEVICE_UNIT_BYTES],
        };
        assert_eq!(survey, expected);
        assert_eq!(Survey::of(&mut reader(TRACE), 1, &NEVER).unwrap().end_bytes, 4096);
        assert!(
            Survey::of(&mut reader("op,offset,length\n"), 9, &NEVER).unwrap_err().to_string().contains("no requests")
        );
        let far = "r,4503599627370495,1\n";
        assert_eq!(Survey::of(&mut reader(far), 1, &NEVER).unwrap().end_bytes, END_BYTES_MAX);
        let far = "0,8796093022206,512,r,0\n1,0,512,r,0\n";
        assert!(Survey::of(&mut reader(far), 2, &NEVER).unwrap_err().to_string().contains("4 PiB"));
    }

    #[test]
    fn requests_do_what_they_say_where_they_say_it() {
        let (_dir, array) = array();
        let (figures, file) = replay(TRACE, &array, "f", ReplayMode::AsRecorded).unwrap();
        assert_eq!((figures.reads, figures.writes, figures.bytes), (3, 2, 4708 + 12_800));
        assert!(figures.ops_per_s() > 0.0 && figures.bytes_per_s() > figures.ops_per_s());
        assert!(figures.latency_us(50.0) > 0.0 && figures.latency_us(99.0) >= figures.latency_us(50.0));
        let base = DEVICE_UNIT_BYTES;
        for (offset, expected) in [
            (0, false),
            (24 * 512 - 1, false),
            (24 * 512, true),
            (48 * 512 - 1, true),
            (base + 9 * 512, true),
            (base + 10 * 512, false),
        ] {
            assert_eq!(is_set(&file, offset), expected, "{offset}");
        }
    }

    #[test]
    fn reads_only_changes_nothing_and_preparing_fills_the_pages() {
        let (_dir, array) = array();
        let (figures, file) = replay(TRACE, &array, "reads", ReplayMode::ReadsOnly).unwrap();
        assert_eq!((figures.reads, figures.writes, figures.bytes), (3, 0, 4708));
        assert!(!is_set(&file, 24 * 512));
        let (figures, file) = replay(TRACE, &array, "prepared", ReplayMode::Prepare).unwrap();
        assert_eq!((figures.reads, figures.writes), (0, 5));
        let base = DEVICE_UNIT_BYTES;
        for (offset, expected) in [(0, true), (4095, true), (4096, false), (base, true), (base + 8191, true)] {
            assert_eq!(is_set(&file, offset), expected, "{offset}");
        }
        assert_eq!(file.len(), base + 8192);
    }

    #[test]
    fn a_failure_ends_all_threads_and_is_reported() {
        let (_dir, array) = array();
        let many = "0,0,0,r,0\n".repeat(30 * BATCH);
        let error =
            replay(&(many.clone() + "0,0,x,r,0\n"), &array, "a", ReplayMode::AsRecorded).unwrap_err().to_string();
        assert!(error.contains("line 122881"), "{error}");
        let changed = "0,4194304,4096,r,0\n".to_owned() + &many;
        for (name, text) in [("b", changed), ("c", "0,0,1,r,0\n7,0,1,r,0\n9,0,1,r,0\n".to_owned())] {
            let error = replay(&text, &array, name, ReplayMode::AsRecorded).unwrap_err().to_string();
            assert!(error.contains("changed while"), "{error}");
        }
        let cut = array.create_file("cut", &iomill::FileOptions::new()).unwrap();
        let survey = Survey::of(&mut reader(TRACE), u64::MAX, &NEVER).unwrap();
        let settings = Settings { threads: 2, mode: ReplayMode::ReadsOnly, limit: u64::MAX };
        let done = AtomicU64::new(0);
        let error =
            run(reader(TRACE), (Owner::Array(&array), &cut), &survey, settings, &done, &NEVER).unwrap_err().to_string();
        assert!(error.contains("it was cut"), "{error}");
    }

    #[test]
    fn cancelling_and_limits_end_it_early() {
        let (_dir, array) = array();
        let many = "0,0,512,r,0\n".repeat(6 * BATCH);
        let survey = Survey::of(&mut reader(&many), u64::MAX, &NEVER).unwrap();
        let file = array.create_file("f", &iomill::FileOptions::new()).unwrap();
        file.set_len(survey.end_bytes).unwrap();
        let done = AtomicU64::new(0);
        let survey_of = |cancel| Survey::of(&mut reader(&many), u64::MAX, &AtomicBool::new(cancel)).unwrap().requests();
        assert_eq!((survey_of(false), survey_of(true)), (6 * BATCH as u64, 0));
        let settings = Settings { threads: 2, mode: ReplayMode::AsRecorded, limit: BATCH as u64 + 7 };
        let figures = run(reader(&many), (Owner::Array(&array), &file), &survey, settings, &done, &NEVER).unwrap();
        assert_eq!((figures.reads, done.into_inner()), (BATCH as u64 + 7, 512 * (BATCH as u64 + 7)));
        let cancel = AtomicBool::new(true);
        let figures =
            run(reader(&many), (Owner::Array(&array), &file), &survey, settings, &AtomicU64::new(0), &cancel).unwrap();
        assert_eq!(figures.reads, 0);
    }
}

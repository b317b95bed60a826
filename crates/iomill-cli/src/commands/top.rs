//! `iomill top`: the activity of the processes that use an array.
//!
//! Goals: one page per interval, with the rates of that interval. A process needs two looks for a rate, so the first
//! page comes after one interval. Non-goals: processes of other users, because their counters cannot be read.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::human;
use iomill::counters::{self, Published};
use iomill::{Counters, DriveCounters};
use serde_json::{Value, json};

use crate::arguments::Top;
use crate::console::{Answer, to_stdout};
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;
use crate::table::Table;
use crate::terminal::{self, Screen, WaitEnd};

pub fn run(context: &Context<'_>, arguments: &Top) -> Result<Answer> {
    let wish = Wish::new(context, arguments)?;
    let interrupt = Interrupt::install()?;
    let is_json = context.global.wants_document();
    let screen = if is_json { None } else { Screen::take().map_err(Failure::stdout)? };
    let mut watch = Watch::default();
    watch.look(&wish)?;
    let mut pages = 0;
    while arguments.count.is_none_or(|count| pages < count) {
        if pause(screen.as_ref(), &interrupt, arguments.interval)? == WaitEnd::Quit {
            break;
        }
        let page = watch.look(&wish)?;
        pages += 1;
        let text = if is_json { format!("{}\n", page.document()) } else { page.text(&wish) };
        match &screen {
            Some(screen) => screen.draw(&text).map_err(Failure::stdout)?,
            None => to_stdout(&text)?,
        }
    }
    if !is_json {
        context.note(watch.notices);
    }
    Ok(Answer { is_silent: true, ..Answer::default() })
}

fn pause(screen: Option<&Screen>, interrupt: &Interrupt, time: Duration) -> Result<WaitEnd> {
    let end = Instant::now() + time;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let waited = screen.map_or_else(|| terminal::wait(left), |screen| screen.wait(left));
        let waited =
            waited.map_err(|source| Failure::Local { action: "read", place: "the keyboard".into(), source })?;
        interrupt.check()?;
        // Other signals do not count, such as the one for a window that changes its size.
        if waited != WaitEnd::Signal {
            return Ok(waited);
        }
    }
}

/// The processes that the user wants to see.
struct Wish {
    pid: Option<u32>,
    array: Option<String>,
}

impl Wish {
    fn new(context: &Context<'_>, arguments: &Top) -> Result<Wish> {
        if arguments.pid.is_some() {
            // The parser refuses this only if both stand after the command's name.
            if !context.global.array.is_empty() {
                let why = "--pid names a process whatever array it uses; give either --pid or --array";
                return Err(Failure::Usage(why.to_owned()));
            }
            return Ok(Wish { pid: arguments.pid, array: None });
        }
        let Some(starts) = context.starts_if_named()? else { return Ok(Wish { pid: None, array: None }) };
        let peek = context.options().peek(starts)?;
        context.note(peek.notices());
        Ok(Wish { pid: None, array: Some(peek.id()) })
    }

    fn includes(&self, board: &Published) -> bool {
        self.pid.is_none_or(|pid| pid == board.pid()) && self.array.as_ref().is_none_or(|id| *id == board.array_id())
    }

    /// The text for a page without processes.
    fn no_process(&self) -> String {
        match (self.pid, &self.array) {
            (Some(pid), _) => format!("process {pid} uses no array, or belongs to another user"),
            (None, Some(id)) => format!("no process of this user uses array {id}"),
            (None, None) => "no process of this user uses an array".to_owned(),
        }
    }
}

/// The processes that were seen.
#[derive(Default)]
struct Watch {
    seen: BTreeMap<(u64, u64), Seen>,
    notices: Vec<String>,
}

struct Seen {
    board: Published,
    at: Instant,
    counters: Counters,
}

impl Watch {
    /// Reads the counters of all processes. The page shows their changes since the last call.
    fn look(&mut self, wish: &Wish) -> Result<Page> {
        let (found, notices) = counters::find(&counters::directories());
        let mut page = Page { processes: Vec::new(), arrivals: 0, notices };
        let mut seen = BTreeMap::new();
        for board in found.into_iter().filter(|board| wish.includes(board)) {
            let counters = match board.read() {
                Ok(Some(counters)) => counters,
                Ok(None) => continue,
                Err(error) => {
                    page.notices.push(format!("the counters of process {}: {error}", board.pid()));
                    continue;
                }
            };
            let at = Instant::now();
            // An entry in `seen` keeps its file open, so no other file has its key.
            match self.seen.get(&board.key()) {
                Some(before) => page.processes.push(Process::new(&board, &counters, before, at)),
                None => page.arrivals += 1,
            }
            seen.insert(board.key(), Seen { board, at, counters });
        }
        self.seen = seen;
        for notice in &page.notices {
            if !self.notices.contains(notice) {
                self.notices.push(notice.clone());
            }
        }
        Ok(page)
    }
}

/// All processes over one interval.
struct Page {
    processes: Vec<Process>,
    /// How many processes this look saw for the first time.
    arrivals: usize,
    notices: Vec<String>,
}

/// One process over one interval.
struct Process {
    pid: u32,
    array: String,
    drives: Vec<String>,
    seconds: f64,
    /// The activity of the process within the interval.
    did: Counters,
}

impl Process {
    fn new(board: &Published, counters: &Counters, before: &Seen, at: Instant) -> Process {
        Process {
            pid: board.pid(),
            array: before.board.array_id(),
            drives: board.drives().to_vec(),
            seconds: (at - before.at).as_secs_f64(),
            did: counters.since(&before.counters),
        }
    }

    fn per_s(&self, count: u64) -> f64 {
        count as f64 / self.seconds.max(1e-9)
    }

    fn text(&self) -> String {
        let (did, rate) = (&self.did, |count| human::count(self.per_s(count)));
        let hit_rate = did.hit_rate().map_or_else(|| "-".to_owned(), |rate| format!("{:.1}%", rate * 100.0));
        let mut text = format!(
            "process {}, array {}\nread {}, written {}\n",
            self.pid,
            self.array,
            human::rate(self.per_s(did.bytes_read)),
            human::rate(self.per_s(did.bytes_written)),
        );
        let mut cache = Table::new(&[
            ">cache",
            ">hit rate",
            ">hits/s",
            ">misses/s",
            "?>fills/s",
            "?>evictions/s",
            "?>flushes/s",
            "?>bypasses/s",
            "?>waits/s",
        ]);
        let counts = [did.hits, did.misses, did.fills, did.evictions, did.flushes, did.bypasses, did.waits];
        let size = if did.cache_bytes == 0 { "none".to_owned() } else { human::size(did.cache_bytes) };
        cache.row([size, hit_rate].into_iter().chain(counts.map(rate)));
        let mut drives = Table::new(&[
            ">drive",
            ">reads/s",
            ">writes/s",
            ">read",
            ">written",
            "?>in flight",
            "?>p50",
            ">p99",
            "?>p99.9",
            ">errors",
            "?~/path",
        ]);
        for (index, (drive, path)) in did.drives.iter().zip(&self.drives).enumerate() {
            drives.row(self.drive_cells(index, drive, path));
        }
        text.extend([cache.render(), drives.render()]);
        text
    }

    fn drive_cells(&self, index: usize, drive: &DriveCounters, path: &str) -> [String; 11] {
        let time = |share| drive.latency.quantile_us(share).map_or_else(|| "-".to_owned(), human::time_us);
        [
            index.to_string(),
            human::count(self.per_s(drive.reads)),
            human::count(self.per_s(drive.writes)),
            human::rate(self.per_s(drive.read_bytes)),
            human::rate(self.per_s(drive.write_bytes)),
            drive.in_flight.to_string(),
            time(0.5),
            time(0.99),
            time(0.999),
            drive.errors.to_string(),
            human::printable(path),
        ]
    }

    fn document(&self) -> Value {
        let did = &self.did;
        let drives = did.drives.iter().zip(&self.drives).enumerate();
        let drives: Vec<Value> = drives.map(|(index, (drive, path))| self.drive_document(index, drive, path)).collect();
        json!({
            "pid": self.pid,
            "array": self.array,
            "seconds": self.seconds,
            "cache_bytes": did.cache_bytes,
            "hit_rate": did.hit_rate(),
            "hits_per_s": self.per_s(did.hits),
            "misses_per_s": self.per_s(did.misses),
            "fills_per_s": self.per_s(did.fills),
            "evictions_per_s": self.per_s(did.evictions),
            "flushes_per_s": self.per_s(did.flushes),
            "bypasses_per_s": self.per_s(did.bypasses),
            "waits_per_s": self.per_s(did.waits),
            "pins_per_s": self.per_s(did.pins),
            "read_ahead_per_s": self.per_s(did.read_ahead),
            "read_bytes_per_s": self.per_s(did.bytes_read),
            "written_bytes_per_s": self.per_s(did.bytes_written),
            "drives": drives,
        })
    }

    fn drive_document(&self, index: usize, drive: &DriveCounters, path: &str) -> Value {
        json!({
            "index": index,
            "path": path,
            "reads_per_s": self.per_s(drive.reads),
            "writes_per_s": self.per_s(drive.writes),
            "syncs_per_s": self.per_s(drive.syncs),
            "read_bytes_per_s": self.per_s(drive.read_bytes),
            "written_bytes_per_s": self.per_s(drive.write_bytes),
            "in_flight": drive.in_flight,
            "errors": drive.errors,
            "p50_us": drive.latency.quantile_us(0.5),
            "p99_us": drive.latency.quantile_us(0.99),
            "p999_us": drive.latency.quantile_us(0.999),
        })
    }
}

impl Page {
    fn document(&self) -> Value {
        let processes: Vec<Value> = self.processes.iter().map(Process::document).collect();
        json!({ "processes": processes, "notices": self.notices })
    }

    fn text(&self, wish: &Wish) -> String {
        let mut text = String::new();
        for process in &self.processes {
            text.extend([&process.text(), "\n"]);
        }
        match (self.processes.is_empty(), self.arrivals) {
            (true, 0) => text.extend([&wish.no_process(), "\n"]),
            (true, 1) => text.push_str("1 process was seen for the first time: its rates are on the next page\n"),
            (true, many) => {
                text.push_str(&format!(
                    "{many} processes were seen for the first time: their rates are on the next page\n"
                ));
            }
            (false, _) => {}
        }
        text
    }
}

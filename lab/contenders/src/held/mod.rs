//! Contenders with limited memory. Each works in a process of its own, in a memory cgroup, because the kernel counts
//! the page cache against the process that fills it.
//!
//! The memory of the process itself is measured once the process is ready. The limit is that memory plus the memory for
//! the cache. Rules:
//! - H1: the process touches no measured byte before its group has its limit.
//! - H2: pages that other contenders left in the page cache are dropped before each slice. The group would not count
//!   them.
//!
//! Non-goals: limits on anything but memory.

mod child;
mod group;
mod protocol;
mod reads;
mod writes;

#[cfg(test)]
mod tests;

use std::fmt;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use iomill::{Error, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

pub use child::serve;
pub use group::MemoryGroup;
pub use protocol::Job;
use protocol::{Answer, Request};

use crate::access::Access;
use crate::contender::{Cache, Contender, Sample, Slice};
use crate::rows::RowReads;
use crate::small_writes::SmallWrites;
use crate::target::Target;
use crate::task::Task;
use iomill_cli::human;

/// How often a waiting measurement checks for cancellation.
const TICK: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// The longest time of a turn beyond 20 times its length. 256 threads that read a mapping without advice were seen to
/// evict each other's pages for 15 minutes, and no gather ended.
const PATIENCE: Duration = Duration::from_secs(60);

/// A command that calls [`serve`] with its standard streams.
#[derive(Clone, Debug)]
pub struct Helper {
    /// The executable.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<String>,
}

/// A measurement that limits memory.
pub trait HeldTask: Task {
    /// Memory for the cache, in bytes.
    fn cache_bytes(&self) -> u64;

    /// Length of the measured data, in bytes.
    fn len_bytes(&self) -> u64;

    /// Whether it leaves other bytes than the pattern.
    fn spoils(&self) -> bool;
}

impl HeldTask for Access {
    fn cache_bytes(&self) -> u64 {
        self.cache_bytes
    }

    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn spoils(&self) -> bool {
        self.writes()
    }
}

impl HeldTask for RowReads {
    fn cache_bytes(&self) -> u64 {
        self.cache_bytes
    }

    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn spoils(&self) -> bool {
        false
    }
}

impl HeldTask for SmallWrites {
    fn cache_bytes(&self) -> u64 {
        self.cache_bytes
    }

    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn spoils(&self) -> bool {
        true
    }
}

/// The reason why no memory can be limited here, or `None` if it can.
pub fn why_not() -> Option<String> {
    MemoryGroup::make().err()
}

/// A contender in a process of its own.
pub struct Held<T> {
    name: &'static str,
    helper: Helper,
    job: Box<dyn Fn(&T) -> Job>,
    /// The target, if reads of it that miss the process's memory must come from drives.
    cold: Option<Target>,
    running: Option<Running>,
    /// The reason why the process has ended.
    lost: Option<String>,
    spoils: bool,
    notes: Vec<String>,
}

impl<T> fmt::Debug for Held<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held").field("name", &self.name).field("running", &self.running).finish_non_exhaustive()
    }
}

impl<T: HeldTask> Held<T> {
    /// A contender with a process. `job` makes the process's job from a task.
    pub fn new(name: &'static str, helper: &Helper, job: impl Fn(&T) -> Job + 'static) -> Held<T> {
        let (helper, job) = (helper.clone(), Box::new(job));
        Held { name, helper, job, cold: None, running: None, lost: None, spoils: false, notes: Vec::new() }
    }

    /// Takes part only if reads of `target` can be shown to come from drives.
    pub fn over_drives(self, target: Target) -> Held<T> {
        Held { cold: Some(target), ..self }
    }
}

impl<T: HeldTask> Contender<T> for Held<T> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn cache(&self) -> Cache {
        Cache::Held
    }

    fn prepare(&mut self, task: &T) -> Result<Option<String>> {
        task.check()?;
        self.spoils = task.spoils();
        // The process of the last task ends first, and frees its memory.
        (self.running, self.lost) = (None, None);
        if let Some(why) = self.cold.as_ref().map_or(Ok(None), Target::why_not_cold)? {
            return Ok(Some(why));
        }
        let group = match MemoryGroup::make() {
            Ok(group) => group,
            Err(why) => return Ok(Some(format!("its memory cannot be limited: {why}"))),
        };
        let mut running = Running::start(self.name, &self.helper, group)?;
        let answer = match running.ask(&Request::Prepare((self.job)(task)), None) {
            Ok(answer) => answer,
            Err(error) => return Ok(Some(error.to_string())),
        };
        match answer {
            Some(Answer::Ready) => {}
            Some(Answer::LeftOut(why)) => return Ok(Some(why)),
            other => return Err(running.odd(other)),
        }
        let own = running.group.usage_bytes()?;
        running.group.limit(own + task.cache_bytes())?;
        (running.own_bytes, running.room_bytes) = (own, task.cache_bytes().min(task.len_bytes()));
        self.notes = vec![format!(
            "a process in a {}: {} for the page cache and {} for itself",
            running.group.describe(),
            human::size(task.cache_bytes()),
            human::size(own)
        )];
        self.running = Some(running);
        Ok(None)
    }

    fn run(&mut self, slice: &Slice<'_>) -> Result<Sample> {
        let unprepared = || Error::Tool { what: self.name.to_owned(), why: "it has not been prepared".into() };
        let running = self.running.as_mut().ok_or_else(unprepared)?;
        let duration_us = slice.duration.as_micros() as u64;
        let request = Request::Run { threads: slice.threads, duration_us, verify: slice.verify };
        let until = Bounds { cancel: slice.cancel, time: PATIENCE + 20 * slice.duration };
        let mut ask = |running: &mut Running, request: &Request| {
            running.ask(request, Some(until)).inspect_err(|error| self.lost = Some(error.to_string()))
        };
        let mut answer = ask(running, &request)?;
        let mut filled = None;
        if let Some(Answer::SetUp) = answer {
            // By rule 3 of `state`, before the slice: it may end with more bytes in memory than at its begin.
            let used_bytes = running.group.usage_bytes()?.saturating_sub(running.own_bytes);
            filled = Some(used_bytes as f64 / running.room_bytes.max(1) as f64);
            answer = ask(running, &Request::Begin)?;
        }
        match answer {
            Some(Answer::Sample(sample)) => Ok(Sample { filled, ..sample.into_sample()? }),
            // Cancelled. The process still works on its slice, so it is useless. The sample is worthless.
            None => {
                self.running = None;
                Sample::empty()
            }
            other => Err(running.odd(other)),
        }
    }

    fn lost(&self) -> Option<String> {
        self.lost.clone()
    }

    fn spoils(&self) -> bool {
        self.spoils
    }

    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }
}

/// The end of a wait for an answer.
#[derive(Clone, Copy)]
struct Bounds<'a> {
    cancel: &'a AtomicBool,
    time: Duration,
}

/// A running process.
#[derive(Debug)]
struct Running {
    name: &'static str,
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    /// Removed after the process: fields are dropped after `drop` has waited for it.
    group: MemoryGroup,
    /// Memory that the process used for itself when it was ready.
    own_bytes: u64,
    /// Bytes that its cache holds when full.
    room_bytes: u64,
}

impl Running {
    fn start(name: &'static str, helper: &Helper, group: MemoryGroup) -> Result<Running> {
        let mut command = Command::new(&helper.program);
        command.args(&helper.arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|e| Error::io("start", &helper.program, e))?;
        match (child.stdin.take(), child.stdout.take()) {
            (Some(to), Some(from)) => {
                // H1: the process waits on its standard input for a request.
                let running =
                    Running { name, child, to, from: BufReader::new(from), group, own_bytes: 0, room_bytes: 0 };
                running.group.take_in(running.child.id())?;
                Ok(running)
            }
            _ => Err(Error::Tool { what: format!("the process of {name}"), why: "it has no pipes".into() }),
        }
    }

    /// Sends a request, and waits for the answer. Returns `None` if it is cancelled first.
    fn ask(&mut self, request: &Request, until: Option<Bounds<'_>>) -> Result<Option<Answer>> {
        let start = Instant::now();
        let mut line = request.line()?;
        line.push('\n');
        if let Err(error) = self.to.write_all(line.as_bytes()) {
            return Err(self.lost(&error.to_string()));
        }
        let is_cancelled = || until.is_some_and(|until| until.cancel.load(Ordering::Relaxed));
        let is_late = || until.is_some_and(|until| start.elapsed() > until.time);
        while self.from.buffer().is_empty() {
            let mut waited = [PollFd::new(self.from.get_ref(), PollFlags::IN)];
            let ready = poll(&mut waited, Some(&TICK));
            match ready {
                _ if is_cancelled() => return Ok(None),
                Ok(0) if is_late() => {
                    return Err(self.lost(&format!("it did not end its turn within {} s", start.elapsed().as_secs())));
                }
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) => break,
                Err(error) => return Err(self.lost(&error.to_string())),
            }
        }
        let mut line = String::new();
        match self.from.read_line(&mut line) {
            // A signal that cancels the measurement has reached the process too.
            Ok(0) if is_cancelled() => Ok(None),
            Ok(0) => {
                Err(self.lost("it has ended; if the kernel killed it for lack of memory, ask for a larger --cache"))
            }
            Ok(_) => Answer::parse(&line).map(Some),
            Err(error) => Err(self.lost(&error.to_string())),
        }
    }

    fn lost(&self, why: &str) -> Error {
        Error::Tool { what: format!("the process of {}", self.name), why: why.to_owned() }
    }

    fn odd(&self, answer: Option<Answer>) -> Error {
        match answer {
            Some(Answer::Failed(why)) => self.lost(&why),
            other => self.lost(&format!("it gave an unexpected answer: {other:?}")),
        }
    }
}

impl Drop for Running {
    /// The process may have ended by itself. Waiting makes sure that its group is empty.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

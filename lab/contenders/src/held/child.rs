//! The process with limited memory. It serves the requests on its standard input, until the input ends.

use std::io::{BufRead, Lines, Write};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use iomill::{Error, Result};

use super::protocol::{Answer, Figures, Job, Request};
use super::reads::Buffered;
use super::writes::Plain;
use crate::contender::{Cache, Contender, Sample, Slice};
use crate::rows::{Loops, RowReads};

/// Serves requests. An error of a request goes back as an answer, because only the asking process can tell the user. A
/// returned error is a broken pipe.
pub fn serve(input: impl BufRead, output: impl Write) -> Result<()> {
    let mut pipes = Pipes { lines: input.lines(), output };
    let mut work: Option<Work> = None;
    while let Some(text) = pipes.next()? {
        let answer = answer(&text, &mut work, &mut pipes).unwrap_or_else(|e| Answer::Failed(e.to_string()));
        pipes.say(&answer)?;
    }
    Ok(())
}

/// The connection of the process with the measurement.
struct Pipes<I, O> {
    lines: Lines<I>,
    output: O,
}

impl<I: BufRead, O: Write> Pipes<I, O> {
    /// The next request; `None` at the end.
    fn next(&mut self) -> Result<Option<String>> {
        self.lines.next().transpose().map_err(broken)
    }

    fn say(&mut self, answer: &Answer) -> Result<()> {
        let mut line = answer.line()?;
        line.push('\n');
        self.output.write_all(line.as_bytes()).and_then(|()| self.output.flush()).map_err(broken)
    }

    /// Reports that a slice is set up, and waits for its begin: the measurement reads the memory in between.
    fn wait_to_begin(&mut self) -> Result<()> {
        self.say(&Answer::SetUp)?;
        match self.next()?.map(|text| Request::parse(&text)).transpose()? {
            Some(Request::Begin) => Ok(()),
            other => Err(Error::invalid(format!("{other:?} after a slice was set up"), "begin it first")),
        }
    }
}

fn broken(error: std::io::Error) -> Error {
    Error::io("talk through", "a pipe to the measurement", error)
}

/// A prepared job of a process.
enum Work {
    Access(Buffered),
    Rows(Loops),
    Write(Plain),
}

impl Work {
    /// Runs one slice. Calls `ready` when it is set up and before the clock starts.
    fn run(&mut self, slice: &Slice<'_>, ready: &mut dyn FnMut() -> Result<()>) -> Result<Sample> {
        match self {
            Work::Access(buffered) => buffered.run(slice, ready),
            Work::Rows(loops) => loops.run_told(slice, ready),
            Work::Write(plain) => plain.run(slice, ready),
        }
    }
}

fn answer(text: &str, work: &mut Option<Work>, pipes: &mut Pipes<impl BufRead, impl Write>) -> Result<Answer> {
    // To end a slice early, the measurement ends this process.
    static NEVER: AtomicBool = AtomicBool::new(false);
    let early = || Error::invalid("a slice before its job", "prepare the process first");
    match Request::parse(text)? {
        Request::Begin => Err(early()),
        Request::Prepare(job) => {
            match job {
                Job::Access { mapped: true, access, .. } if access.writes() => {
                    let why =
                        "a store to a mapped file races with the loads of other threads; measure it with reads only";
                    return Ok(Answer::LeftOut(why.to_owned()));
                }
                Job::Access { mapped, drives, file_name, access } => {
                    *work = Some(Work::Access(Buffered::new(mapped, &drives, &file_name, access)?));
                }
                Job::Rows { path, way, reads } => {
                    let mut loops = Loops::new(way, path, Cache::Held);
                    if let Some(why) = Contender::<RowReads>::prepare(&mut loops, &reads)? {
                        return Ok(Answer::LeftOut(why));
                    }
                    *work = Some(Work::Rows(loops));
                }
                Job::Write { path, writes } => *work = Some(Work::Write(Plain::new(path, writes)?)),
            }
            Ok(Answer::Ready)
        }
        Request::Run { threads, duration_us, verify } => {
            let work = work.as_mut().ok_or_else(early)?;
            let slice = Slice { threads, duration: Duration::from_micros(duration_us), verify, cancel: &NEVER };
            Ok(Answer::Sample(Figures::of(&work.run(&slice, &mut || pipes.wait_to_begin())?)))
        }
    }
}

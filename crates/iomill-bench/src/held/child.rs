//! The process with limited memory. It does what its standard input asks for, until that ends.

use std::io::{BufRead, Write};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use iomill::{Error, Result};

use super::protocol::{Answer, Figures, Job, Request};
use super::reads::Buffered;
use super::writes::Plain;
use crate::contender::{Sample, Slice};

/// Serves requests. An error of a request goes back as an answer, because only the asking process can tell the user. A returned
/// error is a broken pipe.
pub fn serve(input: impl BufRead, mut output: impl Write) -> Result<()> {
    let broken = |e| Error::io("talk through", "a pipe to the measurement", e);
    let mut work: Option<Box<dyn Work>> = None;
    for text in input.lines() {
        let answer = answer(&text.map_err(broken)?, &mut work).unwrap_or_else(|e| Answer::Failed(e.to_string()));
        let mut line = answer.line()?;
        line.push('\n');
        output.write_all(line.as_bytes()).and_then(|()| output.flush()).map_err(broken)?;
    }
    Ok(())
}

/// A prepared job of a process.
pub(super) trait Work {
    /// Runs one slice.
    fn run(&mut self, slice: &Slice<'_>) -> Result<Sample>;
}

fn answer(text: &str, work: &mut Option<Box<dyn Work>>) -> Result<Answer> {
    // To end a slice early, the measurement ends this process.
    static NEVER: AtomicBool = AtomicBool::new(false);
    match Request::parse(text)? {
        Request::Prepare(job) => {
            match job {
                Job::Access { mapped: true, access, .. } if access.writes() => {
                    let why =
                        "a store to a mapped file races with the loads of other threads; measure it with reads only";
                    return Ok(Answer::LeftOut(why.to_owned()));
                }
                Job::Access { mapped, drives, file_name, access } => {
                    *work = Some(Box::new(Buffered::new(mapped, &drives, &file_name, access)?));
                }
                Job::Write { path, writes } => *work = Some(Box::new(Plain::new(path, writes)?)),
            }
            Ok(Answer::Ready)
        }
        Request::Run { threads, duration_us, verify } => {
            let early = || Error::invalid("a slice before its job", "prepare the process first");
            let work = work.as_mut().ok_or_else(early)?;
            let slice = Slice { threads, duration: Duration::from_micros(duration_us), verify, cancel: &NEVER };
            Ok(Answer::Sample(Figures::of(&work.run(&slice)?)))
        }
    }
}

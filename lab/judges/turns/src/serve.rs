//! The process of a contender. It serves the requests on its standard input, and answers with a line of JSON each.

use std::io::{BufRead, Write, stdin, stdout};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::row::Load;
use crate::seen::{Moment, Seen};

/// A request of the measurement.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    Fill,
    Slice { seed: u64 },
}

/// An answer of the process.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Answer {
    Ready,
    Filled,
    Slice { seen: Seen, ops: u64, bytes: u64, digest: u64 },
    Failed(String),
}

/// Serves one contender until its standard input ends.
pub fn serve(mut load: impl Load) -> Result<()> {
    say(&Answer::Ready)?;
    for line in stdin().lock().lines() {
        let request = serde_json::from_str(&line.context("the pipe to the measurement is broken")?)?;
        // Only the measurement can report it to the user.
        say(&answer(&mut load, request).unwrap_or_else(|error| Answer::Failed(format!("{error:#}"))))?;
    }
    load.close()
}

fn answer(load: &mut impl Load, request: Request) -> Result<Answer> {
    match request {
        Request::Fill => {
            load.fill()?;
            Ok(Answer::Filled)
        }
        Request::Slice { seed } => {
            load.settle()?;
            let before = Moment::now()?;
            let done = load.slice(seed)?;
            let seen = before.since()?;
            let work = load.check(seed, done)?;
            Ok(Answer::Slice { seen, ops: work.ops, bytes: work.bytes, digest: work.digest })
        }
    }
}

fn say(answer: &Answer) -> Result<()> {
    let mut line = serde_json::to_string(answer)?;
    line.push('\n');
    let mut out = stdout().lock();
    out.write_all(line.as_bytes()).and_then(|()| out.flush()).context("the pipe to the measurement is broken")
}

//! The process of a contender. It reads a job from its standard input, opens or makes the data, reports that, waits for
//! a line, and runs the load.

use std::io::{BufRead, Write};

use iomill::{Array, ArrayOptions};
use serde::{Deserialize, Serialize};

use crate::job::{Contender, Job, Measure, Result};
use crate::loads::{self, timed::Ready};

/// The answers of the process, one per line.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) enum Said {
    /// The data are open. Only the parts that the program keeps in memory were read.
    Ready,
    /// The times of the load, and the bytes that drives delivered during it.
    Done {
        measures: Vec<Measure>,
        fetched_bytes: u64,
    },
    Failed(String),
}

/// iomill's cache gets this share of the memory for the data. The rest is for the kernel's tables of that memory.
const CACHE_SHARE: (u64, u64) = (15, 16);

/// Serves the requests of the standard input. An error is a broken pipe.
pub fn serve(mut input: impl BufRead, mut output: impl Write) -> std::io::Result<()> {
    let mut line = String::new();
    input.read_line(&mut line)?;
    let said = work(&line, &mut input, &mut output).unwrap_or_else(|error| Said::Failed(error.to_string()));
    say(&mut output, &said)
}

fn say(output: &mut impl Write, said: &Said) -> std::io::Result<()> {
    writeln!(output, "{}", serde_json::to_string(said)?)?;
    output.flush()
}

fn work(line: &str, input: &mut impl BufRead, output: &mut impl Write) -> Result<Said> {
    let job: Job = serde_json::from_str(line)?;
    let array = array(&job)?;
    if job.makes {
        loads::make(&job, array.as_ref())?;
        if let Some(array) = array {
            array.close()?;
        }
        return Ok(Said::Done { measures: Vec::new(), fetched_bytes: 0 });
    }
    let mut ready: Box<dyn Ready> = loads::open(&job, array.as_ref())?;
    say(output, &Said::Ready)?;
    input.read_line(&mut String::new())?;
    let before = fetched_bytes()?;
    let measures = ready.run(job.seed)?;
    let fetched_bytes = fetched_bytes()? - before;
    drop(ready);
    if let Some(array) = array {
        array.close()?;
    }
    Ok(Said::Done { measures, fetched_bytes })
}

/// The array of a job of iomill.
fn array(job: &Job) -> Result<Option<Array>> {
    if job.contender != Contender::Iomill {
        return Ok(None);
    }
    let options = ArrayOptions::new().cache_bytes(job.cache_bytes / CACHE_SHARE.1 * CACHE_SHARE.0);
    Ok(Some(if job.makes { options.create(&job.drives)? } else { options.open_at(&job.drives)? }))
}

/// Bytes that drives have delivered to this process.
fn fetched_bytes() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/self/io")?;
    let line = text.lines().find_map(|line| line.strip_prefix("read_bytes: ")).ok_or("the kernel counts no reads")?;
    Ok(line.trim().parse()?)
}

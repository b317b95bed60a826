//! The rounds of a row.

use std::env;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::group::MemoryGroup;
use crate::report::{Figures, Result as RowResult};
use crate::row::Row;
use crate::serve::{Answer, Request};

/// Slices before those that count. The first slice of a process allocates memory and opens files.
const UNCOUNTED: u32 = 1;

/// Runs all rounds of a row.
pub(crate) fn row(row: &Row, rounds: u32) -> Result<RowResult> {
    eprintln!("{}: {}", row.name, row.what);
    let mut running = Vec::new();
    for contender in row.contenders {
        let what = || format!("row {}, {contender}", row.name);
        running.push(Running::start(row, contender).with_context(what)?);
    }
    // Again: while the others filled their memory, the kernel may have dropped cached pages of the first one.
    for (running, contender) in running.iter_mut().zip(row.contenders) {
        running.fill().with_context(|| format!("row {}, {contender}", row.name))?;
    }
    let mut figures = vec![Vec::new(); running.len()];
    for round in 0..UNCOUNTED + rounds {
        let mut digests = Vec::new();
        for turn in 0..running.len() {
            let at = (turn + round as usize) % running.len();
            let what = || format!("row {}, {}, round {round}", row.name, row.contenders[at]);
            let (one, digest) = running[at].slice(row, round.into()).with_context(what)?;
            digests.push((row.contenders[at], digest));
            if round >= UNCOUNTED {
                figures[at].push(one);
            }
        }
        let first = digests[0].1;
        ensure!(
            digests.iter().all(|&(_, digest)| digest == first),
            "row {}, round {round}: the contenders have different results: {digests:x?}",
            row.name
        );
    }
    Ok(RowResult { row: row.clone(), figures })
}

/// A contender's process.
struct Running {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    /// Dropped after the process has ended.
    group: Option<MemoryGroup>,
}

impl Running {
    /// Starts a contender, and prepares its state.
    fn start(row: &Row, contender: &str) -> Result<Running> {
        let program = env::current_exe().context("this program's file is not known")?;
        let mut command = Command::new(program);
        command.args(env::args_os().skip(1)).args(["--contender", row.name, contender]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("cannot start it")?;
        let group = row.memory_bytes.map(|_| MemoryGroup::of_process(child.id())).transpose();
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().context("it has no standard output")?);
        let mut running = Running { child, input, output, group: group? };
        running.prepare(row)?;
        Ok(running)
    }

    /// Limits the memory of a ready process (rule T1), and lets it fill that memory.
    fn prepare(&mut self, row: &Row) -> Result<()> {
        match self.answer()? {
            Answer::Ready => {}
            other => bail!("it answers {other:?} before it is ready"),
        }
        if let (Some(group), Some(bytes)) = (&self.group, row.memory_bytes) {
            group.limit(group.own_bytes()? + bytes)?;
        }
        self.fill()
    }

    fn fill(&mut self) -> Result<()> {
        match self.ask(&Request::Fill)? {
            Answer::Filled => Ok(()),
            other => bail!("it answers {other:?} when it is to fill its memory"),
        }
    }

    /// Takes one slice, and refuses it if it was not in the row's state.
    fn slice(&mut self, row: &Row, seed: u64) -> Result<(Figures, u64)> {
        match self.ask(&Request::Slice { seed })? {
            Answer::Slice { seen, ops, bytes, digest } => {
                row.state.check(&seen, bytes)?;
                Ok((Figures::new(&seen, ops), digest))
            }
            other => bail!("it answers {other:?} when it is to take a slice"),
        }
    }

    fn ask(&mut self, request: &Request) -> Result<Answer> {
        let mut line = serde_json::to_string(request)?;
        line.push('\n');
        let input = self.input.as_mut().context("its standard input is closed")?;
        input.write_all(line.as_bytes()).context("it takes no requests; it may have ended for want of memory")?;
        self.answer()
    }

    fn answer(&mut self) -> Result<Answer> {
        let mut line = String::new();
        if self.output.read_line(&mut line).context("cannot read its answer")? == 0 {
            let status = self.child.wait().context("cannot wait for its process")?;
            bail!("its process has ended with {status}; its messages are above");
        }
        match serde_json::from_str(&line).with_context(|| format!("its answer is not understood: {line:?}"))? {
            Answer::Failed(why) => bail!("{why}"),
            answer => Ok(answer),
        }
    }
}

impl Drop for Running {
    /// The process ends with its standard input.
    fn drop(&mut self) {
        drop(self.input.take());
        match self.child.wait() {
            Ok(status) if status.success() => {}
            other => eprintln!("a contender's process ended with {other:?}"),
        }
    }
}

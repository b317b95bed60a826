//! The measurement: a server with each reader in turn, in rounds. Cold: the kernel and iomill have none of the file.
//! Warm: they have all that is asked for. The drives' reads that the kernel counts for the server tell whether it was
//! so.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde::Serialize;

use crate::client::{self, Load, Times};
use crate::data::{self, ROW_BYTES};
use crate::source::Reader;

/// The rows of the warm load: 64 MiB.
const WARM_ROWS: u64 = 16 * 1024;

/// A cold load has at least this share of its rows from the drive, and a warm one at most the rest.
const COLD_SHARE_MIN: f64 = 0.8;

const READERS: [Reader; 2] = [Reader::Iomill, Reader::TokioFs];

/// What to measure.
#[derive(Debug, Args)]
pub struct Bench {
    /// The file; it is made if it does not exist
    #[arg(long, default_value = "target/rows")]
    file: PathBuf,
    /// MiB of the file
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u64).range(128..))]
    mib: u64,
    /// Connections, each with one request at a time
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=4096))]
    clients: u64,
    /// Rows of a request
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1024))]
    ids: u64,
    /// Seconds of a measurement
    #[arg(long, default_value_t = 1.0, value_parser = seconds)]
    seconds: f64,
    /// How often each reader is measured
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=99))]
    rounds: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// One measurement, or the medians of several.
#[derive(Clone, Debug, Serialize)]
struct Figures {
    load: &'static str,
    reader: String,
    requests_per_s: f64,
    p50_us: f64,
    p99_us: f64,
    p999_us: f64,
    /// CPU time of the server for a request.
    cpu_us: f64,
    /// Of the rows: how many the drive has read for the server.
    drive_share: f64,
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().map_err(|_| "not a number")?;
    if (0.1..=3600.0).contains(&seconds) { Ok(seconds) } else { Err("it must be from 0.1 to 3600".into()) }
}

impl Bench {
    /// Measures, and prints.
    pub fn run(&self) -> Result<()> {
        let rows = self.mib * (1 << 20) / ROW_BYTES as u64;
        data::make(&self.file, rows)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let mut all = Vec::new();
        for (load, rows) in [("cold", rows), ("warm", WARM_ROWS)] {
            let mut rounds = READERS.map(|_| Vec::new());
            for round in 0..self.rounds {
                eprintln!("{load}, round {} of {}", round + 1, self.rounds);
                for (reader, rounds) in READERS.into_iter().zip(&mut rounds) {
                    let what = || format!("the {load} load with {reader}");
                    rounds.push(runtime.block_on(self.measure(load, rows, reader, round)).with_context(what)?);
                }
            }
            all.extend(rounds.iter().map(|rounds| median(rounds)));
            all.push(ratios(&rounds[0], &rounds[1]));
        }
        if self.json {
            println!("{}", serde_json::to_string_pretty(&all)?);
        } else {
            print(&all);
        }
        Ok(())
    }

    async fn measure(&self, load: &'static str, rows: u64, reader: Reader, round: u64) -> Result<Figures> {
        data::forget(&self.file)?;
        let server = Server::start(&self.file, reader)?;
        let (time, ids) = (Duration::from_secs_f64(self.seconds), self.ids as usize);
        let is_warm = load == "warm";
        if is_warm {
            client::warm(server.address, rows).await?;
        }
        let before = server.usage()?;
        let times = client::run(server.address, Load { clients: self.clients, ids, rows, time }, round).await?;
        let used = server.usage()?.since(before);
        let figures = figures(load, reader, self, &times, used);
        ensure!(
            (figures.drive_share >= COLD_SHARE_MIN) != is_warm,
            "the drive read {:.0}% of the rows, so the load was not {load}: {}",
            100.0 * figures.drive_share,
            if is_warm { "leave more memory" } else { "use a larger file (--mib) or less time (--seconds)" }
        );
        Ok(figures)
    }
}

fn figures(load: &'static str, reader: Reader, bench: &Bench, times: &Times, used: Usage) -> Figures {
    let requests = times.len() as f64;
    let us = |quantile: f64| times.value_at_quantile(quantile) as f64 / 1e3;
    Figures {
        load,
        reader: reader.to_string(),
        requests_per_s: requests / bench.seconds,
        p50_us: us(0.5),
        p99_us: us(0.99),
        p999_us: us(0.999),
        cpu_us: used.cpu_us / requests,
        drive_share: used.read_bytes / (requests * bench.ids as f64 * ROW_BYTES as f64),
    }
}

/// Each figure by itself.
fn each(of: impl Fn(fn(&Figures) -> f64) -> f64, load: &'static str, reader: String) -> Figures {
    Figures {
        load,
        reader,
        requests_per_s: of(|f| f.requests_per_s),
        p50_us: of(|f| f.p50_us),
        p99_us: of(|f| f.p99_us),
        p999_us: of(|f| f.p999_us),
        cpu_us: of(|f| f.cpu_us),
        drive_share: of(|f| f.drive_share),
    }
}

fn median(rounds: &[Figures]) -> Figures {
    each(|figure| middle(rounds.iter().map(figure).collect()), rounds[0].load, rounds[0].reader.clone())
}

/// Of each round the first over the second, and the median of that.
fn ratios(first: &[Figures], second: &[Figures]) -> Figures {
    let of = |figure: fn(&Figures) -> f64| {
        middle(first.iter().zip(second).map(|(first, second)| figure(first) / figure(second)).collect())
    };
    // Where the drive read nothing there is no ratio.
    let drive_share = if first[0].load == "warm" { 1.0 } else { of(|f| f.drive_share) };
    Figures { drive_share, ..each(of, first[0].load, "ratio".into()) }
}

fn middle(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

fn print(all: &[Figures]) {
    println!(
        "{:5} {:9} {:>11} {:>8} {:>8} {:>8} {:>8} {:>6}",
        "load", "reader", "requests/s", "p50 us", "p99 us", "p99.9", "CPU us", "drive"
    );
    for f in all {
        let (rate, times) = if f.reader == "ratio" { (2, 2) } else { (0, 0) };
        let digits = if f.reader == "ratio" { 2 } else { 1 };
        println!(
            "{:5} {:9} {:>11.rate$} {:>8.times$} {:>8.times$} {:>8.times$} {:>8.digits$} {:>6.2}",
            f.load, f.reader, f.requests_per_s, f.p50_us, f.p99_us, f.p999_us, f.cpu_us, f.drive_share
        );
    }
}

/// A server in a process of its own, which ends with this.
struct Server {
    process: Child,
    address: SocketAddr,
}

impl Server {
    fn start(file: &PathBuf, reader: Reader) -> Result<Server> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("serve").arg(file).args(["--port", "0", "--with", &reader.to_string()]);
        let mut process = command.stdout(Stdio::piped()).spawn()?;
        let Some(said) = process.stdout.take() else { bail!("the server has no output") };
        // What follows needs it, because dropping it ends the process.
        let mut server = Server { process, address: SocketAddr::from(([127, 0, 0, 1], 0)) };
        let mut line = String::new();
        BufReader::new(said).read_line(&mut line)?;
        let address = line.split_once("http://").and_then(|(_, url)| url.split('/').next());
        server.address = address.context("the server did not start")?.parse()?;
        Ok(server)
    }

    fn usage(&self) -> Result<Usage> {
        let of = |file: &str| {
            let path = format!("/proc/{}/{file}", self.process.id());
            std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))
        };
        Usage::parse(&of("stat")?, &of("io")?).context("the kernel tells of processes in another form")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It fails only if the server has ended, which is what is wanted.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// What a process has used.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Usage {
    /// CPU time of all threads, in microseconds. The kernel counts in ticks of 10 ms.
    cpu_us: f64,
    /// From drives.
    read_bytes: f64,
}

impl Usage {
    /// From `/proc/PID/stat` and `/proc/PID/io`: `man 5 proc_pid_stat`, `man 5 proc_pid_io`.
    fn parse(stat: &str, io: &str) -> Option<Usage> {
        // The second field is a name in parentheses, which may have spaces. The fields 14 and 15 are times.
        let mut times = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
        let ticks: f64 = times.next()?.parse::<f64>().ok()? + times.next()?.parse::<f64>().ok()?;
        let cpu_us = ticks * 1e6 / rustix::param::clock_ticks_per_second() as f64;
        let read_bytes = io.lines().find_map(|line| line.strip_prefix("read_bytes: "))?.parse().ok()?;
        Some(Usage { cpu_us, read_bytes })
    }

    fn since(self, before: Usage) -> Usage {
        Usage { cpu_us: self.cpu_us - before.cpu_us, read_bytes: self.read_bytes - before.read_bytes }
    }
}

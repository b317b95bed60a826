//! `judge-bench --dir DIR`: iomill's store and `LocalFileSystem` of object_store, in turns, on the drive that holds
//! DIR.
//!
//! Rows: ranges of one large object, cold and warm; and durable puts of small objects. Non-goals: programs above the
//! trait, which have measurements of their own (`judge-slatedb-bench`, `judge-datafusion-bench`).

mod data;
mod puts;
mod reads;

use anyhow::{Result, bail};
use clap::Parser;
use judge_turns::{Goal, Options, Row, Rows, State, serve};

use data::Pages;
use judge_bench::stores::Place;
use puts::Puts;
use reads::{RANGES, Reads};

/// Compares iomill's store with the local file system of object_store.
#[derive(Debug, Parser)]
struct Command {
    #[command(flatten)]
    options: Options,
    /// Length of the object for cold reads, in MiB.
    #[arg(long, default_value_t = 8192)]
    cold_mib: u64,
    /// Length of the object for warm reads, in MiB.
    #[arg(long, default_value_t = 2048)]
    warm_mib: u64,
    /// Puts of objects in a slice.
    #[arg(long, default_value_t = 10_000)]
    puts: u64,
}

/// The size of the cache for cold reads, as a share of the data: so small that hits do not count.
const COLD_CACHE_SHARE: u64 = 256;

impl Command {
    fn place(&self) -> Place {
        Place::new(&self.options.dir)
    }

    /// A page can be in one set of the cache only, so a cache for all pages has room to spare. The other contenders
    /// have the same room.
    fn warm_cache_bytes(&self) -> u64 {
        (self.warm_mib << 20) / 4 * 5
    }

    fn cold_cache_bytes(&self) -> u64 {
        (self.cold_mib << 20) / COLD_CACHE_SHARE
    }

    fn pages(&self, row: &Row) -> Pages {
        Pages::new(if row.state == State::Warm { self.warm_mib } else { self.cold_mib })
    }
}

impl Rows for Command {
    fn rows(&self) -> Vec<Row> {
        let ranges = |mib| format!("get_ranges of {RANGES} x 4 KiB at random of {mib} MiB");
        let cold = Row {
            name: "cold",
            what: ranges(self.cold_mib),
            unit: "range",
            state: State::Cold,
            memory_bytes: None,
            contenders: &["local", "iomill-plain", "iomill-array"],
            goal: Goal { rate_min: Some(5.0), ..Goal::default() },
        };
        let warm = Row {
            name: "warm",
            what: ranges(self.warm_mib),
            state: State::Warm,
            memory_bytes: Some(self.warm_cache_bytes()),
            goal: Goal { rate_min: Some(2.0), cpu_max: Some(0.5), ..Goal::default() },
            ..cold.clone()
        };
        let puts = Row {
            name: "puts",
            what: format!("{} puts of {} B, {} in flight, each durable", self.puts, puts::LEN_BYTES, puts::IN_FLIGHT),
            unit: "put",
            state: State::Writing,
            memory_bytes: None,
            contenders: &["local-fsync", "iomill-array"],
            goal: Goal { rate_min: Some(2.0), ..Goal::default() },
        };
        vec![cold, warm, puts]
    }

    fn prepare(&self, row: &Row) -> Result<()> {
        match row.state {
            State::Cold | State::Warm => reads::prepare(&self.place(), &self.pages(row)),
            State::Held(_) | State::Writing => self.place().make(),
        }
    }

    fn contend(&self, row: &Row, contender: &str) -> Result<()> {
        let place = self.place();
        let cache_bytes = if row.state == State::Warm { self.warm_cache_bytes() } else { self.cold_cache_bytes() };
        let opened = match contender {
            "local" => place.local(false)?,
            "local-fsync" => place.local(true)?,
            "iomill-plain" => place.iomill_plain(cache_bytes)?,
            "iomill-array" => place.iomill_array(cache_bytes)?,
            other => bail!("there is no contender {other:?}"),
        };
        match row.state {
            State::Cold | State::Warm => serve(Reads::new(opened, self.pages(row), row.state, &place)?),
            State::Held(_) | State::Writing => serve(Puts::new(opened, self.puts)?),
        }
    }
}

fn main() -> Result<()> {
    let command = Command::parse();
    judge_turns::run(&command.options, &command)
}

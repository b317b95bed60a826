//! `judge-datafusion-bench --dir DIR`: scans of Parquet by DataFusion through iomill's store and through
//! `LocalFileSystem`.
//!
//! Scans are sequential, so iomill cannot win here. The goal is that it adds no cost.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use clap::Parser;
use datafusion::arrow::util::pretty::pretty_format_batches;
use datafusion::execution::object_store::ObjectStoreUrl;
use datafusion::prelude::{ParquetReadOptions, SessionContext};
use iomill::{Array, ArrayOptions, RuntimeOptions};
use iomill_object_store::v0_13::IomillStore;
use judge_turns::{Goal, Load, Options, Row, Rows, State, Work, drop_cached, serve};
use object_store::ObjectStore;
use object_store::local::LocalFileSystem;
use tokio::runtime::Runtime;

/// Compares DataFusion over two stores.
#[derive(Clone, Debug, Parser)]
struct Command {
    #[command(flatten)]
    options: Options,
    /// Rows of the table, in millions. A million takes about 7 MiB.
    #[arg(long, default_value_t = 16)]
    rows_millions: u64,
}

/// Reads all columns of all rows.
const SCAN: &str = "SELECT kind, count(*), sum(id), min(cents), max(weight) FROM rows GROUP BY kind ORDER BY kind";

/// A page can be in one set of the cache only, so a cache for all pages has room to spare.
const CACHE_BYTES: u64 = 1 << 30;

impl Command {
    fn table(&self) -> String {
        format!("rows-{}", self.rows_millions)
    }

    fn plain(&self) -> PathBuf {
        self.options.dir.join("plain")
    }

    fn drive(&self, number: u32) -> PathBuf {
        self.options.dir.join("array").join(format!("drive{number}"))
    }

    fn open(&self, contender: &str) -> Result<Store> {
        Ok(match contender {
            "local" => Store { store: Arc::new(LocalFileSystem::new_with_prefix(self.plain())?), array: None },
            "iomill-plain" => {
                let runtime = RuntimeOptions::new().cache_bytes(CACHE_BYTES).start()?;
                Store { store: Arc::new(IomillStore::plain_with(self.plain(), &runtime)?), array: None }
            }
            "iomill-array" => {
                let array = ArrayOptions::new().cache_bytes(CACHE_BYTES).open(self.drive(0))?;
                Store { store: Arc::new(IomillStore::array(array.clone())), array: Some(array) }
            }
            other => bail!("there is no contender {other:?}"),
        })
    }
}

/// A store, with its array to close.
struct Store {
    store: Arc<dyn ObjectStore>,
    array: Option<Array>,
}

impl Store {
    fn session(&self) -> Result<SessionContext> {
        let (session, url) = (SessionContext::new(), ObjectStoreUrl::parse("iomill://store")?);
        session.register_object_store(url.as_ref(), Arc::clone(&self.store));
        Ok(session)
    }

    fn close(self) -> Result<()> {
        drop(self.store);
        self.array.map_or(Ok(()), |array| Ok(array.close()?))
    }
}

impl Rows for Command {
    fn rows(&self) -> Vec<Row> {
        let cold = Row {
            name: "scan-cold",
            what: format!("scans of {} million rows of Parquet by DataFusion", self.rows_millions),
            unit: "scan",
            state: State::Cold,
            memory_bytes: None,
            contenders: &["local", "iomill-plain", "iomill-array"],
            goal: Goal { rate_min: None, cpu_max: Some(1.1), within_noise: true },
        };
        vec![Row { name: "scan-warm", state: State::Warm, ..cold.clone() }, cold]
    }

    fn prepare(&self, _row: &Row) -> Result<()> {
        for dir in [0, 1, 2, 3].map(|number| self.drive(number)).iter().chain([&self.plain()]) {
            fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
        }
        if self.drive(0).read_dir()?.next().is_none() {
            Array::create([0, 1, 2, 3].map(|number| self.drive(number)))?.close()?;
        }
        let table = self.table();
        if self.plain().join(&table).exists() {
            return Ok(());
        }
        let runtime = Runtime::new()?;
        eprintln!("writes {table}");
        let columns = "value AS id, value * 7919 % 1000 AS kind, value * 104729 % 1000003 AS cents,
            CAST(value * 15485863 % 1000000007 AS DOUBLE) AS weight";
        let copy = format!(
            "COPY (SELECT {columns} FROM generate_series(1, {}000000)) TO 'iomill://store/{table}/' STORED AS PARQUET",
            self.rows_millions
        );
        for contender in ["iomill-array", "local"] {
            let store = self.open(contender)?;
            let session = store.session()?;
            runtime.block_on(async { session.sql(&copy).await?.collect().await })?;
            drop(session);
            store.close()?;
        }
        drop_cached(&self.plain())
    }

    fn contend(&self, row: &Row, contender: &str) -> Result<()> {
        let (command, contender, runtime) = (self.clone(), contender.to_owned(), Runtime::new()?);
        let bytes = len_bytes(&self.plain().join(self.table()))?;
        serve(Scans { command, contender, state: row.state, bytes, runtime, opened: None })
    }
}

fn len_bytes(dir: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in dir.read_dir().with_context(|| format!("cannot list {}", dir.display()))? {
        bytes += entry?.metadata()?.len();
    }
    Ok(bytes)
}

/// One contender.
struct Scans {
    command: Command,
    contender: String,
    state: State,
    /// Length of all files of the table.
    bytes: u64,
    runtime: Runtime,
    opened: Option<(SessionContext, Store)>,
}

impl Scans {
    /// Opens store and session anew, so that neither has any state.
    fn open(&mut self) -> Result<()> {
        self.close_store()?;
        if self.state == State::Cold {
            drop_cached(&self.command.plain())?;
        }
        let store = self.command.open(&self.contender)?;
        let session = store.session()?;
        let url = format!("iomill://store/{}/", self.command.table());
        self.runtime.block_on(session.register_parquet("rows", url, ParquetReadOptions::default()))?;
        self.opened = Some((session, store));
        Ok(())
    }

    fn close_store(&mut self) -> Result<()> {
        let Some((session, store)) = self.opened.take() else { return Ok(()) };
        drop(session);
        store.close()
    }

    fn scan(&self) -> Result<String> {
        let (session, _) = self.opened.as_ref().context("no session is open")?;
        let batches = self.runtime.block_on(async { session.sql(SCAN).await?.collect().await })?;
        Ok(pretty_format_batches(&batches)?.to_string())
    }
}

impl Load for Scans {
    type Done = String;

    fn fill(&mut self) -> Result<()> {
        if self.state == State::Warm {
            if self.opened.is_none() {
                self.open()?;
            }
            self.scan()?;
        }
        Ok(())
    }

    fn settle(&mut self) -> Result<()> {
        if self.state == State::Warm { Ok(()) } else { self.open() }
    }

    fn slice(&mut self, _seed: u64) -> Result<String> {
        self.scan()
    }

    fn check(&mut self, _seed: u64, found: String) -> Result<Work> {
        let mut hasher = DefaultHasher::new();
        found.hash(&mut hasher);
        Ok(Work { ops: 1, bytes: self.bytes, digest: hasher.finish() })
    }

    fn close(mut self) -> Result<()> {
        self.close_store()
    }
}

fn main() -> Result<()> {
    let command = Command::parse();
    judge_turns::run(&command.options, &command)
}

//! `judge-slatedb-bench --dir DIR`: random gets of SlateDB over iomill's store and over `LocalFileSystem`, with memory
//! for one eighth of the data. Both have all indexes and filters in SlateDB's own cache, and no blocks: the page cache
//! or iomill gets the memory.

use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use futures::future::try_join_all;
use judge_bench::stores::{Opened, Place};
use judge_turns::{Goal, Load, Options, Row, Rows, State, Work, drop_cached, serve};
use slatedb::config::{FlushOptions, FlushType, Settings};
use slatedb::db_cache::SplitCache;
use slatedb::db_cache::moka::{MokaCache, MokaCacheOptions};
use slatedb::object_store::ObjectStore;
use slatedb::{Db, DbReader, DbReaderMode};
use tokio::runtime::Runtime;

const VALUE_BYTES: usize = 1_000;
const IN_FLIGHT: u64 = 32;
const GETS: u64 = 16_000;

/// Room for all indexes and filters.
const INDEX_BYTES: u64 = 256 << 20;

/// Cache while the data are written.
const WRITE_CACHE_BYTES: u64 = 64 << 20;

/// The least share of the requested bytes that must be read from the drive. If each get reads a page, 7 of 8 blocks
/// are.
const FETCHED_SHARE_MIN: f64 = 0.5;

/// Compares SlateDB over two stores.
#[derive(Debug, Parser)]
struct Command {
    #[command(flatten)]
    options: Options,
    /// Values in the database, in MiB.
    #[arg(long, default_value_t = 512)]
    data_mib: u64,
}

impl Command {
    fn keys(&self) -> u64 {
        (self.data_mib << 20) / VALUE_BYTES as u64
    }

    fn memory_bytes(&self) -> u64 {
        (self.data_mib << 20) / 8
    }

    fn name(&self) -> String {
        format!("slatedb-{}", self.data_mib)
    }

    fn place(&self) -> Place {
        Place::new(&self.options.dir)
    }
}

impl Rows for Command {
    fn rows(&self) -> Vec<Row> {
        vec![Row {
            name: "gets",
            what: format!(
                "gets of {VALUE_BYTES} B at random of {} MiB in SlateDB, {IN_FLIGHT} in flight",
                self.data_mib
            ),
            unit: "get",
            state: State::Held(FETCHED_SHARE_MIN),
            memory_bytes: Some(self.memory_bytes()),
            contenders: &["local", "iomill-array", "iomill-plain"],
            goal: Goal { rate_min: Some(2.0), ..Goal::default() },
        }]
    }

    fn prepare(&self, _row: &Row) -> Result<()> {
        let place = self.place();
        place.make()?;
        let runtime = Runtime::new()?;
        for opened in [place.local(false)?, place.iomill_array(WRITE_CACHE_BYTES)?] {
            runtime.block_on(write(Arc::clone(&opened.store), &self.name(), self.keys()))?;
            opened.close()?;
        }
        // Cached pages count as memory of the process that read them first.
        drop_cached(place.plain())
    }

    fn contend(&self, _row: &Row, contender: &str) -> Result<()> {
        let (place, cache_bytes) = (self.place(), self.memory_bytes());
        let opened = match contender {
            "local" => place.local(false)?,
            "iomill-array" => place.iomill_array(cache_bytes)?,
            "iomill-plain" => place.iomill_plain(cache_bytes)?,
            other => bail!("there is no contender {other:?}"),
        };
        serve(Gets::new(opened, self)?)
    }
}

fn key(number: u64) -> [u8; 16] {
    // Neighbours in the order of keys are not neighbours in the order of numbers.
    (u128::from(number.wrapping_mul(0x9E37_79B9_7F4A_7C15)) << 64 | u128::from(number)).to_be_bytes()
}

/// Bytes that no codec can shorten, with the number at both ends.
fn value(number: u64) -> Vec<u8> {
    let mut value = vec![0; VALUE_BYTES];
    fastrand::Rng::with_seed(number).fill(&mut value);
    value[..8].copy_from_slice(&number.to_le_bytes());
    value[VALUE_BYTES - 8..].copy_from_slice(&number.to_le_bytes());
    value
}

/// Makes the database, if it is not complete. Its last key is written last.
async fn write(store: Arc<dyn ObjectStore>, name: &str, keys: u64) -> Result<()> {
    let settings = Settings { garbage_collector_options: None, ..Settings::default() };
    let db = Db::builder(name, store.clone()).with_settings(settings).build().await?;
    if db.get(key(keys - 1)).await?.is_none() {
        eprintln!("writes {keys} values by {store}");
        for number in 0..keys {
            db.put(key(number), value(number)).await?;
        }
        // Readers read only tables, and replay no log.
        db.flush_with_options(FlushOptions { flush_type: FlushType::MemTable }).await?;
    }
    Ok(db.close().await?)
}

/// One contender.
struct Gets {
    db: Arc<DbReader>,
    keys: u64,
    /// Gets that fill the memory twice.
    fill: u64,
    runtime: Runtime,
    opened: Opened,
}

impl Gets {
    fn new(opened: Opened, command: &Command) -> Result<Gets> {
        let runtime = Runtime::new()?;
        if opened.is_iomill {
            iomill::drive_by_tokio(runtime.handle())?;
        }
        let options = MokaCacheOptions { max_capacity: INDEX_BYTES, ..MokaCacheOptions::default() };
        let cache = SplitCache::new().with_meta_cache(Some(Arc::new(MokaCache::new_with_opts(options)))).build();
        // A reader that writes nothing can also read in place.
        let reader =
            DbReader::builder(command.name(), Arc::clone(&opened.store)).with_reader_mode(DbReaderMode::FollowLatest);
        let built = runtime.block_on(reader.with_db_cache(Arc::new(cache), 1).build());
        let db = Arc::new(built.context("cannot open the database")?);
        let fill = 2 * command.memory_bytes() / 4096;
        let gets = Gets { db, keys: command.keys(), fill, runtime, opened };
        // Indexes and filters are memory of the process itself, so they are loaded before the limit is set.
        gets.get(u64::MAX, GETS)?;
        Ok(gets)
    }

    /// Gets values at random. Returns the result, which must be equal for all contenders.
    fn get(&self, seed: u64, count: u64) -> Result<u64> {
        let tasks = (0..IN_FLIGHT).map(|task| {
            let (db, keys) = (Arc::clone(&self.db), self.keys);
            self.runtime.spawn(async move {
                let (mut random, mut sum) = (fastrand::Rng::with_seed(seed ^ task << 32), 0_u64);
                for _ in 0..count / IN_FLIGHT {
                    let number = random.u64(..keys);
                    let value = db.get(key(number)).await?.with_context(|| format!("key {number} is missing"))?;
                    let ends = [&value[..8], &value[value.len() - 8..]].map(|end| end == number.to_le_bytes());
                    ensure!(value.len() == VALUE_BYTES && ends == [true; 2], "key {number} has another value");
                    sum = sum.wrapping_add(number ^ u64::from(value[VALUE_BYTES / 2]) << 32);
                }
                anyhow::Ok(sum)
            })
        });
        let tasks: Vec<_> = tasks.collect();
        let sums = self.runtime.block_on(try_join_all(tasks)).context("a task of gets has ended early")?;
        sums.into_iter().try_fold(0_u64, |all, sum| Ok(all.wrapping_add(sum?)))
    }
}

impl Load for Gets {
    type Done = u64;

    fn fill(&mut self) -> Result<()> {
        self.get(u64::MAX - 1, self.fill).map(|_| ())
    }

    fn settle(&mut self) -> Result<()> {
        Ok(())
    }

    fn slice(&mut self, seed: u64) -> Result<u64> {
        self.get(seed, GETS)
    }

    fn check(&mut self, _seed: u64, digest: u64) -> Result<Work> {
        Ok(Work { ops: GETS, bytes: GETS * 4096, digest })
    }

    fn close(self) -> Result<()> {
        self.runtime.block_on(self.db.close())?;
        self.opened.close()
    }
}

fn main() -> Result<()> {
    let command = Command::parse();
    judge_turns::run(&command.options, &command)
}

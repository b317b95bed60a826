//! `judge-datafusion-remote --dir DIR --bucket NAME`: scans of Parquet in a bucket, by DataFusion through iomill's cache
//! of an object store, beside the same files on the local disk.
//!
//! The bucket is any that the usual `AWS_` variables reach. The second scan by the cache is compared with a scan of the
//! local files: both read one local disk, and all other layers are the same.

use std::collections::BTreeMap;
use std::fs;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use datafusion::arrow::util::pretty::pretty_format_batches;
use datafusion::execution::object_store::ObjectStoreUrl;
use datafusion::prelude::{ParquetReadOptions, SessionContext};
use iomill_origin::{Cache, Options, Revalidate};
use judge_turns::drop_cached;
use object_store::aws::AmazonS3Builder;
use object_store::local::LocalFileSystem;
use object_store::path::Path as ObjectPath;
use object_store::{ObjectStore, ObjectStoreExt};

/// Compares DataFusion over a bucket, over its cache, and over local files.
#[derive(Debug, Parser)]
struct Command {
    /// An empty directory for the local files and the cache.
    #[arg(long)]
    dir: PathBuf,
    /// The bucket. The program writes some objects below a prefix of its own there, and deletes them at its end.
    #[arg(long)]
    bucket: String,
    /// Rows of the table, in millions. A million takes about 7 MiB.
    #[arg(long, default_value_t = 8)]
    rows_millions: u64,
    /// Rounds, in each of which all contenders take a turn.
    #[arg(long, default_value_t = 5)]
    rounds: u64,
}

/// All columns of all rows; and few rows of few pages.
const QUESTIONS: [(&str, &str); 2] = [
    ("scan", "SELECT kind, count(*), sum(id), min(cents), max(weight) FROM rows GROUP BY kind ORDER BY kind"),
    ("range", "SELECT * FROM rows WHERE id BETWEEN 3500000 AND 3500100 ORDER BY id"),
];

const CONTENDERS: [&str; 4] = ["local", "bucket", "cache-first", "cache-second"];

/// The seconds of each contender in each round, by question.
type Seen = BTreeMap<(&'static str, &'static str), Vec<f64>>;

fn session(store: &Arc<dyn ObjectStore>) -> Result<SessionContext> {
    let (session, url) = (SessionContext::new(), ObjectStoreUrl::parse("store://rows")?);
    session.register_object_store(url.as_ref(), Arc::clone(store));
    Ok(session)
}

/// Asks one question about the table at `prefix` in a new session. Returns the seconds, with the reading of the schema,
/// and the answer.
async fn ask(store: &Arc<dyn ObjectStore>, prefix: &str, question: &str) -> Result<(f64, String)> {
    let session = session(store)?;
    let begun = Instant::now();
    session.register_parquet("rows", format!("store://rows/{prefix}/"), ParquetReadOptions::default()).await?;
    let batches = session.sql(question).await?.collect().await?;
    Ok((begun.elapsed().as_secs_f64(), pretty_format_batches(&batches)?.to_string()))
}

impl Command {
    /// Writes the table to local files, and copies them to the bucket. Returns their paths there.
    async fn prepare(&self, local: &Path, bucket: &Arc<dyn ObjectStore>, prefix: &str) -> Result<Vec<ObjectPath>> {
        fs::create_dir_all(local).with_context(|| format!("cannot make {}", local.display()))?;
        let store: Arc<dyn ObjectStore> = Arc::new(LocalFileSystem::new_with_prefix(local)?);
        let columns = "value AS id, value * 7919 % 1000 AS kind, value * 104729 % 1000003 AS cents,
            CAST(value * 15485863 % 1000000007 AS DOUBLE) AS weight";
        let copy = format!(
            "COPY (SELECT {columns} FROM generate_series(1, {}000000)) TO 'store://rows/{prefix}/' STORED AS PARQUET",
            self.rows_millions
        );
        session(&store)?.sql(&copy).await?.collect().await?;
        let mut paths = Vec::new();
        for entry in fs::read_dir(local.join(prefix))? {
            let entry = entry?;
            let path = ObjectPath::from(format!("{prefix}/{}", entry.file_name().to_string_lossy()));
            bucket.put(&path, fs::read(entry.path())?.into()).await.context("cannot write to the bucket")?;
            paths.push(path);
        }
        Ok(paths)
    }

    fn cache(&self) -> Result<(PathBuf, Cache)> {
        let drive = self.dir.join("drive");
        fs::create_dir(&drive).with_context(|| format!("cannot make {}", drive.display()))?;
        let bytes = self.rows_millions * (16 << 20);
        let options = Options::new().bytes(bytes).memory_bytes(16 << 20).fill_bytes(1 << 30).on_root(true);
        let options = options.index_dir(&self.dir).revalidate("", Revalidate::Never);
        Ok((drive.clone(), Cache::open([&drive], options)?))
    }

    /// One round: each question by each contender, the local disk's bytes out of the page cache.
    async fn round(&self, local: &Path, bucket: &Arc<dyn ObjectStore>, prefix: &str, seen: &mut Seen) -> Result<()> {
        let files: Arc<dyn ObjectStore> = Arc::new(LocalFileSystem::new_with_prefix(local)?);
        for (name, question) in QUESTIONS {
            let (drive, cache) = self.cache()?;
            let cached = cache.over(Arc::clone(bucket), &format!("s3://{}", self.bucket));
            let mut answers = Vec::new();
            for contender in CONTENDERS {
                drop_cached(local)?;
                drop_cached(&drive)?;
                let before = cache.counters();
                let store = match contender {
                    "local" => &files,
                    "bucket" => bucket,
                    _ => &cached,
                };
                let (seconds, answer) = ask(store, prefix, question).await?;
                seen.entry((name, contender)).or_default().push(seconds);
                answers.push(answer);
                let gets = cache.counters().since(&before).gets;
                ensure!(contender != "cache-second" || gets == 0, "{name}: the second run sent {gets} GETs");
                cache.flush();
            }
            ensure!(answers.iter().all(|answer| *answer == answers[0]), "{name}: the answers differ");
            drop((cached, cache));
            fs::remove_dir_all(&drive)?;
        }
        Ok(())
    }
}

fn median(of: &[f64]) -> f64 {
    let mut of = of.to_vec();
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

#[tokio::main]
async fn main() -> Result<()> {
    let command = Command::parse();
    let bucket = AmazonS3Builder::from_env().with_bucket_name(&command.bucket).build()?;
    let (local, bucket) = (command.dir.join("local"), Arc::new(bucket) as Arc<dyn ObjectStore>);
    eprintln!("writes {} million rows", command.rows_millions);
    let prefix = format!("judge-{:016x}", RandomState::new().build_hasher().finish());
    let paths = command.prepare(&local, &bucket, &prefix).await?;
    let mut seen = Seen::new();
    let mut ended = Ok(());
    for _ in 0..command.rounds {
        ended = command.round(&local, &bucket, &prefix, &mut seen).await;
        if ended.is_err() {
            break;
        }
    }
    for path in &paths {
        bucket.delete(path).await.with_context(|| format!("cannot delete {path} of the bucket"))?;
    }
    ended?;
    for (name, _) in QUESTIONS {
        let of = |contender| seen[&(name, contender)].as_slice();
        let ratios: Vec<f64> = of("cache-second").iter().zip(of("local")).map(|(a, b)| a / b).collect();
        let ms = CONTENDERS.map(|contender| format!("{contender} {:.1} ms", median(of(contender)) * 1e3)).join(", ");
        println!("{name}: {ms}; the second run by the cache took {:.2}x of the local files", median(&ratios));
    }
    Ok(())
}

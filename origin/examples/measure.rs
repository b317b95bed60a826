//! Measures the cache beside its parts, all as ratios of one run: hits beside gathers of a plain file, misses beside
//! bare GETs, and the costs of epochs of random rows. The origin computes its bytes, and answers after a set latency.
//!
//! `cargo run --release --example measure [DIRECTORY [PART]]` takes about two minutes and 3 GB of the directory. A part
//! is `drive`, `memory`, `misses`, `tail` or `epochs`. `restart GRANULES`, which runs only by its name, kills a process
//! that has filled a cache with so many granules of 4 KiB, and opens the cache again.

use std::error::Error;
use std::fmt;
use std::io::Write;
use std::ops::Range;
use std::path::{Path as FsPath, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::{self, BoxStream};
use futures_util::{StreamExt, TryStreamExt};
use iomill::{CacheOptions, PlainOptions, Runtime, RuntimeOptions};
use iomill_origin::{Cache, Cost, Options, Revalidate};
use object_store_0_14::path::Path;
use object_store_0_14::{
    CopyOptions, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    ObjectStoreExt, PutMultipartOptions, PutOptions, PutPayload, PutResult,
};
use rustix::time::{ClockId, clock_gettime};
use tokio::sync::Semaphore;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Ranges of one gather.
const RANGES: usize = 1000;

/// An object of zeroes, of any name, after a latency.
#[derive(Debug)]
struct Zeroes {
    len: u64,
    latency: Duration,
    /// One of 50 answers takes this time, by chance.
    tail: Option<Duration>,
    /// The time of a body, for each MiB, as of one connection to a store.
    per_mib: Duration,
    /// The most answers at a time, as a store and a network have. Further GETs wait.
    at_once: Semaphore,
}

impl Zeroes {
    fn new(len: u64, latency: Duration) -> Zeroes {
        let at_once = Semaphore::new(Semaphore::MAX_PERMITS);
        Zeroes { len, latency, tail: None, per_mib: Duration::ZERO, at_once }
    }
}

impl fmt::Display for Zeroes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Zeroes")
    }
}

fn unsupported() -> object_store_0_14::Error {
    object_store_0_14::Error::NotSupported { source: "only gets".into() }
}

#[async_trait]
impl ObjectStore for Zeroes {
    async fn get_opts(&self, path: &Path, options: GetOptions) -> object_store_0_14::Result<GetResult> {
        let _permit = self.at_once.acquire().await.map_err(|_| unsupported())?;
        let slow = self.tail.filter(|_| fastrand::u32(..50) == 0);
        tokio::time::sleep(slow.unwrap_or(self.latency)).await;
        let e_tag = Some("\"1\"".into());
        let meta = ObjectMeta {
            location: path.clone(),
            last_modified: Default::default(),
            size: self.len,
            e_tag,
            version: None,
        };
        let range = options.range.map_or(Ok(0..self.len), |range| range.as_range(self.len));
        let range = range.map_err(|_| unsupported())?;
        let len = if options.head { 0 } else { range.end - range.start };
        tokio::time::sleep(self.per_mib.mul_f64(len as f64 / (1 << 20) as f64)).await;
        let body = stream::iter([Ok(Bytes::from(vec![0; len as usize]))]).boxed();
        let (attributes, extensions) = Default::default();
        Ok(GetResult { payload: GetResultPayload::Stream(body), meta, range, attributes, extensions })
    }

    async fn put_opts(&self, _: &Path, _: PutPayload, _: PutOptions) -> object_store_0_14::Result<PutResult> {
        Err(unsupported())
    }

    async fn put_multipart_opts(
        &self,
        _: &Path,
        _: PutMultipartOptions,
    ) -> object_store_0_14::Result<Box<dyn MultipartUpload>> {
        Err(unsupported())
    }

    fn delete_stream(
        &self,
        _: BoxStream<'static, object_store_0_14::Result<Path>>,
    ) -> BoxStream<'static, object_store_0_14::Result<Path>> {
        stream::empty().boxed()
    }

    fn list(&self, _: Option<&Path>) -> BoxStream<'static, object_store_0_14::Result<ObjectMeta>> {
        stream::empty().boxed()
    }

    async fn list_with_delimiter(&self, _: Option<&Path>) -> object_store_0_14::Result<ListResult> {
        Err(unsupported())
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> object_store_0_14::Result<()> {
        Err(unsupported())
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let place = std::env::args_os().nth(1).map_or_else(|| PathBuf::from("."), PathBuf::from);
    let dir = tempfile::Builder::new().prefix(".tmp-measure-").tempdir_in(&place)?;
    let part = std::env::args().nth(2).unwrap_or_default();
    let wanted = |name: &str| part.is_empty() || part == name;
    if part == "restart" || part == "fill" {
        let granules = std::env::args().nth(3).ok_or("name the number of granules")?.parse()?;
        return if part == "fill" { filled(&place, granules).await } else { restart(dir.path(), granules).await };
    }
    if wanted("drive") {
        hits(dir.path(), "hits on the drive", 1 << 30, 64 << 20, 30).await?;
    }
    if wanted("memory") {
        hits(dir.path(), "hits in memory", 256 << 20, 512 << 20, 100).await?;
    }
    if wanted("misses") {
        misses(dir.path()).await?;
    }
    if wanted("tail") {
        tail(dir.path()).await?;
    }
    if wanted("epochs") {
        for (share, admit) in [(100, 1.0), (50, 1.0), (25, 1.0), (50, 0.05), (25, 0.05)] {
            for row in [512, 3 << 10] {
                epochs(dir.path(), share, admit, row).await?;
            }
        }
    }
    Ok(())
}

fn opened(dir: &FsPath, name: &str, bytes: u64, memory: u64, admit: f64) -> Result<Cache> {
    opened_at(dir, name, bytes, memory, admit, Cost::default())
}

fn opened_at(dir: &FsPath, name: &str, bytes: u64, memory: u64, admit: f64, cost: Cost) -> Result<Cache> {
    let home = dir.join(name);
    std::fs::create_dir(&home)?;
    let options = Options::new()
        .cost(cost)
        .on_root(true)
        .read_within(Duration::from_secs(60))
        .bytes(bytes)
        .memory_bytes(memory)
        .fill_bytes(512 << 20)
        .admit(admit)
        .index_dir(dir)
        .revalidate("", Revalidate::Never);
    Ok(Cache::open([home], options)?)
}

fn over(cache: &Cache, len: u64, latency: Duration) -> Arc<dyn ObjectStore> {
    cache.over(Arc::new(Zeroes::new(len, latency)) as Arc<dyn ObjectStore>, "zeroes://")
}

fn pages(rng: &mut fastrand::Rng, len: u64) -> Vec<Range<u64>> {
    (0..RANGES).map(|_| rng.u64(..len / 4096) * 4096).map(|at| at..at + 4096).collect()
}

/// CPU time of the process so far.
fn cpu() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

/// A plain file of the same length, with a page cache of the same size.
fn plain(path: &FsPath, len: u64, memory: u64) -> Result<iomill::File> {
    let mut file = std::fs::File::create(path)?;
    let block = vec![1; 8 << 20];
    for _ in (0..len).step_by(block.len()) {
        file.write_all(&block)?;
    }
    file.sync_all()?;
    let runtime: Runtime =
        RuntimeOptions::new().cache_bytes(memory).cache(CacheOptions::new().read_ahead_bytes(0)).start()?;
    Ok(PlainOptions::new().runtime(&runtime).open(path)?)
}

/// The same gathers of 1,000 pages from the cache and from a plain file, in turn.
async fn hits(dir: &FsPath, name: &str, len: u64, memory: u64, rounds: usize) -> Result<()> {
    let cache = opened(dir, &name.replace(' ', "-"), len * 5 / 4, memory, 1.0)?;
    let store = over(&cache, len, Duration::ZERO);
    let path = Path::from("object");
    for at in (0..len).step_by(8 << 20) {
        store.get_range(&path, at..at + (8 << 20)).await?;
        cache.flush();
    }
    let file_path = dir.join("plain");
    let file = plain(&file_path, len, memory)?;
    let mut rng = fastrand::Rng::with_seed(1);
    let (mut rates, mut cpus, mut per_second, mut cpu_us) = (vec![], vec![], vec![], vec![]);
    if memory > len {
        // All of both is read into memory.
        for at in (0..len).step_by(1 << 20) {
            store.get_range(&path, at..at + (1 << 20)).await?;
            file.gather_async(&[(at, 1 << 20)]).await?;
        }
    }
    let before = cache.counters();
    // The first rounds only warm up.
    for round in 0..rounds * 2 {
        let ranges = pages(&mut rng, len);
        let places: Vec<(u64, usize)> = ranges.iter().map(|range| (range.start, 4096)).collect();
        let (begun, cpu_begun) = (Instant::now(), cpu());
        let plain = file.gather_async(&places).await?;
        let (plain_s, plain_cpu) = (begun.elapsed().as_secs_f64(), cpu() - cpu_begun);
        let (begun, cpu_begun) = (Instant::now(), cpu());
        let cached = store.get_ranges(&path, &ranges).await?;
        let (cached_s, cached_cpu) = (begun.elapsed().as_secs_f64(), cpu() - cpu_begun);
        assert_eq!(plain.len(), cached.len() * 4096);
        if round >= rounds {
            rates.push(plain_s / cached_s);
            cpus.push(cached_cpu / plain_cpu);
            per_second.push(RANGES as f64 / cached_s);
            cpu_us.push(cached_cpu * 1e6 / RANGES as f64);
        }
    }
    let done = cache.counters().since(&before);
    println!(
        "{name}: {:.2}x of the plain file's rate, {:.2}x of its CPU ({:.0}/s, {:.2} us of CPU each; {} hits, {} GETs, {} wrong)",
        median(rates),
        median(cpus),
        median(per_second),
        median(cpu_us),
        done.hits,
        done.gets,
        done.misses_wrong
    );
    std::fs::remove_file(&file_path)?;
    drop((store, cache));
    reopened(dir, name, len, memory).await
}

/// The first hit of another opening, with the index in memory and without it.
async fn reopened(dir: &FsPath, name: &str, len: u64, memory: u64) -> Result<()> {
    let home = dir.join(name.replace(' ', "-"));
    for forget in [false, true] {
        if forget {
            for entry in std::fs::read_dir(dir)? {
                let path = entry?.path();
                if path.is_file() {
                    std::fs::remove_file(path)?;
                }
            }
        }
        let begun = Instant::now();
        let options =
            Options::new().on_root(true).memory_bytes(memory).index_dir(dir).revalidate("", Revalidate::Never);
        let cache = Cache::open([&home], options)?;
        let store = over(&cache, len, Duration::ZERO);
        store.get_range(&Path::from("object"), 4096..8192).await?;
        let first = begun.elapsed();
        cache.wait_until_loaded();
        let loaded = begun.elapsed();
        let (granules, done) = (len / (16 << 10), cache.counters());
        println!(
            "  opened again {}: answer after {first:.1?} ({} hits), all {granules} granules after {loaded:.1?}",
            if forget { "without its index" } else { "with its index" },
            done.hits
        );
    }
    Ok(())
}

/// Bytes of a granule of `restart`.
const SMALL: u64 = 4 << 10;

fn small(dir: &FsPath, granules: u64) -> Result<(Cache, Arc<dyn ObjectStore>)> {
    let home = dir.join("restart");
    if !home.exists() {
        std::fs::create_dir(&home)?;
    }
    let options = Options::new()
        .on_root(true)
        .read_within(Duration::from_secs(60))
        .granule_bytes(SMALL as u32)
        .bytes(granules * SMALL * 21 / 20)
        .memory_bytes(64 << 20)
        .fill_bytes(512 << 20)
        .index_dir(dir)
        .revalidate("", Revalidate::Never);
    let cache = Cache::open([home], options)?;
    let store = over(&cache, granules * SMALL, Duration::ZERO);
    Ok((cache, store))
}

/// Fills a cache, says so, and waits to be killed.
async fn filled(dir: &FsPath, granules: u64) -> Result<()> {
    let (cache, store) = small(dir, granules)?;
    for at in (0..granules * SMALL).step_by(8 << 20) {
        store.get_range(&Path::from("object"), at..(at + (8 << 20)).min(granules * SMALL)).await?;
        cache.flush();
    }
    println!("filled {}", cache.counters().filled);
    std::thread::sleep(Duration::from_secs(3600));
    Ok(())
}

/// The first hit after the death of a process, and the time until all granules are in the index: with the index that
/// the process has left in memory, and without it, as after a restart of the machine.
async fn restart(dir: &FsPath, granules: u64) -> Result<()> {
    let begun = Instant::now();
    let mut child = std::process::Command::new(std::env::current_exe()?)
        .arg(dir)
        .args(["fill", &granules.to_string()])
        .stdout(std::process::Stdio::piped())
        .spawn()?;
    let mut line = String::new();
    let said = child.stdout.take().ok_or("the process has no output")?;
    std::io::BufRead::read_line(&mut std::io::BufReader::new(said), &mut line)?;
    child.kill()?;
    child.wait()?;
    println!("{granules} granules of {SMALL} bytes; {} after {:.0?}, then killed", line.trim(), begun.elapsed());
    for with_index in [true, false] {
        if !with_index {
            for entry in std::fs::read_dir(dir)? {
                let path = entry?.path();
                if path.is_file() {
                    std::fs::remove_file(path)?;
                }
            }
        }
        let begun = Instant::now();
        let (cache, store) = small(dir, granules)?;
        let at = granules / 2 * SMALL;
        store.get_range(&Path::from("object"), at..at + SMALL).await?;
        let (first, done) = (begun.elapsed(), cache.counters());
        cache.wait_until_loaded();
        println!(
            "  {}: answer after {first:.1?} ({} hits, {} GETs), all of them after {:.1?}",
            if with_index { "with the index" } else { "without the index" },
            done.hits,
            done.gets,
            begun.elapsed()
        );
        let (mut rng, mut wrong) = (fastrand::Rng::with_seed(1), 0);
        for _ in 0..1000 {
            let at = rng.u64(..granules) * SMALL;
            let before = cache.counters().hits;
            store.get_range(&Path::from("object"), at..at + SMALL).await?;
            wrong += u64::from(cache.counters().hits == before);
        }
        println!("    of 1,000 granules {wrong} are missing");
    }
    Ok(())
}

/// A missing page, of a known object and of an unknown one, beside a bare GET.
async fn misses(dir: &FsPath) -> Result<()> {
    let (len, latency) = (1 << 30, Duration::from_millis(20));
    let cache = opened(dir, "misses", 256 << 20, 64 << 20, 1.0)?;
    let (store, bare) = (over(&cache, len, latency), Zeroes::new(len, latency));
    let known = Path::from("known");
    store.get_range(&known, 0..1).await?;
    let (mut first, mut next) = (vec![], vec![]);
    for n in 1..=100u64 {
        let range = n * 1_000_000..n * 1_000_000 + 4096;
        let unknown = Path::from(format!("unknown {n}"));
        let begun = Instant::now();
        bare.get_range(&known, range.clone()).await?;
        let bare_s = begun.elapsed().as_secs_f64();
        let begun = Instant::now();
        store.get_range(&known, range.clone()).await?;
        next.push(begun.elapsed().as_secs_f64() / bare_s);
        let begun = Instant::now();
        store.get_range(&unknown, range).await?;
        first.push(begun.elapsed().as_secs_f64() / bare_s);
    }
    println!(
        "misses: {:.3}x of the bare GET's time of {latency:?} for a known object, {:.3}x for an unknown one",
        median(next),
        median(first)
    );
    Ok(())
}

/// Missing pages, of an origin that takes 20 ms, and 500 ms for one answer of 50: with GETs that are sent a second time
/// after 60 ms, and without.
async fn tail(dir: &FsPath) -> Result<()> {
    const GETS: usize = 2000;
    let (len, latency, tail) = (1 << 30, Duration::from_millis(20), Some(Duration::from_millis(500)));
    println!("misses of an origin with a slow tail: {GETS} pages, 16 at a time, {latency:?}, and 500 ms for one of 50");
    for hedge_after in [None, Some(Duration::from_millis(60))] {
        let mut cost = Cost::default().latency(latency);
        cost.hedge_after = hedge_after;
        let cache = opened_at(dir, &format!("tail {hedge_after:?}"), 256 << 20, 64 << 20, 1.0, cost)?;
        let store =
            cache.over(Arc::new(Zeroes { tail, ..Zeroes::new(len, latency) }) as Arc<dyn ObjectStore>, "zeroes://");
        let path = Path::from("object");
        store.get_range(&path, 0..1).await?;
        let one = |n: usize| {
            let (store, path) = (&store, &path);
            async move {
                let (at, begun) = (n as u64 * 500_000, Instant::now());
                store.get_range(path, at..at + 4096).await.map(|_| begun.elapsed().as_secs_f64() * 1e3)
            }
        };
        let mut took: Vec<f64> = stream::iter(1..=GETS).map(one).buffer_unordered(16).try_collect().await?;
        took.sort_by(f64::total_cmp);
        let (share, done) = (|share: f64| took[(took.len() as f64 * share) as usize], cache.counters());
        println!(
            "  sent again after {hedge_after:?}: median {:.0} ms, 95% {:.0} ms, 99% {:.0} ms, {} GETs, {} of them sent again",
            share(0.5),
            share(0.95),
            share(0.99),
            done.gets,
            done.hedged
        );
    }
    Ok(())
}

/// The most answers of the origin at a time in `epochs`.
const AT_ONCE: usize = 64;

/// Three epochs over all rows of an object in random order, with a cache for a share of its granules. The other ends
/// of the scale are GETs of single rows, `AT_ONCE` at a time, and gathers of a plain file.
async fn epochs(dir: &FsPath, share: u64, admit: f64, row: u64) -> Result<()> {
    let (len, latency, memory) = (128 << 20, Duration::from_millis(5), 4 << 20);
    let room = (len * share / 100) * 21 / 20;
    let name = format!("epochs {share} {admit} {row}");
    let cache = opened(dir, &name, room, memory, admit)?;
    // About 100 MB/s for each connection.
    let (per_mib, at_once) = (Duration::from_millis(10), || Semaphore::new(AT_ONCE));
    let zeroes = || Zeroes { per_mib, at_once: at_once(), ..Zeroes::new(len, latency) };
    let bare = zeroes();
    let store = cache.over(Arc::new(zeroes()) as Arc<dyn ObjectStore>, "zeroes://");
    let path = Path::from("rows");
    let mut rows: Vec<u64> = (0..len / row).collect();
    let mut rng = fastrand::Rng::with_seed(3);
    let ranges = |rows: &[u64]| -> Vec<_> { rows.iter().map(|index| index * row..(index + 1) * row).collect() };
    rng.shuffle(&mut rows);
    let begun = Instant::now();
    for batch in rows.chunks(RANGES).take(5) {
        futures_util::future::try_join_all(ranges(batch).into_iter().map(|range| bare.get_range(&path, range))).await?;
    }
    let bare_s = begun.elapsed().as_secs_f64() / (5 * RANGES) as f64;
    let file_path = dir.join(&name).with_extension("plain");
    let file = plain(&file_path, len, memory)?;
    let begun = Instant::now();
    for batch in rows.chunks(RANGES) {
        let places: Vec<(u64, usize)> = batch.iter().map(|index| (index * row, row as usize)).collect();
        file.gather_async(&places).await?;
    }
    let plain_s = begun.elapsed().as_secs_f64() / rows.len() as f64;
    drop(file);
    std::fs::remove_file(&file_path)?;
    println!(
        "epochs of random rows of {row} bytes, {share}% of the data fits, admission {admit}; a GET for each row, \
         {AT_ONCE} at a time: {:.0} rows/s; a plain file: {:.0} rows/s",
        1.0 / bare_s,
        1.0 / plain_s
    );
    for epoch in 1..=3 {
        rng.shuffle(&mut rows);
        let (begun, before) = (Instant::now(), cache.counters());
        for batch in rows.chunks(RANGES) {
            store.get_ranges(&path, &ranges(batch)).await?;
        }
        let (n, seconds) = (rows.len() as f64, begun.elapsed().as_secs_f64());
        cache.flush();
        let done = cache.counters().since(&before);
        println!(
            "  epoch {epoch}: {:>7.0} rows/s, {:.3} of the difference in time, {:.3} of the rows are hits, {:.4} GETs and {:>5.0} bytes fetched a row, {:.2} bytes written for each byte cached, {} dropped",
            n / seconds,
            (bare_s - seconds / n) / (bare_s - plain_s),
            done.hits as f64 / n,
            done.gets as f64 / n,
            done.bytes_fetched as f64 / n,
            (done.filled + done.carried) as f64 / done.filled.max(1) as f64,
            done.dropped
        );
    }
    Ok(())
}

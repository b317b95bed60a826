//! Puts objects into an array in a temporary directory, and gathers ranges of them beside `LocalFileSystem` on the same
//! bytes. It prints a table and removes what it made.
//!
//! `cargo run --release --example first_look [DIRECTORY]` takes about ten seconds and 600 MB of the directory, which is
//! the present one by default.

use std::error::Error;
use std::ops::Range;
use std::path::{Path as FsPath, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use futures_util::{StreamExt, TryStreamExt, stream};
use iomill::ArrayOptions;
use iomill_object_store::v0_14::IomillStore;
use object_store_0_14::local::LocalFileSystem;
use object_store_0_14::path::Path;
use object_store_0_14::{ObjectStore, ObjectStoreExt};
use rustix::time::{ClockId, clock_gettime};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const OBJECT_BYTES: usize = 256 << 20;
const RANGE_BYTES: u64 = 4096;
const RANGES: usize = 1000;
const GATHERS: usize = 100;
const PUTS: usize = 2000;
const PUT_BYTES: usize = 5000;
const PUTS_IN_FLIGHT: usize = 64;

fn main() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build()?;
    let place = std::env::args_os().nth(1).map_or_else(|| PathBuf::from("."), PathBuf::from);
    let dir = tempfile::Builder::new().prefix(".tmp-first-look-").tempdir_in(&place)?;
    runtime.block_on(look(dir.path()))?;
    // Closed by now. An error would be lost if the directory were left to its drop.
    dir.close()?;
    Ok(())
}

async fn look(dir: &FsPath) -> Result<()> {
    let drives: Vec<PathBuf> = (0..4).map(|n| dir.join(format!("ssd{n}"))).collect();
    let files = dir.join("files");
    drives.iter().chain([&files]).try_for_each(std::fs::create_dir)?;
    // All of the object fits into the cache, as it fits into the kernel's.
    let array = ArrayOptions::new().cache_bytes(OBJECT_BYTES as u64 * 5 / 4).create(&drives)?;
    let iomill: Arc<dyn ObjectStore> = Arc::new(IomillStore::array(array.clone()));
    let local: Arc<dyn ObjectStore> = Arc::new(LocalFileSystem::new_with_prefix(&files)?.with_fsync(true));

    println!("{:<14} {:>16} {:>16} {:>16} {:>18}", "", "puts/s", "put, MB/s", "ranges/s", "CPU per range, us");
    for (name, store) in [("IomillStore", &iomill), ("LocalFileSystem", &local)] {
        let puts = puts_per_second(store).await?;
        let long = put_long(store).await?;
        let (ranges, cpu_us) = gather(store).await?;
        println!("{name:<14} {puts:>15.0} {long:>16.0} {ranges:>16.0} {cpu_us:>18.2}");
    }
    println!(
        "\n{PUTS} durable puts of {PUT_BYTES} bytes, {PUTS_IN_FLIGHT} in flight; one of {} MiB; then {GATHERS} calls of \
         `get_ranges`,\neach of {RANGES} ranges of {RANGE_BYTES} bytes at random, with the object in memory.",
        OBJECT_BYTES >> 20
    );
    drop(iomill);
    Ok(array.close_async().await?)
}

async fn puts_per_second(store: &Arc<dyn ObjectStore>) -> Result<f64> {
    let begun = Instant::now();
    let puts = (0..PUTS).map(|n| {
        let store = Arc::clone(store);
        async move { store.put(&Path::from(format!("small/{n:05}")), vec![n as u8; PUT_BYTES].into()).await }
    });
    stream::iter(puts).buffer_unordered(PUTS_IN_FLIGHT).try_for_each(|_| async { Ok(()) }).await?;
    Ok(PUTS as f64 / begun.elapsed().as_secs_f64())
}

async fn put_long(store: &Arc<dyn ObjectStore>) -> Result<f64> {
    let mut bytes = vec![0; OBJECT_BYTES];
    fastrand::Rng::with_seed(1).fill(&mut bytes);
    let begun = Instant::now();
    store.put(&Path::from("long"), bytes.into()).await?;
    Ok(OBJECT_BYTES as f64 / 1e6 / begun.elapsed().as_secs_f64())
}

/// Ranges per second, and the microseconds of CPU time that each takes.
async fn gather(store: &Arc<dyn ObjectStore>) -> Result<(f64, f64)> {
    let path = Path::from("long");
    // From now on the object is in memory.
    store.get(&path).await?.into_stream().try_for_each(|_| async { Ok(()) }).await?;
    let mut rng = fastrand::Rng::with_seed(2);
    let mut batch = || -> Vec<Range<u64>> {
        let page = |_| rng.u64(..OBJECT_BYTES as u64 / RANGE_BYTES) * RANGE_BYTES;
        (0..RANGES).map(page).map(|at| at..at + RANGE_BYTES).collect()
    };
    let batches: Vec<_> = (0..GATHERS).map(|_| batch()).collect();
    let (begun, cpu) = (Instant::now(), cpu_us());
    for batch in &batches {
        let parts = store.get_ranges(&path, batch).await?;
        assert_eq!(parts.len(), RANGES);
    }
    let ranges = (GATHERS * RANGES) as f64;
    Ok((ranges / begun.elapsed().as_secs_f64(), (cpu_us() - cpu) / ranges))
}

/// CPU time of the process so far.
fn cpu_us() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
}

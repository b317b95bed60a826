//! Random rows of an object, once from its origin and then from the cache. The origin is a directory, so this needs no
//! network; with a bucket in its place, nothing else changes. `cargo run --release --example first_look`

use std::sync::Arc;
use std::time::Instant;

use iomill_origin::{Cache, Options, Revalidate};
use object_store_0_14::local::LocalFileSystem;
use object_store_0_14::path::Path;
use object_store_0_14::{ObjectStore, ObjectStoreExt};

const ROW_BYTES: u64 = 512;
const ROWS: u64 = 200_000;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = tempfile::Builder::new().prefix(".tmp-first-look-").tempdir_in(".")?;
    let [bucket, ssd0, ssd1] = ["bucket", "ssd0", "ssd1"].map(|name| dir.path().join(name));
    for path in [&bucket, &ssd0, &ssd1] {
        std::fs::create_dir(path)?;
    }
    let origin: Arc<dyn ObjectStore> = Arc::new(LocalFileSystem::new_with_prefix(&bucket)?);
    let path = Path::from("features");
    origin.put(&path, vec![7; (ROWS * ROW_BYTES) as usize].into()).await?;

    // Objects never change here, so a hit asks the origin for nothing.
    let options = Options::new().bytes(256 << 20).index_dir(dir.path()).on_root(true).revalidate("", Revalidate::Never);
    let cache = Cache::open([&ssd0, &ssd1], options)?;
    let store = cache.over(origin, "file://bucket");

    let mut rng = fastrand::Rng::with_seed(1);
    let rows: Vec<u64> = (0..20_000).map(|_| rng.u64(..ROWS)).collect();
    for epoch in 1..=2 {
        let (begun, before) = (Instant::now(), cache.counters());
        for batch in rows.chunks(500) {
            let ranges: Vec<_> = batch.iter().map(|row| row * ROW_BYTES..(row + 1) * ROW_BYTES).collect();
            assert_eq!(store.get_ranges(&path, &ranges).await?.len(), batch.len());
        }
        let (seconds, done) = (begun.elapsed().as_secs_f64(), cache.counters().since(&before));
        println!(
            "epoch {epoch}: {:>8.0} rows/s, {:>6} GETs, {:>4} MiB fetched, {:>6} hits",
            rows.len() as f64 / seconds,
            done.gets,
            done.bytes_fetched >> 20,
            done.hits
        );
        cache.flush();
    }
    Ok(())
}

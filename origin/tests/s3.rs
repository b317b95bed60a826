//! The cache over a store that speaks S3, by `http`: the suite of object_store 0.14, gathers, and changes behind the
//! cache's back. It is skipped where the environment names no store: `S3_ENDPOINT`, `S3_BUCKET`, `S3_KEY` and
//! `S3_SECRET`. It deletes all objects of the bucket.

// Helpers of tests may unwrap as tests do.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use futures_util::TryStreamExt;
use iomill_origin::{Cache, Options, Revalidate};
use object_store_0_14::aws::{AmazonS3, AmazonS3Builder, S3ConditionalPut};
use object_store_0_14::path::Path;
use object_store_0_14::{ObjectStore, ObjectStoreExt, integration};
use tempfile::TempDir;

struct Rig {
    store: Arc<dyn ObjectStore>,
    cache: Cache,
    s3: Arc<AmazonS3>,
    _dir: TempDir,
}

fn s3() -> Option<AmazonS3> {
    let name = |name| std::env::var(name).ok();
    let builder = AmazonS3Builder::new()
        .with_endpoint(name("S3_ENDPOINT")?)
        .with_bucket_name(name("S3_BUCKET")?)
        .with_access_key_id(name("S3_KEY")?)
        .with_secret_access_key(name("S3_SECRET")?)
        .with_region("us-east-1")
        .with_conditional_put(S3ConditionalPut::ETagMatch)
        .with_allow_http(true);
    Some(builder.build().unwrap())
}

fn rig(options: impl FnOnce(Options) -> Options) -> Option<Rig> {
    let Some(s3) = s3() else {
        println!("skipped: S3_ENDPOINT, S3_BUCKET, S3_KEY and S3_SECRET name no store");
        return None;
    };
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let given =
        Options::new().bytes(64 << 20).region_bytes(1 << 20).memory_bytes(8 << 20).index_dir(dir.path()).on_root(true);
    let cache = Cache::open([dir.path()], options(given)).unwrap();
    let s3 = Arc::new(s3);
    let store = cache.over(s3.clone() as Arc<dyn ObjectStore>, "s3://rig");
    Some(Rig { store, cache, s3, _dir: dir })
}

async fn empty(s3: &AmazonS3) {
    let left: Vec<_> = s3.list(None).try_collect().await.unwrap();
    for object in left {
        s3.delete(&object.location).await.unwrap();
    }
}

fn random(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fastrand::Rng::with_seed(seed).fill(&mut bytes);
    bytes
}

/// One test, because there is one bucket. It runs the parts of the suite that a store over Ceph also passes without a
/// cache.
#[tokio::test(flavor = "multi_thread")]
async fn suite() {
    let Some(rig) = rig(|options| options) else { return };
    empty(&rig.s3).await;
    let store = &rig.store;
    for _ in 0..2 {
        integration::put_get_delete_list(store).await;
        integration::get_opts(&**store).await;
        integration::list_uses_directories_correctly(store).await;
        integration::list_with_delimiter(store).await;
        integration::rename_and_copy(store).await;
        integration::stream_get(store).await;
        integration::multipart(&**store, &*rig.s3).await;
        integration::multipart_out_of_order(&**store).await;
        integration::get_nonexistent_object(store, None).await.unwrap_err();
        rig.cache.flush();
        empty(&rig.s3).await;
    }
    gathers().await;
}

async fn gathers() {
    let rig = rig(|options| options.revalidate("never/", Revalidate::Never)).unwrap();
    let (old, new) = (random(5_000_000, 1), random(5_000_000, 2));
    let wanted: Vec<_> = (0..150u64).map(|n| n * 33_000..n * 33_000 + 512).collect();
    let of = |bytes: &[u8]| -> Vec<_> {
        wanted.iter().map(|range| bytes[range.start as usize..range.end as usize].to_vec()).collect()
    };
    for path in ["never/a", "always/a"].map(Path::from) {
        rig.s3.put(&path, old.clone().into()).await.unwrap();
        let before = rig.cache.counters();
        assert_eq!(rig.store.get_ranges(&path, &wanted).await.unwrap(), of(&old));
        rig.cache.flush();
        let cold = rig.cache.counters().since(&before);
        assert_eq!(rig.store.get_ranges(&path, &wanted).await.unwrap(), of(&old));
        let warm = rig.cache.counters().since(&before).since(&cold);
        println!(
            "{path}: cold {} GETs, {} heads; warm {} GETs, {} heads",
            cold.gets, cold.heads, warm.gets, warm.heads
        );
        assert!(warm.gets == 0 && warm.hits >= 150, "{warm:?}");
        assert_eq!(cold.restarts, 0, "etags are understood");
        // Another program replaces the object.
        rig.s3.put(&path, new.clone().into()).await.unwrap();
        let is_never = path.as_ref().starts_with("never");
        let got = rig.store.get_ranges(&path, &wanted).await.unwrap();
        assert_eq!(got, of(if is_never { &old } else { &new }));
        assert_eq!(rig.store.get_range(&path, 4_999_000..5_000_000).await.unwrap(), new[4_999_000..]);
    }
    empty(&rig.s3).await;
}

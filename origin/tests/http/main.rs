//! The cache over a server of HTTP that fails, lies, stalls and changes its mind, by the client of `object_store` 0.14.
//! Each answer is right bytes or a typed error, and the cache is right afterwards. `tests/suite/hostile.rs` has the
//! same without sockets.

// Helpers of tests may unwrap as tests do.
#![allow(clippy::unwrap_used)]

mod server;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::TryStreamExt;
use iomill_origin::{Cache, Options, Revalidate};
use object_store_0_14::http::HttpBuilder;
use object_store_0_14::path::Path;
use object_store_0_14::{BackoffConfig, ClientOptions, Error, GetOptions, ObjectStore, ObjectStoreExt, RetryConfig};
use server::{Act, Server};
use tempfile::TempDir;

const LEN: usize = 600_000;
/// A call with more requests than this does not give up.
const ASKED_MOST: u64 = 40;
/// The bound of a wait. No machine is that slow.
const PATIENCE: Duration = Duration::from_secs(600);
/// The most time that a client waits for an answer that never comes.
const STALLS: Duration = Duration::from_millis(500);

struct Rig {
    store: Arc<dyn ObjectStore>,
    /// The same one, or one with a patient client.
    afterwards: Arc<dyn ObjectStore>,
    cache: Cache,
    server: Server,
    _dir: TempDir,
}

fn rig(retries: usize, options: impl FnOnce(Options) -> Options) -> Rig {
    rig_within(PATIENCE, retries, options)
}

/// The client of its store waits for an answer within a bound.
fn rig_within(most: Duration, retries: usize, options: impl FnOnce(Options) -> Options) -> Rig {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let given = Options::new().bytes(32 << 20).region_bytes(1 << 20).memory_bytes(8 << 20).index_dir(dir.path());
    let cache = Cache::open([dir.path()], options(given.on_root(true).read_within(Duration::from_secs(600)))).unwrap();
    let server = Server::start(random(LEN, 1));
    let backoff = BackoffConfig {
        init_backoff: Duration::from_millis(1),
        max_backoff: Duration::from_millis(5),
        ..Default::default()
    };
    let retry = RetryConfig { backoff, max_retries: retries, retry_timeout: PATIENCE };
    let store = |most| {
        let client = ClientOptions::new().with_allow_http(true).with_timeout(most).with_connect_timeout(PATIENCE);
        let http = HttpBuilder::new().with_url(server.url()).with_retry(retry.clone()).with_client_options(client);
        cache.over(Arc::new(http.build().unwrap()) as Arc<dyn ObjectStore>, &server.url())
    };
    let first = store(most);
    let afterwards = if most < PATIENCE { store(PATIENCE) } else { Arc::clone(&first) };
    Rig { store: first, afterwards, cache, server, _dir: dir }
}

fn random(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fastrand::Rng::with_seed(seed).fill(&mut bytes);
    bytes
}

fn path() -> Path {
    Path::from("a")
}

/// Two far ranges, so that the first read takes two GETs.
fn wanted() -> [std::ops::Range<u64>; 2] {
    [10..5000, 400_000..420_000]
}

fn expected(bytes: &[u8]) -> Vec<Bytes> {
    wanted().map(|range| Bytes::copy_from_slice(&bytes[range.start as usize..range.end as usize])).to_vec()
}

async fn ranges(store: &dyn ObjectStore) -> Result<Vec<Bytes>, Error> {
    store.get_ranges(&path(), &wanted()).await
}

/// All bytes by the pieces of a stream. Those before an error are right.
async fn whole(store: &dyn ObjectStore) -> Result<Bytes, Error> {
    let mut pieces = store.get(&path()).await?.into_stream();
    let mut all = Vec::new();
    while let Some(piece) = pieces.try_next().await? {
        all.extend_from_slice(&piece);
    }
    Ok(all.into())
}

impl Rig {
    async fn ranges(&self) -> Result<Vec<Bytes>, Error> {
        ranges(&self.store).await
    }

    async fn whole(&self) -> Result<Bytes, Error> {
        whole(&self.store).await
    }

    async fn assert_right_afterwards(&self) {
        self.server.script(|_| Act::Pass);
        let bytes = self.server.content();
        for round in 0..2 {
            assert_eq!(ranges(&self.afterwards).await.unwrap(), expected(&bytes));
            assert_eq!(whole(&self.afterwards).await.unwrap(), bytes);
            assert!(self.cache.flush_within(Duration::MAX));
            let before = self.cache.counters();
            assert_eq!(ranges(&self.afterwards).await.unwrap(), expected(&bytes));
            assert_eq!(self.cache.counters().since(&before).gets, 0, "round {round}: it is cached");
        }
        assert_eq!(self.cache.counters().misses_wrong, 0, "nothing wrong was cached");
    }
}

/// The server treats the GETs from number `first` on as told, with and without retries by the client. `is_right`
/// accepts the right errors.
async fn assert_right_or_typed(act: Act, is_right: fn(&Error) -> bool) {
    let most = if matches!(act, Act::Stall | Act::StallInBody) { STALLS } else { PATIENCE };
    for (retries, first) in [(0, 0), (0, 1), (2, 0), (2, 1)] {
        let rig = rig_within(most, retries, |options| options);
        let (own, begun) = (act.clone(), Instant::now());
        rig.server.script(move |ask| if !ask.head && ask.nth >= first { own.clone() } else { Act::Pass });
        match rig.ranges().await {
            Ok(got) => assert!(got == expected(&rig.server.content()), "{act:?}"),
            Err(error) => assert!(is_right(&error), "{act:?}, {retries} retries: {error}"),
        }
        match rig.whole().await {
            // If all answers agree on a length, it counts as that of the object.
            Ok(got) if matches!(act, Act::Total(_)) => assert!(rig.server.content().starts_with(&got), "{act:?}"),
            Ok(got) => assert!(got == rig.server.content(), "{act:?}"),
            Err(error) => assert!(is_right(&error), "{act:?}, {retries} retries: {error}"),
        }
        assert!(rig.server.asked() <= ASKED_MOST, "{act:?}: {}", rig.server.asked());
        assert!(begun.elapsed() < PATIENCE, "{act:?}: {:?}", begun.elapsed());
        rig.assert_right_afterwards().await;
    }
}

fn is_other(error: &Error) -> bool {
    matches!(error, Error::Generic { .. })
}

#[tokio::test]
async fn a_status_is_the_error_of_the_origin() {
    assert_right_or_typed(Act::Status(401), |error| matches!(error, Error::Unauthenticated { .. })).await;
    assert_right_or_typed(Act::Status(403), |error| matches!(error, Error::PermissionDenied { .. })).await;
    assert_right_or_typed(Act::Status(404), |error| matches!(error, Error::NotFound { .. })).await;
    for code in [400, 416, 429, 500, 502, 503] {
        assert_right_or_typed(Act::Status(code), is_other).await;
    }
}

#[tokio::test]
async fn a_body_that_is_not_its_range_is_an_error() {
    for less in [1, 16 << 10, usize::MAX] {
        assert_right_or_typed(Act::Cut(less), is_other).await;
    }
    for longer in [-1, -(16 << 10), 1, 100_000] {
        for chunked in [false, true] {
            assert_right_or_typed(Act::Body { longer, chunked }, is_other).await;
        }
    }
}

/// The next request of the connection may read the bytes behind the answer.
#[tokio::test]
async fn an_answer_that_was_not_asked_for_is_none() {
    for act in [Act::Behind, Act::Noise, Act::Close] {
        assert_right_or_typed(act, is_other).await;
    }
}

#[tokio::test]
async fn a_wrong_range_is_an_error() {
    for act in [Act::Elsewhere(1), Act::Elsewhere(16 << 10), Act::NoRange] {
        assert_right_or_typed(act, is_other).await;
    }
    let wrong_length = |error: &Error| matches!(error, Error::Generic { .. } | Error::Precondition { .. });
    for total in [0, 5, LEN as u64 - 1, LEN as u64 + 1, u64::MAX] {
        assert_right_or_typed(Act::Total(total), wrong_length).await;
    }
}

#[tokio::test]
async fn what_is_slow_comes_and_what_stalls_is_an_error_in_time() {
    assert_right_or_typed(Act::After(STALLS / 5), |_| false).await;
    for act in [Act::Stall, Act::StallInBody] {
        assert_right_or_typed(act, is_other).await;
    }
}

/// Each GET has another etag, and the server ignores conditions.
#[tokio::test]
async fn an_etag_that_changes_between_ranges_is_a_typed_error() {
    for retries in [0, 2] {
        let rig = rig(retries, |options| options);
        rig.server.script(|ask| if ask.head { Act::Pass } else { Act::ETag(Some(format!("\"get {}\"", ask.nth))) });
        for _ in 0..2 {
            let error = rig.ranges().await.unwrap_err();
            assert!(matches!(error, Error::Precondition { .. }), "{error}");
        }
        assert!(rig.server.asked() <= ASKED_MOST, "{}", rig.server.asked());
        rig.assert_right_afterwards().await;
    }
}

/// The object is replaced, also by a shorter one, between two GETs of a call.
#[tokio::test]
async fn an_object_that_is_replaced_between_ranges_is_read_anew() {
    for conditions in [true, false] {
        for len in [LEN, LEN + 5, 450_000] {
            let (rig, new) = (rig(0, |options| options), random(len, 2));
            let put = new.clone();
            let mut is_put = false;
            rig.server.script(move |ask| {
                if ask.head || ask.nth != 1 || std::mem::replace(&mut is_put, true) {
                    return if conditions { Act::Pass } else { Act::ETag(None) };
                }
                Act::Replaced { content: put.clone(), conditions }
            });
            if conditions {
                assert_eq!(rig.ranges().await.unwrap(), expected(&new), "{len}");
                assert!(rig.cache.counters().restarts >= 1);
            } else if let Ok(got) = rig.ranges().await {
                assert!([random(LEN, 1), new].iter().any(|bytes| got == expected(bytes)), "a mixture");
            }
            rig.assert_right_afterwards().await;
        }
    }
}

#[tokio::test]
async fn an_object_that_shrinks_has_its_new_bytes_or_an_error() {
    for when in [Revalidate::Always, Revalidate::After(Duration::from_secs(3600)), Revalidate::Never] {
        let rig = rig(0, |options| options.revalidate("", when));
        rig.ranges().await.unwrap();
        rig.cache.flush();
        for len in [100_000, 5000, 1, 0] {
            let old = rig.server.content();
            rig.server.replace(random(len, 3));
            let new = rig.server.content();
            // Not cached yet, so that the origin is asked.
            let error = rig.store.get_range(&path(), 500_000..500_100).await.unwrap_err();
            assert!(matches!(error, Error::Generic { .. } | Error::Precondition { .. }), "{error}");
            let whole = rig.whole().await.unwrap();
            let may_be_old = when != Revalidate::Always && whole == old;
            assert!(whole == new || may_be_old, "{when:?}, {len} bytes: {} came", whole.len());
            assert_eq!(rig.store.head(&path()).await.unwrap().size, len as u64);
        }
        rig.server.replace(random(LEN, 4));
        rig.store.head(&path()).await.unwrap();
        rig.assert_right_afterwards().await;
    }
}

/// The server ignores conditions, so it refuses a range past the new end with status 416.
#[tokio::test]
async fn a_refused_range_of_a_shorter_object_shows_the_change() {
    for when in [Revalidate::Always, Revalidate::Never] {
        let rig = rig(0, |options| options.revalidate("", when));
        rig.store.get_range(&path(), 0..10).await.unwrap();
        rig.cache.flush();
        rig.server.replace(random(10_000, 3));
        rig.server.script(|_| Act::ETag(Some("\"v2\"".into())));
        assert_eq!(rig.whole().await.unwrap(), rig.server.content(), "{when:?}");
        assert!(rig.store.get_range(&path(), 500_000..500_100).await.is_err());
        rig.server.replace(random(LEN, 4));
        rig.server.script(|_| Act::ETag(Some("\"v3\"".into())));
        assert_eq!(rig.ranges().await.unwrap(), expected(&rig.server.content()), "{when:?}");
    }
}

/// The server returns whole objects only. They are not cached. Seen to fail when the error of the range was the answer.
#[tokio::test]
async fn an_origin_without_ranges_passes() {
    let rig = rig(0, |options| options);
    rig.server.script(|_| Act::Whole);
    let bytes = rig.server.content();
    for _ in 0..2 {
        assert_eq!(rig.store.get(&path()).await.unwrap().bytes().await.unwrap(), bytes);
        let options = GetOptions { if_match: Some("\"v1\"".into()), ..Default::default() };
        assert_eq!(rig.store.get_opts(&path(), options).await.unwrap().bytes().await.unwrap(), bytes);
        assert!(matches!(rig.ranges().await.unwrap_err(), Error::NotSupported { .. }));
    }
    rig.assert_right_afterwards().await;
}

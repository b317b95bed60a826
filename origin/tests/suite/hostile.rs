//! An origin that fails, lies, stalls and changes its mind. Each answer is right bytes or a typed error, and the cache
//! is right afterwards.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use futures_util::StreamExt;
use iomill_origin::Revalidate;

use super::object_store::path::Path;
use super::object_store::{Error, GetOptions, GetRange, ObjectStore, ObjectStoreExt};
use super::{Act, Cached, GRANULE, Rig, expected, random};

pub(super) const LEN: usize = 600_000;

fn status(code: u16) -> Error {
    let (path, source) = ("a".to_owned(), format!("status {code}").into());
    match code {
        401 => Error::Unauthenticated { path, source },
        403 => Error::PermissionDenied { path, source },
        404 => Error::NotFound { path, source },
        _ => Error::Generic { store: "S3", source },
    }
}

fn code_of(error: &Error) -> u16 {
    match error {
        Error::Unauthenticated { .. } => 401,
        Error::PermissionDenied { .. } => 403,
        Error::NotFound { .. } => 404,
        Error::Generic { .. } => 500,
        other => panic!("another error than the origin's: {other}"),
    }
}

/// Two far ranges, so that the first read takes two GETs.
pub(super) fn wanted() -> [std::ops::Range<u64>; 2] {
    [10..5000, 400_000..420_000]
}

pub(super) async fn assert_right_afterwards(rig: &Rig, bytes: &[u8]) {
    rig.scripted.script(|_| Act::Pass);
    for _ in 0..2 {
        assert_eq!(rig.ranges("a", &wanted()).await.unwrap(), expected(bytes, &wanted()));
        assert_eq!(rig.store.get(&Path::from("a")).await.unwrap().bytes().await.unwrap(), bytes);
        rig.cache.flush();
    }
}

#[tokio::test]
async fn errors_are_those_of_the_origin() {
    for code in [401, 403, 404, 429, 500, 503] {
        // The first, the second and the third request fails, or all do.
        for failing in 0..4 {
            let rig = Rig::new();
            let bytes = random(LEN, code.into());
            rig.behind("a", bytes.clone()).await;
            let asked = AtomicU64::new(0);
            rig.scripted.script(move |_| match asked.fetch_add(1, Relaxed) {
                n if n == failing || failing == 3 => Act::Fail(status(code)),
                _ => Act::Pass,
            });
            match rig.ranges("a", &wanted()).await {
                Ok(got) => assert_eq!(got, expected(&bytes, &wanted()), "{code} {failing}"),
                Err(error) => {
                    let found = code_of(&error);
                    assert!(found == code || code > 404 && found == 500, "{code}: {error}");
                    assert!(error.to_string().contains(&format!("status {code}")), "{error}");
                }
            }
            assert_right_afterwards(&rig, &bytes).await;
        }
    }
}

/// Bodies that are cut short or too long, and wrong ranges, in the first GET and in those that follow it.
#[tokio::test]
async fn a_body_that_is_not_what_was_asked_for_is_an_error_and_is_not_cached() {
    type Lie = fn() -> Act;
    let lies: [(&str, Lie); 5] = [
        ("one byte short", || Act::Short(1)),
        ("a granule short", || Act::Short(GRANULE as usize)),
        ("no byte", || Act::Short(usize::MAX)),
        ("a byte too long", || Act::Long(1)),
        ("elsewhere", || Act::Elsewhere(GRANULE)),
    ];
    for (name, lie) in lies {
        for first in [0, 1] {
            let rig = Rig::new();
            let bytes = random(LEN, first);
            rig.behind("a", bytes.clone()).await;
            rig.scripted.script(move |ask| if !ask.head && ask.nth >= first { lie() } else { Act::Pass });
            let error = rig.ranges("a", &wanted()).await.expect_err(name);
            assert!(matches!(error, Error::Generic { .. }) && error.to_string().contains("origin"), "{name}: {error}");
            assert_right_afterwards(&rig, &bytes).await;
        }
    }
}

/// Each GET but the first has another etag than the requested one, and the origin ignores conditions. No mixture is
/// ever an answer.
#[tokio::test]
async fn an_etag_that_changes_between_ranges_is_a_typed_error() {
    let rig = Rig::new();
    let bytes = random(LEN, 1);
    rig.behind("a", bytes.clone()).await;
    rig.scripted.script(|ask| if ask.head { Act::Pass } else { Act::ETag(Some(format!("etag {}", ask.nth))) });
    let error = rig.ranges("a", &wanted()).await.unwrap_err();
    assert!(matches!(error, Error::Precondition { .. }), "{error}");
    assert!(rig.cache.counters().restarts >= 2);
    assert_right_afterwards(&rig, &bytes).await;
}

/// The object is replaced between two GETs of one call. The call begins again, and has the new content only.
#[tokio::test]
async fn an_object_that_is_replaced_while_it_is_read_is_read_anew() {
    for conditions in [true, false] {
        let rig = Rig::new();
        let (old, new) = (random(LEN, 1), random(LEN, 2));
        rig.behind("a", old.clone()).await;
        let put = new.clone();
        rig.scripted.script(move |ask| match ask.nth {
            1 if !ask.head => {
                assert!(ask.is_conditional, "the origin is told which version is read");
                Act::Replaced(put.clone())
            }
            _ if conditions => Act::Pass,
            // It ignores conditions, so the answer must show the change.
            _ => Act::Unconditional,
        });
        assert_eq!(rig.ranges("a", &wanted()).await.unwrap(), expected(&new, &wanted()));
        assert!(rig.cache.counters().restarts >= 1);
        assert_right_afterwards(&rig, &new).await;
    }
}

/// A stream has begun to answer, so it cannot begin again. The origin reports the change, or ignores conditions.
#[tokio::test]
async fn a_stream_whose_object_is_replaced_ends_with_a_typed_error() {
    for conditions in [true, false] {
        let rig = Rig::new();
        let (old, new) = (random(9 << 20, 1), random(9 << 20, 2));
        rig.behind("a", old.clone()).await;
        rig.scripted.script(move |_| if conditions { Act::Pass } else { Act::Unconditional });
        let mut stream = rig.store.get(&Path::from("a")).await.unwrap().into_stream();
        let first = stream.next().await.unwrap().unwrap();
        rig.behind("a", new.clone()).await;
        let mut got = first.to_vec();
        let error = loop {
            match stream.next().await {
                Some(Ok(piece)) => got.extend_from_slice(&piece),
                Some(Err(error)) => break error,
                None => panic!("the stream has ended well"),
            }
        };
        assert!(matches!(error, Error::Precondition { .. }), "{error}");
        assert_eq!(got, old[..got.len()]);
        drop(stream);
        assert_eq!(rig.store.get(&Path::from("a")).await.unwrap().bytes().await.unwrap(), new);
    }
}

#[tokio::test]
async fn an_object_that_shrinks_has_its_new_bytes_or_an_error() {
    let rig = Rig::new();
    let (old, new) = (random(LEN, 1), random(100_000, 2));
    rig.behind("a", old.clone()).await;
    rig.ranges("a", &wanted()).await.unwrap();
    rig.cache.flush();
    rig.behind("a", new.clone()).await;
    // The second range is past its end now.
    assert!(rig.ranges("a", &wanted()).await.is_err());
    assert_eq!(rig.ranges("a", &wanted()[..1]).await.unwrap(), expected(&new, &wanted()[..1]));
    assert_eq!(rig.store.get(&Path::from("a")).await.unwrap().bytes().await.unwrap(), new);
}

/// The origin ignores conditions, or compares the range first, so it refuses a range past the new end without naming
/// the change.
#[tokio::test]
async fn a_refused_range_of_a_shorter_object_shows_the_change() {
    for when in [Revalidate::Always, Revalidate::Never] {
        let rig = Rig::with(|options| options.revalidate("", when));
        let (old, new) = (random(LEN, 1), random(10_000, 2));
        rig.behind("a", old.clone()).await;
        rig.ranges("a", &wanted()[..1]).await.unwrap();
        let content = Cached::new(&rig.cache, rig.scripted.clone() as Arc<dyn ObjectStore>, "memory://");
        let content = content.open(&Path::from("a")).await.unwrap();
        rig.cache.flush();
        rig.behind("a", new.clone()).await;
        rig.scripted.script(|_| Act::Unconditional);
        // Its first granule is cached, and the rest is past the end now.
        assert_eq!(rig.store.get(&Path::from("a")).await.unwrap().bytes().await.unwrap(), new, "{when:?}");
        assert!(rig.ranges("a", &wanted()).await.is_err());
        let error = content.read(&wanted()).await.unwrap_err();
        assert!(matches!(error, Error::Precondition { .. }), "{error}");
        assert_eq!(rig.ranges("a", &wanted()[..1]).await.unwrap(), expected(&new, &wanted()[..1]));
    }
}

/// A range past the known end is not an error before the origin was asked, even if objects never change.
#[tokio::test]
async fn a_range_behind_the_known_end_asks_for_the_version() {
    let rig = Rig::immutable();
    let (old, new) = (random(10_000, 1), random(LEN, 2));
    rig.behind("a", old.clone()).await;
    rig.ranges("a", &wanted()[..1]).await.unwrap();
    rig.cache.flush();
    assert!(rig.ranges("a", &wanted()).await.is_err());
    rig.behind("a", new.clone()).await;
    assert_eq!(rig.ranges("a", &wanted()[..1]).await.unwrap(), expected(&old, &wanted()[..1]));
    assert_eq!(rig.ranges("a", &wanted()).await.unwrap(), expected(&new, &wanted()));
    let far = GetOptions::new().with_range(Some(GetRange::Offset(LEN as u64 - 5)));
    assert_eq!(rig.store.get_opts(&Path::from("a"), far).await.unwrap().bytes().await.unwrap(), new[LEN - 5..]);
}

/// An origin that only knows GETs.
#[tokio::test]
async fn an_origin_without_heads_is_asked_by_gets() {
    let rig = Rig::new();
    let (old, new) = (random(LEN, 1), random(LEN, 2));
    let no_heads = || Error::Generic { store: "HTTP", source: "status code: 405 Method Not Allowed".into() };
    rig.scripted.script(move |ask| if ask.head { Act::Fail(no_heads()) } else { Act::Pass });
    for bytes in [old, new] {
        rig.behind("a", bytes.clone()).await;
        for _ in 0..3 {
            assert_eq!(rig.ranges("a", &wanted()).await.unwrap(), expected(&bytes, &wanted()));
            let end = GetOptions::new().with_range(Some(GetRange::Suffix(9)));
            assert_eq!(
                rig.store.get_opts(&Path::from("a"), end).await.unwrap().bytes().await.unwrap(),
                bytes[LEN - 9..]
            );
            rig.cache.flush();
        }
        let before = rig.cache.counters();
        rig.ranges("a", &wanted()).await.unwrap();
        assert_eq!((rig.since(&before).gets, rig.since(&before).bytes_fetched), (1, GRANULE));
    }
    assert!(rig.store.head(&Path::from("a")).await.is_err());
}

/// No GET of a range, and no head, has the version of an empty object. So it is not cached. Seen to fail with the error
/// of the head.
#[tokio::test]
async fn an_empty_object_of_an_origin_without_heads_passes() {
    let rig = Rig::new();
    let no_heads = || Error::Generic { store: "HTTP", source: "status code: 405 Method Not Allowed".into() };
    rig.scripted.script(move |ask| if ask.head { Act::Fail(no_heads()) } else { Act::Pass });
    rig.behind("a", random(LEN, 1)).await;
    rig.ranges("a", &wanted()).await.unwrap();
    rig.cache.flush();
    // Another program empties one object, and puts another one.
    for path in ["a", "b"] {
        rig.behind(path, Vec::new()).await;
        let path = Path::from(path);
        for _ in 0..2 {
            let none_match = GetOptions { if_none_match: Some("other".into()), ..Default::default() };
            for options in [GetOptions::default(), none_match] {
                assert_eq!(rig.store.get_opts(&path, options).await.unwrap().bytes().await.unwrap(), "");
            }
            let error = rig.store.get_range(&path, 5..6).await.unwrap_err();
            assert!(!error.to_string().contains("405"), "{error}");
        }
    }
    // The error of a GET is the answer, and not that of the head after it.
    let broken = || Error::Generic { store: "HTTP", source: "status 503".into() };
    rig.scripted.script(move |ask| Act::Fail(if ask.head { no_heads() } else { broken() }));
    let error = rig.ranges("c", &wanted()).await.unwrap_err();
    assert!(error.to_string().contains("503"), "{error}");
}

/// The times of the origin have fractions of seconds, and those of its answers do not.
#[tokio::test]
async fn conditions_of_time_that_are_never_met_are_left_out() {
    let rig = Rig::with(|options| options.by_time(true));
    let (old, new) = (random(LEN, 1), random(LEN, 2));
    rig.behind("a", old.clone()).await;
    rig.scripted.script(|_| Act::Refuse);
    for _ in 0..2 {
        assert_eq!(rig.ranges("a", &wanted()).await.unwrap(), expected(&old, &wanted()));
        rig.cache.flush();
    }
    rig.behind("a", new.clone()).await;
    let more = [wanted()[0].clone(), 500_000..500_100];
    assert_eq!(rig.ranges("a", &more).await.unwrap(), expected(&new, &more));
}

/// A slow answer to one call keeps no other call from its bytes.
#[tokio::test]
async fn a_stalled_get_hurts_only_those_that_want_it() {
    let rig = Rig::immutable();
    let bytes = random(LEN, 1);
    rig.behind("a", bytes.clone()).await;
    rig.ranges("a", &wanted()[..1]).await.unwrap();
    rig.cache.flush();
    rig.scripted.script(|ask| if ask.head { Act::Pass } else { Act::Stall });
    let far = [500_000..500_100];
    let stalled = rig.ranges("a", &far);
    let hits = async {
        for _ in 0..20 {
            assert_eq!(rig.ranges("a", &wanted()[..1]).await.unwrap(), expected(&bytes, &wanted()[..1]));
        }
    };
    tokio::select! {
        _ = stalled => panic!("it has no bytes"),
        () = hits => {}
    }
    // The stalled call is dropped. Another one asks anew, and does not wait for it.
    rig.scripted.script(|_| Act::Pass);
    assert_eq!(rig.ranges("a", &far).await.unwrap(), expected(&bytes, &far));
    assert_right_afterwards(&rig, &bytes).await;
}

/// A future that has begun a GET and is no longer polled does not delay another call for long.
#[tokio::test]
async fn a_call_that_is_not_polled_is_not_waited_for_without_end() {
    let rig = Rig::immutable();
    let bytes = random(LEN, 1);
    rig.behind("a", bytes.clone()).await;
    rig.ranges("a", &wanted()[..1]).await.unwrap();
    rig.cache.flush();
    rig.scripted.script(|_| Act::After(Duration::from_millis(20)));
    let far = [500_000..500_100];
    let mut asleep = Box::pin(rig.ranges("a", &far));
    assert!(futures_util::poll!(&mut asleep).is_pending());
    assert_eq!(rig.ranges("a", &far).await.unwrap(), expected(&bytes, &far));
    assert_eq!(asleep.await.unwrap(), expected(&bytes, &far));
}

/// The `get_ranges` of object_store itself panics over a range that begins behind the end, near another one.
#[tokio::test]
async fn ranges_past_the_end_of_an_object_that_passes_are_errors() {
    let rig = Rig::new();
    let bytes = random(10, 1);
    rig.behind("n", bytes.clone()).await;
    rig.scripted.script(|_| Act::ETag(None));
    assert_eq!(rig.ranges("n", &[8..10, 3..3, 2..5]).await.unwrap(), expected(&bytes, &[8..10, 3..3, 2..5]));
    assert_eq!(rig.ranges("n", &[0..5, 7..50]).await.unwrap(), expected(&bytes, &[0..5, 7..10]));
    for wrong in [vec![0..5, 1000..1010], vec![0..5, 10..11], vec![1000..1010]] {
        let error = rig.ranges("n", &wrong).await.unwrap_err();
        assert!(matches!(error, Error::Generic { .. }), "{wrong:?}: {error}");
    }
}

/// Without etags and versions, the bytes may differ from call to call, so nothing is cached, unless the user allows it.
#[tokio::test]
async fn objects_without_a_version_pass() {
    for by_time in [false, true] {
        let rig = Rig::with(|options| options.by_time(by_time));
        let bytes = random(LEN, 1);
        rig.behind("a", bytes.clone()).await;
        rig.scripted.script(|_| Act::ETag(None));
        for _ in 0..3 {
            assert_eq!(rig.ranges("a", &wanted()).await.unwrap(), expected(&bytes, &wanted()));
            assert_eq!(rig.store.get(&Path::from("a")).await.unwrap().bytes().await.unwrap(), bytes);
            rig.cache.flush();
        }
        let counters = rig.cache.counters();
        assert_eq!((counters.passed > 0, counters.filled > 0, counters.hits > 0), (!by_time, by_time, by_time));
        // The next content has another time.
        let new = random(LEN, 2);
        rig.behind("a", new.clone()).await;
        assert_eq!(rig.ranges("a", &wanted()).await.unwrap(), expected(&new, &wanted()));
    }
}

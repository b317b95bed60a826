//! An origin with answers that contradict each other, or that break off. Each call ends with right bytes or a typed
//! error, after a few requests, and the cache is right afterwards.

use chrono::DateTime;
use futures_util::StreamExt;
use iomill_origin::Revalidate;

use super::hostile::{LEN, assert_right_afterwards, wanted};
use super::object_store::path::Path;
use super::object_store::{Error, ObjectStoreExt};
use super::{Act, GRANULE, Rig, expected, random};

/// A call with more requests than this does not give up.
const ASKED_MOST: u64 = 24;

async fn filled(seed: u64) -> (Rig, Vec<u8>) {
    let rig = Rig::new();
    let bytes = random(LEN, seed);
    rig.behind("a", bytes.clone()).await;
    (rig, bytes)
}

async fn assert_nothing_wrong_afterwards(rig: &Rig, bytes: &[u8]) {
    assert_right_afterwards(rig, bytes).await;
    assert_eq!(rig.cache.counters().misses_wrong, 0, "nothing wrong was cached");
}

fn asked(rig: &Rig) -> u64 {
    let (gets, heads) = rig.scripted.counts();
    gets + heads
}

fn broken(code: u16) -> Error {
    let (path, source) = ("a".to_owned(), format!("status {code}").into());
    if code == 403 { Error::PermissionDenied { path, source } } else { Error::Generic { store: "S3", source } }
}

/// The origin has answered, and breaks off in the middle of the body.
#[tokio::test]
async fn a_body_that_breaks_in_the_middle_is_the_error_of_the_origin() {
    for code in [403, 429, 500, 503] {
        for first in [0, 1] {
            let (rig, bytes) = filled(code.into()).await;
            rig.scripted.script(move |ask| match ask.head {
                false if ask.nth >= first => Act::Break(broken(code)),
                _ => Act::Pass,
            });
            for _ in 0..2 {
                let error = rig.ranges("a", &wanted()).await.unwrap_err();
                assert_eq!(matches!(error, Error::PermissionDenied { .. }), code == 403, "{error}");
                assert!(error.to_string().contains(&format!("status {code}")), "{error}");
            }
            assert!(asked(&rig) <= ASKED_MOST, "{:?}", rig.scripted.counts());
            // A stream has the bytes before the error, and then the error.
            let got = rig.store.get(&Path::from("a")).await;
            let mut pieces = match got {
                Ok(got) => got.into_stream(),
                Err(error) => {
                    assert!(error.to_string().contains("status"), "{error}");
                    futures_util::stream::empty().boxed()
                }
            };
            let mut at = 0;
            while let Some(Ok(piece)) = pieces.next().await {
                assert_eq!(piece, bytes[at..at + piece.len()]);
                at += piece.len();
            }
            assert_nothing_wrong_afterwards(&rig, &bytes).await;
        }
    }
}

/// An origin without ranges answers with the whole object (200), or is a proxy that confuses objects.
#[tokio::test]
async fn an_answer_of_another_range_or_object_is_an_error() {
    type Lie = fn() -> Act;
    let lies: [(&str, Lie); 4] = [
        ("the whole object", || Act::Whole),
        ("a longer object", || Act::Size(LEN as u64 + 1)),
        ("a shorter object", || Act::Size(LEN as u64 - GRANULE)),
        ("an object without end", || Act::Size(1 << 60)),
    ];
    for (name, lie) in lies {
        for first in [0, 1] {
            let (rig, bytes) = filled(first).await;
            rig.scripted.script(move |ask| if !ask.head && ask.nth >= first { lie() } else { Act::Pass });
            match rig.ranges("a", &wanted()).await {
                // The whole object may well be the answer to a first GET of its first bytes.
                Ok(got) => assert_eq!(got, expected(&bytes, &wanted()), "{name}"),
                Err(Error::Generic { .. } | Error::Precondition { .. }) => {}
                Err(other) => panic!("{name}: {other}"),
            }
            assert!(asked(&rig) <= ASKED_MOST, "{name}: {:?}", rig.scripted.counts());
            assert_nothing_wrong_afterwards(&rig, &bytes).await;
        }
    }
}

/// The first GET of an object is of its middle. Seen to fail in a subtraction.
#[tokio::test]
async fn a_range_behind_the_end_that_an_answer_names_is_an_error() {
    for end in [0, 5, 400_000 / GRANULE * GRANULE] {
        let (rig, bytes) = filled(1).await;
        rig.scripted.script(move |ask| if ask.head { Act::Pass } else { Act::Ended(end) });
        let error = rig.ranges("a", &wanted()[1..]).await.unwrap_err();
        assert!(matches!(error, Error::Generic { .. } | Error::Precondition { .. }), "{end}: {error}");
        assert_nothing_wrong_afterwards(&rig, &bytes).await;
    }
}

/// All answers agree on a length that no memory has. Seen to fail when the list of the granules was too long: the
/// process ended.
#[tokio::test]
async fn a_gather_of_more_bytes_than_memory_is_an_error() {
    for when in [Revalidate::Always, Revalidate::Never] {
        let rig = Rig::with(|options| options.revalidate("", when));
        rig.behind("a", random(3 << 20, 1)).await;
        rig.scripted.script(|_| Act::Size(1 << 60));
        for wanted in [vec![0..1 << 60], vec![0..u64::MAX; 20], vec![5..6, 0..1 << 59]] {
            let error = rig.ranges("a", &wanted).await.unwrap_err();
            assert!(matches!(error, Error::Generic { .. } | Error::Precondition { .. }), "{error}");
        }
    }
}

/// The same object is looked up, verified and unpinned. Each call looked up granules for days.
#[tokio::test]
async fn a_walk_over_an_object_without_end_is_an_error() {
    let rig = Rig::new();
    rig.behind("a", random(3 << 20, 1)).await;
    rig.scripted.script(|_| Act::Size(1 << 60));
    let content = super::content::cached(&rig).open(&Path::from("a")).await.unwrap();
    let all = 0..1 << 60;
    for error in [
        content.cached_bytes().unwrap_err(),
        content.verify().await.unwrap_err(),
        content.unpin(&[all]).await.unwrap_err(),
    ] {
        assert!(error.to_string().contains("1152921504606846976 bytes"), "{error}");
    }
}

/// Some clients have no kind of error for an answer with the whole object (200) to a GET of a range.
#[tokio::test]
async fn an_origin_without_ranges_passes() {
    let (rig, bytes) = filled(1).await;
    let whole = || Error::Generic { store: "S3", source: "Received non-partial response when range requested".into() };
    rig.scripted.script(move |ask| if ask.has_range && !ask.head { Act::Fail(whole()) } else { Act::Pass });
    for _ in 0..2 {
        assert_eq!(rig.store.get(&Path::from("a")).await.unwrap().bytes().await.unwrap(), bytes);
        let error = rig.ranges("a", &wanted()).await.unwrap_err();
        assert!(error.to_string().contains("non-partial"), "{error}");
    }
    assert_nothing_wrong_afterwards(&rig, &bytes).await;
}

/// Heads are about another content than GETs: two nodes of an origin disagree.
#[tokio::test]
async fn a_head_that_disagrees_with_gets_is_a_typed_error() {
    type Lie = fn() -> Act;
    let lies: [(&str, Lie); 3] = [
        ("another etag", || Act::ETag(Some("other".into()))),
        ("another length", || Act::Size(LEN as u64 + 5)),
        ("no etag", || Act::ETag(None)),
    ];
    for (name, lie) in lies {
        let (rig, bytes) = filled(1).await;
        assert_eq!(rig.ranges("a", &wanted()).await.unwrap(), expected(&bytes, &wanted()));
        rig.cache.flush();
        rig.scripted.script(move |ask| if ask.head { lie() } else { Act::Pass });
        let before = asked(&rig);
        for _ in 0..3 {
            match rig.ranges("a", &wanted()).await {
                Ok(got) => assert_eq!(got, expected(&bytes, &wanted()), "{name}"),
                Err(Error::Precondition { .. }) => {}
                Err(other) => panic!("{name}: {other}"),
            }
        }
        assert!(asked(&rig) - before <= 3 * ASKED_MOST, "{name}: {:?}", rig.scripted.counts());
        assert_nothing_wrong_afterwards(&rig, &bytes).await;
    }
}

/// A weak etag does not distinguish contents, so the object is not cached. A proxy that compresses has such etags, and
/// bodies of other lengths.
#[tokio::test]
async fn objects_with_weak_etags_pass() {
    let (rig, bytes) = filled(1).await;
    rig.scripted.script(|_| Act::ETag(Some("W/\"1\"".into())));
    for _ in 0..3 {
        assert_eq!(rig.ranges("a", &wanted()).await.unwrap(), expected(&bytes, &wanted()));
        rig.cache.flush();
    }
    // The same weak etag, and other bytes.
    let new = random(LEN, 2);
    rig.behind("a", new.clone()).await;
    assert_eq!(rig.ranges("a", &wanted()).await.unwrap(), expected(&new, &wanted()));
    let counters = rig.cache.counters();
    assert_eq!((counters.filled, counters.hits), (0, 0), "{counters:?}");
    assert!(counters.passed >= 4);
    assert_nothing_wrong_afterwards(&rig, &new).await;
}

/// Ranges of an object that is not cached take several requests. The answers are of one content, or the call fails.
/// Seen to fail when the answers were not compared: the call returned ranges of both.
#[tokio::test]
async fn ranges_of_an_object_that_passes_are_of_one_content() {
    let rig = Rig::with(|options| options);
    rig.behind("a", random(4 << 20, 1)).await;
    let wanted = [0..10, 3 << 20..(3 << 20) + 10];
    let mut answers = 0;
    rig.scripted.script(move |ask| {
        answers += u64::from(ask.has_range);
        // The first ranged request finds that the object passes.
        Act::ETag(Some(format!("W/\"{}\"", if answers > 2 { 2 } else { 1 })))
    });
    let error = rig.ranges("a", &wanted).await.unwrap_err();
    assert!(matches!(error, Error::Precondition { .. }), "{error}");
    // From now on all answers are of the second one.
    rig.ranges("a", &wanted).await.unwrap();
}

/// The user lets times identify objects without a strong etag. Then a weak etag that stays does not hide another time.
/// Seen to fail when answers of one weak etag were one content: the old bytes came.
#[tokio::test]
async fn a_weak_etag_does_not_hide_another_time() {
    for when in [Revalidate::Always, Revalidate::Never] {
        let rig = Rig::with(|options| options.by_time(true).revalidate("", when));
        let (old, new) = (random(LEN, 1), random(LEN, 2));
        rig.behind("a", old.clone()).await;
        rig.scripted.script(|_| Act::ETag(Some("W/\"1\"".into())));
        assert_eq!(rig.ranges("a", &wanted()[..1]).await.unwrap(), expected(&old, &wanted()[..1]));
        rig.cache.flush();
        rig.behind("a", new.clone()).await;
        // One range is cached, and the other one is not.
        assert_eq!(rig.ranges("a", &wanted()).await.unwrap(), expected(&new, &wanted()), "{when:?}");
        rig.cache.flush();
        assert_eq!(rig.ranges("a", &wanted()).await.unwrap(), expected(&new, &wanted()), "{when:?}");
        assert!(rig.cache.counters().hits > 0, "it is cached");
    }
}

/// Clocks of the origin and of this machine may be years apart. Times are compared with those of the origin only.
#[tokio::test]
async fn clocks_that_are_apart_change_nothing() {
    for seconds in [-9_000_000_000, -1, 1, 4_000_000_000, 9_000_000_000, 90_000_000_000] {
        let rig = Rig::with(|options| {
            let seconds = std::time::Duration::from_secs(3600);
            options.by_time(true).revalidate("b", Revalidate::After(seconds))
        });
        let (old, new) = (random(LEN, 1), random(LEN - 7, 2));
        rig.behind("a", old.clone()).await;
        let time = DateTime::from_timestamp(seconds, 0).unwrap();
        rig.scripted.script(move |_| Act::Modified(time));
        for _ in 0..3 {
            assert_eq!(rig.ranges("a", &wanted()).await.unwrap(), expected(&old, &wanted()), "{seconds}");
            rig.cache.flush();
        }
        // One of the same time has another length. One of the same length has a time before it.
        rig.behind("a", new.clone()).await;
        assert_eq!(rig.ranges("a", &wanted()).await.unwrap(), expected(&new, &wanted()), "{seconds}");
        let newer = random(LEN - 7, 3);
        rig.behind("a", newer.clone()).await;
        let earlier = DateTime::from_timestamp(seconds - 86_400, 0).unwrap();
        rig.scripted.script(move |_| Act::Modified(earlier));
        assert_eq!(rig.ranges("a", &wanted()).await.unwrap(), expected(&newer, &wanted()), "{seconds}");
        assert_nothing_wrong_afterwards(&rig, &newer).await;
    }
}

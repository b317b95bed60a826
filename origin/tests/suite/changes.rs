//! The content that a get sees after changes: through the store, and by other programs.

use std::time::Duration;

use iomill_origin::Revalidate;

use super::object_store::path::Path;
use super::object_store::{Attribute, Attributes, Error, GetOptions, ObjectStore, ObjectStoreExt, PutOptions};
use super::{Act, Rig, expected, options, random};

const LEN: usize = 200_000;

async fn all(rig: &Rig, path: &str) -> Vec<u8> {
    rig.store.get(&Path::from(path)).await.unwrap().bytes().await.unwrap().to_vec()
}

/// Also objects that never change according to the options.
#[tokio::test]
async fn changes_through_the_store_take_effect_at_once() {
    for rig in [Rig::new(), Rig::immutable()] {
        let contents: Vec<Vec<u8>> = (0..6).map(|seed| random(LEN, seed)).collect();
        let (a, b) = (Path::from("a"), Path::from("b"));
        rig.store.put(&a, contents[0].clone().into()).await.unwrap();
        assert_eq!(all(&rig, "a").await, contents[0]);
        rig.store.put(&a, contents[1].clone().into()).await.unwrap();
        assert_eq!(all(&rig, "a").await, contents[1]);
        rig.store.copy(&a, &b).await.unwrap();
        assert_eq!(all(&rig, "b").await, contents[1]);
        rig.store.put(&a, contents[2].clone().into()).await.unwrap();
        assert_eq!(all(&rig, "b").await, contents[1]);
        rig.store.rename(&a, &b).await.unwrap();
        assert_eq!(all(&rig, "b").await, contents[2]);
        assert!(matches!(rig.store.get(&a).await, Err(Error::NotFound { .. })));
        let mut upload = rig.store.put_multipart(&b).await.unwrap();
        upload.put_part(contents[3].clone().into()).await.unwrap();
        assert_eq!(all(&rig, "b").await, contents[2]);
        upload.complete().await.unwrap();
        assert_eq!(all(&rig, "b").await, contents[3]);
        rig.store.delete(&b).await.unwrap();
        assert!(matches!(rig.store.get(&b).await, Err(Error::NotFound { .. })));
        assert!(matches!(rig.ranges("b", &[0..5]).await, Err(Error::NotFound { .. })));
        rig.cache.flush();
    }
}

/// Also by other stores of the same name, which a program may have for one bucket.
#[tokio::test]
async fn changes_through_a_store_take_effect_in_all_of_its_name() {
    let (rig, path) = (Rig::immutable(), Path::from("a"));
    let another = |name| rig.cache.over(rig.scripted.clone() as std::sync::Arc<dyn ObjectStore>, name);
    let (second, other) = (another("memory://"), another("other://"));
    for seed in 0..3 {
        let bytes = random(LEN, seed);
        let writer = [&rig.store, &second][seed as usize % 2];
        writer.put(&path, bytes.clone().into()).await.unwrap();
        for store in [&rig.store, &second] {
            assert_eq!(store.get(&path).await.unwrap().bytes().await.unwrap(), bytes);
        }
        // It is another origin for the cache.
        let is_seen = other.get(&path).await.unwrap().bytes().await.unwrap() == bytes;
        assert_eq!(is_seen, seed == 0);
        rig.cache.flush();
    }
}

#[tokio::test]
async fn a_change_by_another_program_is_seen_in_the_next_call() {
    let rig = Rig::new();
    for seed in 0..4 {
        let bytes = random(LEN, seed);
        rig.behind("a", bytes.clone()).await;
        for _ in 0..2 {
            let wanted = [7..9000, 100_000..100_010];
            assert_eq!(rig.ranges("a", &wanted).await.unwrap(), expected(&bytes, &wanted));
            assert_eq!(all(&rig, "a").await, bytes);
            rig.cache.flush();
        }
    }
    rig.memory.delete(&Path::from("a")).await.unwrap();
    assert!(matches!(rig.ranges("a", &[0..5]).await, Err(Error::NotFound { .. })));
    assert!(matches!(rig.store.get(&Path::from("a")).await, Err(Error::NotFound { .. })));
}

/// A hit requests the head, and a miss only its GET.
#[tokio::test]
async fn a_call_asks_for_the_version_once() {
    let rig = Rig::new();
    rig.behind("a", random(LEN, 1)).await;
    rig.ranges("a", &[0..5]).await.unwrap();
    assert_eq!(rig.scripted.counts(), (1, 0), "a first call is one GET");
    rig.cache.flush();
    rig.ranges("a", &[0..5]).await.unwrap();
    assert_eq!(rig.scripted.counts(), (1, 1), "a hit is one head");
    rig.ranges("a", &[100_000..100_005]).await.unwrap();
    assert_eq!(rig.scripted.counts(), (2, 1), "a miss is one GET");
}

#[tokio::test]
async fn a_version_holds_as_long_as_the_options_say() {
    let (old, new) = (random(LEN, 1), random(LEN, 2));
    let day = Duration::from_secs(86_400);
    for (when, is_new) in [
        (Revalidate::Always, true),
        (Revalidate::After(Duration::ZERO), true),
        (Revalidate::After(day), false),
        (Revalidate::Never, false),
    ] {
        let rig = Rig::with(|options| options.revalidate("data/", when));
        for path in ["data/a", "other"] {
            rig.behind(path, old.clone()).await;
            rig.ranges(path, &[0..5]).await.unwrap();
            rig.cache.flush();
            rig.behind(path, new.clone()).await;
        }
        let (_, heads) = rig.scripted.counts();
        let got = rig.ranges("data/a", &[0..5]).await.unwrap();
        assert_eq!(got[0], if is_new { &new } else { &old }[..5], "{when:?}");
        assert_eq!(rig.scripted.counts().1 > heads, is_new, "{when:?}");
        assert_eq!(rig.ranges("other", &[0..5]).await.unwrap()[0], new[..5], "the default is to ask");
        if !is_new {
            // Missing bytes are requested with the old etag. The answer shows the change, and the call begins again.
            assert_eq!(rig.ranges("data/a", &[150_000..150_005]).await.unwrap()[0], new[150_000..150_005]);
            assert_eq!(rig.ranges("data/a", &[0..5]).await.unwrap()[0], new[..5]);
        }
    }
}

/// Also of an object that never changes: after a call that has found it deleted, no call returns its bytes.
#[tokio::test]
async fn an_object_that_was_found_deleted_stays_so() {
    for by_head in [true, false] {
        let (rig, path) = (Rig::immutable(), Path::from("a"));
        rig.behind("a", random(LEN, 1)).await;
        rig.ranges("a", &[0..5]).await.unwrap();
        rig.cache.flush();
        rig.memory.delete(&path).await.unwrap();
        let gone = if by_head {
            rig.store.head(&path).await.map(drop)
        } else {
            rig.ranges("a", &[150_000..150_005]).await.map(drop)
        };
        assert!(matches!(gone, Err(Error::NotFound { .. })), "{gone:?}");
        let gone = rig.ranges("a", &[0..5]).await;
        assert!(matches!(gone, Err(Error::NotFound { .. })), "by a head: {by_head}");
    }
}

/// Some origins derive etags from the bytes. A copy of an object onto itself then changes its attributes only.
#[tokio::test]
async fn attributes_are_those_of_the_object_now() {
    let (rig, path) = (Rig::new(), Path::from("a"));
    rig.scripted.script(|_| Act::ETag(Some("\"of the bytes\"".into())));
    let bytes = random(3 << 20, 1);
    let put = async |value: &'static str| {
        let attributes = Attributes::from_iter([(Attribute::ContentType, value)]);
        let options = PutOptions { attributes, ..Default::default() };
        rig.memory.put_opts(&path, bytes.clone().into(), options).await.unwrap();
    };
    // The first one is a GET, the second one a hit with its head, and the third one a GET again.
    for (value, range) in [("one", 0..9), ("two", 0..9), ("three", 2_900_000..2_900_009)] {
        put(value).await;
        let options = GetOptions::new().with_range(Some(range.clone()));
        let got = rig.store.get_opts(&path, options).await.unwrap();
        assert_eq!(got.attributes.get(&Attribute::ContentType).unwrap().as_ref(), value);
        assert_eq!(got.meta.last_modified, rig.memory.head(&path).await.unwrap().last_modified, "{value}");
        assert_eq!(got.bytes().await.unwrap(), bytes[range.start as usize..range.end as usize]);
        rig.cache.flush();
    }
    assert_eq!((rig.scripted.counts(), rig.cache.counters().restarts), ((2, 1), 0));
}

/// A get that is answered during a change may have the old content. The next one has the new one.
#[tokio::test]
async fn what_is_learned_during_a_change_is_forgotten_at_its_end() {
    let rig = Rig::immutable();
    let (a, b) = (Path::from("a"), Path::from("b"));
    rig.behind("b", random(LEN, 100)).await;
    for (n, seed) in (0..4u64).zip(1..) {
        let (old, new) = (random(LEN, seed), random(LEN, seed + 50));
        rig.behind("a", old.clone()).await;
        rig.memory.put(&b, new.clone().into()).await.unwrap();
        rig.store.head(&a).await.unwrap();
        let open = rig.scripted.close_gate();
        let change = async {
            match n {
                0 => drop(rig.store.put(&a, new.clone().into()).await.unwrap()),
                1 => rig.store.copy(&b, &a).await.unwrap(),
                2 => rig.store.rename(&b, &a).await.unwrap(),
                _ => {
                    let mut upload = rig.store.put_multipart(&a).await.unwrap();
                    upload.put_part(new.clone().into()).await.unwrap();
                    upload.complete().await.unwrap();
                }
            }
        };
        let get = async {
            assert_eq!(rig.ranges("a", &[0..5]).await.unwrap()[0], old[..5]);
            open.send(()).unwrap();
        };
        futures_util::future::join(change, get).await;
        assert_eq!(rig.ranges("a", &[0..5]).await.unwrap()[0], new[..5], "change {n}");
    }
}

/// A program gives up on a change while the origin still works on it. The change happens later, and is seen then.
#[tokio::test]
async fn a_change_whose_future_is_dropped_is_seen_when_it_comes() {
    let (a, b) = (Path::from("a"), Path::from("b"));
    for n in 0..6 {
        let rig = Rig::immutable();
        let (old, new) = (random(LEN, 1), random(LEN, 2));
        rig.behind("a", old.clone()).await;
        rig.behind("b", new.clone()).await;
        let _never = rig.scripted.close_gate();
        let store = &rig.store;
        let mut upload = store.put_multipart(&a).await.unwrap();
        upload.put_part(new.clone().into()).await.unwrap();
        let mut change: futures_util::future::BoxFuture<'_, ()> = match n {
            0 => Box::pin(async { drop(store.put(&a, new.clone().into()).await) }),
            1 => Box::pin(async { drop(store.copy(&b, &a).await) }),
            2 => Box::pin(async { drop(store.rename(&b, &a).await) }),
            3 => Box::pin(async { drop(upload.complete().await) }),
            4 => Box::pin(async { drop(store.delete(&a).await) }),
            // The origin does not know the outcome.
            _ => {
                rig.scripted.fail_changes();
                Box::pin(async { drop(store.put(&a, new.clone().into()).await) })
            }
        };
        assert_eq!(futures_util::poll!(&mut change).is_pending(), n != 5, "change {n}");
        drop(change);
        for _ in 0..2 {
            assert_eq!(rig.ranges("a", &[0..5]).await.unwrap()[0], old[..5]);
            rig.cache.flush();
        }
        // The origin has made the change now.
        rig.behind("a", new.clone()).await;
        assert_eq!(rig.ranges("a", &[0..5]).await.unwrap()[0], new[..5], "change {n}");
        if n == 2 {
            continue;
        }
        // Other objects are remembered.
        let asked = rig.scripted.counts();
        rig.ranges("b", &[0..5]).await.unwrap();
        rig.cache.flush();
        rig.ranges("b", &[0..5]).await.unwrap();
        assert!(rig.scripted.counts().0 + rig.scripted.counts().1 <= asked.0 + asked.1 + 1);
    }
}

/// The requests of a call for cached bytes of an object that never changes: none, unless the object is in doubt.
async fn asked_for(rig: &Rig, path: &str) -> u64 {
    rig.ranges(path, &[0..5]).await.unwrap();
    rig.cache.flush();
    let (gets, heads) = rig.scripted.counts();
    rig.ranges(path, &[0..5]).await.unwrap();
    let now = rig.scripted.counts();
    now.0 + now.1 - gets - heads
}

/// A refused delete does not happen, so its object is remembered as before. A delete without an answer may still
/// happen. Seen to fail when only a delete that has happened counted as answered: the object was in doubt.
#[tokio::test]
async fn a_refused_delete_leaves_no_doubt() {
    let generic = |why: &str| Error::Generic { store: "S3", source: why.into() };
    let denied = |path: &str| Error::PermissionDenied { path: path.into(), source: "403".into() };
    let cases: [(&str, Error, bool); 5] = [
        ("403", denied("a"), false),
        ("403 with the path that the bucket has", denied("prefix/a"), false),
        ("a key of many", generic("DeleteObjects request failed for key a: no (code: AccessDenied)"), false),
        ("500", generic("Server returned non-2xx status code: 500 Internal Server Error: "), true),
        ("a lost connection", generic("the connection was lost"), true),
    ];
    for (name, error, is_in_doubt) in cases {
        let rig = Rig::immutable();
        rig.behind("a", random(LEN, 1)).await;
        let error = std::sync::Mutex::new(Some(error));
        rig.scripted.fail_deletes(move |_| error.lock().unwrap().take());
        rig.store.delete(&Path::from("a")).await.unwrap_err();
        assert_eq!(asked_for(&rig, "a").await, u64::from(is_in_doubt), "{name}");
        // The delete happens after all, or another program deletes the object.
        rig.memory.delete(&Path::from("a")).await.unwrap();
        let gone = rig.ranges("a", &[0..5]).await;
        assert_eq!(matches!(gone, Err(Error::NotFound { .. })), is_in_doubt, "{name}: {gone:?}");
    }
}

/// Of several deletes in one stream each has its own answer.
#[tokio::test]
async fn of_many_deletes_only_those_without_an_answer_are_in_doubt() {
    use futures_util::StreamExt;
    let rig = Rig::immutable();
    for name in ["a", "b", "c", "d"] {
        rig.behind(name, random(LEN, 1)).await;
    }
    rig.scripted.fail_deletes(|path| match path.as_ref() {
        "a" => Some(Error::PermissionDenied { path: "a".into(), source: "403".into() }),
        "b" => Some(Error::Generic { store: "S3", source: "the connection was lost".into() }),
        _ => None,
    });
    let paths = ["a", "b", "c"].map(|path| Ok(Path::from(path)));
    let answers: Vec<_> = rig.store.delete_stream(futures_util::stream::iter(paths).boxed()).collect().await;
    assert_eq!(answers.iter().map(Result::is_ok).collect::<Vec<_>>(), [false, false, true]);
    for (name, asked) in [("a", 0), ("b", 1), ("d", 0)] {
        assert_eq!(asked_for(&rig, name).await, asked, "{name}");
    }
    assert!(matches!(rig.ranges("c", &[0..5]).await, Err(Error::NotFound { .. })));
    rig.behind("c", random(LEN, 2)).await;
    assert_eq!(asked_for(&rig, "c").await, 0);
}

/// An answer in flight while the object was replaced through the store is not remembered.
#[tokio::test]
async fn a_get_that_races_with_a_put_is_not_remembered() {
    let rig = Rig::immutable();
    let (old, new) = (random(LEN, 1), random(LEN, 2));
    rig.behind("a", old.clone()).await;
    rig.scripted.script(|_| Act::After(Duration::from_millis(50)));
    let wanted = [0..5];
    let get = rig.ranges("a", &wanted);
    let put = async {
        tokio::time::sleep(Duration::from_millis(10)).await;
        rig.store.put(&Path::from("a"), new.clone().into()).await.unwrap();
    };
    let (got, ()) = futures_util::future::join(get, put).await;
    assert_eq!(got.unwrap()[0], old[..5], "its GET was answered before the put");
    assert_eq!(rig.ranges("a", &wanted).await.unwrap()[0], new[..5]);
}

#[tokio::test]
async fn conditions_of_a_get_are_those_of_the_object_now() {
    let rig = Rig::immutable();
    let path = Path::from("a");
    rig.behind("a", random(LEN, 1)).await;
    let old = rig.store.head(&path).await.unwrap();
    rig.behind("a", random(LEN, 2)).await;
    let new = rig.memory.head(&path).await.unwrap();
    let matching = |e_tag: &Option<String>| GetOptions::new().with_if_match(e_tag.clone());
    assert!(matches!(rig.store.get_opts(&path, matching(&old.e_tag)).await, Err(Error::Precondition { .. })));
    let got = rig.store.get_opts(&path, matching(&new.e_tag)).await.unwrap();
    assert_eq!(got.meta, new);
    assert_eq!(got.bytes().await.unwrap(), random(LEN, 2));
    let other = GetOptions::new().with_if_none_match(new.e_tag.clone());
    assert!(matches!(rig.store.get_opts(&path, other).await, Err(Error::NotModified { .. })));
}

/// The gateway of Ceph returns etags in quotes, and accepts them without quotes.
#[tokio::test]
async fn an_origin_that_takes_etags_without_quotes_is_understood() {
    let rig = Rig::new();
    let (bytes, new) = (random(LEN, 1), random(LEN, 2));
    rig.behind("a", bytes.clone()).await;
    rig.scripted.script(|_| Act::Bare);
    for n in 0..6 {
        let wanted = [n * 30_000..n * 30_000 + 10];
        assert_eq!(rig.ranges("a", &wanted).await.unwrap(), expected(&bytes, &wanted));
        rig.cache.flush();
    }
    // It is learned once, and costs a head and a GET.
    assert_eq!(rig.cache.counters().restarts, 0);
    assert!(rig.scripted.counts().0 <= 8, "{:?}", rig.scripted.counts());
    rig.behind("a", new.clone()).await;
    assert_eq!(rig.ranges("a", &[0..10, 190_000..190_010]).await.unwrap(), expected(&new, &[0..10, 190_000..190_010]));
}

/// Programs that share a cache name one origin by one name, so the replaced content of one program is never cached
/// under the new version of another.
#[tokio::test]
async fn versions_of_one_name_are_kept_apart() {
    let rig = Rig::new();
    let (other, store) = rig.another(options(&rig.dir));
    for seed in 0..5 {
        let bytes = random(LEN, seed);
        rig.store.put(&Path::from("a"), bytes.clone().into()).await.unwrap();
        assert_eq!(store.get(&Path::from("a")).await.unwrap().bytes().await.unwrap(), bytes);
        assert_eq!(all(&rig, "a").await, bytes);
        other.flush();
        rig.cache.flush();
    }
}

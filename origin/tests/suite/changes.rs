//! Which content a get sees after changes: through the store, and behind its back.

use std::time::Duration;

use iomill_origin::Revalidate;

use super::object_store::path::Path;
use super::object_store::{Error, GetOptions, ObjectStore, ObjectStoreExt};
use super::{Act, Rig, expected, options, random};

const LEN: usize = 200_000;

async fn all(rig: &Rig, path: &str) -> Vec<u8> {
    rig.store.get(&Path::from(path)).await.unwrap().bytes().await.unwrap().to_vec()
}

/// Also where objects are said never to change.
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

/// A hit asks for the head, and a miss for nothing but its GET.
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
            // What is not there is asked for with the old etag. The answer tells the change, and the call begins again.
            assert_eq!(rig.ranges("data/a", &[150_000..150_005]).await.unwrap()[0], new[150_000..150_005]);
            assert_eq!(rig.ranges("data/a", &[0..5]).await.unwrap()[0], new[..5]);
        }
    }
}

/// A get that is answered while a change is under way may have the old content. The next one has the new one.
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

/// A program gives up on a change while the origin still works on it. The change comes later, and is seen then.
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
            // The origin says that it does not know what became of it.
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
        // The origin has done it now.
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

/// An answer that was under way while the object was replaced through the store is not remembered.
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

/// The gateway of Ceph tells etags in quotes, and takes them without.
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

/// Programs that share a cache have one origin by one name, so what one of them replaced is never the other's old content with a new version.
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

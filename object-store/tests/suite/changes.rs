//! Objects that are replaced, renamed and deleted while they are read: a read has one content, and a handle that is
//! held serves no old one.

use std::time::Duration;

use futures_util::StreamExt;

use super::object_store::path::Path;
use super::object_store::{Error, ObjectStore, ObjectStoreExt};
use super::{IomillStore, assert_clean, eventually, fresh_array, parts, random};

const LEN: usize = 12 << 20;

#[tokio::test]
async fn a_stream_keeps_the_content_that_it_began_with() {
    let (dir, array) = fresh_array();
    let store = IomillStore::array(array.clone());
    let path = Path::from("object");
    store.put(&path, random(LEN, 1).into()).await.unwrap();
    let mut stream = store.get(&path).await.unwrap().into_stream();
    let mut bytes = stream.next().await.unwrap().unwrap().to_vec();
    store.put(&path, random(LEN, 2).into()).await.unwrap();
    store.delete(&path).await.unwrap();
    while let Some(piece) = stream.next().await {
        bytes.extend(piece.unwrap());
    }
    assert!(bytes == random(LEN, 1));
    assert_eq!(parts(&dir).len(), 4, "the stream still has its content");
    drop(stream);
    eventually("the space is free", || parts(&dir).is_empty());
    drop(store);
    assert_clean(&dir, array);
}

/// By the store, by a second one, and past all stores.
#[tokio::test]
async fn no_handle_serves_an_old_content() {
    let (dir, array) = fresh_array();
    let (store, second) = (IomillStore::array(array.clone()), IomillStore::array(array.clone()));
    let path = Path::from("object");
    let put = |seed: u64| array.put("object", &random(200_000, seed), &Default::default()).unwrap();
    for round in 0..20u64 {
        match round % 4 {
            0 => drop(put(round)),
            1 => drop(store.put(&path, random(200_000, round).into()).await.unwrap()),
            2 => drop(second.put(&path, random(200_000, round).into()).await.unwrap()),
            _ => {
                let other = Path::from("other");
                second.put(&other, random(200_000, round).into()).await.unwrap();
                second.rename(&other, &path).await.unwrap();
            }
        }
        let e_tag = array.stat("object").unwrap().version;
        for store in [&store, &second] {
            let got = store.get(&path).await.unwrap();
            assert_eq!(got.meta.e_tag, Some(format!("\"{e_tag}\"")));
            assert!(got.bytes().await.unwrap() == random(200_000, round), "round {round}");
            let part = store.get_ranges(&path, &[1000..2000]).await.unwrap();
            assert!(part[0] == random(200_000, round)[1000..2000], "round {round}");
        }
    }
    // The other store closes a file that one store has deleted when it next opens another file.
    second.delete(&path).await.unwrap();
    assert!(matches!(store.get_ranges(&path, &[0..1]).await, Err(Error::NotFound { .. })));
    let next = Path::from("next");
    second.put(&next, random(200_000, 99).into()).await.unwrap();
    store.get_ranges(&next, &[0..1]).await.unwrap();
    eventually("the space is free", || parts(&dir).len() == 4);
    drop((store, second));
    assert_clean(&dir, array);
}

/// Also if the handle that was used longest ago is one of an object that is still there.
#[tokio::test]
async fn no_handle_keeps_the_space_of_a_deleted_object() {
    let (dir, array) = fresh_array();
    let (store, second) = (IomillStore::array(array.clone()), IomillStore::array(array.clone()));
    let paths: Vec<Path> = (0..12).map(|n| Path::from(format!("{n}"))).collect();
    for path in &paths {
        second.put(path, random(200_000, 1).into()).await.unwrap();
        store.get_ranges(path, &[0..1]).await.unwrap();
    }
    for path in &paths[1..] {
        second.delete(path).await.unwrap();
    }
    let next = Path::from("next");
    second.put(&next, random(200_000, 2).into()).await.unwrap();
    store.get_ranges(&next, &[0..1]).await.unwrap();
    eventually("the two objects have the only parts", || parts(&dir).len() == 8);
    // What is asked for and is gone is not held either.
    second.delete(&paths[0]).await.unwrap();
    assert!(matches!(store.head(&paths[0]).await, Err(Error::NotFound { .. })));
    eventually("one object has the only parts", || parts(&dir).len() == 4);
    drop((store, second));
    assert_clean(&dir, array);
}

/// Readers, writers, renames and deletes of the same names, on two threads.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_read_has_one_content() {
    let (dir, array) = fresh_array();
    let store = IomillStore::array(array.clone());
    // The first bytes tell the others.
    let content = |seed: u64, len: usize| [&seed.to_le_bytes()[..], &random(len, seed)].concat();
    let writer = |n: u64| {
        let store = store.clone();
        async move {
            for round in 0..60 {
                let (path, seed) = (Path::from(format!("{}", round % 3)), n * 1000 + round);
                let len = if round % 2 == 0 { 3_000 } else { 150_000 };
                store.put(&path, content(seed, len).into()).await.unwrap();
                let change = match round % 5 {
                    0 => store.delete(&path).await,
                    1 => store.rename(&path, &Path::from(format!("{}", (round + 1) % 3))).await,
                    _ => Ok(()),
                };
                assert!(matches!(change, Ok(()) | Err(Error::NotFound { .. })), "{change:?}");
            }
        }
    };
    let reader = |n: usize| {
        let store = store.clone();
        async move {
            let mut read = 0;
            for round in 0..400 {
                let path = Path::from(format!("{}", (n + round) % 3));
                let got = match store.get(&path).await {
                    Ok(got) => got,
                    Err(Error::NotFound { .. }) => {
                        tokio::time::sleep(Duration::from_micros(100)).await;
                        continue;
                    }
                    Err(error) => panic!("{error}"),
                };
                let bytes = got.bytes().await.unwrap();
                let seed = u64::from_le_bytes(bytes[..8].try_into().unwrap());
                assert!(bytes[8..] == random(bytes.len() - 8, seed));
                read += 1;
            }
            read
        }
    };
    let writers: Vec<_> = (0..3).map(|n| tokio::spawn(writer(n))).collect();
    let readers: Vec<_> = (0..3).map(|n| tokio::spawn(reader(n))).collect();
    let mut read = 0;
    for task in readers {
        read += task.await.unwrap();
    }
    for task in writers {
        task.await.unwrap();
    }
    assert!(read > 0);
    drop(store);
    assert_clean(&dir, array);
}

#[tokio::test]
async fn many_deletes_are_one_stream() {
    let (dir, array) = fresh_array();
    let store = IomillStore::array(array.clone());
    let paths: Vec<Path> = (0..500).map(|n| Path::from(format!("a/{n}"))).collect();
    futures_util::future::join_all(paths.iter().map(|path| store.put(path, "x".into()))).await;
    let mut locations: Vec<_> = paths.iter().cloned().map(Ok).collect();
    locations.insert(7, Ok(Path::from("none")));
    let deleted: Vec<_> = store.delete_stream(futures_util::stream::iter(locations).boxed()).collect().await;
    assert_eq!(deleted.len(), 501);
    for (at, deleted) in deleted.into_iter().enumerate() {
        match deleted {
            Ok(path) => assert_eq!(path, paths[if at < 7 { at } else { at - 1 }], "in their order"),
            Err(Error::NotFound { path, .. }) => assert_eq!((at, path.as_str()), (7, "none")),
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(array.list("").names().unwrap(), Vec::<String>::new());
    drop(store);
    assert_clean(&dir, array);
}

//! Futures that are dropped: each call is dropped after each number of polls. Whatever was asked for is done as a whole
//! or not at all, and no space is lost.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use futures_util::StreamExt;

use super::object_store::multipart::MultipartStore;
use super::object_store::path::Path;
use super::object_store::{Error, ObjectStore, ObjectStoreExt};
use super::{IomillStore, PATIENCE, assert_clean, eventually, fresh_array, parts, random};

/// Polls a future up to `polls` times, with some time between, and then drops it. `true` if it ended.
fn poll_some<F: Future>(future: F, polls: usize) -> bool {
    let mut future = pin!(future);
    for poll in 0..polls {
        if future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready() {
            return true;
        }
        if poll % 3 == 2 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    false
}

/// Makes a call with a number, again and again, with more and more polls until it ends.
fn drop_at_each_poll<F: Future>(mut call: impl FnMut(usize) -> F) {
    let (mut polls, begun) = (0, Instant::now());
    for number in 0.. {
        if poll_some(call(number), polls) {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "it does not end in {polls} polls");
        // A slow machine needs time rather than polls.
        polls += if polls < EACH_POLL { 1 } else { polls };
    }
}

/// Up to this number of polls, calls are dropped after each number.
const EACH_POLL: usize = 500;

fn run<F: Future>(future: F) -> F::Output {
    iomill::block_on(future).unwrap()
}

#[test]
fn puts_are_whole_or_not_there() {
    let (dir, array) = fresh_array();
    let store = IomillStore::array(array.clone());
    for len in [100, 5_000, 300_000] {
        let (path, copy) = (Path::from("object"), Path::from("copy"));
        drop_at_each_poll(|number| store.put(&path, random(len, number as u64).into()));
        drop_at_each_poll(|_| store.copy(&path, &copy));
        drop_at_each_poll(|number| {
            let name = Path::from(format!("{number}"));
            let (store, copy) = (&store, &copy);
            async move {
                store.copy(copy, &name).await.unwrap();
                store.rename(&name, &Path::from("renamed")).await.unwrap();
            }
        });
        drop_at_each_poll(|_| store.delete(&copy));
    }
    // What goes on without its future ends before the array is closed.
    let contents: Vec<Vec<u8>> = (0..2000).map(|seed| random(100, seed)).collect();
    for name in array.list("").names().unwrap() {
        let Ok(got) = run(store.get(&Path::from(name.as_str()))) else { continue };
        let got = run(got.bytes()).unwrap();
        let seed = contents.iter().position(|content| got.starts_with(content)).expect("a content that was put");
        assert!([100, 5_000, 300_000].contains(&got.len()) && random(got.len(), seed as u64) == got, "{name}");
    }
    drop(store);
    assert_clean(&dir, array);
}

#[test]
fn uploads_that_are_dropped_give_their_space_back() {
    let (dir, array) = fresh_array();
    let store = IomillStore::array(array.clone());
    let path = Path::from("object");
    let upload = |number: usize| {
        let (store, path) = (&store, &path);
        async move {
            let mut upload = store.put_multipart(path).await.unwrap();
            let parts: Vec<_> = (0..3).map(|n| upload.put_part(random(200_000, (number + n) as u64).into())).collect();
            futures_util::future::join_all(parts).await.into_iter().for_each(Result::unwrap);
            upload.complete().await.unwrap();
        }
    };
    drop_at_each_poll(upload);
    drop_at_each_poll(|_| async {
        let id = store.create_multipart(&path).await.unwrap();
        let part = store.put_part(&path, &id, 0, random(200_000, 1).into()).await.unwrap();
        store.complete_multipart(&path, &id, vec![part]).await.unwrap();
    });
    assert!([200_000, 600_000].contains(&run(store.head(&path)).unwrap().size));
    // Uploads with ids that were not completed are still there. They end with the store.
    drop(store);
    eventually("ends of uploads that go on have ended, and nothing has space", || {
        let deleted = array.delete("object");
        assert!(matches!(deleted, Ok(()) | Err(iomill::Error::NotFound { .. })), "{deleted:?}");
        parts(&dir).is_empty()
    });
    assert_clean(&dir, array);
}

/// If the future of a part was dropped, the part is missing, and the upload says so.
#[test]
fn a_part_that_was_dropped_is_missed() {
    let (_dir, array) = fresh_array();
    let store = IomillStore::array(array);
    let path = Path::from("object");
    let mut upload = run(store.put_multipart(&path)).unwrap();
    drop(upload.put_part("dropped".into()));
    run(upload.put_part("written".into())).unwrap();
    let refused = run(upload.complete()).unwrap_err();
    assert!(refused.to_string().contains("1 of the 2 parts"), "{refused}");
    assert!(matches!(run(store.head(&path)), Err(Error::NotFound { .. })));
    run(upload.abort()).unwrap();
    assert!(run(upload.abort()).is_err() && run(upload.complete()).is_err());
    assert!(run(upload.put_part("late".into())).is_err());
}

#[test]
fn reads_and_listings_are_dropped_at_any_time() {
    let (dir, array) = fresh_array();
    array.put("long", &random(20 << 20, 1), &Default::default()).unwrap();
    array.close().unwrap();
    let array = super::options().open(dir.path().join("ssd1")).unwrap();
    let store = IomillStore::array(array.clone());
    let path = Path::from("long");
    let ranges: Vec<_> = (0..200u64).map(|n| n * 100_000..n * 100_000 + 5_000).collect();
    drop_at_each_poll(|_| store.get_ranges(&path, &ranges));
    drop_at_each_poll(|_| async { store.get(&path).await.unwrap().bytes().await.unwrap() });
    drop_at_each_poll(|_| store.list(None).collect::<Vec<_>>());
    drop_at_each_poll(|_| store.list_with_delimiter(None));
    assert!(run(run(store.get(&path)).unwrap().bytes()).unwrap() == random(20 << 20, 1));
    drop(store);
    assert_clean(&dir, array);
}

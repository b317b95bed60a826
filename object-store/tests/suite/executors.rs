//! The same calls on several executors. No poll of them may wait.

use std::cell::Cell;
use std::future::Future;
use std::pin::{Pin, pin};
use std::task::Poll;

use futures_util::{StreamExt, TryStreamExt};

use super::object_store::path::Path;
use super::object_store::{ObjectStore, ObjectStoreExt};
use super::{IomillStore, fresh, random};

/// A bit of everything.
async fn use_all(store: IomillStore) {
    let tasks = (0..40u64).map(|n| {
        let store = store.clone();
        async move {
            let path = Path::from(format!("a/{n}"));
            let bytes = random(if n % 4 == 0 { 200_000 } else { 5_000 }, n);
            store.put(&path, bytes.clone().into()).await.unwrap();
            assert!(store.get(&path).await.unwrap().bytes().await.unwrap() == bytes);
            let ranges: Vec<_> = (0..10).map(|n| n * 400..n * 400 + 90).collect();
            for (range, part) in ranges.iter().zip(store.get_ranges(&path, &ranges).await.unwrap()) {
                assert!(part == bytes[range.start as usize..range.end as usize]);
            }
            let mut upload = store.put_multipart(&path).await.unwrap();
            upload.put_part(bytes.into()).await.unwrap();
            upload.complete().await.unwrap();
            store.rename(&path, &Path::from(format!("b/{n}"))).await.unwrap();
        }
    });
    futures_util::future::join_all(tasks).await;
    let listed: Vec<_> = store.list(Some(&Path::from("b"))).try_collect().await.unwrap();
    assert_eq!(listed.len(), 40);
    let all = listed.into_iter().map(|meta| Ok(meta.location));
    let deleted: Vec<_> = store.delete_stream(futures_util::stream::iter(all).boxed()).try_collect().await.unwrap();
    assert_eq!(deleted.len(), 40);
}

#[test]
fn any_executor_will_do() {
    type Task = Pin<Box<dyn Future<Output = ()> + Send>>;
    let runs: [fn(Task); 4] = [
        |future| iomill::block_on(future).unwrap(),
        futures_executor::block_on,
        |future| tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future),
        |future| {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
            runtime.block_on(async { tokio::spawn(future).await.unwrap() });
        },
    ];
    for run in runs {
        let (_dir, store) = fresh();
        run(Box::pin(use_all(store)));
    }
}

/// While puts wait for their fsyncs, the only thread of the executor stays free: no call waits in its first poll. Seen
/// to fail with calls that block.
#[test]
fn a_thread_of_the_executor_is_not_blocked() {
    const ROUNDS: u64 = 30;
    const PUTS: u64 = 16;
    let (_dir, store) = fresh();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let (puts, uploads) = (Cell::new(0), Cell::new(0));
    let counts = (&puts, &uploads);
    runtime.block_on(async {
        for round in 0..ROUNDS {
            let puts = (0..PUTS).map(|n| {
                let (store, path) = (store.clone(), Path::from(format!("{n}")));
                async move {
                    counted(counts.0, store.put(&path, random(100_000, round).into())).await.unwrap();
                    let mut upload = store.put_multipart(&path).await.unwrap();
                    upload.put_part(random(100_000, round).into()).await.unwrap();
                    counted(counts.1, upload.complete()).await.unwrap();
                }
            });
            futures_util::future::join_all(puts).await;
        }
    });
    // Of some calls another thread ends the work before the first poll returns, if this thread has no turn meanwhile.
    for waited in [puts.get(), uploads.get()] {
        println!("{waited} of {} calls were pending", ROUNDS * PUTS);
        assert!(waited >= ROUNDS * PUTS / 4, "{waited} of {} calls were pending", ROUNDS * PUTS);
    }
}

/// Counts a call that is pending after its first poll.
async fn counted<F: Future>(pending: &Cell<u64>, call: F) -> F::Output {
    let mut call = pin!(call);
    match futures_util::poll!(&mut call) {
        Poll::Ready(ended) => ended,
        Poll::Pending => {
            pending.set(pending.get() + 1);
            call.await
        }
    }
}

/// Gets of bytes in memory are ready at once. A loop of them kept the only thread of a runtime, so no other task ran.
#[test]
fn a_loop_of_gets_that_hit_leaves_turns_to_other_tasks() {
    let (_dir, store) = fresh();
    let path = Path::from("a");
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let get = async |number: u64| match number % 3 {
        0 => drop(store.get(&path).await.unwrap().bytes().await.unwrap()),
        1 => drop(store.get_ranges(&path, &[0..10]).await.unwrap()),
        _ => drop(store.head(&path).await.unwrap()),
    };
    runtime.block_on(async {
        store.put(&path, random(5_000, 1).into()).await.unwrap();
        for number in 0..9 {
            get(number).await;
        }
        let other = tokio::spawn(async {});
        let mut gets = 0;
        while !other.is_finished() {
            get(gets).await;
            gets += 1;
            assert!(gets < 10_000, "the other task has no turn");
        }
    });
}

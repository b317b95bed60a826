//! SlateDB over an array: a model, compaction, fencing, many concurrent tasks, and a database that is reopened.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use iomill::Array;
use iomill_object_store::v0_14::IomillStore;
use judge_turns::drives;
use slatedb::config::{CompactorOptions, Settings};
use slatedb::{CloseReason, Db, ErrorKind, WriteBatch};
use tempfile::TempDir;

fn new_array(dir: &TempDir) -> Array {
    Array::create(drives(dir.path()).unwrap()).unwrap()
}

/// The sizes are so small that a test of a second writes many tables and compacts them.
async fn open(array: &Array) -> Db {
    let settings = Settings {
        flush_interval: Some(Duration::from_millis(5)),
        manifest_poll_interval: Duration::from_millis(50),
        l0_sst_size_bytes: 64 << 10,
        max_unflushed_bytes: 256 << 10,
        compactor_options: Some(CompactorOptions {
            poll_interval: Duration::from_millis(50),
            ..CompactorOptions::default()
        }),
        ..Settings::default()
    };
    Db::builder("db", Arc::new(IomillStore::array(array.clone()))).with_settings(settings).build().await.unwrap()
}

async fn all(db: &Db) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let (mut scan, mut found) = (db.scan(..).await.unwrap(), BTreeMap::new());
    while let Some(pair) = scan.next().await.unwrap() {
        found.insert(pair.key.to_vec(), pair.value.to_vec());
    }
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_written_is_there_whenever_it_is_opened() {
    let dir = TempDir::new().unwrap();
    let mut array = new_array(&dir);
    let (mut model, mut random) = (BTreeMap::new(), fastrand::Rng::with_seed(16));
    for round in 0..4 {
        let db = open(&array).await;
        for _ in 0..60 {
            let mut batch = WriteBatch::new();
            for _ in 0..50 {
                let key = format!("key {:04}", random.u32(..2_000)).into_bytes();
                if random.u32(..4) == 0 {
                    batch.delete(&key);
                    model.remove(&key);
                } else {
                    let mut value = vec![0; random.usize(..400)];
                    random.fill(&mut value);
                    batch.put(&key, &value);
                    model.insert(key, value);
                }
            }
            db.write(batch).await.unwrap();
        }
        assert_eq!(all(&db).await, model, "round {round}");
        for _ in 0..200 {
            let key = format!("key {:04}", random.u32(..2_000)).into_bytes();
            assert_eq!(db.get(&key).await.unwrap().map(Vec::from), model.get(&key).cloned(), "round {round}");
        }
        db.close().await.unwrap();
        drop(db);
        array.close_async().await.unwrap();
        array = Array::open(dir.path().join("ssd2")).unwrap();
    }
    let db = open(&array).await;
    assert_eq!(all(&db).await, model);
    db.close().await.unwrap();
    array.close_async().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_are_compacted() {
    let dir = TempDir::new().unwrap();
    let array = new_array(&dir);
    let db = open(&array).await;
    let value = vec![5; 1_000];
    let compacted = async {
        for turn in 0_u64.. {
            for key in 0..100_u64 {
                db.put(key.to_be_bytes(), [&turn.to_be_bytes()[..], &value].concat()).await.unwrap();
            }
            db.flush().await.unwrap();
            if !db.manifest().compacted().is_empty() {
                return turn;
            }
        }
        unreachable!("the loop ends by itself");
    };
    let last =
        tokio::time::timeout(Duration::from_secs(60), compacted).await.expect("tables are compacted within a minute");
    for key in 0..100_u64 {
        assert_eq!(db.get(key.to_be_bytes()).await.unwrap().unwrap()[..8], last.to_be_bytes());
    }
    db.close().await.unwrap();
    array.close_async().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_second_writer_fences_the_first() {
    let dir = TempDir::new().unwrap();
    let array = new_array(&dir);
    let first = open(&array).await;
    first.put("key", "first").await.unwrap().await_durable().await.unwrap();
    let second = open(&array).await;
    second.put("key", "second").await.unwrap().await_durable().await.unwrap();
    let refused = async { first.put("key", "late").await?.await_durable().await }.await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Closed(CloseReason::Fenced), "{refused}");
    assert_eq!(second.get("key").await.unwrap().unwrap(), "second");
    second.close().await.unwrap();
    array.close_async().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_tasks_write_and_read_at_once() {
    let dir = TempDir::new().unwrap();
    let array = new_array(&dir);
    let db = Arc::new(open(&array).await);
    let tasks: Vec<_> = (0..32_u32)
        .map(|task| {
            let db = Arc::clone(&db);
            tokio::spawn(async move {
                for n in 0..100_u32 {
                    let key = format!("{task}/{n}");
                    db.put(&key, key.repeat(20)).await.unwrap();
                    let earlier = format!("{task}/{}", n / 2);
                    assert_eq!(db.get(&earlier).await.unwrap().unwrap(), earlier.repeat(20));
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(all(&db).await.len(), 3_200);
    db.close().await.unwrap();
    array.close_async().await.unwrap();
}

#[test]
fn the_example_finds_its_sessions() {
    let dir = TempDir::new().unwrap();
    let drives = drives(dir.path()).unwrap();
    let run = Command::new(env!("CARGO_BIN_EXE_judge-slatedb")).args(drives).output().unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let printed = String::from_utf8(run.stdout).unwrap();
    assert_eq!(printed, "user 1234 by phone: token a768bdc2\nleft of user 42: user/00042/phone\n9999 sessions\n");
}

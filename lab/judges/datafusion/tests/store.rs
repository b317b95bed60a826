//! DataFusion reads and writes Parquet through both stores of iomill, with the same results as without them.

use std::process::Command;
use std::sync::Arc;

use datafusion::arrow::util::pretty::pretty_format_batches;
use datafusion::execution::object_store::ObjectStoreUrl;
use datafusion::prelude::{ParquetReadOptions, SessionConfig, SessionContext};
use iomill::Array;
use iomill_object_store::v0_13::IomillStore;
use iomill_origin::{Cache, Options, Revalidate};
use judge_turns::drives;
use object_store::ObjectStore;
use object_store::local::LocalFileSystem;
use tempfile::TempDir;

/// Numbers, strings of several lengths, and nulls.
const ROWS: &str = "SELECT value AS id, value * 7919 % 100 AS kind,
        CASE WHEN value % 7 = 0 THEN NULL ELSE repeat('x', CAST(value % 50 AS INT)) || value END AS name
    FROM generate_series(1, 200000)";

/// Whole columns, few rows of few pages, one row by a string, and nulls.
const QUESTIONS: [&str; 4] = [
    "SELECT kind, count(*), count(name), sum(id), min(name) FROM rows GROUP BY kind ORDER BY kind",
    "SELECT * FROM rows WHERE id BETWEEN 150000 AND 150010 ORDER BY id",
    "SELECT id FROM rows WHERE name = 'xxx123453'",
    "SELECT count(*), sum(length(name)) FROM rows WHERE name IS NULL OR kind > 90",
];

/// A session that reads few bytes: rows are filtered while pages are chosen. Several partitions read one file at once.
fn session(store: impl ObjectStore) -> SessionContext {
    let mut config = SessionConfig::new().with_target_partitions(4);
    let options = &mut config.options_mut().execution.parquet;
    (options.pushdown_filters, options.reorder_filters) = (true, true);
    (options.max_row_group_size, options.data_page_row_count_limit) = (20_000, 1_000);
    let session = SessionContext::new_with_config(config);
    let url = ObjectStoreUrl::parse("iomill://store").unwrap();
    session.register_object_store(url.as_ref(), Arc::new(store));
    session
}

async fn answer(session: &SessionContext, question: &str) -> String {
    let batches = session.sql(question).await.unwrap().collect().await.unwrap();
    pretty_format_batches(&batches).unwrap().to_string()
}

/// The answers without any store.
async fn expected() -> Vec<String> {
    let session = SessionContext::new();
    let rows = session.sql(ROWS).await.unwrap().cache().await.unwrap();
    session.register_table("rows", rows.into_view()).unwrap();
    let mut answers = Vec::new();
    for question in QUESTIONS {
        answers.push(answer(&session, question).await);
    }
    answers
}

async fn write(session: &SessionContext) {
    session
        .sql(&format!("COPY ({ROWS}) TO 'iomill://store/rows/' STORED AS PARQUET"))
        .await
        .unwrap()
        .collect()
        .await
        .unwrap();
}

async fn check(session: &SessionContext) {
    session.register_parquet("rows", "iomill://store/rows/", ParquetReadOptions::default()).await.unwrap();
    for (question, expected) in QUESTIONS.iter().zip(expected().await) {
        assert_eq!(answer(session, question).await, expected, "{question}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_array_gives_the_answers_that_memory_gives() {
    let dir = TempDir::new().unwrap();
    let array = Array::create(drives(dir.path()).unwrap()).unwrap();
    let session_there = session(IomillStore::array(array.clone()));
    write(&session_there).await;
    check(&session_there).await;
    array.close_async().await.unwrap();

    let array = Array::open(dir.path().join("ssd0")).unwrap();
    check(&session(IomillStore::array(array.clone()))).await;
    array.close_async().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tree_of_parquet_is_read_in_place() {
    let dir = TempDir::new().unwrap();
    write(&session(LocalFileSystem::new_with_prefix(dir.path()).unwrap())).await;
    check(&session(IomillStore::plain(dir.path()).unwrap())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cache_of_a_store_gives_its_answers_and_asks_once() {
    let dir = TempDir::new().unwrap();
    let [origin, drive] = ["origin", "drive"].map(|name| dir.path().join(name));
    for path in [&origin, &drive] {
        std::fs::create_dir(path).unwrap();
    }
    let files = || LocalFileSystem::new_with_prefix(&origin).unwrap();
    write(&session(files())).await;
    let options = Options::new().bytes(64 << 20).on_root(true).index_dir(dir.path());
    let cache = Cache::open([&drive], options.revalidate("", Revalidate::Never)).unwrap();
    let store = cache.over(Arc::new(files()) as Arc<dyn ObjectStore>, "file://origin");
    check(&session(Arc::clone(&store))).await;
    cache.flush();
    let before = cache.counters();
    check(&session(store)).await;
    let done = cache.counters().since(&before);
    assert!(done.gets == 0 && done.hits > 0, "{done:?}");
}

#[tokio::test]
async fn a_tree_that_is_read_in_place_is_not_written() {
    let dir = TempDir::new().unwrap();
    let session = session(IomillStore::plain(dir.path()).unwrap());
    let copy = session.sql("COPY (SELECT 1 AS one) TO 'iomill://store/new.parquet' STORED AS PARQUET").await.unwrap();
    copy.collect().await.expect_err("the store is for reading");
    assert_eq!(dir.path().read_dir().unwrap().count(), 0);
}

#[tokio::test]
async fn a_missing_file_is_named() {
    let dir = TempDir::new().unwrap();
    let array = Array::create(drives(dir.path()).unwrap()).unwrap();
    let session = session(IomillStore::array(array.clone()));
    let missing = "iomill://store/no/such.parquet";
    let error = session.register_parquet("rows", missing, ParquetReadOptions::default()).await.unwrap_err();
    assert!(error.to_string().contains("no/such.parquet"), "{error}");
    array.close_async().await.unwrap();
}

#[test]
fn the_example_prints_both_answers() {
    let dir = TempDir::new().unwrap();
    let drives = drives(dir.path()).unwrap();
    let run = Command::new(env!("CARGO_BIN_EXE_judge-datafusion")).args(drives).output().unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let printed = String::from_utf8(run.stdout).unwrap();
    let some = "| 777777 | 127  | 3683  |\n| 777778 | 156  | 412   |\n";
    assert!(printed.contains(some) && printed.contains("| zone | trips | dollars"), "{printed}");
}

//! zarrs over both stores of iomill, and zarrs' own tests for any store.

use std::ops::Range;
use std::process::Command;
use std::sync::Arc;

use iomill::Array;
use iomill_object_store::v0_14::IomillStore;
use judge_turns::drives;
use object_store::ObjectStore;
use object_store::local::LocalFileSystem;
use tempfile::TempDir;
use zarrs::array::{Array as Zarr, ArrayBuilder, ArraySubset, data_type};
use zarrs::storage::AsyncReadableWritableListableStorageTraits as Storage;
use zarrs_object_store::AsyncObjectStore;
use zarrs_storage::store_test;

/// A few shards a side, with edges inside shards.
const SHAPE: [u64; 2] = [150, 230];

const SHARD: [u64; 2] = [64, 64];
const CHUNK: [u64; 2] = [8, 16];

/// The shard that is never written.
const MISSING: [u64; 2] = [1, 2];

const FILL: u32 = 7;

fn new_array(dir: &TempDir) -> Array {
    Array::create(drives(dir.path()).unwrap()).unwrap()
}

fn storage(store: impl ObjectStore) -> Arc<dyn Storage> {
    Arc::new(AsyncObjectStore::new(store))
}

fn expected(row: u64, column: u64) -> u32 {
    if [row / SHARD[0], column / SHARD[1]] == MISSING { FILL } else { (row * 1000 + column) as u32 }
}

fn expected_of(rows: Range<u64>, columns: Range<u64>) -> Vec<u32> {
    rows.flat_map(|row| columns.clone().map(move |column| expected(row, column))).collect()
}

/// Writes all shards but one.
async fn write(storage: Arc<dyn Storage>) {
    let zarr = ArrayBuilder::new(SHAPE.to_vec(), SHARD.to_vec(), data_type::uint32(), FILL)
        .subchunk_shape(CHUNK.to_vec())
        .build(storage, "/group/numbers")
        .unwrap();
    zarr.async_store_metadata().await.unwrap();
    for shard in (0..3).flat_map(|y| (0..4).map(move |x| [y, x])).filter(|&shard| shard != MISSING) {
        let [top, left] = [shard[0] * SHARD[0], shard[1] * SHARD[1]];
        // Shards at an edge are stored whole.
        let values = (0..SHARD[0] * SHARD[1]).map(|at| (top + at / SHARD[1], left + at % SHARD[1]));
        let values: Vec<u32> = values.map(|(row, column)| (row * 1000 + column) as u32).collect();
        zarr.async_store_chunk(&shard, values).await.unwrap();
    }
}

async fn read(zarr: &Zarr<dyn Storage>, rows: Range<u64>, columns: Range<u64>) -> Vec<u32> {
    zarr.async_retrieve_array_subset(&ArraySubset::new_with_ranges(&[rows, columns])).await.unwrap()
}

/// Whole, across shards, within one chunk, and in the missing shard.
async fn check(storage: Arc<dyn Storage>) {
    let zarr = Zarr::async_open(storage, "/group/numbers").await.unwrap();
    assert_eq!(zarr.shape(), SHAPE);
    for (rows, columns) in
        [(0..150, 0..230), (60..70, 120..200), (3..4, 17..18), (64..128, 128..192), (149..150, 0..230)]
    {
        assert_eq!(read(&zarr, rows.clone(), columns.clone()).await, expected_of(rows, columns));
    }
}

#[tokio::test]
async fn the_tests_of_zarrs_pass() {
    let dir = TempDir::new().unwrap();
    let array = new_array(&dir);
    let store = AsyncObjectStore::new(IomillStore::array(array.clone()));
    store_test::async_store_write(&store).await.unwrap();
    store_test::async_store_read(&store).await.unwrap();
    store_test::async_store_list(&store).await.unwrap();
    store_test::async_store_list_size(&store).await.unwrap();
    array.close_async().await.unwrap();
}

#[tokio::test]
async fn shards_come_back_after_the_array_is_opened_again() {
    let dir = TempDir::new().unwrap();
    let array = new_array(&dir);
    write(storage(IomillStore::array(array.clone()))).await;
    check(storage(IomillStore::array(array.clone()))).await;
    array.close_async().await.unwrap();

    let array = Array::open(dir.path().join("ssd1")).unwrap();
    check(storage(IomillStore::array(array.clone()))).await;
    array.close_async().await.unwrap();
}

#[tokio::test]
async fn a_chunk_within_a_shard_is_replaced() {
    let dir = TempDir::new().unwrap();
    let array = new_array(&dir);
    let storage = storage(IomillStore::array(array.clone()));
    write(storage.clone()).await;
    let zarr = Zarr::async_open(storage, "/group/numbers").await.unwrap();
    let within = ArraySubset::new_with_ranges(&[10..12, 60..70]);
    zarr.async_store_array_subset(&within, vec![1_u32; 20]).await.unwrap();
    assert_eq!(read(&zarr, 10..12, 60..70).await, [1; 20]);
    assert_eq!(read(&zarr, 9..10, 60..70).await, expected_of(9..10, 60..70));
    zarr.async_erase_chunk(&[0, 0]).await.unwrap();
    assert_eq!(read(&zarr, 10..11, 62..66).await, [FILL, FILL, 1, 1]);
    array.close_async().await.unwrap();
}

#[tokio::test]
async fn a_tree_that_others_wrote_is_read_in_place() {
    let dir = TempDir::new().unwrap();
    write(storage(LocalFileSystem::new_with_prefix(dir.path()).unwrap())).await;
    check(storage(IomillStore::plain(dir.path()).unwrap())).await;
}

#[test]
fn the_example_prints_the_year_of_a_place() {
    let dir = TempDir::new().unwrap();
    let drives = drives(dir.path()).unwrap();
    let run = Command::new(env!("CARGO_BIN_EXE_judge-zarrs")).args(drives).output().unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let printed = String::from_utf8(run.stdout).unwrap();
    assert_eq!(printed, "365 days at latitude 20, longitude 77: 21.9 to 29.9 degrees\n");
}

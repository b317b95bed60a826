//! Puts three objects into an array, gets ranges of one, and lists a prefix.
//!
//! `cargo run --example objects DIRECTORY...` takes one directory per drive. It makes an array there, or opens the one
//! that is there.

use std::error::Error;

use futures_util::TryStreamExt;
use iomill::ArrayOptions;
use iomill_object_store::v0_14::IomillStore;
// Within this repository two versions are side by side. In a program of its own the crate is `object_store`.
use object_store_0_14::{ObjectStore, ObjectStoreExt, path::Path};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let drives: Vec<String> = std::env::args().skip(1).collect();
    if drives.is_empty() {
        return Err("give one directory per drive".into());
    }
    // By default no array is made on the file system of `/`, where the mount points of missing drives are. Here the
    // directories may be anywhere. A program for mounted drives calls `Array::open_or_create`.
    let array = ArrayOptions::new().on_root(true).open_or_create(&drives)?;
    let store = IomillStore::array(array.clone());

    for table in 0..3_u8 {
        let path = Path::from(format!("tables/{table}"));
        store.put(&path, vec![table; 100_000].into()).await?;
    }

    // One gather for all ranges.
    let ranges = [0..512, 40_000..40_512, 99_000..100_000];
    let parts = store.get_ranges(&Path::from("tables/1"), &ranges).await?;
    for (range, part) in ranges.iter().zip(&parts) {
        println!("tables/1 {range:?}: {} bytes, the first is {}", part.len(), part[0]);
    }

    let mut objects = store.list(Some(&Path::from("tables")));
    while let Some(object) = objects.try_next().await? {
        println!("{}: {} bytes, etag {:?}", object.location, object.size, object.e_tag);
    }

    // Waits for all work and releases the drives. Later calls of the store fail. A drop could not report an error.
    array.close_async().await?;
    Ok(())
}

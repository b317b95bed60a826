//! [`object_store`](https://docs.rs/object_store) over iomill: the files of an array are objects, and so are the
//! ordinary files of a directory. Engines that read through the trait `ObjectStore` get iomill's cache, its gathers and
//! all drives at once: DataFusion, SlateDB, Lance, delta-rs, zarrs.
//!
//! ```no_run
//! # #[cfg(feature = "v0_14")]
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use iomill_object_store::v0_14::IomillStore;
//! use object_store_0_14::{ObjectStore, ObjectStoreExt, path::Path};
//!
//! // One existing directory on each drive. On a machine with one disk: `ArrayOptions::new().on_root(true)`.
//! let array = iomill::Array::open_or_create(["/mnt/ssd0", "/mnt/ssd1"])?;
//! let store = IomillStore::array(array);
//! let path = Path::from("tables/points");
//! store.put(&path, vec![7; 100_000].into()).await?;
//! // One gather: all drives at once, and only the requested bytes.
//! let parts = store.get_ranges(&path, &[0..512, 40_000..40_512]).await?;
//! assert_eq!(parts[1].len(), 512);
//!
//! // A tree of ordinary files, in place and for reading.
//! let files = IomillStore::plain("/data/parquet")?;
//! # let _ = files;
//! # Ok(()) }
//! ```
//!
//! Users of the trait do not share a version of it. The features `v0_13` and `v0_14` (the default) each bring a module
//! with a store for that version. Both may be on. The crate's root has no store, so the meaning of a name does not
//! depend on features that other crates turn on.
//!
//! `docs/objects.md` in the repository of iomill has the uses, the limits, and the calls that the trait lacks.

mod entries;
mod handles;
mod known;
mod objects;
mod reading;
mod source;
mod stamp;
mod store;
mod tree;
mod upload;
mod uploads;

use iomill_objects_common as common;

#[cfg(feature = "v0_13")]
pub mod v0_13;
#[cfg(feature = "v0_14")]
pub mod v0_14;

#[cfg(not(any(feature = "v0_13", feature = "v0_14")))]
compile_error!("iomill-object-store needs a version of object_store: turn on the feature `v0_13` or `v0_14`");

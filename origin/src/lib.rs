//! A cache on local drives between programs and an object store: S3, GCS, Azure, Ceph, HTTP. It implements the trait
//! `ObjectStore` of [`object_store`](https://docs.rs/object_store), so every program that reads through the trait can
//! use it.
//!
//! ```no_run
//! # #[cfg(feature = "v0_14")]
//! # async fn example(s3: std::sync::Arc<dyn object_store_0_14::ObjectStore>) -> Result<(), Box<dyn std::error::Error>> {
//! use iomill_origin::{Cache, Options, Revalidate};
//! use object_store_0_14::{ObjectStore, path::Path};
//!
//! // Objects below `tables/` never change. Others are asked for their version in each call.
//! let options = Options::new().bytes(2 << 40).revalidate("tables/", Revalidate::Never);
//! let cache = Cache::open(["/mnt/ssd0", "/mnt/ssd1"], options)?;
//! let store = cache.over(s3, "s3://bucket");
//! let rows = store.get_ranges(&Path::from("tables/points"), &[0..512, 40_000..40_512]).await?;
//! # let _ = rows;
//! # Ok(()) }
//! ```
//!
//! Any number of processes of a machine open the same directories, and share their contents. None of them is a daemon,
//! and each may be killed at any time. Checksums prove the contents of the drives: they cover the bytes and their
//! identity. So a torn, old, foreign or rotten page is fetched again, and never returned.
//!
//! `docs/origin.md` in the repository of iomill has the uses and limits, the costs, and the promises.

mod apart;
mod append;
mod bounded;
mod cache;
mod change;
mod counters;
mod drive;
mod error;
mod evict;
// Only the swarm, which needs a store, uses all of them.
#[cfg(test)]
#[cfg_attr(not(feature = "v0_14"), allow(dead_code))]
mod faults;
mod fetch;
mod fill;
mod flights;
mod geometry;
mod identity;
mod index;
mod joining;
mod known;
mod label;
mod load;
mod lock;
mod mapping;
mod notices;
mod opening;
mod options;
mod origin;
mod pages;
mod pin;
mod prefetch;
mod present;
mod process;
mod reading;
mod roster;
mod shares;
mod source;
mod store;
mod summary;
#[cfg(all(test, feature = "v0_14"))]
mod swarm;
mod timer;
mod watched;

use iomill_objects_common as common;

#[cfg(feature = "clients")]
pub mod clients;
#[cfg(feature = "v0_13")]
pub mod v0_13;
#[cfg(feature = "v0_14")]
pub mod v0_14;

pub use cache::Cache;
pub use counters::Counters;
pub use error::{Error, Result};
pub use evict::DriveStat;
pub use options::{Cost, Options, Revalidate};
pub use pin::Pinned;
pub use prefetch::Prefetched;
pub use present::{CachedBytes, Verified};

/// A store below a [`Cache`]: `Arc<dyn ObjectStore>` of a version of `object_store`, if its feature is on.
pub trait Over: Sized {
    /// The store through the cache.
    fn over(self, cache: &Cache, name: &str) -> Self;
}

impl Cache {
    /// The objects of a store through this cache. `name` identifies the store to all processes that share the cache:
    /// two stores with one name must have the same objects. The scheme and the bucket are a good name, with the
    /// endpoint if it is not the usual one.
    ///
    /// `store` is an `Arc<dyn ObjectStore>` of `object_store` 0.13 or 0.14, and so is the result.
    pub fn over<S: Over>(&self, store: S, name: &str) -> S {
        store.over(self, name)
    }
}

#[cfg(not(any(feature = "v0_13", feature = "v0_14")))]
compile_error!("iomill-origin needs a version of object_store: turn on the feature `v0_13` or `v0_14`");

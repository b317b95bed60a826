//! The rivals. Each is as good as its interface allows, because beating a bad one proves nothing.

pub mod aio;
mod caches;
pub mod fio;
pub mod mmap;
pub mod pread;
pub mod resident;
pub mod runtimes;
pub mod stores;
mod tokio_fs;
pub mod uncached;
pub mod uring;

#[cfg(test)]
mod others_tests;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use crate::contender::{Cache, Contender};
use crate::records::{Data, RecordReads};
use crate::target::Target;

use caches::{Foyer, Moka, Pages, QuickCache, cached};
use tokio_fs::tokio_fs;

/// Caches of other crates and `tokio::fs`, for warm reads over the data. The caches share one copy of its pages.
pub fn warm(data: &Arc<Data>) -> Vec<Box<dyn Contender<RecordReads>>> {
    let pages = Arc::new(Pages::default());
    vec![
        Box::new(cached::<QuickCache>(data, &pages)),
        Box::new(cached::<Moka>(data, &pages)),
        Box::new(cached::<Foyer>(data, &pages)),
        Box::new(tokio_fs(data)),
    ]
}

/// All rivals over one target. Buffered rivals appear both cold and warm.
pub fn all(target: &Target) -> Vec<Box<dyn Contender>> {
    vec![
        Box::new(uring::Uring::new(target.clone())),
        Box::new(uring::Uring::plain(target.clone())),
        Box::new(aio::Aio::new(target.clone())),
        Box::new(fio::Fio::new(target.clone())),
        Box::new(fio::Fio::tuned(target.clone())),
        Box::new(pread::Pread::new(target.clone(), Cache::Cold)),
        Box::new(mmap::Mmap::new(target.clone(), Cache::Cold)),
        Box::new(pread::Pread::new(target.clone(), Cache::Warm)),
        Box::new(mmap::Mmap::new(target.clone(), Cache::Warm)),
    ]
}

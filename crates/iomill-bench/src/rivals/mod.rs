//! The rivals: each as good as its interface allows, since beating a badly made one proves nothing.

pub mod aio;
pub mod caches;
pub mod fio;
pub mod mmap;
pub mod pread;
pub mod resident;
pub mod uring;

#[cfg(test)]
mod tests;

use crate::contender::{Cache, Contender};
use crate::target::Target;

/// Operations handed to the kernel by one call of the asynchronous rivals, fio included. From 16 to 128 the CPU time
/// per operation differs by less than 4% on drives that answer at once; larger batches let a drive idle longer.
pub(crate) const BATCH: usize = 32;

/// All rivals over one target, buffered ones both cold and warm.
pub fn all(target: &Target) -> Vec<Box<dyn Contender>> {
    vec![
        Box::new(uring::Uring::new(target.clone())),
        Box::new(aio::Aio::new(target.clone())),
        Box::new(fio::Fio::new(target.clone())),
        Box::new(fio::Fio::tuned(target.clone())),
        Box::new(pread::Pread::new(target.clone(), Cache::Cold)),
        Box::new(mmap::Mmap::new(target.clone(), Cache::Cold)),
        Box::new(pread::Pread::new(target.clone(), Cache::Warm)),
        Box::new(mmap::Mmap::new(target.clone(), Cache::Warm)),
    ]
}

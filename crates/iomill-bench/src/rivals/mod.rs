//! The rivals: each as good as its interface allows, since beating a badly made one proves nothing.

pub mod aio;
pub mod fio;
pub mod mmap;
pub mod pread;
pub mod resident;
pub mod uring;

#[cfg(test)]
mod tests;

use std::fmt::Debug;
use std::sync::Arc;

use crate::asynchronous::Flyer;
use crate::contender::{Cache, Contender};
use crate::records::{Data, RecordReads};
use crate::target::Target;

/// Operations handed to the kernel by one call of the asynchronous rivals, fio included. From 16 to 128 the CPU time
/// per operation differs by less than 4% on drives that answer at once; larger batches let a drive idle longer.
pub(crate) const BATCH: usize = 32;

/// The command that has the rivals which [`Bring`] brings, in iomill's repository.
pub const BROUGHT_BY: &str = "cargo run --release --manifest-path rivals/Cargo.toml -- bench";

/// Makes rivals whose dependencies iomill does without. They are in a crate of their own, `iomill-rivals`.
pub trait Bring: Debug + Sync {
    /// Those of [`crate::warm`] over the data.
    fn warm(&self, data: &Arc<Data>) -> Vec<Box<dyn Contender<RecordReads>>>;

    /// iomill's futures on other runtimes than the loop of this crate.
    fn flyers(&self) -> Vec<Flyer>;
}

/// Names of the rivals that a measurement has.
#[derive(Clone, Copy, Debug)]
pub struct Names {
    /// Those of this crate.
    pub own: &'static [&'static str],
    /// Those that are there only if [`Bring`] brings them.
    pub brought: &'static [&'static str],
}

impl Names {
    /// A measurement for which none is brought.
    pub const fn own(own: &'static [&'static str]) -> Names {
        Names { own, brought: &[] }
    }
}

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

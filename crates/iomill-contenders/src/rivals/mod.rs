//! The rivals. Each is as good as its interface allows, because beating a bad one proves nothing.

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

use std::path::Path;

use crate::asynchronous::Flyer;
use crate::contender::{Cache, Contender};
use crate::files::FileWork;
use crate::records::{Data, RecordReads};
use crate::target::Target;

/// Operations per system call of the asynchronous rivals, including fio. From 16 to 128 the CPU time per operation differs by less
/// than 4% on drives that answer at once. Larger batches leave a drive idle for longer.
pub(crate) const BATCH: usize = 32;

/// The command in iomill's repository that has the rivals of [`Bring`].
pub const BROUGHT_BY: &str = "cargo run --release --manifest-path rivals/Cargo.toml -- bench";

/// Makes rivals that need crates which iomill itself does not use. They are in a separate crate, `iomill-rivals`.
pub trait Bring: Debug + Sync {
    /// The rivals of warm reads over the data.
    fn warm(&self, data: &Arc<Data>) -> Vec<Box<dyn Contender<RecordReads>>>;

    /// Stores of small files, in a directory.
    fn files(&self, directory: &Path) -> Vec<Box<dyn Contender<FileWork>>>;

    /// Reads of single pages of the parts by other runtimes, past all caches or cold.
    fn uncached(&self, target: &Target) -> Vec<Box<dyn Contender>>;

    /// iomill's futures on other runtimes than this crate's loop.
    fn flyers(&self) -> Vec<Flyer>;
}

/// Names of the rivals that a measurement has.
#[derive(Clone, Copy, Debug)]
pub struct Names {
    /// The rivals in this crate.
    pub own: &'static [&'static str],
    /// The rivals that exist only if [`Bring`] brings them.
    pub brought: &'static [&'static str],
}

impl Names {
    /// Names of a measurement without brought rivals.
    pub const fn own(own: &'static [&'static str]) -> Names {
        Names { own, brought: &[] }
    }
}

/// All rivals over one target. Buffered rivals appear both cold and warm.
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

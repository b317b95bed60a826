//! The command `iomill` with further rivals in its measurements. These rivals need too many dependencies for iomill's own build.
//!
//! Goals: `iomill-rivals bench ...` takes the arguments of `iomill bench ...` and measures more contenders in the same turns.
//! Non-goals: rivals without dependencies; `iomill-contenders` has them.

mod caches;
mod files;
mod runtimes;
mod stores;
#[cfg(test)]
mod tests;
mod uncached;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use iomill_bench::asynchronous::Flyer;
use iomill_bench::contender::Contender;
use iomill_bench::files::FileWork;
use iomill_bench::records::{Data, RecordReads};
use iomill_bench::rivals::Bring;
use iomill_bench::target::Target;

use caches::{Cached, Foyer, Moka, Pages, QuickCache};
use files::TokioFs;

/// The rivals of this crate.
#[derive(Debug)]
struct Brought;

impl Bring for Brought {
    fn warm(&self, data: &Arc<Data>) -> Vec<Box<dyn Contender<RecordReads>>> {
        let pages = Arc::new(Pages::default());
        vec![
            Box::new(Cached::<QuickCache>::new(data.clone(), pages.clone())),
            Box::new(Cached::<Moka>::new(data.clone(), pages.clone())),
            Box::new(Cached::<Foyer>::new(data.clone(), pages)),
            Box::new(TokioFs::new(data.clone())),
        ]
    }

    fn files(&self, directory: &Path) -> Vec<Box<dyn Contender<FileWork>>> {
        stores::all(directory)
    }

    fn uncached(&self, target: &Target) -> Vec<Box<dyn Contender>> {
        uncached::all(target)
    }

    fn flyers(&self) -> Vec<Flyer> {
        runtimes::flyers()
    }
}

fn main() -> ExitCode {
    ExitCode::from(iomill_cli::run(std::env::args_os().collect(), Some(&Brought)))
}

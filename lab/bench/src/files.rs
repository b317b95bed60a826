//! The costs of small files: iomill with one and three copies of its catalog beside plain files and other stores on the
//! same file system.
//!
//! Goals: one table for all operations. Non-goals: large files.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use iomill::{ArrayOptions, CreateOptions, Error, Result};

use crate::arena::Arena;
use crate::bench::{Rivals, Stage};
use crate::contender::{
    Contender, IOMILL_1_COPY, IOMILL_3_COPIES, IOMILL_FUTURES, IOMILL_NO_SYNC, PLAIN_FILES, REDB, SQLITE,
};
use crate::leftovers::{self, By};
use crate::machine::Machine;
use crate::report::Report;
use crate::rivals::stores;
use crate::rounds::{self, Turns, WARM_UP};
use crate::target::Target;

pub use iomill_contenders::files::{FILE_BYTES, FILE_OPS, FileOp, FileWork, Files, Store};

/// Drives of the arrays, all directories of one file system.
const DRIVES: usize = 4;

/// The rivals that may take part.
pub const RIVALS: &[&str] = &[PLAIN_FILES, SQLITE, REDB];

/// What to measure.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The directory below which all files are made; they are removed at the end.
    pub dir: PathBuf,
    /// Files that exist while others are made and deleted.
    pub files: u32,
    /// How iomill opens the arrays.
    pub options: ArrayOptions,
    /// How turns are taken.
    pub turns: Turns,
    /// The contenders besides iomill.
    pub rivals: Rivals,
}

/// Measures, and leaves nothing behind. `cancel` ends it soon; the report then has the complete rounds only.
pub fn run(settings: &Settings, cancel: &AtomicBool, stage: &mut dyn FnMut(Stage)) -> Result<Report> {
    settings.rivals.check(RIVALS)?;
    // Its drop removes the directory with all files below it.
    let place = Place::new(&settings.dir)?;
    let mut contenders: Vec<Box<dyn Contender<FileWork>>> = Vec::new();
    let mut arenas = Vec::new();
    for (name, copies) in [(IOMILL_1_COPY, 1), (IOMILL_3_COPIES, 3), (IOMILL_FUTURES, 1), (IOMILL_NO_SYNC, 1)] {
        let arena =
            Arena::fresh_with(&place.0.join(name), DRIVES, &settings.options, &CreateOptions::new().copies(copies))?;
        // Each read is one from a drive, as for plain files.
        let options = settings.options.clone().cache_bytes(0).sync_changes(name != IOMILL_NO_SYNC);
        let files =
            Files::in_array(name, arena.drives(), &options).noting(&format!("{DRIVES} drives on one file system"));
        contenders.push(Box::new(match name {
            IOMILL_FUTURES => files.by_futures(),
            IOMILL_NO_SYNC => files.only(&[FileOp::Rename]).noting("names are durable with the next sync of anything"),
            _ => files,
        }));
        arenas.push(arena);
    }
    let plain = place.directory(PLAIN_FILES)?;
    let note = "each change with an fsync of the file and one of its directory; reads with O_DIRECT";
    contenders.push(Box::new(Files::plain(PLAIN_FILES, &plain).noting(note)));
    contenders.extend(stores::all(&place.directory("stores")?));
    contenders.retain(|contender| settings.rivals.include(contender.name()));
    let plans = FILE_OPS.into_iter().flat_map(|op| {
        let work = FileWork { op, files: settings.files };
        settings.turns.plans(work, WARM_UP).collect::<Vec<_>>()
    });
    let measured = rounds::run_each(&mut contenders, plans, &mut |at| stage(Stage::Measuring(at)), cancel);
    drop(contenders);
    let cleaned = arenas.into_iter().try_for_each(Arena::clean_up).and_then(|()| place.remove());
    let measured = measured?;
    cleaned?;
    let machine = Machine::look(Target::plain(settings.dir.clone(), 0)?.parts());
    Ok(Report { baselines: &[PLAIN_FILES, SQLITE, REDB], ..Report::new(machine, &measured) })
}

/// A directory that is removed at the end, with its contents.
#[derive(Debug)]
struct Place(PathBuf);

impl Place {
    fn new(dir: &Path) -> Result<Place> {
        leftovers::remove_in(dir);
        let path = dir.join(leftovers::name(By::Bench));
        std::fs::create_dir(&path).map_err(|e| Error::io("create", &path, e))?;
        Ok(Place(path))
    }

    fn directory(&self, name: &str) -> Result<PathBuf> {
        let path = self.0.join(name);
        std::fs::create_dir(&path).map_err(|e| Error::io("create", &path, e))?;
        Ok(path)
    }

    fn remove(&self) -> Result<()> {
        std::fs::remove_dir_all(&self.0).map_err(|e| Error::io("remove", &self.0, e))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.0.exists() {
            // After an error, which the caller returns.
            let _ = self.remove();
        }
    }
}

//! Small files that are made one after the other, each durable at once: in an array, and as plain files.
//!
//! Goals: both make the same promise: file and name survive a power failure. A plain file gets an fsync, and so does
//! its directory. Non-goals: many files with one sync.

use std::fmt;
use std::path::PathBuf;

use iomill::{ArrayOptions, Error, Result};

use crate::arena::Arena;
use crate::contender::{Cache, Contender, IOMILL_CREATE, PLAIN_CREATE, Sample, Slice};
use crate::files::{self, Directory, FileOp, Store};
use crate::leftovers::{self, By};
use crate::pattern::{self, PAGE_BYTES};
use crate::task::Task;

/// Files of one page each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Creates;

impl fmt::Display for Creates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("create-4KiB")
    }
}

impl Task for Creates {
    fn check(&self) -> Result<()> {
        Ok(())
    }
}

/// See the head of this file.
#[derive(Debug)]
pub struct Create {
    name: &'static str,
    drives: Vec<PathBuf>,
    options: ArrayOptions,
}

impl Create {
    /// Makes files in the arena's array.
    pub fn in_array(arena: &Arena, options: &ArrayOptions) -> Create {
        Create { name: IOMILL_CREATE, drives: arena.drives().to_owned(), options: options.clone() }
    }

    /// Makes plain files in the directory of the array's first drive.
    pub fn plain(arena: &Arena) -> Create {
        Create { name: PLAIN_CREATE, drives: arena.drives().to_owned(), options: ArrayOptions::new() }
    }
}

impl Contender<Creates> for Create {
    fn name(&self) -> &'static str {
        self.name
    }

    fn cache(&self) -> Cache {
        Cache::Direct
    }

    fn prepare(&mut self, _: &Creates) -> Result<Option<String>> {
        Ok(None)
    }

    fn run(&mut self, slice: &Slice<'_>) -> Result<Sample> {
        if self.name == IOMILL_CREATE {
            let array = self.options.clone().open_at(&self.drives)?;
            let sample = work(slice, &array)?;
            array.close()?;
            return Ok(sample);
        }
        let lacks = || Error::invalid("an array without drives", "name one of them");
        work(slice, &Directory(self.drives.first().ok_or_else(lacks)?.clone()))
    }
}

fn work(slice: &Slice<'_>, store: &dyn Store) -> Result<Sample> {
    let mut page = vec![0; PAGE_BYTES];
    pattern::fill_to_write(&mut page);
    files::create(slice, (store, None), FileOp::Create, &page, |number| {
        format!("{}-{number}", leftovers::name(By::Bench))
    })
}

//! Small files that are made one after the other, each durable at once: in an array, and as plain files.
//!
//! Goals: both make the same promise, that file and name survive a power failure. A plain file gets an fsync, and so does its
//! directory. Non-goals: many files with one sync.

use std::fmt;
use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use iomill::{Array, ArrayOptions, Error, Layout, Result};

use crate::arena::Arena;
use crate::contender::{Cache, Contender, IOMILL_CREATE, PLAIN_CREATE, Sample, Slice};
use crate::leftovers;
use crate::pattern::{self, PAGE_BYTES};
use crate::task::Task;
use crate::threads::{self, Count, goes_on};

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

/// Makes files, and removes them.
trait Maker {
    /// Makes a file with these bytes, durably.
    fn create(&self, name: &str, bytes: &[u8]) -> Result<()>;
    /// Reads a file.
    fn read(&self, name: &str) -> Result<Vec<u8>>;
    /// Removes a file.
    fn remove(&self, name: &str) -> Result<()>;
}

impl Maker for Array {
    fn create(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let file = self.create_file(name, Layout::default())?;
        file.write_at(bytes, 0)?;
        file.close()
    }

    fn read(&self, name: &str) -> Result<Vec<u8>> {
        let file = self.open_file(name)?;
        let mut bytes = vec![0; file.len() as usize];
        file.read_at(&mut bytes, 0)?;
        Ok(bytes)
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.delete(name)
    }
}

struct Directory(PathBuf);

impl Maker for Directory {
    fn create(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let path = self.0.join(name);
        let mut file = File::create_new(&path).map_err(|e| Error::io("create", &path, e))?;
        file.write_all(bytes).map_err(|e| Error::io("write", &path, e))?;
        file.sync_all().map_err(|e| Error::io("sync", &path, e))?;
        let directory = File::open(&self.0).map_err(|e| Error::io("open", &self.0, e))?;
        directory.sync_all().map_err(|e| Error::io("sync", &self.0, e))
    }

    fn read(&self, name: &str) -> Result<Vec<u8>> {
        let path = self.0.join(name);
        fs::read(&path).map_err(|e| Error::io("read", &path, e))
    }

    fn remove(&self, name: &str) -> Result<()> {
        let path = self.0.join(name);
        fs::remove_file(&path).map_err(|e| Error::io("remove", &path, e))
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

fn work(slice: &Slice<'_>, maker: &(impl Maker + Sync)) -> Result<Sample> {
    let made = AtomicU64::new(0);
    let name = |number: u64| format!("{}-{number}", leftovers::name());
    let mut page = vec![0; PAGE_BYTES];
    pattern::fill_to_write(&mut page);
    let sample = threads::run(
        slice,
        |_| Ok(()),
        |(), stop: &AtomicBool| {
            let mut count = Count::new()?;
            while goes_on(count.ops, stop) {
                let (name, start) = (name(made.fetch_add(1, Ordering::Relaxed)), Instant::now());
                maker.create(&name, &page)?;
                count.record(start.elapsed());
                count.ops += 1;
            }
            count.bytes = count.ops * PAGE_BYTES as u64;
            Ok(count)
        },
    )?;
    for number in 0..made.into_inner() {
        let name = name(number);
        if slice.verify && maker.read(&name)? != page {
            let what = format!("the new file {name}");
            return Err(Error::Tool { what, why: "it does not hold what was written to it".into() });
        }
        maker.remove(&name)?;
    }
    Ok(sample)
}

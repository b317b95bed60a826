//! Many small files: made, looked up, opened, read, deleted and listed, in an array, as plain files, and in other
//! stores.
//!
//! Goals: all make the same promises. When a call returns, its change survives a power failure. Non-goals: large files.

mod futures;
mod stores;

use std::cell::Cell;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use iomill::sys::memory::PageBuf;
use iomill::{Array, ArrayOptions, Error, Result};

use crate::contender::{Cache, Contender, Sample, Slice};
use crate::pattern::{self, PAGE_BYTES};
use crate::task::Task;
use crate::threads::{self, Count, goes_on};

pub use futures::IN_FLIGHT;
pub(crate) use stores::Directory;

/// Bytes of each file.
pub const FILE_BYTES: usize = 5000;
/// One in this number of short operations is timed by itself.
const OPS_PER_TIME: u64 = 16;

/// An operation on files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileOp {
    /// A new file with its bytes, durable.
    Create,
    /// The same, and no process and no crash sees a part of the file.
    Put,
    /// Another name for a file, durable.
    Rename,
    /// The length of a file, by its name.
    Stat,
    /// Opening a file, and closing it.
    Open,
    /// Opening a file, reading its first page from its drive, and closing it.
    Read,
    /// Deleting a file, durably.
    Delete,
    /// The names of all files.
    List,
}

/// All operations, in the order of a report.
pub const FILE_OPS: [FileOp; 8] = [
    FileOp::Create,
    FileOp::Put,
    FileOp::Rename,
    FileOp::Stat,
    FileOp::Open,
    FileOp::Read,
    FileOp::Delete,
    FileOp::List,
];

/// One operation among this number of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileWork {
    /// The operation.
    pub op: FileOp,
    /// Files that exist during the operation.
    pub files: u32,
}

impl fmt::Display for FileWork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let files = self.files;
        match self.op {
            FileOp::Create => write!(f, "create-{FILE_BYTES}B"),
            FileOp::Put => write!(f, "put-{FILE_BYTES}B"),
            FileOp::Rename => f.write_str("rename"),
            FileOp::Stat => write!(f, "stat-{files}"),
            FileOp::Open => write!(f, "open-{files}"),
            FileOp::Read => write!(f, "open-read-4KiB-{files}"),
            FileOp::Delete => f.write_str("delete"),
            FileOp::List => write!(f, "list-{files}"),
        }
    }
}

impl Task for FileWork {
    fn check(&self) -> Result<()> {
        let why = "give 1 to 10000000";
        if (1..=10_000_000).contains(&self.files) { Ok(()) } else { Err(Error::invalid("that number of files", why)) }
    }
}

/// A store of files.
pub trait Store: Send + Sync {
    /// The reason why it cannot do an operation in a comparable way.
    fn lacks(&self, _: FileOp) -> Option<&'static str> {
        None
    }

    /// Makes a file with these bytes, durably.
    fn create(&self, name: &str, bytes: &[u8]) -> Result<()>;

    /// The same. The name has all of the bytes, or does not exist.
    fn put(&self, name: &str, bytes: &[u8]) -> Result<()> {
        self.create(name, bytes)
    }

    /// Gives a file another name, durably.
    fn rename(&self, from: &str, to: &str) -> Result<()>;

    /// The length of a file.
    fn stat(&self, name: &str) -> Result<u64>;

    /// Opens a file, and closes it.
    fn open(&self, name: &str) -> Result<()>;

    /// Opens a file, reads its first page, and closes it. The page is not read from a cache, if the store can avoid
    /// that.
    fn read(&self, name: &str, page: &mut [u8]) -> Result<()>;

    /// Deletes a file, durably.
    fn delete(&self, name: &str) -> Result<()>;

    /// The number of files; each name is examined.
    fn list(&self) -> Result<u64>;

    /// The array, if the store is one.
    fn array(&self) -> Option<&Array> {
        None
    }
}

/// A contender over a store.
pub struct Files {
    name: &'static str,
    make: Box<dyn Fn() -> Result<Box<dyn Store>>>,
    /// The store is open from the first measurement to the last.
    store: Option<Box<dyn Store>>,
    work: FileWork,
    /// The files that exist during all measurements.
    pool: Vec<String>,
    /// Whether it uses futures.
    uses_futures: bool,
    /// The operations in which it takes part, if not in all.
    only: Option<&'static [FileOp]>,
    notes: Vec<String>,
}

impl Files {
    /// A store that `make` opens.
    pub fn new(name: &'static str, make: impl Fn() -> Result<Box<dyn Store>> + 'static) -> Files {
        let work = FileWork { op: FileOp::Create, files: 1 };
        let (store, pool, notes) = (None, Vec::new(), Vec::new());
        Files { name, make: Box::new(make), store, work, pool, uses_futures: false, only: None, notes }
    }

    /// Files in an array.
    pub fn in_array(name: &'static str, drives: &[PathBuf], options: &ArrayOptions) -> Files {
        let (drives, options) = (drives.to_owned(), options.clone());
        Files::new(name, move || Ok(Box::new(options.clone().open_at(&drives)?)))
    }

    /// Plain files in a directory, which exists.
    pub fn plain(name: &'static str, directory: &Path) -> Files {
        let directory = directory.to_owned();
        Files::new(name, move || Ok(Box::new(Directory(directory.clone()))))
    }

    /// Uses futures of the array, with [`IN_FLIGHT`] from each thread.
    pub fn by_futures(mut self) -> Files {
        self.uses_futures = true;
        self.noting(&format!("{IN_FLIGHT} futures in flight from each thread"))
    }

    /// Takes part in these operations only.
    pub fn only(mut self, only: &'static [FileOp]) -> Files {
        self.only = Some(only);
        self
    }

    /// Adds a note about its figures.
    pub fn noting(mut self, note: &str) -> Files {
        self.notes.push(note.to_owned());
        self
    }
}

impl Contender<FileWork> for Files {
    fn name(&self) -> &'static str {
        self.name
    }

    fn cache(&self) -> Cache {
        Cache::Direct
    }

    fn prepare(&mut self, work: &FileWork) -> Result<Option<String>> {
        work.check()?;
        self.work = *work;
        let store = match self.store.take() {
            Some(store) => store,
            None => (self.make)()?,
        };
        let is_out = self.only.is_some_and(|only| !only.contains(&work.op));
        let why = if is_out { Some("it differs in other operations only") } else { store.lacks(work.op) };
        let why = why.or(if self.uses_futures { futures::lacks(work.op) } else { None });
        let lacks = why.map(str::to_owned);
        // Files are also made and deleted among these.
        let bytes = content();
        while lacks.is_none() && self.pool.len() < work.files as usize {
            let name = format!("pool/file-{:08}", self.pool.len());
            store.create(&name, &bytes)?;
            self.pool.push(name);
        }
        self.store = Some(store);
        Ok(lacks)
    }

    fn run(&mut self, slice: &Slice<'_>) -> Result<Sample> {
        let unprepared = || Error::invalid("a slice that was not prepared", "prepare it");
        let store = &**self.store.as_ref().ok_or_else(unprepared)?;
        let op = self.work.op;
        let array = store.array().filter(|_| self.uses_futures);
        match op {
            FileOp::Create | FileOp::Put => {
                let name = |number| format!("new/file-{number:08}");
                create(slice, (store, array), op, &content(), name)
            }
            FileOp::Delete => delete(slice, (store, array), self.pool.len().min(1000)),
            FileOp::Rename => rename(slice, store, &self.pool),
            op => look(slice, store, op, &self.pool),
        }
    }

    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }
}

fn content() -> Vec<u8> {
    let mut page = [0; PAGE_BYTES];
    pattern::fill_to_write(&mut page);
    page.iter().cycle().take(FILE_BYTES).copied().collect()
}

fn wrong(name: &str, why: &str) -> Error {
    Error::Tool { what: format!("the file {name}"), why: why.into() }
}

/// Makes files of these bytes, at least a page, checks them if requested, and deletes them. `name` names them. With an
/// array its futures do it.
pub(crate) fn create(
    slice: &Slice<'_>,
    (store, array): (&dyn Store, Option<&Array>),
    op: FileOp,
    bytes: &[u8],
    name: impl Fn(u64) -> String + Sync,
) -> Result<Sample> {
    let made = AtomicU64::new(0);
    let next = || name(made.fetch_add(1, Ordering::Relaxed));
    let sample = threads::run(
        slice,
        |_| Ok(()),
        |(), stop: &AtomicBool| {
            let mut count = Count::new()?;
            if let Some(array) = array {
                let has_begun = Cell::new(false);
                let left = || goes_on(u64::from(has_begun.replace(true)), stop).then(&next);
                futures::work(array, op, bytes, &left, &mut count)?;
            }
            while array.is_none() && goes_on(count.ops, stop) {
                let (name, start) = (next(), Instant::now());
                if op == FileOp::Put {
                    store.put(&name, bytes)?
                } else {
                    store.create(&name, bytes)?
                }
                count.record(start.elapsed());
                count.ops += 1;
            }
            count.bytes = count.ops * bytes.len() as u64;
            Ok(count)
        },
    )?;
    let mut page = page()?;
    for number in 0..made.into_inner() {
        let name = name(number);
        if slice.verify {
            check(store, &name, bytes, page.as_mut_slice())?;
        }
        store.delete(&name)?;
    }
    Ok(sample)
}

/// Checks the length and the first page of a file of these bytes.
fn check(store: &dyn Store, name: &str, bytes: &[u8], page: &mut [u8]) -> Result<()> {
    store.read(name, page)?;
    if store.stat(name)? != bytes.len() as u64 || page[..] != bytes[..PAGE_BYTES] {
        return Err(wrong(name, "it does not hold what was written to it"));
    }
    Ok(())
}

fn page() -> Result<PageBuf> {
    PageBuf::new(PAGE_BYTES).map_err(|e| Error::Tool { what: "memory for a page".into(), why: e.to_string() })
}

/// Deletes files that were made before. The slice ends early when none is left.
fn delete(slice: &Slice<'_>, (store, array): (&dyn Store, Option<&Array>), files: usize) -> Result<Sample> {
    let files = files.max(slice.threads);
    let bytes = content();
    let names: Vec<String> = (0..files).map(|number| format!("old/file-{number:08}")).collect();
    names.iter().try_for_each(|name| store.create(name, &bytes))?;
    let next = AtomicU64::new(0);
    let take = || names.get(next.fetch_add(1, Ordering::Relaxed) as usize);
    let sample = threads::run(
        slice,
        |_| Ok(take()),
        |first, stop: &AtomicBool| {
            let mut count = Count::new()?;
            if let Some(array) = array {
                let first = Cell::new(first.take());
                // The first name is already taken, so its file is deleted in any case.
                let left =
                    || first.take().or_else(|| if stop.load(Ordering::Relaxed) { None } else { take() }).cloned();
                futures::work(array, FileOp::Delete, &[], &left, &mut count)?;
                return Ok(count);
            }
            while let Some(name) = first.take().or_else(|| if goes_on(count.ops, stop) { take() } else { None }) {
                let start = Instant::now();
                store.delete(name)?;
                count.record(start.elapsed());
                count.ops += 1;
            }
            Ok(count)
        },
    )?;
    // A thread takes one name more than it deletes only if no name is left.
    names.iter().skip(next.into_inner() as usize).try_for_each(|name| store.delete(name))?;
    Ok(sample)
}

/// Gives each file another name, and then its own name again. No two threads rename the same file.
fn rename(slice: &Slice<'_>, store: &dyn Store, pool: &[String]) -> Result<Sample> {
    let threads = slice.threads;
    threads::run(slice, Ok, |index, stop: &AtomicBool| {
        let mut count = Count::new()?;
        let own: Vec<&String> = pool.iter().skip(*index).step_by(threads).collect();
        let rename = |from: &str, to: &str, count: &mut Count| {
            let start = Instant::now();
            store.rename(from, to)?;
            count.record(start.elapsed());
            count.ops += 1;
            Ok::<(), Error>(())
        };
        for name in own.iter().cycle() {
            if !goes_on(count.ops, stop) {
                break;
            }
            let other = format!("{name}-renamed");
            rename(name, &other, &mut count)?;
            rename(&other, name, &mut count)?;
        }
        Ok(count)
    })
}

/// Operations that change nothing.
fn look(slice: &Slice<'_>, store: &dyn Store, op: FileOp, pool: &[String]) -> Result<Sample> {
    let verify = slice.verify;
    threads::run(
        slice,
        |index| Ok((index * 7919, page()?)),
        |(at, page), stop: &AtomicBool| {
            let mut count = Count::new()?;
            while goes_on(count.ops, stop) {
                let name = &pool[*at % pool.len()];
                *at += 7919;
                let start = (op == FileOp::Read || count.ops.is_multiple_of(OPS_PER_TIME)).then(Instant::now);
                match op {
                    FileOp::Stat => drop(store.stat(name)?),
                    FileOp::Open => store.open(name)?,
                    FileOp::List => {
                        let found = store.list()?;
                        if found != pool.len() as u64 {
                            return Err(wrong("pool", &format!("{found} files are listed of {}", pool.len())));
                        }
                    }
                    _ => store.read(name, page.as_mut_slice())?,
                }
                if let Some(start) = start {
                    count.record(start.elapsed());
                }
                count.ops += 1;
                if verify {
                    check(store, name, &content(), page.as_mut_slice())?;
                }
            }
            if op == FileOp::Read {
                count.bytes = count.ops * PAGE_BYTES as u64;
            }
            Ok(count)
        },
    )
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use super::*;

    /// Each operation is done by several threads and checked, and leaves the files as they were.
    #[test]
    fn all_operations_leave_the_files_as_they_were() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let drive = dir.path().join("drive");
        let plain = dir.path().join("plain");
        fs::create_dir(&drive).unwrap();
        fs::create_dir(&plain).unwrap();
        Array::create([&drive]).unwrap().close().unwrap();
        let array = Files::in_array("array", &[drive], &ArrayOptions::new().cache_bytes(0));
        let cancel = AtomicBool::new(false);
        let futures = {
            let drive = dir.path().join("another drive");
            fs::create_dir(&drive).unwrap();
            Array::create([&drive]).unwrap().close().unwrap();
            Files::in_array("futures", &[drive], &ArrayOptions::new().cache_bytes(0)).by_futures()
        };
        for mut files in [array, Files::plain("plain", &plain), futures] {
            for op in FILE_OPS {
                for threads in [1, 3] {
                    let lacks = files.prepare(&FileWork { op, files: 20 }).unwrap();
                    assert_eq!(lacks.is_some(), files.uses_futures && futures::lacks(op).is_some(), "{lacks:?}");
                    if lacks.is_some() {
                        continue;
                    }
                    let (duration, verify) = (Duration::from_millis(10), threads == 1);
                    let sample = files.run(&Slice { threads, duration, verify, cancel: &cancel }).unwrap();
                    assert!(sample.ops >= threads as u64, "{op:?}");
                    assert_eq!(files.store.as_ref().unwrap().list().unwrap(), 20, "{op:?}");
                }
            }
        }
    }
}

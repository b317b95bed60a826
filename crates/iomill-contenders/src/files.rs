//! Many small files: made, looked up, opened, read, deleted and listed, in an array, as plain files, and in other stores.
//!
//! Goals: all make the same promises. What was made or deleted survives a power failure when the call returns. Non-goals: large files.

use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use iomill::sys::memory::PageBuf;
use iomill::{Array, ArrayOptions, Error, Layout, Result};

use crate::contender::{Cache, Contender, Sample, Slice};
use crate::pattern::{self, PAGE_BYTES};
use crate::task::Task;
use crate::threads::{self, Count, goes_on};

/// Bytes of each file.
pub const FILE_BYTES: usize = 5000;
/// Of short operations one in so many is timed by itself.
const OPS_PER_TIME: u64 = 16;

/// What is done with files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileOp {
    /// A new file with its bytes, durable.
    Create,
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
pub const FILE_OPS: [FileOp; 6] =
    [FileOp::Create, FileOp::Stat, FileOp::Open, FileOp::Read, FileOp::Delete, FileOp::List];

/// One operation among so many files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileWork {
    /// The operation.
    pub op: FileOp,
    /// Files that are there meanwhile.
    pub files: u32,
}

impl fmt::Display for FileWork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let files = self.files;
        match self.op {
            FileOp::Create => write!(f, "create-{FILE_BYTES}B"),
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

/// Where files are.
pub trait Store: Send + Sync {
    /// Why it cannot do an operation in a comparable way.
    fn lacks(&self, _: FileOp) -> Option<&'static str> {
        None
    }

    /// Makes a file with these bytes, durably.
    fn create(&self, name: &str, bytes: &[u8]) -> Result<()>;

    /// The length of a file.
    fn stat(&self, name: &str) -> Result<u64>;

    /// Opens a file, and closes it.
    fn open(&self, name: &str) -> Result<()>;

    /// Opens a file, reads its first page, and closes it. Not from a cache, if the store can do without.
    fn read(&self, name: &str, page: &mut [u8]) -> Result<()>;

    /// Deletes a file, durably.
    fn delete(&self, name: &str) -> Result<()>;

    /// How many files there are, with each name looked at.
    fn list(&self) -> Result<u64>;
}

/// A contender over a store.
pub struct Files {
    name: &'static str,
    make: Box<dyn Fn() -> Result<Box<dyn Store>>>,
    /// It is open from the first measurement to the last.
    store: Option<Box<dyn Store>>,
    work: FileWork,
    /// The files that stay.
    pool: Vec<String>,
    notes: Vec<String>,
}

impl Files {
    /// A store that `make` opens.
    pub fn new(name: &'static str, make: impl Fn() -> Result<Box<dyn Store>> + 'static) -> Files {
        let work = FileWork { op: FileOp::Create, files: 1 };
        Files { name, make: Box::new(make), store: None, work, pool: Vec::new(), notes: Vec::new() }
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

    /// Says something about its figures.
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
        let lacks = store.lacks(work.op).map(str::to_owned);
        // Files that are made or deleted are made among these, too.
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
        match self.work.op {
            FileOp::Create => create(slice, store, &content(), |number| format!("new/file-{number:08}")),
            FileOp::Delete => delete(slice, store, self.pool.len().min(1000)),
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

/// Makes files of these bytes, at least a page, checks them if asked to, and deletes them. `name` names them.
pub(crate) fn create(
    slice: &Slice<'_>,
    store: &dyn Store,
    bytes: &[u8],
    name: impl Fn(u64) -> String + Sync,
) -> Result<Sample> {
    let made = AtomicU64::new(0);
    let sample = threads::run(
        slice,
        |_| Ok(()),
        |(), stop: &AtomicBool| {
            let mut count = Count::new()?;
            while goes_on(count.ops, stop) {
                let (name, start) = (name(made.fetch_add(1, Ordering::Relaxed)), Instant::now());
                store.create(&name, bytes)?;
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
fn delete(slice: &Slice<'_>, store: &dyn Store, files: usize) -> Result<Sample> {
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
            while let Some(name) = first.take().or_else(|| if goes_on(count.ops, stop) { take() } else { None }) {
                let start = Instant::now();
                store.delete(name)?;
                count.record(start.elapsed());
                count.ops += 1;
            }
            Ok(count)
        },
    )?;
    // A thread takes one name more than it deletes only when none is left.
    names.iter().skip(next.into_inner() as usize).try_for_each(|name| store.delete(name))?;
    Ok(sample)
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

impl Store for Array {
    fn create(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let file = self.create_file(name, Layout::default())?;
        file.write_at(bytes, 0)?;
        file.close()
    }

    fn stat(&self, name: &str) -> Result<u64> {
        Ok(Array::stat(self, name)?.len_bytes)
    }

    fn open(&self, name: &str) -> Result<()> {
        drop(self.open_file(name)?);
        Ok(())
    }

    fn read(&self, name: &str, page: &mut [u8]) -> Result<()> {
        self.open_file(name)?.read_at(page, 0).map(drop)
    }

    fn delete(&self, name: &str) -> Result<()> {
        Array::delete(self, name)
    }

    fn list(&self) -> Result<u64> {
        Ok(Array::list(self, "").iter().map(|name| u64::from(!name.is_empty())).sum())
    }
}

/// Plain files in a directory.
pub(crate) struct Directory(pub(crate) PathBuf);

impl Directory {
    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name.replace('/', "-"))
    }

    fn sync(&self) -> Result<()> {
        let directory = fs::File::open(&self.0).map_err(|e| Error::io("open", &self.0, e))?;
        directory.sync_all().map_err(|e| Error::io("sync", &self.0, e))
    }
}

impl Store for Directory {
    fn create(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let path = self.path(name);
        let mut file = fs::File::create_new(&path).map_err(|e| Error::io("create", &path, e))?;
        file.write_all(bytes).map_err(|e| Error::io("write", &path, e))?;
        file.sync_all().map_err(|e| Error::io("sync", &path, e))?;
        self.sync()
    }

    fn stat(&self, name: &str) -> Result<u64> {
        let path = self.path(name);
        Ok(fs::metadata(&path).map_err(|e| Error::io("stat", &path, e))?.len())
    }

    fn open(&self, name: &str) -> Result<()> {
        let path = self.path(name);
        fs::File::open(&path).map(drop).map_err(|e| Error::io("open", &path, e))
    }

    fn read(&self, name: &str, page: &mut [u8]) -> Result<()> {
        let path = self.path(name);
        let opened = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&path);
        let file = match opened {
            // Without direct I/O the page cache is all that there is.
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => fs::File::open(&path),
            opened => opened,
        };
        let read = file.map_err(|e| Error::io("open", &path, e))?.read_exact_at(page, 0);
        read.map_err(|e| Error::io("read", &path, e))
    }

    fn delete(&self, name: &str) -> Result<()> {
        let path = self.path(name);
        fs::remove_file(&path).map_err(|e| Error::io("remove", &path, e))?;
        self.sync()
    }

    fn list(&self) -> Result<u64> {
        let failed = |e| Error::io("list", &self.0, e);
        let mut found = 0;
        for entry in fs::read_dir(&self.0).map_err(failed)? {
            found += u64::from(!entry.map_err(failed)?.file_name().is_empty());
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
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
        for mut files in [array, Files::plain("plain", &plain)] {
            for op in FILE_OPS {
                for threads in [1, 3] {
                    assert_eq!(files.prepare(&FileWork { op, files: 20 }).unwrap(), None);
                    let (duration, verify) = (Duration::from_millis(10), threads == 1);
                    let sample = files.run(&Slice { threads, duration, verify, cancel: &cancel }).unwrap();
                    assert!(sample.ops >= threads as u64, "{op:?}");
                    assert_eq!(files.store.as_ref().unwrap().list().unwrap(), 20, "{op:?}");
                }
            }
        }
    }
}

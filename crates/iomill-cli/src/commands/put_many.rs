//! `iomill put` of several files and of directories.
//!
//! Goals: small files share fsyncs, so that thousands take seconds; a file that fails keeps no other one out.
//! Non-goals: empty directories, owners, modes and times, which an array does not have.

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use iomill::{Answer as Begun, Array, FileStat, PutOptions, When, block_on};
use serde_json::{Value, json};

use super::files::several;
use super::put_one;
use crate::arguments::Put;
use crate::console::Answer;
use crate::context::Context;
use crate::failure::{Failure, Result, shown};
use crate::human;
use crate::interrupt::Interrupt;
use crate::naming;
use crate::progress::Progress;
use crate::source::Source;

/// A file up to this length is read as a whole, and put beside others.
const SMALL_BYTES: u64 = 1 << 20;

/// The most small files that are put at a time, and the most bytes of all of them.
const IN_FLIGHT: usize = 512;
const IN_FLIGHT_BYTES: u64 = 64 << 20;

/// A file to copy.
#[derive(Debug)]
struct Item {
    path: PathBuf,
    name: String,
    bytes: u64,
}

pub fn run(context: &Context<'_>, arguments: &Put, sources: &[PathBuf], target: Option<&str>) -> Result<Answer> {
    let interrupt = Interrupt::install()?;
    context.with_writer(|array| {
        let mut found = Found { own: own_directories(array)?, ..Found::default() };
        for source in sources {
            found.take(source, target, arguments.recursive, &interrupt)?;
        }
        context.note(std::mem::take(&mut found.notes));
        let items = distinct(std::mem::take(&mut found.items))?;
        let progress = Progress::new(context.global, Some(items.iter().map(|item| item.bytes).sum()));
        let mut work = Work {
            array,
            arguments,
            progress,
            interrupt,
            begun: VecDeque::new(),
            begun_bytes: 0,
            done: Vec::new(),
            bytes: 0,
            failures: found.failures,
        };
        if let Err(failure) = work.run(&items) {
            // The files in flight are put into the array in any case, so they count. A failure of one would repeat the
            // first failure.
            while !work.begun.is_empty() {
                let _repeated = work.settle();
            }
            let put =
                format!("{} of {} files are in the array, and no other is there in part", work.done.len(), items.len());
            work.failures.push(failure.and(put));
        }
        let seconds = work.progress.seconds();
        let document = json!({
            "files": work.done, "bytes": work.bytes, "seconds": seconds,
            "bytes_per_second": human::per_second(work.bytes, seconds),
        });
        Ok(Answer { failures: work.failures, ..Answer::new("", document) })
    })
}

/// A directory as the kernel knows it: the device and the inode.
type Directory = (u64, u64);

/// The directories in which the array keeps what it stores. The files in them would grow with each copy.
fn own_directories(array: &Array) -> Result<Vec<Directory>> {
    let directory = |path: PathBuf| {
        let found = fs::metadata(&path).map_err(Failure::local("examine", &path))?;
        Ok((found.dev(), found.ino()))
    };
    array.info()?.drives.into_iter().map(|drive| directory(drive.path.join("iomill"))).collect()
}

/// The files of the sources.
#[derive(Default)]
struct Found {
    /// Directories of the array itself, which are left out.
    own: Vec<Directory>,
    items: Vec<Item>,
    failures: Vec<Failure>,
    notes: Vec<String>,
}

impl Found {
    /// Takes in a source, or all files below it.
    fn take(&mut self, source: &Path, target: Option<&str>, recursive: bool, interrupt: &Interrupt) -> Result<()> {
        let is_directory = !Source::is_stdin(source) && source.is_dir();
        if !is_directory {
            let bytes = fs::metadata(source).map_or(0, |found| found.len());
            self.items.push(Item { path: source.to_owned(), name: naming::for_source(source, target)?, bytes });
            return Ok(());
        }
        if !recursive {
            let why =
                std::io::Error::new(std::io::ErrorKind::IsADirectory, "it is a directory; `-r` copies all files in it");
            self.failures.push(Failure::local("read", source)(why));
            return Ok(());
        }
        // As with `cp -r`: `dir/.` is the content of the directory, and a target that is no prefix replaces its name.
        let inside = matches!(source.as_os_str().as_encoded_bytes(), [.., b'/', b'.'] | b".");
        let base = match target {
            Some(name) if !name.ends_with('/') => format!("{name}/"),
            prefix if inside => prefix.unwrap_or_default().to_owned(),
            prefix => format!("{}/", naming::for_source(source, prefix)?),
        };
        self.walk(source, base, interrupt)
    }

    /// Takes in all files below a directory, in the order of their names. A tree may take minutes, so signals end this.
    fn walk(&mut self, directory: &Path, base: String, interrupt: &Interrupt) -> Result<()> {
        let mut waiting = vec![(directory.to_owned(), base)];
        while let Some((directory, base)) = waiting.pop() {
            interrupt.check()?;
            let is_own = |found: fs::Metadata| self.own.contains(&(found.dev(), found.ino()));
            if fs::metadata(&directory).is_ok_and(is_own) {
                self.notes.push(format!("{} is left out: the array itself is in it", shown(&directory)));
                continue;
            }
            let entries = fs::read_dir(&directory).and_then(Iterator::collect::<std::io::Result<Vec<_>>>);
            let mut entries = match entries {
                Ok(entries) => entries,
                Err(error) => {
                    self.failures.push(Failure::local("list", &directory)(error));
                    continue;
                }
            };
            entries.sort_by_key(fs::DirEntry::file_name);
            let mut below = Vec::new();
            for entry in entries {
                let path = entry.path();
                let Some(name) = entry.file_name().to_str().map(|name| format!("{base}{name}")) else {
                    let why = "is not UTF-8, as names in an array are; copy it by itself, with a name";
                    self.failures.push(Failure::Usage(format!("the file name of {} {why}", shown(&path))));
                    continue;
                };
                let name = match naming::checked(name) {
                    Ok(name) => name,
                    Err(failure) => {
                        self.failures.push(failure);
                        continue;
                    }
                };
                match fs::metadata(&path) {
                    Ok(found) if found.is_file() => self.items.push(Item { path, name, bytes: found.len() }),
                    Ok(found) if found.is_dir() && !path.is_symlink() => below.push((path, format!("{name}/"))),
                    Ok(_) => self.notes.push(format!("{} is left out: it is no file and no directory", shown(&path))),
                    Err(error) => self.failures.push(Failure::local("open", &path)(error)),
                }
            }
            waiting.extend(below.into_iter().rev());
        }
        Ok(())
    }
}

/// Refuses two sources for one name: the later one would replace the other, or fail.
fn distinct(items: Vec<Item>) -> Result<Vec<Item>> {
    let mut names: BTreeMap<&str, &Path> = BTreeMap::new();
    for item in &items {
        if let Some(other) = names.insert(&item.name, &item.path) {
            let (one, other) = (shown(other), shown(&item.path));
            return Err(Failure::Usage(format!("{one} and {other} would both be the file {:?}", item.name)));
        }
    }
    Ok(items)
}

/// The copy of several files.
struct Work<'a> {
    array: &'a Array,
    arguments: &'a Put,
    progress: Progress,
    interrupt: Interrupt,
    /// Small files that are under way, the oldest first.
    begun: VecDeque<(Value, u64, Begun<FileStat>)>,
    begun_bytes: u64,
    done: Vec<Value>,
    bytes: u64,
    failures: Vec<Failure>,
}

impl Work<'_> {
    /// Copies all files. An error keeps the others out, too.
    fn run(&mut self, items: &[Item]) -> Result<()> {
        for item in items {
            let copied = self.interrupt.check().and_then(|()| self.copy(item));
            several(copied, &mut self.failures)?;
            while self.begun.len() >= IN_FLIGHT || self.begun_bytes > IN_FLIGHT_BYTES {
                self.settle()?;
            }
            self.progress.count(self.done.len(), items.len());
        }
        while !self.begun.is_empty() {
            self.interrupt.check()?;
            self.settle()?;
            self.progress.count(self.done.len(), items.len());
        }
        Ok(())
    }

    fn copy(&mut self, item: &Item) -> Result<()> {
        let replaces = naming::refuse_taken(self.array, &item.name, self.arguments.force)?;
        let mut source = Source::open_until(&item.path, &self.interrupt)?;
        if source.len_bytes().is_none_or(|len| len > SMALL_BYTES) || source.has_holes() {
            let (progress, interrupt) = (&mut self.progress, &self.interrupt);
            let bytes = put_one::copy(self.array, source, &item.name, replaces, self.arguments, progress, interrupt)?;
            self.note(json!({ "name": item.name, "bytes": bytes, "replaced": replaces }), bytes);
            return Ok(());
        }
        let content = source.read_all()?;
        let bytes = content.len() as u64;
        let when = if replaces { When::Always } else { When::Absent };
        let options = PutOptions::new().file(put_one::file_options(self.arguments)).when(when);
        let begun = self.array.put_async(&item.name, content, &options);
        let document = json!({ "name": item.name, "bytes": bytes, "replaced": replaces });
        self.begun.push_back((document, bytes, begun));
        self.begun_bytes += bytes;
        Ok(())
    }

    /// Waits for the oldest file that is under way.
    fn settle(&mut self) -> Result<()> {
        let Some((document, bytes, begun)) = self.begun.pop_front() else { return Ok(()) };
        self.begun_bytes -= bytes;
        let ended = block_on(begun).and_then(|stat| stat).map_err(Failure::from);
        if ended.is_ok() {
            self.progress.advance(bytes);
            self.note(document, bytes);
        }
        several(ended.map(drop), &mut self.failures)
    }

    fn note(&mut self, document: Value, bytes: u64) {
        self.done.push(document);
        self.bytes += bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seen to fail when only the copy looked for signals: a tree of `/` was listed for minutes after the first one.
    #[test]
    fn a_signal_ends_the_listing_of_a_tree() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("f"), "content").unwrap();
        let take = |interrupt| {
            let mut found = Found::default();
            found.take(directory.path(), None, true, &interrupt).map(|()| found.items.len())
        };
        assert_eq!(take(Interrupt::after(0)).unwrap(), 1);
        let stopped = take(Interrupt::after(libc::SIGTERM));
        assert!(matches!(stopped, Err(Failure::Interrupted { signal: libc::SIGTERM })), "{stopped:?}");
    }
}

//! `iomill get` of several files.
//!
//! Rules:
//! 1. Each file appears whole or not at all: its name follows when its bytes are durable. Small files share the fsync
//!    before it.
//! 2. A file that fails keeps no other one out.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use iomill::{Array, Buffer};
use serde_json::{Value, json};

use super::files::several;
use crate::arguments::Get;
use crate::console::Answer;
use crate::context::Context;
use crate::destination::{Destination, covered};
use crate::failure::{Failure, Result};
use crate::human;
use crate::interrupt::Interrupt;
use crate::progress::Progress;
use crate::pump;
use crate::selection::{Selected, Selection};

/// A file up to this length is copied by one read, and shares its fsync.
const SMALL_BYTES: u64 = 1 << 20;

/// The number of small files that share an fsync. Each has a descriptor until then.
const TOGETHER: usize = 100;

pub fn run(
    context: &Context<'_>,
    array: &Array,
    arguments: &Get,
    selections: Vec<Result<Selection>>,
    dest: &Path,
    interrupt: Interrupt,
) -> Result<Answer> {
    let (mut files, mut failures, mut has_root) = (Vec::new(), Vec::new(), false);
    for selection in selections {
        match selection {
            Ok(selection) => {
                has_root = selection.has_root;
                files.extend(selection.files);
            }
            Err(failure) => failures.push(failure),
        }
    }
    // As with `cp -r`: the files of a single name get the name of a destination that does not exist yet.
    let is_alone = arguments.to.is_none() && arguments.operands.len() == 2;
    if is_alone && has_root && !is_directory(dest) {
        for selected in &mut files {
            if let Some((_, rest)) = selected.relative.split_once('/') {
                selected.relative = rest.to_owned();
            }
        }
    }
    let files = distinct(files)?;
    let work = Work {
        array,
        force: arguments.force,
        dest,
        progress: Progress::new(context.global, Some(files.iter().map(|file| file.file.len_bytes).sum())),
        interrupt,
        buffer: array.buffer(SMALL_BYTES as usize)?,
        waiting: Vec::new(),
        directories: BTreeMap::new(),
        done: Vec::new(),
        bytes: 0,
        failures,
    };
    Ok(work.answer(&files))
}

/// Takes a file once that several arguments name. Refuses two files for one path: the later one would replace the
/// other.
fn distinct(files: Vec<Selected>) -> Result<Vec<Selected>> {
    let mut names: BTreeMap<String, String> = BTreeMap::new();
    let mut once = Vec::with_capacity(files.len());
    for selected in files {
        let (name, relative) = (&selected.file.name, &selected.relative);
        match names.insert(relative.clone(), name.clone()) {
            None => once.push(selected),
            Some(other) if other == *name => {}
            Some(other) => {
                let why = format!("{other:?} and {name:?} would both be the file {relative:?} below the destination");
                return Err(Failure::Usage(why));
            }
        }
    }
    Ok(once)
}

pub fn is_directory(dest: &Path) -> bool {
    dest.is_dir() || dest.as_os_str().as_encoded_bytes().ends_with(b"/")
}

/// Makes all names in the file system of a directory durable.
pub fn sync_names(directory: &Path) -> Result<()> {
    let synced = fs::File::open(directory).and_then(|opened| Ok(rustix::fs::syncfs(opened)?));
    synced.map_err(Failure::local("sync", directory))
}

struct Work<'a> {
    array: &'a Array,
    force: bool,
    dest: &'a Path,
    progress: Progress,
    interrupt: Interrupt,
    buffer: Buffer,
    /// Small files that are written, and wait for the fsync and their names (rule 1).
    waiting: Vec<(String, u64, Destination)>,
    /// A directory of each file system that got a file, by its device.
    directories: BTreeMap<u64, PathBuf>,
    done: Vec<Value>,
    bytes: u64,
    failures: Vec<Failure>,
}

impl Work<'_> {
    fn answer(mut self, files: &[Selected]) -> Answer {
        let copied = self.run(files);
        // Files that are written get their names, also after a failure. All names become durable, also after another.
        let (named, synced) = (self.name_waiting(), self.sync_names());
        if let Err(failure) = copied.and(named).and(synced) {
            self.failures.push(failure.and(format!("{} of {} files are copied", self.done.len(), files.len())));
        }
        let seconds = self.progress.seconds();
        let document = json!({
            "files": self.done, "bytes": self.bytes, "seconds": seconds,
            "bytes_per_second": human::per_second(self.bytes, seconds),
        });
        Answer { failures: self.failures, ..Answer::new("", document) }
    }

    fn run(&mut self, files: &[Selected]) -> Result<()> {
        for file in files {
            let copied = self.interrupt.check().and_then(|()| self.copy(file));
            several(copied, &mut self.failures)?;
            if self.waiting.len() == TOGETHER {
                self.name_waiting()?;
            }
            self.progress.count(self.done.len(), files.len());
        }
        Ok(())
    }

    fn copy(&mut self, selected: &Selected) -> Result<()> {
        let (name, path) = (&selected.file.name, self.dest.join(&selected.relative));
        let directory = path.parent().unwrap_or(self.dest).to_owned();
        fs::create_dir_all(&directory).map_err(Failure::local("make the directory", &directory))?;
        let file = self.array.open_file(name)?;
        // A directory there is not one to write into: the path in it may be that of another file.
        if path.is_dir() {
            return Err(covered(&path));
        }
        let destination = Destination::open_until(Some(&path), name, self.force, &self.interrupt)?;
        self.directories.entry(destination.device()?).or_insert(directory);
        // A write to a pipe may wait for ever, and `drain` looks for signals meanwhile.
        if file.len() > SMALL_BYTES || destination.is_in_place() {
            let bytes = pump::drain(self.array, &file, &destination, &mut self.progress, &self.interrupt)?;
            let place = destination.finish()?;
            self.note(name, bytes, place);
            return Ok(());
        }
        let len = file.read_at(&mut self.buffer, 0)?;
        destination.write(&self.buffer[..len])?;
        self.waiting.push((name.clone(), len as u64, destination));
        Ok(())
    }

    /// Makes the bytes of small files durable, and gives the files their names. After a failed sync none of them gets
    /// its name, also not by another call: the kernel reports lost bytes once, and the next sync succeeds without them.
    fn name_waiting(&mut self) -> Result<()> {
        let waiting = std::mem::take(&mut self.waiting);
        let mut synced = BTreeSet::new();
        for (_, _, destination) in &waiting {
            if synced.insert(destination.device()?) {
                destination.sync_file_system()?;
            }
        }
        for (name, bytes, destination) in waiting {
            match destination.publish() {
                Ok(place) => {
                    self.progress.advance(bytes);
                    self.note(&name, bytes, place);
                }
                failed => several(failed.map(drop), &mut self.failures)?,
            }
        }
        Ok(())
    }

    fn sync_names(&self) -> Result<()> {
        self.directories.values().try_for_each(|directory| sync_names(directory))
    }

    fn note(&mut self, name: &str, bytes: u64, place: String) {
        self.done.push(json!({ "name": name, "bytes": bytes, "destination": place }));
        self.bytes += bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::{self, Global};

    fn global() -> Global {
        arguments::parse(["iomill", "info"]).unwrap().global
    }

    /// Seen to fail when the files of a failed sync waited for the next one, which succeeds: they got their names.
    #[test]
    fn a_failed_sync_names_none_of_its_files() {
        let (drive, dest) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let array = Array::create([drive.path()]).unwrap();
        let mut work = Work {
            array: &array,
            force: false,
            dest: dest.path(),
            progress: Progress::new(&global(), Some(3)),
            interrupt: Interrupt::after(0),
            buffer: array.buffer(SMALL_BYTES as usize).unwrap(),
            waiting: vec![("a".to_owned(), 3, Destination::without_sync(&dest.path().join("a")))],
            directories: BTreeMap::new(),
            done: Vec::new(),
            bytes: 0,
            failures: Vec::new(),
        };
        assert_eq!(work.name_waiting().unwrap_err().kind(), "local");
        assert!(work.waiting.is_empty());
        work.name_waiting().unwrap();
        assert!(work.done.is_empty());
        assert_eq!(fs::read_dir(dest.path()).unwrap().count(), 0);
        drop(work);
        array.close().unwrap();
    }
}

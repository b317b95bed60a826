//! [`Walk`]: the files below a directory, in the order of the bytes of their names, which are their paths. It keeps the
//! names in the directories on the way to one file, and in no others. Non-goals: which threads may wait for it.

use std::collections::VecDeque;
use std::fs::{self, DirEntry};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::common::{Fault, Kind, Result, kind_of_io};
use crate::known::{Entry, Meta};
use crate::stamp::Stamp;

/// See the module.
#[derive(Debug)]
pub struct Walk {
    root: PathBuf,
    prefix: String,
    /// Names up to this one are left out.
    after: Option<String>,
    delimiter: Option<char>,
    /// The last common prefix, which is shown once.
    shown: Option<String>,
    /// `None` before the first directory is read.
    levels: Option<Vec<Level>>,
}

/// A directory that is being walked.
#[derive(Debug)]
struct Level {
    /// Device and inode, to find links that lead back.
    identity: (u64, u64),
    children: VecDeque<Result<String>>,
}

impl Walk {
    pub fn new(root: &Path, prefix: &str, after: Option<&str>, delimiter: Option<char>) -> Walk {
        let (root, prefix, after) = (root.to_owned(), prefix.to_owned(), after.map(str::to_owned));
        let levels = is_of_no_name(&prefix).then(Vec::new);
        Walk { root, prefix, after, delimiter, shown: None, levels }
    }

    /// Reads a directory. Its name ends with `/`, or is empty for the root. `None` if the directory no longer exists.
    fn read(&self, name: &str) -> Result<Option<Level>> {
        let path = self.root.join(name);
        let read = || -> io::Result<_> {
            let metadata = fs::metadata(&path)?;
            Ok(((metadata.dev(), metadata.ino()), fs::read_dir(&path)?.collect::<io::Result<Vec<_>>>()?))
        };
        let (identity, entries) = match read() {
            Ok(read) => read,
            Err(error) if kind_of_io(&error) == Kind::NotFound => return Ok(None),
            Err(error) => return Err(failed("list", &path, &error)),
        };
        let ancestors = self.levels.iter().flatten();
        if ancestors.into_iter().any(|level| level.identity == identity) {
            let why = format!("the symbolic link {} leads to a directory above itself; remove it", path.display());
            return Err(Fault::other(why));
        }
        // Names outside the prefix are not looked at, and their faults are not the listing's.
        let rest = self.prefix.get(name.len()..).unwrap_or_default();
        let asked = entries.iter().filter(|entry| entry.file_name().as_bytes().starts_with(rest.as_bytes()));
        let mut children: Vec<Result<String>> = asked.filter_map(|entry| child(name, entry).transpose()).collect();
        // Faults come first.
        children.sort_by(|a, b| a.as_ref().ok().cmp(&b.as_ref().ok()));
        Ok(Some(Level { identity, children: children.into() }))
    }

    /// Enters a directory.
    fn descend(&mut self, name: &str) -> Result<()> {
        let level = self.read(name)?;
        self.levels.get_or_insert_default().extend(level);
        Ok(())
    }

    /// The next child of the innermost directory that has one.
    fn next_child(&mut self) -> Option<Result<String>> {
        let levels = self.levels.as_mut()?;
        loop {
            if let Some(child) = levels.last_mut()?.children.pop_front() {
                return Some(child);
            }
            levels.pop();
        }
    }

    /// The entry of a child, if it is shown. The child's name begins with the prefix. Enters a directory that may have
    /// more.
    fn visit(&mut self, name: String) -> Option<Result<Entry>> {
        let is_directory = name.ends_with('/');
        let is_passed = |name: &str| self.after.as_ref().is_some_and(|after| name <= after.as_str());
        let within = self.delimiter.and_then(|delimiter| {
            let at = name[self.prefix.len()..].find(delimiter)?;
            Some(self.prefix.len() + at + delimiter.len_utf8())
        });
        if let Some(end) = within {
            let common = &name[..end];
            if is_passed(common) || self.shown.as_deref() == Some(common) {
                return None;
            }
            self.shown = Some(common.to_owned());
            return Some(Ok(Entry::Prefix(common.to_owned())));
        }
        if is_directory {
            let may_have_more = !is_passed(&name) || self.after.as_ref().is_some_and(|after| after.starts_with(&name));
            return if may_have_more { self.descend(&name).err().map(Err) } else { None };
        }
        if is_passed(&name) || is_unfinished(&name) {
            return None;
        }
        self.file(name).transpose()
    }

    /// `None` if it is gone, or no ordinary file.
    fn file(&self, name: String) -> Result<Option<Entry>> {
        let path = self.root.join(&name);
        match fs::metadata(&path) {
            Ok(metadata) if metadata.is_file() => Ok(Some(Entry::Object(name, Meta::of_file(&Stamp::of(&metadata))))),
            Ok(_) => Ok(None),
            Err(error) if kind_of_io(&error) == Kind::NotFound => Ok(None),
            Err(error) => Err(failed("examine", &path, &error)),
        }
    }
}

impl Iterator for Walk {
    type Item = Result<Entry>;

    fn next(&mut self) -> Option<Result<Entry>> {
        if self.levels.is_none() {
            self.levels = Some(Vec::new());
            let directory = self.prefix.rfind('/').map_or(0, |at| at + 1);
            let directory = self.prefix[..directory].to_owned();
            if let Err(fault) = self.descend(&directory) {
                return Some(Err(fault));
            }
        }
        loop {
            let shown = match self.next_child()? {
                Ok(name) => self.visit(name),
                Err(fault) => Some(Err(fault)),
            };
            if shown.is_some() {
                return shown;
            }
        }
    }
}

/// Whether no name has this prefix. As a path it might lead out of the root.
fn is_of_no_name(prefix: &str) -> bool {
    let Some((whole, _)) = prefix.rsplit_once('/') else { return false };
    whole.split('/').any(|segment| ["", ".", ".."].contains(&segment))
}

/// The name of an entry of the directory `above`. Names of directories end with `/`. `None` for a link to nothing.
fn child(above: &str, entry: &DirEntry) -> Result<Option<String>> {
    let path = entry.path();
    let Ok(name) = entry.file_name().into_string() else {
        let why = format!("the name of {} is not UTF-8, and so is no path of an object; rename it", path.display());
        return Err(Fault::other(why));
    };
    let mut kind = entry.file_type().map_err(|e| failed("examine", &path, &e))?;
    if kind.is_symlink() {
        match fs::metadata(&path) {
            Ok(metadata) => kind = metadata.file_type(),
            Err(error) if kind_of_io(&error) == Kind::NotFound => return Ok(None),
            Err(error) => return Err(failed("follow the symbolic link", &path, &error)),
        }
    }
    Ok(Some([above, &name, if kind.is_dir() { "/" } else { "" }].concat()))
}

fn failed(what: &str, path: &Path, error: &io::Error) -> Fault {
    Fault::new(kind_of_io(error), format!("cannot {what} {}: {error}", path.display()))
}

/// Whether a file is an upload that `LocalFileSystem` has not finished: its name is that of the object, `#` and a
/// number.
pub(super) fn is_unfinished(name: &str) -> bool {
    let Some((_, number)) = name.rsplit('/').next().and_then(|file| file.split_once('#')) else { return false };
    !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
}

//! [`Roster`]: the directories that have been drives of a cache. Each of its drives has the list. A directory of the
//! list without a label is the mount point of an unmounted drive, or a drive that was emptied. Neither may become a new
//! drive by itself. Non-goals: the steps of making a drive (`label`).
//!
//! In a cache of one drive, no other drive has a roster. So a mark beside the mount point, in the directory above it,
//! takes its place: rule M2 of `docs/origin.md`.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::label::{self, Label, summed, unsummed};
use crate::options::Options;

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roster {
    /// Paths as [`name_of`] writes them, and the drives that were last opened there.
    drives: Vec<(String, u128)>,
}

const TITLE: &str = "iomill-origin roster 1";
/// The most directories in the list. The newest ones stay.
const MOST: usize = 4096;

/// The path as text on one line, with any bytes.
fn name_of(dir: &Path) -> String {
    format!("{dir:?}")
}

fn path_of(home: &Path) -> PathBuf {
    home.join("roster")
}

impl Roster {
    /// The list of a drive. A damaged list counts as empty, and is written anew.
    pub fn read(home: &Path) -> Result<Roster> {
        match fs::read_to_string(path_of(home)) {
            Ok(text) => Ok(Roster::parse(&text).unwrap_or_default()),
            Err(e) if [io::ErrorKind::NotFound, io::ErrorKind::InvalidData].contains(&e.kind()) => {
                Ok(Roster::default())
            }
            Err(e) => Err(Error::io("read", path_of(home))(e)),
        }
    }

    fn parse(text: &str) -> Option<Roster> {
        let mut lines = unsummed(text)?.lines();
        lines.next().filter(|title| *title == TITLE)?;
        let drive = |line: &str| {
            let (id, name) = line.split_once(' ')?;
            Some((name.to_owned(), u128::from_str_radix(id, 16).ok()?))
        };
        Some(Roster { drives: lines.map(drive).collect::<Option<_>>()? })
    }

    fn text(&self) -> String {
        let lines: String = self.drives.iter().map(|(name, id)| format!("{id:032x} {name}\n")).collect();
        summed(&format!("{TITLE}\n{lines}"))
    }

    fn add(&mut self, name: String, drive: u128) {
        if self.drives.contains(&(name.clone(), drive)) {
            return;
        }
        self.drives.retain(|(other, _)| *other != name);
        self.drives.push((name, drive));
        let extra = self.drives.len().saturating_sub(MOST);
        self.drives.drain(..extra);
    }

    /// Adds the list of another drive.
    pub fn extend(&mut self, other: Roster) {
        other.drives.into_iter().for_each(|(name, drive)| self.add(name, drive));
    }

    pub fn has(&self, dir: &Path) -> bool {
        let name = name_of(dir);
        self.drives.iter().any(|(other, _)| *other == name)
    }

    /// Writes to the drive of `home` the directories that are drives now. The caller holds the drive's lock.
    pub fn note(home: &Path, drives: &[(PathBuf, u128)]) -> Result<()> {
        let was = Roster::read(home)?;
        let mut now = was.clone();
        drives.iter().for_each(|(dir, drive)| now.add(name_of(dir), *drive));
        if now == was { Ok(()) } else { label::write_whole(home, "roster", &now.text()) }
    }
}

/// The mark beside a mount point.
fn mark_of(dir: &Path) -> Option<PathBuf> {
    let mut name = std::ffi::OsString::from(".iomill-origin-");
    name.push(dir.file_name()?);
    Some(dir.parent()?.join(name))
}

fn device_of(path: &Path) -> Result<u64> {
    fs::metadata(path).map(|found| found.dev()).map_err(Error::io("examine", path))
}

/// Rule M2: leaves a mark beside a drive that is mounted at `dir`. Directly below `/` no mark is needed, because no
/// drive is made there.
pub fn mark(dir: &Path) -> Result<()> {
    let (Some(above), Some(mark)) = (dir.parent(), mark_of(dir)) else { return Ok(()) };
    let device = device_of(above)?;
    if device == device_of(dir)? || device == device_of(Path::new("/"))? || is_there(&mark)? {
        return Ok(());
    }
    // Through no link: the directory above may be writable by others.
    let made = fs::File::create_new(&mark)
        .and_then(|mut file| file.write_all(b"A drive of a cache of iomill-origin is mounted beside this file.\n"));
    match made {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        // Then the mount point is another user's, too, so nothing can be made in it.
        Err(e) if [io::ErrorKind::PermissionDenied, io::ErrorKind::ReadOnlyFilesystem].contains(&e.kind()) => Ok(()),
        made => made.map_err(Error::io("write", mark)),
    }
}

/// Whether a directory has an entry of this name, whatever it is.
fn is_there(path: &Path) -> Result<bool> {
    match fs::symlink_metadata(path) {
        Ok(_) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(Error::io("examine", path)(e)),
    }
}

/// Whether a directory without a label may become a drive. `roster` is the list of the other drives of the cache.
pub fn may_begin(dir: &Path, options: &Options, roster: &Roster) -> Result<()> {
    match fs::metadata(dir) {
        Ok(found) if found.is_dir() => {}
        Ok(_) => return Err(Error::NoDirectory { path: dir.into() }),
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(Error::NoDirectory { path: dir.into() }),
        Err(e) => return Err(Error::io("examine", dir)(e)),
    }
    if is_there(&label::path_of(&dir.join("iomill-origin")))? {
        return Ok(());
    }
    if !options.on_root && device_of(dir)? == device_of(Path::new("/"))? {
        return Err(Error::Unmounted { path: dir.into() });
    }
    let has_been_one = || Ok::<_, Error>(roster.has(dir) || mark_of(dir).map_or(Ok(false), |mark| is_there(&mark))?);
    if !options.anew && has_been_one()? { Err(Error::Gone { path: dir.into() }) } else { Ok(()) }
}

/// The contents of a directory before it is opened.
#[derive(Debug)]
pub struct Looked {
    /// Its device and inode. `None`: it does not exist.
    pub place: Option<(u64, u64)>,
    found: Found,
}

#[derive(Debug)]
enum Found {
    /// A drive of this cache, with the drive's list.
    Drive(u128, Roster),
    /// A directory that may become a drive.
    Empty,
    /// Neither, so far.
    Unclear(Error),
}

/// Examines a directory. Problems of a drive beside others are reported when it is opened.
pub fn look(dir: &Path, options: &Options) -> Looked {
    let home = dir.join("iomill-origin");
    let place = fs::metadata(dir).map(|found| (found.dev(), found.ino())).ok();
    let found = match Label::read(&home) {
        Ok(Some(label)) => Found::Drive(label.cache, Roster::read(&home).unwrap_or_default()),
        Ok(None) => may_begin(dir, options, &Roster::default()).map_or_else(Found::Unclear, |()| Found::Empty),
        Err(error) => Found::Unclear(error),
    };
    Looked { place, found }
}

/// The cache of the directories, if one of them has a label, and the lists of its drives. A new drive among old ones
/// joins their cache. Without an old one a new cache begins, but only if each directory can be its drive: rule M3.
pub fn known_cache(looked: Vec<Looked>) -> Result<(Option<u128>, Roster)> {
    let (mut cache, mut roster, mut unclear) = (None, Roster::default(), None);
    for one in looked {
        match one.found {
            Found::Drive(own, remembered) if *cache.get_or_insert(own) == own => roster.extend(remembered),
            Found::Drive(..) | Found::Empty => {}
            Found::Unclear(error) => unclear = unclear.or(Some(error)),
        }
    }
    match unclear {
        Some(error) if cache.is_none() => Err(error),
        _ => Ok((cache, roster)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn a_roster_is_read_as_it_was_written_and_a_damaged_one_says_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let odd = Path::new(std::ffi::OsStr::from_bytes(b"/mnt/a\nb \xff\""));
        assert_eq!(Roster::read(dir.path()).unwrap(), Roster::default());
        Roster::note(dir.path(), &[("/mnt/ssd0".into(), 1), (odd.into(), 2)]).unwrap();
        Roster::note(dir.path(), &[("/mnt/ssd1".into(), 3), (odd.into(), 4)]).unwrap();
        let roster = Roster::read(dir.path()).unwrap();
        assert!(roster.has(odd) && roster.has(Path::new("/mnt/ssd0")) && !roster.has(Path::new("/mnt/ssd")));
        assert_eq!(roster.drives.len(), 3);
        let mut text = fs::read(path_of(dir.path())).unwrap();
        for bit in (0..(text.len() - 1) * 8).step_by(7) {
            text[bit / 8] ^= 1 << (bit % 8);
            fs::write(path_of(dir.path()), &text).unwrap();
            assert_eq!(Roster::read(dir.path()).unwrap(), Roster::default(), "bit {bit}");
            text[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn a_roster_has_a_bound() {
        let mut roster = Roster::default();
        (0..MOST + 5).for_each(|n| roster.add(name_of(&Path::new("/").join(n.to_string())), 7));
        assert!(roster.drives.len() == MOST && !roster.has(Path::new("/4")) && roster.has(Path::new("/5")));
    }
}

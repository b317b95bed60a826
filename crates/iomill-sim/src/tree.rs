//! The directories of one drive: their present entries, and the outcome of a crash.
//!
//! The model is a weak journalling file system. Rules:
//! 1. The changes of one directory become durable in order: a prefix of them survives a crash.
//! 2. Changes of different directories are independent. A rename between two directories survives in both or in
//!    neither. So a rename's target holds the old file or the new one, never nothing.
//! 3. `sync_dir` makes all earlier changes of that directory durable, and all changes on which they depend by rules 1
//!    and 2.
//! 4. A new directory is itself a change of its parent.
//!
//! Non-goals: file contents (`disk`), renames and removals of directories.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use crate::dice::Dice;
use crate::errno;

/// `<drive>/iomill` itself.
const ROOT: u64 = 0;

/// The meaning of a name: the number of a file or of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    File(u64),
    Dir(u64),
}

#[derive(Clone, Debug, Default)]
struct Dirs(BTreeMap<u64, BTreeMap<String, Entry>>);

#[derive(Clone, Debug)]
enum NameChange {
    Link { dir: u64, name: String, entry: Entry },
    Unlink { dir: u64, name: String },
    Rename { from: (u64, String), to: (u64, String), entry: Entry },
}

impl NameChange {
    fn dirs(&self) -> [u64; 2] {
        match self {
            NameChange::Link { dir, .. } | NameChange::Unlink { dir, .. } => [*dir; 2],
            NameChange::Rename { from, to, .. } => [from.0, to.0],
        }
    }

    fn file(&self) -> Option<u64> {
        match self {
            NameChange::Link { entry: Entry::File(file), .. } | NameChange::Rename { entry: Entry::File(file), .. } => {
                Some(*file)
            }
            _ => None,
        }
    }
}

impl Dirs {
    fn apply(&mut self, change: &NameChange) {
        match change {
            NameChange::Link { dir, name, entry } => {
                self.0.entry(*dir).or_default().insert(name.clone(), *entry);
                if let Entry::Dir(made) = entry {
                    self.0.entry(*made).or_default();
                }
            }
            NameChange::Unlink { dir, name } => {
                self.0.entry(*dir).or_default().remove(name);
            }
            NameChange::Rename { from, to, entry } => {
                self.0.entry(from.0).or_default().remove(&from.1);
                self.0.entry(to.0).or_default().insert(to.1.clone(), *entry);
            }
        }
    }

    fn entry(&self, dir: u64, name: &str) -> Option<Entry> {
        self.0.get(&dir)?.get(name).copied()
    }

    /// Calls `visit` with the path of every entry below `dir`.
    fn walk(&self, dir: u64, prefix: &str, visit: &mut dyn FnMut(String, Entry)) {
        for (name, entry) in self.0.get(&dir).into_iter().flatten() {
            let path = if prefix.is_empty() { name.clone() } else { format!("{prefix}/{name}") };
            if let Entry::Dir(below) = entry {
                self.walk(*below, &path, visit);
            }
            visit(path, *entry);
        }
    }

    fn files(&self, files: &mut BTreeSet<u64>) {
        for entry in self.0.values().flat_map(BTreeMap::values) {
            if let Entry::File(file) = entry {
                files.insert(*file);
            }
        }
    }
}

/// The directories of one drive.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tree {
    now: Dirs,
    /// The entries that survive every crash. A directory may be here while its entry in its parent is in the journal.
    durable: Dirs,
    /// The changes from `durable` to `now`, in order.
    journal: Vec<NameChange>,
    last_dir: u64,
}

impl Tree {
    fn push(&mut self, change: NameChange) {
        self.now.apply(&change);
        self.journal.push(change);
    }

    /// The entry of a path; `""` is the root.
    pub fn find(&self, path: &str) -> io::Result<Entry> {
        let mut found = Entry::Dir(ROOT);
        if path.is_empty() {
            return Ok(found);
        }
        for name in path.split('/') {
            if name.is_empty() || name == "." || name == ".." {
                return Err(errno(libc::EINVAL));
            }
            let Entry::Dir(dir) = found else { return Err(errno(libc::ENOTDIR)) };
            found = self.now.entry(dir, name).ok_or_else(|| errno(libc::ENOENT))?;
        }
        Ok(found)
    }

    pub fn find_file(&self, path: &str) -> io::Result<u64> {
        match self.find(path)? {
            Entry::File(file) => Ok(file),
            Entry::Dir(_) => Err(errno(libc::EISDIR)),
        }
    }

    pub fn find_dir(&self, path: &str) -> io::Result<u64> {
        match self.find(path)? {
            Entry::File(_) => Err(errno(libc::ENOTDIR)),
            Entry::Dir(dir) => Ok(dir),
        }
    }

    /// The directory of `path`, and the path's last name.
    fn parent(&self, path: &str) -> io::Result<(u64, String)> {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        if path.starts_with('/') || name.is_empty() || name == "." || name == ".." {
            return Err(errno(libc::EINVAL));
        }
        Ok((self.find_dir(dir)?, name.to_owned()))
    }

    pub fn link_file(&mut self, path: &str, file: u64) -> io::Result<()> {
        let (dir, name) = self.parent(path)?;
        if self.now.entry(dir, &name).is_some() {
            return Err(errno(libc::EEXIST));
        }
        self.push(NameChange::Link { dir, name, entry: Entry::File(file) });
        Ok(())
    }

    /// Makes one directory; `false` if it exists already.
    pub fn make_dir(&mut self, path: &str) -> io::Result<bool> {
        let (dir, name) = self.parent(path)?;
        match self.now.entry(dir, &name) {
            Some(Entry::Dir(_)) => Ok(false),
            Some(Entry::File(_)) => Err(errno(libc::EEXIST)),
            None => {
                self.last_dir += 1;
                self.push(NameChange::Link { dir, name, entry: Entry::Dir(self.last_dir) });
                Ok(true)
            }
        }
    }

    pub fn unlink(&mut self, path: &str) -> io::Result<()> {
        self.find_file(path)?;
        let (dir, name) = self.parent(path)?;
        self.push(NameChange::Unlink { dir, name });
        Ok(())
    }

    pub fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        let file = self.find_file(from)?;
        let (from, to) = (self.parent(from)?, self.parent(to)?);
        if let Some(Entry::Dir(_)) = self.now.entry(to.0, &to.1) {
            return Err(errno(libc::EISDIR));
        }
        if from != to {
            self.push(NameChange::Rename { from, to, entry: Entry::File(file) });
        }
        Ok(())
    }

    pub fn list(&self, path: &str) -> io::Result<Vec<String>> {
        let dir = self.find_dir(path)?;
        Ok(self.now.0.get(&dir).into_iter().flatten().map(|(name, _)| name.clone()).collect())
    }

    /// The paths of all files, sorted.
    pub fn paths(&self) -> Vec<String> {
        let mut paths = Vec::new();
        self.now.walk(ROOT, "", &mut |path, entry| {
            if let Entry::File(_) = entry {
                paths.push(path);
            }
        });
        paths.sort();
        paths
    }

    /// Makes the changes of a directory durable (rule 3).
    pub fn sync_dir(&mut self, path: &str) -> io::Result<()> {
        let mut dirs = BTreeSet::from([self.find_dir(path)?]);
        let mut chosen = vec![false; self.journal.len()];
        for (change, chosen) in self.journal.iter().zip(&mut chosen).rev() {
            if change.dirs().iter().any(|dir| dirs.contains(dir)) {
                *chosen = true;
                dirs.extend(change.dirs());
            }
        }
        // A change that stays in the journal shares no directory with a later one that leaves it, so their order does
        // not matter.
        let mut chosen = chosen.into_iter();
        let durable = &mut self.durable;
        self.journal.retain(|change| {
            let leaves = chosen.next().unwrap_or(false);
            if leaves {
                durable.apply(change);
            }
            !leaves
        });
        Ok(())
    }

    /// Makes all changes durable.
    pub fn settle(&mut self) {
        self.journal.clear();
        self.durable = self.now.clone();
    }

    /// Crashes (rules 1 and 2).
    pub fn crash(&mut self, dice: &mut Dice<'_>) {
        let mut lost: BTreeSet<u64> = BTreeSet::new();
        for change in std::mem::take(&mut self.journal) {
            let dirs = change.dirs();
            if dirs.iter().any(|dir| lost.contains(dir)) || !dice.entry_survives() {
                lost.extend(dirs);
            } else {
                self.durable.apply(&change);
            }
        }
        // A directory that has lost its own entry loses its contents, too (rule 4).
        let mut reached = BTreeSet::from([ROOT]);
        self.durable.walk(ROOT, "", &mut |_, entry| {
            if let Entry::Dir(dir) = entry {
                reached.insert(dir);
            }
        });
        self.durable.0.retain(|dir, _| reached.contains(dir));
        self.now = self.durable.clone();
    }

    /// The files that have a name now.
    pub fn named(&self) -> BTreeSet<u64> {
        let mut files = BTreeSet::new();
        self.now.files(&mut files);
        files
    }

    /// The files that have a name now, or may have one after a crash.
    pub fn referenced(&self) -> BTreeSet<u64> {
        let mut files = self.named();
        self.durable.files(&mut files);
        files.extend(self.journal.iter().filter_map(NameChange::file));
        files
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dice::Survival;

    fn crashed(tree: &Tree, survival: Survival, seed: u64) -> Vec<String> {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut tree = tree.clone();
        tree.crash(&mut Dice::new(&mut rng, survival));
        tree.paths()
    }

    #[test]
    fn only_what_was_synced_is_sure() {
        let mut tree = Tree::default();
        assert!(tree.make_dir("files").unwrap());
        assert!(!tree.make_dir("files").unwrap());
        tree.link_file("files/a", 1).unwrap();
        tree.sync_dir("files").unwrap();
        // The directory's own entry was not synced.
        assert!(crashed(&tree, Survival::Nothing, 0).is_empty());
        let mut lost = tree.clone();
        lost.crash(&mut Dice::new(&mut fastrand::Rng::with_seed(0), Survival::Nothing));
        assert!(lost.referenced().is_empty());
        tree.sync_dir("").unwrap();
        assert_eq!(crashed(&tree, Survival::Nothing, 0), ["files/a"]);
        tree.link_file("files/b", 2).unwrap();
        assert_eq!(crashed(&tree, Survival::Nothing, 0), ["files/a"]);
        assert_eq!(crashed(&tree, Survival::Everything, 0), ["files/a", "files/b"]);
    }

    #[test]
    fn any_prefix_of_a_directory_survives_and_nothing_else() {
        let mut tree = Tree::default();
        for file in 0..4 {
            tree.link_file(&format!("{file}"), file).unwrap();
        }
        let mut seen = BTreeSet::new();
        for seed in 0..400 {
            let paths = crashed(&tree, Survival::Seeded, seed);
            for (number, path) in paths.iter().enumerate() {
                assert_eq!(*path, number.to_string());
            }
            seen.insert(paths.len());
        }
        assert_eq!(seen.len(), 5);
    }

    #[test]
    fn a_rename_is_all_or_nothing_and_its_target_never_vanishes() {
        let mut tree = Tree::default();
        tree.make_dir("a").unwrap();
        tree.make_dir("b").unwrap();
        tree.link_file("b/to", 1).unwrap();
        tree.settle();
        tree.link_file("a/from", 2).unwrap();
        tree.rename("a/from", "b/to").unwrap();
        let mut seen = BTreeSet::new();
        for seed in 0..200 {
            seen.insert(crashed(&tree, Survival::Seeded, seed));
        }
        let with = vec!["a/from".to_owned(), "b/to".to_owned()];
        let without = vec!["b/to".to_owned()];
        assert_eq!(seen, BTreeSet::from([with, without]));
        // A sync of the target's directory also makes the changes durable on which the rename depends.
        tree.sync_dir("b").unwrap();
        assert_eq!(crashed(&tree, Survival::Nothing, 0), ["b/to"]);
        assert_eq!(crashed(&tree, Survival::Everything, 0), ["b/to"]);
        assert_eq!(tree.find_file("b/to").unwrap(), 2);
    }

    #[test]
    fn bad_paths_are_refused() {
        let mut tree = Tree::default();
        tree.link_file("file", 1).unwrap();
        for (path, code) in [
            ("/x", libc::EINVAL),
            ("../x", libc::EINVAL),
            ("x/", libc::EINVAL),
            ("", libc::EINVAL),
            ("missing/x", libc::ENOENT),
            ("file/x", libc::ENOTDIR),
            ("file", libc::EEXIST),
        ] {
            assert_eq!(tree.link_file(path, 2).unwrap_err().raw_os_error(), Some(code), "{path:?}");
        }
        assert_eq!(tree.unlink("").unwrap_err().raw_os_error(), Some(libc::EISDIR));
        assert_eq!(tree.rename("no", "file").unwrap_err().raw_os_error(), Some(libc::ENOENT));
    }
}

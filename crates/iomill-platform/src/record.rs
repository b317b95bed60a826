//! A machine's files as one text, and that text as files again.
//!
//! Goals: a text that a person can read, shorten and compose. Non-goals: modes, owners, files that are not text.
//!
//! ```text
//! # a comment
//! sys/block/ = nvme0n1 sda                      names in a directory
//! sys/block/sda -> sys/devices/.../block/sda    a symbolic link, from the root
//! sys/devices/.../queue/scheduler = [none] bfq  a file of one line
//! proc/interrupts                               a file of several lines, which follow
//! |            CPU0       CPU1
//! proc/irq/9/smp_affinity_list refuses 5        a write to it fails with that error number
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Component, Path};

/// The file of an unpacked tree that lists the paths at which writes are refused.
const REFUSALS: &str = ".refuses";

#[derive(Clone, Debug, PartialEq, Eq)]
enum Entry {
    File(String),
    Link(String),
    Directory(Vec<String>),
}

/// Files of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    entries: BTreeMap<String, Entry>,
    /// Error numbers by path.
    refusals: BTreeMap<String, i32>,
}

impl Record {
    /// Adds a file.
    pub(crate) fn file(&mut self, path: &str, text: &str) {
        self.entries.insert(path.to_owned(), Entry::File(text.to_owned()));
    }

    /// Adds a link.
    pub(crate) fn link(&mut self, path: &str, end: &str) {
        self.entries.insert(path.to_owned(), Entry::Link(end.to_owned()));
    }

    /// Adds a directory.
    pub(crate) fn directory(&mut self, path: &str, names: &[String]) {
        self.entries.insert(format!("{path}/"), Entry::Directory(names.to_vec()));
    }

    /// Adds a path that exists, without its contents.
    pub(crate) fn seen(&mut self, path: &str, is_directory: bool) {
        if is_directory {
            self.entries.entry(format!("{path}/")).or_insert(Entry::Directory(Vec::new()));
        } else {
            self.entries.entry(path.to_owned()).or_insert(Entry::File(String::new()));
        }
    }

    /// Parses the text of a record. An error names the line.
    pub fn parse(text: &str) -> Result<Record, String> {
        let mut record = Record::default();
        let mut lines = text.lines().enumerate().peekable();
        while let Some((index, line)) = lines.next() {
            let wrong = |why: &str| format!("line {}: {why}: {line:?}", index + 1);
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (path, entry) = if let Some((path, end)) = line.split_once(" -> ") {
                (path, Entry::Link(end.to_owned()))
            } else if let Some((path, names)) = line.split_once("/ =") {
                (
                    line.get(..=path.len()).unwrap_or(path),
                    Entry::Directory(names.split_whitespace().map(str::to_owned).collect()),
                )
            } else if let Some((path, value)) = line.split_once(" =") {
                (path, Entry::File(value.strip_prefix(' ').unwrap_or(value).to_owned()))
            } else if let Some((path, errno)) = line.split_once(" refuses ") {
                let errno = errno.parse().map_err(|_| wrong("no error number"))?;
                record.refusals.insert(path.to_owned(), errno);
                continue;
            } else {
                let mut text = Vec::new();
                while let Some((_, more)) = lines.next_if(|(_, line)| line.starts_with('|')) {
                    text.push(more.strip_prefix("| ").unwrap_or(&more[1..]));
                }
                if text.is_empty() {
                    return Err(wrong("neither ` = `, ` -> ` nor lines after it"));
                }
                (line, Entry::File(text.join("\n")))
            };
            let ends = [Some(path), if let Entry::Link(end) = &entry { Some(end) } else { None }];
            if ends.into_iter().flatten().any(|path| !is_inside(path)) {
                return Err(wrong("a path from the root has neither a leading slash nor `..`"));
            }
            record.entries.insert(path.to_owned(), entry);
        }
        Ok(record)
    }

    /// Creates the files below an empty directory.
    pub fn unpack(&self, root: &Path) -> io::Result<()> {
        // Links are made last, so that no file is written through one.
        for (path, entry) in &self.entries {
            match entry {
                Entry::File(text) => {
                    let place = root.join(path);
                    make_parent(&place)?;
                    fs::write(place, format!("{text}\n"))?;
                }
                Entry::Directory(_) => fs::create_dir_all(root.join(path))?,
                Entry::Link(_) => {}
            }
        }
        for (path, entry) in &self.entries {
            let Entry::Link(end) = entry else { continue };
            let place = root.join(path);
            make_parent(&place)?;
            let up = "../".repeat(path.matches('/').count());
            fs::create_dir_all(root.join(end))
                .or_else(|error| if root.join(end).exists() { Ok(()) } else { Err(error) })?;
            symlink(format!("{up}{end}"), place)?;
        }
        for (path, entry) in &self.entries {
            let Entry::Directory(names) = entry else { continue };
            for name in names {
                let place = root.join(path).join(name);
                if place.symlink_metadata().is_err() {
                    fs::write(place, "")?;
                }
            }
        }
        let refusals: String = self.refusals.iter().map(|(path, errno)| format!("{errno} {path}\n")).collect();
        if refusals.is_empty() { Ok(()) } else { fs::write(root.join(REFUSALS), refusals) }
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (path, entry) in &self.entries {
            match entry {
                Entry::Link(end) => writeln!(f, "{path} -> {end}")?,
                Entry::Directory(names) => writeln!(f, "{path} = {}", names.join(" "))?,
                Entry::File(text) if text.contains('\n') => {
                    writeln!(f, "{path}")?;
                    for line in text.lines() {
                        writeln!(f, "| {line}")?;
                    }
                }
                Entry::File(text) => writeln!(f, "{path} = {text}")?,
            }
        }
        for (path, errno) in &self.refusals {
            writeln!(f, "{path} refuses {errno}")?;
        }
        Ok(())
    }
}

/// The error number of a refused write, from the list of refusals of an unpacked tree.
pub(crate) fn refusal(list: &str, path: &str) -> Option<i32> {
    let line = list.lines().find_map(|line| line.split_once(' ').filter(|(_, refused)| *refused == path))?;
    line.0.parse().ok()
}

fn make_parent(place: &Path) -> io::Result<()> {
    place.parent().map_or(Ok(()), fs::create_dir_all)
}

fn is_inside(path: &str) -> bool {
    !path.is_empty() && Path::new(path).components().all(|part| matches!(part, Component::Normal(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonsense_is_refused_with_its_line() {
        for (text, line) in [
            ("a", "line 1"),
            ("# x\n\na = 1\n/b = 2", "line 4"),
            ("a/../b = 1", "line 1"),
            ("a -> ../b", "line 1"),
            ("a refuses x", "line 1"),
        ] {
            let error = Record::parse(text).unwrap_err();
            assert!(error.contains(line), "{text}: {error}");
        }
    }

    #[test]
    fn text_and_record_are_the_same() {
        let text = "a/ = b c\na/b = [x] y\na/e = \na/f\n| 1\n|   2\nl -> a/b\na/b refuses 5\n";
        let record = Record::parse(text).unwrap();
        assert_eq!(Record::parse(&record.to_string()).unwrap(), record);
        let dir = tempfile::tempdir().unwrap();
        record.unpack(dir.path()).unwrap();
        let read = |path| fs::read_to_string(dir.path().join(path)).unwrap();
        assert_eq!(
            (read("l"), read("a/f"), read("a/c"), read("a/e")),
            ("[x] y\n".into(), "1\n  2\n".into(), "".into(), "\n".into())
        );
        assert_eq!(refusal(&read(REFUSALS), "a/b"), Some(5));
        assert_eq!(refusal(&read(REFUSALS), "a"), None);
    }
}

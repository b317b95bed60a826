//! The only way to read and set the machine: files of sysfs and procfs, and features of NVMe controllers as if they
//! were files.
//!
//! Goals: a tree that was recorded on another machine, and unpacked into a directory, answers as that machine would. An
//! existing file that cannot be read is noted, and not treated as missing. Non-goals: caching; other files.
//!
//! Paths start at the root and have no leading slash: `sys/block/sda/queue/scheduler`. The feature `08` of a controller
//! is `ioctl/nvme0/feature/08`, a number in hexadecimal.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};
use rustix::io::Errno;

use crate::cpus;
use crate::nvme;
use crate::record::{self, Record};

/// The root of this machine.
pub const MACHINE: &str = "/";

/// The file of a recorded tree that lists the paths at which writes are refused; see [`Record`].
const REFUSALS: &str = ".refuses";

/// A machine's files.
#[derive(Debug)]
pub struct Tree {
    root: PathBuf,
    /// Whether it is this machine and not a recorded one.
    is_machine: bool,
    /// All that was read so far, if reads are recorded.
    record: Option<RefCell<Record>>,
    /// Existing files that could not be read, with the reason.
    unreadable: RefCell<BTreeSet<String>>,
}

impl Tree {
    /// This machine.
    pub fn machine() -> Tree {
        Tree::new(PathBuf::from(MACHINE), true)
    }

    /// A recorded machine, unpacked into the directory `root`; or this one, if that is the root directory.
    pub fn at(root: &Path) -> io::Result<Tree> {
        let root = fs::canonicalize(root)?;
        if !root.is_dir() {
            return Err(io::Error::from(Errno::NOTDIR));
        }
        let is_machine = root == Path::new(MACHINE);
        Ok(Tree::new(root, is_machine))
    }

    fn new(root: PathBuf, is_machine: bool) -> Tree {
        Tree { root, is_machine, record: None, unreadable: RefCell::default() }
    }

    /// Records all reads from now on, for [`Tree::take_record`].
    pub fn recording(mut self) -> Tree {
        self.record = Some(RefCell::default());
        self
    }

    /// All that was read since [`Tree::recording`].
    pub fn take_record(&self) -> Record {
        self.record.as_ref().map(RefCell::take).unwrap_or_default()
    }

    /// Whether it is this machine.
    pub fn is_machine(&self) -> bool {
        self.is_machine
    }

    /// The path on this machine's file system of a path in the tree.
    pub fn place(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    /// Existing files that could not be read, with the reason, one each.
    pub fn unreadable(&self) -> Vec<String> {
        self.unreadable.borrow().iter().cloned().collect()
    }

    /// The text of a file, without blanks at its end. `None` if there is no such file or setting.
    pub fn read(&self, path: &str) -> io::Result<Option<String>> {
        let text = match self.read_raw(path) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).trim_end().to_owned(),
            Err(error) if is_absent(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        if let Some(record) = &self.record {
            record.borrow_mut().file(path, &text);
        }
        Ok(Some(text))
    }

    fn read_raw(&self, path: &str) -> io::Result<Vec<u8>> {
        match feature_path(path).filter(|_| self.is_machine) {
            Some((controller, feature)) => Ok(format!("{:#x}", nvme::get_feature(controller, feature)?).into_bytes()),
            None => fs::read(self.place(path)),
        }
    }

    /// As [`Tree::read`], but notes a file that cannot be read, and returns `None`.
    pub fn get(&self, path: &str) -> Option<String> {
        self.noted(path, self.read(path)).flatten()
    }

    /// A number in a file.
    pub fn number(&self, path: &str) -> Option<u64> {
        self.get(path)?.parse().ok()
    }

    /// A list of CPUs in a file, such as `0-3,8`.
    pub fn cpus(&self, path: &str) -> Option<Vec<usize>> {
        let list = self.get(path)?;
        self.noted(path, cpus::parse(&list))
    }

    /// The names in a directory, in order; none if there is no such directory.
    pub fn names(&self, path: &str) -> io::Result<Vec<String>> {
        let read = || -> io::Result<Vec<String>> {
            let mut names = Vec::new();
            for entry in fs::read_dir(self.place(path))? {
                names.push(entry?.file_name().to_string_lossy().into_owned());
            }
            names.sort();
            Ok(names)
        };
        let names = match read() {
            Err(error) if is_absent(&error) => return Ok(Vec::new()),
            names => names?,
        };
        if let Some(record) = &self.record {
            record.borrow_mut().directory(path, &names);
        }
        Ok(names)
    }

    /// As [`Tree::names`], but notes a directory that cannot be read, and returns no names.
    pub fn list(&self, path: &str) -> Vec<String> {
        self.noted(path, self.names(path)).unwrap_or_default()
    }

    /// Whether a process with this name runs. A record then has only this process, because the user's other processes
    /// are private.
    pub fn has_process(&self, name: &str) -> bool {
        let entries = self.noted(
            "proc",
            fs::read_dir(self.place("proc")).map(Some).or_else(|e| if is_absent(&e) { Ok(None) } else { Err(e) }),
        );
        let processes = entries.flatten().into_iter().flatten().flatten();
        let mut numbers = processes.map(|entry| entry.file_name().to_string_lossy().into_owned());
        let found = numbers.find(|process| {
            // Processes may end during the look.
            process.chars().all(|c| c.is_ascii_digit())
                && fs::read_to_string(self.place(&format!("proc/{process}/comm")))
                    .is_ok_and(|comm| comm.trim_end() == name)
        });
        if let (Some(process), Some(record)) = (&found, &self.record) {
            record.borrow_mut().file(&format!("proc/{process}/comm"), name);
        }
        found.is_some()
    }

    /// The target of a symbolic link, as a path from the root. The path itself if it is no link, and `None` if it does
    /// not exist.
    pub fn resolve(&self, path: &str) -> Option<String> {
        let end = match fs::canonicalize(self.place(path)) {
            Err(error) if is_absent(&error) => return None,
            other => self.noted(path, other)?,
        };
        let end = end.strip_prefix(&self.root).ok()?.to_str()?.to_owned();
        if let Some(record) = &self.record {
            let mut record = record.borrow_mut();
            match end == path {
                true => record.seen(path, self.place(path).is_dir()),
                false => record.link(path, &end),
            }
        }
        Some(end)
    }

    /// Whether a file or directory exists.
    pub fn exists(&self, path: &str) -> bool {
        self.resolve(path).is_some()
    }

    /// Fails if this process may not set a path. The kernel may still refuse the write.
    pub fn check_writable(&self, path: &str) -> io::Result<()> {
        let place = match feature_path(path).filter(|_| self.is_machine) {
            Some((controller, _)) => nvme::node(controller),
            None => self.place(path),
        };
        Ok(access(&place, Access::WRITE_OK)?)
    }

    /// Writes a value to an existing file.
    pub fn write(&self, path: &str, value: &str) -> io::Result<()> {
        if self.is_machine {
            if let Some((controller, feature)) = feature_path(path) {
                let value = parse_hex(value).ok_or_else(|| io::Error::from(Errno::INVAL))?;
                return nvme::set_feature(controller, feature, value);
            }
            let mut file = OpenOptions::new().write(true).open(self.place(path))?;
            // One system call, because the kernel takes each call as one setting.
            return match file.write(value.as_bytes())? {
                taken if taken == value.len() => Ok(()),
                _ => Err(io::Error::new(io::ErrorKind::WriteZero, "the kernel took only a part of the value")),
            };
        }
        self.write_recorded(path, value)
    }

    /// Writes to a recorded file, as the kernel would to a real one.
    fn write_recorded(&self, path: &str, value: &str) -> io::Result<()> {
        let place = self.place(path);
        let before = fs::read_to_string(&place)?;
        let refusals = fs::read_to_string(self.place(REFUSALS)).unwrap_or_default();
        if let Some(errno) = record::refusal(&refusals, path) {
            return Err(io::Error::from_raw_os_error(errno));
        }
        if !before.contains('[') {
            return fs::write(place, format!("{value}\n"));
        }
        // The file is a choice among words, with the present one in brackets.
        let words: Vec<&str> = before.split_whitespace().map(|word| word.trim_matches(['[', ']'])).collect();
        if !words.contains(&value) {
            return Err(io::Error::from(Errno::INVAL));
        }
        let shown: Vec<String> =
            words.iter().map(|word| if *word == value { format!("[{word}]") } else { word.to_string() }).collect();
        fs::write(place, shown.join(" ") + "\n")
    }

    /// The value of a result. Notes an error as the reason why `path` could not be read.
    pub(crate) fn noted<T>(&self, path: &str, result: io::Result<T>) -> Option<T> {
        result
            .map_err(|error| {
                self.unreadable.borrow_mut().insert(format!("/{path} could not be read: {error}"));
            })
            .ok()
    }
}

/// Whether an error means that the file or its setting does not exist. The file of a setting may answer so if a device
/// lacks the setting.
fn is_absent(error: &io::Error) -> bool {
    let absent = [Errno::NOENT, Errno::NOTDIR, Errno::NODEV, Errno::NXIO, Errno::INVAL, Errno::OPNOTSUPP, Errno::NOTTY];
    Errno::from_io_error(error).is_some_and(|errno| absent.contains(&errno))
}

fn feature_path(path: &str) -> Option<(&str, u8)> {
    let (controller, feature) = path.strip_prefix("ioctl/")?.split_once("/feature/")?;
    Some((controller, u8::from_str_radix(feature, 16).ok()?))
}

/// The path of a node or file, as a user would write it.
pub fn shown(path: &str) -> String {
    format!("{MACHINE}{path}")
}

/// Parses a number such as `0x107`.
pub fn parse_hex(text: &str) -> Option<u32> {
    u32::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}

/// The word in brackets of `none [mq-deadline] kyber`, or the only word.
pub fn chosen(text: &str) -> &str {
    match text.split_once('[').and_then(|(_, rest)| rest.split_once(']')) {
        Some((word, _)) => word,
        None => text.trim(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(text: &str) -> (tempfile::TempDir, Tree) {
        let dir = tempfile::tempdir().unwrap();
        Record::parse(text).unwrap().unpack(dir.path()).unwrap();
        let tree = Tree::at(dir.path()).unwrap();
        (dir, tree)
    }

    #[test]
    fn a_choice_is_written_as_the_kernel_would() {
        let (_dir, tree) = tree("sys/s = none [mq-deadline] bfq\nsys/n = 7\nsys/r = 1\nsys/r refuses 5\n");
        tree.write("sys/s", "none").unwrap();
        assert_eq!(tree.get("sys/s").unwrap(), "[none] mq-deadline bfq");
        assert_eq!(tree.write("sys/s", "cfq").unwrap_err().raw_os_error(), Some(22));
        tree.write("sys/n", "8").unwrap();
        assert_eq!(tree.number("sys/n"), Some(8));
        assert_eq!(tree.write("sys/r", "2").unwrap_err().raw_os_error(), Some(5));
        assert_eq!(tree.get("sys/r").unwrap(), "1");
        assert!(tree.write("sys/new", "1").is_err(), "nothing is made");
        assert_eq!((tree.get("sys/none"), tree.unreadable()), (None, vec![]));
    }

    #[test]
    fn what_cannot_be_read_is_noted() {
        let (_dir, tree) = tree("sys/d/ = a\n");
        assert_eq!(tree.get("sys/d"), None);
        let noted = tree.unreadable();
        assert!(noted.len() == 1 && noted[0].starts_with("/sys/d could not be read: "), "{noted:?}");
    }

    #[test]
    fn what_was_read_can_be_read_again() {
        let (_dir, first) = tree("sys/b/x -> sys/devices/x\nsys/devices/x/q = 1\nsys/devices/x/text\n| a\n|  b\n");
        let first = first.recording();
        let x = first.resolve("sys/b/x").unwrap();
        assert_eq!(x, "sys/devices/x");
        assert_eq!(first.list("sys/b"), ["x"]);
        assert_eq!(
            (first.number(&format!("{x}/q")), first.get(&format!("{x}/text")).unwrap().as_str()),
            (Some(1), "a\n b")
        );
        let text = first.take_record().to_string();
        let (_dir, second) = tree(&text);
        let second = second.recording();
        assert_eq!(second.resolve("sys/b/x").unwrap(), x);
        assert_eq!(second.list("sys/b"), ["x"]);
        assert_eq!(
            (second.number(&format!("{x}/q")), second.get(&format!("{x}/text")).unwrap().as_str()),
            (Some(1), "a\n b")
        );
        assert_eq!(second.take_record().to_string(), text);
    }

    #[test]
    fn the_machine_is_read_and_choices_are_reported() {
        let tree = Tree::machine();
        assert!(tree.is_machine() && tree.get("proc/self/status").unwrap().contains("Pid:"));
        assert!(tree.write("proc/self/no-such-file", "1").is_err());
        assert!(Tree::at(Path::new("/")).unwrap().is_machine());
        assert!(Tree::at(Path::new("/proc/self/status")).is_err());
        assert_eq!(["[none] a", "a [b] c", "one"].map(chosen), ["none", "b", "one"]);
        assert_eq!((parse_hex("0x107"), parse_hex("107")), (Some(0x107), None));
        assert_eq!(feature_path("ioctl/nvme0/feature/08"), Some(("nvme0", 8)));
    }
}

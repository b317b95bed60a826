//! The values before `tune` changed them, on disk.
//!
//! Goals: the state is durable before the first change. Through any number of further changes it keeps the first old
//! values. A damaged or foreign state changes nothing. Non-goals: a history.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use iomill::{Error, Result};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

/// The version of the file.
const VERSION: u32 = 1;

/// Files that `tune --persist` writes, below its directory.
pub const FILES: [&str; 3] = ["udev/rules.d/99-iomill.rules", "sysctl.d/99-iomill.conf", "tmpfiles.d/iomill.conf"];

/// The old text of one file of the machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Before {
    /// Its path in the tree.
    pub path: String,
    /// Its text.
    pub text: String,
}

/// The old text of one file that `--persist` wrote.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// The file.
    pub path: PathBuf,
    /// Its text; `None` if there was no such file.
    pub text: Option<String>,
}

/// The whole state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    version: u32,
    /// The start of the machine to which `settings` belong: they end with it.
    pub boot: String,
    /// In the order of the changes, which is also the order of an undo.
    pub settings: Vec<Before>,
    /// Files that survive a restart.
    pub files: Vec<Kept>,
}

/// The place of a state, locked against other processes while this lives.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    _lock: File,
}

/// The default place of the state: `/var/lib/iomill` for root, and the desktop's directory for state for other users.
pub fn default_path() -> Result<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let directory = if rustix::process::geteuid().is_root() {
        PathBuf::from("/var/lib")
    } else {
        let home = || Some(variable("HOME")?.join(".local/state"));
        variable("XDG_STATE_HOME").or_else(home).ok_or_else(|| Error::Tool {
            what: "a place for the old values".into(),
            why: "neither XDG_STATE_HOME nor HOME names one; use --state".into(),
        })?
    };
    Ok(directory.join("iomill/tune.json"))
}

impl Store {
    /// Opens the place of a state, and makes it if it is missing.
    pub fn open(path: &Path) -> Result<Store> {
        let path = std::path::absolute(path).map_err(|e| Error::io("find", path, e))?;
        let directory = parent(&path);
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)
            .map_err(|e| Error::io("create", directory, e))?;
        let lock_path = beside(&path, ".lock");
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o600).custom_flags(libc::O_NOFOLLOW);
        let lock = options.open(&lock_path).map_err(|e| Error::io("create", &lock_path, e))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Store { path, _lock: lock }),
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let what = format!("{}", path.display());
                Err(Error::Tool { what, why: "another `iomill tune` is at work; wait for it".into() })
            }
            Err(error) => Err(Error::io("lock", lock_path, error.into())),
        }
    }

    /// The path of the state.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The saved state; `None` if there is none.
    pub fn load(&self) -> Result<Option<State>> {
        let text = match fs::read_to_string(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            other => other.map_err(|e| Error::io("read", &self.path, e))?,
        };
        let wrong = |why: String| {
            Error::damaged(
                self.path.clone(),
                format!("{why}; nothing was changed. Settings end with a restart; then remove this file"),
            )
        };
        let state: State =
            serde_json::from_str(&text).map_err(|e| wrong(format!("`iomill tune` did not write it: {e}")))?;
        if state.version != VERSION {
            return Err(wrong(format!("it has version {}, and this iomill reads only {VERSION}", state.version)));
        }
        // Root writes to the files that this file names, so it may name only files that `tune` sets.
        if let Some(before) = state.settings.iter().find(|before| !is_setting(&before.path)) {
            return Err(wrong(format!("{:?} is not a file that `iomill tune` sets", before.path)));
        }
        if let Some(kept) = state.files.iter().find(|kept| !FILES.iter().any(|name| kept.path.ends_with(name))) {
            return Err(wrong(format!("{} is not a file that `iomill tune` writes", kept.path.display())));
        }
        Ok(Some(state))
    }

    /// Makes a state durable.
    pub fn save(&self, state: &State) -> Result<()> {
        let mut state = state.clone();
        state.version = VERSION;
        let text = serde_json::to_string_pretty(&state)
            .map_err(|e| Error::Tool { what: "the old values".into(), why: e.to_string() })?;
        replace(&self.path, Some(&(text + "\n")))
    }

    /// Removes the state, durably.
    pub fn clear(&self) -> Result<()> {
        replace(&self.path, None)
    }
}

impl State {
    /// An empty state of this start of the machine.
    pub fn new(boot: &str) -> State {
        State { version: VERSION, boot: boot.to_owned(), ..State::default() }
    }

    /// Adds an old value, unless the state already has one.
    pub fn add(&mut self, path: &str, text: &str) {
        if !self.settings.iter().any(|before| before.path == path) {
            self.settings.push(Before { path: path.to_owned(), text: text.to_owned() });
        }
    }

    /// Adds the old text of a file, unless the state already has one.
    pub fn add_file(&mut self, path: &Path, text: Option<String>) {
        if !self.files.iter().any(|kept| kept.path == path) {
            self.files.push(Kept { path: path.to_owned(), text });
        }
    }

    /// Whether nothing is left to put back.
    pub fn is_empty(&self) -> bool {
        self.settings.is_empty() && self.files.is_empty()
    }
}

fn is_setting(path: &str) -> bool {
    let is_inside = path.split('/').all(|part| !part.is_empty() && part != "." && part != "..");
    is_inside
        && ["sys/devices/", "sys/kernel/mm/", "proc/irq/", "proc/sys/fs/", "ioctl/"]
            .iter()
            .any(|root| path.starts_with(root))
}

/// Writes a file whole and durably, or removes it.
pub(crate) fn replace(path: &Path, text: Option<&str>) -> Result<()> {
    let directory = parent(path);
    match text {
        Some(text) => {
            let draft = beside(path, ".new");
            let written = write_new(&draft, text).and_then(|()| fs::rename(&draft, path));
            written.map_err(|e| Error::io("write", path, e))?;
        }
        None => match fs::remove_file(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            other => other.map_err(|e| Error::io("remove", path, e))?,
        },
    }
    File::open(directory).and_then(|directory| directory.sync_all()).map_err(|e| Error::io("sync", directory, e))
}

fn write_new(path: &Path, text: &str) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o644).open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

/// A path with a suffix.
fn beside(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(end);
    name.into()
}

fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_first_stays_and_comes_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b/tune.json");
        let store = Store::open(&path).unwrap();
        assert_eq!(store.load().unwrap(), None);
        let mut state = State::new("boot");
        state.add("sys/devices/x/queue/scheduler", "[none] bfq");
        state.add("sys/devices/x/queue/scheduler", "none [bfq]");
        state.add_file(Path::new("/etc/sysctl.d/99-iomill.conf"), None);
        store.save(&state).unwrap();
        let loaded = store.load().unwrap().unwrap();
        assert_eq!(loaded, state);
        assert_eq!(loaded.settings[0].text, "[none] bfq");
        let error = Store::open(&path).unwrap_err().to_string();
        assert!(error.contains("another `iomill tune`"), "{error}");
        store.clear().unwrap();
        assert_eq!(store.load().unwrap(), None);
        store.clear().unwrap();
        drop(store);
        Store::open(&path).unwrap();
    }

    #[test]
    fn a_state_that_names_other_files_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tune.json");
        let store = Store::open(&path).unwrap();
        for bad in ["proc/sys/kernel/core_pattern", "sys/devices/../../etc/passwd", "/sys/devices/x", "etc/passwd"] {
            let mut state = State::new("");
            state.add(bad, "1");
            store.save(&state).unwrap();
            assert!(store.load().unwrap_err().to_string().contains("nothing was changed"), "{bad}");
        }
        let mut state = State::new("");
        state.add_file(Path::new("/etc/passwd"), None);
        store.save(&state).unwrap();
        assert!(store.load().is_err());
        for text in ["", "{}", "{\"version\":9,\"boot\":\"\",\"settings\":[],\"files\":[]}"] {
            fs::write(&path, text).unwrap();
            assert!(store.load().is_err(), "{text}");
        }
    }
}

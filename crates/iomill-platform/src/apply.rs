//! Setting what was found, and putting back what was.
//!
//! Goals: the machine can be put back whatever happens in between, a kill included; one setting that the kernel refuses does not
//! keep others from being set. Rules:
//!
//! 1. What was, of everything that will change or may change along, is durable before the first write.
//! 2. What was at first wins over what was before a later change.
//! 3. A setting counts as made when it reads back so.
//! 4. Putting back goes in the order of setting, since a scheduler brings its own number of requests with it, and then looks at
//!    everything once more.
//! 5. Settings end with the machine's run: of an earlier run only written files are left to put back.

use std::fs;
use std::io::ErrorKind;

use iomill::{Error, Result};
use serde::Serialize;

use crate::drives::shown;
use crate::finding::{Finding, Setting, Verdict};
use crate::state::{State, Store, replace};
use crate::tree::{Tree, chosen};

const BOOT_ID: &str = "proc/sys/kernel/random/boot_id";

/// Files of a queue that change along with its scheduler, beside the scheduler's own in `iosched`.
const ALONG: [&str; 2] = ["nr_requests", "wbt_lat_usec"];

/// What became of one setting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It is now as asked for.
    Set,
    /// The kernel did not take it; why.
    Refused(String),
}

/// One setting that was made, or tried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    /// The file, from the root.
    pub path: String,
    /// What was in it.
    pub before: String,
    /// What was written.
    pub value: String,
    /// What became of it.
    pub outcome: Outcome,
}

/// What putting back did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Undone {
    /// Files of the machine that hold what was again.
    pub restored: Vec<String>,
    /// Files that were written to be kept, and are gone or as before.
    pub files: Vec<String>,
    /// What should be known of the rest: drives that are gone, a restart since.
    pub notes: Vec<String>,
    /// What could not be put back, and why. Its state is kept.
    pub failed: Vec<String>,
}

/// The settings of everything that is to be mended, where they are not so already.
pub fn pending(tree: &Tree, findings: &[Finding]) -> Vec<Setting> {
    let mut settings: Vec<Setting> = Vec::new();
    for setting in findings.iter().filter(|one| one.verdict == Verdict::Mend).flat_map(|one| &one.settings) {
        let is_so = tree.get(&setting.path).is_some_and(|text| chosen(&text) == setting.value);
        if !is_so && !settings.iter().any(|one| one.path == setting.path) {
            settings.push(setting.clone());
        }
    }
    settings
}

/// Makes settings. Fails, with nothing changed, where this user may not make them or what was cannot be saved.
pub fn apply(tree: &Tree, settings: &[Setting], store: &Store) -> Result<Vec<Change>> {
    for setting in settings {
        tree.check_writable(&setting.path).map_err(|error| match error.kind() {
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => Error::Machine {
                what: format!("cannot set {}", shown(&setting.path)),
                why: format!("{error}; nothing was changed. Settings take root: try `sudo`; in a container they take a privileged one"),
            },
            _ => Error::io("set", shown(&setting.path), error),
        })?;
    }
    let boot = tree.get(BOOT_ID).unwrap_or_default();
    let mut state = store.load()?.unwrap_or_else(|| State::new(&boot));
    if state.boot != boot {
        // Rule 5.
        state.settings.clear();
        state.boot.clone_from(&boot);
    }
    let mut before = Vec::new();
    for setting in settings {
        let text = read(tree, &setting.path)?;
        state.add(&setting.path, &text);
        for path in along(tree, &setting.path) {
            if let Some(text) = tree.get(&path) {
                state.add(&path, &text);
            }
        }
        before.push(text);
    }
    // Rule 1.
    store.save(&state)?;
    let changes = settings.iter().zip(before).map(|(setting, before)| {
        let outcome = match set(tree, &setting.path, &setting.value) {
            Ok(()) => Outcome::Set,
            Err(why) => Outcome::Refused(why),
        };
        Change { path: shown(&setting.path), before: chosen(&before).to_owned(), value: setting.value.clone(), outcome }
    });
    Ok(changes.collect())
}

/// Puts back everything that was changed since the state was empty. `None` if nothing was.
pub fn undo(tree: &Tree, store: &Store) -> Result<Option<Undone>> {
    let Some(state) = store.load()? else { return Ok(None) };
    let boot = tree.get(BOOT_ID).unwrap_or_default();
    let mut undone = Undone::default();
    let mut left = State::new(&state.boot);
    if state.boot == boot {
        // Rule 4.
        for _ in 0..2 {
            for before in &state.settings {
                if tree.read(&before.path).ok().flatten().is_some_and(|now| now != before.text) {
                    // What it says is looked at below.
                    let _tried_again_or_told = tree.write(&before.path, chosen(&before.text));
                }
            }
        }
        for before in state.settings {
            match tree.read(&before.path) {
                Ok(Some(now)) if now == before.text => undone.restored.push(shown(&before.path)),
                Ok(None) => undone.notes.push(format!("{} is gone, with its drive or scheduler", shown(&before.path))),
                Ok(Some(now)) => {
                    let why = tree.write(&before.path, chosen(&before.text)).err().map(|e| e.to_string());
                    let why = why.unwrap_or_else(|| format!("it stays {}", chosen(&now)));
                    undone.failed.push(format!("{}: {why}", shown(&before.path)));
                    left.settings.push(before);
                }
                Err(error) => {
                    undone.failed.push(format!("{}: {error}", shown(&before.path)));
                    left.settings.push(before);
                }
            }
        }
    } else if !state.settings.is_empty() {
        undone
            .notes
            .push("the machine was started anew since the settings were made, and they ended with that".to_owned());
    }
    for kept in state.files {
        match replace(&kept.path, kept.text.as_deref()) {
            Ok(()) => undone.files.push(kept.path.display().to_string()),
            Err(error) => {
                undone.failed.push(error.to_string());
                left.files.push(kept);
            }
        }
    }
    if left.is_empty() {
        store.clear()?
    } else {
        store.save(&left)?
    }
    Ok(Some(undone))
}

/// Writes a setting and sees whether it holds (rule 3).
fn set(tree: &Tree, path: &str, value: &str) -> std::result::Result<(), String> {
    tree.write(path, value).map_err(|error| match (error.raw_os_error(), path.starts_with("proc/irq/")) {
        (Some(libc::EIO), true) => "the kernel manages this interrupt and lets nobody move it".to_owned(),
        (Some(libc::EINVAL), _) => format!("the kernel does not take {value:?} for this drive"),
        _ => error.to_string(),
    })?;
    match tree.read(path) {
        Ok(Some(now)) if chosen(&now) == value => Ok(()),
        Ok(Some(now)) => Err(format!("the kernel made {} of it", chosen(&now))),
        Ok(None) => Err("it is gone".to_owned()),
        Err(error) => Err(format!("it cannot be read back: {error}")),
    }
}

/// What may change along with a setting.
fn along(tree: &Tree, path: &str) -> Vec<String> {
    let Some(queue) = path.strip_suffix("/scheduler") else { return Vec::new() };
    let mut paths: Vec<String> = ALONG.iter().map(|name| format!("{queue}/{name}")).collect();
    paths.extend(tree.list(&format!("{queue}/iosched")).iter().map(|name| format!("{queue}/iosched/{name}")));
    paths
}

fn read(tree: &Tree, path: &str) -> Result<String> {
    match tree.read(path) {
        Ok(Some(text)) => Ok(text),
        Ok(None) => Err(Error::io("read", shown(path), ErrorKind::NotFound.into())),
        Err(error) => Err(Error::io("read", shown(path), error)),
    }
}

/// The text of a file that may be missing.
pub(crate) fn text_if_there(path: &std::path::Path) -> Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io("read", path, error)),
    }
}

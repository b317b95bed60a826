//! Making settings, and putting back the old values.
//!
//! Goals: the machine can be put back whatever happens in between, also after a kill. A setting that the kernel refuses
//! does not prevent others. Rules:
//!
//! 1. The old value of every setting that will change, or may change along, is durable before the first write.
//! 2. The first old value stays, even if a later change finds another.
//! 3. A setting counts as made if it reads back as written.
//! 4. Undo writes in the order of the settings, because a scheduler brings its own number of requests with it. Then it
//!    checks every setting again.
//! 5. Settings end with a restart. After it only written files are left to put back.

use std::fs;
use std::io::ErrorKind;

use iomill::{Error, Result};
use iomill_platform::tree::{Tree, chosen, shown};
use serde::Serialize;

use crate::tune::finding::{Finding, Setting, Verdict};
use crate::tune::state::{State, Store, replace};

const BOOT_ID: &str = "proc/sys/kernel/random/boot_id";

/// Files of a queue that change along with its scheduler, besides the scheduler's own files in `iosched`.
const ALONG: [&str; 2] = ["nr_requests", "wbt_lat_usec"];

/// The result of one setting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The setting has the wanted value.
    Set,
    /// The kernel did not take it, for this reason.
    Refused(String),
}

/// One setting that was made or tried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    /// The file, from the root.
    pub path: String,
    /// Its old value.
    pub before: String,
    /// The value that was written.
    pub value: String,
    /// The result.
    pub outcome: Outcome,
}

/// The result of an undo.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Undone {
    /// Files of the machine that have their old values again.
    pub restored: Vec<String>,
    /// Files that `--persist` wrote, and that are gone or have their old text again.
    pub files: Vec<String>,
    /// Notes on the rest: drives that are gone, a restart since.
    pub notes: Vec<String>,
    /// Settings that could not be put back, and why. The state keeps them.
    pub failed: Vec<String>,
}

/// The settings of all findings to mend that do not have the wanted value yet.
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

/// Makes settings. It fails, and changes nothing, if this user may not make them or the old values cannot be saved.
pub fn apply(tree: &Tree, settings: &[Setting], store: &Store) -> Result<Vec<Change>> {
    for setting in settings {
        tree.check_writable(&setting.path).map_err(|error| match error.kind() {
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => Error::Tool {
                what: format!("cannot set {}", shown(&setting.path)),
                why: format!(
                    "{error}; nothing was changed. Settings need root: try `sudo`; a container must be privileged"
                ),
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

/// Puts back everything that changed since the state was empty. `None` if nothing changed.
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
                    // The next loop checks the result.
                    let _tried_again = tree.write(&before.path, chosen(&before.text));
                }
            }
        }
        for before in state.settings {
            match tree.read(&before.path) {
                Ok(Some(now)) if now == before.text => undone.restored.push(shown(&before.path)),
                Ok(None) => undone
                    .notes
                    .push(format!("{} is gone, because its drive or scheduler is gone", shown(&before.path))),
                Ok(Some(now)) => {
                    let why = tree.write(&before.path, chosen(&before.text)).err().map(|e| e.to_string());
                    let why = why.unwrap_or_else(|| format!("its value stays {}", chosen(&now)));
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
        undone.notes.push("a restart of the machine has ended the settings already".to_owned());
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

/// Writes a setting, and checks whether it holds (rule 3).
fn set(tree: &Tree, path: &str, value: &str) -> std::result::Result<(), String> {
    tree.write(path, value).map_err(|error| match (error.raw_os_error(), path.starts_with("proc/irq/")) {
        (Some(libc::EIO), true) => "the kernel manages this interrupt and does not let it be moved".to_owned(),
        (Some(libc::EINVAL), _) => format!("the kernel does not take {value:?} for this drive"),
        _ => error.to_string(),
    })?;
    match tree.read(path) {
        Ok(Some(now)) if chosen(&now) == value => Ok(()),
        Ok(Some(now)) => Err(format!("the kernel changed it to {}", chosen(&now))),
        Ok(None) => Err("the setting is gone".to_owned()),
        Err(error) => Err(format!("the setting cannot be read back: {error}")),
    }
}

/// The settings that may change along with a setting.
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

/// The text of a file; `None` if there is no such file.
pub(crate) fn text_if_there(path: &std::path::Path) -> Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io("read", path, error)),
    }
}

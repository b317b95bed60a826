//! Settings that survive a restart, as files of udev, sysctl and systemd-tmpfiles.
//!
//! Goals: only whole files of our own, which `tune --undo` removes. Drives are named by their world-wide name, since
//! `sda` may be another drive tomorrow. Non-goals: interrupts, which change their numbers, and features of controllers,
//! which no file sets at start. The plan lists these.

use std::fs;
use std::path::{Path, PathBuf};

use iomill::{Error, Result};
use iomill_platform::drives::Drive;
use iomill_platform::tree::{Tree, shown};

use crate::tune::apply::text_if_there;
use crate::tune::finding::{Finding, Setting, Verdict};
use crate::tune::state::{FILES, State, Store, replace};

/// The directory of the files, unless the user names another.
pub const DIRECTORY: &str = "/etc";

const HEAD: &str = "# Written by `iomill tune --persist`; `iomill tune --undo` puts back what was before.\n";

/// The settings to keep, as text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Texts of [`FILES`]; empty ones are not written.
    texts: [String; 3],
    /// Files of the machine that cannot be kept.
    pub not_kept: Vec<String>,
}

impl Plan {
    /// The plan that keeps the settings of all findings that are good or can be mended.
    pub fn new(tree: &Tree, drives: &[Drive], findings: &[Finding]) -> Plan {
        let is_wanted = |finding: &&Finding| matches!(finding.verdict, Verdict::Good | Verdict::Mend);
        let mut settings: Vec<&Setting> =
            findings.iter().filter(is_wanted).flat_map(|finding| &finding.settings).collect();
        let mut plan = Plan::default();
        let [udev, sysctl, tmpfiles] = &mut plan.texts;
        for drive in drives {
            let device = tree.resolve(&format!("{}/device", drive.directory)).unwrap_or_default();
            let mut rule = String::new();
            settings.retain(|setting| {
                let own = setting.path.strip_prefix(&format!("{}/", drive.directory)).map(str::to_owned);
                let above = || Some(format!("device/{}", setting.path.strip_prefix(&format!("{device}/"))?));
                let Some(attribute) = own.or_else(above) else { return true };
                rule.push_str(&format!(", ATTR{{{attribute}}}=\"{}\"", setting.value));
                false
            });
            if !rule.is_empty() {
                let which = matcher(tree, drive);
                udev.push_str(&format!(
                    "ACTION==\"add|change\", SUBSYSTEM==\"block\", ENV{{DEVTYPE}}==\"disk\", {which}{rule}\n"
                ));
            }
        }
        for setting in settings {
            let Setting { path, value } = setting;
            if let Some(key) = path.strip_prefix("proc/sys/") {
                sysctl.push_str(&format!("{} = {value}\n", key.replace('/', ".")));
            } else if path.starts_with("sys/kernel/mm/") || path.starts_with("sys/devices/system/cpu/") {
                tmpfiles.push_str(&format!("w {} - - - - {value}\n", shown(path)));
            } else {
                plan.not_kept.push(shown(path));
            }
        }
        plan
    }

    /// Writes the files below `directory`, after the old ones went into the state. Returns their paths.
    pub fn write(&self, directory: &Path, boot: &str, store: &Store) -> Result<Vec<PathBuf>> {
        let directory = std::path::absolute(directory).map_err(|e| Error::io("find", directory, e))?;
        if !directory.is_dir() {
            let what = format!("directory {}", directory.display());
            return Err(Error::invalid(what, "it does not exist; make it, or name another with --dir"));
        }
        let mut state = store.load()?.unwrap_or_else(|| State::new(boot));
        let mut paths = Vec::new();
        for (name, text) in FILES.iter().zip(&self.texts) {
            let path = directory.join(name);
            let before = text_if_there(&path)?;
            // A file of ours that is empty now is removed.
            let is_ours = before.as_ref().is_some_and(|text| text.starts_with(HEAD));
            if text.is_empty() && !is_ours {
                continue;
            }
            state.add_file(&path, before);
            paths.push((path, (!text.is_empty()).then(|| format!("{HEAD}{text}"))));
        }
        store.save(&state)?;
        for (path, text) in &paths {
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent).map_err(|e| Error::io("create", parent, e))?;
            }
            replace(path, text.as_deref())?;
        }
        Ok(paths.into_iter().filter(|(_, text)| text.is_some()).map(|(path, _)| path).collect())
    }
}

/// The id of the machine's present start, as states store it.
pub fn boot_of(tree: &Tree) -> String {
    tree.get("proc/sys/kernel/random/boot_id").unwrap_or_default()
}

/// How udev identifies the drive: by its world-wide name, by its serial number, or by its name if it has neither.
fn matcher(tree: &Tree, drive: &Drive) -> String {
    let device = tree.resolve(&format!("{}/device", drive.directory)).unwrap_or_default();
    let tries = [
        (format!("{}/wwid", drive.directory), "wwid"),
        (format!("{device}/wwid"), "device/wwid"),
        (format!("{}/serial", drive.directory), "serial"),
    ];
    for (path, attribute) in tries {
        if let Some(value) = tree.get(&path).filter(|value| !value.is_empty()) {
            return format!("ATTR{{{attribute}}}==\"{}\"", pattern(&value));
        }
    }
    format!("KERNEL==\"{}\"", drive.name)
}

/// A value as a pattern of udev's. A character with a meaning there becomes one that matches any character.
fn pattern(value: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-: ".contains(c);
    value.chars().map(|c| if plain(c) { c } else { '?' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_in_a_name_means_more_than_itself() {
        assert_eq!(pattern("naa.5000c500"), "naa.5000c500");
        assert_eq!(pattern("a\"b*c|d$e"), "a?b?c?d?e");
    }
}

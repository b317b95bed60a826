//! [`Profile`]: measurements of an array's drives, as a file that `open` reads: depth, weights, drive threads.
//!
//! Goals: text that a person can read and change; an error names its line; a drive is known by its id, wherever it is
//! mounted; options take precedence. Non-goals: measuring and writing, which is `iomill probe`; settings of the
//! machine, which is `iomill tune`.

use std::collections::HashSet;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use toml::Spanned;

use crate::catalog::{Catalog, Drive, Id, WEIGHT_MAX};
use crate::drive::DEPTH_MAX;
use crate::error::{Error, Result};

/// The newest format that is read.
const FORMAT: i64 = 1;

/// The most bytes of a profile.
const LEN_MAX: usize = 1 << 20;

/// The number of foreign drives that get a notice each.
const FOREIGN_TOLD: usize = 8;

/// Measurements of an array's drives, which [`ArrayOptions::profile`](super::ArrayOptions::profile) takes: depth,
/// weights and drive threads. `iomill probe --profile FILE` writes them as a text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    /// As [`Tuning::drive_threads`](super::Tuning::drive_threads).
    pub(super) drive_threads: Option<bool>,
    /// Each known by its id.
    pub(super) drives: Vec<ProfileDrive>,
    /// The file, for messages.
    pub(super) path: PathBuf,
}

/// One drive of a [`Profile`]. `None` leaves a value as it is without a profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ProfileDrive {
    /// 32 hexadecimal digits, as [`DriveInfo::id`](super::DriveInfo::id).
    pub id: String,
    /// Its directory when it was measured, for messages.
    pub path: PathBuf,
    /// Most I/Os in flight: 1 to 1,024.
    pub depth: Option<u32>,
    /// Its share in new files with the hash layout: 1 to 1,000. Weights are used only if each drive of the array has
    /// one.
    pub weight: Option<u32>,
}

/// The file. Numbers are as wide as TOML's, so that an error about a number names the bounds.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    #[serde(rename = "format")]
    _format: Option<Spanned<i64>>,
    drive_threads: Option<bool>,
    #[serde(default)]
    drive: Vec<TextDrive>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TextDrive {
    id: Spanned<String>,
    #[serde(default)]
    path: String,
    depth: Option<Spanned<i64>>,
    weight: Option<Spanned<i64>>,
}

impl Profile {
    /// Reads a file that `iomill probe` or a person has written.
    pub fn read(path: impl AsRef<Path>) -> Result<Profile> {
        let path = path.as_ref();
        let failed = |e| Error::io("read the profile", path, e);
        let mut bytes = Vec::new();
        // The path may name a device without an end.
        File::open(path).map_err(failed)?.take(LEN_MAX as u64 + 1).read_to_end(&mut bytes).map_err(failed)?;
        Profile::parse(&bytes, path)
    }

    /// Parses the bytes of a file. `path` is for messages.
    pub(super) fn parse(bytes: &[u8], path: &Path) -> Result<Profile> {
        // The parser's message may quote the file, and goes to a terminal.
        let printable = |c: char| if c.is_control() && c != '\n' { '?' } else { c };
        let corrupt = |why: String| Error::corrupt(path, why.chars().map(printable).collect::<String>()).advise("");
        if bytes.len() > LEN_MAX {
            return Err(corrupt(format!("no profile: more than {LEN_MAX} bytes are too many")));
        }
        let text = std::str::from_utf8(bytes).map_err(|e| {
            let line = 1 + bytes[..e.valid_up_to()].iter().filter(|byte| **byte == b'\n').count();
            corrupt(format!("line {line}: no profile: this is not text"))
        })?;
        let profile = parse(text).map_err(|(at, why)| {
            let line = 1 + text.get(..at).unwrap_or(text).matches('\n').count();
            corrupt(format!("line {line}: {why}"))
        })?;
        Ok(Profile { path: path.to_owned(), ..profile })
    }

    pub(super) fn drive(&self, id: &Id) -> Option<&ProfileDrive> {
        let id = id.to_string();
        self.drives.iter().find(|drive| drive.id == id)
    }

    /// The drives' weights by index, if each has one.
    pub(super) fn weights(&self, drives: &[Drive]) -> Option<Vec<u32>> {
        drives.iter().map(|drive| self.drive(&drive.id)?.weight).collect()
    }

    /// Notices about entries that do not fit the array.
    pub(super) fn misfits(&self, catalog: &Catalog) -> Vec<String> {
        let profile = self.path.display();
        let drives = catalog.drives();
        let mut notices = Vec::new();
        for drive in drives.iter().filter(|drive| self.drive(&drive.id).is_none()) {
            notices.push(format!(
                "profile {profile}: it does not know drive {} (id {}), which is served as without a profile; \
                 measure it for a new profile",
                drive.path().display(),
                drive.id
            ));
        }
        let known: HashSet<String> = drives.iter().map(|drive| drive.id.to_string()).collect();
        let foreign: Vec<&ProfileDrive> = self.drives.iter().filter(|one| !known.contains(&one.id)).collect();
        for foreign in foreign.iter().take(FOREIGN_TOLD) {
            let was = if foreign.path.as_os_str().is_empty() {
                String::new()
            } else {
                // The file may come from anywhere, and the notice goes to a terminal.
                format!(" (it was at {})", foreign.path.display().to_string().replace(char::is_control, "?"))
            };
            notices.push(format!(
                "profile {profile}: its drive {}{was} is not of this array; its values for that drive have no effect",
                foreign.id
            ));
        }
        if let Some(more) = foreign.len().checked_sub(FOREIGN_TOLD).filter(|more| *more > 0) {
            notices.push(format!("profile {profile}: {more} more of its drives are not of this array"));
        }
        if self.weights(drives).is_none() && self.drives.iter().any(|drive| drive.weight.is_some()) {
            notices.push(format!(
                "profile {profile}: it has no weight for some drive of the array, so new files take the weights of the labels"
            ));
        }
        notices
    }
}

/// The profile, or the place of an error in the text and its message.
fn parse(text: &str) -> Result<Profile, (usize, String)> {
    format_of(text)?;
    let parsed: Text = toml::from_str(text).map_err(line_and_message)?;
    let bounded = |value: Option<Spanned<i64>>, what: &str, most: u32| match value {
        None => Ok(None),
        Some(value) => match u32::try_from(*value.get_ref()) {
            Ok(number) if (1..=most).contains(&number) => Ok(Some(number)),
            _ => Err((value.span().start, format!("{what} = {}: it is 1 to {most}", value.get_ref()))),
        },
    };
    let (mut drives, mut ids) = (Vec::new(), HashSet::new());
    for drive in parsed.drive {
        let at = drive.id.span().start;
        let id: Id = drive
            .id
            .get_ref()
            .parse()
            .map_err(|why| (at, format!("{why}; the array's information has that of each drive")))?;
        let id = id.to_string();
        if !ids.insert(id.clone()) {
            return Err((at, format!("drive {id} occurs twice")));
        }
        let (depth, weight) = (bounded(drive.depth, "depth", DEPTH_MAX)?, bounded(drive.weight, "weight", WEIGHT_MAX)?);
        drives.push(ProfileDrive { id, path: drive.path.into(), depth, weight });
    }
    Ok(Profile { drive_threads: parsed.drive_threads, drives, path: PathBuf::new() })
}

fn line_and_message(error: toml::de::Error) -> (usize, String) {
    (error.span().map_or(0, |span| span.start), error.message().replace('\n', "; "))
}

/// Checks the format before anything else: a later format may have other keys.
fn format_of(text: &str) -> Result<(), (usize, String)> {
    #[derive(Deserialize)]
    struct Head {
        format: Option<Spanned<i64>>,
    }
    let head: Head = toml::from_str(text).map_err(line_and_message)?;
    let Some(format) = head.format else {
        return Err((0, format!("no profile of iomill: it lacks `format = {FORMAT}`; probing the drives writes one")));
    };
    match *format.get_ref() {
        FORMAT => Ok(()),
        later if later > FORMAT => {
            let why =
                format!("the profile is of format {later}, and this version of iomill knows {FORMAT}; use a later one");
            Err((format.span().start, why))
        }
        other => Err((format.span().start, format!("there is no format {other}; it is {FORMAT}"))),
    }
}

#[cfg(test)]
#[path = "profile_tests.rs"]
mod tests;

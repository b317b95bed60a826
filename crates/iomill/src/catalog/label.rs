//! The [`Label`] of a drive: which array it belongs to, which of its drives it is, and where the others were last. Its
//! form is TOML, then one last line `# checksum xxh3:<16 hex>` over all bytes before it.
//!
//! Goals: a person can read it and, with `iomill check --repair`, mend it; a changed or missing byte is found.
//! Non-goals: protection against malice.

use std::collections::HashSet;
use std::fmt;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::id::{Id, parse_hex_u64};
use crate::sys::hash::xxh3_64;

pub use crate::layout::{DRIVES_MAX, WEIGHT_MAX};
/// Most drives with a copy of the log.
pub const COPIES_MAX: usize = 3;
/// Largest label in bytes: 256 drives with paths of 4,096 bytes, escaped, fit.
pub(super) const LABEL_MAX_BYTES: usize = 8 << 20;
/// The format this version writes, and the newest it reads.
const FORMAT: i64 = 2;

const CHECKSUM: &str = "# checksum ";

/// A drive as every label of its array lists it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LabelDrive {
    /// The drive's id.
    pub id: Id,
    /// Its place in the array's order, from 0.
    pub index: u16,
    /// The directory it was last seen in: a hint, which the id found there proves.
    pub path: String,
    /// Its share in hashed files, relative to the other drives'.
    pub weight: u32,
    /// Its part in the array.
    pub state: DriveState,
}

/// A drive's part in the array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DriveState {
    /// It holds parts.
    In,
    /// It comes in, and gets parts. This version serves no array with such a drive, nor with those below.
    Coming,
    /// It gets no new parts.
    Leaving,
    /// It has left. Its index is not used again.
    Gone,
}

/// Names of what a program must know to use the array. This version knows none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LabelFeatures {
    /// A program that does not know one may use the array.
    pub compatible: Vec<String>,
    /// A program that does not know one may only read.
    pub read_only: Vec<String>,
    /// A program that does not know one must not use the array.
    pub incompatible: Vec<String>,
}

/// A label.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Label {
    #[serde(deserialize_with = "known_format")]
    format: i64,
    /// The array's id.
    pub array: Id,
    /// Counts the versions of what follows; 0 while the array is being made (rule 9).
    pub epoch: u64,
    /// The id of the drive that carries this label.
    pub drive: Id,
    /// The index of that drive.
    pub index: u16,
    /// The number of drives that are to have a copy of the log: the first ones.
    pub copies: u16,
    /// The drives with a log that counts, by index (C10).
    pub voters: Vec<u16>,
    /// What a program must know.
    pub features: LabelFeatures,
    /// All drives, by index.
    pub drives: Vec<LabelDrive>,
}

/// What all labels of an epoch say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LabelBody {
    pub(super) array: Id,
    pub(super) epoch: u64,
    pub(super) copies: u16,
    pub(super) voters: Vec<u16>,
    pub(super) features: LabelFeatures,
    pub(super) drives: Vec<LabelDrive>,
}

impl LabelBody {
    /// The label of one drive.
    pub(super) fn label_of(&self, index: u16) -> Label {
        let LabelBody { array, epoch, copies, voters, features, drives } = self.clone();
        let drive = drives[usize::from(index)].id;
        Label { format: FORMAT, array, epoch, drive, index, copies, voters, features, drives }
    }
}

impl Label {
    /// What all labels of its epoch say.
    pub(super) fn body(&self) -> LabelBody {
        let Label { array, epoch, copies, voters, features, drives, .. } = self.clone();
        LabelBody { array, epoch, copies, voters, features, drives }
    }

    /// Whether both say the same about the array. The drives that carry them may differ.
    pub(super) fn agrees_with(&self, other: &Label) -> bool {
        self.body() == other.body()
    }

    /// Why this version cannot use the array.
    pub(super) fn is_beyond(&self, writes: bool) -> Option<(String, &'static str)> {
        let later = "a later version of iomill made it so; use that version";
        let features = &self.features;
        if let Some(feature) = features.incompatible.first() {
            return Some((format!("the array has the feature {feature:?}, which this version does not know"), later));
        }
        if let Some(feature) = features.read_only.first().filter(|_| writes) {
            let help = "open it for reading, or use the version of iomill that made it so";
            return Some((format!("the array has the feature {feature:?}, which this version cannot write"), help));
        }
        let other = self.drives.iter().find(|drive| drive.state != DriveState::In)?;
        Some((format!("drive {} is {:?}", other.index, other.state), later))
    }

    pub(super) fn to_bytes(&self) -> Result<Vec<u8>, String> {
        seal(self)
    }

    fn fault(&self) -> Option<String> {
        let count = self.drives.len();
        if count == 0 || count > DRIVES_MAX {
            return Some(format!("lists {count} drives; an array has 1 to {DRIVES_MAX}"));
        }
        if i64::try_from(self.epoch).is_err() {
            return Some(format!("has the epoch {}, which is too large", self.epoch));
        }
        let mut ids = HashSet::new();
        for (place, drive) in self.drives.iter().enumerate() {
            if usize::from(drive.index) != place {
                return Some(format!("lists drive {} at place {place}", drive.index));
            }
            if !ids.insert(drive.id) {
                return Some(format!("lists drive {} twice", drive.id));
            }
            if drive.weight == 0 || drive.weight > WEIGHT_MAX {
                return Some(format!("gives drive {place} the weight {}; it is 1 to {WEIGHT_MAX}", drive.weight));
            }
        }
        if self.copies == 0 || usize::from(self.copies) > COPIES_MAX.min(count) {
            return Some(format!("has {} copies of the log for {count} drives", self.copies));
        }
        let mut voters = self.voters.clone();
        voters.sort_unstable();
        voters.dedup();
        let are_voters = (1..=COPIES_MAX).contains(&voters.len()) && voters == self.voters;
        if !are_voters || voters.iter().any(|voter| usize::from(*voter) >= count) {
            let what = format!("has the voters {:?}; they are 1 to {COPIES_MAX} drives in rising order", self.voters);
            return Some(what);
        }
        match self.drives.get(usize::from(self.index)) {
            Some(own) if own.id == self.drive => None,
            _ => Some(format!("says it is drive {} with index {}, but does not list it so", self.drive, self.index)),
        }
    }
}

/// Reads the bytes of a drive's label. Never panics, whatever the bytes.
pub fn parse_label(bytes: &[u8]) -> Result<Label, TextError> {
    parse_label_as(bytes, Signature::Required).map(|(label, _)| label)
}

/// Reads a label, and says whether it was signed.
pub(super) fn parse_label_as(bytes: &[u8], signature: Signature) -> Result<(Label, bool), TextError> {
    let opened = open::<Label>(bytes, signature)?;
    match opened.body.fault() {
        None => Ok((opened.body, opened.signed)),
        Some(fault) => Err(TextError::Bad(fault)),
    }
}

/// Why a label cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TextError {
    /// A later version wrote it, in this format.
    Newer(i64),
    /// A version before the first release wrote it, in this format.
    Older(i64),
    /// It does not hold what it should: what is wrong.
    Bad(String),
}

impl fmt::Display for TextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TextError::Newer(format) => write!(
                f,
                "is of format {format}, and this version of iomill knows formats up to {FORMAT}; \
                 use a version that knows format {format}"
            ),
            TextError::Older(format) => write!(
                f,
                "is of format {format}, which iomill had before its first release; copy the files out with that version, \
                 remove the directory `iomill` of each drive, and make a new array"
            ),
            TextError::Bad(why) => f.write_str(why),
        }
    }
}

/// Whether a text without a checksum counts: only `check --repair` accepts a text that a person has mended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signature {
    /// The checksum must be right.
    Required,
    /// `# checksum none` is accepted.
    Waived,
}

/// Writes `body` with its checksum.
fn seal(body: &impl Serialize) -> Result<Vec<u8>, String> {
    let mut text = toml::to_string(body).map_err(|error| error.to_string())?;
    let checksum = xxh3_64(text.as_bytes());
    text.push_str(&format!("{CHECKSUM}xxh3:{checksum:016x}\n"));
    Ok(text.into_bytes())
}

/// A text that has been read, and whether it was signed.
#[derive(Debug)]
struct Opened<T> {
    body: T,
    signed: bool,
}

/// Reads what `seal` wrote.
fn open<T: DeserializeOwned>(bytes: &[u8], signature: Signature) -> Result<Opened<T>, TextError> {
    let text = std::str::from_utf8(bytes).map_err(|_| TextError::Bad("is not text".to_owned()))?;
    let (text, signed) = verify(text, signature)?;
    match toml::from_str::<T>(text) {
        Ok(body) => Ok(Opened { body, signed }),
        Err(error) => Err(explain(text, &error)),
    }
}

/// Separates the text from its checksum line and checks it.
fn verify(text: &str, signature: Signature) -> Result<(&str, bool), TextError> {
    let bad = |why: &str| Err(TextError::Bad(why.to_owned()));
    if text.is_empty() {
        return bad("is empty");
    }
    let Some(lines) = text.strip_suffix('\n') else { return bad("is cut off: its last line has no end") };
    let start = lines.rfind('\n').map_or(0, |end| end + 1);
    let Some(checksum) = lines[start..].strip_prefix(CHECKSUM) else {
        return bad("is cut off: its last line is not a checksum");
    };
    let body = &text[..start];
    if checksum == "none" {
        return match signature {
            Signature::Waived => Ok((body, false)),
            Signature::Required => bad("was mended by hand and is not signed yet; check and repair the array"),
        };
    }
    let Some(expected) = checksum.strip_prefix("xxh3:").and_then(parse_hex_u64) else {
        return bad("has a last line that is not a checksum");
    };
    if xxh3_64(body.as_bytes()) == expected { Ok((body, true)) } else { bad("has changed: its checksum is wrong") }
}

/// If the text has a later format, that is the reason why it cannot be read.
fn explain(text: &str, error: &toml::de::Error) -> TextError {
    let format = text.parse::<toml::Table>().ok().and_then(|table| table.get("format")?.as_integer());
    match format {
        Some(format) if format > FORMAT => TextError::Newer(format),
        Some(FORMAT) => {
            let key = error.span().and_then(|span| text.get(span)).filter(|part| !part.contains('\n'));
            TextError::Bad(match key {
                Some(key) => format!("cannot be read: {} (at `{key}`)", error.message()),
                None => format!("cannot be read: {}", error.message()),
            })
        }
        Some(format) if format > 0 => TextError::Older(format),
        Some(format) => TextError::Bad(format!("is of format {format}, which does not exist")),
        None => TextError::Bad(format!("cannot be read: {}", error.message())),
    }
}

/// The `format` key. Any format but ours ends the parse, so that `explain` decides.
fn known_format<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
    let format = <i64 as serde::Deserialize>::deserialize(deserializer)?;
    if format == FORMAT { Ok(format) } else { Err(serde::de::Error::custom(format!("format {format} is not known"))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Body {
        #[serde(deserialize_with = "known_format")]
        format: i64,
        word: String,
    }

    fn signed(text: &str) -> Vec<u8> {
        format!("{text}# checksum xxh3:{:016x}\n", xxh3_64(text.as_bytes())).into_bytes()
    }

    fn fault(bytes: &[u8]) -> String {
        open::<Body>(bytes, Signature::Required).unwrap_err().to_string()
    }

    #[test]
    fn what_is_sealed_opens() {
        let body = Body { format: 2, word: "# checksum xxh3:00\n\"".to_owned() };
        let bytes = seal(&body).unwrap();
        let opened = open::<Body>(&bytes, Signature::Required).unwrap();
        assert!(opened.signed);
        assert_eq!(opened.body, body);
    }

    #[test]
    fn faults_are_told_apart() {
        assert_eq!(
            open::<Body>(&signed("format = 7\nnew = 1\n"), Signature::Required).unwrap_err(),
            TextError::Newer(7)
        );
        assert!(fault(&signed("format = 7\nnew = 1\n")).contains("knows format 7"));
        assert!(fault(&signed("format = 2\nword = \"a\"\nwrod = 1\n")).contains("wrod"));
        assert_eq!(
            open::<Body>(&signed("format = 1\nold = 1\n"), Signature::Required).unwrap_err(),
            TextError::Older(1)
        );
        assert!(fault(&signed("format = 1\nold = 1\n")).contains("copy the files out"));
        assert!(fault(&signed("format = 0\nword = \"a\"\n")).contains("does not exist"));
        assert!(fault(&signed("word = \"a\"\n")).contains("format"));
        assert!(fault(&signed("word = \n")).contains("cannot be read"));
        assert!(fault(b"").contains("empty"));
        assert!(fault(b"\xff\xfe\n").contains("not text"));
        assert!(fault(b"format = 2\nword = \"a\"\n# checksum xxh3:0000000000000000\n").contains("checksum is wrong"));
    }

    #[test]
    fn a_mended_text_counts_only_when_asked_for() {
        let mended = b"# note to self\nword = \"b\" # was a\nformat = 2\n# checksum none\n";
        assert!(fault(mended).contains("check and repair"));
        let opened = open::<Body>(mended, Signature::Waived).unwrap();
        assert!(!opened.signed);
        assert_eq!(opened.body.word, "b");
    }
}

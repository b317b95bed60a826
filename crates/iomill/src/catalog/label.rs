//! The label of a drive: which array it belongs to, which of its drives it is, and where the others were last.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use super::id::Id;
use super::text::{self, FORMAT, Signature, TextError};

pub use crate::layout::{DRIVES_MAX, WEIGHT_MAX};
/// Most drives with a copy of the log.
pub const COPIES_MAX: usize = 3;
/// Largest label in bytes: 256 drives with paths of 4,096 bytes, escaped, fit.
pub(super) const LABEL_MAX_BYTES: usize = 8 << 20;

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
    #[serde(deserialize_with = "text::known_format")]
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
        text::seal(self)
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
    let opened = text::open::<Label>(bytes, signature)?;
    match opened.body.fault() {
        None => Ok((opened.body, opened.signed)),
        Some(fault) => Err(TextError::Bad(fault)),
    }
}

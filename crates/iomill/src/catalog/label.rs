//! The label of a drive: which array it belongs to, which of its drives it is, and where the others were last.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use super::id::Id;
use super::text::{self, FORMAT, Signature, TextError};

pub use crate::layout::{DRIVES_MAX, WEIGHT_MAX};
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
    /// It holds parts and records.
    In,
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
    /// All drives, by index.
    pub drives: Vec<LabelDrive>,
}

impl Label {
    /// The label of the drive that the list gives as `own`.
    pub(super) fn of(own: &LabelDrive, array: Id, epoch: u64, drives: Vec<LabelDrive>) -> Label {
        Label { format: FORMAT, array, epoch, drive: own.id, index: own.index, drives }
    }

    /// Whether both say the same about the array. The drives that carry them may differ.
    pub(super) fn agrees_with(&self, other: &Label) -> bool {
        self.array == other.array && self.epoch == other.epoch && self.drives == other.drives
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

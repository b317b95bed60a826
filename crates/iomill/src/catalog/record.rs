//! The record of a file: everything that the catalog knows of it except its length.

use std::collections::{BTreeMap, HashSet};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::id::{Id, parse_hex_u64};
use super::label::{DRIVES_MAX, WEIGHT_MAX};
use super::name::{key_fault, name_fault};
use super::text::{self, FORMAT, Signature, TextError};
use crate::layout::LayoutKind;

/// Largest record in bytes. A reader takes a record in one read of this size.
pub const RECORD_MAX_BYTES: usize = 64 << 10;
/// Blocks are whole pages.
pub const PAGE_BYTES: u32 = 4096;
/// Largest block in bytes.
pub const BLOCK_MAX_BYTES: u32 = 1 << 30;
/// On how many drives a file's length is kept, at most.
pub const LENGTH_COPIES_MAX: usize = 3;

/// Whether a file lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RecordState {
    /// The file lives.
    Live,
    /// A tombstone: the file is deleted, and its parts are being removed.
    Deleted,
}

/// One version of what the catalog knows of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    #[serde(deserialize_with = "text::known_format")]
    pub(super) format: i64,
    /// The file's id; its parts are named by it.
    pub id: Id,
    /// Counts the versions of this record, from 1.
    pub generation: u64,
    /// Whether the file lives.
    pub state: RecordState,
    /// Its name.
    pub name: String,
    /// How its blocks are spread.
    pub layout: LayoutKind,
    /// Unit of placement in bytes, whole pages.
    pub block_bytes: u32,
    /// Its drives by index, in the order that the layout counts them.
    pub drives: Vec<u16>,
    /// The weights that those drives had when the file was made. They never change.
    pub weights: Vec<u32>,
    /// Key of the hash layout's permutation.
    #[serde(with = "hex_u64")]
    pub key: u64,
    /// The drives that keep its length: one to three of `drives`.
    pub length_drives: Vec<u16>,
    /// The file that had this name before. It is dead, whatever its own record says (rule 5).
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub replaces: Option<Id>,
    /// The attributes that users have set.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub attributes: BTreeMap<String, String>,
}

/// The properties of a new file.
#[derive(Clone, Debug)]
pub struct FileSpec {
    /// How its blocks are spread.
    pub layout: LayoutKind,
    /// Unit of placement in bytes: whole pages.
    pub block_bytes: u32,
    /// Its drives by index, in order; none twice.
    pub drives: Vec<u16>,
    /// Key of the hash layout's permutation.
    pub key: u64,
    /// Weights of all drives of the array by index, if not those of the labels.
    pub weights: Option<Vec<u32>>,
}

impl Record {
    /// The first version of a new file's record. `weights` are those of all drives of the array.
    pub(super) fn first(id: Id, name: &str, spec: &FileSpec, weights: &[u32]) -> Result<Record, String> {
        let count = weights.len();
        let weight_of = |&drive: &u16| {
            let weight = weights.get(usize::from(drive)).copied();
            weight.ok_or_else(|| format!("names drive {drive}, but the array has drives 0 to {}", count - 1))
        };
        let record = Record {
            format: FORMAT,
            id,
            generation: 1,
            state: RecordState::Live,
            name: name.to_owned(),
            layout: spec.layout,
            block_bytes: spec.block_bytes,
            drives: spec.drives.clone(),
            weights: spec.drives.iter().map(weight_of).collect::<Result<_, _>>()?,
            key: spec.key,
            length_drives: spec.drives.iter().copied().take(LENGTH_COPIES_MAX).collect(),
            replaces: None,
            attributes: BTreeMap::new(),
        };
        record.fault().map_or(Ok(record), Err)
    }

    /// Whether the file lives by its own record.
    pub fn is_live(&self) -> bool {
        self.state == RecordState::Live
    }

    pub(super) fn to_bytes(&self) -> Result<Vec<u8>, String> {
        let bytes = text::seal(self)?;
        if bytes.len() < RECORD_MAX_BYTES {
            Ok(bytes)
        } else {
            Err(format!("its record would have {} bytes; attributes must fit into {RECORD_MAX_BYTES}", bytes.len()))
        }
    }

    /// Why this is not a valid record.
    fn fault(&self) -> Option<String> {
        if self.generation == 0 || i64::try_from(self.generation).is_err() {
            return Some(format!("has the generation {}", self.generation));
        }
        if let Some(fault) = name_fault(&self.name) {
            return Some(format!("has the name {:?}: {fault}", self.name));
        }
        if self.block_bytes == 0 || !self.block_bytes.is_multiple_of(PAGE_BYTES) || self.block_bytes > BLOCK_MAX_BYTES {
            return Some(format!(
                "has blocks of {} bytes; they are multiples of {PAGE_BYTES} up to {BLOCK_MAX_BYTES}",
                self.block_bytes
            ));
        }
        if self.replaces == Some(self.id) {
            return Some("replaces itself".to_owned());
        }
        let key =
            self.attributes.keys().find_map(|key| Some(format!("has the attribute {key:?}: {}", key_fault(key)?)));
        key.or_else(|| self.drives_fault())
    }

    fn drives_fault(&self) -> Option<String> {
        let drives: HashSet<u16> = self.drives.iter().copied().collect();
        if drives.is_empty() || self.drives.len() > DRIVES_MAX || drives.len() != self.drives.len() {
            return Some(format!("has the drives {:?}; they are 1 to {DRIVES_MAX}, none twice", self.drives));
        }
        if self.weights.len() != self.drives.len() || self.weights.iter().any(|&w| w == 0 || w > WEIGHT_MAX) {
            return Some(format!("has the weights {:?}; each drive has one from 1 to {WEIGHT_MAX}", self.weights));
        }
        let keepers: HashSet<u16> = self.length_drives.iter().copied().collect();
        let few = keepers.len() == self.length_drives.len() && (1..=LENGTH_COPIES_MAX).contains(&keepers.len());
        if few && keepers.is_subset(&drives) {
            return None;
        }
        Some(format!("keeps its length on {:?}; that is 1 to {LENGTH_COPIES_MAX} of its drives", self.length_drives))
    }
}

/// Reads the bytes of a drive's record. Never panics, whatever the bytes.
pub fn parse_record(bytes: &[u8]) -> Result<Record, TextError> {
    parse_record_as(bytes, Signature::Required).map(|(record, _)| record)
}

/// Reads a record, and says whether it was signed.
pub(super) fn parse_record_as(bytes: &[u8], signature: Signature) -> Result<(Record, bool), TextError> {
    if bytes.len() >= RECORD_MAX_BYTES {
        return Err(TextError::Bad(format!("is larger than a record can be ({RECORD_MAX_BYTES} bytes)")));
    }
    let opened = text::open::<Record>(bytes, signature)?;
    match opened.body.fault() {
        None => Ok((opened.body, opened.signed)),
        Some(fault) => Err(TextError::Bad(fault)),
    }
}

/// The path of a file's record on each drive.
pub fn record_path(id: &Id) -> String {
    format!("files/{id}.record")
}

/// The path of a file's length on the drives that keep it.
pub fn length_path(id: &Id) -> String {
    format!("files/{id}.length")
}

/// The path of a file's part on each of its drives.
pub fn part_path(id: &Id) -> String {
    format!("parts/{id}")
}

/// TOML's integers have a sign, so that not every `u64` fits.
mod hex_u64 {
    use super::*;

    pub(super) fn serialize<S: Serializer>(value: &u64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{value:016x}"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
        let text = String::deserialize(deserializer)?;
        parse_hex_u64(&text)
            .ok_or_else(|| serde::de::Error::custom(format!("{text:?} does not have 16 hexadecimal digits")))
    }
}

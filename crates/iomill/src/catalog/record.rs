//! [`Record`]: the catalog's entry of a file, in the form of the rooms above. Non-goals: its form in the log
//! (`log::record`).

use std::collections::{BTreeMap, HashSet};

use super::id::{Id, parse_hex_u64};
use super::label::{DRIVES_MAX, WEIGHT_MAX};
use super::log::record::{BLOCK_MAX_BYTES, Extent, FileLife, FileRecord, LayoutRecord, PAGE_BYTES, SUMS_IN_PARTS};
use super::state::files::Files;
use crate::layout::Layout;

/// Longest file in bytes: offsets are signed in the kernel.
pub(super) const LENGTH_MAX: u64 = i64::MAX as u64;

/// The suffix of the name of a file of sums, after the name of its part.
const SUMS_SUFFIX: &str = ".sums";

/// The catalog's entry of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Names the file in this process: a part of the array's id, and the number.
    pub id: Id,
    /// Its number: its parts are named by it. It is the version of the name, too: a replacement has another one.
    pub number: u64,
    /// Its name; empty if it is dying.
    pub name: String,
    /// Bytes.
    pub length: u64,
    /// When it was made, in nanoseconds since 1970.
    pub created_ns: u64,
    /// When a sync last followed a change, in nanoseconds since 1970.
    pub modified_ns: u64,
    /// How its blocks are spread.
    pub layout: Layout,
    /// Unit of placement in bytes, whole pages.
    pub block_bytes: u32,
    /// Its drives by index, in the order that the layout counts them.
    pub drives: Vec<u16>,
    /// The weights that those drives had when the file was made. They never change.
    pub weights: Vec<u32>,
    /// Key of the hash layout's permutation.
    pub key: u64,
    /// Whether it may have parts.
    pub has_parts: bool,
    /// Where its bytes are if it is small.
    pub extent: Option<Extent>,
    /// The field of sums, if its pages have them (`log::record`).
    pub sums: Option<Box<[u8]>>,
    /// The attributes that users have set.
    pub attributes: BTreeMap<String, String>,
}

/// The properties of a new file.
#[derive(Clone, Debug)]
pub struct FileSpec {
    /// How its blocks are spread.
    pub layout: Layout,
    /// Unit of placement in bytes: whole pages.
    pub block_bytes: u32,
    /// Its drives by index, in order; none twice.
    pub drives: Vec<u16>,
    /// Key of the hash layout's permutation.
    pub key: u64,
    /// Weights of all drives of the array by index, if not those of the labels.
    pub weights: Option<Vec<u32>>,
    /// Whether its pages have sums.
    pub sums: bool,
}

impl Record {
    /// What `files` say of one of them, in the array `array`.
    pub(super) fn of(array: Id, files: &Files, file: &FileRecord<'_>) -> Record {
        let layout = files.layout(file.layout);
        let drives = layout.map_or(&[][..], |layout| &layout.drives);
        let attributes = files.attributes(file.number);
        Record {
            id: file_id(array, file.number),
            number: file.number,
            name: file.name.to_owned(),
            length: file.length,
            created_ns: file.created_ns,
            modified_ns: file.modified_ns,
            layout: layout.map_or(Layout::Striping, |layout| layout.kind),
            block_bytes: layout.map_or(PAGE_BYTES, |layout| layout.block_bytes),
            drives: drives.iter().map(|(drive, _)| *drive).collect(),
            weights: drives.iter().map(|(_, weight)| u32::from(*weight)).collect(),
            key: file.key,
            has_parts: file.has_parts,
            extent: file.extent,
            sums: file.sums.map(Into::into),
            attributes: attributes.map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
        }
    }

    /// Whether it has a name.
    pub fn is_live(&self) -> bool {
        !self.name.is_empty()
    }
}

/// The id of a file, which no file of another array in this process is likely to have.
pub(super) fn file_id(array: Id, number: u64) -> Id {
    let mut bytes = array.0;
    bytes[8..].copy_from_slice(&number.to_be_bytes());
    Id(bytes)
}

/// The path of a file's part on each of its drives.
pub fn part_path(number: u64) -> String {
    format!("parts/{number:016x}")
}

/// The path of the sums of a file's part, beside it.
pub fn sums_path(number: u64) -> String {
    format!("parts/{number:016x}{SUMS_SUFFIX}")
}

/// The number of the file to which an entry of the directory of parts belongs, as a part or as its sums.
pub(super) fn number_of_part(name: &str) -> Option<u64> {
    parse_hex_u64(name.strip_suffix(SUMS_SUFFIX).unwrap_or(name))
}

/// The layout of a new file, still without its number. `weights` are those of all drives of the array. An error says
/// what is wrong.
pub(super) fn layout_of(spec: &FileSpec, weights: &[u32]) -> Result<LayoutRecord, String> {
    let block_bytes = spec.block_bytes;
    if block_bytes == 0 || !block_bytes.is_multiple_of(PAGE_BYTES) || block_bytes > BLOCK_MAX_BYTES {
        let bounds = format!("they are multiples of {PAGE_BYTES} up to {BLOCK_MAX_BYTES}");
        return Err(format!("has blocks of {block_bytes} bytes; {bounds}"));
    }
    let different: HashSet<u16> = spec.drives.iter().copied().collect();
    if different.is_empty() || spec.drives.len() > DRIVES_MAX || different.len() != spec.drives.len() {
        return Err(format!("has the drives {:?}; they are 1 to {DRIVES_MAX}, none twice", spec.drives));
    }
    let drive = |&drive: &u16| {
        let weight = weights.get(usize::from(drive)).copied();
        let beyond = || format!("names drive {drive}, but the array has drives 0 to {}", weights.len() - 1);
        let weight = weight.ok_or_else(beyond)?;
        if weight == 0 || weight > WEIGHT_MAX {
            return Err(format!("has the weight {weight}; it is 1 to {WEIGHT_MAX}"));
        }
        Ok((drive, weight as u16))
    };
    let drives = spec.drives.iter().map(drive).collect::<Result<_, _>>()?;
    Ok(LayoutRecord { number: 0, kind: spec.layout, block_bytes, drives })
}

/// A new file of length 0. `spec` is its key, and whether its pages have sums.
pub(super) fn new_file(number: u64, name: &str, layout: u32, spec: (u64, bool), now_ns: u64) -> FileRecord<'_> {
    let (key, has_sums) = spec;
    FileRecord {
        number,
        length: 0,
        created_ns: now_ns,
        modified_ns: now_ns,
        key,
        layout,
        life: FileLife::Live,
        has_parts: false,
        name,
        extent: None,
        sums: has_sums.then_some(&[SUMS_IN_PARTS]),
    }
}

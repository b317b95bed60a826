//! [`LogRecord`]: the content of one record of the log, and its bytes. Non-goals: groups of records (`group`), and the
//! state that the records of a file give together.

use std::fmt;

use super::bytes::Cursor;
use crate::catalog::name::{key_fault, name_fault};
use crate::layout::{DRIVES_MAX, Layout, WEIGHT_MAX};

/// Blocks are whole pages.
pub const PAGE_BYTES: u32 = 4096;
/// Largest block in bytes.
pub const BLOCK_MAX_BYTES: u32 = 1 << 30;
/// The largest value of an attribute in bytes.
pub const ATTRIBUTE_MAX_BYTES: usize = 64 << 10;
/// A program that does not know the kind may skip the record.
const MAY_SKIP: u16 = 1 << 15;
/// A program that does not know the kind may skip the record if it only reads.
const READERS_MAY_SKIP: u16 = 1 << 14;
/// A program may skip a field with an unknown tag from here on.
const SKIPPED_TAGS: u8 = 128;
/// Bytes before the body of a record: kind and length.
pub const RECORD_HEADER_BYTES: usize = 6;

const LAYOUT: u16 = 1;
const FILE: u16 = 2;
const ATTRIBUTE: u16 = 3;
const GONE: u16 = 4;
const DRIVES: u16 = 5;
const CLOSED: u16 = 6;
const SHARED: u16 = 7;
const NUMBERS: u16 = 8;
const END: u16 = 9;
const ORDER: u16 = 10 | MAY_SKIP;
const CONTINUES: u16 = 11;
const FIELD_EXTENT: u8 = 1;
const FIELD_SUMS: u8 = 2;
const HAS_PARTS: u8 = 1;
/// The most bytes of the field of sums: its kind, and the sums of a small file's pages.
const SUMS_MAX_BYTES: usize = 1 + 4 * 16;

/// The kind of a field without sums: they are beside the parts, or the file has no page yet (C55).
pub const SUMS_IN_PARTS: u8 = 0;
/// They follow, for the pages of a small file.
pub const SUMS_HERE: u8 = 1;
/// A small file was to be written to, so its sums are made anew from its pages (C60).
pub const SUMS_UNKNOWN: u8 = 2;

/// Why bytes of the log cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogFault {
    /// The bytes are not those of a writer of this format.
    Damaged(String),
    /// A later version wrote them. A newer program may read them.
    Newer(String),
}

impl fmt::Display for LogFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LogFault::Damaged(why) => f.write_str(why),
            LogFault::Newer(what) => write!(f, "{what}, which a later version of iomill wrote; use that version"),
        }
    }
}

/// The layout of files' blocks on the drives.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LayoutRecord {
    /// Its number, by which files name it.
    pub number: u32,
    /// The function.
    pub kind: Layout,
    /// Unit of placement in bytes, whole pages.
    pub block_bytes: u32,
    /// The drives by index, in the order in which the layout counts them, and their weights.
    pub drives: Vec<(u16, u16)>,
}

/// Whether a file has a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileLife {
    /// It has a name.
    Live,
    /// It lost its name. Handles or the next writer still have to free its space (C23).
    Dying,
}

/// The place of a small file's bytes (C34).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Extent {
    /// The drive by index.
    pub drive: u16,
    /// Number of the shared part on that drive.
    pub shared: u16,
    /// Its first page there.
    pub page: u32,
    /// The number of pages, from 1.
    pub pages: u16,
}

/// All that the log says of one file, except for its attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileRecord<'a> {
    /// Its number, which is also the version of its name (C24).
    pub number: u64,
    /// Bytes.
    pub length: u64,
    /// Nanoseconds since the start of 1970.
    pub created_ns: u64,
    /// Nanoseconds since the start of 1970.
    pub modified_ns: u64,
    /// Key of the hash layout.
    pub key: u64,
    /// Number of its layout.
    pub layout: u32,
    /// Whether it has a name.
    pub life: FileLife,
    /// Whether it may have parts (C22).
    pub has_parts: bool,
    /// Its name; empty if it is dying.
    pub name: &'a str,
    /// The pages of a small file.
    pub extent: Option<Extent>,
    /// The field of sums, if its pages have them: [`SUMS_IN_PARTS`], [`SUMS_HERE`] or [`SUMS_UNKNOWN`], and what
    /// follows.
    pub sums: Option<&'a [u8]>,
}

/// The state of a drive in the array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriveRole {
    /// It holds parts.
    In,
    /// It is being added, and gets parts.
    Coming,
    /// It gets no new parts.
    Leaving,
    /// It has left. Its index is not used again.
    Gone,
}

/// One record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogRecord<'a> {
    /// A layout that later files name.
    Layout(LayoutRecord),
    /// The state of a file.
    File(FileRecord<'a>),
    /// An attribute of a file: its value, or its removal.
    Attribute {
        /// The file.
        number: u64,
        /// The key.
        key: &'a str,
        /// The value.
        value: Option<&'a str>,
    },
    /// Nothing is left of this file.
    Gone(u64),
    /// Which drives there are, by index, and whether each is a voter.
    Drives {
        /// The epoch of the labels that say the same.
        epoch: u64,
        /// Role, and whether it is a voter.
        drives: Vec<(DriveRole, bool)>,
    },
    /// The writer has ended (C8).
    Closed,
    /// A shared part, and how long it is.
    Shared {
        /// The drive by index.
        drive: u16,
        /// Its number on that drive.
        shared: u16,
        /// The number of its pages.
        pages: u32,
    },
    /// All later files have numbers from this on (C24).
    Numbers(u64),
    /// The last record of a checkpoint.
    End {
        /// The number of files in the checkpoint.
        files: u64,
        /// The number of the next file.
        next: u64,
        /// The last group that was applied when the checkpoint ended.
        sequence: u64,
    },
    /// Numbers of files, sorted by name: a hint.
    Order(Vec<u64>),
    /// The log continues in the segment with this number, which exists. The last record of a segment (C46).
    Continues(u64),
}

impl LogRecord<'_> {
    /// Appends the bytes of the record.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&[0; RECORD_HEADER_BYTES]);
        let kind = self.encode_body(out);
        let body_bytes = (out.len() - start - RECORD_HEADER_BYTES) as u32;
        out[start..start + 2].copy_from_slice(&kind.to_le_bytes());
        out[start + 2..start + RECORD_HEADER_BYTES].copy_from_slice(&body_bytes.to_le_bytes());
    }

    /// Appends the body. Returns the kind.
    fn encode_body(&self, out: &mut Vec<u8>) -> u16 {
        match self {
            LogRecord::Layout(layout) => {
                encode_layout(layout, out);
                LAYOUT
            }
            LogRecord::File(file) => {
                encode_file(file, out);
                FILE
            }
            LogRecord::Attribute { number, key, value } => {
                out.extend_from_slice(&number.to_le_bytes());
                out.extend_from_slice(&(key.len() as u16).to_le_bytes());
                out.push(u8::from(value.is_some()));
                out.extend_from_slice(key.as_bytes());
                out.extend_from_slice(value.unwrap_or_default().as_bytes());
                ATTRIBUTE
            }
            LogRecord::Gone(number) => {
                out.extend_from_slice(&number.to_le_bytes());
                GONE
            }
            LogRecord::Drives { epoch, drives } => {
                out.extend_from_slice(&epoch.to_le_bytes());
                out.extend_from_slice(&(drives.len() as u16).to_le_bytes());
                out.extend(drives.iter().flat_map(|(role, votes)| [*role as u8 + 1, u8::from(*votes)]));
                DRIVES
            }
            LogRecord::Closed => CLOSED,
            LogRecord::Shared { drive, shared, pages } => {
                out.extend_from_slice(&drive.to_le_bytes());
                out.extend_from_slice(&shared.to_le_bytes());
                out.extend_from_slice(&pages.to_le_bytes());
                SHARED
            }
            LogRecord::Numbers(next) => {
                out.extend_from_slice(&next.to_le_bytes());
                NUMBERS
            }
            LogRecord::End { files, next, sequence } => {
                out.extend([files, next, sequence].iter().flat_map(|number| number.to_le_bytes()));
                END
            }
            LogRecord::Continues(segment) => {
                out.extend_from_slice(&segment.to_le_bytes());
                CONTINUES
            }
            LogRecord::Order(numbers) => {
                out.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
                ORDER
            }
        }
    }

    /// Takes one record from the front. `None` if its kind is unknown and may be skipped. Never panics, whatever the
    /// bytes.
    pub fn decode<'a>(cursor: &mut Cursor<'a>, writes: bool) -> Result<Option<LogRecord<'a>>, LogFault> {
        let cut = || LogFault::Damaged("a record is cut".to_owned());
        let kind = cursor.u16().ok_or_else(cut)?;
        let body_bytes = cursor.u32().ok_or_else(cut)?;
        let body = cursor.take(body_bytes as usize).ok_or_else(cut)?;
        let mut body = Cursor::new(body);
        let decoded = match kind {
            LAYOUT => decode_layout(&mut body).map(LogRecord::Layout),
            FILE => return decode_file(&mut body).map(|file| Some(LogRecord::File(file))),
            ATTRIBUTE => decode_attribute(&mut body),
            GONE => body.u64().map(LogRecord::Gone),
            DRIVES => decode_drives(&mut body),
            CLOSED => Some(LogRecord::Closed),
            SHARED => decode_shared(&mut body),
            NUMBERS => body.u64().map(LogRecord::Numbers),
            END => decode_end(&mut body),
            ORDER => decode_order(&mut body),
            CONTINUES => body.u64().map(LogRecord::Continues),
            _ if kind & MAY_SKIP != 0 || (kind & READERS_MAY_SKIP != 0 && !writes) => return Ok(None),
            _ => return Err(LogFault::Newer(format!("it has records of kind {kind}"))),
        };
        match decoded {
            Some(record) if body.is_empty() => Ok(Some(record)),
            _ => Err(LogFault::Damaged(format!("a record of kind {kind} makes no sense"))),
        }
    }
}

fn encode_layout(layout: &LayoutRecord, out: &mut Vec<u8>) {
    let kind = match layout.kind {
        Layout::Striping => 0,
        Layout::Rotated => 1,
        Layout::Hash => 2,
    };
    out.extend_from_slice(&layout.number.to_le_bytes());
    // One copy of each block, and two bytes of zero.
    out.extend_from_slice(&[kind, 1, 0, 0]);
    out.extend_from_slice(&layout.block_bytes.to_le_bytes());
    out.extend_from_slice(&(layout.drives.len() as u16).to_le_bytes());
    for (drive, weight) in &layout.drives {
        out.extend_from_slice(&drive.to_le_bytes());
        out.extend_from_slice(&weight.to_le_bytes());
    }
}

fn decode_layout(body: &mut Cursor<'_>) -> Option<LayoutRecord> {
    let number = body.u32()?;
    let kind = match body.u8()? {
        0 => Layout::Striping,
        1 => Layout::Rotated,
        2 => Layout::Hash,
        _ => return None,
    };
    let (copies, zero) = (body.u8()?, body.u16()?);
    let (block_bytes, count) = (body.u32()?, body.u16()?);
    let mut drives = Vec::with_capacity(usize::from(count).min(DRIVES_MAX));
    for _ in 0..count {
        drives.push((body.u16()?, body.u16()?));
    }
    let layout = LayoutRecord { number, kind, block_bytes, drives };
    ((copies, zero) == (1, 0) && layout.fault().is_none()).then_some(layout)
}

impl LayoutRecord {
    /// Why this is no layout.
    pub fn fault(&self) -> Option<String> {
        if self.number == 0 {
            return Some("has no number".to_owned());
        }
        let (page, most) = (PAGE_BYTES, BLOCK_MAX_BYTES);
        if self.block_bytes == 0 || !self.block_bytes.is_multiple_of(page) || self.block_bytes > most {
            let bytes = self.block_bytes;
            return Some(format!("has blocks of {bytes} bytes; they are multiples of {page} up to {most}"));
        }
        let mut sorted: Vec<u16> = self.drives.iter().map(|(drive, _)| *drive).collect();
        sorted.sort_unstable();
        sorted.dedup();
        if sorted.is_empty() || sorted.len() != self.drives.len() || sorted.len() > DRIVES_MAX {
            return Some(format!("has the drives {:?}; they are 1 to {DRIVES_MAX}, none twice", self.drives));
        }
        let weights_fit = self.drives.iter().all(|(_, weight)| (1..=WEIGHT_MAX).contains(&u32::from(*weight)));
        (!weights_fit).then(|| format!("has the weights {:?}; each is 1 to {WEIGHT_MAX}", self.drives))
    }
}

fn encode_file(file: &FileRecord<'_>, out: &mut Vec<u8>) {
    let numbers = [file.number, file.length, file.created_ns, file.modified_ns, file.key];
    out.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
    out.extend_from_slice(&file.layout.to_le_bytes());
    out.push(match file.life {
        FileLife::Live => 1,
        FileLife::Dying => 2,
    });
    out.push(if file.has_parts { HAS_PARTS } else { 0 });
    out.extend_from_slice(&(file.name.len() as u16).to_le_bytes());
    out.extend_from_slice(file.name.as_bytes());
    if let Some(extent) = file.extent {
        out.push(FIELD_EXTENT);
        out.extend_from_slice(&10u16.to_le_bytes());
        out.extend_from_slice(&extent.drive.to_le_bytes());
        out.extend_from_slice(&extent.shared.to_le_bytes());
        out.extend_from_slice(&extent.page.to_le_bytes());
        out.extend_from_slice(&extent.pages.to_le_bytes());
    }
    if let Some(sums) = file.sums {
        out.push(FIELD_SUMS);
        out.extend_from_slice(&(sums.len() as u16).to_le_bytes());
        out.extend_from_slice(sums);
    }
}

fn decode_file<'a>(body: &mut Cursor<'a>) -> Result<FileRecord<'a>, LogFault> {
    let damaged = || LogFault::Damaged("the record of a file makes no sense".to_owned());
    let mut file = decode_file_start(body).ok_or_else(damaged)?;
    let mut last_tag = 0;
    while !body.is_empty() {
        let tag = body.u8().ok_or_else(damaged)?;
        let bytes = body.u16().ok_or_else(damaged)?;
        let bytes = body.take(usize::from(bytes)).ok_or_else(damaged)?;
        if tag <= last_tag {
            return Err(damaged());
        }
        last_tag = tag;
        match tag {
            FIELD_EXTENT => file.extent = Some(decode_extent(&mut Cursor::new(bytes)).ok_or_else(damaged)?),
            FIELD_SUMS if !is_sums(bytes) => return Err(damaged()),
            FIELD_SUMS => file.sums = Some(bytes),
            SKIPPED_TAGS.. => {}
            _ => return Err(LogFault::Newer(format!("file {:?} has a field {tag}", file.name))),
        }
    }
    match file.fault() {
        None => Ok(file),
        Some(why) => Err(LogFault::Damaged(format!("the record of file {} {why}", file.number))),
    }
}

fn decode_file_start<'a>(body: &mut Cursor<'a>) -> Option<FileRecord<'a>> {
    let (number, length) = (body.u64()?, body.u64()?);
    let (created_ns, modified_ns, key) = (body.u64()?, body.u64()?, body.u64()?);
    let layout = body.u32()?;
    let life = match body.u8()? {
        1 => FileLife::Live,
        2 => FileLife::Dying,
        _ => return None,
    };
    let flags = body.u8()?;
    let name_bytes = body.u16()?;
    let name = std::str::from_utf8(body.take(usize::from(name_bytes))?).ok()?;
    if flags & !HAS_PARTS != 0 {
        return None;
    }
    let has_parts = flags & HAS_PARTS != 0;
    Some(FileRecord {
        number,
        length,
        created_ns,
        modified_ns,
        key,
        layout,
        life,
        has_parts,
        name,
        extent: None,
        sums: None,
    })
}

/// Whether a field of sums makes sense.
fn is_sums(field: &[u8]) -> bool {
    match field {
        [SUMS_IN_PARTS | SUMS_UNKNOWN] => true,
        [SUMS_HERE, sums @ ..] => sums.len().is_multiple_of(4) && field.len() <= SUMS_MAX_BYTES,
        _ => false,
    }
}

impl FileRecord<'_> {
    /// Why this is no record of a file.
    pub fn fault(&self) -> Option<String> {
        if self.number == 0 {
            return Some("has no number".to_owned());
        }
        if i64::try_from(self.length).is_err() {
            return Some(format!("has the length {}, which is too large", self.length));
        }
        match self.life {
            FileLife::Live => name_fault(self.name).map(|fault| format!("has the name {:?}: {fault}", self.name)),
            FileLife::Dying => (!self.name.is_empty()).then(|| "is dying and has a name".to_owned()),
        }
    }
}

fn decode_extent(field: &mut Cursor<'_>) -> Option<Extent> {
    let extent = Extent { drive: field.u16()?, shared: field.u16()?, page: field.u32()?, pages: field.u16()? };
    (extent.pages > 0 && field.is_empty() && extent.page.checked_add(u32::from(extent.pages)).is_some())
        .then_some(extent)
}

fn decode_attribute<'a>(body: &mut Cursor<'a>) -> Option<LogRecord<'a>> {
    let (number, key_bytes, is_set) = (body.u64()?, body.u16()?, body.u8()?);
    let key = std::str::from_utf8(body.take(usize::from(key_bytes))?).ok()?;
    let value = std::str::from_utf8(body.take(body.rest().len())?).ok()?;
    let value = match is_set {
        0 if value.is_empty() => None,
        1 if value.len() <= ATTRIBUTE_MAX_BYTES => Some(value),
        _ => return None,
    };
    key_fault(key).is_none().then_some(LogRecord::Attribute { number, key, value })
}

fn decode_drives<'a>(body: &mut Cursor<'_>) -> Option<LogRecord<'a>> {
    let (epoch, count) = (body.u64()?, body.u16()?);
    let mut drives = Vec::with_capacity(usize::from(count).min(DRIVES_MAX));
    for _ in 0..count {
        let role = match body.u8()? {
            1 => DriveRole::In,
            2 => DriveRole::Coming,
            3 => DriveRole::Leaving,
            4 => DriveRole::Gone,
            _ => return None,
        };
        let votes = match body.u8()? {
            0 => false,
            1 => true,
            _ => return None,
        };
        drives.push((role, votes));
    }
    Some(LogRecord::Drives { epoch, drives })
}

fn decode_shared<'a>(body: &mut Cursor<'_>) -> Option<LogRecord<'a>> {
    Some(LogRecord::Shared { drive: body.u16()?, shared: body.u16()?, pages: body.u32()? })
}

fn decode_end<'a>(body: &mut Cursor<'_>) -> Option<LogRecord<'a>> {
    Some(LogRecord::End { files: body.u64()?, next: body.u64()?, sequence: body.u64()? })
}

fn decode_order<'a>(body: &mut Cursor<'_>) -> Option<LogRecord<'a>> {
    let mut numbers = Vec::with_capacity(body.rest().len() / 8);
    while !body.is_empty() {
        numbers.push(body.u64()?);
    }
    Some(LogRecord::Order(numbers))
}

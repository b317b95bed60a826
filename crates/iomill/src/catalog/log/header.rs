//! [`FileHeader`]: the first block of a segment or checkpoint. Non-goals: groups (`group`), and which files there are.

use super::bytes::Cursor;
use super::record::LogFault;
use crate::catalog::Id;
use crate::sys::hash::xxh3_64;

/// The format of the log.
pub const LOG_FORMAT: u32 = 2;
/// Groups begin at multiples of this.
pub const BLOCK_BYTES: u64 = 4096;
/// Bytes of the header that are not zero.
const HEADER_BYTES: usize = 128;
const SEGMENT_MAGIC: [u8; 8] = *b"iomilseg";
const CHECKPOINT_MAGIC: [u8; 8] = *b"iomilchk";

/// A place in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LogPosition {
    /// Number of the segment.
    pub segment: u64,
    /// Offset in bytes in it.
    pub offset: u64,
}

/// The kind of a file of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A stretch of the log of this many bytes.
    Segment {
        /// Length of the file in bytes.
        bytes: u64,
    },
    /// A state of the catalog.
    Checkpoint {
        /// The place where replay begins.
        start: LogPosition,
        /// Checksum of the group before that.
        previous: u64,
    },
}

/// Features that a file of the log needs, one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// A program that does not know one may use the array.
    pub compatible: u64,
    /// A program that does not know one may only read.
    pub read_only: u64,
    /// A program that does not know one must not use the array.
    pub incompatible: u64,
}

/// The header of a segment or checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileHeader {
    /// The kind of the file.
    pub kind: FileKind,
    /// The array.
    pub array: Id,
    /// The number in its name.
    pub number: u64,
    /// Random bits that each group repeats (C6).
    pub salt: u64,
    /// The features that it needs.
    pub features: Features,
}

impl FileHeader {
    /// The first block of the file.
    pub fn block(&self) -> Vec<u8> {
        let mut block = Vec::with_capacity(BLOCK_BYTES as usize);
        let (magic, numbers) = match self.kind {
            FileKind::Segment { bytes } => (SEGMENT_MAGIC, [bytes, 0, 0, 0]),
            FileKind::Checkpoint { start, previous } => (CHECKPOINT_MAGIC, [0, start.segment, start.offset, previous]),
        };
        block.extend_from_slice(&magic);
        block.extend_from_slice(&LOG_FORMAT.to_le_bytes());
        block.extend_from_slice(&(BLOCK_BYTES as u32).to_le_bytes());
        block.extend_from_slice(&self.array.0);
        let features = [self.features.compatible, self.features.read_only, self.features.incompatible, 0, 0];
        let words = [self.number, self.salt].into_iter().chain(numbers).chain(features);
        block.extend(words.flat_map(u64::to_le_bytes));
        let checksum = xxh3_64(&block);
        block.extend_from_slice(&checksum.to_le_bytes());
        block.resize(BLOCK_BYTES as usize, 0);
        block
    }

    /// Reads the first block of a file. Never panics, whatever the bytes.
    pub fn parse(block: &[u8], writes: bool) -> Result<FileHeader, LogFault> {
        let damaged = |what: &str| LogFault::Damaged(format!("its header {what}"));
        let (body, checksum) = match block.get(..HEADER_BYTES) {
            Some(bytes) => bytes.split_at(HEADER_BYTES - 8),
            None => return Err(damaged("is cut")),
        };
        let mut cursor = Cursor::new(body);
        let magic = cursor.take(8).unwrap_or_default();
        if magic != SEGMENT_MAGIC && magic != CHECKPOINT_MAGIC {
            return Err(damaged("is not one of iomill's log"));
        }
        if Cursor::new(checksum).u64() != Some(xxh3_64(body)) {
            return Err(damaged("has a wrong checksum"));
        }
        let format = cursor.u32().unwrap_or_default();
        if format != LOG_FORMAT {
            return Err(LogFault::Newer(format!("it has format {format}")));
        }
        let header = parse_body(magic == SEGMENT_MAGIC, &mut cursor).ok_or_else(|| damaged("makes no sense"))?;
        let Features { compatible: _, read_only, incompatible } = header.features;
        // This version knows no feature.
        let unknown = if writes { incompatible | read_only } else { incompatible };
        if unknown == 0 { Ok(header) } else { Err(LogFault::Newer(format!("it has the features {unknown:#x}"))) }
    }
}

fn parse_body(is_segment: bool, cursor: &mut Cursor<'_>) -> Option<FileHeader> {
    let block_bytes = cursor.u32()?;
    let array = Id(cursor.id()?);
    let (number, salt) = (cursor.count()?, cursor.u64()?);
    let [bytes, segment, offset, previous] = [cursor.count()?, cursor.count()?, cursor.count()?, cursor.u64()?];
    let features = Features { compatible: cursor.u64()?, read_only: cursor.u64()?, incompatible: cursor.u64()? };
    let are_blocks = u64::from(block_bytes) == BLOCK_BYTES
        && [bytes, offset].iter().all(|number| number.is_multiple_of(BLOCK_BYTES))
        && cursor.rest().iter().all(|byte| *byte == 0);
    let (kind, fits) = if is_segment {
        let fits = (segment, offset, previous) == (0, 0, 0) && bytes > BLOCK_BYTES && number > 0;
        (FileKind::Segment { bytes }, fits)
    } else {
        let start = LogPosition { segment, offset };
        (FileKind::Checkpoint { start, previous }, bytes == 0 && segment > 0 && offset > 0)
    };
    (are_blocks && fits).then_some(FileHeader { kind, array, number, salt, features })
}

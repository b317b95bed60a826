//! [`Group`]: the records that one fsync makes durable, with the proof that they are valid. Non-goals: the meaning of
//! the records.

use super::bytes::Cursor;
use super::header::BLOCK_BYTES;
use super::record::{LogFault, LogRecord};
use crate::catalog::Id;
use crate::sys::hash::xxh3_64;

/// Most bytes of records in a group.
pub const GROUP_MAX_BYTES: usize = 128 << 10;
/// Bytes of a group before its records.
pub const GROUP_HEADER_BYTES: usize = 88;
const MAGIC: [u8; 4] = *b"ioGR";

/// One time that an array is open for writing (C41).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpeningId {
    /// Goes up with each opening.
    pub number: u64,
    /// Random: openings of one number that happened apart differ.
    pub id: Id,
}

/// The header of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupHeader {
    /// Salt of its file (C6).
    pub salt: u64,
    /// Its number, from 1.
    pub sequence: u64,
    /// The last group that was durable on all voters when this one was written (C4).
    pub durable: u64,
    /// The epoch of the labels.
    pub epoch: u64,
    /// Checksum of the group before.
    pub previous: u64,
    /// The number of its records.
    pub records: u32,
    /// The opening that wrote it.
    pub opening: OpeningId,
}

/// A group that was read.
#[derive(Clone, Copy, Debug)]
pub struct Group<'a> {
    /// Its header.
    pub header: GroupHeader,
    /// Its checksum.
    pub checksum: u64,
    records: &'a [u8],
}

impl GroupHeader {
    /// Appends the group with these records, which `LogRecord::encode` made, in whole blocks. Returns its checksum.
    pub fn seal(&self, records: &[u8], out: &mut Vec<u8>) -> u64 {
        assert!(records.len() <= GROUP_MAX_BYTES, "a group of {} bytes was not divided", records.len());
        let start = out.len();
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&(records.len() as u32).to_le_bytes());
        out.extend_from_slice(&[0; 8]);
        let words = [self.salt, self.sequence, self.durable, self.epoch, self.previous];
        out.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        out.extend_from_slice(&self.records.to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&self.opening.number.to_le_bytes());
        out.extend_from_slice(&self.opening.id.0);
        out.extend_from_slice(records);
        let checksum = xxh3_64(&out[start + 16..]);
        out[start + 8..start + 16].copy_from_slice(&checksum.to_le_bytes());
        let group_bytes = group_bytes(records.len()) as usize;
        out.resize(start + group_bytes, 0);
        checksum
    }
}

/// The length of a group in its file, in bytes, for this length of its records: whole blocks.
pub fn group_bytes(records_bytes: usize) -> u64 {
    ((GROUP_HEADER_BYTES + records_bytes) as u64).next_multiple_of(BLOCK_BYTES)
}

impl<'a> Group<'a> {
    /// Reads the group at the start of `bytes`. `None` if there is none that is whole and has a right checksum. Never
    /// panics, whatever the bytes.
    pub fn parse(bytes: &'a [u8]) -> Option<Group<'a>> {
        let mut cursor = Cursor::new(bytes);
        let magic = cursor.take(4)?;
        let records_bytes = cursor.u32()? as usize;
        if magic != MAGIC || records_bytes > GROUP_MAX_BYTES {
            return None;
        }
        let checksum = cursor.u64()?;
        let covered = cursor.rest().get(..GROUP_HEADER_BYTES - 16 + records_bytes)?;
        if xxh3_64(covered) != checksum {
            return None;
        }
        let (salt, sequence, durable) = (cursor.u64()?, cursor.count()?, cursor.count()?);
        let (epoch, previous, records, zero) = (cursor.count()?, cursor.u64()?, cursor.u32()?, cursor.u32()?);
        let opening = OpeningId { number: cursor.u64()?, id: Id(cursor.id()?) };
        let header = GroupHeader { salt, sequence, durable, epoch, previous, records, opening };
        let group = Group { header, checksum, records: cursor.take(records_bytes)? };
        (zero == 0 && header.durable < header.sequence).then_some(group)
    }

    /// Whether it follows a group with that number and checksum in a file with that salt (C5).
    pub fn follows(&self, salt: u64, sequence: u64, checksum: u64) -> bool {
        let header = &self.header;
        header.salt == salt && header.sequence == sequence + 1 && header.previous == checksum
    }

    /// Its length in the file, in bytes.
    pub fn bytes(&self) -> u64 {
        group_bytes(self.records.len())
    }

    /// Calls `take` with each record. Records that may be skipped are not passed on.
    pub fn each_record(
        &self,
        writes: bool,
        mut take: impl FnMut(LogRecord<'a>) -> Result<(), LogFault>,
    ) -> Result<(), LogFault> {
        let mut cursor = Cursor::new(self.records);
        let mut count = 0u32;
        while !cursor.is_empty() {
            count += 1;
            if let Some(record) = LogRecord::decode(&mut cursor, writes)? {
                take(record)?;
            }
        }
        if count == self.header.records {
            return Ok(());
        }
        Err(LogFault::Damaged(format!("group {} has {count} records and names others", self.header.sequence)))
    }
}

//! Bytes of the log: what is written is read back, and nothing else counts.

use std::collections::BTreeMap;

use arbitrary::Unstructured;

use super::bytes::Cursor;
use super::group::{GROUP_MAX_BYTES, Group, GroupHeader, OpeningId, group_bytes};
use super::header::{BLOCK_BYTES, Features, FileHeader, FileKind, LogPosition};
use super::record::{DriveRole, Extent, FileLife, FileRecord, LayoutRecord, LogFault, LogRecord};
use crate::catalog::Id;
use crate::layout::Layout;
use crate::sys::hash::xxh3_64;
use crate::sys::property::{check, list, maybe, text};

/// A record that owns its text.
#[derive(Clone, Debug)]
enum Owned {
    Whole(LogRecord<'static>),
    File {
        number: u64,
        words: [u64; 3],
        length: u64,
        layout: u32,
        has_parts: bool,
        name: String,
        extent: Option<Extent>,
    },
    Dying(u64, Option<Extent>),
    Attribute(u64, String, Option<String>),
}

impl Owned {
    fn with<R>(&self, body: impl FnOnce(&LogRecord<'_>) -> R) -> R {
        let file = |number: u64| FileRecord {
            number,
            length: 0,
            created_ns: 0,
            modified_ns: 0,
            key: 0,
            layout: 0,
            life: FileLife::Dying,
            has_parts: true,
            name: "",
            extent: None,
            sums: None,
        };
        match self {
            Owned::Whole(record) => body(record),
            Owned::File { number, words: [created_ns, modified_ns, key], length, layout, has_parts, name, extent } => {
                body(&LogRecord::File(FileRecord {
                    number: *number,
                    length: *length,
                    created_ns: *created_ns,
                    modified_ns: *modified_ns,
                    key: *key,
                    layout: *layout,
                    life: FileLife::Live,
                    has_parts: *has_parts,
                    name,
                    extent: *extent,
                    sums: None,
                }))
            }
            Owned::Dying(number, extent) => body(&LogRecord::File(FileRecord { extent: *extent, ..file(*number) })),
            Owned::Attribute(number, key, value) => {
                body(&LogRecord::Attribute { number: *number, key, value: value.as_deref() })
            }
        }
    }
}

fn extent(bytes: &mut Unstructured<'_>) -> arbitrary::Result<Option<Extent>> {
    maybe(bytes, |bytes| {
        let (page, pages) = (bytes.int_in_range(0..=u32::MAX - 70_001)?, bytes.int_in_range(1..=u16::MAX - 1)?);
        Ok(Extent { drive: bytes.arbitrary()?, shared: bytes.arbitrary()?, page, pages })
    })
}

fn layout(bytes: &mut Unstructured<'_>) -> arbitrary::Result<LayoutRecord> {
    let kind = *bytes.choose(&[Layout::Striping, Layout::Rotated, Layout::Hash])?;
    let drive = |bytes: &mut Unstructured<'_>| Ok((bytes.arbitrary()?, bytes.int_in_range(1..=1000)?));
    let drives: BTreeMap<u16, u16> = list(bytes, 1..=19, drive)?.into_iter().collect();
    let (number, block_bytes) = (bytes.int_in_range(1..=u32::MAX)?, bytes.int_in_range(1..=99)? * 4096);
    Ok(LayoutRecord { number, kind, block_bytes, drives: drives.into_iter().collect() })
}

fn role(bytes: &mut Unstructured<'_>) -> arbitrary::Result<DriveRole> {
    bytes.choose(&[DriveRole::In, DriveRole::Coming, DriveRole::Leaving, DriveRole::Gone]).copied()
}

/// A name of one or two parts.
fn name(bytes: &mut Unstructured<'_>) -> arbitrary::Result<String> {
    let first = text(bytes, "abcdefghijklmnopqrstuvwxyz", 1..=80)?;
    let second = maybe(bytes, |bytes| text(bytes, "äb.", 3..=9))?;
    Ok(second.map_or(first.clone(), |second| format!("{first}/{second}")))
}

fn file(bytes: &mut Unstructured<'_>) -> arbitrary::Result<Owned> {
    let (number, length) = (bytes.int_in_range(1..=u64::MAX - 1)?, bytes.int_in_range(0..=(1 << 62) - 1)?);
    let (words, layout, has_parts) = (bytes.arbitrary()?, bytes.arbitrary()?, bytes.arbitrary()?);
    Ok(Owned::File { number, words, length, layout, has_parts, name: name(bytes)?, extent: extent(bytes)? })
}

fn record(bytes: &mut Unstructured<'_>) -> arbitrary::Result<Owned> {
    Ok(match bytes.int_in_range(0..=11)? {
        0 => Owned::Whole(LogRecord::Closed),
        1 => file(bytes)?,
        2 => Owned::Dying(bytes.int_in_range(1..=u64::MAX - 1)?, extent(bytes)?),
        3 => {
            let key = text(bytes, "abcdefghijklmnopqrstuvwxyzü", 1..=50)?;
            let value = maybe(bytes, |bytes| text(bytes, "aB0 \u{0}\n\"é\u{10FFFF}", 0..=300))?;
            Owned::Attribute(bytes.arbitrary()?, key, value)
        }
        4 => Owned::Whole(LogRecord::Gone(bytes.arbitrary()?)),
        5 => Owned::Whole(LogRecord::Numbers(bytes.arbitrary()?)),
        6 => Owned::Whole(LogRecord::Layout(layout(bytes)?)),
        7 => {
            let drives = list(bytes, 0..=8, |bytes| Ok((role(bytes)?, bytes.arbitrary()?)))?;
            Owned::Whole(LogRecord::Drives { epoch: bytes.arbitrary()?, drives })
        }
        8 => {
            let (drive, shared, pages) = bytes.arbitrary()?;
            Owned::Whole(LogRecord::Shared { drive, shared, pages })
        }
        9 => {
            let [files, next, sequence] = bytes.arbitrary()?;
            Owned::Whole(LogRecord::End { files, next, sequence })
        }
        10 => Owned::Whole(LogRecord::Continues(bytes.arbitrary()?)),
        _ => Owned::Whole(LogRecord::Order(list(bytes, 0..=39, |bytes| bytes.arbitrary())?)),
    })
}

const OPENING: OpeningId = OpeningId { number: 4, id: Id([8; 16]) };
const HEADER: GroupHeader =
    GroupHeader { salt: 11, sequence: 7, durable: 6, epoch: 3, previous: 99, records: 0, opening: OPENING };

/// A group of these records, and its checksum.
fn group(records: &[Owned]) -> (Vec<u8>, u64) {
    let mut body = Vec::new();
    records.iter().for_each(|record| record.with(|record| record.encode(&mut body)));
    let mut bytes = Vec::new();
    let checksum = GroupHeader { records: records.len() as u32, ..HEADER }.seal(&body, &mut bytes);
    assert_eq!(bytes.len() as u64, group_bytes(body.len()));
    (bytes, checksum)
}

#[test]
fn a_group_is_read_as_it_was_written() {
    let make = |bytes: &mut Unstructured<'_>| Ok((bytes.arbitrary::<[u8; 9]>()?, list(bytes, 0..=11, record)?));
    check(256, make, |(waste, records)| {
        let (mut bytes, checksum) = group(&records);
        // What follows a group in its file does not matter.
        bytes.extend_from_slice(&waste);
        let read = Group::parse(&bytes).unwrap();
        assert_eq!(read.header, GroupHeader { records: records.len() as u32, ..HEADER });
        assert_eq!(read.bytes() + 9, bytes.len() as u64);
        assert!(read.follows(11, 6, 99) && read.checksum == checksum);
        assert!(!read.follows(12, 6, 99) && !read.follows(11, 7, 99) && !read.follows(11, 6, 98));
        let mut left = records.iter();
        read.each_record(true, |found| {
            left.next().expect("not more than were written").with(|written| assert_eq!(written, &found));
            Ok(())
        })
        .unwrap();
        assert!(left.next().is_none());
    });
}

/// Rot and torn writes never make another group.
#[test]
fn a_changed_group_does_not_count() {
    let make = |bytes: &mut Unstructured<'_>| {
        let (at, flip, cut) =
            (bytes.arbitrary::<usize>()?, bytes.int_in_range(1..=255u8)?, bytes.arbitrary::<usize>()?);
        Ok((list(bytes, 1..=11, record)?, at, flip, cut))
    };
    check(256, make, |(records, at, flip, cut)| {
        let (bytes, _) = group(&records);
        let covered = 64 + u32::from_le_bytes(bytes[4..8].try_into().unwrap()) as usize;
        let mut rotten = bytes.clone();
        rotten[at % covered] ^= flip;
        assert!(Group::parse(&rotten).is_none());
        assert!(Group::parse(&bytes[..cut % covered]).is_none());
    });
}

/// Behind a right checksum any bytes may stand. Reading them never panics, and what is read can be written.
#[test]
fn any_bytes_are_records_or_refused() {
    let make = |bytes: &mut Unstructured<'_>| {
        Ok((bytes.int_in_range(0..=11u16)?, list(bytes, 0..=199, |bytes| bytes.arbitrary::<u8>())?))
    };
    check(256, make, |(kind, bytes)| {
        let mut framed = kind.to_le_bytes().to_vec();
        framed.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
        framed.extend_from_slice(&bytes);
        if let Ok(Some(record)) = LogRecord::decode(&mut Cursor::new(&framed), true) {
            let mut again = Vec::new();
            record.encode(&mut again);
            let read = LogRecord::decode(&mut Cursor::new(&again), true);
            assert_eq!(read.unwrap().unwrap(), record);
        }
        let _ = LogRecord::decode(&mut Cursor::new(&bytes), true);
        let _ = Group::parse(&bytes);
        let _ = FileHeader::parse(&bytes, true);
    });
}

#[test]
fn a_record_that_makes_no_sense_is_damage() {
    let good = |record: LogRecord<'_>| {
        let mut bytes = Vec::new();
        record.encode(&mut bytes);
        bytes
    };
    let refused = |bytes: &[u8]| {
        let read = LogRecord::decode(&mut Cursor::new(bytes), true);
        assert!(matches!(read, Err(LogFault::Damaged(_))), "{bytes:?}: {read:?}");
    };
    let drives = vec![(0, 10), (0, 10)];
    let layout = LayoutRecord { number: 1, kind: Layout::Hash, block_bytes: 4096, drives };
    refused(&good(LogRecord::Layout(layout.clone())));
    refused(&good(LogRecord::Layout(LayoutRecord { drives: vec![(0, 0)], ..layout.clone() })));
    refused(&good(LogRecord::Layout(LayoutRecord { number: 0, drives: vec![(0, 1)], ..layout.clone() })));
    refused(&good(LogRecord::Layout(LayoutRecord { drives: vec![(0, 1)], block_bytes: 5000, ..layout })));
    let file = FileRecord {
        number: 1,
        length: 2,
        created_ns: 3,
        modified_ns: 4,
        key: 5,
        layout: 6,
        life: FileLife::Live,
        has_parts: false,
        name: "a",
        extent: None,
        sums: None,
    };
    assert!(LogRecord::decode(&mut Cursor::new(&good(LogRecord::File(file))), true).is_ok());
    refused(&good(LogRecord::File(FileRecord { number: 0, ..file })));
    refused(&good(LogRecord::File(FileRecord { name: "../a", ..file })));
    refused(&good(LogRecord::File(FileRecord { length: u64::MAX, ..file })));
    refused(&good(LogRecord::File(FileRecord { life: FileLife::Dying, ..file })));
    refused(&good(LogRecord::File(FileRecord {
        extent: Some(Extent { drive: 0, shared: 0, page: 0, pages: 0 }),
        sums: None,
        ..file
    })));
    refused(&good(LogRecord::Attribute { number: 1, key: "", value: None }));
    let long = "x".repeat(super::record::ATTRIBUTE_MAX_BYTES + 1);
    refused(&good(LogRecord::Attribute { number: 1, key: "k", value: Some(&long) }));
    let mut cut = good(LogRecord::Gone(1));
    cut.pop();
    refused(&cut);
    let mut longer = good(LogRecord::Gone(1));
    longer[2] += 1;
    longer.push(0);
    refused(&longer);
}

#[test]
fn what_a_later_version_wrote_is_refused_or_skipped_as_it_says() {
    let decode = |kind: u16, writes: bool| {
        let mut bytes = kind.to_le_bytes().to_vec();
        bytes.extend_from_slice(&[2, 0, 0, 0, 7, 7]);
        let mut cursor = Cursor::new(&bytes);
        let read = LogRecord::decode(&mut cursor, writes).map(|record| record.is_none() && cursor.is_empty());
        read.map_err(|fault| matches!(fault, LogFault::Newer(_)))
    };
    for (kind, writer, reader) in [
        (77, Err(true), Err(true)),
        (77 | 1 << 14, Err(true), Ok(true)),
        (77 | 1 << 15, Ok(true), Ok(true)),
        (77 | 3 << 14, Ok(true), Ok(true)),
    ] {
        assert_eq!((decode(kind, true), decode(kind, false)), (writer, reader), "{kind:#x}");
    }
    // A file with a field that no version knows yet: tags from 128 on are skipped.
    let file = |tag: u8| {
        let mut bytes = Vec::new();
        Owned::File {
            number: 1,
            words: [1, 2, 3],
            length: 4,
            layout: 5,
            has_parts: true,
            name: "n".to_owned(),
            extent: None,
        }
        .with(|record| record.encode(&mut bytes));
        bytes.extend_from_slice(&[tag, 1, 0, 42]);
        let body = bytes.len() as u32 - 6;
        bytes[2..6].copy_from_slice(&body.to_le_bytes());
        LogRecord::decode(&mut Cursor::new(&bytes), true).map(|record| record.is_some())
    };
    assert_eq!(file(128), Ok(true));
    assert!(matches!(file(3), Err(LogFault::Newer(_))));
    assert!(matches!(file(2), Err(LogFault::Damaged(_))), "these are no sums");
    assert!(matches!(file(0), Err(LogFault::Damaged(_))));
}

#[test]
fn a_group_that_counts_others_than_it_has_is_damage() {
    let mut body = Vec::new();
    LogRecord::Gone(5).encode(&mut body);
    for (records, is_good) in [(0, false), (1, true), (2, false)] {
        let mut bytes = Vec::new();
        GroupHeader { records, ..HEADER }.seal(&body, &mut bytes);
        assert_eq!(Group::parse(&bytes).unwrap().each_record(true, |_| Ok(())).is_ok(), is_good);
    }
    let mut bytes = Vec::new();
    GroupHeader { durable: 7, ..HEADER }.seal(&[], &mut bytes);
    assert!(Group::parse(&bytes).is_none(), "it cannot name itself as durable");
    let mut largest = Vec::new();
    HEADER.seal(&vec![0; GROUP_MAX_BYTES], &mut largest);
    assert!(Group::parse(&largest).is_some());
}

/// Counts that no array reaches are damage, whatever their checksums say: the writer adds one to each.
///
/// Seen to fail: a group with the last number of all was taken, and `follows` panicked.
#[test]
fn counts_that_no_array_reaches_are_damage() {
    let last = i64::MAX as u64;
    for (most, is_good) in [(last, true), (last + 1, false), (u64::MAX, false)] {
        for header in [GroupHeader { sequence: most, ..HEADER }, GroupHeader { epoch: most, ..HEADER }] {
            let mut bytes = Vec::new();
            GroupHeader { records: 0, ..header }.seal(&[], &mut bytes);
            let group = Group::parse(&bytes);
            assert_eq!(group.is_some(), is_good, "{header:?}");
            let _is_next = group.is_some_and(|group| group.follows(1, group.header.sequence, 1));
        }
        for header in headers() {
            let block = FileHeader { number: most, ..header }.block();
            assert_eq!(FileHeader::parse(&block, true).is_ok(), is_good, "{header:?}");
        }
    }
}

fn headers() -> [FileHeader; 2] {
    let array = Id([9; 16]);
    let segment = FileKind::Segment { bytes: 1 << 20 };
    let checkpoint = FileKind::Checkpoint { start: LogPosition { segment: 3, offset: 8192 }, previous: 77 };
    [segment, checkpoint].map(|kind| FileHeader { kind, array, number: 5, salt: 6, features: Features::default() })
}

#[test]
fn a_header_is_read_as_it_was_written_and_any_changed_byte_spoils_it() {
    for header in headers() {
        let block = header.block();
        assert_eq!(block.len() as u64, BLOCK_BYTES);
        assert_eq!(FileHeader::parse(&block, true), Ok(header));
        for at in 0..128 {
            let mut rotten = block.clone();
            rotten[at] ^= 0x10;
            assert!(matches!(FileHeader::parse(&rotten, true), Err(LogFault::Damaged(_))), "byte {at}");
            assert!(FileHeader::parse(&block[..at], true).is_err());
        }
    }
}

#[test]
fn features_and_formats_that_are_not_known_are_refused() {
    let parse = |change: &dyn Fn(&mut Vec<u8>), writes: bool| {
        let mut block = headers()[0].block();
        change(&mut block);
        let checksum = xxh3_64(&block[..120]);
        block[120..128].copy_from_slice(&checksum.to_le_bytes());
        FileHeader::parse(&block, writes).map(drop)
    };
    let feature = |at: usize| move |block: &mut Vec<u8>| block[at] = 1;
    assert_eq!((parse(&feature(80), true), parse(&feature(80), false)), (Ok(()), Ok(())));
    assert!(matches!(parse(&feature(88), true), Err(LogFault::Newer(_))));
    assert_eq!(parse(&feature(88), false), Ok(()));
    assert!(matches!(parse(&feature(96), false), Err(LogFault::Newer(_))));
    assert!(matches!(parse(&|block| block[8] = 3, false), Err(LogFault::Newer(_))));
    assert!(matches!(parse(&|block| block[13] = 0, false), Err(LogFault::Damaged(_))));
    assert!(matches!(parse(&|block| block[104] = 1, false), Err(LogFault::Damaged(_))));
}

/// `docs/format.md` has these bytes. They change only with the number of the format.
#[test]
fn bytes_never_change() {
    let file = Owned::File {
        number: 1,
        words: [2, 3, 4],
        length: 5000,
        layout: 6,
        has_parts: false,
        name: "a/b".to_owned(),
        extent: Some(Extent { drive: 1, shared: 2, page: 3, pages: 4 }),
    };
    let mut bytes = Vec::new();
    file.with(|record| record.encode(&mut bytes));
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(
        hex,
        "020040000000010000000000000088130000000000000200000000000000030000000000000004000000000000000600000001000300\
         612f62010a000100020003000000040\
         0"
    );
    let (bytes, checksum) = group(&[file, Owned::Attribute(1, "k".to_owned(), Some("v".to_owned()))]);
    assert_eq!((xxh3_64(&bytes), checksum), (5912488331309834727, 12533947287523831466));
    assert_eq!(headers().map(|header| xxh3_64(&header.block())), [4238625552854146888, 269609943971888976]);
}

//! The parsers of the log's headers, groups and records never panic, whatever bytes a drive holds. A parsed header or
//! record is written as the same bytes again.

#![no_main]

use iomill::catalog::Id;
use iomill::catalog::log::bytes::Cursor;
use iomill::catalog::log::group::{GROUP_MAX_BYTES, Group, GroupHeader, OpeningId};
use iomill::catalog::log::header::FileHeader;
use iomill::catalog::log::record::LogRecord;
use iomill::catalog::state::files::Files;
use libfuzzer_sys::fuzz_target;
use twox_hash::XxHash3_64;

fuzz_target!(|data: &[u8]| {
    let _ = Group::parse(data);
    header(data);
    records(data);
});

/// Parses a header also with a right checksum, so that the bytes reach the code after it.
fn header(data: &[u8]) {
    let _ = FileHeader::parse(data, true);
    if let Some(body) = data.get(..120) {
        let mut block = body.to_vec();
        block.extend_from_slice(&XxHash3_64::oneshot(body).to_le_bytes());
        if let Ok(header) = FileHeader::parse(&block, true) {
            assert_eq!(header.block()[..128], block);
        }
    }
}

fn records(data: &[u8]) {
    let mut cursor = Cursor::new(data);
    let (mut again, mut count) = (Vec::new(), 0);
    let mut files = Files::default();
    while let Ok(record) = LogRecord::decode(&mut cursor, true) {
        if let Some(record) = record {
            record.encode(&mut again);
            count += 1;
            // Records of the first half may be late (older than the state), as records after a checkpoint may be.
            let _ = files.apply(&record, cursor.rest().len() > data.len() / 2);
        }
        if cursor.is_empty() {
            break;
        }
    }
    if again.len() <= GROUP_MAX_BYTES {
        let opening = OpeningId { number: 5, id: Id([6; 16]) };
        let header = GroupHeader { salt: 1, sequence: 2, durable: 1, epoch: 3, previous: 4, records: count, opening };
        let mut bytes = Vec::new();
        header.seal(&again, &mut bytes);
        let group = Group::parse(&bytes).expect("it was sealed");
        group.each_record(true, |_| Ok(())).expect("each record was read before");
    }
    let _ = files.index(Vec::new());
    let names: Vec<&str> = files.from("").map(|file| file.name).collect();
    assert!(names.is_sorted());
}

//! Labels and records as bytes: round trips, and every kind of damage.

use proptest::prelude::*;

use super::*;
use crate::layout::LayoutKind;
use label::parse_label_as;
use text::Signature;

fn label() -> Label {
    let drives = (0..3u16)
        .map(|index| LabelDrive {
            id: Id([index as u8 + 1; 16]),
            index,
            path: format!("/mnt/\"ssd\"\n{index} é"),
            weight: 10,
            state: DriveState::In,
        })
        .collect::<Vec<_>>();
    Label::of(&drives[1], Id([9; 16]), 4, drives.clone())
}

fn record() -> Record {
    let mut record = Record::first(Id([5; 16]), "graph/\"edges\"", &spec(&[1, 0]), &[10, 11]).unwrap();
    record.replaces = Some(Id([6; 16]));
    record.attributes.insert("a key = [x]".to_owned(), "line\n# checksum none\n".to_owned());
    record
}

/// Cuts the bytes at every place and flips every bit. Each time the result is an error, never another meaning.
fn damage<T: PartialEq + std::fmt::Debug, E: std::fmt::Debug>(bytes: &[u8], parse: impl Fn(&[u8]) -> Result<T, E>) {
    let whole = parse(bytes).unwrap();
    for len in 0..bytes.len() {
        assert!(parse(&bytes[..len]).is_err(), "cut at {len}");
    }
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut changed = bytes.to_vec();
            changed[at] ^= 1 << bit;
            if let Ok(other) = parse(&changed) {
                assert_eq!(other, whole, "bit {bit} of byte {at}");
            }
        }
    }
    let mut longer = bytes.to_vec();
    longer.push(b'\n');
    assert!(parse(&longer).is_err());
}

#[test]
fn a_damaged_label_is_an_error() {
    let bytes = label().to_bytes().unwrap();
    assert_eq!(parse_label(&bytes), Ok(label()));
    damage(&bytes, parse_label);
}

#[test]
fn a_damaged_record_is_an_error() {
    let bytes = record().to_bytes().unwrap();
    assert_eq!(parse_record(&bytes), Ok(record()));
    damage(&bytes, parse_record);
}

/// iomill writes the examples of the documentation, byte by byte. A change here is a new format.
#[test]
fn the_bytes_are_those_of_the_documentation() {
    let documentation = include_str!("../../../../../docs/format.md");
    let examples: Vec<&str> =
        documentation.split("```toml\n").skip(1).filter_map(|rest| Some(rest.split_once("```")?.0)).collect();
    let mut drives = label().drives;
    drives.truncate(2);
    drives.iter_mut().for_each(|drive| drive.path = format!("/mnt/ssd{}", drive.index));
    let label = Label::of(&drives[0], Id([9; 16]), 1, drives.clone());
    assert_eq!(examples[0], String::from_utf8(label.to_bytes().unwrap()).unwrap());
    let mut record = Record::first(Id([5; 16]), "graph/edges", &spec(&[1, 0]), &[10, 11]).unwrap();
    record.attributes.insert("kind".to_owned(), "u32".to_owned());
    assert_eq!(examples[1], String::from_utf8(record.to_bytes().unwrap()).unwrap());
}

fn resigned(bytes: Vec<u8>, from: &str, to: &str) -> Vec<u8> {
    let text = String::from_utf8(bytes).unwrap();
    let body = text[..text.rfind("# checksum").unwrap()].replacen(from, to, 1);
    assert!(!text.starts_with(&body), "{from} is not there");
    format!("{body}# checksum xxh3:{:016x}\n", xxhash_rust::xxh3::xxh3_64(body.as_bytes())).into_bytes()
}

#[test]
fn signed_nonsense_is_refused_with_a_reason() {
    let label_says =
        |from: &str, to: &str| parse_label(&resigned(label().to_bytes().unwrap(), from, to)).unwrap_err().to_string();
    assert!(label_says("epoch = 4", "epoch = 4\ncolour = 1").contains("colour"));
    assert!(label_says("epoch = 4", "epoch = -1").contains("-1"));
    assert!(label_says("index = 1", "index = 2").contains("does not list"));
    assert!(label_says("weight = 10", "weight = 0").contains("weight"));
    assert!(label_says("state = \"in\"", "state = \"out\"").contains("out"));
    assert!(label_says("format = 1", "format = 2").contains("format 2"));
    assert!(label_says(&"03".repeat(16), &"01".repeat(16)).contains("twice"));
    let record_says =
        |from: &str, to: &str| parse_record(&resigned(record().to_bytes().unwrap(), from, to)).unwrap_err().to_string();
    assert!(record_says("generation = 1", "generation = 0").contains("generation"));
    assert!(record_says("graph/", "../").contains(".."));
    assert!(record_says("65536", "4095").contains("4095"));
    assert!(record_says("drives = [1, 0]", "drives = [1, 1]").contains("none twice"));
    assert!(record_says("length_drives = [1, 0]", "length_drives = [2]").contains("length"));
    assert!(record_says("weights = [11, 10]", "weights = [11]").contains("weights"));
    assert!(record_says("key = \"f", "key = \"").contains("16 hexadecimal"));
    assert!(record_says("\"hash\"", "\"raid\"").contains("raid"));
    assert!(record_says(&"06".repeat(16), &"05".repeat(16)).contains("itself"));
}

proptest! {
    #[test]
    fn records_round_trip(
        name in "[^/\\p{Cc}]{1,20}(/[a-z\"\\\\ é]{1,9}){0,3}",
        generation in 1..i64::MAX as u64,
        key: u64,
        pages in 1u32..1000,
        drives in proptest::sample::subsequence((0..40u16).collect::<Vec<_>>(), 1..=40).prop_shuffle(),
        weights in proptest::collection::vec(1..=1000u32, 40),
        attributes in proptest::collection::btree_map("[^\\p{Cc}]{1,30}", any::<String>(), 0..8),
        dead: bool,
    ) {
        prop_assume!(check_name(&name).is_ok() && attributes.keys().all(|key| check_attribute_key(key).is_ok()));
        let spec = FileSpec { layout: LayoutKind::Rotated, block_bytes: pages * PAGE_BYTES, drives, key, weights: None };
        let mut record = Record::first(Id([1; 16]), &name, &spec, &weights).unwrap();
        record.generation = generation;
        record.attributes = attributes;
        if dead {
            record.state = RecordState::Deleted;
        }
        let bytes = record.to_bytes().unwrap();
        prop_assert_eq!(parse_record(&bytes), Ok(record));
    }

    #[test]
    fn any_bytes_are_refused_without_a_panic(bytes: Vec<u8>, text: String) {
        let mended = format!("{text}\n# checksum none\n");
        prop_assert!(parse_label(&bytes).is_err() && parse_record(&bytes).is_err());
        prop_assert!(parse_label_as(mended.as_bytes(), Signature::Waived).is_err());
    }
}

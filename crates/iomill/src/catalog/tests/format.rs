//! Labels as bytes: round trips, and every kind of damage.

use super::*;
use crate::sys::property;
use label::{LabelBody, LabelFeatures, Signature, parse_label_as};

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
    body(drives, 4).label_of(1)
}

fn body(drives: Vec<LabelDrive>, epoch: u64) -> LabelBody {
    let features = LabelFeatures::default();
    LabelBody { array: Id([9; 16]), epoch, copies: 2, voters: vec![0, 1], features, drives }
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

/// iomill writes the examples of the documentation, byte by byte. A change here is a new format.
#[test]
fn the_bytes_are_those_of_the_documentation() {
    let documentation = include_str!("../../../../../docs/format.md");
    let examples: Vec<&str> =
        documentation.split("```toml\n").skip(1).filter_map(|rest| Some(rest.split_once("```")?.0)).collect();
    let mut drives = label().drives;
    drives.truncate(2);
    drives.iter_mut().for_each(|drive| drive.path = format!("/mnt/ssd{}", drive.index));
    let label = body(drives, 1).label_of(0);
    assert_eq!(examples[0], String::from_utf8(label.to_bytes().unwrap()).unwrap());
}

fn resigned(bytes: Vec<u8>, from: &str, to: &str) -> Vec<u8> {
    let text = String::from_utf8(bytes).unwrap();
    let body = text[..text.rfind("# checksum").unwrap()].replacen(from, to, 1);
    assert!(!text.starts_with(&body), "{from} is not there");
    format!("{body}# checksum xxh3:{:016x}\n", crate::sys::hash::xxh3_64(body.as_bytes())).into_bytes()
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
    assert!(label_says("format = 2", "format = 3").contains("format 3"));
    assert!(label_says("format = 2", "format = 1").contains("before its first release"));
    assert!(label_says(&"03".repeat(16), &"01".repeat(16)).contains("twice"));
    assert!(label_says("voters = [0, 1]", "voters = [1, 0]").contains("rising order"));
    assert!(label_says("voters = [0, 1]", "voters = []").contains("voters"));
    assert!(label_says("voters = [0, 1]", "voters = [0, 3]").contains("voters"));
    assert!(label_says("copies = 2", "copies = 0").contains("copies"));
    assert!(label_says("copies = 2", "copies = 4").contains("copies"));
    assert!(label_says("incompatible = []", "unheard = []").contains("unheard"));
}

#[test]
fn any_bytes_are_refused_without_a_panic() {
    let make = |bytes: &mut arbitrary::Unstructured<'_>| {
        let any = property::list(bytes, 0..=100, |bytes| bytes.arbitrary::<u8>())?;
        // Characters of labels, so that some lines are nearly right.
        let text = property::text(bytes, "[]\"\n= .,#abdefimnorstv019\u{0}é", 0..=200)?;
        Ok((any, text))
    };
    property::check(256, make, |(bytes, text)| {
        let mended = format!("{text}\n# checksum none\n");
        assert!(parse_label(&bytes).is_err());
        assert!(parse_label_as(mended.as_bytes(), Signature::Waived).is_err());
    });
}

//! The checksum line at the end of labels and records, so that the fuzzer's bytes pass the check. The code follows
//! `docs/format.md`, and does not use the library.

use twox_hash::XxHash3_64;

/// `text` as whole lines, with its checksum.
pub fn sealed(text: &[u8]) -> Vec<u8> {
    let mut bytes = text.to_vec();
    if !bytes.ends_with(b"\n") {
        bytes.push(b'\n');
    }
    let checksum = format!("# checksum xxh3:{:016x}\n", XxHash3_64::oneshot(&bytes));
    bytes.extend_from_slice(checksum.as_bytes());
    bytes
}

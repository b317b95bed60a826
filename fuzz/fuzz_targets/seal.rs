//! The checksum line that labels and records end with, written by what `docs/format.md` says rather than by the
//! library, so that the fuzzer's bytes get past it.

use xxhash_rust::xxh3::xxh3_64;

/// `text` on whole lines, and its checksum.
pub fn sealed(text: &[u8]) -> Vec<u8> {
    let mut bytes = text.to_vec();
    if !bytes.ends_with(b"\n") {
        bytes.push(b'\n');
    }
    let checksum = format!("# checksum xxh3:{:016x}\n", xxh3_64(&bytes));
    bytes.extend_from_slice(checksum.as_bytes());
    bytes
}

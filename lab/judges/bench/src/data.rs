//! Bytes that are determined by their place.

use anyhow::{Result, ensure};

/// Length of a page and of a range.
pub const PAGE_BYTES: usize = 4096;

/// An object of pages, each of which has bytes of its own.
#[derive(Clone, Debug)]
pub struct Pages {
    /// The number of pages.
    pub count: u64,
}

impl Pages {
    pub fn new(mib: u64) -> Pages {
        Pages { count: (mib << 20) / PAGE_BYTES as u64 }
    }

    /// The name of the object.
    pub fn name(&self) -> String {
        format!("pages-{}", self.count)
    }

    pub fn len_bytes(&self) -> u64 {
        self.count * PAGE_BYTES as u64
    }
}

/// The bytes of a page: words of a generator that begins at the page's number.
pub fn page(number: u64) -> impl Iterator<Item = [u8; 8]> {
    (0..PAGE_BYTES as u64 / 8).map(move |word| mixed(number * 512 + word).to_le_bytes())
}

/// Refuses bytes that are not those of the page. Returns a digest of the bytes themselves.
pub fn check_page(number: u64, bytes: &[u8]) -> Result<u64> {
    ensure!(
        bytes.len() == PAGE_BYTES && bytes.chunks_exact(8).zip(page(number)).all(|(found, expected)| found == expected),
        "page {number} came back with other bytes; the store or the data are damaged: remove the directory and run again"
    );
    Ok(digest(bytes))
}

/// A digest of bytes in their order.
pub fn digest(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xCBF2_9CE4_8422_2325, |sum, &byte| (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3))
}

/// A bijection that mixes all bits.
fn mixed(number: u64) -> u64 {
    let number = (number ^ (number >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    let number = (number ^ (number >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    number ^ (number >> 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_told_from_others() {
        let bytes: Vec<u8> = page(5).flatten().collect();
        assert_eq!(check_page(5, &bytes).unwrap(), digest(&bytes));
        for wrong in [check_page(6, &bytes), check_page(5, &bytes[1..]), check_page(5, &[0; PAGE_BYTES])] {
            assert!(wrong.unwrap_err().to_string().contains("other bytes"));
        }
    }
}

//! Ids: 128 random bits, written as 32 hexadecimal digits, never used twice.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::engine::platform::Platform;
use crate::error::{Error, Result};

/// Names an array, a drive or a file for ever.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Id(pub [u8; 16]);

impl Id {
    /// A new id.
    pub(crate) fn random(platform: &dyn Platform) -> Result<Id> {
        let mut bytes = [0; 16];
        fill_random(platform, &mut bytes)?;
        Ok(Id(bytes))
    }

    /// The hexadecimal digits. A new file writes dozens of ids: the formatter of numbers took a third of its
    /// instructions. Its padding also takes more of them for some bytes than for others, so counts did not repeat.
    fn digits(&self) -> [u8; 32] {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let nibble = |at: usize| self.0[at / 2] >> (4 * (1 - at % 2)) & 0xf;
        std::array::from_fn(|at| DIGITS[usize::from(nibble(at))])
    }
}

/// Fills `bytes` with randomness, or says that the machine has none.
pub(super) fn fill_random(platform: &dyn Platform, bytes: &mut [u8]) -> Result<()> {
    platform.random(bytes).map_err(|source| Error::Random { source })
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(std::str::from_utf8(&self.digits()).map_err(|_| fmt::Error)?)
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Id {
    type Err = String;

    /// Accepts only what `Display` writes, so that a file name belongs to one id only.
    fn from_str(text: &str) -> Result<Id, String> {
        let digits = text.as_bytes();
        let mut bytes = [0; 16];
        if digits.len() != 32 {
            return Err(format!("id {text:?} does not have 32 hexadecimal digits"));
        }
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            match (hex_digit(pair[0]), hex_digit(pair[1])) {
                (Some(high), Some(low)) => *byte = high << 4 | low,
                _ => return Err(format!("id {text:?} does not have 32 hexadecimal digits in lower case")),
            }
        }
        Ok(Id(bytes))
    }
}

/// The value of a digit in lower case.
fn hex_digit(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

/// Reads 16 hexadecimal digits in lower case, exactly.
pub(super) fn parse_hex_u64(text: &str) -> Option<u64> {
    if text.len() != 16 {
        return None;
    }
    text.bytes().try_fold(0u64, |value, digit| Some(value << 4 | u64::from(hex_digit(digit)?)))
}

impl Serialize for Id {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Id {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Id, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_written_one_way_only() {
        let id = Id(*b"\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\xff");
        let text = id.to_string();
        assert_eq!(text, "000102030405060708090a0b0c0d0eff");
        assert_eq!(text.parse(), Ok(id));
        for bad in ["", "00", &text.to_uppercase(), &text[1..], &format!("{text}0"), "+0000000000000000000000000000000"]
        {
            assert!(bad.parse::<Id>().is_err(), "{bad}");
        }
        assert_eq!(parse_hex_u64("00000000000000ff"), Some(255));
        assert_eq!(parse_hex_u64("00000000000000FF"), None);
    }
}

//! The form of a label: TOML, then one last line `# checksum xxh3:<16 hex>` over all bytes before it.
//!
//! Goals: a person can read them and, with `iomill check --repair`, mend them; a changed or missing byte is found.
//! Non-goals: protection against malice.

use std::fmt;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::id::parse_hex_u64;
use crate::sys::hash::xxh3_64;

/// The format this version writes, and the newest it reads.
pub(super) const FORMAT: i64 = 2;

const CHECKSUM: &str = "# checksum ";

/// Why a label cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TextError {
    /// A later version wrote it, in this format.
    Newer(i64),
    /// A version before the first release wrote it, in this format.
    Older(i64),
    /// It does not hold what it should: what is wrong.
    Bad(String),
}

impl fmt::Display for TextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TextError::Newer(format) => write!(
                f,
                "is of format {format}, and this version of iomill knows formats up to {FORMAT}; \
                 use a version that knows format {format}"
            ),
            TextError::Older(format) => write!(
                f,
                "is of format {format}, which iomill had before its first release; copy the files out with that version, \
                 remove the directory `iomill` of each drive, and make a new array"
            ),
            TextError::Bad(why) => f.write_str(why),
        }
    }
}

/// Whether a text without a checksum counts: only `check --repair` accepts a text that a person has mended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signature {
    /// The checksum must be right.
    Required,
    /// `# checksum none` is accepted.
    Waived,
}

/// Writes `body` with its checksum.
pub(super) fn seal(body: &impl Serialize) -> Result<Vec<u8>, String> {
    let mut text = toml::to_string(body).map_err(|error| error.to_string())?;
    let checksum = xxh3_64(text.as_bytes());
    text.push_str(&format!("{CHECKSUM}xxh3:{checksum:016x}\n"));
    Ok(text.into_bytes())
}

/// A text that has been read, and whether it was signed.
#[derive(Debug)]
pub(super) struct Opened<T> {
    pub(super) body: T,
    pub(super) signed: bool,
}

/// Reads what `seal` wrote.
pub(super) fn open<T: DeserializeOwned>(bytes: &[u8], signature: Signature) -> Result<Opened<T>, TextError> {
    let text = std::str::from_utf8(bytes).map_err(|_| TextError::Bad("is not text".to_owned()))?;
    let (text, signed) = verify(text, signature)?;
    match toml::from_str::<T>(text) {
        Ok(body) => Ok(Opened { body, signed }),
        Err(error) => Err(explain(text, &error)),
    }
}

/// Separates the text from its checksum line and checks it.
fn verify(text: &str, signature: Signature) -> Result<(&str, bool), TextError> {
    let bad = |why: &str| Err(TextError::Bad(why.to_owned()));
    if text.is_empty() {
        return bad("is empty");
    }
    let Some(lines) = text.strip_suffix('\n') else { return bad("is cut off: its last line has no end") };
    let start = lines.rfind('\n').map_or(0, |end| end + 1);
    let Some(checksum) = lines[start..].strip_prefix(CHECKSUM) else {
        return bad("is cut off: its last line is not a checksum");
    };
    let body = &text[..start];
    if checksum == "none" {
        return match signature {
            Signature::Waived => Ok((body, false)),
            Signature::Required => bad("was mended by hand and is not signed yet; check and repair the array"),
        };
    }
    let Some(expected) = checksum.strip_prefix("xxh3:").and_then(parse_hex_u64) else {
        return bad("has a last line that is not a checksum");
    };
    if xxh3_64(body.as_bytes()) == expected { Ok((body, true)) } else { bad("has changed: its checksum is wrong") }
}

/// If the text has a later format, that is the reason why it cannot be read.
fn explain(text: &str, error: &toml::de::Error) -> TextError {
    let format = text.parse::<toml::Table>().ok().and_then(|table| table.get("format")?.as_integer());
    match format {
        Some(format) if format > FORMAT => TextError::Newer(format),
        Some(FORMAT) => {
            let key = error.span().and_then(|span| text.get(span)).filter(|part| !part.contains('\n'));
            TextError::Bad(match key {
                Some(key) => format!("cannot be read: {} (at `{key}`)", error.message()),
                None => format!("cannot be read: {}", error.message()),
            })
        }
        Some(format) if format > 0 => TextError::Older(format),
        Some(format) => TextError::Bad(format!("is of format {format}, which does not exist")),
        None => TextError::Bad(format!("cannot be read: {}", error.message())),
    }
}

/// The `format` key. Any format but ours ends the parse, so that `explain` decides.
pub(super) fn known_format<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
    let format = <i64 as serde::Deserialize>::deserialize(deserializer)?;
    if format == FORMAT { Ok(format) } else { Err(serde::de::Error::custom(format!("format {format} is not known"))) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Body {
        #[serde(deserialize_with = "known_format")]
        format: i64,
        word: String,
    }

    fn signed(text: &str) -> Vec<u8> {
        format!("{text}# checksum xxh3:{:016x}\n", xxh3_64(text.as_bytes())).into_bytes()
    }

    fn fault(bytes: &[u8]) -> String {
        open::<Body>(bytes, Signature::Required).unwrap_err().to_string()
    }

    #[test]
    fn what_is_sealed_opens() {
        let body = Body { format: 2, word: "# checksum xxh3:00\n\"".to_owned() };
        let bytes = seal(&body).unwrap();
        let opened = open::<Body>(&bytes, Signature::Required).unwrap();
        assert!(opened.signed);
        assert_eq!(opened.body, body);
    }

    #[test]
    fn faults_are_told_apart() {
        assert_eq!(
            open::<Body>(&signed("format = 7\nnew = 1\n"), Signature::Required).unwrap_err(),
            TextError::Newer(7)
        );
        assert!(fault(&signed("format = 7\nnew = 1\n")).contains("knows format 7"));
        assert!(fault(&signed("format = 2\nword = \"a\"\nwrod = 1\n")).contains("wrod"));
        assert_eq!(
            open::<Body>(&signed("format = 1\nold = 1\n"), Signature::Required).unwrap_err(),
            TextError::Older(1)
        );
        assert!(fault(&signed("format = 1\nold = 1\n")).contains("copy the files out"));
        assert!(fault(&signed("format = 0\nword = \"a\"\n")).contains("does not exist"));
        assert!(fault(&signed("word = \"a\"\n")).contains("format"));
        assert!(fault(&signed("word = \n")).contains("cannot be read"));
        assert!(fault(b"").contains("empty"));
        assert!(fault(b"\xff\xfe\n").contains("not text"));
        assert!(fault(b"format = 2\nword = \"a\"\n# checksum xxh3:0000000000000000\n").contains("checksum is wrong"));
    }

    #[test]
    fn a_mended_text_counts_only_when_asked_for() {
        let mended = b"# note to self\nword = \"b\" # was a\nformat = 2\n# checksum none\n";
        assert!(fault(mended).contains("check and repair"));
        let opened = open::<Body>(mended, Signature::Waived).unwrap();
        assert!(!opened.signed);
        assert_eq!(opened.body.word, "b");
    }
}

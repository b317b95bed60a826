//! What a file may be called, and what its attributes may be.

use crate::error::{Error, Result};

/// Longest name in bytes.
pub const NAME_MAX_BYTES: usize = 1000;
/// Longest key of an attribute in bytes.
pub const ATTRIBUTE_KEY_MAX_BYTES: usize = 100;

/// Refuses a name that no file can have, before work is done for it. Names are UTF-8 paths of at most 1,000 bytes:
/// components between single slashes, none of them empty, `.` or `..`, and no control characters.
///
/// # Errors
/// [`Error::Invalid`], which says what is wrong with the name.
pub fn check_name(name: &str) -> Result<()> {
    name_fault(name).map_or(Ok(()), |why| Err(Error::invalid(format!("file name {}", shown(name)), why)))
}

/// A key is short and holds no control characters.
pub fn check_attribute_key(key: &str) -> Result<()> {
    key_fault(key).map_or(Ok(()), |why| Err(Error::invalid(format!("attribute {}", shown(key)), why)))
}

/// Why `name` is not a valid name.
pub(super) fn name_fault(name: &str) -> Option<String> {
    if is_usual(name) { None } else { fault_of(name) }
}

/// Whether `name` is valid at a glance: a name of which this says no may be valid, too.
fn is_usual(name: &str) -> bool {
    // Whether the component has had nothing but dots so far.
    let mut is_dots = true;
    for byte in name.bytes() {
        match byte {
            b'/' if is_dots => return false,
            b'/' => is_dots = true,
            // The control characters beyond ASCII begin with the last of these.
            ..b' ' | 0x7f | 0xc2 => return false,
            _ => is_dots &= byte == b'.',
        }
    }
    !is_dots && name.len() <= NAME_MAX_BYTES
}

fn fault_of(name: &str) -> Option<String> {
    if name.is_empty() {
        return Some("a name has at least one character".to_owned());
    }
    if name.len() > NAME_MAX_BYTES {
        return Some(format!("it has {} bytes; at most {NAME_MAX_BYTES} are allowed", name.len()));
    }
    if let Some(control) = name.chars().find(|character| character.is_control()) {
        return Some(format!("it holds the control character {control:?}"));
    }
    if name.starts_with('/') {
        return Some("names do not begin with `/`".to_owned());
    }
    if name.ends_with('/') {
        return Some("names do not end with `/`".to_owned());
    }
    let bad = name.split('/').find(|component| matches!(*component, "" | "." | ".."))?;
    Some(match bad {
        _ if bad == name => format!("{bad:?} names no file"),
        "" => "it has two slashes in a row".to_owned(),
        _ => format!("a part between slashes cannot be {bad:?}"),
    })
}

/// Why `key` is not a valid key.
pub(super) fn key_fault(key: &str) -> Option<String> {
    if key.is_empty() {
        Some("a key has at least one character".to_owned())
    } else if key.len() > ATTRIBUTE_KEY_MAX_BYTES {
        Some(format!("it has {} bytes; at most {ATTRIBUTE_KEY_MAX_BYTES} are allowed", key.len()))
    } else {
        let control = key.chars().find(|character| character.is_control())?;
        Some(format!("it holds the control character {control:?}"))
    }
}

/// The text for a message: escaped, and cut if it is long.
fn shown(text: &str) -> String {
    const SHOWN_CHARS: usize = 80;
    match text.char_indices().nth(SHOWN_CHARS) {
        Some((end, _)) => format!("{:?}...", &text[..end]),
        None => format!("{text:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for good in ["a", "a/b", "graph/edges.v2", "...", "a/...", "späte Größe", &"x".repeat(NAME_MAX_BYTES)] {
            check_name(good).unwrap();
        }
        let long = "x".repeat(NAME_MAX_BYTES + 1);
        for bad in ["", "/", "/a", "a/", "a//b", ".", "..", "a/./b", "../a", "a/..", "a\0b", "a\nb", "a\u{7f}", &long] {
            assert!(check_name(bad).is_err(), "{bad:?}");
        }
    }

    /// What is seen at a glance is what all rules say.
    #[test]
    fn no_fault_is_overlooked() {
        let letters = ["a", ".", "/", "\n", "\u{7f}", "\u{80}", "\u{9f}", "\u{a0}", "ü"];
        let mut names = vec![String::new()];
        for _ in 0..5 {
            names = names.iter().flat_map(|name| letters.map(|letter| format!("{name}{letter}"))).collect();
            for name in &names {
                assert_eq!(name_fault(name), fault_of(name), "{name:?}");
            }
        }
        assert!(
            is_usual("a/b.c") && is_usual(&"x".repeat(NAME_MAX_BYTES)) && !is_usual(&"x".repeat(NAME_MAX_BYTES + 1))
        );
    }

    #[test]
    fn messages_show_what_offends_and_stay_short() {
        let message = check_name("a/../b").unwrap_err().to_string();
        assert!(message.contains(r#""a/../b""#) && message.contains(r#"cannot be "..""#), "{message}");
        assert!(check_name(&"ü/".repeat(2000)).unwrap_err().to_string().len() < 300);
        assert!(check_attribute_key("").is_err() && check_attribute_key("a\tb").is_err());
        assert!(check_attribute_key(&"k".repeat(101)).is_err() && check_attribute_key("k").is_ok());
    }
}

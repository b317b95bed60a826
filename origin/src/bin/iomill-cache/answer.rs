//! [`Answer`] and [`Failure`]: the results of a call, as text and as JSON. The forms of JSON are those of the command
//! `iomill`: `docs/json.md`. Non-goals: the streams.

use std::fmt::Write;
use std::process::ExitCode;

use iomill_origin::{DriveStat, Error};

/// See the module.
#[derive(Default)]
pub struct Answer {
    /// Numbers of the whole call: the key in JSON, and the words behind the number.
    counts: Vec<(&'static str, u64, &'static str)>,
    pub objects: Option<Vec<Object>>,
    pub drives: Vec<DriveStat>,
    pub notices: Vec<String>,
}

/// An object of `ls` and `verify`: its path, and numbers by their names.
pub struct Object {
    pub path: String,
    pub numbers: Vec<(&'static str, u64)>,
}

/// The reason for which a call failed. `kind` is one of the words of `docs/json.md`.
#[derive(Debug)]
pub struct Failure {
    pub kind: &'static str,
    pub message: String,
}

/// A string of JSON (RFC 8259).
fn quoted(text: &str) -> String {
    let mut quoted = String::from('"');
    for letter in text.chars() {
        match letter {
            '"' | '\\' => quoted.extend(['\\', letter]),
            letter if (letter as u32) < 0x20 => {
                let _in_memory = write!(quoted, "\\u{:04x}", letter as u32);
            }
            letter => quoted.push(letter),
        }
    }
    quoted.push('"');
    quoted
}

/// An object of JSON, of pairs of keys and values.
fn object<'a>(pairs: impl IntoIterator<Item = (&'a str, String)>) -> String {
    let pairs: Vec<String> = pairs.into_iter().map(|(key, value)| format!("{}:{value}", quoted(key))).collect();
    format!("{{{}}}", pairs.join(","))
}

fn array(values: impl IntoIterator<Item = String>) -> String {
    let values: Vec<String> = values.into_iter().collect();
    format!("[{}]", values.join(","))
}

impl Answer {
    pub fn count(&mut self, key: &'static str, number: u64, words: &'static str) {
        self.counts.push((key, number, words));
    }

    pub fn text(&self) -> String {
        let mut said = String::new();
        for (_, number, words) in &self.counts {
            said += &format!("{number} {words}\n");
        }
        for object in self.objects.iter().flatten() {
            let numbers: Vec<String> =
                object.numbers.iter().map(|(key, n)| format!("{n} {}", key.replace('_', " "))).collect();
            said += &format!("{}: {}\n", object.path, numbers.join(", "));
        }
        // A list of objects is about them only.
        if self.objects.is_none() {
            self.drives.iter().for_each(|drive| said += &line(drive));
        }
        said
    }

    /// One line.
    pub fn json(&self) -> String {
        let mut pairs: Vec<(&str, String)> =
            self.counts.iter().map(|(key, number, _)| (*key, number.to_string())).collect();
        if let Some(objects) = &self.objects {
            let one = |one: &Object| {
                let numbers = one.numbers.iter().map(|(key, number)| (*key, number.to_string()));
                object(std::iter::once(("path", quoted(&one.path))).chain(numbers))
            };
            pairs.push(("objects", array(objects.iter().map(one))));
        }
        pairs.push(("drives", array(self.drives.iter().map(drive))));
        pairs.push(("notices", array(self.notices.iter().map(|notice| quoted(notice)))));
        object(pairs) + "\n"
    }

    /// Each notice is about a drive that is left out or has failed.
    pub fn failures(&self) -> Vec<Failure> {
        self.notices.iter().map(|notice| Failure::new("drive", notice.as_str())).collect()
    }
}

fn line(drive: &DriveStat) -> String {
    let share = 100.0 * drive.filled_bytes as f64 / drive.bytes.max(1) as f64;
    format!(
        "{}: {} bytes, {} cached ({share:.1}%), {} of them recently read, {} pinned, {} on the drive\n",
        drive.path.display(),
        drive.bytes,
        drive.filled_bytes,
        drive.touched_bytes,
        drive.pinned_bytes,
        drive.allocated_bytes
    )
}

fn drive(drive: &DriveStat) -> String {
    object([
        ("path", quoted(&drive.path.to_string_lossy())),
        ("bytes", drive.bytes.to_string()),
        ("cached_bytes", drive.filled_bytes.to_string()),
        ("recently_read_bytes", drive.touched_bytes.to_string()),
        ("pinned_bytes", drive.pinned_bytes.to_string()),
        ("allocated_bytes", drive.allocated_bytes.to_string()),
        ("is_loaded", drive.is_loaded.to_string()),
        ("is_dead", drive.is_dead.to_string()),
    ])
}

impl Failure {
    pub fn new(kind: &'static str, message: impl Into<String>) -> Failure {
        Failure { kind, message: message.into() }
    }

    pub fn json(&self) -> String {
        let error = object([("message", quoted(&self.message)), ("kind", quoted(self.kind))]);
        object([("error", error), ("notices", array([]))])
    }

    pub fn code(&self) -> ExitCode {
        ExitCode::from(if matches!(self.kind, "usage" | "invalid") { 2 } else { 1 })
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let kind = match &error {
            Error::Invalid { .. } | Error::Small { .. } => "invalid",
            Error::NoDirectory { .. } => "no_directory",
            Error::Unmounted { .. } | Error::Gone { .. } => "no_array",
            Error::Foreign { .. } => "drive",
            Error::Label { .. } => "corrupt",
            Error::Late { .. } | Error::Io { .. } => "io",
            Error::Index { .. } => "machine",
            _ => "other",
        };
        Failure::new(kind, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_text_is_one_string_of_one_line() {
        assert_eq!(quoted("a\"b\\c\nd\u{1}é"), "\"a\\\"b\\\\c\\u000ad\\u0001é\"");
        let failure = Failure::new("usage", "no \"x\"");
        assert_eq!(failure.json(), r#"{"error":{"message":"no \"x\"","kind":"usage"},"notices":[]}"#);
    }
}

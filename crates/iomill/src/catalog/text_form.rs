//! The files of an array as text, for people and other programs: `iomill catalog export` and `import`.
//!
//! Goals: one line for each layout, shared part, file and attribute, so that usual tools can work on it; an error names
//! its line. Non-goals: the labels, which are text already.
//!
//! A line is a list of words with single spaces between them. The last word of a file is its name, and that of an
//! attribute its value; these may have spaces. Control characters and backslashes are written as `\u{...}`, and so are
//! spaces in the key of an attribute.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::change::check_attributes;
use super::id::{Id, parse_hex_u64};
use super::journal::space::Space;
use super::log::record::{Extent, FileLife, FileRecord, LayoutRecord, LogRecord, SUMS_HERE, SUMS_UNKNOWN};
use super::name::{check_attribute_key, check_name};
use super::small::PART_MAX_PAGES;
use super::state::files::{Files, NUMBERS_END};
use crate::error::{Error, Result};
use crate::layout::Layout;

/// The first line.
const HEAD: &str = "iomill-catalog 2";

/// Writes all that the log says, in the order of numbers and names.
pub(super) fn export(array: Id, files: &Files) -> String {
    let mut text = format!("{HEAD}\narray {array}\nnext {}\n", files.next_number());
    for layout in files.layouts() {
        let drives: Vec<String> = layout.drives.iter().map(|(drive, weight)| format!("{drive}:{weight}")).collect();
        let (number, kind, block) = (layout.number, layout.kind.name(), layout.block_bytes);
        line(&mut text, format_args!("layout {number} {kind} {block} {}", drives.join(" ")));
    }
    for ((drive, shared), pages) in files.shared() {
        line(&mut text, format_args!("shared {drive} {shared} {pages}"));
    }
    let dying = files.dying().filter_map(|number| files.numbered(number));
    let mut count = 0;
    for file in files.from("").chain(dying) {
        count += 1;
        export_file(&mut text, &file);
        for (key, value) in files.attributes(file.number) {
            let key = escaped(key).replace(' ', "\\u{20}");
            line(&mut text, format_args!("attribute {} {key} {}", file.number, escaped(value)));
        }
    }
    line(&mut text, format_args!("end {count}"));
    text
}

fn export_file(text: &mut String, file: &FileRecord<'_>) {
    let FileRecord { number, length, created_ns, modified_ns, key, layout, .. } = file;
    let life = if file.life == FileLife::Live { "live" } else { "dying" };
    let parts = if file.has_parts { "parts" } else { "-" };
    let extent = file.extent.map_or("-".to_owned(), |extent| {
        let Extent { drive, shared, page, pages } = extent;
        format!("{drive}:{shared}:{page}:{pages}")
    });
    let name = escaped(file.name);
    if let Some(sums) = file.sums {
        // Before the file, so that the file's line is as it always was.
        let sums: String = sums.iter().map(|byte| format!("{byte:02x}")).collect();
        line(text, format_args!("sums {number} {sums}"));
    }
    line(
        text,
        format_args!(
            "file {number} {life} {length} {created_ns} {modified_ns} {key:016x} {layout} {parts} {extent} {name}"
        ),
    );
}

fn line(text: &mut String, line: std::fmt::Arguments<'_>) {
    // Writing to a string does not fail.
    let _ = writeln!(text, "{line}");
}

fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        if c == '\\' || c.is_control() {
            escaped.extend(c.escape_unicode());
        } else {
            escaped.push(c);
        }
    }
    escaped
}

fn unescaped(text: &str) -> Result<String, String> {
    let mut parts = text.split('\\');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let code = part.strip_prefix("u{").and_then(|rest| rest.split_once('}'));
        let found =
            code.and_then(|(digits, rest)| Some((char::from_u32(u32::from_str_radix(digits, 16).ok()?)?, rest)));
        let (c, rest) = found.ok_or_else(|| format!("has a backslash without a code such as \\u{{5c}} in {text:?}"))?;
        plain.push(c);
        plain.push_str(rest);
    }
    Ok(plain)
}

/// The content of a text.
#[derive(Debug)]
pub(super) struct Imported {
    pub(super) array: Id,
    pub(super) files: Files,
}

/// Reads a text, and checks it as a whole. `drives` are those of the array. An error names the line.
pub(super) fn import(text: &str, drives: usize) -> Result<Imported> {
    let mut reader =
        Reader { array: None, files: Files::default(), sums: BTreeMap::new(), count: 0, end: None, drives };
    for (at, line) in text.lines().enumerate() {
        let read = if at == 0 { reader.head(line) } else { reader.line(line) };
        read.map_err(|why| Error::invalid(format!("line {} of the catalog's text", at + 1), why))?;
    }
    let whole = |why: String| Error::invalid("the catalog's text", why);
    let Reader { array, mut files, sums, count, end, .. } = reader;
    if end != Some(count) {
        let end = end.map_or("no line `end`".to_owned(), |end| format!("its end names {end}"));
        return Err(whole(format!("is cut off, or lines are missing: it has {count} files, and {end}")));
    }
    let array = array.ok_or_else(|| whole("names no array".to_owned()))?;
    if let Some(number) = sums.keys().next() {
        return Err(whole(format!("has sums of file {number} without a line of that file behind them")));
    }
    files.index(Vec::new()).map_err(|fault| whole(fault.to_string()))?;
    let extents = (0..files.slots()).filter_map(|slot| files.in_slot(slot));
    let extents = extents.filter_map(|file| file.extent.map(|extent| (file.number, extent)));
    Space::new(files.shared(), extents).map_err(|fault| whole(fault.to_string()))?;
    Ok(Imported { array, files })
}

struct Reader {
    array: Option<Id>,
    files: Files,
    /// Fields of sums of files with lines that follow.
    sums: BTreeMap<u64, Vec<u8>>,
    count: u64,
    end: Option<u64>,
    drives: usize,
}

/// The next word of a line.
fn word<'a>(rest: &mut &'a str, what: &str) -> Result<&'a str, String> {
    let (word, behind) = rest.split_once(' ').unwrap_or((rest, ""));
    *rest = behind;
    if word.is_empty() { Err(format!("has no {what}")) } else { Ok(word) }
}

fn number<T: std::str::FromStr>(rest: &mut &str, what: &str) -> Result<T, String> {
    let word = word(rest, what)?;
    word.parse().map_err(|_| format!("has a {what} that is no number, or too large: {word:?}"))
}

/// The number of a file, or of the next one.
fn file_number(rest: &mut &str) -> Result<u64, String> {
    let number = number(rest, "number")?;
    if number < NUMBERS_END { Ok(number) } else { Err(format!("has the number {number}, which no file can have")) }
}

/// Numbers with colons between them.
fn numbers<const N: usize>(word: &str, what: &str) -> Result<[u32; N], String> {
    let found: Result<Vec<u32>, _> = word.split(':').map(str::parse).collect();
    let bad = || format!("has a {what} that is not {N} numbers with colons between them: {word:?}");
    found.ok().and_then(|found| found.try_into().ok()).ok_or_else(bad)
}

/// Bytes as pairs of hexadecimal digits.
fn parse_bytes(digits: &str) -> Option<Vec<u8>> {
    let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    if digits.len().is_multiple_of(2) { digits.as_bytes().chunks(2).map(pair).collect() } else { None }
}

fn small<T: TryFrom<u32>>(number: u32, what: &str) -> Result<T, String> {
    number.try_into().map_err(|_| format!("has a {what} that is too large: {number}"))
}

impl Reader {
    fn head(&mut self, line: &str) -> Result<(), String> {
        if line == HEAD { Ok(()) } else { Err(format!("is not {HEAD:?}; a later version of iomill may have made it")) }
    }

    fn line(&mut self, line: &str) -> Result<(), String> {
        if line.is_empty() || line.starts_with('#') {
            return Ok(());
        }
        if self.end.is_some() {
            return Err("follows the end".to_owned());
        }
        let mut rest = line;
        match word(&mut rest, "kind")? {
            "array" => {
                let id = word(&mut rest, "id")?;
                self.array = Some(id.parse().map_err(|_| format!("has no id of 32 hexadecimal digits: {id:?}"))?);
            }
            "next" => self.take(&LogRecord::Numbers(file_number(&mut rest)?))?,
            "layout" => self.layout(&mut rest)?,
            "shared" => {
                let (drive, shared) = (number(&mut rest, "drive")?, number(&mut rest, "shared part")?);
                self.check_drive(drive)?;
                let pages = number(&mut rest, "count of pages")?;
                if pages > PART_MAX_PAGES {
                    return Err(format!("has {pages} pages, and a shared part has at most {PART_MAX_PAGES}"));
                }
                self.take(&LogRecord::Shared { drive, shared, pages })?;
            }
            "sums" => {
                let (number, digits) = (number(&mut rest, "number")?, word(&mut rest, "field of sums")?);
                let field = parse_bytes(digits).ok_or_else(|| format!("has no bytes as digits: {digits:?}"))?;
                if self.sums.insert(number, field).is_some() {
                    return Err(format!("has sums of file {number} for the second time"));
                }
            }
            "file" => return self.file(rest),
            "attribute" => {
                let number = number(&mut rest, "number")?;
                let key = unescaped(word(&mut rest, "key")?)?;
                check_attribute_key(&key).map_err(|error| error.to_string())?;
                let value = unescaped(rest)?;
                let known = self.files.attributes(number);
                check_attributes(known, (&key, Some(&value)), || format!("file {number}"))
                    .map_err(|error| error.to_string())?;
                return self.take(&LogRecord::Attribute { number, key: &key, value: Some(&value) });
            }
            "end" => self.end = Some(number(&mut rest, "count of files")?),
            other => return Err(format!("has the kind {other:?}, which this version does not know")),
        }
        if rest.is_empty() { Ok(()) } else { Err(format!("has more than it should: {rest:?}")) }
    }

    fn take(&mut self, record: &LogRecord<'_>) -> Result<(), String> {
        self.files.apply(record, false).map_err(|fault| fault.to_string())
    }

    fn check_drive(&self, drive: u16) -> Result<(), String> {
        let count = self.drives;
        if usize::from(drive) < count { Ok(()) } else { Err(format!("names drive {drive}, and the array has {count}")) }
    }

    fn layout(&mut self, rest: &mut &str) -> Result<(), String> {
        let number = number(rest, "number")?;
        let kind = word(rest, "layout")?;
        let known = [Layout::Striping, Layout::Rotated, Layout::Hash];
        let found = known.into_iter().find(|known| known.name() == kind);
        let kind = found.ok_or_else(|| format!("has the layout {kind:?}, which this version does not know"))?;
        let block_bytes = self::number(rest, "size of blocks")?;
        let mut drives = Vec::new();
        while !rest.is_empty() {
            let [drive, weight] = numbers(word(rest, "drive")?, "drive with its weight")?;
            let (drive, weight) = (small(drive, "drive")?, small(weight, "weight")?);
            self.check_drive(drive)?;
            drives.push((drive, weight));
        }
        // A layout that makes no sense is refused as one from a log is.
        let record = LogRecord::Layout(LayoutRecord { number, kind, block_bytes, drives });
        self.take_checked(&record)
    }

    fn file(&mut self, mut rest: &str) -> Result<(), String> {
        let rest = &mut rest;
        let number = file_number(rest)?;
        let life = match word(rest, "state")? {
            "live" => FileLife::Live,
            "dying" => FileLife::Dying,
            other => return Err(format!("has the state {other:?}; it is live or dying")),
        };
        let (length, created_ns, modified_ns) =
            (self::number(rest, "length")?, self::number(rest, "time")?, self::number(rest, "time")?);
        let key = word(rest, "key")?;
        let key = parse_hex_u64(key).ok_or_else(|| format!("has a key that is not 16 hexadecimal digits: {key:?}"))?;
        let layout = self::number(rest, "layout")?;
        let has_parts = match word(rest, "word for its parts")? {
            "parts" => true,
            "-" => false,
            other => return Err(format!("has {other:?} where `parts` or `-` should be")),
        };
        let extent = match word(rest, "extent")? {
            "-" => None,
            extent => {
                let [drive, shared, page, pages] = numbers(extent, "extent")?;
                let (shared, pages) = (small(shared, "shared part")?, small(pages, "count of pages")?);
                Some(Extent { drive: small(drive, "drive")?, shared, page, pages })
            }
        };
        let name = unescaped(rest)?;
        if life == FileLife::Live {
            check_name(&name).map_err(|error| error.to_string())?;
        }
        if self.files.numbered(number).is_some() {
            return Err(format!("has the number {number}, which another file has"));
        }
        let name = name.as_str();
        let field = self.sums.remove(&number);
        let sums = field.as_deref();
        let file =
            FileRecord { number, length, created_ns, modified_ns, key, layout, life, has_parts, name, extent, sums };
        self.count += 1;
        self.take_checked(&LogRecord::File(file))
    }

    /// Takes a record after the checks of one that is read from a log.
    fn take_checked(&mut self, record: &LogRecord<'_>) -> Result<(), String> {
        let mut bytes = Vec::new();
        record.encode(&mut bytes);
        let mut cursor = super::log::bytes::Cursor::new(&bytes);
        match LogRecord::decode(&mut cursor, true) {
            // Pages may have changed since the text was written, so sums in a record are made anew from them (C60).
            Ok(Some(LogRecord::File(file))) if file.sums.is_some_and(|field| field.starts_with(&[SUMS_HERE])) => {
                self.take(&LogRecord::File(FileRecord { sums: Some(&[SUMS_UNKNOWN]), ..file }))
            }
            Ok(Some(record)) => self.take(&record),
            Ok(None) => Ok(()),
            Err(fault) => Err(fault.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "iomill-catalog 2
array 09090909090909090909090909090909
next 9
layout 1 striping 65536 0:10 1:10
layout 2 hash 4096 1:3
shared 1 0 256
file 7 live 5000 1 2 00000000000000ff 2 - 1:0:3:2 a name \\u{5c} with spaces
attribute 7 a\\u{20}key two\\u{a}lines
attribute 7 empty 
file 3 live 70000 1 2 0000000000000000 1 parts - b
file 4 dying 0 1 2 0000000000000000 1 parts - 
end 3
";

    #[test]
    fn a_text_is_taken_back_as_it_was_written() {
        let Imported { array, files } = import(TEXT, 2).unwrap();
        assert_eq!((array, files.len(), files.next_number()), (Id([9; 16]), 3, 9));
        let file = files.named("a name \\ with spaces").unwrap();
        assert_eq!((file.number, file.extent), (7, Some(Extent { drive: 1, shared: 0, page: 3, pages: 2 })));
        let attributes: Vec<_> = files.attributes(7).collect();
        assert_eq!(attributes, [("a key", "two\nlines"), ("empty", "")]);
        assert_eq!(export(array, &files), TEXT);
        // Comments and empty lines may stand anywhere behind the first line.
        let commented = TEXT.replace("\nnext", "\n\n# by hand\nnext");
        assert_eq!(export(array, &import(&commented, 2).unwrap().files), TEXT);
    }

    /// The fields of sums stand before their files.
    #[test]
    fn sums_are_taken_back() {
        let text = TEXT.replace("file 7", "sums 7 010200000003000000\nfile 7").replace("file 3", "sums 3 00\nfile 3");
        let files = import(&text, 2).unwrap().files;
        assert_eq!(files.numbered(7).unwrap().sums, Some(&[2][..]));
        assert_eq!(files.numbered(3).unwrap().sums, Some(&[0][..]));
        assert_eq!(files.numbered(4).unwrap().sums, None);
        for (from, to) in
            [("sums 3 00", "sums 3 03"), ("sums 3 00", "sums 3 0"), ("sums 3", "sums 8"), ("7 0102", "7 01")]
        {
            assert!(import(&text.replace(from, to), 2).is_err(), "{from:?} to {to:?}");
        }
    }

    /// Each mistake is refused, with its line.
    #[test]
    fn a_mistake_is_refused_with_its_line() {
        let lines: Vec<&str> = TEXT.lines().collect();
        let missing = (0..lines.len()).filter(|at| ![2, 5, 7, 8].contains(at) || *at == 5);
        for at in missing {
            let mut less = lines.clone();
            less.remove(at);
            // The second layout has one file, so all lines but attributes and the next number are needed.
            assert!(import(&less.join("\n"), 2).is_err(), "without line {}", at + 1);
        }
        for (from, to, says) in [
            ("iomill-catalog 2", "iomill-catalog 3", "line 1"),
            ("striping", "raid", "line 4 of the catalog's text"),
            ("next 9", "next 18446744073709551615", "line 3"),
            ("file 3", "file 9223372036854775808", "line 10"),
            ("65536 0:10", "65537 0:10", "line 4"),
            ("shared 1 0 256", "shared 1 0 262145", "at most 262144"),
            ("1:10", "2:10", "line 4"),
            ("1:10", "1:10:1", "line 4"),
            ("7 live", "3 live", "attribute of file 7"),
            ("live 5000", "alive 5000", "line 7"),
            ("5000", "-5000", "line 7"),
            ("1:0:3:2", "1:0:255:2", "shared part 0"),
            ("\\u{5c}", "\\", "line 7"),
            (" b\n", " a name \\u{5c} with spaces\n", "same name"),
            (" b\n", " a//b\n", "line 10"),
            ("- b", "- ", "line 10"),
            ("attribute 7 empty", "attribute 8 empty", "line 9"),
            ("file 3 live 70000 1 2 0000000000000000 1", "file 3 live 70000 1 2 0000000000000000 3", "line 10"),
            ("end 3", "end 2", "cut off"),
            ("end 3", "end 3\nend 3", "line 13"),
            ("end 3", "end 3 4", "line 12"),
        ] {
            let text = TEXT.replacen(from, to, 1);
            assert_ne!(text, TEXT);
            let error = import(&text, 2).unwrap_err().to_string();
            assert!(error.contains(says), "{from:?} to {to:?}: {error}");
        }
    }
}

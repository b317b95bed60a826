//! [`Label`]: the file that makes a directory a drive of a cache. Non-goals: the label of a drive of an array, which is
//! `iomill`'s.
//!
//! It is text: a line for each fact, and a checksum of these lines as the last one.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use twox_hash::XxHash3_64;

use crate::error::{Error, Result};
use crate::geometry::Geometry;

/// The only version of labels, summaries and sums so far.
const VERSION: u32 = 1;
const TITLE: &str = "iomill-origin";

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    /// The cache, which all of its drives name.
    pub cache: u128,
    /// This drive.
    pub drive: u128,
    pub geometry: Geometry,
}

/// The path of the label below the directory of a drive.
pub fn path_of(home: &Path) -> PathBuf {
    home.join("label")
}

impl Label {
    pub fn text(&self) -> String {
        let g = &self.geometry;
        let lines = format!(
            "{TITLE} {VERSION}\ncache {:032x}\ndrive {:032x}\ngranule {}\nregion {}\nregions {}\n",
            self.cache,
            self.drive,
            g.granule_bytes(),
            g.region_bytes(),
            g.regions()
        );
        summed(&lines)
    }

    /// An error names the problem of the text.
    pub fn parse(text: &str) -> Result<Label, String> {
        let version = text.lines().next().and_then(|line| line.strip_prefix(TITLE)?.trim().parse::<u32>().ok());
        match version {
            Some(VERSION) => {}
            Some(version) => return Err(format!("this program does not know version {version}")),
            None => return Err("it is damaged".into()),
        }
        let lines = unsummed(text).ok_or("it is damaged")?;
        let field = |name: &str| {
            let found = lines.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            found.ok_or_else(|| format!("it has no line `{name}`"))
        };
        let id = |name| u128::from_str_radix(field(name)?, 16).map_err(|e| format!("{name}: {e}"));
        let number = |name| field(name)?.parse::<u64>().map_err(|e| format!("{name}: {e}"));
        let short = |name| u32::try_from(number(name)?).map_err(|e| format!("{name}: {e}"));
        let geometry = Geometry::new(short("granule")?, number("region")?, short("regions")?)?;
        Ok(Label { cache: id("cache")?, drive: id("drive")?, geometry })
    }

    /// `None` if the drive has no label yet.
    pub fn read(home: &Path) -> Result<Option<Label>> {
        let path = path_of(home);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(Error::io("read", path)(e)),
        };
        let label = std::str::from_utf8(&bytes).map_err(|_| "it is damaged".to_owned()).and_then(Label::parse);
        label.map(Some).map_err(|why| Error::Label { path, why })
    }

    /// Writes the label as a whole: an existing label is complete. The caller holds the drive's lock.
    pub fn write(&self, home: &Path) -> Result<()> {
        write_whole(home, "label", &self.text())
    }
}

/// Lines with their checksum behind them.
pub fn summed(lines: &str) -> String {
    format!("{lines}sum {:016x}\n", XxHash3_64::oneshot(lines.as_bytes()))
}

/// The lines before their checksum, if the checksum is right.
pub fn unsummed(text: &str) -> Option<&str> {
    let (lines, sum) = text.rsplit_once("sum ")?;
    (sum.trim_end() == format!("{:016x}", XxHash3_64::oneshot(lines.as_bytes()))).then_some(lines)
}

/// Writes a file of a drive as a whole: an existing file is complete. The caller holds the drive's lock.
pub fn write_whole(home: &Path, name: &str, text: &str) -> Result<()> {
    let (path, staged) = (home.join(name), home.join(format!("{name}.new")));
    let write = || {
        let mut file = fs::File::create(&staged)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&staged, &path)?;
        fs::File::open(home)?.sync_all()
    };
    write().map_err(Error::io("write", path.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Label {
        Label { cache: 5 << 90, drive: 77, geometry: Geometry::new(16_384, 64 << 20, 12).unwrap() }
    }

    #[test]
    fn a_label_is_read_as_it_was_written() {
        assert_eq!(Label::parse(&sample().text()), Ok(sample()));
    }

    /// A label is accepted only if all of its bytes are right.
    #[test]
    fn a_label_with_a_wrong_bit_is_refused() {
        let text = sample().text().into_bytes();
        // The line end after the checksum does not count.
        for bit in 0..(text.len() - 1) * 8 {
            let mut wrong = text.clone();
            wrong[bit / 8] ^= 1 << (bit % 8);
            let parsed = std::str::from_utf8(&wrong).map(Label::parse);
            assert!(!matches!(parsed, Ok(Ok(_))), "bit {bit}");
        }
        for len in 0..text.len() - 1 {
            assert!(Label::parse(std::str::from_utf8(&text[..len]).unwrap()).is_err(), "{len} bytes");
        }
    }

    #[test]
    fn a_later_version_is_named() {
        let why = Label::parse("iomill-origin 2\nwhatever\n").unwrap_err();
        assert!(why.contains("version 2"), "{why}");
    }
}

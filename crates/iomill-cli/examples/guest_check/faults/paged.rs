//! [`Paged`]: a file of pages with known bytes. Non-goals: faults.

use std::path::{Path, PathBuf};

use iomill::{Advice, Array, Error, File, FileOptions};

use crate::{Random, Result, check};

pub const PAGE: u64 = 4096;
pub const PAGES: u64 = 24;
const SECTOR: usize = 512;

/// A file on two drives. Its pages go to them in turn, and each has the bytes of a version.
pub struct Paged {
    name: &'static str,
    pub file: File,
    has_sums: bool,
    /// The parts, with the numbers of their drives, in the order of the file's drives.
    parts: Vec<(PathBuf, u16)>,
}

/// What a page was found to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// The bytes of the version with this index among the allowed ones, or of several.
    Bytes(usize),
    Mixed,
    /// An error that names the page or its sum.
    Named,
}

impl Paged {
    /// A new file with version 0 of all pages, which is durable.
    pub fn create(array: &Array, name: &'static str, has_sums: bool) -> Result<Paged> {
        array.create_file(name, &FileOptions::new().block_bytes(PAGE as u32).checksums(has_sums))?.close()?;
        let paged = Paged::open(array, name)?;
        for page in 0..PAGES {
            paged.write(page, 0)?;
        }
        paged.file.sync()?;
        paged.file.advise(.., Advice::Random)?;
        Ok(paged)
    }

    pub fn open(array: &Array, name: &'static str) -> Result<Paged> {
        let stat = array.stat(name)?;
        let paths = stat.parts.into_iter().map(|(path, _)| path);
        let parts: Vec<(PathBuf, u16)> = paths.zip(stat.drives).collect();
        Ok(Paged { name, file: array.open_file(name)?, has_sums: stat.checksums, parts })
    }

    pub fn bytes(&self, page: u64, version: u64) -> Vec<u8> {
        let name = self.name.bytes().fold(0, |name, byte| name << 8 | u64::from(byte));
        Random::of(&[name, page, version]).bytes(PAGE)
    }

    pub fn write(&self, page: u64, version: u64) -> iomill::Result<()> {
        self.file.write_at(&self.bytes(page, version), page * PAGE)
    }

    /// The bytes of a page, or the error of the read: then the caller's memory must have nothing of the page.
    pub fn read(&self, page: u64) -> Result<iomill::Result<Vec<u8>>> {
        let mut bytes = vec![9; PAGE as usize];
        let outcome = self.file.read_at(&mut bytes, page * PAGE);
        if outcome.is_err() {
            let is_untouched = bytes.iter().all(|byte| matches!(byte, 0 | 9));
            check(is_untouched, format!("page {page} of {} is an error, and its bytes were given out", self.name))?;
        }
        Ok(outcome.map(|count| {
            bytes.truncate(count);
            bytes
        }))
    }

    /// Drops the pages from the cache.
    pub fn forget(&self) -> Result<()> {
        Ok(self.file.advise(.., Advice::DontNeed)?)
    }

    fn part(&self, page: u64) -> &(PathBuf, u16) {
        &self.parts[(page % self.parts.len() as u64) as usize]
    }

    /// Whether a page is on the drive that is mounted there.
    pub fn is_on(&self, page: u64, place: &Path) -> bool {
        self.part(page).0.starts_with(place)
    }

    /// Whether the error names file, page, drive and offset, or the sums of the part.
    pub fn is_named(&self, error: &Error, wanted: u64) -> bool {
        let (part, number) = self.part(wanted);
        match error {
            Error::CorruptPage { file, page, drive, path, offset, .. } => {
                let at = wanted / self.parts.len() as u64 * PAGE;
                file == self.name && *page == wanted && drive == number && path == part && *offset == at
            }
            Error::Corrupt { path, .. } => *path == part.with_extension("sums"),
            _ => false,
        }
    }

    /// Reads a page. Each of its sectors must have the bytes of one of these versions. With sums, an error that names
    /// the page counts as well, if `may_be_named`.
    pub fn expect(&self, page: u64, versions: &[u64], may_be_named: bool) -> Result<Found> {
        let bytes = match self.read(page)? {
            Ok(bytes) => bytes,
            Err(error) => {
                let is_allowed = may_be_named && self.has_sums && self.is_named(&error, page);
                check(is_allowed, format!("page {page} of {} should be of {versions:?}: {error}", self.name))?;
                return Ok(Found::Named);
            }
        };
        let known: Vec<Vec<u8>> = versions.iter().map(|version| self.bytes(page, *version)).collect();
        if let Some(index) = known.iter().position(|known| *known == bytes) {
            return Ok(Found::Bytes(index));
        }
        let is_of_one =
            |at: usize| known.iter().any(|known| bytes.get(at..at + SECTOR) == Some(&known[at..at + SECTOR]));
        let wrong = (0..PAGE as usize).step_by(SECTOR).find(|at| !is_of_one(*at));
        match wrong {
            None => Ok(Found::Mixed),
            Some(at) => {
                let what = format!("page {page} of {} has other bytes than those of {versions:?}", self.name);
                Err(format!("{what}, in the sector at {at}").into())
            }
        }
    }
}

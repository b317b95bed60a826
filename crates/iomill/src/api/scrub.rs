//! [`Scrub`]: an iterator that reads the files of an array from their drives. Non-goals: repair, and the catalog
//! (`check`).
//!
//! A page that is not read for a year may be damaged for a year. A scrub finds the damage while another copy still
//! exists.

use super::array::Array;
use super::buffer::Buffer;
use super::file::File;
use super::listing::{Listed, Listing};
use crate::drive::PAGE_BYTES;
use crate::error::{Error, Result};
use crate::exec::{Within, users_code};
use crate::file::Entered;
use crate::file::split::io_ranges;
use crate::file::sums::UNKNOWN;

/// The most bytes that a step reads.
const STEP_BYTES: usize = 4 << 20;
/// The most errors of a step. A drive that has failed may take half a minute for each.
const ERRORS_MAX: usize = 16;

/// A range of a file that a [`Scrub`] has read.
#[derive(Debug)]
#[non_exhaustive]
pub struct Scrubbed {
    /// The name of the file.
    pub name: String,
    /// The offset of the range in bytes.
    pub offset: u64,
    /// The length of the range in bytes. 0 for an empty file, and for one that cannot be opened.
    pub len: u64,
    /// The number of bytes that were not compared with a checksum, so that only errors of their drives are found: all
    /// bytes of a file without checksums, and the pages that a failed write has left without one.
    pub unproved_bytes: u64,
    /// Whether the file ends with this range.
    pub is_end: bool,
    /// An error for each page that is not what was written, or that its drive does not return. At most 16. An error
    /// with the text of the one before it is left out.
    pub damage: Vec<Error>,
}

/// An iterator of [`Array::scrub`].
#[derive(Debug)]
#[must_use = "a scrub does nothing until it is read"]
pub struct Scrub {
    array: Array,
    files: Listing,
    /// The file that is being read, and the next offset.
    file: Option<(File, u64)>,
    buffer: Option<Buffer>,
    /// Set by an error.
    has_ended: bool,
}

impl Array {
    /// Reads each file from its drives, past the cache, in the order of the names. Begins after the name `after`, or
    /// with the first file if it is empty. Pages of files with [checksums](super::FileOptions::checksums) are verified.
    /// The reads are background I/O, of one file at a time, so other I/O finds free slots. Each step reads at most 4
    /// MiB. To resume a stopped scrub, pass the name of the last file that was read to its end:
    ///
    /// ```no_run
    /// # fn main() -> iomill::Result<()> {
    /// # let array = iomill::Array::open("/mnt/ssd0")?;
    /// for range in array.scrub("") {
    ///     let range = range?;
    ///     range.damage.iter().for_each(|error| eprintln!("{error}"));
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// A file that is deleted meanwhile is skipped. An item is an error if the array is closed, or if the process lacks
    /// memory or descriptors. An error ends the iteration.
    pub fn scrub(&self, after: &str) -> Scrub {
        let files = self.list("").after(after);
        Scrub { array: self.clone(), files, file: None, buffer: None, has_ended: false }
    }
}

/// Whether an error means that bytes of a file are lost. Others mean, for example, that the array is closed.
fn is_damage(error: &Error) -> bool {
    let is_lost = matches!(
        error,
        Error::CorruptPage { .. }
            | Error::Corrupt { .. }
            | Error::PartCut { .. }
            | Error::Io { .. }
            | Error::Drive { .. }
    );
    is_lost && !error.passes()
}

impl Scrub {
    /// Opens the next file. `None` at the end. A file that cannot be opened becomes an item with its error.
    fn open_next(&mut self) -> Result<Option<Result<File, Scrubbed>>> {
        while let Some(listed) = self.files.next().transpose()? {
            let Listed::File(listed) = listed else { continue };
            match self.array.open_file(&listed.name) {
                Ok(file) => return Ok(Some(Ok(file.background()))),
                Err(Error::NotFound { .. }) => {}
                Err(error) if is_damage(&error) => {
                    let (name, damage) = (listed.name, vec![error]);
                    let scrubbed = Scrubbed { name, offset: 0, len: 0, unproved_bytes: 0, is_end: true, damage };
                    return Ok(Some(Err(scrubbed)));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    fn step(&mut self) -> Result<Option<Scrubbed>> {
        users_code::check_may_block("scrub")?;
        let (file, offset) = match self.file.take() {
            Some(at) => at,
            None => match self.open_next()? {
                Some(Ok(file)) => (file, 0),
                Some(Err(scrubbed)) => return Ok(Some(scrubbed)),
                None => return Ok(None),
            },
        };
        let mut buffer = self.buffer.take().map_or_else(|| self.array.buffer(STEP_BYTES), Ok)?;
        let (mut damage, most) = (Vec::new(), file.len().saturating_sub(offset).min(STEP_BYTES as u64));
        let len = match file.read_from_drives(&mut buffer, offset) {
            Ok(len) => len as u64,
            Err(error) if is_damage(&error) => {
                damage = file.damaged_pages(&mut buffer[..most as usize], offset, error)?;
                most
            }
            Err(error) => return Err(error),
        };
        self.buffer = Some(buffer);
        let (name, unproved_bytes) = (file.name().to_owned(), file.unproved_bytes(offset, len)?);
        let is_end = offset + len >= file.len();
        if !is_end {
            self.file = Some((file, offset + len));
        }
        Ok(Some(Scrubbed { name, offset, len, unproved_bytes, is_end, damage }))
    }
}

impl Iterator for Scrub {
    type Item = Result<Scrubbed>;

    fn next(&mut self) -> Option<Result<Scrubbed>> {
        if self.has_ended {
            return None;
        }
        let step = self.step().transpose();
        self.has_ended = !matches!(step, Some(Ok(_)));
        step
    }
}

impl File {
    /// Reads past the cache, up to the end of the file. Returns the number of bytes.
    fn read_from_drives(&self, bytes: &mut [u8], offset: u64) -> Result<usize> {
        let here = self.here()?;
        let entered = Entered::enter(&here.state.file)?;
        // Inside the gate, where no call changes the length to a shorter one.
        let len = here.len().saturating_sub(offset).min(bytes.len() as u64) as usize;
        let within = Within::new(bytes.as_ptr(), len);
        let range = std::iter::once((offset, len)).filter(|(_, len)| *len > 0);
        // SAFETY: `bytes` is borrowed for the whole call, and at least as long as the range.
        unsafe { here.fetch(&entered, within, io_ranges(range, bytes.as_mut_ptr())) }?;
        Ok(len)
    }

    /// The bytes of a range that have no checksum. A page with a lost checksum has been found to be damaged.
    fn unproved_bytes(&self, offset: u64, len: u64) -> Result<u64> {
        let here = self.here()?;
        let Some(sums) = here.state.file.sums() else { return Ok(len) };
        // No cut changes the sums inside the gate.
        let _entered = Entered::enter(&here.state.file)?;
        let (end, mut unproved) = (offset + len, 0);
        for page in offset / PAGE_BYTES as u64..end.div_ceil(PAGE_BYTES as u64) {
            match sums.loaded(page) {
                Ok(UNKNOWN) => unproved += (end - page * PAGE_BYTES as u64).min(PAGE_BYTES as u64),
                Err(error) if !is_damage(&error) => return Err(error),
                _ => {}
            }
        }
        Ok(unproved)
    }

    /// Reads each page of a range by itself, after a read of the whole range has failed with `whole`. Returns the
    /// errors of the pages, or `whole` if no page fails.
    fn damaged_pages(&self, bytes: &mut [u8], offset: u64, whole: Error) -> Result<Vec<Error>> {
        let mut damage: Vec<Error> = Vec::new();
        for (page, bytes) in (0..).zip(bytes.chunks_mut(PAGE_BYTES)) {
            match self.read_from_drives(bytes, offset + page * PAGE_BYTES as u64) {
                Err(error) if !is_damage(&error) => return Err(error),
                Err(error) if damage.last().is_none_or(|last| last.to_string() != error.to_string()) => {
                    damage.push(error)
                }
                _ => {}
            }
            if damage.len() == ERRORS_MAX {
                break;
            }
        }
        if damage.is_empty() {
            damage.push(whole);
        }
        Ok(damage)
    }
}

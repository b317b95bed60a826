//! The published form of a board: its header, and the reader of other processes' boards.
//!
//! Goals: a reader trusts no byte of the file. It never maps a file, because another process could cut the file. A word
//! that is read during a write has its old or its new value, because the kernel copies whole words.
//!
//! ```text
//! words 0..9   magic, version, header bytes, drives, array id (2), pid, cache bytes, banks in use, bank bytes
//! byte 4096    one name of 256 bytes per drive: its length (2 bytes), its text
//! header end   banks of 1024 bytes; the header ends at a multiple of 4096
//! ```
//! Numbers are in the byte order of the machine: writer and reader are on the same one.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use rustix::fs as sys;

use super::bank::{BANK_BYTES, BANK_WORDS, BANKS_MAX};
use super::runtime;
use super::snapshot::{BankWords, Counters};

const MAGIC: u64 = u64::from_le_bytes(*b"iomillCT");
/// Raised with every change of the header, of banks, or of the meaning of a word.
const VERSION: u64 = 1;
const PAGE: usize = 4096;
const NAME_BYTES: usize = 256;
const HEADER_WORDS: usize = 10;

/// The word of the header with the size of the cache, in bytes. It changes.
pub(super) const CACHE_WORD: usize = 7;
/// The word of the header with the number of banks in use. It changes.
pub(super) const USED_WORD: usize = 8;

/// The length in bytes of the header of a board with `drives` drives.
pub(super) fn header_bytes(drives: u16) -> usize {
    (PAGE + usize::from(drives) * NAME_BYTES).next_multiple_of(PAGE)
}

/// The header as bytes, with no bank in use.
pub(super) fn encode(array: &[u8; 16], pid: u32, drives: &[String]) -> Vec<u8> {
    let len = header_bytes(drives.len() as u16);
    let mut bytes = vec![0; len];
    let (high, low) = array.split_at(8);
    let half = |half: &[u8]| u64::from_be_bytes(half.try_into().unwrap_or_default());
    let words: [u64; HEADER_WORDS] = [
        MAGIC,
        VERSION,
        len as u64,
        drives.len() as u64,
        half(high),
        half(low),
        u64::from(pid),
        0,
        0,
        BANK_BYTES as u64,
    ];
    for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
        place.copy_from_slice(&word.to_ne_bytes());
    }
    for (place, name) in bytes[PAGE..].chunks_exact_mut(NAME_BYTES).zip(drives) {
        // Only the end of a long path fits; it identifies the array better than the start.
        let start =
            (name.len().saturating_sub(NAME_BYTES - 2)..=name.len()).find(|start| name.is_char_boundary(*start));
        let text = &name[start.unwrap_or(name.len())..];
        place[..2].copy_from_slice(&(text.len() as u16).to_ne_bytes());
        place[2..2 + text.len()].copy_from_slice(text.as_bytes());
    }
    bytes
}

/// The published counters of another process, or of this one.
#[derive(Debug)]
pub struct Published {
    file: OwnedFd,
    /// The number of the file's device, and its inode number.
    key: (u64, u64),
    array: [u8; 16],
    pid: u32,
    header_bytes: usize,
    drives: Vec<String>,
}

/// The published boards of this user's processes in `directories` (see [`directories`](super::directories)), in order
/// of the processes. The files of dead processes are removed. The second list says why other files could not be read.
pub fn find(directories: &[PathBuf]) -> (Vec<Published>, Vec<String>) {
    let (mut found, mut notices) = (Vec::new(), Vec::new());
    for path in directories {
        let living = match runtime::open_directory(path, false).and_then(|directory| runtime::living(&directory)) {
            Ok(living) => living,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => {
                notices.push(format!("{}: cannot look for counters: {error}", path.display()));
                continue;
            }
        };
        for (name, file) in living {
            match Published::open(file) {
                Ok(board) => found.push(board),
                Err(error) => notices.push(format!("{}: {error}", path.join(name).display())),
            }
        }
    }
    found.sort_by_key(|board| (board.pid, board.array));
    (found, notices)
}

impl Published {
    fn open(file: OwnedFd) -> io::Result<Published> {
        let mut first = [0; HEADER_WORDS * 8];
        read_exact(&file, &mut first, 0)?;
        let word = |index: usize| word(&first, index);
        if word(0) != MAGIC {
            return Err(damaged("it holds no counters"));
        }
        if word(1) != VERSION {
            return Err(damaged(&format!(
                "its counters have format {}, and this program reads only {VERSION}",
                word(1)
            )));
        }
        let drives = u16::try_from(word(3)).map_err(|_| damaged("its header has too many drives"))?;
        let pid = u32::try_from(word(6)).map_err(|_| damaged("its header names no process"))?;
        let header_bytes = header_bytes(drives);
        if word(2) != header_bytes as u64 || word(9) != BANK_BYTES as u64 {
            return Err(damaged("its header has sizes that do not fit"));
        }
        let mut names = vec![0; usize::from(drives) * NAME_BYTES];
        read_exact(&file, &mut names, PAGE as u64)?;
        let drives = names.chunks_exact(NAME_BYTES).map(name).collect::<io::Result<_>>()?;
        let mut array = [0; 16];
        array[..8].copy_from_slice(&word(4).to_be_bytes());
        array[8..].copy_from_slice(&word(5).to_be_bytes());
        let stat = sys::fstat(&file)?;
        let key = (stat.st_dev, stat.st_ino);
        Ok(Published { file, key, array, pid, header_bytes, drives })
    }

    /// The identity of the board: no other board has it while this value lives.
    pub fn key(&self) -> (u64, u64) {
        self.key
    }

    /// The array's id.
    pub fn array(&self) -> [u8; 16] {
        self.array
    }

    /// The array's id in the form of `ArrayInfo`.
    pub fn array_id(&self) -> String {
        format!("{:032x}", u128::from_be_bytes(self.array))
    }

    /// The number of the process, in its own namespace.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The drives' directories, by index; of a long path only the end. The process wrote them. Control characters are
    /// replaced.
    pub fn drives(&self) -> &[String] {
        &self.drives
    }

    /// The counters now; `None` if the process has closed the array, or has ended.
    pub fn read(&self) -> io::Result<Option<Counters>> {
        if !runtime::is_alive(&self.file)? {
            return Ok(None);
        }
        let mut first = [0; HEADER_WORDS * 8];
        read_exact(&self.file, &mut first, 0)?;
        let used = usize::try_from(word(&first, USED_WORD)).ok().filter(|used| *used <= BANKS_MAX);
        let used = used.ok_or_else(|| damaged("its header has too many banks"))?;
        let size = sys::fstat(&self.file)?.st_size as u64;
        if size < (self.header_bytes + used * BANK_BYTES) as u64 {
            return Err(damaged("it ends early"));
        }
        let mut counters = Counters::new(self.drives.len() as u16);
        counters.cache_bytes = word(&first, CACHE_WORD);
        let mut banks = vec![0; used * BANK_BYTES];
        read_exact(&self.file, &mut banks, self.header_bytes as u64)?;
        for bank in banks.chunks_exact(BANK_BYTES) {
            let words: BankWords = std::array::from_fn::<_, BANK_WORDS, _>(|index| word(bank, index));
            if !counters.add_bank(&words) {
                return Err(damaged("it has counters of a drive that is not in its header"));
            }
        }
        Ok(Some(counters))
    }
}

/// A word of an array of bytes, which is long enough.
fn word(bytes: &[u8], index: usize) -> u64 {
    let bytes = bytes.get(index * 8..index * 8 + 8).and_then(|bytes| bytes.try_into().ok());
    u64::from_ne_bytes(bytes.unwrap_or_default())
}

fn name(place: &[u8]) -> io::Result<String> {
    let len = usize::from(u16::from_ne_bytes([place[0], place[1]]));
    let text = place.get(2..2 + len).ok_or_else(|| damaged("a drive's name is too long"))?;
    let text = String::from_utf8_lossy(text);
    // The text may be shown on a terminal, which it must not control.
    Ok(text.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect())
}

fn read_exact(file: &OwnedFd, bytes: &mut [u8], offset: u64) -> io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        match rustix::io::retry_on_intr(|| rustix::io::pread(file, &mut bytes[done..], offset + done as u64))? {
            0 => return Err(damaged("it ends early")),
            count => done += count,
        }
    }
    Ok(())
}

fn damaged(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

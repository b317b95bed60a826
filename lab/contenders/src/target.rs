//! The measured bytes: one plain file per drive, filled with the pattern, or a user's own file.
//!
//! Goals: every contender works on the same bytes and can prove it. Non-goals: knowing how an array spreads a file over
//! its parts. The maker of the parts gives the map of virtual pages.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use iomill::{Error, Result};
pub use iomill_loops::parts::Part;
use rustix::fs::{Advice, OFlags};

use crate::pattern::{self, PAGE_BYTES};
use crate::seen::Watch;

/// Returns the virtual page at page `.1` of part `.0`.
pub type PageMap = Arc<dyn Fn(usize, u64) -> u64 + Send + Sync>;

/// The measured files.
#[derive(Clone)]
pub struct Target {
    /// One drive's share of the bytes each. Their lengths are those of the pattern at their starts.
    parts: Vec<Part>,
    seed: u64,
    page_map: PageMap,
    /// The bytes are a user's, and not the pattern.
    is_plain: bool,
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Target").field("parts", &self.parts).field("seed", &self.seed).finish_non_exhaustive()
    }
}

impl Target {
    /// A target of files that already hold the pattern.
    pub fn new(parts: Vec<Part>, seed: u64, page_map: PageMap) -> Result<Target> {
        if parts.is_empty() || parts.len() > 1024 {
            return Err(Error::invalid(format!("{} parts", parts.len()), "give 1 to 1024 files, one per drive"));
        }
        let target = Target { parts, seed, page_map, is_plain: false };
        target.check_lens()?;
        Ok(target)
    }

    /// A user's own file, which is only read. Its bytes are right if they are equal to those of `pread`.
    pub fn plain(path: PathBuf, len_bytes: u64) -> Result<Target> {
        let target = Target::new(vec![Part { path, len_bytes }], 0, Target::striped(1, 1))?;
        Ok(Target { is_plain: true, ..target })
    }

    /// The map of pages striped over `drives` in blocks of `block_pages`.
    pub fn striped(drives: usize, block_pages: u64) -> PageMap {
        let (drives, block_pages) = (drives.max(1) as u64, block_pages.max(1));
        Arc::new(move |part, page| (page / block_pages * drives + part as u64) * block_pages + page % block_pages)
    }

    /// Writes one file of pattern into each directory and makes a target of them. Existing files are replaced.
    /// `progress` gets the bytes written so far and the total. `cancel` ends it with an error.
    pub fn write(
        dirs: &[PathBuf],
        file_name: &str,
        part_bytes: u64,
        seed: u64,
        cancel: &AtomicBool,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Target> {
        let len_bytes = part_bytes / PAGE_BYTES as u64 * PAGE_BYTES as u64;
        let page_map = Target::striped(dirs.len(), 16);
        let parts: Vec<Part> = dirs.iter().map(|dir| Part { path: dir.join(file_name), len_bytes }).collect();
        let total = len_bytes * parts.len() as u64;
        for (index, part) in parts.iter().enumerate() {
            let before = len_bytes * index as u64;
            let mut goes_on = |done| {
                progress(before + done, total);
                match cancel.load(Ordering::Relaxed) {
                    true => Err(Error::Tool { what: "the files that are read".into(), why: "interrupted".into() }),
                    false => Ok(()),
                }
            };
            write_part(index, part, seed, &page_map, &mut goes_on)?;
        }
        Target::new(parts, seed, page_map)
    }

    /// The parts, in the order of their drives.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Lengths of the parts, in bytes.
    pub fn part_lens(&self) -> Vec<u64> {
        self.parts.iter().map(|part| part.len_bytes).collect()
    }

    /// Total length of all parts, in bytes.
    pub fn total_bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.len_bytes).sum()
    }

    /// Checks the stamp of every page in a block that was read, or all bytes if the file is a user's own.
    pub fn verify(&self, part: usize, offset: u64, bytes: &[u8]) -> Result<()> {
        if self.is_plain {
            return self.verify_plain(part, offset, bytes);
        }
        for (index, page) in bytes.chunks(PAGE_BYTES).enumerate() {
            let expected = self.stamp_at(part, offset, index);
            if pattern::stamp_in(page) != Some(expected) {
                let at = offset + (index * PAGE_BYTES) as u64;
                return Err(pattern::wrong(self.path(part), "page", at));
            }
        }
        Ok(())
    }

    fn verify_plain(&self, part: usize, offset: u64, bytes: &[u8]) -> Result<()> {
        let path = self.path(part);
        let mut expected = vec![0; bytes.len()];
        let read = open_part(path, false, false)?.read_exact_at(&mut expected, offset);
        read.map_err(|source| Error::io_at("read", path.to_owned(), offset, source))?;
        match expected.iter().zip(bytes).position(|(expected, got)| expected != got) {
            None => Ok(()),
            Some(at) => {
                let at = offset + at as u64;
                let why = format!(
                    "the byte at offset {at} is not the one that `pread` gives; make sure that no program writes the file, and run again"
                );
                Err(Error::damaged(path.to_owned(), why))
            }
        }
    }

    /// Checks all bytes of a read at any offset.
    pub fn verify_bytes(&self, part: usize, offset: u64, bytes: &[u8]) -> Result<()> {
        let mut expected = vec![0; bytes.len()];
        self.fill_bytes(part, offset, &mut expected);
        match expected.iter().zip(bytes).position(|(expected, got)| expected != got) {
            None => Ok(()),
            Some(at) => Err(pattern::wrong(self.path(part), "byte", offset + at as u64)),
        }
    }

    /// Fills in the right bytes for any offset.
    pub fn fill_bytes(&self, part: usize, offset: u64, mut bytes: &mut [u8]) {
        let mut at = offset;
        while !bytes.is_empty() {
            let within = at % PAGE_BYTES as u64;
            let (now, rest) = bytes.split_at_mut(((PAGE_BYTES as u64 - within) as usize).min(bytes.len()));
            let page = (self.page_map)(part, at / PAGE_BYTES as u64);
            pattern::fill_bytes(self.seed, page * PAGE_BYTES as u64 + within, now);
            at += now.len() as u64;
            bytes = rest;
        }
    }

    /// Puts the right stamp on every page of a block that will be written.
    pub fn put_stamps(&self, part: usize, offset: u64, bytes: &mut [u8]) {
        for (index, page) in bytes.chunks_exact_mut(PAGE_BYTES).enumerate() {
            page[..8].copy_from_slice(&self.stamp_at(part, offset, index).to_le_bytes());
        }
    }

    /// Checks that every part still has at least its length.
    pub(crate) fn check_lens(&self) -> Result<()> {
        for part in &self.parts {
            let held = part.path.metadata().map_err(|e| Error::io("look at", &part.path, e))?.len();
            if held < part.len_bytes {
                return Err(Error::part_cut(part.path.clone(), held, part.len_bytes - held));
            }
        }
        Ok(())
    }

    /// Opens all parts.
    pub fn open(&self, direct: bool, write: bool) -> Result<Vec<File>> {
        self.parts.iter().map(|part| open_part(&part.path, direct, write)).collect()
    }

    /// The reason why the parts cannot be opened for direct I/O, if the file system does not support it.
    pub fn why_not_direct(&self) -> Result<Option<String>> {
        match self.open(true, false) {
            Err(Error::Io { path, source, .. }) if source.raw_os_error() == Some(libc::EINVAL) => {
                Ok(Some(format!("the file system of {} has no direct I/O", path.display())))
            }
            Err(error) => Err(error),
            Ok(_) => Ok(None),
        }
    }

    /// Drops the parts from the page cache, unless another program holds their pages there. Direct I/O needs this too:
    /// the kernel looks up each block among the cached pages that other contenders left.
    pub fn drop_cached(&self) -> Result<()> {
        for part in &self.parts {
            let file = open_part(&part.path, false, false)?;
            file.sync_data().map_err(|e| Error::io("sync", &part.path, e))?;
            advise(&file, &part.path, Advice::DontNeed)?;
        }
        Ok(())
    }

    /// The reason why cold reads cannot be shown to come from drives: the file system is in memory, or it does not
    /// count fetched bytes.
    pub fn why_not_cold(&self) -> Result<Option<String>> {
        self.drop_cached()?;
        for (part, file) in self.parts.iter().zip(self.open(false, false)?) {
            advise(&file, &part.path, Advice::Random)?;
            let watch = Watch::begin()?;
            let read = file.read_at(&mut [0; PAGE_BYTES], 0).map_err(|e| Error::io("read", &part.path, e))?;
            if read > 0 && watch.end()?.fetched_bytes == Some(0) {
                let why = "was dropped from the page cache, and reading it again brought nothing from a drive: \
                           its file system keeps it in memory, or does not say what it fetches";
                return Ok(Some(format!("{} {why}", part.path.display())));
            }
        }
        Ok(None)
    }

    pub(crate) fn path(&self, part: usize) -> &Path {
        self.parts.get(part).map_or(Path::new("?"), |part| &part.path)
    }

    fn stamp_at(&self, part: usize, offset: u64, page_in_block: usize) -> u64 {
        let page = offset / PAGE_BYTES as u64 + page_in_block as u64;
        pattern::stamp(self.seed, (self.page_map)(part, page))
    }
}

/// Tells the kernel how a whole file will be used.
pub fn advise(file: &File, path: &Path, advice: Advice) -> Result<()> {
    rustix::fs::fadvise(file.as_fd(), 0, None, advice).map_err(|e| Error::io("advise on", path, e.into()))
}

fn open_part(path: &Path, direct: bool, write: bool) -> Result<File> {
    let direct = if direct { OFlags::DIRECT } else { OFlags::empty() };
    let open = |flags: OFlags| OpenOptions::new().read(true).write(write).custom_flags(flags.bits() as i32).open(path);
    // Only the file's owner may switch off updates of its access time. For other users reads include that cost.
    match open(direct | OFlags::NOATIME) {
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => open(direct),
        other => other,
    }
    .map_err(|e| Error::io("open", path, e))
}

fn write_part(
    index: usize,
    part: &Part,
    seed: u64,
    page_map: &PageMap,
    goes_on: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<()> {
    let failed = |action| move |e| Error::io(action, &part.path, e);
    let mut file = File::create(&part.path).map_err(failed("create"))?;
    let mut chunk = vec![0u8; 1 << 20];
    let mut done = 0;
    while done < part.len_bytes {
        let len = (part.len_bytes - done).min(chunk.len() as u64) as usize;
        for (page_index, page) in chunk[..len].chunks_exact_mut(PAGE_BYTES).enumerate() {
            let page_in_part = done / PAGE_BYTES as u64 + page_index as u64;
            pattern::fill_page(seed, page_map(index, page_in_part), page);
        }
        file.write_all(&chunk[..len]).map_err(failed("write"))?;
        done += len as u64;
        goes_on(done)?;
    }
    file.sync_all().map_err(failed("sync"))?;
    advise(&file, &part.path, Advice::DontNeed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn parts_hold_their_stamps_and_foreign_bytes_are_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let dirs = [dir.path().join("0"), dir.path().join("1")];
        dirs.iter().for_each(|dir| std::fs::create_dir(dir).unwrap());
        let mut last = (0, 0);
        let target = Target::write(&dirs, "f", 20 * 4096 + 5, 3, &AtomicBool::new(false), &mut |done, total| {
            last = (done, total)
        })
        .unwrap();
        assert_eq!(last, (40 * 4096, 40 * 4096));
        assert_eq!(target.part_lens(), [20 * 4096; 2]);
        let mut bytes = std::fs::read(dirs[1].join("f")).unwrap();
        target.verify(1, 0, &bytes).unwrap();
        assert!(target.verify(0, 0, &bytes).is_err(), "another part");
        assert!(target.verify(1, 4096, &bytes).is_err(), "another place");
        target.verify_bytes(1, 4000, &bytes[4000..5000]).unwrap();
        bytes[5 * 4096] ^= 1;
        let error = target.verify_bytes(1, 5 * 4096 - 20, &bytes[5 * 4096 - 20..6 * 4096]).unwrap_err().to_string();
        assert!(error.contains("offset 20480"), "{error}");
        let error = target.verify(1, 0, &bytes).unwrap_err().to_string();
        assert!(error.contains("offset 20480"), "{error}");
        target.put_stamps(1, 0, &mut bytes);
        target.verify(1, 0, &bytes).unwrap();
    }

    #[test]
    fn a_user_s_own_file_is_compared_with_what_pread_gives() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let mut bytes: Vec<u8> = (0..9000u32).map(|at| (at % 251) as u8).collect();
        std::fs::write(&path, &bytes).unwrap();
        let target = Target::plain(path, 9000).unwrap();
        target.verify(0, 100, &bytes[100..8999]).unwrap();
        bytes[8100] ^= 1;
        let error = target.verify(0, 8000, &bytes[8000..]).unwrap_err().to_string();
        assert!(error.contains("offset 8100") && error.contains("pread"), "{error}");
        assert!(target.verify(0, 8999, &[0; 2]).is_err(), "the file ends there");
    }

    #[test]
    fn the_striped_map_is_one_to_one() {
        let map = Target::striped(3, 16);
        let pages: HashSet<u64> =
            (0..3).flat_map(|part| (0..64).map(move |page| (part, page))).map(|(d, p)| map(d, p)).collect();
        assert_eq!(pages, (0..192).collect());
    }

    #[test]
    fn a_cut_or_missing_part_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, [0; 100]).unwrap();
        let part = |len_bytes| vec![Part { path: path.clone(), len_bytes }];
        assert!(Target::new(part(100), 0, Target::striped(1, 1)).is_ok());
        assert!(matches!(Target::new(part(101), 0, Target::striped(1, 1)), Err(Error::PartCut { missing: 1, .. })));
        assert!(Target::new(Vec::new(), 0, Target::striped(1, 1)).is_err());
        let gone = vec![Part { path: dir.path().join("none"), len_bytes: 1 }];
        assert!(Target::new(gone, 0, Target::striped(1, 1)).unwrap_err().to_string().contains("none"));
    }
}

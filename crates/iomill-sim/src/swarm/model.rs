//! The allowed contents of files: after each call, and after a crash.
//!
//! Rules:
//! 1. A sector of 512 bytes has a list of contents that a read may return now, and a list that a crash may leave. A
//!    list with one entry is certain.
//! 2. A write that has begun adds its result to both. When it succeeds, a read returns its bytes. When it fails, or
//!    never ends, each byte by itself has one of its allowed values: a drive may have taken any part of the write.
//! 3. After a successful sync a crash leaves only contents that a read may return. A failed sync changes nothing: its
//!    losses are among the contents that a crash may leave.
//! 4. The first read after a failure fixes the sector's contents.
//! 5. A sync that failed may have lost bytes that reads still return, and no later sync brings them to the drive. So
//!    the contents that a crash could leave at that moment stay possible until the sector is written again and synced.
//! 6. A page that cannot be read at an opening has one of the contents that a crash could leave. A later crash may make
//!    its zone doubtful, and then these bytes are accepted as they are (C60). So they stay possible, as in rule 5.
//!
//! Non-goals: names, and which errors are right.

use std::ops::Range;
use std::sync::Arc;

/// The unit that a crash may leave old or new. Drives that tear no sectors keep whole pages, which is stricter than
/// this check.
pub const SECTOR: usize = 512;

type Bytes = Arc<[u8; SECTOR]>;

/// One sector (rule 1). `now` and `crash` are never empty, and no list has doubles.
#[derive(Clone, Debug)]
struct Sector {
    now: Vec<Bytes>,
    crash: Vec<Bytes>,
    /// The contents that a crash may leave in spite of later syncs (rule 5).
    old: Vec<Bytes>,
    /// Whether the whole sector was written since a failed sync.
    is_rewritten: bool,
    /// Whether each byte by itself may come from any of the contents (rule 2).
    is_torn: bool,
    is_torn_by_crash: bool,
}

fn add(list: &mut Vec<Bytes>, bytes: Bytes) {
    if !list.contains(&bytes) {
        list.push(bytes);
    }
}

/// Whether a sector begins in one of the ranges.
fn is_unread(index: usize, unread: &[Range<usize>]) -> bool {
    unread.iter().any(|range| range.contains(&(index * SECTOR)))
}

/// The allowed contents of a file.
#[derive(Clone, Debug)]
pub struct Contents {
    /// The length that handles show.
    len: usize,
    /// The lengths that a crash may leave.
    crash_lens: Vec<usize>,
    /// From the start of the file. Sectors behind the last one hold zeroes, or are beyond every length.
    sectors: Vec<Sector>,
    zeroes: Bytes,
}

/// A write that has begun and not ended.
#[derive(Clone, Debug)]
pub struct Began {
    at: usize,
    bytes: Vec<u8>,
    /// The sectors as reads returned them before.
    before: Vec<Vec<Bytes>>,
}

impl Began {
    /// The range of bytes of the write.
    pub fn range(&self) -> Range<usize> {
        self.at..self.at + self.bytes.len()
    }
}

impl Contents {
    /// A file with these bytes, durably.
    pub fn durable(bytes: &[u8]) -> Contents {
        let mut made = Contents { len: 0, crash_lens: vec![0], sectors: Vec::new(), zeroes: Arc::new([0; SECTOR]) };
        made.found(bytes);
        made
    }

    /// Whether a crash may leave other bytes, or another length, than a read returns.
    pub fn is_unsynced(&self) -> bool {
        self.crash_lens != [self.len] || self.sectors.iter().any(|sector| sector.crash != sector.now)
    }

    /// The length that handles show.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The file has these bytes, durably.
    fn found(&mut self, bytes: &[u8]) {
        (self.len, self.crash_lens) = (bytes.len(), vec![bytes.len()]);
        self.sectors = bytes.chunks(SECTOR).map(|chunk| Sector::of(padded(chunk))).collect();
    }

    /// The machine has stopped, and these bytes were found, but for the `unread` ranges (rule 6): they are durable.
    pub fn found_after_crash(&mut self, bytes: &[u8], unread: &[Range<usize>]) {
        self.sectors.iter_mut().for_each(|sector| sector.old.clear());
        self.found_after_close(bytes, unread);
    }

    /// An array was closed without an error, and these bytes were found, but for the `unread` ranges (rule 6): they are
    /// durable, but for what an earlier sync has lost (rule 5).
    pub fn found_after_close(&mut self, bytes: &[u8], unread: &[Range<usize>]) {
        for (_, sector) in self.sectors.iter_mut().enumerate().filter(|(index, _)| is_unread(*index, unread)) {
            sector.crash.iter().for_each(|bytes| add(&mut sector.old, Arc::clone(bytes)));
        }
        let lost: Vec<Vec<Bytes>> = self.sectors.iter_mut().map(|sector| std::mem::take(&mut sector.old)).collect();
        self.found(bytes);
        for (sector, lost) in self.sectors.iter_mut().zip(lost) {
            lost.iter().for_each(|old| add(&mut sector.crash, Arc::clone(old)));
            (sector.is_torn_by_crash, sector.old) = (sector.crash.len() > 1, lost);
        }
    }

    /// A process has died and the machine has not: these bytes were found, and a crash may still leave others.
    pub fn found_after_kill(&mut self, bytes: &[u8]) {
        self.need(bytes.len());
        self.len = bytes.len();
        self.may_have_len(bytes.len());
        for (sector, chunk) in self.sectors.iter_mut().zip(bytes.chunks(SECTOR)) {
            let found = padded(chunk);
            add(&mut sector.crash, Arc::clone(&found));
            (sector.now, sector.is_torn) = (vec![found], false);
        }
        self.clear_behind(bytes.len());
    }

    /// A write begins (rule 2).
    pub fn begin(&mut self, at: usize, bytes: &[u8]) -> Began {
        self.need(at + bytes.len());
        let mut before = Vec::new();
        for index in at / SECTOR..(at + bytes.len()).div_ceil(SECTOR) {
            let sector = &mut self.sectors[index];
            before.push(sector.now.clone());
            for old in before.last().into_iter().flatten() {
                let new = overlaid(old, index, at, bytes);
                add(&mut sector.now, Arc::clone(&new));
                add(&mut sector.crash, new);
            }
            // A write of a part of the sector makes no more than its own bytes durable again (rule 5).
            for lost in sector.old.clone() {
                let new = overlaid(&lost, index, at, bytes);
                add(&mut sector.old, Arc::clone(&new));
                add(&mut sector.crash, new);
            }
        }
        Began { at, bytes: bytes.to_vec(), before }
    }

    /// A write has succeeded (rule 2).
    pub fn end(&mut self, began: &Began) {
        let Began { at, bytes, .. } = began;
        for index in at / SECTOR..(at + bytes.len()).div_ceil(SECTOR) {
            let sector = &mut self.sectors[index];
            let mut now = Vec::new();
            sector.now.iter().for_each(|old| add(&mut now, overlaid(old, index, *at, bytes)));
            now.iter().for_each(|new| add(&mut sector.crash, Arc::clone(new)));
            let is_whole = *at <= index * SECTOR && (index + 1) * SECTOR <= at + bytes.len();
            sector.is_torn &= !is_whole;
            sector.now = now;
            sector.is_rewritten |= is_whole;
        }
        if !bytes.is_empty() {
            self.len = self.len.max(at + bytes.len());
        }
    }

    /// A write has failed, and handles show a length. Bytes written behind it read as zeroes when the file grows.
    pub fn fail(&mut self, began: &Began, len: usize) {
        self.len = len;
        self.tear(began);
        let Began { at, bytes, before } = began;
        let kept = &bytes[..bytes.len().min(len.saturating_sub(*at))];
        for (index, before) in (at / SECTOR..).zip(before) {
            let sector = &mut self.sectors[index];
            if index * SECTOR >= len {
                sector.now.clone_from(before);
            } else if kept.len() < bytes.len() && (index + 1) * SECTOR > len {
                for old in before {
                    add(&mut sector.now, Arc::clone(old));
                    add(&mut sector.now, overlaid(old, index, *at, kept));
                }
            }
        }
    }

    /// A write has failed, or is never going to end (rule 2).
    pub fn tear(&mut self, began: &Began) {
        let range = began.range();
        for sector in &mut self.sectors[range.start / SECTOR..range.end.div_ceil(SECTOR)] {
            (sector.is_torn, sector.is_torn_by_crash) = (true, true);
        }
    }

    /// A sync has succeeded (rule 3).
    pub fn synced(&mut self) {
        self.crash_lens = vec![self.len];
        for sector in &mut self.sectors {
            sector.crash.clone_from(&sector.now);
            sector.is_torn_by_crash = sector.is_torn;
            if std::mem::take(&mut sector.is_rewritten) {
                sector.old.clear();
            }
            sector.old.iter().for_each(|old| add(&mut sector.crash, Arc::clone(old)));
        }
    }

    /// A sync has failed, perhaps without an error (rule 5).
    pub fn may_be_lost(&mut self) {
        for sector in &mut self.sectors {
            sector.crash.iter().for_each(|bytes| add(&mut sector.old, Arc::clone(bytes)));
            sector.is_rewritten = false;
        }
        // The fsync may have ended within a transfer.
        self.tear_unsynced();
    }

    /// A crash may leave old and new bytes in each sector that is not synced.
    pub fn tear_unsynced(&mut self) {
        self.sectors.iter_mut().for_each(|sector| sector.is_torn_by_crash |= sector.crash.len() > 1);
    }

    /// A sync has begun or failed, or the last handle was dropped: the present length may be durable.
    pub fn may_be_synced(&mut self) {
        self.may_have_len(self.len);
    }

    /// The last handle was dropped after errors: the next one shows one of the states that a crash may leave.
    pub fn doubt(&mut self) {
        self.may_have_len(self.len);
        self.may_be_lost();
        for sector in &mut self.sectors {
            for bytes in sector.crash.clone() {
                add(&mut sector.now, bytes);
            }
            sector.is_torn |= sector.is_torn_by_crash;
        }
    }

    /// Notes the length of a new handle. Returns whether it is allowed.
    pub fn shows(&mut self, len: usize) -> bool {
        let may_be = len == self.len || self.crash_lens.contains(&len);
        if may_be && len != self.len {
            self.need(len);
            self.len = len;
        }
        may_be
    }

    /// The length is being set.
    pub fn begin_resize(&mut self, len: usize) {
        self.need(len);
        self.may_have_len(self.len);
        self.may_have_len(len);
        // A crash may leave the new length, and behind it zeroes.
        let shorter = len.min(self.len);
        self.add_cut(shorter);
    }

    /// The length was set, durably if it has changed.
    pub fn end_resize(&mut self, len: usize) {
        let has_changed = len != self.len;
        self.clear_behind(len.min(self.len));
        self.len = len;
        if has_changed {
            self.synced();
        }
    }

    /// The length could not be set, and handles show one of the allowed lengths.
    pub fn fail_resize(&mut self, len: usize) {
        self.len = len;
    }

    /// Checks a read of `found` at an offset. It fixes which of several contents the file has (rule 4).
    pub fn read(&mut self, at: usize, found: &[u8]) -> Result<(), String> {
        let end = at + found.len();
        for index in at / SECTOR..end.div_ceil(SECTOR) {
            let (from, to) = (at.max(index * SECTOR), end.min((index + 1) * SECTOR));
            let part = &found[from - at..to - at];
            let within = from - index * SECTOR..to - index * SECTOR;
            let Some(sector) = self.sectors.get_mut(index) else {
                return Err(format!("bytes {from}..{to} are behind the end of the file"));
            };
            if !holds(&sector.now, &within, part, sector.is_torn) {
                return Err(differs(from, part, &sector.now, within.start));
            }
            if sector.is_torn {
                let known = |bytes: &Bytes| overlaid(bytes, index, from, part);
                sector.now = sector.now.iter().map(known).collect();
                sector.now.dedup();
                sector.is_torn = sector.now.len() > 1;
            } else {
                sector.now.retain(|bytes| bytes[within.clone()] == *part);
            }
        }
        Ok(())
    }

    /// Fills the unreadable ranges of `found` with allowed bytes.
    pub fn fill(&self, found: &mut [u8], unread: &[Range<usize>]) {
        for (index, chunk) in found.chunks_mut(SECTOR).enumerate() {
            if let Some(sector) = self.sectors.get(index).filter(|_| is_unread(index, unread)) {
                chunk.copy_from_slice(&sector.now[0][..chunk.len()]);
            }
        }
    }

    /// Whether a crash may leave these bytes. If only the process died, bytes that a read could return are allowed,
    /// too.
    pub fn may_leave(&self, found: &[u8], killed: bool) -> Result<(), String> {
        let may_have_len = self.crash_lens.contains(&found.len()) || killed && found.len() == self.len;
        if !may_have_len {
            return Err(format!("it has {} bytes, not one of {:?}", found.len(), self.crash_lens));
        }
        for (index, chunk) in found.chunks(SECTOR).enumerate() {
            let Some(sector) = self.sectors.get(index) else {
                return Err(format!("sector {index} was never there"));
            };
            let mut may_be = sector.crash.clone();
            if killed {
                sector.now.iter().for_each(|bytes| add(&mut may_be, Arc::clone(bytes)));
            }
            if !holds(&may_be, &(0..chunk.len()), chunk, sector.is_torn_by_crash) {
                return Err(differs(index * SECTOR, chunk, &may_be, 0));
            }
        }
        Ok(())
    }

    fn may_have_len(&mut self, len: usize) {
        if !self.crash_lens.contains(&len) {
            self.crash_lens.push(len);
        }
    }

    /// Has sectors for `len` bytes.
    fn need(&mut self, len: usize) {
        let sectors = len.div_ceil(SECTOR).max(self.sectors.len());
        self.sectors.resize(sectors, Sector::of(Arc::clone(&self.zeroes)));
    }

    /// Bytes from `len` on read as zeroes.
    fn clear_behind(&mut self, len: usize) {
        let zeroes = &self.zeroes;
        for (index, sector) in self.sectors.iter_mut().enumerate().skip(len / SECTOR) {
            let mut now = Vec::new();
            sector.now.iter().for_each(|bytes| add(&mut now, cut(bytes, index, len, zeroes)));
            now.iter().for_each(|bytes| add(&mut sector.crash, Arc::clone(bytes)));
            sector.now = now;
        }
    }

    /// A crash, or a failure, may leave zeroes from `len` on.
    fn add_cut(&mut self, len: usize) {
        let zeroes = &self.zeroes;
        for (index, sector) in self.sectors.iter_mut().enumerate().skip(len / SECTOR) {
            let old = (sector.now.clone(), sector.crash.clone());
            old.0.iter().for_each(|bytes| add(&mut sector.now, cut(bytes, index, len, zeroes)));
            old.0.iter().chain(&old.1).for_each(|bytes| add(&mut sector.crash, cut(bytes, index, len, zeroes)));
        }
    }
}

impl Sector {
    fn of(bytes: Bytes) -> Sector {
        Sector {
            now: vec![Arc::clone(&bytes)],
            crash: vec![bytes],
            old: Vec::new(),
            is_rewritten: false,
            is_torn: false,
            is_torn_by_crash: false,
        }
    }
}

/// Whether a part of a sector equals that part of one of some contents; if torn, whether each byte does.
fn holds(contents: &[Bytes], within: &Range<usize>, part: &[u8], is_torn: bool) -> bool {
    contents.iter().any(|bytes| bytes[within.clone()] == *part)
        || is_torn && within.clone().zip(part).all(|(at, byte)| contents.iter().any(|bytes| bytes[at] == *byte))
}

fn padded(chunk: &[u8]) -> Bytes {
    let mut bytes = [0; SECTOR];
    bytes[..chunk.len()].copy_from_slice(chunk);
    Arc::new(bytes)
}

/// A sector with a write on it.
fn overlaid(old: &Bytes, index: usize, at: usize, bytes: &[u8]) -> Bytes {
    let (start, end) = (index * SECTOR, (index + 1) * SECTOR);
    let (from, to) = (at.max(start), (at + bytes.len()).min(end));
    if from >= to {
        return Arc::clone(old);
    }
    let mut new = **old;
    new[from - start..to - start].copy_from_slice(&bytes[from - at..to - at]);
    Arc::new(new)
}

/// A sector with zeroes from an offset of the file on.
fn cut(bytes: &Bytes, index: usize, len: usize, zeroes: &Bytes) -> Bytes {
    let kept = len.saturating_sub(index * SECTOR).min(SECTOR);
    if kept == 0 {
        return Arc::clone(zeroes);
    }
    let mut new = **bytes;
    new[kept..].fill(0);
    Arc::new(new)
}

fn differs(at: usize, found: &[u8], allowed: &[Bytes], within: usize) -> String {
    let first = allowed.first().map_or(&[][..], |bytes| &bytes[within..within + found.len()]);
    let place = found.iter().zip(first).position(|(found, wanted)| found != wanted).unwrap_or(0);
    format!(
        "byte {} is {}, and {} contents are right, the first with {}",
        at + place,
        found.get(place).copied().unwrap_or(0),
        allowed.len(),
        first.get(place).copied().unwrap_or(0)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(len: usize) -> Contents {
        Contents::durable(&vec![1; len])
    }

    #[test]
    fn a_write_is_seen_by_reads_and_may_be_lost_by_a_crash() {
        let mut contents = file(2000);
        let began = contents.begin(100, &[2; 1000]);
        let (mut new, mut torn) = (vec![1; 2000], vec![1; 2000]);
        new[100..1100].fill(2);
        torn[100..512].fill(2);
        contents.end(&began);
        assert!(contents.clone().read(0, &new).is_ok() && contents.clone().read(0, &torn).is_err());
        for left in [&new, &torn, &vec![1; 2000]] {
            assert_eq!(contents.may_leave(left, false), Ok(()));
        }
        torn[50] = 2;
        assert!(contents.may_leave(&torn, false).is_err());
        contents.synced();
        assert!(contents.may_leave(&new, false).is_ok() && contents.may_leave(&vec![1; 2000], false).is_err());
    }

    #[test]
    fn a_failed_write_is_either_until_it_was_read() {
        let mut contents = file(1024);
        let began = contents.begin(0, &[2; 600]);
        contents.fail(&began, 1024);
        assert_eq!(contents.read(0, &[2; 10]), Ok(()));
        assert!(contents.read(0, &[1; 512]).is_err(), "it changed after it was read");
        assert_eq!(contents.read(512, &[1; 88]), Ok(()), "the next sector is a matter of its own");
    }

    #[test]
    fn what_a_failed_sync_has_lost_stays_possible_after_a_clean_close() {
        let mut contents = file(1024);
        let began = contents.begin(0, &[2; 512]);
        contents.end(&began);
        contents.may_be_lost();
        let (new, old) = ([[2; 512], [1; 512]].concat(), vec![1; 1024]);
        contents.found_after_kill(&new);
        contents.synced();
        contents.found_after_close(&new, &[]);
        assert!(contents.may_leave(&new, false).is_ok() && contents.may_leave(&old, false).is_ok());
        assert!(contents.clone().read(0, &old).is_err(), "until a crash the drive gives the new bytes");
        // Until the sector is written again and synced.
        let again = contents.begin(0, &[3; 512]);
        contents.end(&again);
        contents.synced();
        let newest = [[3; 512], [1; 512]].concat();
        contents.found_after_close(&newest, &[]);
        assert!(contents.may_leave(&newest, false).is_ok() && contents.may_leave(&old, false).is_err());
    }

    #[test]
    fn what_a_page_holds_that_cannot_be_read_is_one_of_what_a_crash_could_leave() {
        let mut contents = file(1024);
        let began = contents.begin(0, &[2; 1024]);
        contents.end(&began);
        let (new, old) = (vec![2; 1024], [[1; 512], [2; 512]].concat());
        contents.found_after_crash(&new, std::slice::from_ref(&(0..512)));
        assert!(contents.may_leave(&new, false).is_ok() && contents.may_leave(&old, false).is_ok());
        assert!(contents.may_leave(&[1; 1024], false).is_err(), "the second sector was read");
    }

    #[test]
    fn a_write_that_could_not_make_a_file_longer_leaves_zeroes() {
        let mut contents = file(100);
        let began = contents.begin(50, &[2; 1000]);
        contents.fail(&began, 100);
        contents.begin_resize(1024);
        contents.end_resize(1024);
        let mut read = vec![0; 1024];
        read[..50].fill(1);
        read[50..100].fill(2);
        assert_eq!(contents.clone().read(0, &read), Ok(()));
        read[100] = 2;
        assert!(contents.read(0, &read).is_err());
    }

    #[test]
    fn what_is_cut_off_reads_as_zeroes_when_a_file_grows() {
        let mut contents = file(1500);
        contents.begin_resize(700);
        assert!(contents.may_leave(&[1; 1500], false).is_ok() && contents.may_leave(&[1; 700], false).is_ok());
        contents.end_resize(700);
        assert!(contents.may_leave(&[1; 1500], false).is_err());
        contents.begin_resize(1200);
        contents.end_resize(1200);
        let grown: Vec<u8> = [1; 700].into_iter().chain([0; 500]).collect();
        assert_eq!(contents.read(0, &grown), Ok(()));
        assert!(contents.may_leave(&[1; 1200], false).is_err());
    }
}

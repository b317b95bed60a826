//! The contents of one drive: each file in its volatile and its durable state, and the outcome of a crash.
//!
//! Rules of a file's contents:
//! 1. A write changes the volatile state. A sync makes durable all changes that were complete before it was issued.
//! 2. At a crash each unsynced write survives whole, is lost, or is torn. The unit that is old or new is the granule
//!    (page, or sector if sectors tear). Within a granule writes keep their order. The newest survivor includes all
//!    writes before it, because they share one page of the page cache.
//! 3. Changes of the length and of the space are metadata. Any prefix of them survives, in order and independently of
//!    the data. So a length may survive without its data (zeroes), and data without its length (lost).
//! 4. Data that is written after a cut is in other blocks. If the cut is lost, the data is lost with it.
//! 5. A sync that fails drops some of the dirty data for good. The data stays readable, but no later sync makes it
//!    durable. Linux does the same.
//!
//! Non-goals: time, faults, handles.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use fastrand::Rng;

use crate::dice::Dice;
use crate::image::{Image, granules};
use crate::tree::Tree;

#[derive(Clone, Debug)]
enum What {
    /// The file was cut or extended to `len`.
    Cut {
        len: u64,
    },
    /// A write beyond the end made the file at least `len` long.
    Extend {
        len: u64,
    },
    Allocate {
        offset: u64,
        len: u64,
    },
    /// The space of a range was freed.
    Punch {
        offset: u64,
        len: u64,
    },
    Write {
        offset: u64,
        bytes: Arc<[u8]>,
    },
}

impl What {
    fn apply(&self, image: &mut Image) {
        match self {
            What::Cut { len } => image.set_len(*len),
            What::Extend { len } => image.extend(*len),
            What::Allocate { offset, len } => image.allocate(*offset, *len),
            What::Punch { offset, len } => image.punch(*offset, *len),
            What::Write { offset, bytes } => image.write(*offset, bytes),
        }
    }

    fn is_write(&self) -> bool {
        matches!(self, What::Write { .. })
    }

    /// The range in which this change replaces the bytes of earlier writes.
    fn overrides(&self) -> Option<(u64, u64)> {
        match self {
            What::Write { offset, bytes } => Some((*offset, offset + bytes.len() as u64)),
            What::Cut { len } => Some((*len, u64::MAX)),
            What::Punch { offset, len } => Some((*offset, offset + len)),
            _ => None,
        }
    }
}

#[derive(Clone, Debug)]
struct UnsyncedChange {
    /// The number of the write, for its end.
    id: u64,
    /// The tick of the file at which the operation completed; `None` while it is in flight.
    done: Option<u64>,
    what: What,
}

impl UnsyncedChange {
    /// A write without the bytes in `start..end`: up to two pieces.
    fn without(self, start: u64, end: u64) -> Vec<UnsyncedChange> {
        let What::Write { offset, bytes } = &self.what else { return vec![self] };
        let after = offset + bytes.len() as u64;
        if end <= *offset || after <= start {
            return vec![self];
        }
        let piece = |from: u64, to: u64| {
            (from < to).then(|| {
                let bytes = bytes[(from - offset) as usize..(to - offset) as usize].into();
                UnsyncedChange { what: What::Write { offset: from, bytes }, ..self }
            })
        };
        [piece(*offset, start), piece(end, after)].into_iter().flatten().collect()
    }
}

/// One file.
#[derive(Clone, Debug, Default)]
pub(crate) struct File {
    /// The volatile state, which reads return.
    pub now: Image,
    /// The state that survives every crash.
    durable: Image,
    /// The changes of `now` that are not durable, in their order.
    pending: Vec<UnsyncedChange>,
    tick: u64,
}

impl File {
    fn next_tick(&mut self) -> u64 {
        self.tick += 1;
        self.tick
    }

    fn change(&mut self, what: What, in_flight: bool) -> u64 {
        what.apply(&mut self.now);
        let id = self.next_tick();
        self.pending.push(UnsyncedChange { id, done: (!in_flight).then_some(id), what });
        id
    }

    /// Writes, and makes the file longer if needed. Returns the number by which [`File::finish`] must end a write in
    /// flight.
    pub fn write(&mut self, offset: u64, bytes: &[u8], in_flight: bool) -> u64 {
        let end = offset + bytes.len() as u64;
        if end > self.now.len() && !bytes.is_empty() {
            self.change(What::Extend { len: end }, false);
        }
        self.change(What::Write { offset, bytes: bytes.into() }, in_flight)
    }

    /// Notes that the operation of a write has completed.
    pub fn finish(&mut self, id: u64) {
        let done = self.next_tick();
        for change in self.pending.iter_mut().filter(|change| change.id == id) {
            change.done = Some(done);
        }
    }

    pub fn set_len(&mut self, len: u64) {
        self.change(What::Cut { len }, false);
    }

    pub fn punch(&mut self, offset: u64, len: u64) {
        self.change(What::Punch { offset, len }, false);
    }

    pub fn allocate(&mut self, offset: u64, len: u64) {
        self.change(What::Allocate { offset, len }, false);
    }

    /// The present tick, for [`File::sync`].
    pub fn mark(&mut self) -> u64 {
        self.next_tick()
    }

    /// Makes the changes durable that had completed before `mark` (rule 1).
    pub fn sync(&mut self, mark: u64) {
        let mut rest: Vec<UnsyncedChange> = Vec::new();
        for change in std::mem::take(&mut self.pending) {
            if change.done.is_none_or(|done| done > mark) {
                rest.push(change);
                continue;
            }
            // An older write that is still pending must not replace this one later.
            if let Some((start, end)) = change.what.overrides() {
                rest = rest.into_iter().flat_map(|older| older.without(start, end)).collect();
            }
            change.what.apply(&mut self.durable);
        }
        self.pending = rest;
    }

    /// Fails a sync (rule 5).
    pub fn fail_sync(&mut self, rng: &mut Rng) {
        self.pending.retain(|change| !change.what.is_write() || change.done.is_none() || rng.bool());
    }

    /// Makes all changes durable.
    pub fn settle(&mut self) {
        self.pending.clear();
        self.durable = self.now.clone();
    }

    /// Crashes (rules 2, 3 and 4).
    fn crash(&mut self, dice: &mut Dice<'_>, granule: u64) {
        let pending = std::mem::take(&mut self.pending);
        let metadata = pending.iter().filter(|change| !change.what.is_write()).count();
        let mut kept_metadata = dice.prefix(metadata);
        let mut newest: BTreeMap<u64, usize> = BTreeMap::new();
        for (index, change) in pending.iter().enumerate() {
            if let What::Write { offset, bytes } = &change.what {
                let fate = dice.write_fate();
                for (number, _) in granules(*offset, bytes.len(), granule) {
                    if dice.granule_survives(fate) {
                        newest.insert(number, index);
                    }
                }
            }
        }
        let mut lost_cut = u64::MAX;
        for (index, change) in pending.iter().enumerate() {
            match &change.what {
                What::Write { offset, bytes } => {
                    for (number, range) in granules(*offset, bytes.len(), granule) {
                        let at = offset + range.start as u64;
                        if newest.get(&number).is_some_and(|newest| index <= *newest) && at < lost_cut {
                            let len = (lost_cut - at).min(range.len() as u64) as usize;
                            self.durable.write(at, &bytes[range][..len]);
                        }
                    }
                }
                what if kept_metadata > 0 => {
                    kept_metadata -= 1;
                    what.apply(&mut self.durable);
                }
                What::Cut { len } => lost_cut = lost_cut.min(*len),
                _ => {}
            }
        }
        self.now = self.durable.clone();
    }

    /// Changes both states without the program's knowledge. All earlier writes become durable, too.
    pub fn tamper(&mut self, change: impl Fn(&mut Image)) {
        self.settle();
        change(&mut self.now);
        change(&mut self.durable);
    }
}

/// The contents of one drive's directory `iomill`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Disk {
    /// Whether `<drive>/iomill` exists. Durable at once, because no operation of `DriveFs` could sync its parent.
    pub made: bool,
    pub tree: Tree,
    pub files: BTreeMap<u64, File>,
    last_file: u64,
}

impl Disk {
    pub fn create(&mut self, path: &str) -> io::Result<u64> {
        self.tree.link_file(path, self.last_file + 1)?;
        self.last_file += 1;
        self.files.insert(self.last_file, File::default());
        Ok(self.last_file)
    }

    /// The number of pages with space in all files that have a name or are in `open`.
    pub fn used_pages(&self, open: &BTreeSet<u64>) -> u64 {
        let named = self.tree.named();
        let counts = |file: &&u64| named.contains(file) || open.contains(file);
        self.files.iter().filter(|(file, _)| counts(file)).map(|(_, file)| file.now.space().pages()).sum()
    }

    /// Drops the files that are neither open nor named, now or after a crash.
    pub fn collect(&mut self, open: &BTreeSet<u64>) {
        let referenced = self.tree.referenced();
        self.files.retain(|file, _| referenced.contains(file) || open.contains(file));
    }

    pub fn settle(&mut self) {
        self.tree.settle();
        self.files.values_mut().for_each(File::settle);
        self.collect(&BTreeSet::new());
    }

    pub fn crash(&mut self, dice: &mut Dice<'_>, granule: u64) {
        self.tree.crash(dice);
        for file in self.files.values_mut() {
            file.crash(dice, granule);
        }
        self.collect(&BTreeSet::new());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dice::Survival;
    use crate::image::{PAGE_BYTES, SECTOR_BYTES};

    const PAGE: usize = PAGE_BYTES as usize;

    fn bytes(file: &File) -> Vec<u8> {
        let mut bytes = vec![0; file.now.len() as usize];
        file.now.read(0, &mut bytes);
        bytes
    }

    fn crashed(file: &File, survival: Survival, granule: u64, seed: u64) -> Vec<u8> {
        let mut rng = Rng::with_seed(seed);
        let mut file = file.clone();
        file.crash(&mut Dice::new(&mut rng, survival), granule);
        bytes(&file)
    }

    fn synced(len: usize) -> File {
        let mut file = File::default();
        file.write(0, &vec![1; len], false);
        let mark = file.mark();
        file.sync(mark);
        assert_eq!(crashed(&file, Survival::Nothing, PAGE_BYTES, 0), vec![1; len]);
        file
    }

    #[test]
    fn a_sync_covers_what_was_complete_before_it_was_issued() {
        let mut file = synced(2 * PAGE);
        let first = file.write(0, &[2; PAGE], true);
        let second = file.write(PAGE_BYTES, &[3; PAGE], true);
        file.finish(first);
        let mark = file.mark();
        file.finish(second);
        file.sync(mark);
        let expected = [[2; PAGE], [1; PAGE]].concat();
        assert_eq!(crashed(&file, Survival::Nothing, PAGE_BYTES, 0), expected);
    }

    #[test]
    fn a_write_left_behind_does_not_come_back_over_a_synced_one() {
        let mut file = synced(PAGE);
        file.write(0, &[2; PAGE], true);
        file.write(512, &[3; 512], false);
        let mark = file.mark();
        file.sync(mark);
        for seed in 0..50 {
            let left = crashed(&file, Survival::Seeded, SECTOR_BYTES, seed);
            assert_eq!(left[512..1024], [3; 512]);
        }
        // The sync does not cover requests that were in flight when it was issued.
        assert_eq!(crashed(&file, Survival::Nothing, PAGE_BYTES, 0)[..512], [1; 512]);
        let mut expected = vec![2; PAGE];
        expected[512..1024].fill(3);
        assert_eq!(crashed(&file, Survival::Everything, PAGE_BYTES, 0), expected);
    }

    #[test]
    fn pages_are_old_or_new_and_sectors_tear_only_when_asked() {
        let mut file = synced(2 * PAGE);
        file.write(0, &[2; 2 * PAGE], false);
        let mut seen = BTreeSet::new();
        for seed in 0..200 {
            let left = crashed(&file, Survival::Seeded, PAGE_BYTES, seed);
            for page in left.chunks(PAGE) {
                assert!(page.iter().all(|byte| *byte == page[0]));
            }
            seen.insert((left[0], left[PAGE]));
        }
        assert_eq!(seen, BTreeSet::from([(1, 1), (1, 2), (2, 1), (2, 2)]));
        let torn = (0..200).any(|seed| {
            let left = crashed(&file, Survival::Seeded, SECTOR_BYTES, seed);
            left[..PAGE].iter().any(|byte| *byte != left[0])
        });
        assert!(torn);
    }

    #[test]
    fn lengths_survive_in_order_and_apart_from_data() {
        let mut file = synced(PAGE);
        file.write(PAGE_BYTES, &[2; PAGE], false);
        file.set_len(512);
        let mut seen = BTreeSet::new();
        for seed in 0..300 {
            let left = crashed(&file, Survival::Seeded, PAGE_BYTES, seed);
            let tail = left.get(PAGE).copied();
            seen.insert((left.len(), tail));
        }
        let expected = [(PAGE, None), (2 * PAGE, Some(0)), (2 * PAGE, Some(2)), (512, None)];
        assert_eq!(seen, BTreeSet::from(expected));
    }

    #[test]
    fn what_was_cut_reads_as_zero_after_growing_whatever_survives() {
        let mut file = synced(PAGE);
        file.set_len(512);
        file.set_len(PAGE_BYTES);
        file.write(1024, &[3; 512], false);
        for seed in 0..300 {
            let left = crashed(&file, Survival::Seeded, SECTOR_BYTES, seed);
            let cut_survived = left.len() < PAGE || left[512] == 0;
            let expected: &[u8] = if cut_survived { &[0, 3] } else { &[1] };
            assert!(left.get(1024).is_none_or(|byte| expected.contains(byte)), "seed {seed}");
        }
    }

    #[test]
    fn a_failed_sync_loses_data_that_a_later_sync_does_not_bring_back() {
        let mut rng = Rng::with_seed(1);
        let mut file = synced(8 * PAGE);
        for page in 0..8 {
            file.write(page * PAGE_BYTES, &[2; PAGE], false);
        }
        file.fail_sync(&mut rng);
        let mark = file.mark();
        file.sync(mark);
        assert_eq!(bytes(&file), vec![2; 8 * PAGE]);
        let left = crashed(&file, Survival::Everything, PAGE_BYTES, 0);
        assert!(left.contains(&1) && left.contains(&2));
    }
}

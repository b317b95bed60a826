//! Reading pages of granules from a drive, and checking the sum of each. Rules R1 to R5 and D1 of `docs/origin.md`.
//! Non-goals: the treatment of wrong pages (`reading`).

use std::collections::VecDeque;
use std::ops::Range;
use std::task::Poll;

use bytes::Bytes;
use futures_util::FutureExt;
use iomill::Advice;
use rustix::io::Errno;

use crate::bounded::{Reading, Slot};
use crate::cache::Inner;
use crate::counters::add;
use crate::drive::Drive;
use crate::identity::{GranuleId, PAGE_BYTES};
use crate::index::Found;
use crate::timer::Delay;

/// Pages of a granule to read from a drive.
#[derive(Clone, Debug)]
pub struct Planned {
    /// The caller's number of the piece.
    pub piece: usize,
    pub id: GranuleId,
    pub pages: Range<usize>,
    pub found: Found,
}

/// The pieces of one gather: their pages fit into the CPU's second-level cache.
const PIECES_AT_ONCE: usize = 64;

/// After a failed read, its pieces are read one by one. After this number of consecutive failures the rest is given up.
const ALONE_MOST: usize = 4;

/// Reads the planned pieces from one drive by one gather. Returns the pieces with their bytes, and the wrong pieces.
pub async fn gathered(cache: &Inner, drive: &Drive, plan: Vec<Planned>) -> (Vec<(usize, Bytes)>, Vec<usize>) {
    // Rule D1: one bound in time for all of it.
    let mut end = cache.timer.after(cache.options.read_within);
    let mut first = attempt(drive, plan, &mut end).await;
    let (mut right, mut lost) = first.given_up(cache, drive);
    if !first.wrong.is_empty() {
        // Rule R3: the page cache may have an older page of the place. So it forgets the page, and reads it once more.
        for planned in &first.wrong {
            let (offset, len) = place_of(drive, planned);
            let _closed = drive.file.advise(offset..offset + len as u64, Advice::DontNeed);
        }
        let mut second = attempt(drive, first.wrong, &mut end).await;
        let (again, lost_again) = second.given_up(cache, drive);
        right.extend(again);
        lost.extend(lost_again);
        add(&cache.tally.misses_wrong, second.wrong.len() as u64);
        for planned in second.wrong {
            drive.index.forget(&planned.found);
            lost.push(planned.piece);
        }
    }
    add(&cache.tally.hits, right.len() as u64);
    if drive.is_dead() {
        cache.leave_out_dead();
    }
    (right, lost)
}

/// The results of pieces that were read.
#[derive(Default)]
struct Sorted {
    right: Vec<(usize, Bytes)>,
    /// A page does not have its sum, or its region has another life by now.
    wrong: Vec<Planned>,
    /// The drive could not read it, not even alone.
    unreadable: Vec<Planned>,
    /// It was given up with others that failed, or the process lacks memory or descriptors for a read.
    failed: Vec<Planned>,
    /// It was not read in time.
    late: Vec<Planned>,
}

/// Rule R1: a page is used only if it has its sum. As many reads begin as there are slots, before the call waits for
/// one. Pages in memory are copied and checked a few pieces at a time, while the copies are in the CPU's cache.
async fn attempt(drive: &Drive, plan: Vec<Planned>, end: &mut Delay) -> Sorted {
    let mut sorted = Sorted { right: Vec::with_capacity(plan.len()), ..Default::default() };
    if drive.bounded.is_stuck() {
        sorted.late = plan;
        return sorted;
    }
    let mut plan = plan.into_iter();
    let mut waiting = VecDeque::new();
    loop {
        let some: Vec<Planned> = plan.by_ref().take(PIECES_AT_ONCE).collect();
        if some.is_empty() {
            break;
        }
        let slot = loop {
            match (drive.bounded.try_slot(), waiting.pop_front()) {
                (Some(slot), earlier) => {
                    earlier.into_iter().for_each(|earlier| waiting.push_front(earlier));
                    break Some(slot);
                }
                // This call has slots itself: it waits for its oldest read first.
                (None, Some((earlier, read, slot))) => sorted.wait(drive, earlier, read, slot, end).await,
                (None, None) => break drive.bounded.slot_before(end).await,
            }
        };
        let Some(slot) = slot else {
            sorted.late.extend(some.into_iter().chain(plan));
            break;
        };
        some.iter().for_each(|planned| drive.see(planned.found.place, planned.found.life));
        let places: Vec<(u64, usize)> = some.iter().map(|planned| place_of(drive, planned)).collect();
        let mut read = drive.gather(&places);
        match futures_util::poll!(&mut read) {
            // Most likely from memory, so it proves nothing about the drive.
            Poll::Ready(Ok(bytes)) => sorted.check_all(drive, some, bytes),
            Poll::Ready(Err(error)) => sorted.one_by_one(drive, some, error, slot, end).await,
            Poll::Pending => waiting.push_back((some, read.boxed(), slot)),
        }
    }
    for (some, read, slot) in waiting {
        sorted.wait(drive, some, read, slot, end).await;
    }
    sorted
}

impl Sorted {
    async fn wait(&mut self, drive: &Drive, plan: Vec<Planned>, read: Reading, slot: Slot, end: &mut Delay) {
        match drive.bounded.wait(read, slot, end).await {
            Some((Ok(bytes), _slot)) => {
                drive.went_well();
                self.check_all(drive, plan, bytes);
            }
            Some((Err(error), slot)) => self.one_by_one(drive, plan, error, slot, end).await,
            None => self.late.extend(plan),
        }
    }

    /// One bad place may have failed the other pieces. So each piece is read alone, as long as some succeed.
    async fn one_by_one(
        &mut self,
        drive: &Drive,
        plan: Vec<Planned>,
        error: iomill::Error,
        slot: Slot,
        end: &mut Delay,
    ) {
        if is_of_process(&error) {
            self.failed.extend(plan);
            return;
        }
        let (mut last, mut slot, mut failures, mut went_well) = (error, Some(slot), 0, false);
        for planned in plan {
            let Some(own) = slot.take().filter(|_| failures < ALONE_MOST) else {
                if failures < ALONE_MOST {
                    self.late.push(planned)
                } else {
                    self.failed.push(planned)
                }
                continue;
            };
            let read = drive.gather(&[place_of(drive, &planned)]).boxed();
            match drive.bounded.wait(read, own, end).await {
                Some((Ok(bytes), own)) => {
                    (slot, failures, went_well) = (Some(own), 0, true);
                    self.check(drive, planned, bytes.into());
                }
                Some((Err(error), own)) => {
                    (slot, failures, last) = (Some(own), failures + 1, error);
                    self.unreadable.push(planned);
                }
                None => self.late.push(planned),
            }
        }
        // Rule R5: one bad place does not make a bad drive.
        if went_well { drive.went_well() } else { drive.failed("read", &last) }
    }

    fn check_all(&mut self, drive: &Drive, plan: Vec<Planned>, bytes: Vec<u8>) {
        let mut bytes = Bytes::from(bytes);
        for planned in plan {
            let (_, len) = place_of(drive, &planned);
            let own = bytes.split_to(len);
            self.check(drive, planned, own);
        }
    }

    fn check(&mut self, drive: &Drive, planned: Planned, bytes: Bytes) {
        let mut pages = planned.pages.clone().zip(bytes.chunks_exact(PAGE_BYTES));
        let is_right = pages.all(|(page, bytes)| planned.found.sums[page] == planned.id.sum(page, bytes));
        // Rule I6: after the read.
        match is_right && drive.index.life_at(planned.found.place) == planned.found.life {
            true => self.right.push((planned.piece, bytes)),
            false => self.wrong.push(planned),
        }
    }

    /// Counts the pieces that were not read from the drive. Returns the right pieces, and the lost ones.
    fn given_up(&mut self, cache: &Inner, drive: &Drive) -> (Vec<(usize, Bytes)>, Vec<usize>) {
        add(&cache.tally.misses_failed, (self.unreadable.len() + self.failed.len()) as u64);
        add(&cache.tally.misses_late, self.late.len() as u64);
        if !self.late.is_empty() {
            drive.were_late(cache.options.read_within);
        }
        // Rule R5: it is written again, at another place.
        self.unreadable.iter().for_each(|planned| drive.index.forget(&planned.found));
        let lost = [&self.unreadable, &self.failed, &self.late].into_iter().flatten();
        let lost = lost.map(|planned| planned.piece).collect();
        (std::mem::take(&mut self.right), lost)
    }
}

/// Whether the process lacks memory or descriptors for a read. Such an error proves nothing about the drive or the
/// place.
fn is_of_process(error: &iomill::Error) -> bool {
    const LACKS: [Errno; 3] = [Errno::MFILE, Errno::NFILE, Errno::NOMEM];
    error.errno().is_some_and(|errno| LACKS.iter().any(|lack| lack.raw_os_error() == errno))
}

fn place_of(drive: &Drive, planned: &Planned) -> (u64, usize) {
    let offset = drive.geometry().offset(planned.found.place) + (planned.pages.start * PAGE_BYTES) as u64;
    (offset, planned.pages.len() * PAGE_BYTES)
}

/// A whole granule from its drive, if it is present and right.
pub async fn whole(cache: &Inner, drive: &Drive, id: GranuleId) -> Option<Bytes> {
    let found = drive.index.find(id.tag)?;
    let pages = 0..drive.geometry().pages();
    let (right, _) = gathered(cache, drive, vec![Planned { piece: 0, id, pages, found }]).await;
    right.into_iter().next().map(|(_, bytes)| bytes)
}

#[cfg(test)]
mod tests;

//! Pages of granules from a drive, each with its sum checked. Rules R1 and R3 of `docs/origin.md`. Non-goals: what becomes of pages that are not right
//! (`reading`).

use std::ops::Range;
use std::task::Poll;

use bytes::Bytes;
use iomill::Advice;

use crate::cache::Inner;
use crate::counters::add;
use crate::drive::Drive;
use crate::identity::{GranuleId, PAGE_BYTES};
use crate::index::Found;

/// Pages of a granule to read from a drive.
#[derive(Clone, Debug)]
pub struct Planned {
    /// Whatever the caller calls it.
    pub piece: usize,
    pub id: GranuleId,
    pub pages: Range<usize>,
    pub found: Found,
}

/// Pieces of one gather: their pages fit into the CPU's second cache.
const PIECES_AT_ONCE: usize = 64;

/// Reads what was planned from one drive by one gather. Returns the pieces with their bytes, and the pieces that are not right.
pub async fn gathered(cache: &Inner, drive: &Drive, plan: Vec<Planned>) -> (Vec<(usize, Bytes)>, Vec<usize>) {
    let Sorted { mut right, wrong, failed: mut lost } = attempt(drive, plan).await;
    add(&cache.tally.misses_failed, lost.len() as u64);
    if !wrong.is_empty() {
        // Rule R3: the page cache may have a page from before its place was written again. So it forgets the page, and reads it once more.
        for planned in &wrong {
            let (offset, len) = place_of(drive, planned);
            let _closed = drive.file.advise(offset..offset + len as u64, Advice::DontNeed);
        }
        let Sorted { right: again, wrong: still, failed } = attempt(drive, wrong).await;
        right.extend(again);
        add(&cache.tally.misses_failed, failed.len() as u64);
        lost.extend(failed);
        add(&cache.tally.misses_wrong, still.len() as u64);
        for planned in still {
            drive.index.forget(&planned.found);
            lost.push(planned);
        }
    }
    add(&cache.tally.hits, right.len() as u64);
    if drive.is_dead() {
        cache.leave_out_dead();
    }
    (right, lost.into_iter().map(|planned| planned.piece).collect())
}

/// What became of pieces that were read.
#[derive(Default)]
struct Sorted {
    right: Vec<(usize, Bytes)>,
    /// A page does not have its sum.
    wrong: Vec<Planned>,
    /// The drive could not read it.
    failed: Vec<Planned>,
}

/// Rule R1: a page is used only if it has its sum. All reads begin before one is waited for. What is in memory is copied and checked a few pieces at a
/// time, while the copies are near the CPU.
async fn attempt(drive: &Drive, plan: Vec<Planned>) -> Sorted {
    let mut sorted = Sorted { right: Vec::with_capacity(plan.len()), ..Default::default() };
    let mut plan = plan.into_iter();
    let mut waiting = Vec::new();
    loop {
        let some: Vec<Planned> = plan.by_ref().take(PIECES_AT_ONCE).collect();
        if some.is_empty() {
            break;
        }
        let places: Vec<(u64, usize)> = some.iter().map(|planned| place_of(drive, planned)).collect();
        let mut gather = drive.file.gather(&places);
        match futures_util::poll!(&mut gather) {
            Poll::Ready(read) => sorted.take(drive, some, read).await,
            Poll::Pending => waiting.push((some, gather)),
        }
    }
    for (some, gather) in waiting {
        sorted.take(drive, some, gather.await).await;
    }
    sorted
}

impl Sorted {
    async fn take(&mut self, drive: &Drive, plan: Vec<Planned>, read: iomill::Result<Vec<u8>>) {
        match read {
            Ok(bytes) => {
                drive.went_well();
                let mut bytes = Bytes::from(bytes);
                for planned in plan {
                    let (_, len) = place_of(drive, &planned);
                    let own = bytes.split_to(len);
                    self.check(planned, own);
                }
            }
            Err(first) => {
                // One place may have failed the others, so each is read by itself.
                let (mut last, mut failed) = (first, false);
                for planned in plan {
                    match drive.file.gather(&[place_of(drive, &planned)]).await {
                        Ok(bytes) => {
                            drive.went_well();
                            self.check(planned, bytes.into());
                        }
                        Err(error) => {
                            (last, failed) = (error, true);
                            self.failed.push(planned);
                        }
                    }
                }
                if failed {
                    drive.failed("read", &last);
                }
            }
        }
    }

    fn check(&mut self, planned: Planned, bytes: Bytes) {
        let mut pages = planned.pages.clone().zip(bytes.chunks_exact(PAGE_BYTES));
        match pages.all(|(page, bytes)| planned.found.sums[page] == planned.id.sum(page, bytes)) {
            true => self.right.push((planned.piece, bytes)),
            false => self.wrong.push(planned),
        }
    }
}

fn place_of(drive: &Drive, planned: &Planned) -> (u64, usize) {
    let offset = drive.geometry().offset(planned.found.place) + (planned.pages.start * PAGE_BYTES) as u64;
    (offset, planned.pages.len() * PAGE_BYTES)
}

/// A whole granule from its drive, if it is there and right.
pub async fn whole(cache: &Inner, drive: &Drive, id: GranuleId) -> Option<Bytes> {
    let found = drive.index.find(id.tag)?;
    let pages = 0..drive.geometry().pages();
    let (right, _) = gathered(cache, drive, vec![Planned { piece: 0, id, pages, found }]).await;
    right.into_iter().next().map(|(_, bytes)| bytes)
}

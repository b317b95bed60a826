//! Merging: adjacent pieces of a part become one vectored I/O, also if they belong to different calls.
//!
//! Rules:
//! 1. Only whole neighbours merge: the same part, the same operation, the same class, each beginning where the one
//!    before it ends. Together they are at most `PIECE_BYTES` and `MAX_SEGMENTS`. A piece that bounces does not merge,
//!    nor does a sync.
//! 2. A merged write holds the locks of all its pieces' blocks shared. The locks are tried, as for one piece. A piece
//!    that does not get its lock ends the run before it, and is blocked when its turn comes.
//! 3. A short merged I/O is continued. If it fails, the pieces that were transferred by then have succeeded. Each of
//!    the others is tried by itself, and never merged again, so that its result is its own. It releases its lock and
//!    takes it again. Its end was not reported, so another write in between counts as the earlier one.

use super::slot::{Hold, Slot};
use super::waiting::{Waiting, follows};
use super::{BlockLocks, Class, Done, Fault, Op, PAGE_BYTES, PIECE_BYTES, Piece, Queue};
use crate::engine::{MAX_SEGMENTS, Memory, NO_REGION, Segment};
use crate::sys::fs::Alignment;

/// Whether a piece that the drive takes as it is may travel with others: with direct I/O, lists are of whole pages.
fn is_sociable(piece: &Piece, align: Alignment) -> bool {
    let edges = match piece.memory {
        Memory::One { buf, .. } => buf as u64 | piece.offset | u64::from(piece.len),
        Memory::Scatter { .. } => 0,
    };
    piece.op != Op::Sync && (!align.is_direct() || edges.is_multiple_of(PAGE_BYTES as u64))
}

fn segments(piece: &Piece) -> usize {
    match piece.memory {
        Memory::One { .. } => 1,
        Memory::Scatter { count, .. } => usize::from(count),
    }
}

/// Moves `first`, and the neighbours after it that can be merged with it, to `members`, and takes the locks of the
/// neighbours. Returns the bytes of all; `None` if there is no neighbour.
fn gather(
    first: &Piece,
    waiting: &mut Waiting,
    members: &mut Vec<Piece>,
    align: Alignment,
    locks: &BlockLocks,
) -> Option<u32> {
    let (mut last, mut count, mut len) = (*first, segments(first), first.len);
    if waiting.beside().is_none() || !is_sociable(first, align) {
        return None;
    }
    while let Some(next) = waiting.beside() {
        count += segments(next);
        let fits = count <= MAX_SEGMENTS && len as usize + next.len as usize <= PIECE_BYTES;
        if !fits || !follows(&last, next) || !is_sociable(next, align) {
            break;
        }
        if next.op == Op::Write && !locks.try_shared(next.lock) {
            break;
        }
        let Some(next) = waiting.take_beside() else { break };
        if members.is_empty() {
            members.push(*first);
        }
        members.push(next);
        len += next.len;
        last = next;
    }
    (!members.is_empty()).then_some(len)
}

/// The memory of all members in order, with stretches that touch made one.
///
/// # Safety
/// `places` has room for `MAX_SEGMENTS` segments and is not in use. The members have no more segments, and their lists
/// are valid.
unsafe fn joined(members: &[Piece], places: *mut Segment) -> Memory {
    let (mut count, mut end) = (0, std::ptr::null_mut());
    let mut add = |next: Segment| {
        if count > 0 && end == next.buf {
            // SAFETY: this place was written before.
            unsafe { (*places.add(count - 1)).len += next.len };
        } else {
            // SAFETY: one place for each segment at most, so there is room.
            unsafe { places.add(count).write(next) };
            count += 1;
        }
        end = next.buf.wrapping_add(next.len);
    };
    for piece in members {
        match piece.memory {
            Memory::One { buf, .. } => add(Segment { buf, len: piece.len as usize }),
            // SAFETY: the list is valid by the caller's promise, and `i` is within it.
            Memory::Scatter { list, count } => (0..usize::from(count)).for_each(|i| add(unsafe { list.add(i).read() })),
        }
    }
    if count > 1 {
        return Memory::Scatter { list: places, count: count as u16 };
    }
    let region = |piece: &Piece| if let Memory::One { region, .. } = piece.memory { region } else { NO_REGION };
    let first = region(&members[0]);
    let same = members.iter().all(|piece| region(piece) == first);
    // SAFETY: there is at least one member, and its memory was written there.
    Memory::One { buf: unsafe { (*places).buf }, region: if same { first } else { NO_REGION } }
}

impl Queue {
    /// What the slot holds: `first`, which the drive takes as it is, with its neighbours.
    #[inline]
    pub(super) fn merge(&mut self, index: u32, first: Piece) -> Piece {
        let waiting = match first.class {
            Class::Foreground => &mut self.foreground,
            Class::Background => &mut self.background,
        };
        let members = &mut self.members[index as usize];
        let Some(len) = gather(&first, waiting, members, self.align, &self.locks) else { return first };
        if self.lists.is_empty() {
            self.lists = vec![Segment { buf: std::ptr::null_mut(), len: 0 }; self.slots.len() * MAX_SEGMENTS];
        }
        // SAFETY: `index` is below the depth, so these are the slot's own places, and it has no request in flight. No
        // reference to them is made, because an engine may be reading those of other slots. `gather` keeps to
        // `MAX_SEGMENTS`, and the pieces' lists are valid by the contract of `push`.
        let memory = unsafe { joined(members, self.lists.as_mut_ptr().add(index as usize * MAX_SEGMENTS)) };
        Piece { len, memory, ..first }
    }

    /// The end of a merged I/O (rule 3).
    pub(super) fn finish_merged(&mut self, slot: Slot, index: u32, fault: Option<Fault>, ends: &mut Vec<Done>) {
        let moved = if fault.is_some() { slot.moved } else { slot.want };
        let mut members = std::mem::take(&mut self.members[index as usize]);
        let mut end = 0;
        for piece in members.drain(..) {
            if slot.hold == Hold::Shared {
                self.locks.release_shared(piece.lock);
            }
            end += piece.len;
            if end <= moved {
                self.tally(&piece, true);
                ends.push(Done { token: piece.token, tag: piece.tag, result: Ok(()) });
            } else {
                self.alone.push_back(piece);
            }
        }
        self.members[index as usize] = members;
    }
}

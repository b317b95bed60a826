//! A slot: one I/O in flight, and the processing of its completions.
//!
//! Goals: every result checked, short transfers continued, temporary errors tried again. Non-goals: the owner of the
//! I/O.

use super::super::{Failure, Fault, PAGE_BYTES, Piece};
use crate::engine::{Memory, NOT_BEGUN, Op, Segment};
use crate::sys::errno::{self, classify};
use crate::sys::fs::Alignment;

/// How often one transfer is tried again after a passing error before the error is handed up.
const RETRIES: u16 = 1000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Free,
    Direct,
    BounceRead,
    ModifyRead,
    BounceWrite,
}

/// A piece's hold of its block's lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hold {
    Nothing,
    Shared,
    Exclusive,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    pub piece: Piece,
    pub phase: Phase,
    pub hold: Hold,
    pub retries: u16,
    /// Bytes of this phase's transfer that are done; below `want`.
    pub moved: u32,
    /// Bytes this phase transfers in all.
    pub want: u32,
    /// When it started, if it is timed (`Probe::start`).
    pub stamp: u64,
}

/// Writes to `places` what is left of a list after `moved` bytes.
///
/// # Safety
/// The list is valid and names more bytes than `moved`; `places` has room for as many segments.
pub(super) unsafe fn rest_of(list: *const Segment, count: u16, moved: usize, places: *mut Segment) -> Memory {
    let mut skip = moved;
    let mut left = 0;
    for i in 0..usize::from(count) {
        // SAFETY: `i` is within the list.
        let Segment { buf, len } = unsafe { list.add(i).read() };
        if skip >= len {
            skip -= len;
            continue;
        }
        // SAFETY: `left` is at most `i`, and there is room for the whole list.
        unsafe { places.add(usize::from(left)).write(Segment { buf: buf.wrapping_add(skip), len: len - skip }) };
        skip = 0;
        left += 1;
    }
    assert!(left > 0, "a list adds up to the length of its piece");
    Memory::Scatter { list: places, count: left }
}

/// The offset in the part at which the bounced pages of a piece begin.
pub(super) fn bounced_offset(piece: &Piece) -> u64 {
    piece.offset & !(PAGE_BYTES as u64 - 1)
}

/// Length of the whole pages that a piece touches.
pub(super) fn bounced_len(piece: &Piece) -> u32 {
    let end = (piece.offset + u64::from(piece.len)).next_multiple_of(PAGE_BYTES as u64);
    (end - bounced_offset(piece)) as u32
}

pub(super) enum Verdict {
    Whole,
    Again,
    Failed(Fault),
}

impl Slot {
    /// The failure of the slot's piece. Its place is within the piece, also if whole pages around it were transferred. A
    /// write that first reads its pages needs them whole: there the missing bytes may be behind the piece.
    #[cold]
    pub fn failure(&self, fault: Fault) -> Failure {
        let piece = &self.piece;
        let end = piece.offset + u64::from(piece.len);
        let begin = if self.phase == Phase::Direct { piece.offset } else { bounced_offset(piece) };
        let (offset, fault) = match fault {
            Fault::Cut(missing) => {
                let stopped = begin + u64::from(self.want) - missing;
                let offset = stopped.max(piece.offset);
                if offset < end { (offset, Fault::Cut(end - offset)) } else { (stopped, Fault::Cut(missing)) }
            }
            other => ((begin + u64::from(self.moved)).clamp(piece.offset, end), other),
        };
        Failure { op: piece.op, key: piece.file.key, offset, fault }
    }

    /// Takes in the kernel's result.
    pub fn advance(&mut self, result: i32, align: Alignment) -> Verdict {
        if result < 0 {
            let errno = -result;
            // A sync that was begun is not tried again. The kernel reports the loss of a page once, perhaps to the call
            // that ended with another error, and by any errno.
            let passing = match self.piece.op {
                _ if result == NOT_BEGUN => true,
                Op::Sync => false,
                // The kernel gives up a buffered transfer of a thread that has ended, and another thread begins it
                // again. To write the same bytes twice is to write them once.
                Op::Read | Op::Write if matches!(errno, libc::EFAULT | libc::ECANCELED) => true,
                Op::Read | Op::Write => classify(errno) == errno::ErrnoClass::Retry,
            };
            if passing && self.retries < RETRIES {
                self.retries += 1;
                return Verdict::Again;
            }
            return Verdict::Failed(Fault::Errno(errno));
        }
        if self.piece.op == Op::Sync {
            return Verdict::Whole;
        }
        let moved = self.moved.saturating_add(result as u32);
        // The last page of a part may be incomplete when it is only read. The bytes that the piece asks for are there.
        let enough = match self.phase {
            Phase::BounceRead => (self.piece.offset % PAGE_BYTES as u64) as u32 + self.piece.len,
            _ => self.want,
        };
        if moved >= enough {
            return Verdict::Whole;
        }
        // Direct I/O continues at a multiple of its unit; bytes past the last multiple are transferred again.
        let resume = moved - moved % align.offset;
        if resume > self.moved {
            self.moved = resume;
            return Verdict::Again;
        }
        // No progress. A read has met the end of the part before its known end. A write that moves nothing and reports
        // nothing is a failed device.
        if self.piece.op == Op::Read || self.phase == Phase::ModifyRead {
            Verdict::Failed(Fault::Cut(u64::from(self.want - moved)))
        } else {
            Verdict::Failed(Fault::Errno(libc::EIO))
        }
    }
}

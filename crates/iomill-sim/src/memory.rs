//! The memory of a request: one stretch, or the stretches of its list.
//!
//! Goals: the engine treats both alike. A list that is wrong, or changes in flight, is detected. Non-goals: overlaps
//! and alignment; the engine checks them.

use iomill::engine::{IoRequest, MAX_SEGMENTS, Memory, Op};
use iomill::sys::fs::Alignment;

/// Whether a transfer breaks an open file's alignment.
pub(crate) fn is_misaligned(alignment: Alignment, offset: u64, len: u64, address: usize) -> bool {
    let unit = u64::from(alignment.offset);
    !offset.is_multiple_of(unit) || !len.is_multiple_of(unit) || !address.is_multiple_of(alignment.memory as usize)
}

/// The start and length of each stretch of a request's memory, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stretches(Vec<(usize, usize)>);

impl Stretches {
    /// The present memory of a request, or the fault of its list. The request is in flight, or about to be, so its list
    /// is readable.
    pub fn of(request: &IoRequest) -> Result<Stretches, String> {
        let slot = request.slot;
        match request.memory {
            _ if request.op == Op::Sync => Ok(Stretches(Vec::new())),
            Memory::One { buf, .. } => Ok(Stretches(vec![(buf.expose_provenance(), request.len as usize)])),
            Memory::Scatter { count, .. } if !(1..=MAX_SEGMENTS).contains(&usize::from(count)) => {
                Err(format!("the list of slot {slot} has {count} segments"))
            }
            Memory::Scatter { list, count } => {
                // SAFETY: by the contract of `Engine::push` the list is valid until `wait` has returned the completion.
                let list = unsafe { std::slice::from_raw_parts(list, usize::from(count)) };
                let stretches: Vec<_> = list.iter().map(|at| (at.buf.expose_provenance(), at.len)).collect();
                let sum: usize = stretches.iter().map(|&(_, len)| len).sum();
                if sum != request.len as usize {
                    return Err(format!("the list of slot {slot} adds up to {sum}, not to {} bytes", request.len));
                }
                let twice = (1..stretches.len()).any(|at| overlap(&stretches[..at], &stretches[at..=at]));
                if request.op == Op::Read && twice {
                    return Err(format!("the list of slot {slot} reads into the same memory twice"));
                }
                Ok(Stretches(stretches))
            }
        }
    }

    /// The start and length of each stretch.
    pub fn each(&self) -> impl Iterator<Item = (usize, usize)> {
        self.0.iter().copied()
    }

    /// Whether all stretches are within the `size` bytes from `first` on.
    pub fn is_within(&self, first: usize, size: usize) -> bool {
        self.each().all(|(start, len)| start >= first && start + len <= first + size)
    }

    /// Whether the two share a byte.
    pub fn overlaps(&self, other: &Stretches) -> bool {
        overlap(&self.0, &other.0)
    }

    /// Copies the first `len` bytes of the memory.
    ///
    /// # Safety
    /// The memory is readable.
    pub unsafe fn bytes(&self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let mut rest = &mut bytes[..];
        for (start, stretch) in self.each() {
            let (now, later) = rest.split_at_mut(stretch.min(rest.len()));
            let start = std::ptr::with_exposed_provenance::<u8>(start);
            // SAFETY: `now` is no longer than the stretch, which is readable.
            unsafe { std::ptr::copy_nonoverlapping(start, now.as_mut_ptr(), now.len()) };
            rest = later;
        }
        bytes
    }

    /// Copies bytes to the start of the memory.
    ///
    /// # Safety
    /// The memory is writable, and no other code uses it.
    pub unsafe fn fill(&self, bytes: &[u8]) {
        let mut rest = bytes;
        for (start, stretch) in self.each() {
            let (now, later) = rest.split_at(stretch.min(rest.len()));
            let start = std::ptr::with_exposed_provenance_mut::<u8>(start);
            // SAFETY: `now` is no longer than the stretch, which is writable.
            unsafe { std::ptr::copy_nonoverlapping(now.as_ptr(), start, now.len()) };
            rest = later;
        }
    }
}

fn overlap(one: &[(usize, usize)], other: &[(usize, usize)]) -> bool {
    one.iter().any(|&(start, len)| other.iter().any(|&(at, size)| start < at + size && at < start + len))
}

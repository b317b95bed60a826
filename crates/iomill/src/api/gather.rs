//! [`Gathering`]: ranges of a file in new memory, as a future. Nothing fills the memory before the read, which for a long gather costs as much
//! as its hits do. Non-goals: gathers into memory of the caller (`future`).

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use super::file::{File, sum_of_lengths};
use super::future::Transfer;
use crate::error::{Error, Result};
use crate::pager::batch::with_room;
use crate::pager::{IoBuffer, IoBytes};

impl File {
    /// Reads ranges, each an offset and a length in bytes, into new memory: [`File::read_ranges_async`] without a buffer of the caller. The
    /// future resolves to the bytes of all ranges, one after the other. An error if a range ends behind the end of the file.
    pub fn gather(&self, ranges: &[(u64, usize)]) -> Gathering {
        let Some(len) = sum_of_lengths(ranges) else {
            let why = "together they are longer than the address space; ask for fewer at a time";
            return Gathering(State::Failed(Some(Error::invalid("the ranges of a gather", why))));
        };
        match with_room(len) {
            Ok(bytes) => Gathering(State::Reading(self.read_ranges_async(Room { bytes, len }, ranges))),
            Err(error) => Gathering(State::Failed(Some(error))),
        }
    }
}

/// The future of [`File::gather`].
#[derive(Debug)]
#[must_use = "the read goes on, but its bytes are lost"]
pub struct Gathering(State);

#[derive(Debug)]
enum State {
    /// Why it could not begin, until that is taken.
    Failed(Option<Error>),
    Reading(Transfer<Room>),
}

impl Future for Gathering {
    type Output = Result<Vec<u8>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<Vec<u8>>> {
        match &mut self.0 {
            State::Failed(error) => Poll::Ready(Err(error.take().unwrap_or_else(super::answer::polled_again))),
            State::Reading(transfer) => Pin::new(transfer).poll(context).map(|ended| {
                let room = ended?;
                // SAFETY: a gather that has ended well has written all bytes of its memory.
                Ok(unsafe { room.filled() })
            }),
        }
    }
}

/// Memory for the bytes of a gather.
#[derive(Debug)]
struct Room {
    /// Empty, with room for `len` bytes.
    bytes: Vec<u8>,
    len: usize,
}

impl Room {
    /// The bytes.
    ///
    /// # Safety
    /// The first `len` bytes were written.
    unsafe fn filled(mut self) -> Vec<u8> {
        // SAFETY: there is room for `len` bytes, and the caller promises that they were written.
        unsafe { self.bytes.set_len(self.len) };
        self.bytes
    }
}

// SAFETY: the bytes of a vector are on the heap, and stay there while the vector is moved. A gather only writes to them, through pointers.
// Nothing reads them before the gather has written all of them, so they need not be initialised.
unsafe impl IoBytes for Room {
    fn bytes(&self) -> *const [u8] {
        std::ptr::slice_from_raw_parts(self.bytes.as_ptr(), self.len)
    }
}

// SAFETY: as above, and the vector owns its bytes alone.
unsafe impl IoBuffer for Room {
    fn memory(&mut self) -> *mut [u8] {
        std::ptr::slice_from_raw_parts_mut(self.bytes.as_mut_ptr(), self.len)
    }
}

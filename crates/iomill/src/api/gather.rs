//! [`File::gather_async`]: ranges of a file in new memory. Non-goals: gathers into memory of the caller (`future`).

use super::answer::{Answer, Unfilled};
use super::file::{File, sum_of_lengths};
use crate::error::Error;

impl File {
    /// [`File::read_ranges_async`] into new memory. Each range is an offset and a length in bytes. The future resolves
    /// to the bytes of all ranges, one after the other. A range past the end of the file is an error.
    pub fn gather_async(&self, ranges: &[(u64, usize)]) -> Answer<Vec<u8>> {
        let Some(len) = sum_of_lengths(ranges) else {
            let error = Error::invalid("the ranges of a gather", "together they are longer than the address space");
            return Answer::now(Err(error.advise("ask for fewer at a time")));
        };
        match Unfilled::new(len) {
            Ok(memory) => Answer::of_read(self.read_ranges_async(memory, ranges).into_begun(len)),
            Err(error) => Answer::now(Err(error)),
        }
    }
}

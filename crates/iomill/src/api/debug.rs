//! The `Debug` forms of handles and futures: a name or an identity, without the parts inside. They do no I/O and take no
//! lock of the array. Non-goals: errors (`error`), and types without inner parts, which derive `Debug`.

use std::fmt::{Debug, Formatter, Result};

use super::{Answer, Array, Buffer, Draft, File, Peek, Transfer};

impl Debug for Array {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let (id, drives) = (self.inner.catalog.id().to_string(), self.inner.catalog.drives().len());
        f.debug_struct("Array").field("id", &id).field("drives", &drives).finish_non_exhaustive()
    }
}

impl Debug for Peek {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("Peek").field("id", &self.id()).finish_non_exhaustive()
    }
}

impl Debug for File {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("File").field("name", &self.name()).finish_non_exhaustive()
    }
}

impl Debug for Draft {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("Draft").field("version", &self.version()).finish_non_exhaustive()
    }
}

impl Debug for Buffer {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("Buffer").field("len", &self.len()).finish_non_exhaustive()
    }
}

impl<T> Debug for Answer<T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("Answer").finish_non_exhaustive()
    }
}

impl<B, T> Debug for Transfer<B, T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.debug_struct("Transfer").finish_non_exhaustive()
    }
}

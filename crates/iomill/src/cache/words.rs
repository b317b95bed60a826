//! [`Words`]: the memory of headers, keys and hints. It is zeroed, and long enough for the largest cache: words that
//! are never touched take no memory.

use std::io;

use crate::sys::memory::NodePolicy;
use crate::sys::sync::{AtomicU32, AtomicU64};

/// The types of words: atomics for which zero is valid.
///
/// # Safety
/// Memory of zeroes is a valid value. It is changed by atomic operations only.
pub unsafe trait Word: Default + Send + Sync {}

// SAFETY: an integer, and only atomic operations reach it by a shared reference.
unsafe impl Word for AtomicU32 {}
// SAFETY: as above.
unsafe impl Word for AtomicU64 {}

#[cfg(not(iomill_models))]
mod memory {
    use super::*;
    use crate::sys::memory::PageBuf;

    /// Zeroed words.
    #[derive(Debug)]
    pub struct Words<W = AtomicU64> {
        /// The mapping. Its bytes are accessed through `all` only.
        memory: PageBuf,
        start: *const W,
        len: usize,
    }

    // SAFETY: the words are atomics, and the memory behind them is owned by this value.
    unsafe impl<W: Word> Send for Words<W> {}
    // SAFETY: as above.
    unsafe impl<W: Word> Sync for Words<W> {}

    impl<W: Word> Words<W> {
        /// Maps `len` words.
        pub fn new(len: usize) -> io::Result<Words<W>> {
            let bytes = len.checked_mul(size_of::<W>()).ok_or(io::ErrorKind::OutOfMemory)?;
            let mut memory = PageBuf::new(bytes)?;
            let start = memory.as_mut_ptr().cast_const().cast();
            Ok(Words { memory, start, len })
        }

        /// Binds the memory, untouched so far, to a node.
        pub fn bind(&self, node: u32, policy: NodePolicy) -> io::Result<()> {
            self.memory.bind(node, policy)
        }

        /// Returns the memory of the words from `first` on to the system, in whole pages. The words become 0 at some
        /// moment during the call, and may be used meanwhile.
        pub fn release_from(&self, first: usize) -> io::Result<()> {
            // SAFETY: all accesses are atomic (`all`).
            unsafe { self.memory.release_from(first * size_of::<W>()) }
        }

        /// The words.
        #[inline(always)]
        pub fn all(&self) -> &[W] {
            // SAFETY: `len` words from `start` are mapped, zeroed and page-aligned while `memory` lives, which is as
            // long as `self`. All accesses are atomic, because no code looks at `memory` itself.
            unsafe { std::slice::from_raw_parts(self.start, self.len) }
        }
    }
}

#[cfg(iomill_models)]
mod memory {
    use super::*;

    /// Words in a model, where loom watches them.
    #[derive(Debug)]
    pub struct Words<W = AtomicU64>(Vec<W>);

    impl<W: Word> Words<W> {
        pub fn new(len: usize) -> io::Result<Words<W>> {
            Ok(Words((0..len).map(|_| W::default()).collect()))
        }

        pub fn bind(&self, _node: u32, _policy: NodePolicy) -> io::Result<()> {
            Ok(())
        }

        pub fn release_from(&self, _first: usize) -> io::Result<()> {
            Ok(())
        }

        pub fn all(&self) -> &[W] {
            &self.0
        }
    }
}

pub use memory::Words;

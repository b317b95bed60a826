//! The memory of all headers: zeroed words, for as many sets as there may ever be. Words that are never touched take no
//! memory.

use std::io;

use crate::sys::memory::NodePolicy;
use crate::sys::sync::AtomicU64;

#[cfg(not(iomill_models))]
mod memory {
    use super::*;
    use crate::sys::memory::PageBuf;

    /// Zeroed words.
    #[derive(Debug)]
    pub struct Words {
        /// Only `all` looks at it.
        memory: PageBuf,
        start: *const AtomicU64,
        len: usize,
    }

    // SAFETY: the words are atomics, and the memory behind them is owned by this value.
    unsafe impl Send for Words {}
    // SAFETY: as above.
    unsafe impl Sync for Words {}

    impl Words {
        /// Maps `len` words.
        pub fn new(len: usize) -> io::Result<Words> {
            let bytes = len.checked_mul(8).ok_or(io::ErrorKind::OutOfMemory)?;
            let mut memory = PageBuf::new(bytes)?;
            let start = memory.as_mut_ptr().cast_const().cast();
            Ok(Words { memory, start, len })
        }

        /// Binds memory that is untouched so far to a node.
        pub fn bind(&self, node: u32, policy: NodePolicy) -> io::Result<()> {
            self.memory.bind(node, policy)
        }

        /// The words.
        #[inline]
        pub fn all(&self) -> &[AtomicU64] {
            // SAFETY: `len` words from `start` are mapped, zeroed and page-aligned while `memory` lives, which is as
            // long as `self`. All accesses are atomic, because no code looks at `memory` itself.
            unsafe { std::slice::from_raw_parts(self.start, self.len) }
        }
    }
}

#[cfg(iomill_models)]
mod memory {
    use super::*;

    /// Words that loom watches in a model.
    #[derive(Debug)]
    pub struct Words(Vec<AtomicU64>);

    impl Words {
        pub fn new(len: usize) -> io::Result<Words> {
            Ok(Words((0..len).map(|_| AtomicU64::new(0)).collect()))
        }

        pub fn bind(&self, _node: u32, _policy: NodePolicy) -> io::Result<()> {
            Ok(())
        }

        pub fn all(&self) -> &[AtomicU64] {
            &self.0
        }
    }
}

pub use memory::Words;

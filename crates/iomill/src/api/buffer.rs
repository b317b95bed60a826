//! [`Buffer`]: memory that is registered with the drives' engines, so that the kernel need not pin its pages for each
//! I/O. Non-goals: frames of the cache, which are registered by the pager.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use super::array::Array;
use super::runtime::Runtime;
use crate::drive::regions::Regions;
use crate::error::{Error, Result};
use crate::exec::Exec;
use crate::pager::{IoBuffer, IoBytes};
use crate::sys::memory::PageBuf;
use crate::sys::process::Home;

/// Page-aligned memory, registered with the engines of an array or a runtime if limits allow. Calls on files of that
/// array or runtime take any slice of the buffer. Whole pages are fastest.
pub struct Buffer {
    memory: PageBuf,
    home: Home,
    regions: Arc<Regions>,
}

impl Array {
    /// Allocates a zeroed, page-aligned buffer of `len` bytes. An error if `len` is 0 or memory is lacking.
    pub fn buffer(&self, len: usize) -> Result<Buffer> {
        Buffer::new(&self.inner.exec, len)
    }
}

impl Runtime {
    /// [`Array::buffer`] for calls on plain files with this runtime.
    pub fn buffer(&self, len: usize) -> Result<Buffer> {
        Buffer::new(self.exec(), len)
    }
}

impl Buffer {
    fn new(exec: &Exec, len: usize) -> Result<Buffer> {
        exec.check_home()?;
        let memory = PageBuf::new(len);
        let mut memory = memory.map_err(Error::memory("a buffer", len as u64))?;
        let regions = Arc::clone(&exec.regions);
        regions.add(memory.as_mut_ptr(), memory.len());
        Ok(Buffer { memory, home: exec.home, regions })
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.memory.as_slice()
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.memory.as_mut_slice()
    }
}

// SAFETY: the bytes are in a mapping of the buffer's own, and stay there while the buffer is moved.
unsafe impl IoBytes for Buffer {
    fn bytes(&self) -> *const [u8] {
        &raw const self[..]
    }
}

// SAFETY: as above.
unsafe impl IoBuffer for Buffer {
    fn memory(&mut self) -> *mut [u8] {
        &raw mut self[..]
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // In a forked child the memory is a copy, registered with no engine (rule 2 of the fork, `exec`).
        if self.home.is_here() {
            self.regions.remove(self.memory.as_mut_ptr());
        }
    }
}

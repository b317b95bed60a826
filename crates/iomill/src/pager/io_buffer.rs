//! Memory that an operation owns until its end ([`IoBytes`], [`IoBuffer`]), and the outcomes that return it
//! ([`Returned`], [`Failed`]).
//!
//! Goals: a future that is dropped frees no memory that the kernel still uses, and the caller allocates nothing for
//! each record. Non-goals: the operations (`batch`, `direct`).

use std::error::Error as StdError;
use std::fmt;
use std::mem::{ManuallyDrop, MaybeUninit};

use crate::error::Error;

/// Memory that a write owns until it has ended. If the future was dropped before, the completing thread drops the
/// buffer. That may be any thread of the program that uses iomill, so its `drop` must wait for nothing.
///
/// # Safety
/// `bytes` returns the same pointer and length until the value is dropped, also after the value has been moved. The
/// bytes are initialised, unless the value is only used for reads. They do not change until the write has ended.
pub unsafe trait IoBytes: Send + 'static {
    /// The memory.
    fn bytes(&self) -> *const [u8];
}

/// Memory that a read owns until it has ended. See [`IoBytes`] for its drop.
///
/// # Safety
/// `memory` returns the same pointer and length until the value is dropped, also after the value has been moved. They
/// are those of `bytes`. The bytes may be written to, and nothing else uses them.
pub unsafe trait IoBuffer: IoBytes {
    /// The memory.
    fn memory(&mut self) -> *mut [u8];
}

/// A buffer with memory that an operation uses. A move of a `Box` makes pointers into its memory invalid, because the
/// new place claims the memory. A move of a `Kept` does not.
pub struct Kept<B>(MaybeUninit<B>);

impl<B> Kept<B> {
    pub fn new(buffer: B) -> Kept<B> {
        Kept(MaybeUninit::new(buffer))
    }

    /// The buffer. Earlier pointers to its memory become invalid.
    pub fn get(&mut self) -> &mut B {
        // SAFETY: it is there until this is dropped.
        unsafe { self.0.assume_init_mut() }
    }

    /// Returns the buffer. No operation uses its memory any more.
    pub fn into_inner(self) -> B {
        let this = ManuallyDrop::new(self);
        // SAFETY: it is there, and `this` is neither used nor dropped any more.
        unsafe { this.0.assume_init_read() }
    }
}

impl<B> Drop for Kept<B> {
    fn drop(&mut self) {
        // SAFETY: it is there, and nothing uses this any more.
        unsafe { self.0.assume_init_drop() }
    }
}

macro_rules! buffers_on_the_heap {
    ($($buffer:ty),*) => {$(
        // SAFETY: the bytes are on the heap, where they stay when the value is moved.
        unsafe impl IoBytes for $buffer {
            fn bytes(&self) -> *const [u8] {
                &raw const self[..]
            }
        }

        // SAFETY: as above, and the value owns its bytes alone.
        unsafe impl IoBuffer for $buffer {
            fn memory(&mut self) -> *mut [u8] {
                &raw mut self[..]
            }
        }
    )*};
}

macro_rules! shared_bytes {
    ($($bytes:ty),*) => {$(
        // SAFETY: the bytes are elsewhere, stay there when the value is moved, and nothing changes them while the value
        // is there.
        unsafe impl IoBytes for $bytes {
            fn bytes(&self) -> *const [u8] {
                &raw const self[..]
            }
        }
    )*};
}

buffers_on_the_heap!(Vec<u8>, Box<[u8]>);
shared_bytes!(&'static [u8], std::sync::Arc<[u8]>);

#[cfg(feature = "bytes")]
buffers_on_the_heap!(bytes::BytesMut);
#[cfg(feature = "bytes")]
shared_bytes!(bytes::Bytes);

/// The outcome of an operation: its buffers, or its failure.
pub type Returned<K> = std::result::Result<K, Failed<K>>;

/// The failure of an operation that owns a buffer. It converts into [`Error`], so `?` works if the buffer is not
/// needed.
pub struct Failed<B>(Box<(Error, Option<B>)>);

impl<B> Failed<B> {
    pub(crate) fn new(error: Error, buffer: Option<B>) -> Failed<B> {
        Failed(Box::new((error, buffer)))
    }

    /// The error.
    pub fn error(&self) -> &Error {
        &self.0.0
    }

    /// The error, and the buffer. After a read any bytes in the buffer may have changed. There is no buffer after a
    /// panic inside the library, in a forked child, and if the future had resolved before.
    pub fn into_parts(self) -> (Error, Option<B>) {
        *self.0
    }

    pub(crate) fn map<C>(self, change: impl FnOnce(B) -> C) -> Failed<C> {
        let (error, buffer) = *self.0;
        Failed::new(error, buffer.map(change))
    }
}

impl<B> From<Failed<B>> for Error {
    fn from(failed: Failed<B>) -> Error {
        failed.0.0
    }
}

impl<B> From<Failed<B>> for std::io::Error {
    fn from(failed: Failed<B>) -> std::io::Error {
        failed.0.0.into()
    }
}

impl<B> fmt::Debug for Failed<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Failed").field("error", self.error()).finish_non_exhaustive()
    }
}

impl<B> fmt::Display for Failed<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error().fmt(f)
    }
}

impl<B> StdError for Failed<B> {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.error().source()
    }
}

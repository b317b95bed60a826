//! [`OwnedBytes`]: bytes of a file that borrow nothing. Non-goals: ranges of several pages in place (`in_place`).

use std::ops::Deref;
use std::sync::Arc;

use super::Paged;
use super::in_place::PinnedPage;
use super::open::OpenFile;
use crate::cache::Held;
use crate::drive::{Class, PAGE_BYTES};
use crate::error::Result;

/// Bytes of a file that borrow nothing: the result of [`File::read_owned`](crate::File::read_owned). They never change.
/// They may be sent to other threads and dropped there, so `bytes::Bytes::from_owner` takes them.
///
/// If the range is within one page and the page can be pinned, these are the cached bytes themselves. They keep the
/// page in the cache, and count as one pin ([`File::pin`](crate::File::pin)): copy bytes that you keep for long.
/// Otherwise they are a copy.
///
/// They do not keep the file open: they stay valid after the file is closed, cut or deleted, and after the array is
/// closed. They keep the memory of the cache until the last of them is dropped, also after
/// [`Array::close`](crate::Array::close).
#[derive(Debug)]
pub struct OwnedBytes(Storage);

/// Where the bytes are.
#[derive(Debug)]
enum Storage {
    Pinned(OwnedPin),
    Copied(Vec<u8>),
}

/// A pin with the cache that it is in.
#[derive(Debug)]
struct OwnedPin {
    /// Declared first: it is dropped before the cache. It is in `paged`, not `'static`, so no code but this type may have it.
    held: Held<'static>,
    /// Keeps the pager, and with it the cache: its frames and its slots.
    _paged: Arc<Paged>,
    within: usize,
    len: usize,
}

impl OwnedBytes {
    /// Up to `len` bytes of a pinned page, from `within` on.
    ///
    /// # Safety
    /// The pin is of a page of `paged`.
    pub(crate) unsafe fn pinned(pin: PinnedPage<'_>, paged: &Arc<Paged>, within: usize, len: usize) -> OwnedBytes {
        let len = pin.len().saturating_sub(within).min(len);
        if len == 0 {
            return OwnedBytes::copied(Vec::new());
        }
        let ((slot, page), _) = pin.into_parts();
        // SAFETY: the slot is in a block that the cache keeps while the slot is full (rule 6 of `pins`), and the pin empties the slot last
        // of all. The caller promises that the slot's cache is that of `paged`: it is in the pager, at one place on the heap. `_paged` holds
        // the pager, and is dropped after `held`.
        let slot = unsafe { &*std::ptr::from_ref(slot) };
        OwnedBytes(Storage::Pinned(OwnedPin {
            held: Held::from_parts((slot, page)),
            _paged: Arc::clone(paged),
            within,
            len,
        }))
    }

    pub(crate) fn copied(bytes: Vec<u8>) -> OwnedBytes {
        OwnedBytes(Storage::Copied(bytes))
    }

    /// Whether these are the cached bytes themselves, not a copy.
    pub fn is_pinned(&self) -> bool {
        matches!(self.0, Storage::Pinned(_))
    }
}

impl Deref for OwnedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Storage::Pinned(pin) => &pin.held.bytes()[pin.within..pin.within + pin.len],
            Storage::Copied(bytes) => bytes,
        }
    }
}

impl AsRef<[u8]> for OwnedBytes {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl OpenFile {
    /// Reads a page if it is missing, and pins it. `None` if one read is not enough: the caller copies then, and waits
    /// for no pins.
    pub fn pin_or_not<'a>(&self, paged: &'a Paged, page: u64, class: Class) -> Result<Option<PinnedPage<'a>>> {
        if page.saturating_mul(PAGE_BYTES as u64) >= self.file.len() {
            return Ok(None);
        }
        self.touch(paged, std::iter::once(page), class)?;
        Ok(self.pin_held(paged, page, false).ok().flatten())
    }
}

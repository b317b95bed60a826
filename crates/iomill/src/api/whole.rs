//! [`Array::read`]: the whole content of a file. Non-goals: ranges (`file`, `future`), and plain files, which
//! `std::fs::read` reads.

use std::path::Path;

use super::answer::Answer;
use super::array::Array;
use crate::drive::shares::begin_serving;
use crate::error::{Error, Result};
use crate::exec::users_code::check_may_block;
use crate::pager::batch::zeroed;
use crate::sys::limits::memory_limit_bytes;

/// From this length on the memory that the process may use is compared with the length: reading it costs some system
/// calls.
const LONG_BYTES: u64 = 64 << 20;

impl Array {
    /// The whole content of a file, like [`std::fs::read`], in new memory: the counterpart of [`Array::put`].
    ///
    /// All bytes are of one version of the name ([`FileStat`](super::FileStat)): a put, a rename or a deletion during
    /// the call changes nothing of the result. The length is that of the file when it is opened. Of writes to the same
    /// file during the call, the result may have some and lack others, as with [`File::read_at`](super::File::read_at).
    ///
    /// # Errors
    /// [`Error::NotFound`] if no file has this name. [`Error::Memory`] if the content is longer than the memory that
    /// the process may use: open the file and read it in pieces.
    ///
    /// ```no_run
    /// # fn main() -> iomill::Result<()> {
    /// # let array = iomill::Array::open("/mnt/ssd0")?;
    /// array.put("config", b"depth = 32", &iomill::PutOptions::new())?;
    /// assert_eq!(array.read("config")?, b"depth = 32");
    /// # Ok(()) }
    /// ```
    pub fn read(&self, name: &str) -> Result<Vec<u8>> {
        check_may_block("read")?;
        let file = self.open_file(name)?;
        let mut bytes = zeroed(check_memory(file.len())?)?;
        let read = file.read_at(&mut bytes, 0)?;
        // The file may have been made shorter meanwhile.
        bytes.truncate(read);
        Ok(bytes)
    }

    /// [`Array::read`] as a future. If [`Array::open_file_async`] would be ready at once, this is a
    /// [`File::read_async`](super::File::read_async) of the whole file. Otherwise the file is opened and read on a
    /// thread of the array.
    pub fn read_async(&self, name: &str) -> Answer<Vec<u8>> {
        let (here, opened) = match self.here().and_then(|here| Ok((here, here.inner.open_at_once(name)?))) {
            Ok(begun) => begun,
            Err(error) => return Answer::now(Err(error)),
        };
        let Some(file) = opened else {
            let name = name.to_owned();
            return here.answer_later(move |array| array.read(&name));
        };
        let answer = match check_memory(file.len()) {
            Ok(len) => file.read_async(0, len),
            Err(error) => Answer::now(Err(error)),
        };
        // The handle may have become the last one, and closing a file may wait. Then another thread closes it.
        let _never_waits = begin_serving();
        drop(file);
        answer
    }
}

/// The length in memory of a content of `len` bytes. An error if the process may not use so much: with overcommitment
/// the kernel promises any memory, and later kills the process.
fn check_memory(len: u64) -> Result<usize> {
    let is_too_long = len > LONG_BYTES && memory_limit_bytes(Path::new("/")).is_ok_and(|limit| len > limit);
    match usize::try_from(len) {
        Ok(len) if !is_too_long => Ok(len),
        _ => {
            let lacking = std::io::Error::from_raw_os_error(libc::ENOMEM);
            Err(Error::memory("the content of a file", len)(lacking))
        }
    }
}

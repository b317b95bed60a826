//! [`Objects`]: the files of an array as objects. Non-goals: multipart uploads (`upload`).

use std::sync::Arc;

use async_lock::{Semaphore, SemaphoreGuardArc};
use iomill::{Array, Draft, Error, FileStat, Listing, PutOptions, When};

use crate::common::Result;
use crate::handles::{Handle, Handles, SMALL_MAX_BYTES};
use crate::known::{Found, Meta, Version};

/// See the module.
#[derive(Debug)]
pub struct Objects {
    array: Array,
    /// Long files.
    handles: Handles<u64>,
    /// Writes of parts of uploads.
    writes: Arc<Semaphore>,
}

/// The most descriptors of all handles together. A process may often have 1,024.
const DESCRIPTORS: usize = 256;
/// The least number of open files, for any number of drives.
const HANDLES_LEAST: usize = 4;

/// The most writes of parts in flight. Each takes a thread, and more would not use a drive better.
const WRITES_MOST: usize = 16;

/// Drops the handle of a name when its change has ended, or when the future of the change is dropped. Then the change
/// goes on, and a get may add the old handle again: the next added handle detects that one.
struct Forget<'a>(&'a Handles<u64>, &'a str);

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        self.0.forget(self.1);
    }
}

impl Objects {
    pub fn new(array: Array) -> Objects {
        // A closed array opens nothing, so the number does not matter. Its calls fail with `Closed`.
        let drives = array.info().map_or(usize::MAX, |info| info.drives.len());
        Objects { array, handles: Handles::new(most_handles(drives)), writes: Arc::new(Semaphore::new(WRITES_MOST)) }
    }

    pub fn array(&self) -> &Array {
        &self.array
    }

    pub fn find(&self, name: &str) -> Result<Found> {
        let stat = self.array.stat(name).inspect_err(|error| {
            if matches!(error, Error::NotFound { .. }) {
                self.handles.forget(name);
            }
        })?;
        let meta = meta_of(&stat);
        Ok(Found { meta, version: Version::Array(stat.version), attributes: stat.attributes })
    }

    /// Opens a file if the name still has this version.
    pub async fn open(&self, name: &str, version: u64) -> Result<Option<Arc<Handle>>> {
        if let Some(handle) = self.handles.find(name, version) {
            return Ok(Some(handle));
        }
        let file = match self.array.open_version_async(name, version).await {
            Ok(file) => file,
            Err(Error::Conflict { .. }) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let is_long = file.len() > SMALL_MAX_BYTES;
        let handle = Arc::new(Handle::new(file));
        if is_long {
            let is_current = |name: &str, version| self.array.stat(name).is_ok_and(|stat| stat.version == version);
            self.handles.hold(name, version, &handle, is_current);
        }
        Ok(Some(handle))
    }

    pub fn entries(&self, prefix: &str, after: Option<&str>, delimiter: Option<char>) -> Listing {
        let mut listing = self.array.list(prefix);
        if let Some(delimiter) = delimiter {
            listing = listing.delimiter(delimiter);
        }
        match after {
            Some(after) => listing.after(after),
            None => listing,
        }
    }

    pub async fn put(&self, name: &str, content: Vec<u8>, options: &PutOptions) -> Result<FileStat> {
        let _forget = Forget(&self.handles, name);
        Ok(self.array.put_async(name, content, options).await?)
    }

    pub async fn delete(&self, name: &str) -> Result<()> {
        let _forget = Forget(&self.handles, name);
        Ok(self.array.delete_async(name).await?)
    }

    pub async fn copy(&self, from: &str, to: &str, when: When) -> Result<()> {
        let _forget = Forget(&self.handles, to);
        self.array.copy_async(from, to, when).await?;
        Ok(())
    }

    pub async fn rename(&self, from: &str, to: &str, when: When) -> Result<()> {
        let _forget = (Forget(&self.handles, from), Forget(&self.handles, to));
        Ok(self.array.rename_when_async(from, to, when).await?)
    }

    /// Waits for drives.
    pub fn publish(&self, draft: &Draft, name: &str) -> iomill::Result<FileStat> {
        let _forget = Forget(&self.handles, name);
        draft.publish(name, When::Always)
    }

    /// The permit that a write of a part holds.
    pub async fn write_permit(&self) -> SemaphoreGuardArc {
        self.writes.acquire_arc().await
    }
}

/// A long file has a descriptor on each drive.
fn most_handles(drives: usize) -> usize {
    (DESCRIPTORS / drives.max(1)).max(HANDLES_LEAST)
}

pub fn meta_of(stat: &FileStat) -> Meta {
    Meta::of_array(stat.version, stat.len_bytes, stat.modified)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_are_bounded_by_their_descriptors() {
        let most = [1, 4, 16, 100, usize::MAX].map(most_handles);
        assert_eq!(most, [256, 64, 16, HANDLES_LEAST, HANDLES_LEAST]);
    }
}

//! [`Objects`]: the files of an array as objects. Non-goals: multipart uploads (`upload`).

use std::sync::Arc;

use iomill::{Array, Error, FileStat, Listing, PutOptions, When};

use crate::fault::Result;
use crate::handles::{Handle, Handles, SMALL_MAX_BYTES};
use crate::known::{Found, Meta, Version};

/// See the module.
#[derive(Debug)]
pub struct Objects {
    array: Array,
    /// Long files.
    handles: Handles<u64>,
}

/// Lets go of the handle of a name when a change of it has ended, also if its future is dropped before.
struct Forget<'a>(&'a Handles<u64>, &'a str);

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        self.0.forget(self.1);
    }
}

impl Objects {
    pub fn new(array: Array, handles: usize) -> Objects {
        Objects { array, handles: Handles::new(handles) }
    }

    pub fn array(&self) -> &Array {
        &self.array
    }

    pub fn find(&self, name: &str) -> Result<Found> {
        let stat = self.array.stat(name)?;
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
        let mut listing = self.array.entries(prefix);
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

    pub async fn publish(&self, draft: &iomill::Draft, name: &str) -> Result<FileStat> {
        let _forget = Forget(&self.handles, name);
        Ok(draft.publish_async(name, When::Always).await?)
    }
}

pub fn meta_of(stat: &FileStat) -> Meta {
    Meta::of_array(stat.version, stat.len_bytes, stat.modified_ns)
}

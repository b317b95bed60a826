//! [`Objects`]: the files of an array as objects. Non-goals: multipart uploads (`upload`).

use std::sync::Arc;

use chrono::{DateTime, Utc};
use iomill::{Array, Error, FileStat, PutOptions, When};

use crate::entries::{Entries, Meta};
use crate::fault::{Fault, Kind, Result};
use crate::handles::{Handle, Handles, SMALL_MAX_BYTES};
use crate::source::{Found, Version};

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

    pub fn entries(&self, prefix: &str, after: Option<&str>, delimiter: Option<char>) -> Entries {
        let mut listing = self.array.entries(prefix);
        if let Some(delimiter) = delimiter {
            listing = listing.delimiter(delimiter);
        }
        if let Some(after) = after {
            listing = listing.after(after);
        }
        Entries::Array(Box::new(listing))
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
    let (last_modified, e_tag) = (time_of(stat.modified_ns), e_tag_of(stat.version));
    Meta { len_bytes: stat.len_bytes, last_modified, e_tag }
}

/// The etag of a version. No two contents of an array have the same.
pub fn e_tag_of(version: u64) -> String {
    format!("\"{version}\"")
}

/// The version that an etag names, as the condition of a change.
pub fn version_of(e_tag: &str) -> Result<u64> {
    let number = e_tag.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(e_tag);
    number.parse().map_err(|_| {
        let why = format!("the etag {e_tag:?} is of no object of an array; give the one that `head` or `put` returned");
        Fault::new(Kind::Precondition, why)
    })
}

/// A time of the catalog: nanoseconds since the start of 1970.
pub fn time_of(ns: u64) -> DateTime<Utc> {
    DateTime::from_timestamp_nanos(i64::try_from(ns).unwrap_or(i64::MAX))
}

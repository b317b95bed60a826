//! The metadata of an object that is not open: [`Meta`], [`Found`], and [`Entry`] of a listing; etags and times of the
//! catalog. Non-goals: its source.

use std::collections::BTreeMap;
use std::time::SystemTime;

use chrono::{DateTime, Utc};

use crate::common::{Fault, Kind, Result};
use crate::stamp::Stamp;

/// The metadata of an object in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meta {
    pub len_bytes: u64,
    pub last_modified: DateTime<Utc>,
    pub e_tag: String,
}

/// An entry of a listing. Names are those of the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    Object(String, Meta),
    /// A common prefix of several names, with the delimiter at its end.
    Prefix(String),
}

/// The metadata of one object from a source.
#[derive(Debug)]
pub struct Found {
    pub meta: Meta,
    pub version: Version,
    /// Attributes of the catalog.
    pub attributes: BTreeMap<String, String>,
}

/// The version of a name's content.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Version {
    Array(u64),
    Plain(Stamp),
}

impl Meta {
    /// Of a file of an array.
    pub fn of_array(version: u64, len_bytes: u64, modified: SystemTime) -> Meta {
        // No two contents of an array have the same version.
        Meta { len_bytes, last_modified: modified.into(), e_tag: format!("\"{version}\"") }
    }

    /// Of an ordinary file. The etag is that of `LocalFileSystem` of 0.14, so an etag of either store is valid in the
    /// other.
    pub fn of_file(stamp: &Stamp) -> Meta {
        let modified_us = (stamp.modified_ns / 1000).max(0);
        let seconds = i64::try_from(stamp.modified_ns.div_euclid(1_000_000_000)).unwrap_or(i64::MAX);
        let last_modified: Option<DateTime<Utc>> =
            DateTime::from_timestamp(seconds, stamp.modified_ns.rem_euclid(1_000_000_000) as u32);
        Meta {
            len_bytes: stamp.len_bytes,
            last_modified: last_modified.unwrap_or(DateTime::<Utc>::MAX_UTC),
            e_tag: format!("\"{:x}-{modified_us:x}-{:x}\"", stamp.inode, stamp.len_bytes),
        }
    }
}

/// The version that an etag names, as the condition of a change.
pub fn version_of(e_tag: &str) -> Result<u64> {
    let number = e_tag.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(e_tag);
    // Each number has one text: "+1" and "01" are no etags.
    let version = number.parse().ok().filter(|version: &u64| version.to_string() == number);
    version.ok_or_else(|| {
        let why = format!("the etag {e_tag:?} is of no object of an array; give the one that `head` or `put` returned");
        Fault::new(Kind::Precondition, why)
    })
}

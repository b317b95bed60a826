//! [`Stamp`]: what tells one ordinary file, and one content of it, from others. Non-goals: where a file is.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::time::{SystemTime, UNIX_EPOCH};

/// A file that has changed more lately may change again without another time: clocks of file systems tick 100 times a second or more often.
const SETTLED_NS: i128 = 100_000_000;

/// What tells a file, and a content of a file, from others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    device: u64,
    pub inode: u64,
    pub len_bytes: u64,
    pub modified_ns: i128,
    changed_ns: i128,
}

impl Stamp {
    pub fn of(metadata: &Metadata) -> Stamp {
        let ns = |seconds: i64, ns: i64| i128::from(seconds) * 1_000_000_000 + i128::from(ns);
        Stamp {
            device: metadata.dev(),
            inode: metadata.ino(),
            len_bytes: metadata.len(),
            modified_ns: ns(metadata.mtime(), metadata.mtime_nsec()),
            changed_ns: ns(metadata.ctime(), metadata.ctime_nsec()),
        }
    }

    /// Whether another content would have another stamp.
    pub fn is_settled(&self) -> bool {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as i128);
        now - self.changed_ns > SETTLED_NS
    }
}

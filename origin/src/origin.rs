//! [`Origin`]: the requests of a cache to an object store, for any version of the trait. Non-goals: the checks of a GET
//! (`fetch`).

use std::any::Any;
use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use chrono::{DateTime, Utc};
use futures_util::stream::BoxStream;
use iomill_objects_common::Result;

use crate::identity::Version;

/// The metadata of an object, by the origin.
#[derive(Clone, Debug)]
pub struct Meta {
    pub size: u64,
    pub e_tag: Option<String>,
    pub version: Option<String>,
    pub modified: DateTime<Utc>,
    /// The attributes in the type of one version of `object_store`.
    pub attributes: Arc<dyn Any + Send + Sync>,
}

/// The answer to a GET.
pub struct Answer {
    pub meta: Meta,
    /// The range of the answer, by its headers.
    pub range: Range<u64>,
    pub body: BoxStream<'static, Result<Bytes>>,
}

/// The requested content of an object.
#[derive(Clone, Debug)]
pub enum Condition {
    Any,
    /// The content with this etag.
    Match(String),
    /// The content that has not changed since.
    Unmodified(DateTime<Utc>),
}

/// See the module.
#[async_trait]
pub trait Origin: Debug + Send + Sync + 'static {
    async fn get(&self, path: &str, range: Range<u64>, condition: Condition) -> Result<Answer>;
    async fn head(&self, path: &str) -> Result<Meta>;
}

impl Meta {
    /// What distinguishes this content from others. `None` if nothing does: a weak etag does not (RFC 9110, 8.8.1), nor
    /// does a missing time, which is the beginning of 1970. No object is longer than `i64::MAX`.
    pub fn identity(&self, by_time: bool) -> Option<Version> {
        i64::try_from(self.size).ok()?;
        if self.is_tagged() {
            return Some(Version::Tag { e_tag: self.strong().cloned(), version: self.version.clone() });
        }
        let ns = self.modified.timestamp_nanos_opt().filter(|ns| *ns != 0)?;
        by_time.then_some(Version::Modified { ns })
    }

    fn strong(&self) -> Option<&String> {
        self.e_tag.as_ref().filter(|tag| !tag.starts_with("W/"))
    }

    /// Whether an etag or a version distinguishes this content. `null` is the version of all contents of a bucket of S3
    /// without versions.
    fn is_tagged(&self) -> bool {
        self.strong().is_some() || self.version.as_ref().is_some_and(|version| version != "null")
    }

    /// Whether two answers are about one content.
    pub fn is_same(&self, other: &Meta) -> bool {
        let by_tag = self.size == other.size && self.e_tag == other.e_tag && self.version == other.version;
        // If an etag distinguishes contents, the time is only displayed. Copies of one content may have different times.
        by_tag && (self.is_tagged() || self.modified == other.modified)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_tell_contents_apart_is_no_identity() {
        let of = |e_tag: Option<&str>, version: Option<&str>, seconds, size| Meta {
            size,
            e_tag: e_tag.map(Into::into),
            version: version.map(Into::into),
            modified: chrono::DateTime::from_timestamp(seconds, 0).unwrap(),
            attributes: Arc::new(()),
        };
        assert!(of(Some("\"1\""), None, 0, 5).identity(false).is_some());
        assert!(of(Some("W/\"1\""), None, 0, 5).identity(true).is_none(), "a weak etag, and no time");
        assert!(of(Some("W/\"1\""), Some("v"), 0, 5).identity(false).is_some());
        assert!(of(None, None, 1, 5).identity(true).is_some() && of(None, None, 1, 5).identity(false).is_none());
        assert!(of(Some("1"), None, 0, u64::MAX).identity(false).is_none());
        // The version of each object of a bucket without versions.
        assert!(of(None, Some("null"), 1, 5).identity(false).is_none());
        assert!(of(Some("W/\"1\""), Some("null"), 1, 5).identity(false).is_none());
        assert!(of(Some("\"1\""), Some("null"), 0, 5).identity(false).is_some());
        for tag in [None, Some("W/\"1\"")] {
            for version in [None, Some("null")] {
                let (one, later) = (of(tag, version, 1, 5), of(tag, version, 2, 5));
                assert!(one.is_same(&one) && !one.is_same(&later), "{tag:?}, {version:?}");
            }
            assert!(of(tag, Some("v"), 1, 5).is_same(&of(tag, Some("v"), 2, 5)));
        }
        assert!(of(Some("\"1\""), None, 1, 5).is_same(&of(Some("\"1\""), None, 2, 5)));
    }
}

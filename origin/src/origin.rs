//! [`Origin`]: what a cache asks of an object store, whichever version of the trait that has. Non-goals: how a GET is checked (`fetch`).

use std::any::Any;
use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use chrono::{DateTime, Utc};
use futures_util::stream::BoxStream;

use crate::fault::Result;
use crate::identity::Version;

/// What an origin says of an object.
#[derive(Clone, Debug)]
pub struct Meta {
    pub size: u64,
    pub e_tag: Option<String>,
    pub version: Option<String>,
    pub modified: DateTime<Utc>,
    /// The attributes in the type of one version of `object_store`.
    pub attributes: Arc<dyn Any + Send + Sync>,
}

/// What a GET answered.
pub struct Answer {
    pub meta: Meta,
    /// The range that the origin says it sends.
    pub range: Range<u64>,
    pub body: BoxStream<'static, Result<Bytes>>,
}

/// Which content of an object is asked for.
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
    /// What tells this content from others. `None` if nothing does.
    pub fn identity(&self, by_time: bool) -> Option<Version> {
        match (&self.e_tag, &self.version) {
            (None, None) => {
                let ns = self.modified.timestamp_nanos_opt()?;
                by_time.then_some(Version::Modified { ns })
            }
            (e_tag, version) => Some(Version::Tag { e_tag: e_tag.clone(), version: version.clone() }),
        }
    }

    /// Whether two answers are about one content.
    pub fn is_same(&self, other: &Meta) -> bool {
        let by_tag = self.size == other.size && self.e_tag == other.e_tag && self.version == other.version;
        // Where there is an etag, the time is only shown. Copies of one content may differ in it.
        by_tag && (self.e_tag.is_some() || self.version.is_some() || self.modified == other.modified)
    }
}

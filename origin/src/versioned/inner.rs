//! [`Inner`]: a store as the origin of a cache. Non-goals: the requests of the cache.

use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::{StreamExt, TryStreamExt};

use super::meta_of;
use super::object_store::path::Path;
use super::object_store::{Error, GetOptions, GetRange, ObjectStore};
use super::result::fault;
use crate::common::{Fault, Kind, Result};
use crate::origin::{Answer, Condition, Meta, Origin};

/// See the module.
#[derive(Debug)]
pub struct Inner(pub Arc<dyn ObjectStore>);

fn location(path: &str) -> Result<Path> {
    // It was made from a path.
    Path::parse(path).map_err(Fault::other)
}

/// The fault of a GET. The clients of S3, GCS and Azure have no kind for an origin without ranges.
fn refused(error: Error) -> Fault {
    let mut fault = fault(error);
    if fault.kind == Kind::Other && fault.source.to_string().contains("non-partial response") {
        fault.kind = Kind::NotSupported;
    }
    fault
}

#[async_trait]
impl Origin for Inner {
    async fn get(&self, path: &str, range: Range<u64>, condition: Condition) -> Result<Answer> {
        let mut options = GetOptions { range: Some(GetRange::Bounded(range)), ..Default::default() };
        match condition {
            Condition::Any => {}
            Condition::Match(e_tag) => options.if_match = Some(e_tag),
            Condition::Unmodified(since) => options.if_unmodified_since = Some(since),
        }
        let got = self.0.get_opts(&location(path)?, options).await.map_err(refused)?;
        let (meta, range) = (meta_of(&got.meta, &got.attributes), got.range.clone());
        Ok(Answer { meta, range, body: got.into_stream().map_err(fault).boxed() })
    }

    async fn head(&self, path: &str) -> Result<Meta> {
        let options = GetOptions { head: true, ..Default::default() };
        let got = self.0.get_opts(&location(path)?, options).await.map_err(fault)?;
        Ok(meta_of(&got.meta, &got.attributes))
    }
}

//! [`Inner`]: a store as the origin of a cache. Non-goals: what the cache asks it for.

use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::{StreamExt, TryStreamExt};

use super::meta_of;
use super::object_store::path::Path;
use super::object_store::{GetOptions, GetRange, ObjectStore};
use super::result::fault;
use crate::common::{Fault, Result};
use crate::origin::{Answer, Condition, Meta, Origin};

/// See the module.
#[derive(Debug)]
pub struct Inner(pub Arc<dyn ObjectStore>);

fn location(path: &str) -> Result<Path> {
    // It was a path before.
    Path::parse(path).map_err(Fault::other)
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
        let got = self.0.get_opts(&location(path)?, options).await.map_err(fault)?;
        let (meta, range) = (meta_of(&got.meta, &got.attributes), got.range.clone());
        Ok(Answer { meta, range, body: got.into_stream().map_err(fault).boxed() })
    }

    async fn head(&self, path: &str) -> Result<Meta> {
        let options = GetOptions { head: true, ..Default::default() };
        let got = self.0.get_opts(&location(path)?, options).await.map_err(fault)?;
        Ok(meta_of(&got.meta, &got.attributes))
    }
}

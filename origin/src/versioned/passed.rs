//! [`ranges`]: ranges of an object that passes the cache. Non-goals: cached objects.

use std::ops::Range;
use std::sync::OnceLock;

use bytes::Bytes;

use super::convert::{error, meta_of};
use super::object_store::path::Path;
use super::object_store::{GetOptions, GetRange, OBJECT_STORE_COALESCE_DEFAULT, ObjectStore, Result, coalesce_ranges};
use crate::common::Fault;

/// Fetches ranges, and joins neighbours. An error if two answers are of two contents, as far as etags, versions and
/// times tell. A range that ends behind the end of the object is cut, and one that begins
/// there is an error: the `get_ranges` of most stores panics over it (`coalesce_ranges` of object_store 0.13.2 and
/// 0.14.2).
pub async fn ranges(inner: &dyn ObjectStore, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
    let wanted: Vec<Range<u64>> = ranges.iter().filter(|range| !range.is_empty()).cloned().collect();
    let (wanted, first) = (&wanted, &OnceLock::new());
    let fetch = |joined: Range<u64>| async move {
        let options = GetOptions { range: Some(GetRange::Bounded(joined.clone())), ..Default::default() };
        let got = inner.get_opts(location, options).await?;
        let meta = meta_of(&got.meta, &got.attributes);
        if !first.get_or_init(|| meta.clone()).is_same(&meta) {
            return Err(error(&Fault::changed(location.as_ref()), location));
        }
        let bytes = got.bytes().await?;
        let end = joined.start + bytes.len() as u64;
        match wanted.iter().find(|range| joined.contains(&range.start) && range.start >= end) {
            None => Ok(bytes),
            Some(range) => {
                let why = format!("the range {range:?} of {:?}, which ends at {end}", location.as_ref());
                Err(error(&Fault::other(why), location))
            }
        }
    };
    let mut fetched = coalesce_ranges(wanted, fetch, OBJECT_STORE_COALESCE_DEFAULT).await?.into_iter();
    Ok(ranges.iter().map(|range| if range.is_empty() { None } else { fetched.next() }.unwrap_or_default()).collect())
}

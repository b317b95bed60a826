//! Listings as one version of `object_store` shows them. A prefix is a whole number of segments of a path.

use futures_util::stream::{BoxStream, StreamExt, TryStreamExt};

use super::convert::{error, failed, object_meta, path_of};
use super::object_store::path::{DELIMITER_CHAR, Path};
use super::object_store::{ListResult, ObjectMeta, Result};
use super::result;
use crate::known::Entry;
use crate::store::Store;

pub fn stream(store: &Store, prefix: Option<&Path>, offset: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
    let after = offset.map(|offset| store.name(offset.as_ref()));
    let below = store.names_below(prefix.map(AsRef::as_ref));
    let entries = store.source.entries(&below, after.as_deref(), None).into_stream();
    let (store, prefix) = (store.clone(), prefix.cloned().unwrap_or_default());
    let objects = entries.map_err(move |fault| error(fault, &prefix)).try_filter_map(move |entry| {
        let shown = match entry {
            Entry::Object(name, meta) => object(&store, &name, &meta).map(Some),
            // There is no delimiter.
            Entry::Prefix(_) => Ok(None),
        };
        std::future::ready(shown)
    });
    objects.boxed()
}

pub async fn with_delimiter(store: &Store, prefix: Option<&Path>) -> Result<ListResult> {
    let below = store.names_below(prefix.map(AsRef::as_ref));
    let mut entries = store.source.entries(&below, None, Some(DELIMITER_CHAR)).into_stream();
    let (mut common_prefixes, mut objects) = (Vec::new(), Vec::new());
    while let Some(entry) = entries.next().await {
        match entry.map_err(|fault| failed(fault, &below))? {
            Entry::Object(name, meta) => objects.push(object(store, &name, &meta)?),
            Entry::Prefix(name) => common_prefixes.push(common_prefix(store, &name)?),
        }
    }
    Ok(result::list(common_prefixes, objects))
}

pub fn object(store: &Store, name: &str, meta: &crate::known::Meta) -> Result<ObjectMeta> {
    let location = store.location(name).map_err(|fault| failed(fault, name))?;
    Ok(object_meta(path_of(location)?, meta))
}

pub fn common_prefix(store: &Store, name: &str) -> Result<Path> {
    path_of(store.location(name).map_err(|fault| failed(fault, name))?)
}

//! Listings by pages. A page's token is its last entry.

use async_trait::async_trait;
use futures_util::stream::StreamExt;

use super::IomillStore;
use super::convert::{failed, unsupported};
use super::listing::{common_prefix, object};
use super::object_store::Result;
use super::object_store::list::{PaginatedListOptions, PaginatedListResult, PaginatedListStore};
use super::result;
use crate::known::Entry;

/// The length of a page that the caller leaves open.
const KEYS_DEFAULT: usize = 1000;

#[async_trait]
impl PaginatedListStore for IomillStore {
    /// `prefix` is the beginning of a path, and need not end with a segment. The delimiter is one character.
    async fn list_paginated(&self, prefix: Option<&str>, options: PaginatedListOptions) -> Result<PaginatedListResult> {
        let mut delimiter = options.delimiter.iter().flat_map(|delimiter| delimiter.chars());
        let (delimiter, more) = (delimiter.next(), delimiter.next());
        if more.is_some() {
            let text = options.delimiter.as_deref().unwrap_or_default();
            return Err(unsupported(format!("a listing with the delimiter {text:?}: use a single character")));
        }
        let most = options.max_keys.unwrap_or(KEYS_DEFAULT);
        if most == 0 {
            return Err(unsupported("a page of a listing with 0 entries: ask for one at least"));
        }
        let store = &self.0;
        let prefix = store.name(prefix.unwrap_or_default());
        let after = options.page_token.as_deref().or(options.offset.as_deref()).map(|after| store.name(after));
        let mut entries = store.source.entries(&prefix, after.as_deref(), delimiter).into_stream();
        let (mut common_prefixes, mut objects, mut last) = (Vec::new(), Vec::new(), None);
        while let Some(entry) = entries.next().await {
            if common_prefixes.len() + objects.len() == most {
                // There is more.
                let result = result::list(common_prefixes, objects);
                return Ok(PaginatedListResult { result, page_token: last.or(options.page_token) });
            }
            let name = match entry.map_err(|fault| failed(fault, &prefix))? {
                Entry::Object(name, meta) => {
                    objects.push(object(store, &name, &meta)?);
                    name
                }
                Entry::Prefix(name) => {
                    common_prefixes.push(common_prefix(store, &name)?);
                    name
                }
            };
            last = Some(store.location(&name).map_err(|fault| failed(fault, &name))?.to_owned());
        }
        Ok(PaginatedListResult { result: result::list(common_prefixes, objects), page_token: None })
    }
}

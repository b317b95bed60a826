//! `ls`, `verify`, `pin` and `unpin` of objects, which their store names. Non-goals: the stores
//! (`iomill_origin::clients`).

use std::collections::BTreeMap;

use futures_util::TryStreamExt;
use iomill_origin::Cache;
use iomill_origin::clients::{Error, Target, target};
use iomill_origin::v0_14::{Cached, Content};
use object_store_0_14 as object_store;
use object_store_0_14::ObjectStore;
use object_store_0_14::path::Path;

use super::answer::{Answer, Failure, Object};
use super::call::{Call, Verb};

impl From<object_store::Error> for Failure {
    fn from(error: object_store::Error) -> Failure {
        use object_store::Error;
        let kind = match &error {
            Error::NotFound { .. } => "not_found",
            Error::InvalidPath { .. } | Error::UnknownConfigurationKey { .. } => "invalid",
            _ => "other",
        };
        Failure::new(kind, error.to_string())
    }
}

/// Does a call with the objects of a URL.
pub fn with_objects(call: &Call, url: &str, cache: &Cache, answer: &mut Answer) -> Result<(), Failure> {
    let found = target(url, &BTreeMap::new()).map_err(|error| match error {
        Error::Store(error) => error.into(),
        error => Failure::new("invalid", error.to_string()),
    })?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::new("machine", format!("cannot start a runtime: {error}")))?;
    runtime.block_on(done(call, url, found, cache, answer))
}

async fn done(call: &Call, url: &str, found: Target, cache: &Cache, answer: &mut Answer) -> Result<(), Failure> {
    let name = call.name.as_ref().unwrap_or(&found.name);
    let store = Cached::new(cache, found.store, name);
    let (mut objects, mut counts) = (Vec::new(), [0; 3]);
    for path in paths(&store, &found.path).await? {
        let content = match store.open(&path).await {
            // It was deleted since.
            Err(object_store::Error::NotFound { .. }) => continue,
            opened => opened?,
        };
        objects.push(one(call.verb, &content, &mut counts).await?);
    }
    if objects.is_empty() {
        return Err(Failure::new("not_found", format!("{url}: no object has this path or prefix")));
    }
    let [pinned, fetched, wrong] = counts;
    match call.verb {
        Verb::Pin => {
            answer.count("pinned_bytes", pinned, "bytes were pinned");
            answer.count("fetched_bytes", fetched, "bytes of them came from the store");
        }
        Verb::Verify => {
            answer.count("wrong_bytes", wrong, "bytes were wrong; they are fetched again when they are read");
            answer.objects = Some(objects);
        }
        Verb::Ls => answer.objects = Some(objects),
        _ => answer.count("unpinned_objects", objects.len() as u64, "objects were unpinned"),
    }
    Ok(())
}

/// The object of a path, or the objects below it.
async fn paths(store: &Cached, path: &Path) -> Result<Vec<Path>, Failure> {
    let prefix = (!path.as_ref().is_empty()).then_some(path);
    let listed: Vec<_> = store.list(prefix).map_ok(|found| found.location).try_collect().await?;
    Ok(if listed.is_empty() && prefix.is_some() { vec![path.clone()] } else { listed })
}

async fn one(verb: Verb, content: &Content, counts: &mut [u64; 3]) -> Result<Object, Failure> {
    let meta = content.meta();
    let whole = 0..meta.size;
    let whole = std::slice::from_ref(&whole);
    let [pinned, fetched, wrong] = counts;
    let numbers = match verb {
        Verb::Pin => {
            let done = content.pin(whole, |_| ()).await?;
            *pinned += done.bytes;
            *fetched += done.fetched;
            Vec::new()
        }
        Verb::Verify => {
            let found = content.verify().await?;
            *wrong += found.wrong;
            vec![("right_bytes", found.right), ("wrong_bytes", found.wrong)]
        }
        Verb::Unpin => {
            content.unpin(whole).await?;
            Vec::new()
        }
        _ => {
            let found = content.cached_bytes()?;
            vec![("bytes", meta.size), ("cached_bytes", found.cached), ("pinned_bytes", found.pinned)]
        }
    };
    Ok(Object { path: meta.location.to_string(), numbers })
}

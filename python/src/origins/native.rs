//! [`NativeStore`]: a store in one process (rule 1). Non-goals: its methods, which are in `store`.

use std::collections::BTreeMap;
use std::process;
use std::sync::{Mutex, PoisonError};

use iomill_origin::clients::target;
use iomill_origin::v0_14::Cached;
use object_store::path::Path;
use pyo3::prelude::*;

use super::cache::NativeCache;
use super::results::{exception, refused};

/// The objects below a URL, through a cache.
#[pyclass(frozen, module = "iomill._iomill", name = "Store")]
pub struct NativeStore {
    pub cache: Py<NativeCache>,
    #[pyo3(get)]
    pub url: String,
    pub config: BTreeMap<String, String>,
    /// The store in the process with this number (rule 1).
    pub opened: Mutex<(u32, Opened)>,
}

/// A store of this process.
#[derive(Clone)]
pub struct Opened {
    pub cached: Cached,
    /// The prefix of the paths of its objects.
    pub prefix: Path,
}

/// Opens a store for this process.
pub fn open(cache: &NativeCache, url: &str, config: &BTreeMap<String, String>) -> PyResult<Opened> {
    let target = target(url, config).map_err(refused)?;
    Ok(Opened { cached: Cached::new(&cache.0, target.store, &target.name), prefix: target.path })
}

impl Opened {
    /// The location of a key.
    pub fn location(&self, key: &str) -> PyResult<Path> {
        let key = Path::parse(key).map_err(|error| exception(error.into()))?;
        Ok(self.prefix.parts().chain(key.parts()).collect())
    }

    /// The same for an optional prefix.
    pub fn below(&self, prefix: Option<&str>) -> PyResult<Option<Path>> {
        let location = self.location(prefix.unwrap_or_default())?;
        Ok((!location.as_ref().is_empty()).then_some(location))
    }
}

impl NativeStore {
    /// The store of this process.
    pub fn here(&self) -> PyResult<Opened> {
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        if opened.0 != process::id() {
            let own = open(self.cache.get(), &self.url, &self.config)?;
            // The parent's client is not dropped: it has threads and connections of the parent.
            std::mem::forget(std::mem::replace(&mut *opened, (process::id(), own)));
        }
        Ok(opened.1.clone())
    }
}

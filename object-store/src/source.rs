//! [`Source`]: the place of a store's objects. Non-goals: the trait.
//!
//! A store uses only these calls of a source.

use std::sync::Arc;

use crate::common::{Fault, Kind, Result, give_turn};
use crate::entries::Entries;
use crate::handles::Handle;
use crate::known::{Found, Version};
use crate::objects::Objects;
use crate::tree::Tree;

/// See the module.
#[derive(Debug)]
pub enum Source {
    Array(Arc<Objects>),
    Plain(Tree),
}

/// The most replacements of an object between a look at it and its opening.
const TRIES: u32 = 32;

impl Source {
    /// The metadata of an object. For an array it is in memory. Each get begins here.
    pub async fn find(&self, name: &str) -> Result<Found> {
        give_turn().await;
        match self {
            Source::Array(objects) => objects.find(name),
            Source::Plain(tree) => tree.find(name).await,
        }
    }

    /// Opens the present content of an object. `check` gets its metadata, and may refuse.
    pub async fn open<E: From<Fault>>(
        &self,
        name: &str,
        check: impl Fn(&Found) -> Result<(), E>,
    ) -> Result<(Found, Arc<Handle>), E> {
        for _ in 0..TRIES {
            let found = self.find(name).await?;
            check(&found)?;
            if let Some(handle) = self.open_version(name, found.version).await? {
                return Ok((found, handle));
            }
        }
        let why = format!(
            "{name:?} was replaced or changed {TRIES} times while it was opened; read it when its writer has ended"
        );
        Err(Fault::other(why).into())
    }

    /// `None` if the name has another content by now.
    async fn open_version(&self, name: &str, version: Version) -> Result<Option<Arc<Handle>>> {
        match (self, version) {
            (Source::Array(objects), Version::Array(version)) => objects.open(name, version).await,
            (Source::Plain(tree), Version::Plain(stamp)) => tree.open(name, stamp).await,
            _ => Err(Fault::other("a version of another source")),
        }
    }

    /// The objects with names that begin with `prefix` and are after `after`, in the order of their names. With a
    /// delimiter, names that are equal up to the first one behind the prefix are one entry.
    pub fn entries(&self, prefix: &str, after: Option<&str>, delimiter: Option<char>) -> Entries {
        match self {
            Source::Array(objects) => Entries::Array(Box::new(objects.entries(prefix, after, delimiter))),
            Source::Plain(tree) => Entries::Plain(Box::new(tree.entries(prefix, after, delimiter))),
        }
    }

    /// The array, for a call that changes something. `what` is that call.
    pub fn writable(&self, what: &str) -> Result<&Arc<Objects>> {
        match self {
            Source::Array(objects) => Ok(objects),
            Source::Plain(tree) => {
                let why = format!(
                    "{what}: the store of the ordinary files in {} is for reading; write them as files, \
                     or put objects into an array by `IomillStore::array`",
                    tree.root().display()
                );
                Err(Fault::new(Kind::NotSupported, why))
            }
        }
    }
}

//! [`Peek`]: a snapshot of an array's catalog without its lock, while other processes use the array, for `info`, `ls`
//! and `stat`. Non-goals: data.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::info::{ArrayInfo, FileStat};
use super::listing::Listing;
use super::options::ArrayOptions;
use super::setup;
use crate::catalog::{Catalog, OpenMode};
use crate::error::Result;
use crate::exec::users_code::check_may_block;

/// A snapshot of an array's catalog. It gives no access to data, and changes nothing.
pub struct Peek {
    catalog: Arc<Catalog>,
    options: ArrayOptions,
}

impl ArrayOptions {
    /// Takes a snapshot of an array's catalog, without the lock of the array.
    pub fn peek<P: AsRef<Path>>(self, drives: impl IntoIterator<Item = P>) -> Result<Peek> {
        check_may_block("peek")?;
        let starts: Vec<PathBuf> = drives.into_iter().map(|p| p.as_ref().to_owned()).collect();
        let catalog = Catalog::open(&self.platform, &starts, OpenMode::Peek)?;
        Ok(Peek { catalog: Arc::new(catalog), options: self })
    }
}

impl Peek {
    /// The array and its drives, with the service that the drives would have if the array were opened with these
    /// options.
    pub fn info(&self) -> Result<ArrayInfo> {
        let mut notices = self.notices();
        self.options.note_misfits(&self.catalog, &mut notices);
        let services = setup::services(&self.options, self.catalog.drives(), setup::PROBED, &mut notices)?;
        ArrayInfo::new(&self.catalog, &self.options, services.iter(), &self.options.roles()?, notices)
    }

    /// The array's id.
    pub fn id(&self) -> String {
        self.catalog.id().to_string()
    }

    /// Messages for users: repairs and fallbacks.
    pub fn notices(&self) -> Vec<String> {
        self.catalog.notices().all()
    }

    /// The files with names that begin with `prefix`, in the order of their names.
    pub fn list(&self, prefix: &str) -> Listing {
        Listing::of_catalog(&self.catalog, prefix)
    }

    /// The metadata of a file.
    pub fn stat(&self, name: &str) -> Result<FileStat> {
        let record = self.catalog.record(name)?;
        FileStat::new(&self.catalog, &record, record.length)
    }
}

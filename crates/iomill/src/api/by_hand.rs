//! `ArrayOptions::export_catalog` and `import_catalog`: the catalog by hand, for `iomill catalog`. Non-goals: data.

use std::path::{Path, PathBuf};

use super::options::ArrayOptions;
use crate::catalog;
use crate::error::Result;

impl ArrayOptions {
    /// The catalog's layouts, files and attributes as text. This takes no lock.
    ///
    /// An error if the array cannot be read, as for [`ArrayOptions::peek`].
    pub fn export_catalog<P: AsRef<Path>>(self, drives: impl IntoIterator<Item = P>) -> Result<String> {
        crate::exec::users_code::check_may_block("export_catalog")?;
        catalog::by_hand::export(&self.platform, &starts(drives))
    }

    /// Replaces the catalog by the one in a text, atomically, even if the log is damaged. Returns the number of its
    /// files. No data is touched.
    ///
    /// [`Error::Invalid`](crate::Error::Invalid) if the text is malformed, or is the catalog of another array; then
    /// nothing has changed. An error if a process has the array open.
    pub fn import_catalog<P: AsRef<Path>>(self, drives: impl IntoIterator<Item = P>, text: &str) -> Result<usize> {
        crate::exec::users_code::check_may_block("import_catalog")?;
        catalog::by_hand::import(&self.platform, &starts(drives), text)
    }
}

fn starts<P: AsRef<Path>>(drives: impl IntoIterator<Item = P>) -> Vec<PathBuf> {
    drives.into_iter().map(|drive| drive.as_ref().to_owned()).collect()
}

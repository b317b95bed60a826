//! Opening plain files: a method of [`OpenFiles`]. Non-goals: finding them (`file::plain`), and which queue serves a device
//! (`api::runtime`).

use std::path::PathBuf;
use std::sync::Arc;

use super::Pager;
use super::open::{ArrayRef, OpenRef};
use super::open_files::OpenFiles;
use super::table::Found;
use crate::engine::platform::Platform;
use crate::error::Result;
use crate::file::FileState;
use crate::file::plain::{self, PlainAccess, PlainFile};

impl OpenFiles {
    /// Opens plain files as one. If they are open already, returns that. `drive` finds the drive of each, or adds it.
    pub fn open_plain(
        &self,
        platform: &dyn Platform,
        pager: Option<&Arc<Pager>>,
        (paths, access): (&[PathBuf], PlainAccess),
        drive: impl Fn(&PlainFile) -> Result<u16>,
        owner: &ArrayRef,
    ) -> Result<OpenRef> {
        self.exec.check_home()?;
        loop {
            let open = |path: &PathBuf| PlainFile::open(platform, path, access);
            let files = paths.iter().map(open).collect::<Result<Vec<_>>>()?;
            let id = plain::id(&files, access.write);
            let entry = match self.table.look(&id)? {
                Found::Closed(entry) => entry,
                Found::OnItsWay => {
                    self.table.wait_for(&id);
                    continue;
                }
                Found::Open(file) => return Ok(OpenRef::new(file)),
            };
            let files = files.into_iter().map(|file| drive(&file).map(|drive| (file, drive)));
            let file = FileState::open_plain(&self.exec, files.collect::<Result<_>>()?, access.write)?;
            return Ok(self.enter(file, pager, id, entry, None, owner));
        }
    }
}

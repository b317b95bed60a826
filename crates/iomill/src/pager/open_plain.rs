//! Opening plain files: a method of [`OpenFiles`]. Non-goals: finding them (`file::plain`), and which queue serves a
//! device (`api::runtime`).

use std::path::PathBuf;
use std::sync::Arc;

use super::Pager;
use super::open::{ArrayRef, OpenRef};
use super::open_files::OpenFiles;
use super::table::Found;
use crate::engine::platform::Platform;
use crate::error::Result;
use crate::file::FileState;
use crate::file::plain::{DriveHold, PlainFile, PlainList};
use crate::sys::fs::{Access, Identity};

/// The path and the identity of each file that was opened as one.
pub type Places = Vec<(PathBuf, Identity)>;

impl OpenFiles {
    /// Opens plain files as one, or returns them if they are open already. `drive` finds or adds the drive of each
    /// file.
    ///
    /// Another thread of this process may be closing a file, and cut it to its length (rule 6 of the length). So
    /// lengths and versions are valid only if they were read under the entry and the claims: before that they may
    /// change.
    pub fn open_plain(
        &self,
        platform: &dyn Platform,
        pager: Option<&Arc<Pager>>,
        (paths, access): (&[PathBuf], Access),
        drive: impl Fn(&PlainFile) -> Result<DriveHold>,
        owner: &ArrayRef,
    ) -> Result<(OpenRef, Places)> {
        self.exec.check_home()?;
        let mut list = PlainList::open(platform, paths, access)?;
        let place = |file: &PlainFile| (file.open.full_path(), file.stamp.identity);
        let places = list.files.iter().map(place).collect();
        loop {
            let id = list.id();
            let entry = match self.table.look(&id)? {
                Found::Closed(entry) => entry,
                Found::OnItsWay => {
                    self.table.wait_for(&id);
                    list.look()?;
                    continue;
                }
                Found::Open(file) => return Ok((OpenRef::new(file), places)),
            };
            let claims = list.claim(&self.exec)?;
            list.look()?;
            if list.id() != id {
                continue;
            }
            let files = list.files.into_iter().map(|file| drive(&file).map(|drive| (file, drive)));
            let file = FileState::open_plain(&self.exec, files.collect::<Result<_>>()?, claims, access.write)?;
            return Ok((self.enter(file, pager, id, entry, None, owner), places));
        }
    }
}

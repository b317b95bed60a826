//! Changes of the catalog: create, delete, rename, attributes.

use std::sync::{Arc, MutexGuard};

use super::id::Id;
use super::length;
use super::name::{check_attribute_key, check_name};
use super::plan::tombstone_of;
use super::record::{FileSpec, Record, length_path, part_path, record_path};
use super::spare::is_full;
use super::store::{FILES, PARTS, Staged, absent_is_none, failed, sync_dir, unlink_if_there};
use super::{Catalog, Changes, OpenMode, lock};
use crate::error::{Error, Result};
use crate::sys::fs::{Access, DriveFile};

/// Why a new version of a record did not come about.
enum ChangeFailure {
    /// Nothing has changed.
    Unchanged(Error),
    /// The old content rules again, by this record of a later generation.
    TakenBack(Error, Box<Record>),
    /// The outcome is unknown, so the catalog takes no more changes.
    Unknown(Error),
}

impl ChangeFailure {
    fn into_error(self) -> Error {
        match self {
            ChangeFailure::Unchanged(error) | ChangeFailure::TakenBack(error, _) | ChangeFailure::Unknown(error) => {
                error
            }
        }
    }
}

impl Catalog {
    /// Makes a file of length 0.
    pub fn create_file(&self, name: &str, spec: &FileSpec) -> Result<Arc<Record>> {
        let mut changes = self.begin()?;
        check_name(name)?;
        if lock(&self.index).contains_key(name) {
            return Err(Error::Exists { name: name.to_owned() });
        }
        let of_labels = || self.drives.iter().map(|drive| drive.weight).collect();
        let weights: Vec<u32> = spec.weights.clone().unwrap_or_else(of_labels);
        let invalid = |why: String| Error::invalid(format!("new file {name:?}"), why);
        let record = Record::first(Id::random(&*self.platform)?, name, spec, &weights).map_err(invalid)?;
        record.to_bytes().map_err(invalid)?;
        if let Err(error) = self.make_parts(&record) {
            self.discard_parts(&record);
            return Err(error);
        }
        let what = || format!("creating {name:?}");
        match self.publish(&mut changes, &record, &tombstone_of(&record), what) {
            Ok(()) => {
                let record = Arc::new(record);
                lock(&self.index).insert(name.to_owned(), Arc::clone(&record));
                Ok(record)
            }
            Err(ChangeFailure::Unchanged(error)) => {
                self.discard_parts(&record);
                Err(error)
            }
            Err(ChangeFailure::TakenBack(error, tombstone)) => {
                self.finish_or_note(&tombstone);
                Err(error)
            }
            Err(ChangeFailure::Unknown(error)) => Err(error),
        }
    }

    /// Deletes a file, which must not be open. When this returns, the deletion is durable.
    pub fn delete(&self, name: &str) -> Result<()> {
        let mut changes = self.begin()?;
        let mut result = self.bury(&mut changes, name);
        if result.as_ref().is_err_and(is_full) && changes.failed.is_none() {
            self.give_spares_up()?;
            result = self.bury(&mut changes, name);
        }
        let outcome = result.map(|tombstone| {
            lock(&self.index).remove(name);
            self.finish_or_note(&tombstone);
        });
        self.fill_spares();
        outcome
    }

    /// Puts the tombstone in the place of a file's record.
    fn bury(&self, changes: &mut Changes, name: &str) -> Result<Record> {
        let record = self.record(name)?;
        let tombstone = tombstone_of(&record);
        self.replace(changes, &record, &tombstone, || format!("deleting {name:?}"))?;
        Ok(tombstone)
    }

    /// Gives a file another name. It replaces a file that has that name already. That file must not be open.
    pub fn rename(&self, from: &str, to: &str) -> Result<()> {
        let mut changes = self.begin()?;
        check_name(to)?;
        let record = self.record(from)?;
        if from == to {
            return Ok(());
        }
        let victim = lock(&self.index).get(to).cloned();
        // All files replaced earlier are buried by now (`begin`), so their ids need not be kept.
        let replaces = victim.as_ref().map(|victim| victim.id);
        let renamed = Record { name: to.to_owned(), replaces, ..next_version(&record) };
        self.replace(&mut changes, &record, &renamed, || format!("renaming {from:?} to {to:?}"))?;
        {
            let mut index = lock(&self.index);
            index.remove(from);
            index.insert(to.to_owned(), Arc::new(renamed));
        }
        if let Some(victim) = victim {
            let tombstone = tombstone_of(&victim);
            match self.write_record_at_all_costs(&tombstone) {
                Ok(()) => self.finish_or_note(&tombstone),
                Err(error) => {
                    self.notice(format!("{to:?} was replaced, but its old parts are still there: {error}"));
                    changes.unsettled.push(tombstone);
                }
            }
        }
        Ok(())
    }

    /// Notes `value` under `key` with a file, or takes the key away.
    pub fn set_attribute(&self, name: &str, key: &str, value: Option<&str>) -> Result<()> {
        let mut changes = self.begin()?;
        check_attribute_key(key)?;
        let record = self.record(name)?;
        if record.attributes.get(key).map(String::as_str) == value {
            return Ok(());
        }
        let mut changed = next_version(&record);
        match value {
            Some(value) => changed.attributes.insert(key.to_owned(), value.to_owned()),
            None => changed.attributes.remove(key),
        };
        self.replace(&mut changes, &record, &changed, || format!("setting attribute {key:?} of {name:?}"))?;
        lock(&self.index).insert(name.to_owned(), Arc::new(changed));
        Ok(())
    }

    /// Starts a change: checks that this process may, and ends what an earlier change left (rule 5).
    fn begin(&self) -> Result<MutexGuard<'_, Changes>> {
        self.refuse_unless_writer()?;
        let mut changes = lock(&self.changes);
        if changes.closed {
            return Err(Error::Closed);
        }
        if let Some(why) = &changes.failed {
            return Err(Error::ReadOnly { why: why.clone() });
        }
        while let Some(tombstone) = changes.unsettled.last() {
            self.write_record_at_all_costs(tombstone)?;
            self.finish_or_note(tombstone);
            changes.unsettled.pop();
        }
        Ok(changes)
    }

    pub(super) fn refuse_unless_writer(&self) -> Result<()> {
        match self.mode {
            OpenMode::Writer => Ok(()),
            OpenMode::Reader | OpenMode::Peek => {
                Err(Error::ReadOnly { why: "the array was opened for reading; open it for writing".to_owned() })
            }
        }
    }

    /// Puts `new` in the place of `old`. After an error `old` rules, or the outcome is unknown.
    fn replace(&self, changes: &mut Changes, old: &Record, new: &Record, what: impl Fn() -> String) -> Result<()> {
        match self.publish(changes, new, old, what) {
            Ok(()) => Ok(()),
            Err(ChangeFailure::TakenBack(error, restored)) => {
                lock(&self.index).insert(restored.name.clone(), Arc::from(restored));
                Err(error)
            }
            Err(failure) => Err(failure.into_error()),
        }
    }

    /// Makes `new` durable on every drive, or else `old` with a later generation (rule 11).
    fn publish(
        &self,
        changes: &mut Changes,
        new: &Record,
        old: &Record,
        what: impl Fn() -> String,
    ) -> Result<(), ChangeFailure> {
        let error = match self.stage_record(new) {
            Err(error) => return Err(ChangeFailure::Unchanged(error)),
            Ok(staged) => match staged.commit() {
                Ok(()) => return Ok(()),
                Err(error) => error,
            },
        };
        let restored = Record { generation: new.generation + 1, ..old.clone() };
        match self.write_record_at_all_costs(&restored) {
            Ok(()) => Err(ChangeFailure::TakenBack(error, Box::new(restored))),
            Err(second) => {
                changes.failed = Some(format!(
                    "{} failed ({error}) and could not be taken back ({second}); close the array and open it again",
                    what()
                ));
                Err(ChangeFailure::Unknown(Error::OutcomeUnknown { what: what(), source: Box::new(error) }))
            }
        }
    }

    /// Makes a version of a record durable on every drive.
    pub(super) fn write_record(&self, record: &Record) -> Result<()> {
        self.stage_record(record)?.commit()
    }

    /// Like `write_record`, also on a full drive (rule 12).
    fn write_record_at_all_costs(&self, record: &Record) -> Result<()> {
        match self.write_record(record) {
            Err(full) if is_full(&full) => {
                self.give_spares_up()?;
                let again = self.write_record(record);
                self.fill_spares();
                again
            }
            result => result,
        }
    }

    fn stage_record(&self, record: &Record) -> Result<Staged> {
        let invalid = |why: String| Error::invalid(format!("file {:?}", record.name), why);
        let bytes = record.to_bytes().map_err(invalid)?;
        let path = record_path(&record.id);
        Staged::write(&*self.platform, self.drives.iter().map(|drive| (&drive.fs, path.clone(), bytes.as_slice())))
    }

    /// Makes the empty parts and the length of a new file durable (rule 3).
    fn make_parts(&self, record: &Record) -> Result<()> {
        let path = part_path(&record.id);
        for drive in self.drives_of(&record.drives) {
            DriveFile::open(&drive.fs, &path, Access::CREATE).map_err(failed("create", &*drive.fs, &path))?;
        }
        for drive in self.drives_of(&record.length_drives) {
            length::create(&drive.fs, &record.id)?;
        }
        for drive in self.drives_of(&record.drives) {
            sync_dir(&*drive.fs, PARTS)?;
        }
        for drive in self.drives_of(&record.length_drives) {
            sync_dir(&*drive.fs, FILES)?;
        }
        Ok(())
    }

    /// Takes back what `make_parts` made. Files that cannot be removed stay, empty and without a record, until the next writer
    /// opens the array (rule 3). The caller reports why the file was not made.
    fn discard_parts(&self, record: &Record) {
        for drive in self.drives_of(&record.drives) {
            let _ = drive.fs.unlink(&part_path(&record.id));
        }
        for drive in self.drives_of(&record.length_drives) {
            let _ = drive.fs.unlink(&length_path(&record.id));
        }
    }

    /// The deletion is decided and durable. Its rest can wait for the next writer.
    fn finish_or_note(&self, tombstone: &Record) {
        if let Err(error) = self.finish_deletion(tombstone) {
            let name = &tombstone.name;
            self.notice(format!("{name:?} is deleted, but what it used is freed only at the next open: {error}"));
        }
    }

    /// Removes the parts, then the lengths, then the tombstone (rule 4), which is durable on every drive.
    pub(super) fn finish_deletion(&self, tombstone: &Record) -> Result<()> {
        let part = part_path(&tombstone.id);
        for drive in self.drives_of(&tombstone.drives) {
            let fs = &*drive.fs;
            let opened = absent_is_none(DriveFile::open(&drive.fs, &part, Access::WRITE));
            if let Some(file) = opened.map_err(failed("open", fs, &part))? {
                // A ring may hold the file open, but its space must be free now.
                fs.set_len(file.handle(), 0).map_err(failed("cut", fs, &part))?;
            }
            unlink_if_there(fs, &part)?;
        }
        for drive in self.drives_of(&tombstone.drives) {
            sync_dir(&*drive.fs, PARTS)?;
        }
        for drive in self.drives_of(&tombstone.length_drives) {
            unlink_if_there(&*drive.fs, &length_path(&tombstone.id))?;
            sync_dir(&*drive.fs, FILES)?;
        }
        for drive in &self.drives {
            unlink_if_there(&*drive.fs, &record_path(&tombstone.id))?;
        }
        for drive in &self.drives {
            sync_dir(&*drive.fs, FILES)?;
        }
        Ok(())
    }

    pub(super) fn drives_of<'a>(&'a self, indices: &'a [u16]) -> impl Iterator<Item = &'a super::Drive> {
        // No record has an index beyond the array: `scan.rs` refuses such a record, and `Record::first` makes none.
        indices.iter().filter_map(|&index| self.drives.get(usize::from(index)))
    }
}

/// The same record, one generation on.
fn next_version(record: &Record) -> Record {
    Record { generation: record.generation + 1, ..record.clone() }
}

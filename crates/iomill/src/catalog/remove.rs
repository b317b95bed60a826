//! Removing the parts and pages of deleted files (rule 7, C23). Non-goals: the set of open files, which the caller has.

use super::Catalog;
use super::journal::Journal;
use super::journal::commits::Ticket;
use super::log::record::{Extent, FileLife, LogRecord};
use super::record::{Record, part_path, sums_path};
use super::store::{PARTS, absent_is_none, failed, unlink_if_there};
use crate::error::Result;
use crate::sys::fs::{Access, DriveFile, sync_dir};
use crate::sys::fsyncs::Since;
use crate::sys::sync::lock;

/// Directories are synced when the parts of this many files have been unlinked.
const REMOVED_MOST: usize = 64;
/// This many files may wait until their deletions are durable. The thread that adds one more makes them durable.
const WAITING_MOST: usize = 256;

impl Catalog {
    /// Notes which change took the name from a file.
    pub(super) fn note_burial(&self, number: Option<u64>, ticket: Ticket) {
        lock(&self.buried).extend(number.map(|number| (number, ticket)));
    }

    /// Frees the space of a file that has lost its name, once that loss is durable (C21). The caller knows that no
    /// handle is left. A file with a name is left alone. What fails here is noted, and the next writer does it.
    pub fn remove_if_dying(&self, number: u64) {
        let buried = lock(&self.buried).remove(&number);
        let Ok((_open, journal)) = self.begin() else { return };
        if !self.with_files(|files| files.numbered(number).is_some_and(|file| file.life == FileLife::Dying)) {
            return;
        }
        // The name is gone in memory, so the change that took it is not after the last one.
        let ticket = buried.unwrap_or_else(|| journal.last());
        let are_many = {
            let mut waiting = lock(&self.waiting);
            waiting.entry(number).or_insert(Some(ticket));
            waiting.len() >= WAITING_MOST
        };
        // Where changes wait for an fsync, this does, too: then the space is free with the last handle.
        let committed = if are_many {
            journal.commit_all()
        } else if self.syncs_changes {
            journal.commit(ticket)
        } else {
            Ok(())
        };
        if let Err(error) = committed {
            self.notice(format!("the space of deleted files is freed only at the next opening: {error}"));
        }
        // After the file was added: a thread that has made the change durable meanwhile may have looked before.
        self.remove_waiting(journal);
    }

    /// Frees what those of the waiting files have that are durably without a name.
    pub(super) fn remove_waiting(&self, journal: &Journal) {
        let ready: Vec<u64> = {
            let mut waiting = lock(&self.waiting);
            let is_ready = |ticket: &Option<Ticket>| ticket.is_some_and(|ticket| journal.is_durable(ticket));
            let ready = waiting.iter_mut().filter(|(_, ticket)| is_ready(ticket));
            ready.map(|(number, ticket)| (ticket.take(), *number).1).collect()
        };
        if ready.is_empty() {
            return;
        }
        if let Err(error) = self.remove(journal, &ready) {
            if error.passes() {
                self.wait_again(journal, &ready);
            }
            self.notice(format!("the space of a deleted file is freed only at the next opening: {error}"));
        }
    }

    /// The next change tries again to remove what is left of these files.
    fn wait_again(&self, journal: &Journal, numbers: &[u64]) {
        let removed = lock(&self.removed).clone();
        let mut waiting = lock(&self.waiting);
        for number in numbers.iter().filter(|number| !removed.contains_key(number)) {
            // Those that are gone are not in it any more.
            waiting.entry(*number).and_modify(|ticket| *ticket = Some(journal.last()));
        }
    }

    fn remove(&self, journal: &Journal, numbers: &[u64]) -> Result<()> {
        let records: Vec<_> = numbers.iter().filter_map(|number| self.numbered(*number)).collect();
        let (large, small): (Vec<_>, Vec<_>) = records.iter().partition(|record| record.has_parts);
        let gone: Vec<u64> = small.iter().map(|record| record.number).collect();
        if !gone.is_empty() {
            let extents: Vec<Extent> = small.iter().filter_map(|record| record.extent).collect();
            // Whatever gets these pages has a later record.
            self.leave_pages(&extents, || say_gone(journal, &gone))?;
        }
        // Large ones stay until their directories are synced.
        let is_large = |number: &u64| large.iter().any(|record| record.number == *number);
        self.forget(numbers.iter().filter(|number| !is_large(number)));
        for record in large {
            let since = Since::now();
            self.unlink_parts(record)?;
            let are_many = {
                let mut removed = lock(&self.removed);
                removed.insert(record.number, since);
                removed.len() >= REMOVED_MOST
            };
            if are_many {
                self.settle_removed(journal);
            }
        }
        Ok(())
    }

    fn forget<'a>(&self, numbers: impl Iterator<Item = &'a u64>) {
        let mut waiting = lock(&self.waiting);
        for number in numbers {
            waiting.remove(number);
        }
    }

    fn unlink_parts(&self, record: &Record) -> Result<()> {
        let part = part_path(record.number);
        for drive in self.drives_of(&record.drives) {
            let fs = &*drive.fs;
            let opened = absent_is_none(DriveFile::open(&drive.fs, &part, Access::WRITE));
            if let Some(file) = opened.map_err(failed("open", fs, &part))? {
                // A ring may hold the file open, but its space must be free now.
                fs.set_len(file.handle(), 0).map_err(failed("cut", fs, &part))?;
            }
            unlink_if_there(fs, &part)?;
            if record.sums.is_some() {
                unlink_if_there(fs, &sums_path(record.number))?;
            }
        }
        Ok(())
    }

    /// Syncs the directories of parts, and records the removed files as gone. The caller keeps the catalog open.
    pub(super) fn settle_removed(&self, journal: &Journal) {
        let mut removed = std::mem::take(&mut *lock(&self.removed));
        let Some(since) = removed.values().min().copied() else { return };
        let numbers: Vec<u64> = removed.keys().copied().collect();
        let extents: Vec<Extent> = numbers.iter().filter_map(|number| self.numbered(*number)?.extent).collect();
        let synced = self.drives().iter().try_for_each(|drive| sync_dir(&*drive.fs, PARTS, since));
        let said = synced.and_then(|()| self.leave_pages(&extents, || say_gone(journal, &numbers)));
        match said {
            Ok(()) => self.forget(numbers.iter()),
            Err(error) if error.passes() => lock(&self.removed).append(&mut removed),
            Err(error) => self.notice(format!("deleted files are looked for again at the next opening: {error}")),
        }
    }

    /// Removes the parts and pages of dying files, after the opening.
    pub(super) fn remove_all_dying(&self) {
        let dying: Vec<u64> = self.with_files(|files| files.dying().collect());
        for number in dying {
            self.remove_if_dying(number);
        }
        if let Ok((_open, journal)) = self.begin() {
            self.settle_removed(journal);
        }
    }
}

/// Queues the records `gone`. They are durable with the next change.
fn say_gone(journal: &Journal, numbers: &[u64]) -> Result<()> {
    journal.change(false, |files, change| {
        for number in numbers.iter().filter(|number| files.numbered(**number).is_some()) {
            change.push(&LogRecord::Gone(*number));
        }
        Ok(())
    })?;
    Ok(())
}

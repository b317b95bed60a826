//! Changes of the catalog: create, delete, rename, attributes, lengths. Each is one group of the log, or a part of one
//! (C7).

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{PoisonError, RwLockReadGuard};

use super::journal::commits::Ticket;
use super::journal::{ChangeRecords, Journal};
use super::log::record::{ATTRIBUTE_MAX_BYTES, Extent, FileLife, FileRecord, LayoutRecord, LogRecord, SUMS_UNKNOWN};
use super::name::{check_attribute_key, check_name};
use super::record::{FileSpec, LENGTH_MAX, layout_of, new_file};
use super::state::files::Files;
use super::store::is_full;
use super::{Catalog, Store};
use crate::error::{Error, Result};
use crate::sys::sync::lock;

/// A drive with less free space makes no small segment for changes that need space.
const ROOM_BYTES: u64 = 1 << 20;

/// On which condition a name is given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum When {
    /// On none: a file that has the name loses it.
    #[default]
    Always,
    /// If no file has the name.
    Absent,
    /// If the file that has the name has this version.
    Version(u64),
}

/// A change that is made in memory. [`Catalog::settle`] makes it durable.
#[must_use = "it is not durable"]
#[derive(Debug)]
pub struct Queued<R> {
    /// What the change is about.
    pub result: R,
    pub(super) ticket: Ticket,
}

impl Catalog {
    /// Makes a file of length 0. Returns the file's number.
    pub fn queue_create(&self, name: &str, spec: &FileSpec) -> Result<Queued<u64>> {
        check_name(name)?;
        let layout = self.layout_record(spec, || format!("new file {name:?}"))?;
        let now_ns = self.platform.unix_ns();
        self.queue_names(true, |files, change| {
            check_condition(files, name, When::Absent)?;
            let layout = number_of(files, &layout, change)?;
            let file = new_file(files.new_number()?, name, layout, (spec.key, spec.sums), now_ns);
            change.push(&LogRecord::File(file));
            Ok(file.number)
        })
    }

    /// The layout of a new file, still without its number. `what` names the file in an error.
    pub(super) fn layout_record(&self, spec: &FileSpec, what: impl FnOnce() -> String) -> Result<LayoutRecord> {
        let of_labels = || self.drives().iter().map(|drive| drive.weight).collect();
        let weights: Vec<u32> = spec.weights.clone().unwrap_or_else(of_labels);
        layout_of(spec, &weights).map_err(|why| Error::invalid(what(), why))
    }

    /// Takes the name from a file. Its space is freed by [`Catalog::remove_if_dying`], when no handle
    /// is left. Returns the file's number.
    pub fn queue_delete(&self, name: &str) -> Result<Queued<u64>> {
        let queued = self.queue_names(false, |files, change| {
            let file = named(files, name)?;
            bury(change, &file);
            Ok(file.number)
        })?;
        self.note_burial(Some(queued.result), queued.ticket);
        Ok(queued)
    }

    /// Gives a file another name. Replaces an existing file of that name, if the condition holds for it. Returns the
    /// number of the replaced file, as [`Catalog::queue_delete`] does.
    pub fn queue_rename(&self, from: &str, to: &str, when: When) -> Result<Queued<Option<u64>>> {
        check_name(to)?;
        let queued = self.queue_names(true, |files, change| {
            let file = named(files, from)?;
            let victim = check_condition(files, to, when)?;
            if from == to {
                return Ok(None);
            }
            if let Some(victim) = &victim {
                bury(change, victim);
            }
            change.push(&LogRecord::File(FileRecord { name: to, ..file }));
            Ok(victim.map(|victim| victim.number))
        })?;
        self.note_burial(queued.result, queued.ticket);
        Ok(queued)
    }

    /// Notes `value` under `key` with a file, or takes the key away.
    pub fn queue_attribute(&self, name: &str, key: &str, value: Option<&str>) -> Result<Queued<()>> {
        check_attribute_key(key)?;
        self.queue_names(value.is_some(), |files, change| {
            let number = named(files, name)?.number;
            if files.attributes(number).find(|(known, _)| *known == key).map(|(_, value)| value) == value {
                return Ok(());
            }
            check_attributes(files.attributes(number), (key, value), || format!("{name:?}"))?;
            change.push(&LogRecord::Attribute { number, key, value });
            Ok(())
        })
    }

    /// Makes durable the length of a file, if it has changed, the place of its bytes, and its field of sums.
    pub(super) fn record_place(
        &self,
        number: u64,
        length: Option<u64>,
        extent: Option<Extent>,
        sums: Option<&[u8]>,
    ) -> Result<()> {
        if let Some(length) = length.filter(|length| *length > LENGTH_MAX) {
            return Err(Error::invalid(format!("length {length}"), format!("the most is {LENGTH_MAX}")));
        }
        let modified_ns = self.platform.unix_ns();
        // The bytes have their space, and the record replaces one of the same length: so a sync works on a full drive.
        self.change(false, |files, change| {
            let file = numbered(files, number)?;
            let (length, modified_ns) = length.map_or((file.length, file.modified_ns), |length| (length, modified_ns));
            change.push(&LogRecord::File(FileRecord { length, modified_ns, extent, sums, ..file }));
            Ok(())
        })
    }

    /// Says durably that the sums of a small file are to be made anew (C60).
    pub fn forget_sums(&self, number: u64) -> Result<()> {
        self.change(false, |files, change| {
            let sums = Some(&[SUMS_UNKNOWN][..]);
            change.push(&LogRecord::File(FileRecord { sums, ..numbered(files, number)? }));
            Ok(())
        })
    }

    /// Notes that a file was modified. That is durable with the next change.
    pub fn touch(&self, number: u64) -> Result<()> {
        let modified_ns = self.platform.unix_ns();
        let (_open, journal) = self.begin()?;
        self.queue(journal, false, |files, change| {
            change.push(&LogRecord::File(FileRecord { modified_ns, ..numbered(files, number)? }));
            Ok(())
        })?;
        Ok(())
    }

    /// Says durably that a file may have parts, before the first is made (C22).
    pub fn announce_parts(&self, number: u64) -> Result<()> {
        self.change(true, |files, change| {
            let file = numbered(files, number)?;
            if !file.has_parts {
                change.push(&LogRecord::File(FileRecord { has_parts: true, ..file }));
            }
            Ok(())
        })
    }

    /// Whether the catalog says that a file may have parts.
    pub fn has_announced(&self, number: u64) -> bool {
        self.with_files(|files| files.numbered(number).is_some_and(|file| file.has_parts))
    }

    /// Makes a change, durably.
    pub(super) fn change<R>(
        &self,
        needs_space: bool,
        plan: impl FnMut(&Files, &mut ChangeRecords) -> Result<R>,
    ) -> Result<R> {
        let (_open, journal) = self.begin()?;
        let (result, ticket) = self.queue(journal, needs_space, plan)?;
        self.commit(journal, ticket)?;
        Ok(result)
    }

    /// Makes a change of names or attributes in memory.
    fn queue_names<R>(
        &self,
        needs_space: bool,
        plan: impl FnMut(&Files, &mut ChangeRecords) -> Result<R>,
    ) -> Result<Queued<R>> {
        let (_open, journal) = self.begin()?;
        self.naming(|| {
            let (result, ticket) = self.queue(journal, needs_space, plan)?;
            Ok(Queued { result, ticket })
        })
    }

    /// Makes a change of names or attributes, and notes it for [`Catalog::sync_changes`]. Other calls can see it before
    /// it is noted, so a counter tells a sync that such a change is in progress.
    pub(super) fn naming<R>(&self, make: impl FnOnce() -> Result<Queued<R>>) -> Result<Queued<R>> {
        let under_way = UnderWay::begin(&self.naming);
        let queued = make()?;
        let mut named = lock(&self.named);
        *named = queued.ticket.max(*named);
        drop((named, under_way));
        Ok(queued)
    }

    /// Makes a change durable, or leaves that to the next sync (C19).
    pub fn settle<R>(&self, queued: Queued<R>) -> Result<R> {
        let Queued { result, ticket } = queued;
        if !self.syncs_changes {
            return Ok(result);
        }
        // A close has made all changes durable, or has failed.
        let is_closed = self.is_closed.read().unwrap_or_else(PoisonError::into_inner);
        let journal = self.journal()?;
        if *is_closed {
            journal.commit(ticket)?
        } else {
            self.commit(journal, ticket)?
        }
        Ok(result)
    }

    /// Makes all changes of names and attributes durable that can be seen. Without [`Catalog::set_syncs_changes`] those
    /// of other threads may not be durable yet.
    pub fn sync_changes(&self) -> Result<()> {
        let Store::Journal(journal) = &self.store else { return Ok(()) };
        // Read before the ticket: a visible change is in progress, or noted.
        let is_naming = self.naming.load(Ordering::SeqCst) > 0;
        let ticket = if is_naming { journal.last() } else { *lock(&self.named) };
        if journal.is_durable(ticket) {
            return Ok(());
        }
        let (_open, journal) = self.begin()?;
        self.commit(journal, ticket)
    }

    /// Makes a change durable, and removes what was deleted before it.
    fn commit(&self, journal: &Journal, ticket: Ticket) -> Result<()> {
        journal.commit(ticket)?;
        self.remove_waiting(journal);
        Ok(())
    }

    pub(super) fn queue<R>(
        &self,
        journal: &Journal,
        needs_space: bool,
        mut plan: impl FnMut(&Files, &mut ChangeRecords) -> Result<R>,
    ) -> Result<(R, Ticket)> {
        journal.check_known()?;
        match journal.change(needs_space, &mut plan) {
            Err(error) if is_full(&error) && self.make_room(journal) => journal.change(needs_space, plan),
            changed => changed,
        }
    }

    /// Looks for space for the log. Whether there is room now.
    fn make_room(&self, journal: &Journal) -> bool {
        let voters = journal.voters();
        let has_found = voters.iter().filter(|drive| self.find_space(journal, **drive as u16)).count() > 0;
        // The last space stays for deletes (C30).
        let has_free = |drive: &usize| {
            let ground = self.drives().get(*drive).map(|drive| drive.fs.ground());
            ground.is_some_and(|ground| ground.is_ok_and(|ground| ground.free_bytes >= ROOM_BYTES))
        };
        let is_roomy = voters.iter().all(has_free);
        (has_found || is_roomy) && journal.make_room(is_roomy)
    }

    /// Starts a change: checks that this process may, and keeps the array from being closed.
    pub(super) fn begin(&self) -> Result<(RwLockReadGuard<'_, bool>, &Journal)> {
        let journal = self.journal()?;
        let is_closed = self.is_closed.read().unwrap_or_else(PoisonError::into_inner);
        if *is_closed { Err(Error::Closed) } else { Ok((is_closed, journal)) }
    }

    pub(super) fn journal(&self) -> Result<&Journal> {
        match &self.store {
            Store::Journal(journal) => Ok(journal),
            Store::Files(_) => Err(Error::read_only("the array was opened for reading").advise("open it for writing")),
        }
    }
}

/// Counts a change of names in progress.
struct UnderWay<'a>(&'a AtomicUsize);

impl<'a> UnderWay<'a> {
    fn begin(count: &'a AtomicUsize) -> UnderWay<'a> {
        // SeqCst, here and below: pairs with the load in `sync_changes`.
        count.fetch_add(1, Ordering::SeqCst);
        UnderWay(count)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

fn named<'a>(files: &'a Files, name: &str) -> Result<FileRecord<'a>> {
    files.named(name).ok_or_else(|| Error::NotFound { name: name.to_owned() })
}

fn numbered(files: &Files, number: u64) -> Result<FileRecord<'_>> {
    files.numbered(number).ok_or_else(|| Error::NotFound { name: format!("(file {number})") })
}

/// An error if attributes have too many bytes once `key` has `value`. `of` names the file in it.
pub(super) fn check_attributes<'a>(
    known: impl Iterator<Item = (&'a str, &'a str)>,
    (key, value): (&str, Option<&str>),
    of: impl FnOnce() -> String,
) -> Result<()> {
    let others = known.filter(|(known, _)| *known != key);
    let others: usize = others.map(|(key, value)| key.len() + value.len()).sum();
    let bytes = others + value.map_or(0, |value| key.len() + value.len());
    if bytes <= ATTRIBUTE_MAX_BYTES {
        return Ok(());
    }
    let why = format!("all attributes of a file have at most {ATTRIBUTE_MAX_BYTES} bytes together");
    Err(Error::invalid(format!("{bytes} bytes of attributes of {}", of()), why))
}

/// The file that has a name, if the condition holds for it. Checked where the change is applied (C16).
pub(super) fn check_condition<'a>(files: &'a Files, name: &str, when: When) -> Result<Option<FileRecord<'a>>> {
    let found = files.named(name);
    let version = found.as_ref().map(|file| file.number);
    match when {
        When::Absent if found.is_some() => Err(Error::Exists { name: name.to_owned() }),
        When::Version(expected) if version != Some(expected) => {
            Err(Error::Conflict { name: name.to_owned(), expected, found: version })
        }
        When::Always | When::Absent | When::Version(_) => Ok(found),
    }
}

/// Takes the name from a file (C23).
pub(super) fn bury(change: &mut ChangeRecords, file: &FileRecord<'_>) {
    change.push(&LogRecord::File(FileRecord { life: FileLife::Dying, name: "", ..*file }));
}

/// The number of a layout, which is added if there is none like it.
pub(super) fn number_of(files: &Files, layout: &LayoutRecord, change: &mut ChangeRecords) -> Result<u32> {
    if let Some(known) = files.layout_like(layout) {
        return Ok(known.number);
    }
    let highest = files.layouts().map(|layout| layout.number).max().unwrap_or(0);
    let number = highest.checked_add(1).ok_or_else(|| {
        let why = format!("it has a layout with the number {highest}, and no later one can have a higher number");
        Error::corrupt("the catalog", why)
            .advise("export the catalog as text, give its layouts lower numbers, and import it again")
    })?;
    change.push(&LogRecord::Layout(LayoutRecord { number, ..layout.clone() }));
    Ok(number)
}

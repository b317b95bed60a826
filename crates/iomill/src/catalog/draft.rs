//! [`Draft`]: a file without a name, and its publication, which gives it one. Non-goals: its bytes, which are stored
//! like those of any file.
//!
//! Rules (C40):
//! 1. A draft has a number, which is reserved in memory and in no record: after a crash numbers continue much higher
//!    (C24).
//! 2. Before it has parts, a record says durably that the file is dying and may have parts (C22, C23). So the next
//!    writer removes the parts of a draft.
//! 3. The place of its bytes, and its durable length, are noted in memory. Pages of a draft are in no record, so they
//!    are free after a crash.
//! 4. One group gives it the name, with its length, its pages and its attributes. The same group takes the name from
//!    the file that had it. The content is durable before the group (C20).
//! 5. A draft becomes published under its lock. So a move of its bytes is recorded either in the note or in the log.
//! 6. Attributes that do not fit into that group are recorded in earlier ones, and so is the draft, as dying (rule 2). A
//!    later try of a publication brings these records up to the note.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use super::Catalog;
use super::change::{Queued, When, bury, check_attributes, check_condition, number_of};
use super::journal::{ChangeRecords, Journal};
use super::log::record::{Extent, FileLife, FileRecord, LayoutRecord, LogRecord, SUMS_IN_PARTS, SUMS_UNKNOWN};
use super::name::{check_attribute_key, check_name};
use super::record::{FileSpec, Record, file_id, new_file};
use super::state::files::Files;
use crate::error::{Error, Result};
use crate::sys::sync::{Mutex, lock};

/// Most bytes of attributes that a publication records in its own group. The group has room for them and the rest.
const PUBLISHED_MOST_BYTES: usize = 96 << 10;
/// An earlier group gets no more attributes when it has this many bytes. The last one may have 64 KiB.
const RECORDED_BYTES: usize = 32 << 10;
/// Bytes of an attribute's record without key and value.
const ATTRIBUTE_BYTES: usize = 17;

/// See the module.
#[derive(Debug)]
pub struct Draft {
    number: u64,
    layout: LayoutRecord,
    key: u64,
    has_sums: bool,
    created_ns: u64,
    /// Set when it is published.
    name: OnceLock<String>,
    note: Mutex<Note>,
}

/// The note of a draft (rule 3). After the publication it does not change.
#[derive(Debug, Default)]
struct Note {
    is_published: bool,
    has_parts: bool,
    /// Its durable length in bytes.
    length: u64,
    extent: Option<Extent>,
    /// Its field of sums, if its pages have them.
    sums: Option<Box<[u8]>>,
    attributes: BTreeMap<String, String>,
    /// Whether the log has attributes of the draft (rule 6).
    has_recorded: bool,
}

impl Note {
    /// Bytes of the records of all attributes.
    fn attribute_bytes(&self) -> usize {
        self.attributes.iter().map(|(key, value)| ATTRIBUTE_BYTES + key.len() + value.len()).sum()
    }

    /// Adds records of attributes that differ from those in the log, up to a bound. Whether that is all of them.
    fn push_changed(&self, number: u64, files: &Files, change: &mut ChangeRecords) -> bool {
        let recorded: BTreeMap<&str, &str> = files.attributes(number).collect();
        let noted = self.attributes.iter().map(|(key, value)| (key.as_str(), value.as_str()));
        let changed = noted.filter(|(key, value)| recorded.get(key) != Some(value));
        let gone = recorded.keys().filter(|key| !self.attributes.contains_key(**key));
        for (key, value) in gone.map(|key| (*key, None)).chain(changed.map(|(key, value)| (key, Some(value)))) {
            if change.bytes() >= RECORDED_BYTES {
                return false;
            }
            change.push(&LogRecord::Attribute { number, key, value });
        }
        true
    }
}

impl Draft {
    /// Its number: the version that the name will have.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Its name, once it is published.
    pub fn name(&self) -> Option<&str> {
        self.name.get().map(String::as_str)
    }

    /// Whether it still has no name.
    pub fn is_unpublished(&self) -> bool {
        !lock(&self.note).is_published
    }

    /// Whether its publication has named these pages.
    pub fn has_published(&self, extent: Extent) -> bool {
        let note = lock(&self.note);
        note.is_published && note.extent == Some(extent)
    }

    /// Notes the new place of its bytes, which are durable there. `false` if it is published: then the log must say so.
    pub fn note_place(&self, extent: Option<Extent>, sums: Option<&[u8]>) -> bool {
        let mut note = lock(&self.note);
        if !note.is_published {
            (note.extent, note.sums) = (extent, sums.map(Into::into));
        }
        !note.is_published
    }

    /// Notes the durable length, and the place of the bytes. `false` if the draft is published: then the log must
    /// record them.
    pub fn note_length(&self, length: u64, extent: Option<Extent>, sums: Option<&[u8]>) -> bool {
        let mut note = lock(&self.note);
        if !note.is_published {
            (note.length, note.extent, note.sums) = (length, extent, sums.map(Into::into));
        }
        !note.is_published
    }

    /// Notes that the sums of its few pages are not known (C60). `false` if it is published: then the log must say so.
    pub fn note_no_sums(&self) -> bool {
        let mut note = lock(&self.note);
        if !note.is_published {
            note.sums = Some([SUMS_UNKNOWN].into());
        }
        !note.is_published
    }

    /// Notes an attribute for the publication, or takes it away.
    pub fn set_attribute(&self, key: &str, value: Option<&str>) -> Result<()> {
        check_attribute_key(key)?;
        let mut note = lock(&self.note);
        check_unpublished(&note)?;
        let known = note.attributes.iter().map(|(key, value)| (key.as_str(), value.as_str()));
        check_attributes(known, (key, value), || "a draft".to_owned())?;
        match value {
            Some(value) => drop(note.attributes.insert(key.to_owned(), value.to_owned())),
            None => drop(note.attributes.remove(key)),
        }
        Ok(())
    }

    /// A record of it, still without the number of its layout.
    fn record<'a>(&self, note: &Note, name: &'a str, layout: u32) -> FileRecord<'a> {
        FileRecord {
            has_parts: note.has_parts,
            life: if name.is_empty() { FileLife::Dying } else { FileLife::Live },
            ..new_file(self.number, name, layout, (self.key, self.has_sums), self.created_ns)
        }
    }
}

fn check_unpublished(note: &Note) -> Result<()> {
    if note.is_published {
        return Err(Error::invalid("a draft", "it has been published already").advise("make another one"));
    }
    Ok(())
}

impl Catalog {
    /// Reserves the number of a file without a name (rule 1). Returns its note and its record, with a placeholder as
    /// its name.
    pub fn new_draft(&self, spec: &FileSpec) -> Result<(Arc<Draft>, Arc<Record>)> {
        let layout = self.layout_record(spec, || "a draft".to_owned())?;
        let (_open, journal) = self.begin()?;
        journal.check_known()?;
        let number = journal.reserve_number()?;
        let (key, created_ns) = (spec.key, self.platform.unix_ns());
        let (drives, weights) = layout.drives.iter().map(|(drive, weight)| (*drive, u32::from(*weight))).unzip();
        let record = Record {
            id: file_id(self.id, number),
            number,
            name: format!("(draft {number})"),
            length: 0,
            created_ns,
            modified_ns: created_ns,
            layout: layout.kind,
            block_bytes: layout.block_bytes,
            drives,
            weights,
            key,
            has_parts: false,
            extent: None,
            sums: spec.sums.then(|| [SUMS_IN_PARTS].into()),
            attributes: BTreeMap::new(),
        };
        let has_sums = spec.sums;
        let draft = Draft { number, layout, key, has_sums, created_ns, name: OnceLock::new(), note: Mutex::default() };
        Ok((Arc::new(draft), Arc::new(record)))
    }

    /// Says durably that a draft may have parts, before the first is made (rule 2).
    pub fn announce_draft(&self, draft: &Draft) -> Result<()> {
        let mut note = lock(&draft.note);
        if note.is_published {
            return self.announce_parts(draft.number);
        }
        let announced = Note { has_parts: true, ..Note::default() };
        self.change(true, |files, change| {
            let layout = number_of(files, &draft.layout, change)?;
            change.push(&LogRecord::File(draft.record(&announced, "", layout)));
            Ok(())
        })?;
        note.has_parts = true;
        Ok(())
    }

    /// Records the attributes of a draft before its publication, if they are too many for that group (rule 6).
    fn record_attributes(&self, journal: &Journal, draft: &Draft, note: &mut Note) -> Result<()> {
        let mut is_all = !note.has_recorded && note.attribute_bytes() <= PUBLISHED_MOST_BYTES;
        while !is_all {
            (is_all, _) = self.queue(journal, true, |files, change| {
                if !note.has_recorded {
                    let layout = number_of(files, &draft.layout, change)?;
                    change.push(&LogRecord::File(draft.record(note, "", layout)));
                }
                Ok(note.push_changed(draft.number, files, change))
            })?;
            note.has_recorded = true;
        }
        Ok(())
    }

    /// An error if a name could not be given on this condition now.
    pub fn check_condition(&self, name: &str, when: When) -> Result<()> {
        check_name(name)?;
        self.check_known()?;
        self.with_files(|files| check_condition(files, name, when).map(drop))
    }

    /// Gives a draft a name, with the content of its note (rule 4). Returns the number of the file that had the name,
    /// as [`Catalog::queue_delete`] does. The name is not durable yet.
    pub fn queue_publication(&self, draft: &Draft, name: &str, when: When) -> Result<Queued<Option<u64>>> {
        check_name(name)?;
        let mut note = lock(&draft.note);
        check_unpublished(&note)?;
        let (_open, journal) = self.begin()?;
        self.record_attributes(journal, draft, &mut note)?;
        let modified_ns = self.platform.unix_ns();
        let plan = |files: &Files, change: &mut ChangeRecords| {
            let victim = check_condition(files, name, when)?;
            victim.iter().for_each(|victim| bury(change, victim));
            let layout = number_of(files, &draft.layout, change)?;
            let (length, extent) = (note.length, note.extent);
            let record = draft.record(&note, name, layout);
            let sums = record.sums.map(|none| note.sums.as_deref().unwrap_or(none));
            let record = FileRecord { length, extent, modified_ns, sums, ..record };
            change.push(&LogRecord::File(record));
            for (key, value) in note.attributes.iter().filter(|_| !note.has_recorded) {
                change.push(&LogRecord::Attribute { number: draft.number, key, value: Some(value) });
            }
            Ok(victim.map(|victim| victim.number))
        };
        let queued = self.naming(|| {
            let (result, ticket) = self.queue(journal, true, plan)?;
            Ok(Queued { result, ticket })
        })?;
        note.is_published = true;
        let _set_once = draft.name.set(name.to_owned());
        self.note_burial(queued.result, queued.ticket);
        Ok(queued)
    }
}

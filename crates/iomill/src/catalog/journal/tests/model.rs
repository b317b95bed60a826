//! A model of the log's users: changes of a few files, and what the files show. The tests of the journal and those of
//! the simulator share it.

use std::collections::BTreeMap;

use super::{FileLife, FileRecord, Files, Journal, Layout, LayoutRecord, LogRecord, Result, Ticket};

/// A change of a file. Numbers stand for names.
#[derive(Clone, Debug)]
pub enum Step {
    Create(u8),
    Rename(u8, u8),
    Delete(u8),
    /// An attribute of this number of bytes.
    Attribute(u8, u16),
    /// Forgets all deleted files.
    Bury,
}

pub fn layout() -> LayoutRecord {
    LayoutRecord { number: 1, kind: Layout::Hash, block_bytes: 65536, drives: vec![(0, 10)] }
}

pub fn name_of(number: u8) -> String {
    format!("a/directory/file {number}")
}

/// Makes a change, as far as it has a sense. Its ticket is committed later.
pub fn apply(journal: &Journal, step: &Step) -> Result<Ticket> {
    let needs_space = !matches!(step, Step::Delete(_) | Step::Bury);
    let ((), ticket) = journal.change(needs_space, |files, change| {
        match step {
            Step::Create(name) => {
                let name = name_of(*name);
                if files.named(&name).is_some() {
                    return Ok(());
                }
                if files.layout_like(&layout()).is_none() {
                    change.push(&LogRecord::Layout(layout()));
                }
                let number = files.next_number();
                change.push(&LogRecord::File(FileRecord {
                    number,
                    length: number,
                    created_ns: 1,
                    modified_ns: 2,
                    key: 3,
                    layout: 1,
                    life: FileLife::Live,
                    has_parts: false,
                    name: &name,
                    extent: None,
                    sums: None,
                }));
            }
            Step::Rename(from, to) if from != to => {
                let (from, to) = (name_of(*from), name_of(*to));
                let Some(file) = files.named(&from) else { return Ok(()) };
                if let Some(victim) = files.named(&to) {
                    change.push(&LogRecord::File(FileRecord { life: FileLife::Dying, name: "", ..victim }));
                }
                change.push(&LogRecord::File(FileRecord { name: &to, ..file }));
            }
            Step::Delete(name) => {
                if let Some(file) = files.named(&name_of(*name)) {
                    change.push(&LogRecord::File(FileRecord { life: FileLife::Dying, name: "", ..file }));
                }
            }
            Step::Attribute(name, len) => {
                if let Some(file) = files.named(&name_of(*name)) {
                    let value = "v".repeat(usize::from(*len));
                    change.push(&LogRecord::Attribute { number: file.number, key: "k", value: Some(&value) });
                }
            }
            Step::Bury => files.dying().for_each(|number| change.push(&LogRecord::Gone(number))),
            Step::Rename(..) => {}
        }
        Ok(())
    })?;
    Ok(ticket)
}

/// Live files by name, each with its number and the length of its attribute; and dying files.
pub type View = (BTreeMap<String, (u64, usize)>, Vec<u64>);

/// What the files show.
pub fn view(files: &Files) -> View {
    let value = |number| files.attributes(number).map(|(_, value)| value.len()).sum();
    let live = files.from("").map(|file| (file.name.to_owned(), (file.number, value(file.number)))).collect();
    (live, files.dying().collect())
}

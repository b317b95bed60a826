//! [`Files`]: all files, with their indexes, and what else the log says.
//!
//! Goals: a record has the same effect at replay and later. Non-goals: whether a change is allowed, which its caller
//! decides, and the bytes of records.
//!
//! At replay names are not indexed, because records may be older than the checkpoint says (C26, C28). [`Files::index`]
//! does it at the end. The order of names is made when it is first asked for: sorting a million names takes longer than
//! reading them, and most programs list little.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::OnceLock;

use super::order::Order;
use super::slots::SlotTable;
use crate::catalog::log::record::{DriveRole, Extent, FileLife, FileRecord, LayoutRecord, LogFault, LogRecord};
use crate::error::{Error, Result};
use crate::sys::hash::xxh3_64;

/// All files have numbers below this. No array reaches it, but a log or a text from elsewhere may claim so.
pub const NUMBERS_END: u64 = 1 << 63;

/// Slots of a chunk, so that no vector of a million entries is ever moved.
const CHUNK: usize = 1024;

/// What memory holds of a file.
#[derive(Clone, Debug)]
struct StoredFile {
    /// Zero if the slot is free.
    number: u64,
    length: u64,
    created_ns: u64,
    modified_ns: u64,
    key: u64,
    name: Box<str>,
    /// No pages: none.
    extent: Extent,
    layout: u32,
    is_dying: bool,
    has_parts: bool,
    /// Its field of sums is in `Files::sums`.
    has_sums: bool,
}

const NO_EXTENT: Extent = Extent { drive: 0, shared: 0, page: 0, pages: 0 };

impl StoredFile {
    fn of(file: &FileRecord<'_>, name: Box<str>) -> StoredFile {
        StoredFile {
            number: file.number,
            length: file.length,
            created_ns: file.created_ns,
            modified_ns: file.modified_ns,
            key: file.key,
            name,
            extent: file.extent.unwrap_or(NO_EXTENT),
            layout: file.layout,
            is_dying: file.life == FileLife::Dying,
            has_parts: file.has_parts,
            has_sums: file.sums.is_some(),
        }
    }

    fn record<'a>(&'a self, sums: &'a HashMap<u64, Box<[u8]>>) -> FileRecord<'a> {
        FileRecord {
            number: self.number,
            length: self.length,
            created_ns: self.created_ns,
            modified_ns: self.modified_ns,
            key: self.key,
            layout: self.layout,
            life: if self.is_dying { FileLife::Dying } else { FileLife::Live },
            has_parts: self.has_parts,
            name: &self.name,
            extent: (self.extent.pages > 0).then_some(self.extent),
            sums: if self.has_sums { sums.get(&self.number).map(|field| &**field) } else { None },
        }
    }
}

/// Entries by slot.
#[derive(Debug, Default)]
struct Slab {
    chunks: Vec<Vec<StoredFile>>,
    free: Vec<u32>,
}

impl Slab {
    fn get(&self, slot: u32) -> &StoredFile {
        &self.chunks[slot as usize / CHUNK][slot as usize % CHUNK]
    }

    fn get_mut(&mut self, slot: u32) -> &mut StoredFile {
        &mut self.chunks[slot as usize / CHUNK][slot as usize % CHUNK]
    }

    fn end(&self) -> u32 {
        self.chunks.last().map_or(0, |last| ((self.chunks.len() - 1) * CHUNK + last.len()) as u32)
    }

    fn put(&mut self, entry: StoredFile) -> u32 {
        if let Some(slot) = self.free.pop() {
            *self.get_mut(slot) = entry;
            return slot;
        }
        let slot = self.end();
        if (slot as usize).is_multiple_of(CHUNK) {
            self.chunks.push(Vec::with_capacity(CHUNK));
        }
        if let Some(last) = self.chunks.last_mut() {
            last.push(entry);
        }
        slot
    }

    fn free(&mut self, slot: u32) {
        let entry = self.get_mut(slot);
        (entry.number, entry.name) = (0, Box::default());
        self.free.push(slot);
    }
}

/// The catalog in memory.
#[derive(Debug, Default)]
pub struct Files {
    slab: Slab,
    by_number: SlotTable,
    by_name: SlotTable,
    /// The names in order, once it was asked for.
    order: OnceLock<Order>,
    /// Numbers of files, sorted by name as well as was known: for `order`.
    hint: Vec<u64>,
    is_indexed: bool,
    attributes: HashMap<u64, BTreeMap<String, String>>,
    /// The fields of sums, by the number of their file.
    sums: HashMap<u64, Box<[u8]>>,
    layouts: BTreeMap<u32, LayoutRecord>,
    shared: BTreeMap<(u16, u16), u32>,
    dying: BTreeSet<u64>,
    drives: Vec<(DriveRole, bool)>,
    next: u64,
}

fn number_hash(number: u64) -> u64 {
    // Numbers are in order, so their bits must be mixed.
    xxh3_64(&number.to_le_bytes())
}

impl Files {
    /// Takes a record. `is_late` says that the record may be older than the state (C27). An error means damage, and
    /// changes nothing.
    pub fn apply(&mut self, record: &LogRecord<'_>, is_late: bool) -> Result<(), LogFault> {
        match record {
            LogRecord::Layout(layout) => self.take_layout(layout),
            LogRecord::File(file) => self.take_file(file),
            LogRecord::Attribute { number, key, value } => self.take_attribute(*number, key, *value, is_late),
            LogRecord::Gone(number) => self.take_gone(*number, is_late),
            LogRecord::Drives { epoch: _, drives } => {
                self.drives = drives.clone();
                Ok(())
            }
            LogRecord::Shared { drive, shared, pages } => {
                self.shared.insert((*drive, *shared), *pages);
                Ok(())
            }
            LogRecord::Numbers(next) => {
                self.next = self.next.max(*next);
                Ok(())
            }
            LogRecord::End { next, .. } => {
                self.next = self.next.max(*next);
                Ok(())
            }
            LogRecord::Closed | LogRecord::Order(_) | LogRecord::Continues(_) => Ok(()),
        }
    }

    fn take_layout(&mut self, layout: &LayoutRecord) -> Result<(), LogFault> {
        match self.layouts.get(&layout.number) {
            Some(known) if known != layout => {
                Err(LogFault::Damaged(format!("layout {} occurs twice and differs", layout.number)))
            }
            Some(_) => Ok(()),
            None => {
                self.layouts.insert(layout.number, layout.clone());
                Ok(())
            }
        }
    }

    fn take_file(&mut self, file: &FileRecord<'_>) -> Result<(), LogFault> {
        if !self.layouts.contains_key(&file.layout) {
            return Err(LogFault::Damaged(format!("file {} has the unknown layout {}", file.number, file.layout)));
        }
        self.next = self.next.max(file.number.saturating_add(1));
        match file.life {
            FileLife::Live => drop(self.dying.remove(&file.number)),
            FileLife::Dying => drop(self.dying.insert(file.number)),
        }
        match file.sums {
            Some(field) => drop(self.sums.insert(file.number, field.into())),
            None => drop(self.sums.remove(&file.number)),
        }
        let Some(slot) = self.slot(file.number) else {
            let slot = self.slab.put(StoredFile::of(file, file.name.into()));
            let slab = &self.slab;
            self.by_number.insert(number_hash(file.number), slot, |slot| number_hash(slab.get(slot).number));
            self.enter_name(slot);
            return Ok(());
        };
        if *self.slab.get(slot).name == *file.name {
            let entry = self.slab.get_mut(slot);
            let name = std::mem::take(&mut entry.name);
            *entry = StoredFile::of(file, name);
            return Ok(());
        }
        self.leave_name(slot);
        *self.slab.get_mut(slot) = StoredFile::of(file, file.name.into());
        self.enter_name(slot);
        Ok(())
    }

    fn take_attribute(&mut self, number: u64, key: &str, value: Option<&str>, is_late: bool) -> Result<(), LogFault> {
        if self.slot(number).is_none() {
            let damage = || LogFault::Damaged(format!("an attribute of file {number}, which is not there"));
            return if is_late { Ok(()) } else { Err(damage()) };
        }
        let attributes = self.attributes.entry(number).or_default();
        match value {
            Some(value) => drop(attributes.insert(key.to_owned(), value.to_owned())),
            None => drop(attributes.remove(key)),
        }
        if attributes.is_empty() {
            self.attributes.remove(&number);
        }
        Ok(())
    }

    fn take_gone(&mut self, number: u64, is_late: bool) -> Result<(), LogFault> {
        let Some(slot) = self.slot(number) else {
            let damage = || LogFault::Damaged(format!("a record removes file {number}, but there is no such file"));
            return if is_late { Ok(()) } else { Err(damage()) };
        };
        self.leave_name(slot);
        let slab = &self.slab;
        self.by_number.remove(number_hash(number), slot, |slot| number_hash(slab.get(slot).number));
        self.slab.free(slot);
        self.attributes.remove(&number);
        self.sums.remove(&number);
        self.dying.remove(&number);
        Ok(())
    }

    fn slot(&self, number: u64) -> Option<u32> {
        self.by_number.find(number_hash(number), |slot| self.slab.get(slot).number == number)
    }

    fn slot_of_name(&self, name: &str) -> Option<u32> {
        self.by_name.find(xxh3_64(name.as_bytes()), |slot| *self.slab.get(slot).name == *name)
    }

    fn enter_name(&mut self, slot: u32) {
        let slab = &self.slab;
        let name = &slab.get(slot).name;
        if self.is_indexed && !name.is_empty() {
            let hash_of = |slot| xxh3_64(slab.get(slot).name.as_bytes());
            self.by_name.insert(xxh3_64(name.as_bytes()), slot, hash_of);
            if let Some(order) = self.order.get_mut() {
                order.insert(slot, |slot| &slab.get(slot).name);
            }
        }
    }

    fn leave_name(&mut self, slot: u32) {
        let slab = &self.slab;
        let name = &slab.get(slot).name;
        if self.is_indexed && !name.is_empty() {
            let hash_of = |slot| xxh3_64(slab.get(slot).name.as_bytes());
            self.by_name.remove(xxh3_64(name.as_bytes()), slot, hash_of);
            if let Some(order) = self.order.get_mut() {
                order.remove(slot, |slot| &slab.get(slot).name);
            }
        }
    }

    /// Ends a replay: indexes the names. `hint` are numbers of files, sorted by name as well as is known. An error
    /// means damage (C28).
    pub fn index(&mut self, hint: Vec<u64>) -> Result<(), LogFault> {
        let hash_of = |slot: u32| xxh3_64(self.slab.get(slot).name.as_bytes());
        let mut by_name = SlotTable::with_capacity(self.by_number.len());
        for slot in (0..self.slab.end()).filter(|slot| !self.slab.get(*slot).name.is_empty()) {
            let (hash, entry) = (hash_of(slot), self.slab.get(slot));
            if let Some(twin) = by_name.find(hash, |other| self.slab.get(other).name == entry.name) {
                let (first, second) = (self.slab.get(twin).number, entry.number);
                let what = format!("files {first} and {second} have the same name {:?}", entry.name);
                return Err(LogFault::Damaged(what));
            }
            by_name.insert(hash, slot, hash_of);
        }
        (self.by_name, self.hint, self.is_indexed) = (by_name, hint, true);
        Ok(())
    }

    /// The names in order. The first call sorts them.
    fn order(&self) -> &Order {
        self.order.get_or_init(|| {
            let name_of = |slot: u32| &*self.slab.get(slot).name;
            let mut is_placed = vec![false; self.slab.end() as usize];
            let mut sorted: Vec<u32> = Vec::with_capacity(self.by_name.len());
            for slot in self.hint.iter().filter_map(|number| self.slot(*number)) {
                let fits = sorted.last().is_none_or(|last| name_of(*last) < name_of(slot));
                if fits && !name_of(slot).is_empty() && !is_placed[slot as usize] {
                    is_placed[slot as usize] = true;
                    sorted.push(slot);
                }
            }
            let named = (0..self.slab.end()).filter(|slot| !name_of(*slot).is_empty());
            let rest = named.filter(|slot| !is_placed[*slot as usize]);
            // With the names beside the slots the sort follows no slot to its name, which takes a fifth of the time.
            let mut rest: Vec<(&str, u32)> = rest.map(|slot| (name_of(slot), slot)).collect();
            rest.sort_unstable();
            let rest: Vec<u32> = rest.into_iter().map(|(_, slot)| slot).collect();
            Order::from_sorted(&merge(&sorted, &rest, name_of))
        })
    }

    /// The file of that name.
    pub fn named(&self, name: &str) -> Option<FileRecord<'_>> {
        self.slot_of_name(name).map(|slot| self.record(slot))
    }

    /// The file of that number, also a dying one.
    pub fn numbered(&self, number: u64) -> Option<FileRecord<'_>> {
        self.slot(number).map(|slot| self.record(slot))
    }

    fn record(&self, slot: u32) -> FileRecord<'_> {
        self.slab.get(slot).record(&self.sums)
    }

    /// The files that lost their names (C23).
    pub fn dying(&self) -> impl Iterator<Item = u64> {
        self.dying.iter().copied()
    }

    /// Files in the order of their names, from the first that is not before `name`.
    pub fn from(&self, name: &str) -> impl Iterator<Item = FileRecord<'_>> {
        self.ordered_from(&|known| known < name)
    }

    /// Files in the order of their names, from the first one that `is_before` rejects. All names that it accepts
    /// precede the others.
    pub fn ordered_from<'a>(
        &'a self,
        is_before: &dyn Fn(&str) -> bool,
    ) -> impl Iterator<Item = FileRecord<'a>> + use<'a> {
        let order = self.order();
        let mut rank = order.first(|slot| is_before(&self.slab.get(slot).name));
        std::iter::from_fn(move || {
            let (slot, next) = order.next(rank)?;
            rank = next;
            Some(self.record(slot))
        })
    }

    /// The attributes of a file, by key.
    pub fn attributes(&self, number: u64) -> impl Iterator<Item = (&str, &str)> {
        let attributes = self.attributes.get(&number).into_iter().flatten();
        attributes.map(|(key, value)| (key.as_str(), value.as_str()))
    }

    /// A layout by its number.
    pub fn layout(&self, number: u32) -> Option<&LayoutRecord> {
        self.layouts.get(&number)
    }

    /// All layouts.
    pub fn layouts(&self) -> impl Iterator<Item = &LayoutRecord> {
        self.layouts.values()
    }

    /// The layouts with higher numbers than this one, in rising order.
    pub fn layouts_above(&self, number: u32) -> impl Iterator<Item = &LayoutRecord> {
        self.layouts.range((Bound::Excluded(number), Bound::Unbounded)).map(|(_, layout)| layout)
    }

    /// The layout that is like `wanted`, whatever its number.
    pub fn layout_like(&self, wanted: &LayoutRecord) -> Option<&LayoutRecord> {
        self.layouts.values().find(|layout| LayoutRecord { number: wanted.number, ..(*layout).clone() } == *wanted)
    }

    /// Pages of each shared part, by drive and number.
    pub fn shared(&self) -> impl Iterator<Item = ((u16, u16), u32)> {
        self.shared.iter().map(|(place, pages)| (*place, *pages))
    }

    /// Pages of one shared part.
    pub fn shared_pages(&self, drive: u16, shared: u16) -> u32 {
        self.shared.get(&(drive, shared)).copied().unwrap_or(0)
    }

    /// The number of the next file.
    pub fn next_number(&self) -> u64 {
        self.next.max(1)
    }

    /// The number for a new file.
    pub fn new_number(&self) -> Result<u64> {
        let next = self.next_number();
        if next < NUMBERS_END {
            return Ok(next);
        }
        let why = format!("it says that the next file has the number {next}, which no array reaches");
        Err(Error::corrupt("the catalog", why).advise("export the catalog as text, and import it again"))
    }

    /// Takes the number for a new file.
    pub fn reserve_number(&mut self) -> Result<u64> {
        let number = self.new_number()?;
        self.next = number + 1;
        Ok(number)
    }

    /// The states of the drives by the log.
    pub fn drives(&self) -> &[(DriveRole, bool)] {
        &self.drives
    }

    /// The number of files, with the dying ones.
    pub fn len(&self) -> usize {
        self.by_number.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All slots are below this.
    pub fn slots(&self) -> u32 {
        self.slab.end()
    }

    /// The file in a slot, if there is one. A file keeps its slot.
    pub fn in_slot(&self, slot: u32) -> Option<FileRecord<'_>> {
        Some(self.slab.get(slot)).filter(|entry| entry.number > 0).map(|entry| entry.record(&self.sums))
    }

    /// Numbers of the files of one leaf of the order: a hint for the next opening. `None` behind the last leaf, and if
    /// no call has asked for the order.
    pub fn order_leaf(&self, leaf: usize) -> Option<Vec<u64>> {
        let slots = self.order.get()?.leaf(leaf)?;
        Some(slots.iter().map(|slot| self.slab.get(*slot).number).collect())
    }

    /// Bytes of memory, without the allocator's own, and without attributes.
    pub fn memory_bytes(&self) -> usize {
        let entries = self.slab.chunks.len() * CHUNK * size_of::<StoredFile>() + 4 * self.slab.free.capacity();
        let names: usize = self.slab.chunks.iter().flatten().map(|entry| entry.name.len()).sum();
        let order = self.order.get().map_or(0, Order::memory_bytes) + 8 * self.hint.capacity();
        entries + names + self.by_number.memory_bytes() + self.by_name.memory_bytes() + order
    }
}

/// One sorted list of two.
fn merge<'a>(left: &[u32], right: &[u32], name_of: impl Fn(u32) -> &'a str) -> Vec<u32> {
    let mut merged = Vec::with_capacity(left.len() + right.len());
    let (mut left, mut right) = (left.iter().copied().peekable(), right.iter().copied().peekable());
    loop {
        let next = match (left.peek(), right.peek()) {
            (Some(ours), Some(theirs)) if name_of(*theirs) < name_of(*ours) => right.next(),
            (Some(_), _) => left.next(),
            (None, _) => right.next(),
        };
        match next {
            Some(slot) => merged.push(slot),
            None => return merged,
        }
    }
}

//! The catalog in memory against maps of the standard library.

use std::collections::BTreeMap;

use arbitrary::Unstructured;

use super::files::Files;
use super::order::Order;
use super::slots::SlotTable;
use crate::catalog::log::record::{Extent, FileLife, FileRecord, LayoutRecord, LogFault, LogRecord};
use crate::layout::Layout;
use crate::sys::hash::xxh3_64;
use crate::sys::property::{check, list, weighted};

fn file(number: u64, name: &str) -> FileRecord<'_> {
    FileRecord {
        number,
        length: 10 * number,
        created_ns: 1,
        modified_ns: 2,
        key: 3,
        layout: 0,
        life: if name.is_empty() { FileLife::Dying } else { FileLife::Live },
        has_parts: false,
        name,
        extent: None,
        sums: None,
    }
}

fn layout() -> LogRecord<'static> {
    let drives = vec![(0, 10), (1, 10)];
    LogRecord::Layout(LayoutRecord { number: 0, kind: Layout::Hash, block_bytes: 65536, drives })
}

/// Files with an index, and one layout.
fn files() -> Files {
    let mut files = Files::default();
    files.index(Vec::new()).unwrap();
    files.apply(&layout(), false).unwrap();
    files
}

#[derive(Clone, Debug)]
enum Step {
    /// A new file.
    Create(u8),
    /// Renames a file; a file with that name dies.
    Rename(u8, u8),
    Delete(u8),
    Length(u8, u64),
    Attribute(u8, u8, bool),
    /// The dying files go.
    Bury,
}

fn step(bytes: &mut Unstructured<'_>) -> arbitrary::Result<Step> {
    let kind = weighted(bytes, &[(6, 0), (3, 1), (2, 2), (2, 3), (1, 4), (1, 5)])?;
    let name = bytes.int_in_range(0..=39)?;
    Ok(match kind {
        0 => Step::Create(name),
        1 => Step::Rename(name, bytes.int_in_range(0..=39)?),
        2 => Step::Delete(name),
        3 => Step::Length(name, u64::from(bytes.arbitrary::<u32>()?)),
        4 => Step::Attribute(name, bytes.int_in_range(0..=2)?, bytes.arbitrary()?),
        _ => Step::Bury,
    })
}

fn name_of(name: u8) -> String {
    format!("{}/{name:03}", name % 7)
}

/// The records of a step.
fn records(files: &Files, step: &Step) -> Vec<OwnedRecord> {
    let named = |name: u8| files.named(&name_of(name)).map(|file| file.number);
    let mut records = Vec::new();
    match step {
        Step::Create(name) if named(*name).is_none() => {
            records.push(OwnedRecord::File(files.next_number(), name_of(*name), None));
        }
        Step::Rename(from, to) if from != to => {
            if let Some(number) = named(*from) {
                records.extend(named(*to).map(|victim| OwnedRecord::File(victim, String::new(), None)));
                records.push(OwnedRecord::File(number, name_of(*to), None));
            }
        }
        Step::Delete(name) => records.extend(named(*name).map(|victim| OwnedRecord::File(victim, String::new(), None))),
        Step::Length(name, length) => {
            records.extend(named(*name).map(|number| OwnedRecord::File(number, name_of(*name), Some(*length))));
        }
        Step::Attribute(name, key, set) => {
            records.extend(named(*name).map(|number| OwnedRecord::Attribute(number, key.to_string(), *set)));
        }
        Step::Bury => records.extend(files.dying().map(OwnedRecord::Gone)),
        Step::Create(_) | Step::Rename(..) => {}
    }
    records
}

#[derive(Clone, Debug)]
enum OwnedRecord {
    File(u64, String, Option<u64>),
    Attribute(u64, String, bool),
    Gone(u64),
}

impl OwnedRecord {
    fn apply(&self, files: &mut Files, is_late: bool) -> Result<(), LogFault> {
        match self {
            OwnedRecord::File(number, name, length) => {
                let file = file(*number, name);
                let length = length.unwrap_or(file.length);
                files.apply(&LogRecord::File(FileRecord { length, ..file }), is_late)
            }
            OwnedRecord::Attribute(number, key, set) => {
                files.apply(&LogRecord::Attribute { number: *number, key, value: set.then_some("v") }, is_late)
            }
            OwnedRecord::Gone(number) => files.apply(&LogRecord::Gone(*number), is_late),
        }
    }
}

type View = (BTreeMap<String, (u64, u64, Vec<String>)>, Vec<u64>, u64);

fn view(files: &Files) -> View {
    let keys = |number| files.attributes(number).map(|(key, _)| key.to_owned()).collect();
    let live: Vec<FileRecord<'_>> = files.from("").collect();
    assert!(live.windows(2).all(|pair| pair[0].name < pair[1].name));
    for file in &live {
        assert_eq!((files.named(file.name), files.numbered(file.number)), (Some(*file), Some(*file)));
    }
    assert_eq!(files.len(), live.len() + files.dying().count());
    let live = live.into_iter().map(|file| (file.name.to_owned(), (file.number, file.length, keys(file.number))));
    (live.collect(), files.dying().collect(), files.next_number())
}

/// Changes that are made one by one show as in a map.
#[test]
fn files_are_a_map() {
    check(
        256,
        |bytes| list(bytes, 1..=199, step),
        |steps| {
            let mut files = files();
            let mut model: BTreeMap<String, u64> = BTreeMap::new();
            for step in &steps {
                for record in records(&files, step) {
                    record.apply(&mut files, false).unwrap();
                    model.retain(|_, number| !matches!(&record, OwnedRecord::File(changed, ..) if changed == number));
                    if let OwnedRecord::File(number, name, _) = &record
                        && !name.is_empty()
                    {
                        model.insert(name.clone(), *number);
                    }
                }
                let found: BTreeMap<String, u64> =
                    files.from("").map(|file| (file.name.to_owned(), file.number)).collect();
                assert_eq!(&found, &model);
            }
            view(&files);
            for (from, _) in [("3/", 0), ("3/017", 0), ("9", 0)] {
                let found: Vec<&str> = files.from(from).map(|file| file.name).collect();
                let expected: Vec<&str> = model.range(from.to_owned()..).map(|(name, _)| name.as_str()).collect();
                assert_eq!(found, expected);
            }
        },
    );
}

/// A fuzzy checkpoint has each file as it was at some moment, and the replay of all records from its beginning makes
/// the same state (C26, C27, C28), with whatever hint of the order.
#[test]
fn a_fuzzy_checkpoint_and_the_log_make_the_state() {
    let make = |bytes: &mut Unstructured<'_>| {
        let (pace, hint_length) = (bytes.int_in_range(1..=19u32)?, bytes.int_in_range(0..=49usize)?);
        let (before, during) = (list(bytes, 0..=59, step)?, list(bytes, 0..=59, step)?);
        Ok((before, during, list(bytes, 0..=29, step)?, pace, hint_length))
    };
    check(256, make, |(before, during, after, pace, hint_length)| {
        let mut files = files();
        let (mut log, mut taken) = (Vec::new(), Vec::new());
        let change = |files: &mut Files, step: &Step| {
            let records = records(files, step);
            records.iter().for_each(|record| record.apply(files, false).unwrap());
            records
        };
        before.iter().for_each(|step| drop(change(&mut files, step)));
        let mut slot = 0;
        for step in during.iter().map(Some).chain(std::iter::repeat(None)) {
            for _ in 0..pace {
                if slot < files.slots()
                    && let Some(file) = files.in_slot(slot)
                {
                    taken.push(OwnedRecord::File(file.number, file.name.to_owned(), Some(file.length)));
                    let attributes = files.attributes(file.number);
                    taken.extend(attributes.map(|(key, _)| OwnedRecord::Attribute(file.number, key.to_owned(), true)));
                }
                slot += 1;
            }
            match step {
                Some(step) => log.extend(change(&mut files, step)),
                None if slot >= files.slots() => break,
                None => {}
            }
        }
        let next = files.next_number();
        assert_eq!(files.from("").count() + files.dying().count(), files.len());
        let hint: Vec<u64> = (0..).map_while(|leaf| files.order_leaf(leaf)).flatten().take(hint_length).collect();
        let mut later = Vec::new();
        after.iter().for_each(|step| later.extend(change(&mut files, step)));
        let mut read = Files::default();
        read.apply(&layout(), false).unwrap();
        taken.iter().for_each(|record| record.apply(&mut read, true).unwrap());
        read.apply(&LogRecord::End { files: 0, next, sequence: 0 }, true).unwrap();
        log.iter().for_each(|record| record.apply(&mut read, true).unwrap());
        later.iter().for_each(|record| record.apply(&mut read, false).unwrap());
        read.index(hint).unwrap();
        assert_eq!(view(&read), view(&files));
    });
}

#[test]
fn a_table_finds_what_is_in_it() {
    let step = |bytes: &mut Unstructured<'_>| Ok((bytes.arbitrary::<bool>()?, bytes.int_in_range(0..=59u32)?));
    let make = |bytes: &mut Unstructured<'_>| Ok((bytes.int_in_range(0..=63u32)?, list(bytes, 1..=399, step)?));
    check(256, make, |(bits, steps)| {
        // Few bits, so that hashes are often equal.
        let hash_of = |slot: u32| xxh3_64(&slot.to_le_bytes()) & (!0u64 << bits.min(60) | 3 << 58);
        let (mut table, mut model) = (SlotTable::default(), std::collections::BTreeSet::new());
        for (insert, slot) in steps {
            if insert && model.insert(slot) {
                table.insert(hash_of(slot), slot, hash_of);
            } else if !insert {
                assert_eq!(table.remove(hash_of(slot), slot, hash_of), model.remove(&slot));
            }
            for slot in 0..60 {
                let found = table.find(hash_of(slot), |found| found == slot);
                assert_eq!(found.is_some(), model.contains(&slot));
            }
            assert_eq!(table.len(), model.len());
        }
    });
}

#[test]
fn an_order_of_many_leaves_stays_sorted() {
    let names: Vec<String> = (0..5000u32).map(|number| format!("{:08x}", number.wrapping_mul(0x9e37_79b9))).collect();
    let name_of = |slot: u32| names[slot as usize].as_str();
    for in_order in [false, true] {
        let mut slots: Vec<u32> = (0..5000).collect();
        if in_order {
            slots.sort_by_key(|slot| name_of(*slot));
        }
        let mut order = Order::default();
        slots.iter().for_each(|slot| order.insert(*slot, name_of));
        let all = |order: &Order| {
            let mut rank = order.rank("", name_of);
            std::iter::from_fn(|| {
                let (slot, next) = order.next(rank)?;
                rank = next;
                Some(slot)
            })
            .collect::<Vec<u32>>()
        };
        let mut expected: Vec<u32> = (0..5000).collect();
        expected.sort_by_key(|slot| name_of(*slot));
        assert_eq!(all(&order), expected);
        assert!(order.memory_bytes() < 5000 * 9, "{}", order.memory_bytes());
        for slot in 0..4000 {
            assert!(order.remove(slot, name_of) && !order.remove(slot, name_of));
        }
        expected.retain(|slot| *slot >= 4000);
        assert_eq!(all(&order), expected);
    }
}

#[test]
fn records_that_contradict_are_damage() {
    let mut files = files();
    let damaged = |result: Result<(), LogFault>| matches!(result, Err(LogFault::Damaged(_)));
    assert!(damaged(files.apply(&LogRecord::File(FileRecord { layout: 9, ..file(1, "a") }), false)));
    let other = LayoutRecord { number: 0, kind: Layout::Striping, block_bytes: 4096, drives: vec![(0, 1)] };
    assert!(damaged(files.apply(&LogRecord::Layout(other.clone()), false)));
    assert!(files.layout_like(&LayoutRecord { number: 7, ..other }).is_none());
    let attribute = LogRecord::Attribute { number: 1, key: "k", value: Some("v") };
    assert!(damaged(files.apply(&LogRecord::Gone(1), false)) && damaged(files.apply(&attribute, false)));
    assert!(files.apply(&LogRecord::Gone(1), true).is_ok() && files.apply(&attribute, true).is_ok());
    assert!(files.is_empty());
    let mut twins = Files::default();
    twins.apply(&layout(), false).unwrap();
    twins.apply(&LogRecord::File(file(1, "a")), false).unwrap();
    twins.apply(&LogRecord::File(file(2, "a")), false).unwrap();
    assert!(damaged(twins.index(vec![1, 2])) && damaged(twins.index(Vec::new())));
    twins.apply(&LogRecord::Gone(1), false).unwrap();
    twins.index(vec![1, 2, 2]).unwrap();
    assert_eq!(twins.named("a").map(|file| file.number), Some(2));
}

#[test]
fn numbers_only_grow() {
    let mut files = files();
    assert_eq!(files.next_number(), 1);
    files.apply(&LogRecord::File(file(5, "a")), false).unwrap();
    files.apply(&LogRecord::File(file(5, "")), false).unwrap();
    files.apply(&LogRecord::Gone(5), false).unwrap();
    assert_eq!(files.next_number(), 6);
    files.apply(&LogRecord::Numbers(3), false).unwrap();
    assert_eq!(files.next_number(), 6);
    files.apply(&LogRecord::Numbers(1 << 32), false).unwrap();
    assert_eq!(files.next_number(), 1 << 32);
    assert_eq!(files.reserve_number().unwrap(), 1 << 32);
    // Seen to fail: it panicked, and without checks of overflow numbers began again.
    files.apply(&LogRecord::Numbers(u64::MAX), false).unwrap();
    assert!(files.reserve_number().unwrap_err().to_string().contains("18446744073709551615"));
    assert_eq!(files.next_number(), u64::MAX);
}

/// The goal is 300 bytes a file with the allocator's own, for names of 60 bytes.
#[test]
fn a_file_takes_little_memory() {
    let mut files = files();
    let count = 20_000u64;
    for number in 1..=count {
        let name = format!("{:060}", xxh3_64(&number.to_le_bytes()) >> 1);
        let extent = Some(Extent { drive: 1, shared: 2, page: number as u32, pages: 2 });
        files.apply(&LogRecord::File(FileRecord { extent, ..file(number, &name) }), false).unwrap();
    }
    assert_eq!(files.from("").count() as u64, count);
    let per_file = files.memory_bytes() as u64 / count;
    // An allocator adds up to 20 bytes to a name.
    assert!(per_file + 20 < 200, "{per_file} bytes a file");
}

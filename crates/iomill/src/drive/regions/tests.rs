//! What an engine is asked to register, and the numbers that pieces get.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::engine::{Completion, EngineKind, EngineWake, IoRequest, Segment};

/// Gives numbers from 10 on, up to a limit, and records the memory of each.
struct Table {
    asked: Vec<(usize, usize)>,
    taken_back: Vec<u16>,
    limit: usize,
}

impl Engine for Table {
    fn kind(&self) -> EngineKind {
        EngineKind::Simulated
    }
    unsafe fn push(&mut self, _: &[IoRequest]) {}
    fn wait(&mut self, _: usize, _: Option<Duration>, _: &mut Vec<Completion>) -> io::Result<()> {
        Ok(())
    }
    fn waker(&self) -> Arc<dyn EngineWake> {
        unreachable!("no thread sleeps")
    }
    unsafe fn register(&mut self, start: *mut u8, len: usize) -> Option<u16> {
        self.asked.push((start as usize, len));
        (self.asked.len() <= self.limit).then_some(9 + self.asked.len() as u16)
    }
    fn unregister(&mut self, region: u16) {
        self.taken_back.push(region);
    }
}

fn table(limit: usize) -> Table {
    Table { asked: Vec::new(), taken_back: Vec::new(), limit }
}

/// The number that a piece at this address gets.
fn number(regions: &Regions, known: &mut Known, table: &mut Table, at: usize, len: u32) -> u16 {
    let mut memory = Memory::one(std::ptr::without_provenance_mut(at));
    known.fill_in(regions, table, &mut memory, len);
    let Memory::One { region, .. } = memory else { panic!("memory in one place") };
    region
}

/// Pieces lie in a chunk of this length, until the next one registers it.
fn use_chunk(regions: &Regions, known: &mut Known, table: &mut Table, at: usize, len: usize) {
    for page in (at..at + len).step_by(MIB) {
        assert_eq!(number(regions, known, table, page, MIB as u32), NO_REGION, "its memory may not be there yet");
    }
}

fn at(address: usize) -> *mut u8 {
    std::ptr::without_provenance_mut(address)
}

const MIB: usize = 1 << 20;
const SLAB: usize = 100 * MIB;

#[test]
fn chunks_of_a_slab_are_registered_once_their_pages_were_used() {
    let (regions, mut known, mut table) = (Regions::default(), Known::default(), table(100));
    regions.add(at(MIB), MIB);
    regions.add_slab(at(SLAB), 10 * MIB, 4 * MIB);
    known.begin(&regions, &mut table, (at(MIB), 4096));
    assert_eq!(table.asked, [(MIB, MIB)], "a slab is not registered before it is used");
    assert_eq!(number(&regions, &mut known, &mut table, MIB, 4096), 10);
    use_chunk(&regions, &mut known, &mut table, SLAB + 4 * MIB, 4 * MIB);
    use_chunk(&regions, &mut known, &mut table, SLAB + 8 * MIB, 2 * MIB);
    assert_eq!(number(&regions, &mut known, &mut table, SLAB + 5 * MIB, 4096), 11);
    assert_eq!(number(&regions, &mut known, &mut table, SLAB + 9 * MIB, 4096), 12);
    assert_eq!(number(&regions, &mut known, &mut table, SLAB + 4 * MIB, 4096), 11);
    assert_eq!(number(&regions, &mut known, &mut table, SLAB + 8 * MIB - 1, 1), 11);
    assert_eq!(number(&regions, &mut known, &mut table, MIB, 4096), 10);
    assert_eq!(table.asked[1..], [(SLAB + 4 * MIB, 4 * MIB), (SLAB + 8 * MIB, 2 * MIB)], "the last chunk is shorter");
    assert_eq!(number(&regions, &mut known, &mut table, SLAB + 8 * MIB - 1, 2), NO_REGION, "in two chunks");
    assert_eq!(number(&regions, &mut known, &mut table, SLAB + 10 * MIB - 1, 2), NO_REGION, "beyond the slab");
    // Outside: that of the batch.
    assert_eq!(number(&regions, &mut known, &mut table, SLAB + 10 * MIB, 1), 10);
    assert_eq!(number(&regions, &mut known, &mut table, SLAB - 1, 1), 10);
    known.begin(&regions, &mut table, (std::ptr::null(), 0));
    assert_eq!(number(&regions, &mut known, &mut table, SLAB - 1, 1), NO_REGION);
    assert_eq!(number(&regions, &mut known, &mut table, SLAB + 4 * MIB, 4096), 11);
    assert_eq!(table.asked.len(), 3);
}

#[test]
fn scattered_memory_has_no_number() {
    let (regions, mut known, mut table) = (Regions::default(), Known::default(), table(100));
    regions.add_slab(at(SLAB), 8 * MIB, 4 * MIB);
    known.begin(&regions, &mut table, (std::ptr::null(), 0));
    let list = [Segment { buf: at(SLAB), len: 4096 }];
    let mut memory = Memory::scatter(&list);
    known.fill_in(&regions, &mut table, &mut memory, 4096);
    assert!(matches!(memory, Memory::Scatter { count: 1, .. }));
    assert_eq!(table.asked, []);
}

#[test]
fn a_refusal_is_remembered() {
    let (regions, mut known, mut table) = (Regions::default(), Known::default(), table(1));
    regions.add_slab(at(SLAB), 8 * MIB, 4 * MIB);
    known.begin(&regions, &mut table, (std::ptr::null(), 0));
    use_chunk(&regions, &mut known, &mut table, SLAB, 4 * MIB);
    use_chunk(&regions, &mut known, &mut table, SLAB + 4 * MIB, 4 * MIB);
    for _ in 0..3 {
        assert_eq!(number(&regions, &mut known, &mut table, SLAB, 1), 10);
        assert_eq!(number(&regions, &mut known, &mut table, SLAB + 4 * MIB, 1), NO_REGION);
    }
    assert_eq!(table.asked.len(), 2);
    regions.remove_slab(at(SLAB));
    known.begin(&regions, &mut table, (std::ptr::null(), 0));
    assert_eq!(table.taken_back, [10], "only what was registered");
}

#[test]
fn a_slab_that_is_gone_is_let_go_before_its_addresses_are_used_again() {
    let (regions, mut known, mut table) = (Regions::default(), Known::default(), table(100));
    regions.add_slab(at(SLAB), 8 * MIB, 4 * MIB);
    regions.add_slab(at(2 * SLAB), 8 * MIB, 8 * MIB);
    known.begin(&regions, &mut table, (std::ptr::null(), 0));
    use_chunk(&regions, &mut known, &mut table, SLAB, 4 * MIB);
    use_chunk(&regions, &mut known, &mut table, 2 * SLAB, 8 * MIB);
    use_chunk(&regions, &mut known, &mut table, SLAB + 4 * MIB, 4 * MIB);
    assert_eq!(number(&regions, &mut known, &mut table, SLAB, 1), 10);
    assert_eq!(number(&regions, &mut known, &mut table, 2 * SLAB, 1), 11);
    assert_eq!(number(&regions, &mut known, &mut table, SLAB + 4 * MIB, 1), 12);
    regions.remove_slab(at(SLAB));
    regions.add_slab(at(SLAB), 4 * MIB, 4 * MIB);
    known.begin(&regions, &mut table, (std::ptr::null(), 0));
    assert_eq!(table.taken_back, [10, 12]);
    use_chunk(&regions, &mut known, &mut table, SLAB, 4 * MIB);
    assert_eq!(number(&regions, &mut known, &mut table, SLAB, 1), 13, "new memory, new number");
    assert_eq!(number(&regions, &mut known, &mut table, SLAB + 4 * MIB, 1), NO_REGION);
    assert_eq!(number(&regions, &mut known, &mut table, 2 * SLAB, 1), 11, "the other stays as it was");
}

#[test]
fn chunks_that_are_dropped_are_let_go_and_the_others_stay() {
    let (regions, mut known, mut table) = (Regions::default(), Known::default(), table(100));
    regions.add_slab(at(SLAB), 16 * MIB, 4 * MIB);
    known.begin(&regions, &mut table, (std::ptr::null(), 0));
    for (chunk, expected) in [(0, 10), (1, 11), (2, 12)] {
        use_chunk(&regions, &mut known, &mut table, SLAB + chunk * 4 * MIB, 4 * MIB);
        assert_eq!(number(&regions, &mut known, &mut table, SLAB + chunk * 4 * MIB, 1), expected);
    }
    regions.drop_chunks(at(SLAB), 4 * MIB..16 * MIB);
    known.begin(&regions, &mut table, (std::ptr::null(), 0));
    assert_eq!(table.taken_back, [11, 12]);
    assert_eq!(number(&regions, &mut known, &mut table, SLAB, 1), 10, "it was not dropped");
    use_chunk(&regions, &mut known, &mut table, SLAB + 4 * MIB, 4 * MIB);
    assert_eq!(number(&regions, &mut known, &mut table, SLAB + 4 * MIB, 1), 13, "new memory, new number");
    known.begin(&regions, &mut table, (std::ptr::null(), 0));
    assert_eq!(table.taken_back, [11, 12], "once");
}

#[test]
fn only_what_is_in_use_is_registered() {
    let (regions, mut known, mut table) = (Regions::default(), Known::default(), table(100));
    regions.add_slab(at(SLAB), 16 * MIB, 4 * MIB);
    regions.use_slab(at(SLAB), 6 * MIB);
    known.begin(&regions, &mut table, (std::ptr::null(), 0));
    use_chunk(&regions, &mut known, &mut table, SLAB + 4 * MIB, 2 * MIB);
    assert_eq!(number(&regions, &mut known, &mut table, SLAB + 4 * MIB, 1), 10);
    assert_eq!(table.asked, [(SLAB + 4 * MIB, 2 * MIB)]);
    assert_eq!(number(&regions, &mut known, &mut table, SLAB + 6 * MIB, 1), NO_REGION);
    assert_eq!(number(&regions, &mut known, &mut table, SLAB + 12 * MIB, 1), NO_REGION);
    regions.use_slab(at(SLAB), 16 * MIB);
    known.begin(&regions, &mut table, (std::ptr::null(), 0));
    assert_eq!(
        number(&regions, &mut known, &mut table, SLAB + 6 * MIB, 1),
        NO_REGION,
        "beyond what is registered of the chunk"
    );
    use_chunk(&regions, &mut known, &mut table, SLAB + 12 * MIB, 4 * MIB);
    assert_eq!(number(&regions, &mut known, &mut table, SLAB + 12 * MIB, 1), 11);
    assert_eq!(number(&regions, &mut known, &mut table, SLAB + 5 * MIB, 1), 10);
}

/// A batch that goes on while memory is given back and used again: its next piece there is in the new memory.
#[test]
fn a_batch_hears_of_memory_that_changes() {
    let (regions, mut known, mut table) = (Regions::default(), Known::default(), table(100));
    regions.add_slab(at(SLAB), 8 * MIB, 4 * MIB);
    known.begin(&regions, &mut table, (std::ptr::null(), 0));
    use_chunk(&regions, &mut known, &mut table, SLAB + 4 * MIB, 4 * MIB);
    assert_eq!(number(&regions, &mut known, &mut table, SLAB + 5 * MIB, 4096), 10);
    regions.drop_chunks(at(SLAB), 4 * MIB..8 * MIB);
    use_chunk(&regions, &mut known, &mut table, SLAB + 4 * MIB, 4 * MIB);
    assert_eq!(number(&regions, &mut known, &mut table, SLAB + 5 * MIB, 4096), 11);
    assert_eq!(table.taken_back, [10]);
}

#[test]
fn many_buffers_are_registered_once_each_in_any_order() {
    let (regions, mut known, mut table) = (Regions::default(), Known::default(), table(1000));
    let places: Vec<usize> = (1..=300).map(|place| place * MIB).collect();
    for &place in &places {
        regions.add(at(place), 4096);
    }
    let mut order: Vec<usize> = (0..300).map(|index| index * 7 % 300).collect();
    let begin = |known: &mut Known, table: &mut Table, index: usize| {
        known.begin(&regions, table, (at(places[index]), 4096));
        number(&regions, known, table, places[index], 4096)
    };
    let numbers: Vec<u16> = order.iter().map(|&index| begin(&mut known, &mut table, index)).collect();
    assert_eq!(table.asked.len(), 300);
    let again: Vec<u16> = order.iter().map(|&index| begin(&mut known, &mut table, index)).collect();
    assert_eq!((again, table.asked.len()), (numbers.clone(), 300));
    // The first in the order goes: it alone is unregistered, and the others keep their numbers.
    regions.remove(at(places[order.remove(0)]));
    let left: Vec<u16> = order.iter().map(|&index| begin(&mut known, &mut table, index)).collect();
    assert_eq!((&left[..], &table.taken_back[..]), (&numbers[1..], &numbers[..1]));
}

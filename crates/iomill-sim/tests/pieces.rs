//! Pieces with memory in one place and with scattered memory, through both kinds of contexts, against a plain byte
//! vector. The simulated drive transfers less than requested, fails and crashes.

use std::sync::{Arc, Mutex};

use crate::common::{PAGE, PageBuf as Frame, Rig, memory};
use fastrand::Rng;
use iomill::drive::inline::InlineContext;
use iomill::drive::lane::Engines;
use iomill::drive::locks::BlockLocks;
use iomill::drive::regions::Regions;
use iomill::drive::service::Service;
use iomill::drive::shared::SharedContext;
use iomill::drive::shares::{Ended, Owner};
use iomill::drive::{Batching, Class, Failure, Piece};
use iomill::engine::{EngineKind, FileRef, IoRequest, Memory, Op, Segment};
use iomill::sys::fs::Alignment;
use iomill::sys::memory::PageBuf;
use iomill_sim::{DriveModel, Fault, Injection, Kind, Rates};

/// The blocks of the part, and the pages of a block. Each piece lies within its own block.
const BLOCKS: usize = 16;
const BLOCK_PAGES: usize = 24;
const BLOCK: usize = BLOCK_PAGES * PAGE;
/// Pages of pieces with `close`.
const CLOSE_PAGES: usize = 3;
/// A frame slab's chunks: more of them than the simulated engine can register.
const CHUNK: usize = 4 * PAGE;

type Ends = Vec<(u32, Result<(), Failure>)>;

/// A batch, with its lists. Piece `i` has tag `i` and lies in block `i`. Its memory lies in the `i`th block of the
/// slab.
struct Batch {
    pieces: Vec<Piece>,
    lists: Vec<Vec<Segment>>,
}

/// With `close`, pieces fill their blocks, and these follow each other, in any order.
fn batch(rng: &mut Rng, file: FileRef, slab: &mut PageBuf, close: bool) -> Batch {
    let start = slab.as_mut_ptr();
    let mut batch = Batch { pieces: Vec::new(), lists: Vec::new() };
    for block in 0..BLOCKS {
        let pages = if close { CLOSE_PAGES } else { rng.usize(1..=BLOCK_PAGES) };
        let first = rng.usize(0..=if close { 0 } else { BLOCK_PAGES - pages });
        let stride = if close { CLOSE_PAGES * PAGE } else { BLOCK };
        let at = |page: usize| start.wrapping_add(block * BLOCK + page * PAGE);
        let mut list = vec![Segment { buf: at(rng.usize(0..=BLOCK_PAGES - pages)), len: pages * PAGE }];
        if rng.bool() {
            let mut frames: Vec<usize> = (0..BLOCK_PAGES).collect();
            rng.shuffle(&mut frames);
            list = frames[..pages].iter().map(|&frame| Segment { buf: at(frame), len: PAGE }).collect();
        }
        let memory = match list[..] {
            [Segment { buf, .. }] => Memory::one(buf),
            _ => Memory::scatter(&list),
        };
        batch.pieces.push(Piece {
            op: if rng.bool() { Op::Read } else { Op::Write },
            class: if rng.bool() { Class::Foreground } else { Class::Background },
            lock: BlockLocks::index(file.key, block as u64),
            len: (pages * PAGE) as u32,
            offset: (block * stride + first * PAGE) as u64,
            tag: block as u32,
            memory,
            ..Piece::sync(file)
        });
        // A list moves with its vector's memory, not with the vector itself.
        batch.lists.push(list);
    }
    if close {
        rng.shuffle(&mut batch.pieces);
    }
    batch
}

/// The bytes of a piece's memory, in order.
fn bytes(list: &[Segment]) -> Vec<u8> {
    // SAFETY: the memory belongs to a test, and nothing is in flight.
    list.iter().flat_map(|at| unsafe { std::slice::from_raw_parts(at.buf, at.len) }.to_vec()).collect()
}

/// Runs pieces to their ends.
enum Driver {
    Inline(InlineContext),
    Shared(SharedContext),
}

/// Notes the ends of pieces and shares.
#[derive(Default)]
struct Notes {
    ends: Mutex<Ends>,
    failure: Mutex<Option<Option<Failure>>>,
}

impl Owner for Notes {
    fn piece_done(&self, tag: u32, result: Result<(), Failure>) {
        assert_eq!(*self.failure.lock().unwrap(), None, "a piece ends before its share");
        self.ends.lock().unwrap().push((tag, result));
    }
    fn share_done(self: Arc<Self>, failure: Option<Failure>) {
        assert!(self.failure.lock().unwrap().replace(failure).is_none(), "a share ends once");
    }
}

impl Driver {
    fn run(&mut self, regions: &Regions, pieces: &[Piece]) -> Ends {
        let span = (std::ptr::null(), 0);
        match self {
            Driver::Inline(context) => {
                let mut ends = Vec::new();
                let source = pieces.iter().map(|piece| (0, *piece));
                // SAFETY: the callers keep memory and lists valid, and the file open.
                let ran =
                    unsafe { context.run(regions, span, source, || (), |done| ends.push((done.tag, done.result))) };
                ran.unwrap();
                ends
            }
            Driver::Shared(context) => {
                let notes = begin(context, regions, pieces);
                while notes.failure.lock().unwrap().is_none() {
                    step(context);
                }
                let ends = std::mem::take(&mut *notes.ends.lock().unwrap());
                let first = ends.iter().find_map(|(_, result)| result.err());
                assert_eq!(*notes.failure.lock().unwrap(), Some(first));
                ends
            }
        }
    }
}

/// Begins a share of pieces for the first drive.
fn begin(context: &mut SharedContext, regions: &Regions, pieces: &[Piece]) -> Arc<Notes> {
    let notes = Arc::new(Notes::default());
    let source = pieces.iter().map(|piece| (0, *piece));
    // SAFETY: the callers keep memory and lists valid, and the file open.
    unsafe { context.push(regions, Arc::clone(&notes) as _, (std::ptr::null(), 0), source) };
    notes
}

/// Waits until something has ended.
fn step(context: &mut SharedContext) {
    let mut ends = Vec::new();
    context.sleep(&mut ends);
    ends.into_iter().for_each(Ended::tell);
}

struct Stage {
    rig: Rig,
    file: FileRef,
    driver: Driver,
    regions: Arc<Regions>,
}

fn stage(seed: u64, alignment: Alignment, inline: bool, batching: Batching) -> Stage {
    let rig = Rig::new(seed, DriveModel { alignment, channels: 4, ..DriveModel::default() });
    rig.fs.set_len(rig.file, (BLOCKS * BLOCK) as u64).unwrap();
    let service =
        Service { kind: EngineKind::Simulated, align: alignment, depth: 8, batching, poll: false, meter: None };
    let (platform, locks, regions) = (rig.world.platform(), Arc::default(), Arc::default());
    let engines = Engines { platform: &*platform, locks: &locks, hold: &[], notices: None, threads: Vec::new() };
    let driver = match inline {
        true => Driver::Inline(InlineContext::new(&engines, &[service]).unwrap()),
        false => Driver::Shared(SharedContext::new(&engines, &[service]).unwrap()),
    };
    let file = FileRef { handle: rig.file, key: 1 };
    Stage { rig, file, driver, regions }
}

/// Runs random batches. Returns how many pieces failed.
fn compare(seed: u64, alignment: Alignment, inline: bool, rates: Rates, close: bool) -> usize {
    let rng = &mut Rng::with_seed(seed);
    let mut stage = stage(seed, alignment, inline, Batching::default());
    let mut slab = PageBuf::new(BLOCKS * BLOCK).unwrap();
    stage.regions.add_slab(slab.as_mut_ptr(), slab.len(), CHUNK);
    let mut model = vec![0; BLOCKS * BLOCK];
    let mut failures = 0;
    for _ in 0..6 {
        rng.fill(slab.as_mut_slice());
        let Batch { pieces, lists } = batch(rng, stage.file, &mut slab, close);
        stage.rig.world.faults(|faults| faults.rates = rates);
        let mut ends = stage.driver.run(&stage.regions, &pieces);
        ends.sort_by_key(|&(tag, _)| tag);
        assert!(ends.iter().map(|&(tag, _)| tag).eq(0..BLOCKS as u32), "every piece ends once: {ends:?}");
        for (tag, result) in ends {
            let piece = pieces.iter().find(|piece| piece.tag == tag).unwrap();
            let range = piece.offset as usize..piece.offset as usize + piece.len as usize;
            if let Err(failure) = result {
                failures += 1;
                assert!(range.contains(&(failure.offset as usize)), "{failure:?} of {piece:?}");
                // A failed write may leave any bytes, so it is repeated.
                stage.rig.world.faults(|faults| faults.rates = Rates::default());
                assert_eq!(stage.driver.run(&stage.regions, std::slice::from_ref(piece)), [(tag, Ok(()))]);
            }
            let found = bytes(&lists[tag as usize]);
            match piece.op {
                Op::Read => assert!(found == model[range], "seed {seed}: {piece:?} {:?}", lists[tag as usize]),
                _ => model[range].copy_from_slice(&found),
            }
        }
    }
    assert!(stage.rig.world.read(0, "part").unwrap() == model, "seed {seed}");
    assert_eq!(stage.rig.world.violations(), Vec::<String>::new(), "seed {seed}");
    failures
}

const ALIGNMENTS: [Alignment; 3] =
    [Alignment { offset: 512, memory: 512 }, Alignment { offset: 4096, memory: 512 }, Alignment::NONE];

#[test]
fn pieces_with_scattered_memory_read_and_write_whatever_goes_wrong() {
    let rates = Rates { read_error: 30, write_error: 30, interrupted: 100, ..Rates::default() };
    let rates = Rates { short_read: 400, short_write: 400, ..rates };
    for alignment in ALIGNMENTS {
        for inline in [true, false] {
            let failures: usize = (0..4).map(|seed| compare(seed, alignment, inline, rates, seed % 2 == 1)).sum();
            assert!(failures > 0, "no error reached the owner");
        }
    }
}

#[test]
fn without_errors_no_piece_fails() {
    let rates = Rates { short_read: 700, short_write: 700, interrupted: 100, ..Rates::default() };
    for alignment in ALIGNMENTS {
        for inline in [true, false] {
            let failures = (10..14).map(|seed| compare(seed, alignment, inline, rates, seed % 2 == 1));
            assert_eq!(failures.sum::<usize>(), 0);
        }
    }
}

/// A request for four pages with frames that lie apart and backwards.
fn scattered(rig: &Rig, op: Op, frames: &mut [Frame], list: &mut Vec<Segment>) -> IoRequest {
    list.clear();
    list.extend([6, 4, 2, 0].map(|frame| Segment { buf: frames[frame..].as_mut_ptr().cast(), len: PAGE }));
    IoRequest { len: 4 * PAGE as u32, memory: Memory::scatter(list), ..rig.request(0, op, 0, frames) }
}

#[test]
fn a_crash_leaves_each_page_of_a_scattered_write_old_or_new() {
    let mut seen = [false; 2];
    for seed in 0..40 {
        let mut rig = Rig::new(seed, DriveModel::default());
        for page in 0..4 {
            rig.write(page, 1).unwrap();
        }
        rig.sync().unwrap();
        let (mut frames, mut list) = (memory(7, 9), Vec::new());
        for (page, frame) in [6, 4, 2, 0].into_iter().enumerate() {
            frames[frame] = Frame([10 + page as u8; PAGE]);
        }
        let request = scattered(&rig, Op::Write, &mut frames, &mut list);
        if seed % 2 == 0 {
            // SAFETY: frames and list outlive the engine's use of them, which the crash ends.
            unsafe { rig.engine.push(&[request]) };
        } else {
            assert_eq!(rig.run(request).unwrap(), 4 * PAGE as i32);
        }
        rig.world.crash();
        let found = rig.world.read(0, "part").unwrap();
        for (page, bytes) in found.chunks(PAGE).enumerate() {
            let new = 10 + page as u8;
            for sector in bytes.chunks(512) {
                assert!(sector == [1; 512] || sector == [new; 512], "seed {seed}, page {page}: {}", sector[0]);
                seen[usize::from(sector[0] == new)] = true;
            }
        }
    }
    assert_eq!(seen, [true; 2], "some crashes leave the old bytes and some the new");
}

#[test]
fn a_scattered_request_may_end_early_and_fail() {
    let mut rig = Rig::new(3, DriveModel::default());
    for page in 0..4 {
        rig.write(page, 20 + page as u8).unwrap();
    }
    let (mut frames, mut list) = (memory(7, 9), Vec::new());
    rig.world.faults(|faults| faults.inject(Injection::new(Kind::Read, Fault::Short)));
    let request = scattered(&rig, Op::Read, &mut frames, &mut list);
    let short = rig.run(request).unwrap() as usize;
    assert!(short > 0 && short < 4 * PAGE, "{short}");
    let found: Vec<u8> = [6, 4, 2, 0].iter().flat_map(|&frame: &usize| frames[frame].0).collect();
    for (at, &byte) in found.iter().enumerate() {
        assert_eq!(byte, if at < short { 20 + (at / PAGE) as u8 } else { 9 }, "byte {at} of {short}");
    }
    assert!([1, 3, 5].iter().all(|&frame: &usize| frames[frame].0 == [9; PAGE]), "memory between the segments changed");
    rig.world.faults(|faults| faults.inject(Injection::new(Kind::Read, Fault::Errno(libc::EIO))));
    let request = scattered(&rig, Op::Read, &mut frames, &mut list);
    assert_eq!(rig.run(request).unwrap(), -libc::EIO);
    list[2].buf = list[2].buf.wrapping_add(8);
    assert_eq!(rig.run(request).unwrap(), -libc::EINVAL, "a segment is not aligned");
}

#[test]
fn wrong_lists_are_found() {
    let with = |slot, spoil: fn(&mut [Segment], &mut IoRequest)| {
        let mut rig = Rig::new(1, DriveModel::default());
        let mut frames = memory(2, 1);
        let start = frames.as_mut_ptr();
        let mut list = [0, 1].map(|frame| Segment { buf: start.wrapping_add(frame).cast(), len: PAGE });
        let mut request = rig.request(slot, Op::Read, 0, &mut frames);
        request.memory = Memory::scatter(&list);
        spoil(&mut list, &mut request);
        let place = list.as_mut_ptr();
        if let Memory::Scatter { list, .. } = &mut request.memory {
            *list = place;
        }
        // SAFETY: memory and list outlive the engine, which refuses to act on a wrong list.
        unsafe { rig.engine.push(&[request]) };
        if slot == 5 {
            // SAFETY: the place is the second of the list.
            unsafe { (*place.add(1)).len += 1 };
        }
        let error = rig.engine.wait(1, None, &mut Vec::new()).unwrap_err().to_string();
        let violations = rig.world.violations();
        drop(rig);
        assert!(error.contains(&violations[0]), "{error}");
        violations[0].clone()
    };
    let short = with(0, |list, _| list[1].len = 100);
    assert!(short.contains("adds up to 4196, not to 8192"), "{short}");
    let twice = with(0, |list, _| list[1] = list[0]);
    assert!(twice.contains("same memory twice"), "{twice}");
    let long = with(0, |list, request| request.memory = Memory::Scatter { list: list.as_ptr(), count: 65 });
    assert!(long.contains("65 segments"), "{long}");
    let changed = with(5, |_, _| {});
    assert!(changed.contains("changed in flight"), "{changed}");
}

#[test]
fn a_read_does_not_wait_for_the_background() {
    let Stage { driver, regions, rig, file } = stage(1, ALIGNMENTS[1], false, Batching::NONE);
    let Driver::Shared(mut context) = driver else { panic!("a shared context was asked for") };
    let mut slab = PageBuf::new(101 * PAGE).unwrap();
    let start = slab.as_mut_ptr();
    let reads = |class, pages: std::ops::Range<usize>| -> Vec<Piece> {
        let read = |page: usize| Piece {
            op: Op::Read,
            class,
            len: PAGE as u32,
            tag: page as u32,
            memory: Memory::one(start.wrapping_add(page * PAGE)),
            ..Piece::sync(file)
        };
        pages.map(read).collect()
    };
    let background = begin(&mut context, &regions, &reads(Class::Background, 0..100));
    step(&mut context);
    assert_eq!(rig.world.stats(0).peak_in_flight, 2, "the background has a quarter of eight slots");
    let before = background.ends.lock().unwrap().len();
    let foreground = begin(&mut context, &regions, &reads(Class::Foreground, 100..101));
    while foreground.failure.lock().unwrap().is_none() {
        step(&mut context);
    }
    let during = background.ends.lock().unwrap().len() - before;
    assert!(during < 8, "{during} background reads ended before");
    while background.failure.lock().unwrap().is_none() {
        step(&mut context);
    }
    assert_eq!(background.ends.lock().unwrap().len(), 100);
    assert_eq!(rig.world.violations(), Vec::<String>::new());
}

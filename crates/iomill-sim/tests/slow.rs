//! A slow drive among others, under an open-loop load of independent requests to single drives. The other drives must
//! not become slower.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::common::PAGE;
use iomill::drive::lane::Engines;
use iomill::drive::regions::Regions;
use iomill::drive::service::Service;
use iomill::drive::shared::SharedContext;
use iomill::drive::shares::{Ended, Owner};
use iomill::drive::{Batching, Class, Failure, Piece};
use iomill::engine::{EngineKind, FileRef, Memory, Op};
use iomill::sys::fs::Access;
use iomill::sys::memory::PageBuf;
use iomill_sim::{DriveModel, World};

const DRIVES: usize = 4;
const SLOW: usize = 1;

/// The mean time between requests to each drive. That rate is two thirds of a healthy drive's, and six times the slow
/// drive's.
const EVERY_NS: u64 = 9_500;
const SPAN_NS: u64 = 100_000_000;

/// The step of the clock between two looks.
const TICK: Duration = Duration::from_micros(2);

/// Pages of each part.
const PAGES: u64 = 4096;

/// Requests to a drive that wait at most: later ones are dropped.
const WAITING: usize = 4096;

/// A request with memory of its own.
struct Request {
    /// Held until the request has ended.
    _memory: PageBuf,
    ended: Arc<AtomicUsize>,
}

impl Owner for Request {
    fn share_done(self: Arc<Self>, failure: Option<Failure>) {
        assert_eq!(failure, None);
        self.ended.fetch_add(1, Ordering::Relaxed);
    }
}

/// The counts of one drive's requests.
struct Load {
    file: FileRef,
    next_ns: u64,
    sent: usize,
    shed: usize,
    ended: Arc<AtomicUsize>,
}

impl Load {
    fn unfinished(&self) -> usize {
        self.sent - self.ended.load(Ordering::Relaxed)
    }
}

/// A context over all drives, as one thread has it.
struct Rig {
    world: World,
    context: SharedContext,
    drives: Vec<Load>,
    rng: fastrand::Rng,
}

impl Rig {
    fn new(seed: u64, drives: usize, batching: Batching) -> Rig {
        let world = World::new(seed).with_drives(drives, DriveModel::default());
        let platform = world.platform();
        let depth = if batching.adaptive { 128 } else { 32 };
        let (mut services, mut loads) = (Vec::new(), Vec::new());
        for drive in 0..drives {
            let fs = platform.attach(&world.path(drive), true).unwrap();
            let handle = fs.open("part", Access::CREATE.direct()).unwrap();
            fs.set_len(handle, PAGES * PAGE as u64).unwrap();
            let align = fs.alignment(handle).unwrap();
            services.push(Service { kind: EngineKind::Simulated, align, depth, batching, poll: false, meter: None });
            let file = FileRef { handle, key: drive as u64 + 1 };
            loads.push(Load { file, next_ns: 0, sent: 0, shed: 0, ended: Arc::default() });
        }
        let engines =
            Engines { platform: &*platform, locks: &Arc::default(), hold: &[], notices: None, threads: Vec::new() };
        let context = SharedContext::new(&engines, &services).unwrap();
        Rig { context, drives: loads, rng: fastrand::Rng::with_seed(seed), world }
    }

    /// Begins to read a random page.
    fn read(&mut self, drive: usize, class: Class, ended: &Arc<AtomicUsize>) {
        let mut memory = PageBuf::new(PAGE).unwrap();
        let piece = Piece {
            op: Op::Read,
            class,
            len: PAGE as u32,
            offset: self.rng.u64(0..PAGES) * PAGE as u64,
            memory: Memory::one(memory.as_mut_ptr()),
            ..Piece::sync(self.drives[drive].file)
        };
        let owner = Arc::new(Request { _memory: memory, ended: Arc::clone(ended) });
        let pieces = std::iter::once((drive as u16, piece));
        // SAFETY: the owner has the memory until its end, and the file stays open.
        unsafe { self.context.push(&Regions::default(), owner, (std::ptr::null(), 0), pieces) };
    }

    /// Begins the requests that are due.
    fn arrive(&mut self, drive: usize, now_ns: u64) {
        while self.drives[drive].next_ns <= now_ns {
            self.drives[drive].next_ns += self.rng.u64(0..2 * EVERY_NS);
            if self.drives[drive].unfinished() >= WAITING {
                self.drives[drive].shed += 1;
                continue;
            }
            self.drives[drive].sent += 1;
            let ended = Arc::clone(&self.drives[drive].ended);
            self.read(drive, Class::Foreground, &ended);
        }
    }

    fn turn(&mut self) {
        let mut ends = Vec::new();
        self.context.turn(&mut ends);
        ends.into_iter().for_each(Ended::tell);
        self.world.platform().clock().sleep(TICK);
    }
}

/// The numbers of requests that each drive served and dropped, with or without a slow drive.
fn run(slowness: u64, batching: Batching) -> Vec<(usize, usize)> {
    let mut rig = Rig::new(7, DRIVES, batching);
    rig.world.faults(|faults| faults.slow(SLOW, slowness));
    let clock = rig.world.platform().clock();
    let begin_ns = clock.now_ns();
    rig.drives.iter_mut().for_each(|load| load.next_ns = begin_ns);
    while clock.now_ns() < begin_ns + SPAN_NS {
        (0..DRIVES).for_each(|drive| rig.arrive(drive, clock.now_ns()));
        rig.turn();
    }
    let ended = rig.drives.iter().map(|load| (load.ended.load(Ordering::Relaxed), load.shed)).collect();
    while rig.drives.iter().any(|load| load.unfinished() > 0) {
        rig.turn();
    }
    assert_eq!(rig.world.violations(), Vec::<String>::new());
    ended
}

#[test]
fn the_others_do_not_notice_a_slow_drive() {
    for batching in [Batching::default(), Batching { adaptive: true, ..Batching::default() }] {
        let (healthy, sick) = (run(1, batching), run(10, batching));
        assert!(healthy.iter().all(|&(_, shed)| shed == 0), "{healthy:?}");
        for drive in (0..DRIVES).filter(|&drive| drive != SLOW) {
            let (before, now) = (healthy[drive].0, sick[drive].0);
            assert!(before > 10_000, "{before}");
            assert!(now * 100 >= before * 95, "{batching:?}: drive {drive} did {now} instead of {before}");
            assert_eq!(sick[drive].1, 0, "drive {drive} shed");
        }
        // The slow drive does all it can: 16 at a time, one millisecond each.
        assert!(sick[SLOW].0 > 1_300, "{sick:?}");
    }
}

/// Much of the background waits. The foreground is served as without a background.
#[test]
fn the_foreground_does_not_wait_behind_the_background() {
    let (mut rig, behind) = (Rig::new(8, 1, Batching::default()), Arc::<AtomicUsize>::default());
    for _ in 0..WAITING {
        rig.read(0, Class::Background, &behind);
    }
    (0..10).for_each(|_| rig.turn());
    let ended = Arc::clone(&rig.drives[0].ended);
    (0..100).for_each(|_| rig.read(0, Class::Foreground, &ended));
    while ended.load(Ordering::Relaxed) < 100 {
        rig.turn();
    }
    assert!(behind.load(Ordering::Relaxed) < 300, "{behind:?} background reads ended before");
    while behind.load(Ordering::Relaxed) < WAITING {
        rig.turn();
    }
}

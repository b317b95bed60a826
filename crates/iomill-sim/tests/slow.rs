//! A slow drive among others, under an open-loop load of independent requests to single drives. The other drives must
//! not become slower.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::common::PAGE;
use iomill::drive::inbox::Refused;
use iomill::drive::inline::Service;
use iomill::drive::serve::{CANCELLED, INBOX_PIECES, Message, Server, Share};
use iomill::drive::shares::Owner;
use iomill::drive::{Batching, Class, Failure, Piece};
use iomill::engine::{EngineKind, FileRef, Memory, Op};
use iomill::sys::fs::Access;
use iomill::sys::memory::PageBuf;
use iomill_sim::{DriveModel, World};

const DRIVES: usize = 4;
const SLOW: usize = 1;

/// The mean time between requests to each drive. That rate is two thirds of what a healthy drive can serve, and six
/// times what the slow drive can.
const EVERY_NS: u64 = 9_500;
const SPAN_NS: u64 = 100_000_000;

/// How far the clock moves between two looks.
const TICK: Duration = Duration::from_micros(2);

/// Pages of each part.
const PAGES: u64 = 4096;

/// A request with memory of its own.
struct Request {
    /// Held until the request has ended.
    _memory: PageBuf,
    ended: Arc<AtomicUsize>,
}

impl Owner for Request {
    fn share_done(self: Arc<Self>, failure: Option<Failure>) {
        match failure {
            None => drop(self.ended.fetch_add(1, Ordering::Relaxed)),
            // It found no room, and was dropped.
            Some(failure) => assert_eq!(failure, CANCELLED),
        }
    }
}

/// One drive, its server, and the counts of its requests.
struct LoadedDrive {
    server: Server,
    file: FileRef,
    next_ns: u64,
    sent: usize,
    shed: usize,
    ended: Arc<AtomicUsize>,
    most_parked: usize,
}

fn loaded_drive(world: &World, drive: usize, batching: Batching) -> LoadedDrive {
    let platform = world.platform();
    let fs = platform.attach(&world.path(drive), true).unwrap();
    let handle = fs.open("part", Access::CREATE.direct()).unwrap();
    fs.set_len(handle, PAGES * PAGE as u64).unwrap();
    let align = fs.alignment(handle).unwrap();
    let depth = if batching.adaptive { 128 } else { 32 };
    let service = Service { kind: EngineKind::Simulated, align, depth, batching, poll: false, meter: None };
    let server = Server::new(&*platform, &service, &Arc::default(), &Arc::default(), &[]).unwrap();
    let file = FileRef { handle, key: drive as u64 + 1 };
    LoadedDrive { server, file, next_ns: 0, sent: 0, shed: 0, ended: Arc::default(), most_parked: 0 }
}

impl LoadedDrive {
    /// A read of a random page.
    fn message(&self, rng: &mut fastrand::Rng, class: Class, ended: &Arc<AtomicUsize>) -> Message {
        let mut memory = PageBuf::new(PAGE).unwrap();
        let piece = Piece {
            op: Op::Read,
            class,
            len: PAGE as u32,
            offset: rng.u64(0..PAGES) * PAGE as u64,
            memory: Memory::one(memory.as_mut_ptr()),
            ..Piece::sync(self.file)
        };
        let owner = Arc::new(Request { _memory: memory, ended: Arc::clone(ended) });
        Message::Share(Share { owner, pieces: vec![piece], span: (std::ptr::null(), 0), flush: false })
    }

    /// Sends the requests that are due. A request that finds no room is dropped.
    fn arrive(&mut self, now_ns: u64, rng: &mut fastrand::Rng) {
        while self.next_ns <= now_ns {
            self.next_ns += rng.u64(0..2 * EVERY_NS);
            let message = self.message(rng, Class::Foreground, &self.ended);
            match self.server.inbox().send(message, 1) {
                Ok(_) => self.sent += 1,
                Err(Refused::Full(_)) => self.shed += 1,
                Err(Refused::Closed(_)) => panic!("the server has ended too early"),
            }
        }
    }
}

/// How many requests each drive served and dropped, with or without a slow drive.
fn run(slowness: u64, batching: Batching) -> Vec<(usize, usize)> {
    let world = World::new(7).with_drives(DRIVES, DriveModel::default());
    let mut drives: Vec<LoadedDrive> = (0..DRIVES).map(|drive| loaded_drive(&world, drive, batching)).collect();
    world.faults(|faults| faults.slow(SLOW, slowness));
    let clock = world.platform().clock();
    let mut rng = fastrand::Rng::with_seed(3);
    let begin_ns = clock.now_ns();
    drives.iter_mut().for_each(|loaded| loaded.next_ns = begin_ns);
    while clock.now_ns() < begin_ns + SPAN_NS {
        for loaded in &mut drives {
            loaded.arrive(clock.now_ns(), &mut rng);
            loaded.server.poll();
            loaded.most_parked = loaded.most_parked.max(loaded.server.parked());
        }
        clock.sleep(TICK);
    }
    let ended = drives.iter().map(|loaded| (loaded.ended.load(Ordering::Relaxed), loaded.shed)).collect();
    for mut loaded in drives {
        // Each drive may hold only a bounded number: an inbox, and as many pieces taken from it.
        assert!(loaded.most_parked <= 2 * INBOX_PIECES, "{} parked", loaded.most_parked);
        while loaded.server.poll() {
            clock.sleep(TICK);
        }
        assert_eq!(loaded.ended.load(Ordering::Relaxed), loaded.sent, "each piece that was taken ends");
    }
    assert_eq!(world.violations(), Vec::<String>::new());
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

/// The background sends as much as is allowed, and no more comes. The foreground is taken and served as if there were
/// no background.
#[test]
fn the_foreground_does_not_wait_behind_the_background() {
    let world = World::new(8).with_drives(1, DriveModel::default());
    let mut loaded = loaded_drive(&world, 0, Batching::default());
    let (mut rng, behind, clock) =
        (fastrand::Rng::with_seed(4), Arc::<AtomicUsize>::default(), world.platform().clock());
    let mut sent = 0;
    for _ in 0..10 {
        while loaded.server.inbox().send_behind(loaded.message(&mut rng, Class::Background, &behind), 1).is_ok() {
            sent += 1;
        }
        loaded.server.poll();
    }
    assert!((INBOX_PIECES..INBOX_PIECES + 100).contains(&sent), "{sent}");
    for _ in 0..100 {
        let message = loaded.message(&mut rng, Class::Foreground, &loaded.ended);
        assert!(loaded.server.inbox().send(message, 1).is_ok());
    }
    while loaded.ended.load(Ordering::Relaxed) < 100 {
        loaded.server.poll();
        clock.sleep(TICK);
    }
    assert!(behind.load(Ordering::Relaxed) < 300, "{behind:?} background reads ended before");
    while loaded.server.poll() {
        clock.sleep(TICK);
    }
    assert_eq!(behind.load(Ordering::Relaxed), sent);
    assert!(loaded.server.inbox().has_room_behind(INBOX_PIECES));
}

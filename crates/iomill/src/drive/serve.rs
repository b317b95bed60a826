//! Serving a drive apart from its submitters: the loop that a drive thread runs.
//!
//! A submitter sends each drive its share of a batch as one message. The server alone dispatches, reaps and continues. When a
//! whole share has ended, it tells the share's owner once. It sleeps in its engine, so that a completion and a new message both
//! wake it, and it never spins.
//!
//! Rule: a server with pieces that wait for a block's lock, or for bounce memory, brings on what may hold it (`Unblock`). Other servers and blocking
//! calls go on by themselves. A shared context goes on when a thread takes its turn, and perhaps no other thread does.

use std::cell::Cell;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::inbox::Inbox;
use super::inline::{BLOCKED_PAUSE, Lane, Service, give_up_after};
use super::locks::BlockLocks;
use super::regions::Regions;
use super::shares::{Owner, Shares};
use super::{Class, Failure, Fault, Piece};
use crate::engine::platform::Platform;
use crate::engine::{EngineWake, Op};
use crate::sys::clock::Clock;
use crate::sys::fs::Handle;
use crate::sys::thread::Raised;

/// How many pieces an inbox holds before it refuses more, and how many a server parks before it takes no more. There may be as
/// many of the background besides, until they have ended (rule 4 of the inbox).
pub const INBOX_PIECES: usize = 4096;

/// One drive's share of a batch.
pub struct Share {
    /// Learns of the ends. It also keeps the pieces' memory and files alive.
    pub owner: Arc<dyn Owner>,
    /// The pieces; not empty.
    pub pieces: Vec<Piece>,
    /// Memory that holds all pieces' memory but what lies in slabs, to be looked up among the registered regions.
    pub span: (*const u8, usize),
    /// A caller waits for just this share: its pieces do not wait for neighbours.
    pub flush: bool,
}

// SAFETY: `span` is an address range to look up, never read through; the pieces are `Send`.
unsafe impl Send for Share {}

impl Drop for Share {
    /// No server takes the pieces that are left, because the server has ended or the sender panics. The owner learns so.
    fn drop(&mut self) {
        if self.pieces.is_empty() {
            return;
        }
        self.pieces.drain(..).for_each(|piece| self.owner.piece_done(piece.tag, Err(CANCELLED)));
        Arc::clone(&self.owner).share_done(Some(CANCELLED));
    }
}

impl Share {
    /// Whether the share is of the background: all pieces of a share are of one class.
    fn is_background(&self) -> bool {
        self.pieces.first().is_some_and(|piece| piece.class == Class::Background)
    }
}

/// The failure of pieces that no server takes.
pub const CANCELLED: Failure = Failure { op: Op::Read, key: 0, offset: 0, fault: Fault::Errno(libc::ECANCELED) };

/// What goes through an inbox.
pub enum Message {
    /// Work.
    Share(Share),
    /// Let go of a file that is being closed (by key).
    Forget(u64),
}

impl Message {
    /// The number of its pieces that are of the background.
    pub fn behind(&self) -> usize {
        match self {
            Message::Share(share) if share.is_background() => share.pieces.len(),
            _ => 0,
        }
    }
}

/// What a turn came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Something moved, or may move soon.
    Busy,
    /// Nothing to do.
    Idle,
    /// The inbox is closed and everything has ended.
    Ended,
}

/// Brings on the pieces of others that may hold what a server's pieces wait for. Waits for nothing.
pub type Unblock = Arc<dyn Fn() + Send + Sync>;

/// One drive's server.
pub struct Server {
    inbox: Arc<Inbox<Message>>,
    lane: Lane,
    regions: Arc<Regions>,
    clock: Arc<dyn Clock>,
    shares: Shares,
    fetched: Vec<Message>,
    failures: u32,
    unblock: Unblock,
}

impl Server {
    /// A server with an engine of its own; it may then move to the thread that runs it.
    pub fn new(
        platform: &dyn Platform,
        service: &Service,
        locks: &Arc<BlockLocks>,
        regions: &Arc<Regions>,
        hold: &[Handle],
    ) -> io::Result<Server> {
        Ok(Server {
            inbox: Arc::new(Inbox::new(INBOX_PIECES)),
            lane: Lane::new(platform, &[service], locks, hold, false)?,
            regions: Arc::clone(regions),
            clock: platform.clock(),
            shares: Shares::default(),
            fetched: Vec::new(),
            failures: 0,
            unblock: Arc::new(|| ()),
        })
    }

    /// Where its pieces are blocked, it calls `unblock` from now on. Without it the caller of `turn` sees to what blocks them.
    pub fn unblock_by(&mut self, unblock: &Unblock) {
        self.unblock = Arc::clone(unblock);
    }

    /// Where messages go in.
    pub fn inbox(&self) -> Arc<Inbox<Message>> {
        Arc::clone(&self.inbox)
    }

    /// What a sender rings when the inbox asks for it.
    pub fn waker(&self) -> Arc<dyn EngineWake> {
        self.lane.engine.waker()
    }

    /// Whether I/O is in flight.
    pub fn in_flight(&self) -> bool {
        self.lane.in_flight() > 0
    }

    /// Pieces that wait for a slot.
    pub fn parked(&self) -> usize {
        self.lane.parked()
    }

    /// Whether everything that is left waits for block locks or bounce memory that others hold.
    pub fn is_blocked(&self) -> bool {
        !self.in_flight() && self.lane.parked() > 0 && self.lane.parked() == self.lane.blocked()
    }

    /// One round: take messages, start what fits, wait (if `may_wait`) and report what ended.
    pub fn turn(&mut self, may_wait: bool) -> Turn {
        let mut closed = false;
        if self.lane.parked_before() < INBOX_PIECES {
            closed = self.inbox.take(&mut self.fetched, false).closed;
            self.accept();
        }
        self.dispatch();
        let (in_flight, parked) = (self.lane.in_flight(), self.lane.parked());
        // Pieces held back do not use the slots that are free, and pieces of their class are in flight.
        let waiting = parked - self.lane.held_back();
        if waiting == 0 {
            // With slots to spare, the server wakes for a new message. Look again: a message may have come since the look above.
            let again = self.inbox.take(&mut self.fetched, may_wait);
            closed = again.closed;
            match (again.some, in_flight > 0) {
                (true, _) => {
                    self.accept();
                    return Turn::Busy;
                }
                (false, false) if closed => return Turn::Ended,
                (false, false) if !may_wait => return Turn::Idle,
                _ => {}
            }
        }
        if in_flight == 0 && parked > 0 {
            // Every parked piece waits for a block lock or bounce memory that others hold.
            self.clock.sleep(BLOCKED_PAUSE);
        } else {
            let (min, timeout) = self.patience(in_flight, waiting, may_wait && !closed);
            self.wait(min, timeout);
        }
        Turn::Busy
    }

    /// One round that waits for nothing, for a thread that runs several servers. True: something is left to do.
    pub fn poll(&mut self) -> bool {
        if self.lane.parked_before() < INBOX_PIECES {
            self.inbox.take(&mut self.fetched, false);
            self.accept();
        }
        self.dispatch();
        self.wait(0, Some(Duration::ZERO));
        self.in_flight() || self.lane.parked() > 0
    }

    /// Starts what fits, and brings on what blocks the rest (the rule).
    fn dispatch(&mut self) {
        self.lane.dispatch();
        if self.lane.blocked() > 0 {
            (self.unblock)();
        }
    }

    /// How long to wait: for several completions where a backlog makes throughput matter, for the next completion otherwise.
    fn patience(&self, in_flight: usize, waiting: usize, may_wait: bool) -> (usize, Option<Duration>) {
        let blocked = self.lane.blocked() > 0;
        let min = if waiting > 0 && !blocked { (in_flight / 4).max(1) } else { 1 };
        (if may_wait || in_flight > 0 { min } else { 0 }, blocked.then_some(BLOCKED_PAUSE))
    }

    fn wait(&mut self, min: usize, timeout: Option<Duration>) {
        let _serving = begin_serving();
        let (shares, inbox) = (&mut self.shares, &self.inbox);
        let result = self.lane.wait(min, timeout, &mut |done| {
            let Some(share) = shares.end_piece(&done) else { return };
            if share.behind > 0 {
                inbox.ended_behind(share.behind);
            }
            share.tell();
        });
        match result {
            Ok(()) => self.failures = 0,
            Err(error) => give_up_after(&mut self.failures, &error),
        }
    }

    fn accept(&mut self) {
        let mut fetched = std::mem::take(&mut self.fetched);
        for message in fetched.drain(..) {
            match message {
                Message::Forget(key) => self.lane.engine.forget(key),
                Message::Share(share) => self.accept_share(share),
            }
        }
        self.fetched = fetched;
    }

    fn accept_share(&mut self, mut share: Share) {
        let Lane { engine, queues, known, .. } = &mut self.lane;
        known.begin(&self.regions, &mut **engine, share.span);
        let behind = if share.is_background() { share.pieces.len() } else { 0 };
        // From here on the server tells the share's ends piece by piece.
        let pieces = std::mem::take(&mut share.pieces);
        let token = self.shares.begin(Arc::clone(&share.owner), pieces.len(), behind);
        for mut piece in pieces {
            piece.token = token;
            known.fill_in(&self.regions, &mut **engine, &mut piece);
            // SAFETY: the share's owner keeps memory and files alive until `share_done`, which comes after the last of its
            // pieces.
            unsafe { queues[0].push(piece) };
        }
        if share.flush {
            queues[0].flush();
        }
    }
}

thread_local! {
    static SERVING: Cell<bool> = const { Cell::new(false) };
}

/// Whether a server is telling the caller of an end. The caller must not then wait for the server's own I/O, or for a block lock
/// that the server may hold.
pub fn is_serving() -> bool {
    SERVING.with(Cell::get)
}

/// The calling thread must not wait until the result is dropped.
pub fn begin_serving() -> Raised {
    Raised::new(&SERVING)
}

impl Drop for Server {
    /// The kernel may write to memory until I/O has ended, so this waits for all that is in flight.
    fn drop(&mut self) {
        self.inbox.close();
        self.inbox.take(&mut self.fetched, false);
        self.accept();
        while self.lane.in_flight() + self.lane.parked() > 0 {
            self.dispatch();
            self.wait(1, Some(BLOCKED_PAUSE));
        }
    }
}

#[cfg(all(test, not(iomill_models)))]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::super::inline::InlineContext;
    use super::super::{Batching, PAGE_BYTES};
    use super::*;
    use crate::engine::real::RealPlatform;
    use crate::engine::{EngineKind, FileRef, Memory};
    use crate::sys::fs::Alignment;
    use crate::sys::memory::PageBuf;
    use crate::sys::sync::{Mutex, lock};

    const LOCK: u32 = 5;

    fn service() -> Service {
        let align = Alignment { offset: 512, memory: 512 };
        Service { kind: EngineKind::Null, align, depth: 4, batching: Batching::NONE, poll: false, meter: None }
    }

    /// A write of a page of a block with the lock `LOCK`.
    fn write(memory: &mut PageBuf) -> Piece {
        let memory = Memory::one(memory.as_mut_ptr());
        let file = Piece::sync(FileRef { handle: Handle(1), key: 7 });
        Piece { op: Op::Write, lock: LOCK, len: PAGE_BYTES as u32, memory, ..file }
    }

    #[derive(Default)]
    struct Told(Mutex<Vec<Option<Failure>>>);

    impl Owner for Told {
        fn share_done(self: Arc<Self>, failure: Option<Failure>) {
            lock(&self.0).push(failure);
        }
    }

    /// What gives the lock up, once, as a turn of a shared context does.
    fn unblock(locks: &Arc<BlockLocks>) -> Unblock {
        assert!(locks.try_exclusive(LOCK));
        let held = Mutex::new(Some(Arc::clone(locks)));
        Arc::new(move || {
            if let Some(locks) = lock(&held).take() {
                locks.release_exclusive(LOCK);
            }
        })
    }

    /// A server only waited, also for what no other thread brought on.
    #[test]
    fn a_server_brings_on_what_blocks_its_pieces() {
        let (locks, told) = (Arc::<BlockLocks>::default(), Arc::<Told>::default());
        let mut server = Server::new(&RealPlatform::default(), &service(), &locks, &Arc::default(), &[]).unwrap();
        server.unblock_by(&unblock(&locks));
        let mut memory = PageBuf::new(PAGE_BYTES).unwrap();
        let owner = Arc::clone(&told) as Arc<dyn Owner>;
        let share = Share { owner, pieces: vec![write(&mut memory)], span: (std::ptr::null(), 0), flush: true };
        assert!(server.inbox().send(Message::Share(share), 1).is_ok());
        for _ in 0..100 {
            server.turn(false);
        }
        assert_eq!(*lock(&told.0), [None]);
    }

    /// The same for a call that a panic unwinds: it leaves when its pieces have ended.
    #[test]
    fn a_panic_brings_on_what_blocks_the_pieces_that_it_leaves() {
        let locks = Arc::<BlockLocks>::default();
        let mut context = InlineContext::new(&RealPlatform::default(), &[service()], &locks, &[]).unwrap();
        let (mut memory, unblock) = (PageBuf::new(PAGE_BYTES).unwrap(), unblock(&locks));
        let mut pieces = vec![(0, write(&mut memory))].into_iter();
        let source = std::iter::from_fn(|| Some(pieces.next().unwrap_or_else(|| panic!("a test's own"))));
        let run = AssertUnwindSafe(|| {
            // SAFETY: the memory outlives the context, and the engine touches no file.
            unsafe { context.run(&Regions::default(), (std::ptr::null(), 0), source, || unblock(), |_| ()) }
        });
        assert!(catch_unwind(run).is_err());
        assert!(locks.try_exclusive(LOCK), "the piece has ended");
    }
}

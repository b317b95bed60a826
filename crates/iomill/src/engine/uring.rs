//! The io_uring engine.
//!
//! Goals: one system call that submits and waits, and none if enough completions have come already; registered files
//! and memory; no allocation per request. Non-goals: worker threads of the kernel. Where the kernel would hand every
//! request to them, the platform chooses another engine.
//!
//! With `poll` there are two rings. One polls the device for reads and writes. The other is a plain ring for syncs, for
//! wakes, and for files on a device that cannot be polled. The thread spins only while the polling ring has requests in
//! flight. That is the price of polling.

mod files;
mod ring;

use std::collections::HashSet;
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

use io_uring::{cqueue, opcode, types};

use self::ring::{Kind, MAX_CAPACITY, Ring};
use super::posix::execute;
use super::wake::{Deadline, EventWake};
use super::{Completion, Engine, EngineConfig, EngineKind, EngineWake, IoRequest, NOT_BEGUN, Op, refused_later};
use crate::sys::notices::Notices;

/// The user data of the wake's poll; slots are 32 bits.
const WAKE: u64 = u64::MAX;

/// See the module.
pub struct UringEngine {
    main: Ring,
    polled: Option<Polled>,
    wake: Arc<EventWake>,
    /// Whether the kernel watches the wake's descriptor at the moment.
    armed: bool,
    /// Whether one poll may report many wakes (Linux 5.13).
    multishot: bool,
    /// The error after which the rings are not entered again. After an errno of the kernel, each request is a system
    /// call of its own (see `refuse`). After any other error, every `wait` returns it.
    broken: Option<io::Error>,
    /// A sync that was pushed alone, for the next `wait`.
    alone: Option<IoRequest>,
    /// Whether only one thread may use the rings.
    has_one_user: bool,
    /// Completions of requests that the rings did not take, not yet handed out.
    outside: Vec<Completion>,
    /// The place for the notice that the rings are refused. Taken when the notice is given, so that it is given once.
    notices: Option<Arc<Notices>>,
}

/// The polling ring.
struct Polled {
    ring: Ring,
    /// The requests in flight in this ring, by slot. The plain ring repeats those that cannot be polled.
    requests: Vec<Option<IoRequest>>,
    /// Requests for the plain ring, because their device cannot be polled. Empty between calls.
    unpolled: Vec<IoRequest>,
    /// Keys of files on devices that cannot be polled.
    refused: HashSet<u64>,
}

impl UringEngine {
    /// Makes the engine. It may move to another thread before its first use, but not after.
    pub fn new(config: &EngineConfig) -> io::Result<UringEngine> {
        UringEngine::with_kinds(config, if config.shared { &Kind::SHAREABLE } else { &Kind::ALL })
    }

    fn with_kinds(config: &EngineConfig, kinds: &[Kind]) -> io::Result<UringEngine> {
        if config.capacity == 0 || config.capacity > MAX_CAPACITY {
            let why = format!("io_uring cannot hold {} requests, only 1 to {MAX_CAPACITY}", config.capacity);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let polled = if config.poll { Some(Polled::new(config, kinds)?) } else { None };
        Ok(UringEngine {
            main: Ring::new(config.capacity, false, &config.hold, kinds)?,
            polled,
            wake: EventWake::new()?,
            armed: false,
            multishot: true,
            broken: None,
            alone: None,
            has_one_user: !config.shared,
            outside: Vec::new(),
            notices: None,
        })
    }

    /// Tests whether the kernel serves the engine. The calling thread becomes its user.
    pub fn try_out(&mut self) -> io::Result<()> {
        self.main.try_out()
    }

    fn in_flight(&self) -> u32 {
        let in_rings = self.main.in_flight + self.polled.as_ref().map_or(0, |polled| polled.ring.in_flight);
        in_rings + u32::from(self.alone.is_some())
    }

    /// Keeps a sync for the next `wait` if it is alone in flight, of a thread that waits for nothing else. A system call
    /// does it then. A ring would give it to a worker thread: that costs two switches of threads. And the kernel
    /// releases the request, which holds the file, a moment after its completion, in a ring of this kind only when the
    /// thread enters it the next time.
    #[cold]
    fn keep_alone(&mut self, sync: IoRequest) -> bool {
        // Others wake a thread that serves them.
        let is_alone = self.has_one_user && self.in_flight() == 0 && !EventWake::is_shared(&self.wake);
        if is_alone {
            self.alone = Some(sync);
        }
        is_alone
    }

    /// Does the sync that was pushed alone, or pushes it to the ring if other requests have come since then.
    #[cold]
    fn end_alone(&mut self, done: &mut Vec<Completion>) -> io::Result<()> {
        let Some(sync) = self.alone.take() else { return Ok(()) };
        if self.in_flight() == 0 {
            // SAFETY: it was pushed under the promise of `Engine::push` and has not completed.
            done.push(unsafe { execute(&sync) });
            return Ok(());
        }
        let mut pushed = 0;
        // SAFETY: as above.
        let result = unsafe { self.main.push(&[sync], &mut pushed) };
        if pushed == 0 {
            self.alone = Some(sync);
        }
        result
    }

    /// Queues requests in the rings, and counts them in `pushed`.
    ///
    /// # Safety
    /// As for `Engine::push`.
    unsafe fn try_push(&mut self, requests: &[IoRequest], pushed: &mut usize) -> io::Result<()> {
        self.awaken()?;
        let Some(polled) = &mut self.polled else {
            // SAFETY: the caller's promise.
            return unsafe { self.main.push(requests, pushed) };
        };
        for request in requests {
            let ring = if polled.takes(request) { &mut polled.ring } else { &mut self.main };
            // SAFETY: the caller's promise.
            unsafe { ring.push(std::slice::from_ref(request), pushed) }?;
        }
        Ok(())
    }

    /// Gives up entering the rings after an error. If the error is an errno, a filter of system calls may have been set
    /// after the engine was made. Queued requests then end with [`NOT_BEGUN`], after which the drive queue pushes them
    /// again. Requests that the kernel has taken go on.
    fn refuse(&mut self, error: io::Error) {
        if error.raw_os_error().is_some() {
            // SAFETY: it was pushed under the promise of `Engine::push` and has not completed.
            self.outside.extend(self.alone.take().map(|sync| unsafe { execute(&sync) }));
            if let Some(notices) = self.notices.take() {
                notices.push(refused_later(EngineKind::Uring, &error));
            }
            for ring in
                [Some(&mut self.main), self.polled.as_mut().map(|polled| &mut polled.ring)].into_iter().flatten()
            {
                let slots = ring.take_back().into_iter().filter(|data| *data != WAKE);
                let before = self.outside.len();
                self.outside.extend(slots.map(|slot| Completion { slot: slot as u32, result: NOT_BEGUN }));
                ring.in_flight -= (self.outside.len() - before) as u32;
            }
        }
        self.broken = Some(error);
    }

    /// Whether each request is a system call of its own, because the kernel no longer serves the rings.
    fn is_outside(&self) -> bool {
        self.broken.as_ref().is_some_and(|error| error.raw_os_error().is_some())
    }

    /// Waits until `done` has `wanted` completions, and does not enter the rings. The kernel shows the completions of
    /// accepted requests also to a thread that does not enter.
    fn wait_outside(&mut self, wanted: usize, timeout: Option<Duration>, done: &mut Vec<Completion>) -> io::Result<()> {
        let mut deadline = Deadline::new(timeout);
        let mut is_readable = false;
        loop {
            let before = done.len();
            done.append(&mut self.outside);
            self.reap(done)?;
            if let Some(polled) = &mut self.polled {
                polled.reap(done);
                // SAFETY: these requests were pushed under the promise of `Engine::push` and have not completed.
                done.extend(polled.unpolled.drain(..).map(|request| unsafe { execute(&request) }));
            }
            let left = deadline.left();
            let can_end = self.in_flight() > 0 || EventWake::is_shared(&self.wake);
            if done.len() >= wanted || left == Some(Duration::ZERO) || !can_end || self.wake.take() {
                return Ok(());
            }
            if is_readable && done.len() == before && self.in_flight() > 0 {
                // The completions have come, but this kind of ring shows them only to a thread that enters it.
                return Err(io::Error::other("the kernel reports no completions of I/O that it has accepted"));
            }
            is_readable = self.main.is_readable(self.wake.event(), left)?;
            self.wake.drain()?;
        }
    }

    fn awaken(&mut self) -> io::Result<()> {
        self.main.awaken()?;
        self.polled.as_mut().map_or(Ok(()), |polled| polled.ring.awaken())
    }

    fn try_wait(&mut self, min: usize, timeout: Option<Duration>, done: &mut Vec<Completion>) -> io::Result<()> {
        self.awaken()?;
        let wanted = done.len().saturating_add(min);
        let mut deadline = Deadline::new(timeout);
        if self.alone.is_some() {
            self.end_alone(done)?;
        }
        loop {
            self.reap(done)?;
            let missing = wanted.saturating_sub(done.len());
            let left = deadline.left();
            let sleep = missing > 0 && left != Some(Duration::ZERO) && !self.wake.take();
            let polling = self.polled.as_ref().is_some_and(|polled| polled.ring.in_flight > 0);
            if polling {
                self.poll_once(done)?;
            }
            if !sleep || polling {
                if self.main.has_business() {
                    self.main.submit()?;
                    self.reap(done)?;
                }
                if !sleep {
                    return Ok(());
                }
                continue;
            }
            let shared = EventWake::is_shared(&self.wake);
            if shared && !self.armed {
                self.arm()?;
            }
            // If only a wake can come, one event must end the wait. Otherwise the kernel would wait for more.
            let want = if shared && missing > self.main.in_flight as usize { 1 } else { missing };
            let want = u32::try_from(want).unwrap_or(u32::MAX);
            self.main.submit_and_wait(want, left)?;
        }
    }

    /// One round of the polling ring: submits, polls the device, reaps, and hands unpolled requests to the plain ring.
    fn poll_once(&mut self, done: &mut Vec<Completion>) -> io::Result<()> {
        let Some(polled) = &mut self.polled else { return Ok(()) };
        polled.ring.submit()?;
        polled.reap(done);
        let mut taken = 0;
        // SAFETY: these requests were pushed under the promise of `Engine::push` and have not completed.
        let pushed = unsafe { self.main.push(&polled.unpolled, &mut taken) };
        polled.unpolled.drain(..taken);
        pushed
    }

    /// Takes the completions that the plain ring shows. Always inlined: as a call it costs each miss 40 instructions.
    #[inline(always)]
    fn reap(&mut self, done: &mut Vec<Completion>) -> io::Result<()> {
        let before = done.len();
        let mut woken = None;
        self.main.reap(|completion| match completion.user_data() {
            WAKE => woken = Some((completion.result(), cqueue::more(completion.flags()))),
            slot => done.push(Completion { slot: slot as u32, result: completion.result() }),
        });
        self.main.in_flight -= (done.len() - before) as u32;
        let Some((result, more)) = woken else { return Ok(()) };
        self.armed = more;
        if result >= 0 {
            return self.wake.drain();
        }
        if result == -libc::EINVAL && self.multishot {
            self.multishot = false;
            return Ok(());
        }
        Err(io::Error::from_raw_os_error(-result))
    }

    /// Asks the kernel to watch the wake's descriptor.
    fn arm(&mut self) -> io::Result<()> {
        let poll = opcode::PollAdd::new(types::Fd(self.wake.raw_fd()), libc::POLLIN as u32).multi(self.multishot);
        // SAFETY: a poll uses no memory of this process.
        unsafe { self.main.push_entry(&poll.build().user_data(WAKE)) }?;
        self.armed = true;
        Ok(())
    }
}

impl Polled {
    fn new(config: &EngineConfig, kinds: &[Kind]) -> io::Result<Polled> {
        Ok(Polled {
            ring: Ring::new(config.capacity, true, &config.hold, kinds)?,
            requests: vec![None; config.capacity as usize],
            unpolled: Vec::with_capacity(config.capacity as usize),
            refused: HashSet::new(),
        })
    }

    /// Whether the polling ring takes a request. If so, `requests` holds it from now on.
    fn takes(&mut self, request: &IoRequest) -> bool {
        if request.op == Op::Sync || self.refused.contains(&request.file.key) {
            return false;
        }
        let Some(place) = self.requests.get_mut(request.slot as usize) else { return false };
        *place = Some(*request);
        true
    }

    /// Takes the ring's completions. Requests on files that cannot be polled go to `unpolled`.
    fn reap(&mut self, done: &mut Vec<Completion>) {
        let Polled { ring, requests, unpolled, refused } = self;
        let mut ended = 0;
        ring.reap(|completion| {
            ended += 1;
            let slot = completion.user_data() as u32;
            let request = requests.get_mut(slot as usize).and_then(Option::take);
            match request {
                Some(request) if completion.result() == -libc::EOPNOTSUPP => {
                    refused.insert(request.file.key);
                    unpolled.push(request);
                }
                _ => done.push(Completion { slot, result: completion.result() }),
            }
        });
        ring.in_flight -= ended;
    }
}

impl Engine for UringEngine {
    fn kind(&self) -> EngineKind {
        EngineKind::Uring
    }

    fn tell(&mut self, notices: &Arc<Notices>) {
        self.notices = Some(Arc::clone(notices));
    }

    unsafe fn push(&mut self, requests: &[IoRequest]) {
        let mut pushed = 0;
        if self.broken.is_none() {
            if let [sync @ IoRequest { op: Op::Sync, .. }] = requests
                && self.keep_alone(*sync)
            {
                return;
            }
            // SAFETY: the caller's promise.
            if let Err(error) = unsafe { self.try_push(requests, &mut pushed) } {
                self.refuse(error);
            }
        }
        if self.is_outside() {
            // SAFETY: the caller's promise.
            self.outside.extend(requests[pushed..].iter().map(|request| unsafe { execute(request) }));
        }
    }

    fn wait(&mut self, min: usize, timeout: Option<Duration>, done: &mut Vec<Completion>) -> io::Result<()> {
        let wanted = done.len().saturating_add(min);
        if self.broken.is_none() {
            match self.try_wait(min, timeout, done) {
                Ok(()) => return Ok(()),
                Err(error) => self.refuse(error),
            }
        }
        match &self.broken {
            Some(error) if error.raw_os_error().is_none() => Err(copy(error)),
            _ => self.wait_outside(wanted, timeout, done),
        }
    }

    fn waker(&self) -> Arc<dyn EngineWake> {
        Arc::clone(&self.wake) as Arc<dyn EngineWake>
    }

    fn descriptor(&self) -> Option<RawFd> {
        Some(self.main.raw_fd())
    }

    fn forget(&mut self, key: u64) {
        self.main.forget(key);
        if let Some(polled) = &mut self.polled {
            polled.ring.forget(key);
            polled.refused.remove(&key);
        }
    }

    unsafe fn register(&mut self, start: *mut u8, len: usize) -> Option<u16> {
        // SAFETY: the caller's promise.
        let region = unsafe { self.main.register(start, len) }?;
        let Some(polled) = &mut self.polled else { return Some(region) };
        // SAFETY: the caller's promise. Both tables take and free places together, so their numbers agree.
        match unsafe { polled.ring.register(start, len) } {
            Some(same) if same == region => Some(region),
            other => {
                other.into_iter().for_each(|region| polled.ring.unregister(region));
                self.main.unregister(region);
                None
            }
        }
    }

    fn unregister(&mut self, region: u16) {
        self.main.unregister(region);
        if let Some(polled) = &mut self.polled {
            polled.ring.unregister(region);
        }
    }
}

impl Drop for UringEngine {
    /// Waits for the requests in flight: after a close the kernel would still write to memory that may be freed next.
    fn drop(&mut self) {
        let mut done = Vec::new();
        while self.in_flight() > 0 && self.wait(self.in_flight() as usize, None, &mut done).is_ok() {
            done.clear();
        }
        // The kernel takes a ring down some 100 ms after its close, and holds the files, and so their file system,
        // until then. So the files are unregistered first. With requests in flight they stay: the array's lock must
        // be held as long as those.
        if self.in_flight() == 0 {
            self.main.let_go();
            self.polled.iter_mut().for_each(|polled| polled.ring.let_go());
        }
    }
}

/// A copy of an error: `io::Error` is not `Clone`. It has the same errno, or else the same kind and words.
fn copy(error: &io::Error) -> io::Error {
    error.raw_os_error().map_or_else(|| io::Error::new(error.kind(), error.to_string()), io::Error::from_raw_os_error)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsRawFd;
    use std::time::Instant;

    use super::*;
    use crate::engine::{FileRef, Memory};
    use crate::sys::fs::Handle;
    use crate::sys::memory::PageBuf;

    /// Engines as on older kernels, with their names.
    fn lesser_engines(poll: bool) -> Vec<(&'static str, UringEngine)> {
        let config = EngineConfig { capacity: 8, poll, hold: Vec::new(), shared: false };
        let mut engines = Vec::new();
        for (name, kind) in [("cooperative", Kind::Cooperative), ("interrupting", Kind::Interrupting)] {
            // There is nothing to test on machines that forbid io_uring.
            let Ok(engine) = UringEngine::with_kinds(&config, &[kind]) else { continue };
            engines.push((name, engine));
        }
        if let Ok(mut engine) = UringEngine::with_kinds(&config, &[Kind::Interrupting]) {
            engine.multishot = false;
            engine.main.timed = false;
            engines.push(("oldest", engine));
        }
        engines
    }

    /// The longest wait for a wake; a later one counts as lost.
    const LONG: Duration = Duration::from_secs(600);

    #[test]
    fn older_kernels_rings_read_and_wake_and_time_out() {
        let file = File::open(std::env::current_exe().unwrap()).unwrap();
        let file = FileRef { handle: Handle(file.as_raw_fd()), key: 1 };
        for poll in [false, true] {
            for (name, mut engine) in lesser_engines(poll) {
                let waker = engine.waker();
                let mut memory = PageBuf::new(8 * 4096).unwrap();
                let mut done = Vec::new();
                for round in 0..100 {
                    for slot in 0..8 {
                        let buf = memory.as_mut_slice()[slot as usize * 4096..].as_mut_ptr();
                        let (op, memory) = (Op::Read, Memory::one(buf));
                        let request = IoRequest { slot, op, len: 4096, file, offset: 0, memory };
                        // SAFETY: memory and file stay until all requests have completed.
                        unsafe { engine.push(&[request]) };
                    }
                    while done.len() < 8 {
                        engine.wait(8 - done.len(), Some(LONG), &mut done).unwrap();
                    }
                    assert!(done.iter().all(|completion| completion.result == 4096), "{name}: {done:?}");
                    assert_eq!(&memory.as_slice()[7 * 4096..][..4], b"\x7fELF", "{name}");
                    done.clear();
                    let begun = Instant::now();
                    std::thread::scope(|scope| {
                        scope.spawn(|| waker.wake());
                        engine.wait(2, Some(LONG), &mut done).unwrap();
                    });
                    assert!(begun.elapsed() < LONG, "{name}: wake {round} was lost");
                }
                let begun = Instant::now();
                engine.wait(1, Some(Duration::from_millis(10)), &mut done).unwrap();
                assert!(begun.elapsed() >= Duration::from_millis(10), "{name}");
                assert!(done.is_empty(), "{name}");
            }
        }
    }

    /// Requests that the kernel has taken complete. Queued requests end with `NOT_BEGUN`, and later ones are system calls.
    /// Wakes and timeouts still work.
    #[test]
    fn requests_that_the_rings_refuse_are_system_calls() {
        let file = File::open(std::env::current_exe().unwrap()).unwrap();
        let file = FileRef { handle: Handle(file.as_raw_fd()), key: 1 };
        for (name, mut engine) in lesser_engines(false) {
            let waker = engine.waker();
            let mut memory = PageBuf::new(8 * 4096).unwrap();
            let mut request = |slot: u32| {
                let buf = memory.as_mut_slice()[slot as usize * 4096..].as_mut_ptr();
                IoRequest { slot, op: Op::Read, len: 4096, file, offset: 0, memory: Memory::one(buf) }
            };
            let (taken, queued, late) = ([0, 1, 2].map(&mut request), [3, 4].map(&mut request), [5].map(&mut request));
            let mut done = Vec::new();
            // SAFETY: memory and file stay until all requests have completed.
            unsafe { engine.push(&taken) };
            engine.wait(0, None, &mut done).unwrap();
            // SAFETY: as above.
            unsafe { engine.push(&queued) };
            engine.refuse(io::Error::from_raw_os_error(libc::EPERM));
            // SAFETY: as above.
            unsafe { engine.push(&late) };
            while done.len() < 6 {
                engine.wait(6 - done.len(), Some(LONG), &mut done).unwrap();
            }
            done.sort_by_key(|completion| completion.slot);
            let results: Vec<i32> = done.drain(..).map(|completion| completion.result).collect();
            assert_eq!(results, [4096, 4096, 4096, NOT_BEGUN, NOT_BEGUN, 4096], "{name}");
            assert_eq!(engine.in_flight(), 0, "{name}");
            std::thread::scope(|scope| {
                scope.spawn(|| waker.wake());
                engine.wait(1, Some(LONG), &mut done).unwrap();
            });
            engine.wait(1, Some(Duration::from_millis(10)), &mut done).unwrap();
            assert!(done.is_empty(), "{name}");
        }
    }

    #[test]
    fn a_second_thread_is_refused() {
        let config = EngineConfig { capacity: 8, poll: false, hold: Vec::new(), shared: false };
        let Ok(mut engine) = UringEngine::with_kinds(&config, &[Kind::Deferred]) else { return };
        engine.wait(0, None, &mut Vec::new()).unwrap();
        std::thread::spawn(move || {
            let refused = engine.wait(1, Some(Duration::from_secs(1)), &mut Vec::new()).unwrap_err();
            assert!(refused.to_string().contains("another thread"), "{refused}");
            assert!(engine.wait(0, None, &mut Vec::new()).is_err(), "an engine that failed stays failed");
        })
        .join()
        .unwrap();
    }

    #[test]
    fn senseless_capacities_are_errors() {
        for capacity in [0, MAX_CAPACITY + 1, u32::MAX] {
            let refused = UringEngine::new(&EngineConfig { capacity, poll: false, hold: Vec::new(), shared: false })
                .err()
                .unwrap();
            assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
        }
    }
}

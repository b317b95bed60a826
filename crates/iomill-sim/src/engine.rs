//! The simulated engine. Requests take time on a drive's channels, end out of order, and touch memory as late as real
//! hardware may.
//!
//! Goals: depth matters, because a drive serves as many requests at a time as it has channels. Reads fill their memory
//! only at their end. Writes take their bytes at some moment between start and end. So tests notice memory that is
//! freed or reused too early, and an address sanitizer surely does. A breach of the contract of
//! [`iomill::engine::Engine`] is reported, not hidden. Non-goals: speed.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use iomill::engine::{Completion, Engine, EngineConfig, EngineKind, EngineWake, IoRequest, Memory, NO_REGION, Op};

use crate::fault::{Death, Verdict, misplaced, short_len};
use crate::flight::{Flight, Plan, Port};
use crate::image::{PAGE_BYTES, SECTOR_BYTES, granules};
use crate::memory::{Stretches, is_misaligned};
use crate::state::{Event, State};
use crate::trace::digest;
use crate::world::World;

/// The virtual time of a poll for completions. It is not 0, so that a loop that polls ends.
const POLL_NS: u64 = 300;

/// The virtual time of a request that the kernel refuses at once.
const REFUSAL_NS: u64 = 1_000;

/// The largest transfer of a request: Linux's MAX_RW_COUNT.
const LONGEST_BYTES: u32 = 0x7fff_f000;

/// The most regions of registered memory.
const REGIONS: usize = 64;

impl State {
    fn misuse(&mut self, port: u64, what: String) {
        self.note(&format!("misuse: {what}"));
        self.violations.push(what.clone());
        if let Some(port) = self.ports.get_mut(&port) {
            port.misuse.get_or_insert(what);
        }
    }

    /// The memory of a request, or how the request breaks the contract of `Engine::push`.
    fn admit(&self, port: &Port, request: &IoRequest) -> Result<Stretches, String> {
        let slot = request.slot;
        if slot >= port.capacity {
            return Err(format!("slot {slot} is not below the capacity {}", port.capacity));
        }
        if port.slots.contains(&slot) {
            return Err(format!("slot {slot} is in flight already"));
        }
        let memory = Stretches::of(request)?;
        if let Memory::One { region, .. } = request.memory
            && request.op != Op::Sync
            && region != NO_REGION
            && !port.regions.get(&region).is_some_and(|&(start, len)| memory.is_within(start, len))
        {
            return Err(format!("the memory of slot {slot} is not within region {region}"));
        }
        let reads = |other: &Flight| request.op == Op::Read || other.request.op == Op::Read;
        match self.flights.values().find(|other| reads(other) && memory.overlaps(&other.memory)) {
            Some(other) => Err(format!("the memory of slot {slot} is in use by slot {}", other.request.slot)),
            None => Ok(memory),
        }
    }

    /// The open file of a request.
    fn resolve(&mut self, id: u64, request: &IoRequest) -> Option<u64> {
        let open = self.open_id(request.file.handle).ok();
        let known = self.ports.get(&id).and_then(|port| port.files.get(&request.file.key).copied());
        match (open, known) {
            (Some(open), Some(known)) if open == known => Some(open),
            (Some(open), None) => {
                self.ports.get_mut(&id)?.files.insert(request.file.key, open);
                self.retain(open);
                Some(open)
            }
            _ => {
                let (handle, key) = (request.file.handle.0, request.file.key);
                self.violations.push(format!("handle {handle} is closed, or is not the file known by key {key}"));
                None
            }
        }
    }

    /// Accepts a request.
    fn accept(&mut self, id: u64, request: IoRequest) {
        let Some(port) = self.ports.get(&id) else { return };
        let memory = match self.admit(port, &request) {
            Ok(memory) => memory,
            Err(what) => return self.misuse(id, what),
        };
        let open = self.resolve(id, &request);
        let Some(port) = self.ports.get_mut(&id) else { return };
        port.slots.insert(request.slot);
        let Some(open) = open else {
            return port.ready.push_back(Completion { slot: request.slot, result: -libc::EBADF });
        };
        self.retain(open);
        let (drive, file) = self.opens.get(&open).map_or((0, 0), |open| (open.drive, open.file));
        let mark = self.file(drive, file).map_or(0, |file| file.mark());
        let plan = Plan::Transfer(request.len.min(LONGEST_BYTES));
        let flight = self.next_id();
        let state = Flight {
            port: id,
            request,
            memory,
            open,
            drive,
            file,
            started: false,
            plan,
            mark,
            change: None,
            taken: false,
            result: None,
        };
        self.flights.insert(flight, state);
        if self.chance.order.bool() {
            self.start(flight);
        } else if let Some(port) = self.ports.get_mut(&id) {
            port.waiting.push(flight);
        }
    }

    /// The errno of a request that the kernel refuses before any drive sees it.
    fn refusal(&self, flight: &Flight) -> Option<i32> {
        let open = self.opens.get(&flight.open)?;
        let request = &flight.request;
        if request.op == Op::Sync {
            return None;
        }
        if request.op == Op::Write && !open.access.write {
            return Some(libc::EBADF);
        }
        let end = request.offset.checked_add(u64::from(request.len));
        let misaligned = |(start, len)| is_misaligned(open.alignment, request.offset, len as u64, start);
        if end.is_none_or(|end| end > i64::MAX as u64) || flight.memory.each().any(misaligned) {
            return Some(libc::EINVAL);
        }
        None
    }

    /// Starts a request on its drive.
    fn start(&mut self, id: u64) {
        let Some(flight) = self.flights.get_mut(&id) else { return };
        flight.started = true;
        let (drive, request, kind) = (flight.drive, flight.request, flight.kind());
        let Some(open) = self.opens.get(&flight.open) else { return };
        let (path, unit) = (open.path.clone(), open.alignment.offset);
        self.count(drive, &request);
        let refusal = self.flights.get(&id).and_then(|flight| self.refusal(flight));
        let verdict = self.judge(drive, kind, &path, true);
        let short = short_len(&mut self.chance.fault, request.len, unit);
        let Some(flight) = self.flights.get_mut(&id) else { return };
        if let Some(errno) = refusal {
            flight.plan = Plan::Fail(errno);
            flight.taken = true;
            flight.result = Some(-errno);
            return self.schedule(self.now_ns + REFUSAL_NS, Event::End(id));
        }
        match verdict {
            Verdict::Go | Verdict::Beside => {}
            Verdict::Fail(errno) => flight.plan = Plan::Fail(errno),
            Verdict::Short => flight.plan = Plan::Transfer(short),
            Verdict::Lost => flight.plan = Plan::Lose(request.len),
            Verdict::Misplaced => flight.request.offset = misplaced(request.offset),
            Verdict::Crash => return self.crash(crate::Survival::Seeded),
        }
        if request.op == Op::Sync {
            let range = self.drives[drive].model.sync_latency_ns.clone();
            let end_ns = self.now_ns.saturating_add(self.draw_ns(drive, range));
            return self.schedule(end_ns, Event::End(id));
        }
        let (begin_ns, end_ns) = self.serve(drive, request.len);
        if request.op == Op::Write {
            let take_ns = self.chance.time.u64(begin_ns..=end_ns);
            self.schedule(take_ns, Event::Take(id));
        }
        self.schedule(end_ns, Event::End(id));
    }

    fn count(&mut self, index: usize, request: &IoRequest) {
        let drive = &mut self.drives[index];
        drive.in_flight += 1;
        let stats = &mut drive.stats;
        stats.peak_in_flight = stats.peak_in_flight.max(drive.in_flight);
        match request.op {
            Op::Read => {
                stats.reads += 1;
                stats.read_bytes += u64::from(request.len);
            }
            Op::Write => {
                stats.writes += 1;
                stats.write_bytes += u64::from(request.len);
            }
            Op::Sync => stats.syncs += 1,
        }
        let IoRequest { op, offset, len, slot, .. } = request;
        self.note(&format!("start {op:?} slot {slot} on {index} at {offset} len {len}"));
    }

    /// Books the channel that is free first. Returns the start and the end of the work.
    fn serve(&mut self, drive: usize, len: u32) -> (u64, u64) {
        let model = &self.drives[drive].model;
        let (range, page_ns) = (model.latency_ns.clone(), model.page_ns);
        let pages_ns = u64::from(len).div_ceil(PAGE_BYTES).saturating_mul(page_ns);
        let work_ns = self.draw_ns(drive, range.start + pages_ns..range.end + pages_ns);
        let now_ns = self.now_ns;
        let channels = &mut self.drives[drive].channels_ns;
        let Some(channel) = channels.iter_mut().min() else { return (now_ns, now_ns.saturating_add(work_ns)) };
        let begin_ns = now_ns.max(*channel);
        *channel = begin_ns.saturating_add(work_ns);
        (begin_ns, *channel)
    }

    /// A write takes its bytes and changes the volatile state of its file.
    pub fn take(&mut self, id: u64) {
        let Some(flight) = self.flights.get(&id) else { return };
        let (drive, file, offset) = (flight.drive, flight.file, flight.request.offset);
        let flight_plan = flight.plan;
        if flight.taken {
            return;
        }
        let result = match flight.plan {
            _ if self.death(drive).is_some() => Err(libc::EIO),
            Plan::Fail(errno) => Err(errno),
            Plan::Lose(len) => Ok(len as usize),
            Plan::Transfer(len) => match self.fitting(drive, file, offset, len as usize) {
                0 if len > 0 => Err(libc::ENOSPC),
                fits => Ok(fits),
            },
        };
        // SAFETY: by the contract of `Engine::push` the memory is valid until `wait` has returned the completion.
        // Flights are removed before that.
        let bytes = unsafe { flight.memory.bytes(flight.request.len as usize) };
        let dead = self.death(drive).is_some();
        let mut change = None;
        match result {
            Ok(_) if matches!(flight_plan, Plan::Lose(_)) => {}
            Ok(len) => {
                self.note(&format!("write {len} at {offset}: {:x}", digest(&bytes[..len])));
                change = self.file(drive, file).ok().map(|found| found.write(offset, &bytes[..len], true));
            }
            Err(libc::EIO) if !dead => self.damage(drive, file, offset, &bytes),
            Err(_) => {}
        }
        if let Some(flight) = self.flights.get_mut(&id) {
            flight.taken = true;
            flight.change = change;
            flight.result = Some(result.map_or_else(|errno| -errno, |len| len as i32));
        }
        // After a crash there is nothing to clean up: it has removed all flights.
        let _crashed = self.effect().is_err();
    }

    /// Changes any of the sectors of a write that fails with EIO.
    pub fn damage(&mut self, drive: usize, file: u64, offset: u64, bytes: &[u8]) {
        let fits = self.fitting(drive, file, offset, bytes.len());
        for (_, range) in granules(offset, fits, SECTOR_BYTES) {
            if self.chance.fault.bool()
                && let Some(found) = self.drives[drive].disk.files.get_mut(&file)
            {
                found.write(offset + range.start as u64, &bytes[range], false);
            }
        }
    }

    /// Lets a write reach its drive, although no engine reports its end any more.
    pub fn take_unheeded(&mut self, id: u64) {
        let Some(flight) = self.flights.get(&id) else { return };
        let (drive, file, offset) = (flight.drive, flight.file, flight.request.offset);
        let Plan::Transfer(len) = flight.plan else { return };
        if flight.request.op != Op::Write
            || flight.taken
            || self.death(drive).is_some()
            || self.refusal(flight).is_some()
        {
            return;
        }
        // SAFETY: as in `take`.
        let bytes = unsafe { flight.memory.bytes(len as usize) };
        let fits = self.fitting(drive, file, offset, bytes.len());
        let change = self.file(drive, file).ok().map(|found| found.write(offset, &bytes[..fits], true));
        if let Some(flight) = self.flights.get_mut(&id) {
            flight.taken = true;
            flight.change = change;
        }
    }

    /// Ends a request.
    pub fn end(&mut self, id: u64) {
        let Some(flight) = self.flights.remove(&id) else { return };
        if Stretches::of(&flight.request).as_ref() != Ok(&flight.memory) {
            self.misuse(flight.port, format!("the list of slot {} changed in flight", flight.request.slot));
        }
        let result = match (flight.result, flight.request.op) {
            (Some(result), _) => result,
            (None, Op::Read) => self.end_read(&flight),
            (None, Op::Write) => -libc::EIO,
            (None, Op::Sync) => match self.end_sync(&flight) {
                Some(result) => result,
                None => return,
            },
        };
        self.land(&flight);
        self.note(&format!("end {:?} slot {} result {result}", flight.request.op, flight.request.slot));
        if let Some(port) = self.ports.get_mut(&flight.port) {
            port.ready.push_back(Completion { slot: flight.request.slot, result });
        }
    }

    /// Ends the effects on other state of a request that was removed from `flights`.
    pub fn land(&mut self, flight: &Flight) {
        if let (Some(change), Ok(file)) = (flight.change, self.file(flight.drive, flight.file)) {
            file.finish(change);
        }
        if flight.started {
            self.drives[flight.drive].in_flight -= 1;
        }
        self.release(flight.open);
    }

    fn end_read(&mut self, flight: &Flight) -> i32 {
        let len = match (self.death(flight.drive), flight.plan) {
            (Some(Death::Empty), _) => return 0,
            (Some(Death::Error), _) => return -libc::EIO,
            (None, Plan::Fail(errno)) => return -errno,
            (None, Plan::Transfer(len) | Plan::Lose(len)) => len,
        };
        let mut bytes = vec![0; len as usize];
        let Ok(file) = self.file(flight.drive, flight.file) else { return -libc::EBADF };
        let read = file.now.read(flight.request.offset, &mut bytes);
        // SAFETY: by the contract of `Engine::push` the memory is valid until `wait` has returned the completion, which
        // is later. Until then no other code touches it.
        unsafe { flight.memory.fill(&bytes[..read]) };
        self.note(&format!("read {read} at {}: {:x}", flight.request.offset, digest(&bytes[..read])));
        read as i32
    }

    /// Ends a sync. `None` if the machine crashes at this sync.
    fn end_sync(&mut self, flight: &Flight) -> Option<i32> {
        if self.death(flight.drive).is_some() {
            return Some(-libc::EIO);
        }
        if let Plan::Fail(errno) = flight.plan {
            self.fail_sync(flight.drive, flight.file, errno);
            return Some(-errno);
        }
        self.effect().ok()?;
        let mark = flight.mark;
        Some(self.file(flight.drive, flight.file).map_or(-libc::EBADF, |file| {
            file.sync(mark);
            0
        }))
    }

    /// Fails a sync. After EIO dirty pages count as clean, as on Linux.
    pub fn fail_sync(&mut self, drive: usize, file: u64, errno: i32) {
        if errno == libc::EIO {
            self.lose_beside(drive, Some(file));
        }
        if errno == libc::EIO
            && let Some(file) = self.drives[drive].disk.files.get_mut(&file)
        {
            file.fail_sync(&mut self.chance.fault);
        }
    }

    /// Ends an engine that is dropped, with its requests. Writes may still reach their drives. Reads touch no memory
    /// any more.
    fn abandon(&mut self, id: u64) {
        let flights: Vec<u64> = self.flights.iter().filter(|(_, f)| f.port == id).map(|(flight, _)| *flight).collect();
        for number in flights {
            self.abandoned += 1;
            // If a test fails and unwinds, memory may be freed before the engine. The memory is not touched then, so
            // that the test's own failure is reported.
            if self.chance.crash.bool() && !std::thread::panicking() {
                self.take_unheeded(number);
            }
            if let Some(flight) = self.flights.remove(&number) {
                self.land(&flight);
            }
        }
        if let Some(port) = self.ports.remove(&id) {
            for open in port.held.into_iter().chain(port.files.into_values()) {
                self.release(open);
            }
        }
    }

    /// The loop of [`Engine::wait`].
    fn wait(&mut self, id: u64, boot: u64, min: usize, timeout: Option<Duration>) -> io::Result<Vec<Completion>> {
        self.check_boot(boot)?;
        let waiting = self.ports.get_mut(&id).map(|port| std::mem::take(&mut port.waiting)).unwrap_or_default();
        for flight in waiting {
            self.start(flight);
        }
        self.advance_to(self.now_ns + POLL_NS);
        let deadline_ns =
            timeout.map(|time| self.now_ns.saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)));
        loop {
            self.check_boot(boot)?;
            let Some(port) = self.ports.get_mut(&id) else { return Err(io::Error::other("unknown engine")) };
            if let Some(what) = &port.misuse {
                return Err(io::Error::other(format!("engine misused: {what}")));
            }
            if min == 0 || port.ready.len() >= min || port.woken {
                break;
            }
            let in_flight = port.slots.len() - port.ready.len();
            if deadline_ns.is_none() && port.slots.len() < min {
                return Err(io::Error::other(format!(
                    "simulated deadlock: waiting for {min} completions with {in_flight} requests in flight and {} \
                     ready, without a timeout, and no waker is left to wake the waiter",
                    port.ready.len()
                )));
            }
            if !self.step(deadline_ns.unwrap_or(u64::MAX)) {
                let Some(deadline_ns) = deadline_ns else {
                    return Err(io::Error::other("simulated deadlock: requests in flight will never end"));
                };
                self.now_ns = self.now_ns.max(deadline_ns);
                break;
            }
        }
        // A wake ends one wait. A wait that returns anyway may take the wake, or leave it to the next wait.
        let noticed = self.chance.order.bool();
        let Some(port) = self.ports.get_mut(&id) else { return Ok(Vec::new()) };
        port.woken &= !noticed && (min == 0 || port.ready.len() >= min);
        let done: Vec<Completion> = port.ready.drain(..).collect();
        for completion in &done {
            port.slots.remove(&completion.slot);
        }
        Ok(done)
    }
}

/// An engine of a simulated machine.
#[derive(Debug)]
pub(crate) struct SimEngine {
    world: World,
    id: u64,
    boot: u64,
    /// The slots of requests with completions that `wait` has not returned yet.
    slots: BTreeSet<u32>,
}

impl SimEngine {
    pub fn new(world: &World, boot: u64, config: &EngineConfig) -> io::Result<SimEngine> {
        if config.capacity == 0 {
            return Err(crate::errno(libc::EINVAL));
        }
        let mut state = world.state();
        state.check_boot(boot)?;
        let held = config.hold.iter().map(|handle| state.open_id(*handle)).collect::<io::Result<Vec<u64>>>()?;
        for open in &held {
            state.retain(*open);
        }
        let id = state.next_id();
        state.ports.insert(id, Port { capacity: config.capacity, held, ..Port::default() });
        drop(state);
        Ok(SimEngine { world: world.clone(), id, boot, slots: BTreeSet::new() })
    }
}

impl Engine for SimEngine {
    fn kind(&self) -> EngineKind {
        EngineKind::Simulated
    }

    unsafe fn push(&mut self, requests: &[IoRequest]) {
        let mut state = self.world.state();
        for request in requests {
            self.slots.insert(request.slot);
            state.accept(self.id, *request);
        }
    }

    fn wait(&mut self, min: usize, timeout: Option<Duration>, done: &mut Vec<Completion>) -> io::Result<()> {
        let mut state = self.world.state();
        let ended = match state.wait(self.id, self.boot, min, timeout) {
            Ok(ended) => ended,
            // The machine or the process has ended, and so have all requests. A real program would have ended, too.
            // Here its requests fail, so that the program ends by itself.
            Err(_) if state.check_boot(self.boot).is_err() && !self.slots.is_empty() => {
                self.slots.iter().map(|&slot| Completion { slot, result: -libc::EIO }).collect()
            }
            Err(error) => return Err(error),
        };
        for completion in &ended {
            self.slots.remove(&completion.slot);
        }
        done.extend(ended);
        Ok(())
    }

    fn waker(&self) -> Arc<dyn EngineWake> {
        Arc::new(SimWake { world: self.world.clone(), id: self.id })
    }

    fn forget(&mut self, key: u64) {
        let mut state = self.world.state();
        let Some(open) = state.ports.get_mut(&self.id).and_then(|port| port.files.remove(&key)) else { return };
        let busy = state.flights.values().any(|flight| flight.port == self.id && flight.request.file.key == key);
        if busy {
            state.misuse(self.id, format!("the file of key {key} is forgotten with requests in flight"));
        }
        state.release(open);
    }

    unsafe fn register(&mut self, start: *mut u8, len: usize) -> Option<u16> {
        let mut state = self.world.state();
        let port = state.ports.get_mut(&self.id)?;
        let region = (0..REGIONS as u16).find(|region| !port.regions.contains_key(region))?;
        port.regions.insert(region, (start as usize, len));
        Some(region)
    }

    fn unregister(&mut self, region: u16) {
        let mut state = self.world.state();
        let named = |memory| matches!(memory, Memory::One { region: name, .. } if name == region);
        let busy = |flight: &Flight| flight.port == self.id && named(flight.request.memory);
        if region != NO_REGION && state.flights.values().any(busy) {
            state.misuse(self.id, format!("region {region} is unregistered with requests in flight"));
        }
        if let Some(port) = state.ports.get_mut(&self.id) {
            port.regions.remove(&region);
        }
    }
}

impl Drop for SimEngine {
    fn drop(&mut self) {
        self.world.state().abandon(self.id);
    }
}

struct SimWake {
    world: World,
    id: u64,
}

impl EngineWake for SimWake {
    fn wake(&self) {
        if let Some(port) = self.world.state().ports.get_mut(&self.id) {
            port.woken = true;
        }
    }
}

//! The mmap engine: parts are mapped, and reads and writes are copies.
//!
//! Goals: no system call for bytes that are in memory, or on a device that is memory. An error of the device fails only
//! the requests that meet it. Non-goals: the best speed for data from a drive. The engine announces such reads to the
//! kernel (`ahead`), but their bytes are copied from the kernel's page cache.
//!
//! Requests that cannot be copied become system calls, in a posix engine inside this one:
//! - syncs,
//! - requests beyond the mapping or the end of the file,
//! - requests on a part that cannot be mapped, or is being mapped anew,
//! - requests with a copy that met a missing page.
//!
//! So a request's error is always the kernel's own answer to a system call. The rules are in `epochs`, `parts`, `copy`
//! and `ahead`.
//!
//! Parts must be open without direct I/O: system calls must see the bytes in the mapping.

mod ahead;
mod copy;
mod epochs;
mod mapping;
mod parts;
mod persist;

use std::collections::HashMap;
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

use ahead::{Ahead, PartStream};
use epochs::{EpochGuard, Reader};
use mapping::Mapping;
use parts::MappedPart;
pub use parts::MappedParts;
use persist::Persist;

use super::posix::PosixEngine;
use super::{Completion, Engine, EngineConfig, EngineKind, EngineWake, IoRequest, Memory, Op, Segment};
use crate::sys::fs::Handle;

/// See the module.
#[derive(Debug)]
pub struct MmapEngine {
    parts: Arc<MappedParts>,
    reader: Reader<Mapping>,
    /// The parts that this engine has used.
    known: HashMap<u64, KnownPart>,
    ahead: Ahead,
    /// Pushed requests that have not begun.
    pending: Vec<IoRequest>,
    /// Completions of copied requests, not yet handed out.
    ended: Vec<Completion>,
    /// Requests for `below`. Empty between calls.
    rest: Vec<IoRequest>,
    /// Makes the system calls.
    below: PosixEngine,
    /// The number of requests that `below` has not completed.
    below_in_flight: usize,
    /// The parts that `below` is writing to, or (on DAX) syncing, by slot.
    changing: HashMap<u32, (Op, Arc<MappedPart>)>,
    /// Whether all requests are system calls, and none is copied.
    only_system_calls: bool,
    /// Whether only parts on a device that is memory are copied. Set in a shared engine: a copy from another drive
    /// would wait for the drive.
    only_memory: bool,
}

/// An engine's state of one part.
#[derive(Debug)]
struct KnownPart {
    part: Arc<MappedPart>,
    stream: PartStream,
}

impl MmapEngine {
    /// Makes an engine. Engines with the same `parts` share their mappings.
    ///
    /// # Errors
    /// The processor or the system allows no copy that survives a failing drive.
    pub fn new(config: &EngineConfig, parts: Arc<MappedParts>) -> io::Result<MmapEngine> {
        copy::install()?;
        let capacity = config.capacity as usize;
        Ok(MmapEngine {
            reader: parts.reader(),
            parts,
            known: HashMap::new(),
            ahead: Ahead::default(),
            pending: Vec::with_capacity(capacity),
            ended: Vec::with_capacity(capacity),
            rest: Vec::with_capacity(capacity),
            below: PosixEngine::new(config)?,
            below_in_flight: 0,
            changing: HashMap::new(),
            only_system_calls: false,
            only_memory: config.shared,
        })
    }

    /// Makes an engine that does every request by a system call: for measurements and tests.
    pub fn by_system_calls(config: &EngineConfig, parts: Arc<MappedParts>) -> io::Result<MmapEngine> {
        let mut engine = MmapEngine::new(config, parts)?;
        engine.only_system_calls = true;
        Ok(engine)
    }

    /// Copies all pending requests that can be copied, and pushes the rest to `below`. Returns whether the engine was
    /// cold ([`Ahead`]).
    fn begin(&mut self) -> bool {
        if self.pending.is_empty() {
            return false;
        }
        let MmapEngine { parts, reader, known, ahead, pending, ended, rest, changing, only_memory, .. } = self;
        let is_cold = !self.only_system_calls && !*only_memory && ahead.begin();
        let guard = reader.enter();
        if is_cold {
            ask_ahead(&guard, known, pending, rest);
        }
        let mut fence: Option<Persist> = None;
        let (mut reads, mut read_bytes) = (0, 0);
        for request in pending.drain(..) {
            let key = request.file.key;
            let known =
                known.entry(key).or_insert_with(|| KnownPart { part: parts.part(key), stream: PartStream::default() });
            let part = &known.part;
            if request.op == Op::Read {
                reads += 1;
                read_bytes += u64::from(request.len);
            }
            let copied = match request.op {
                Op::Sync => sync(&guard, part, &request, changing),
                Op::Read | Op::Write if self.only_system_calls => None,
                Op::Read | Op::Write => transfer(&guard, parts, part, &request, *only_memory, &mut fence),
            };
            if let Some(result) = copied {
                ended.push(Completion { slot: request.slot, result });
                continue;
            }
            if request.op == Op::Write {
                part.bypass();
                changing.insert(request.slot, (Op::Write, Arc::clone(part)));
            }
            rest.push(request);
        }
        drop(guard);
        if !is_cold {
            ahead.end_warm(reads, read_bytes);
        }
        // The fence precedes the return of any completion. After it a sync may begin on another thread, and a fence of
        // that thread would not wait for this thread's lines.
        if let Some(persist) = fence {
            persist.fence();
        }
        if !rest.is_empty() {
            self.below_in_flight += rest.len();
            // SAFETY: the callers of `push` keep their promises until `wait` has returned the completions.
            unsafe { self.below.push(rest) };
            rest.clear();
        }
        is_cold
    }

    /// Takes in the completions of `below`.
    fn take_in(&mut self, done: &[Completion]) {
        self.below_in_flight -= done.len();
        if self.changing.is_empty() {
            return;
        }
        for completion in done {
            match self.changing.remove(&completion.slot) {
                // A sync that began before the write ended may not have covered the write.
                Some((Op::Write, part)) => part.bypass(),
                Some((_, part)) => part.end_sync(completion.result >= 0),
                None => {}
            }
        }
    }
}

/// Keeps the reads of a cold engine's batch from waiting one after the other ([`ahead`], rules 2 and 3): announces
/// several reads, and makes a single read a system call.
fn ask_ahead(
    guard: &EpochGuard<'_, Mapping>,
    known: &mut HashMap<u64, KnownPart>,
    pending: &mut Vec<IoRequest>,
    rest: &mut Vec<IoRequest>,
) {
    let is_alone = pending.len() == 1;
    let mut goes_below = false;
    for request in pending.iter().filter(|request| request.op == Op::Read) {
        // Not announced: this engine has not used the part yet, so no copy of its bytes can have waited.
        let Some(KnownPart { part, stream }) = known.get_mut(&request.file.key) else { continue };
        let is_memory = guard.current(&part.mapping).is_some_and(|mapping| mapping.persist.is_some());
        if stream.goes_on(request) || is_memory {
            continue;
        }
        match is_alone {
            true => goes_below = true,
            false => ahead::announce(request),
        }
    }
    if goes_below {
        rest.append(pending);
    }
}

/// The result of a sync without work: the lines of every write were written back before the write ended. `None` if the
/// kernel must sync.
///
/// The kernel's sync is an `fdatasync` of the file, not an `msync`. On Linux `msync` does the same for the mapped range
/// alone, and would leave out bytes that system calls wrote beyond it.
fn sync(
    guard: &EpochGuard<'_, Mapping>,
    part: &Arc<MappedPart>,
    request: &IoRequest,
    changing: &mut HashMap<u32, (Op, Arc<MappedPart>)>,
) -> Option<i32> {
    guard.current(&part.mapping)?.persist?;
    if !part.begin_sync(request.file.handle) {
        return Some(0);
    }
    changing.insert(request.slot, (Op::Sync, Arc::clone(part)));
    None
}

/// Copies a request and returns its result; `None` if it must become a system call.
fn transfer(
    guard: &EpochGuard<'_, Mapping>,
    parts: &MappedParts,
    part: &MappedPart,
    request: &IoRequest,
    only_memory: bool,
    fence: &mut Option<Persist>,
) -> Option<i32> {
    let end = request.offset.checked_add(u64::from(request.len))?;
    let covers = |mapping: &&Mapping| end <= mapping.len();
    let mapping = match guard.current(&part.mapping).filter(covers) {
        Some(mapping) => mapping,
        None => {
            parts.cover(guard, part, request.file, end);
            guard.current(&part.mapping).filter(covers)?
        }
    };
    if (request.op == Op::Write && !mapping.is_writable) || (only_memory && mapping.persist.is_none()) {
        return None;
    }
    let one;
    let segments: &[Segment] = match request.memory {
        Memory::One { buf, .. } => {
            one = [Segment { buf, len: request.len as usize }];
            &one
        }
        // SAFETY: the list is valid and stays as it is until the request has completed (contract of `push`).
        Memory::Scatter { list, count } => unsafe { std::slice::from_raw_parts(list, usize::from(count)) },
    };
    let mut offset = request.offset;
    for &Segment { buf, len } in segments {
        let here = mapping.at(offset);
        // SAFETY: the handler is installed (`new`). The segments add up to the request's length. The request ends
        // within the mapping, which stays while this reader is inside. The other memory is valid for the request
        // (contract of `push`). No Rust reference to bytes of a mapping is ever made.
        let missing = unsafe {
            match request.op {
                Op::Write => copy::copy(here, buf, len),
                _ => copy::copy(buf, here, len),
            }
        };
        if missing > 0 {
            // The file was cut, or its drive fails: the system call that repeats the whole request reports which.
            mapping.distrust();
            return None;
        }
        if let (Op::Write, Some(persist)) = (request.op, mapping.persist) {
            // SAFETY: the range is in the mapping, and this thread has just copied to it.
            if !unsafe { persist.write_back(here, len) } {
                mapping.distrust();
                return None;
            }
            *fence = Some(persist);
        }
        offset += len as u64;
    }
    Some(i32::try_from(request.len).unwrap_or(i32::MAX))
}

/// Describes how a drive's files are mapped, or fails if they cannot be mapped. `probe` is a file on the drive with at
/// least one byte.
pub(super) fn examine(probe: Handle) -> io::Result<&'static str> {
    copy::install()?;
    let mapping = Mapping::new(probe, 1)?;
    Ok(match (mapping.is_writable, mapping.persist) {
        (_, Some(_)) => {
            "mapped parts were asked for: this file system is memory (DAX), and cache lines are written back"
        }
        _ => "mapped parts were asked for: reads and writes are copies to and from the kernel's page cache",
    })
}

impl Engine for MmapEngine {
    fn kind(&self) -> EngineKind {
        EngineKind::Mmap
    }

    unsafe fn push(&mut self, requests: &[IoRequest]) {
        self.pending.extend_from_slice(requests);
    }

    fn wait(&mut self, min: usize, timeout: Option<Duration>, done: &mut Vec<Completion>) -> io::Result<()> {
        let was_cold = self.begin();
        let copied = self.ended.len();
        done.append(&mut self.ended);
        let mut result = Ok(());
        if copied < min || copied == 0 || self.below_in_flight > 0 {
            let first = done.len();
            result = self.below.wait(min.saturating_sub(copied), timeout, done);
            self.take_in(&done[first..]);
        }
        if was_cold {
            self.ahead.end_cold();
        }
        result
    }

    fn waker(&self) -> Arc<dyn EngineWake> {
        self.below.waker()
    }

    fn descriptor(&self) -> Option<RawFd> {
        self.below.descriptor()
    }

    fn forget(&mut self, key: u64) {
        self.known.remove(&key);
        self.parts.forget(key);
    }
}

impl Drop for MmapEngine {
    /// Unmaps the parts that no other engine uses.
    fn drop(&mut self) {
        for (key, known) in self.known.drain() {
            self.parts.leave(key, known.part);
        }
    }
}

#[cfg(test)]
mod tests;

//! A lane: operations one after the other, with one in flight at a time. Lanes run concurrently.

use std::future::{Future, poll_fn};
use std::hint::black_box;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Instant;

use hdrhistogram::Histogram;
use iomill::sys::memory::PageBuf;
use iomill::{Array, Buffer, Error, File, IoBuffer, IoBytes, Result};

use crate::contender::latencies;
use crate::pattern::{self, PAGE_BYTES};
use crate::slots::TIMED_EVERY;
use crate::threads::Count;

/// After this many operations a lane yields to other lanes. Tasks of a runtime with ready operations do the same.
const TURN: u64 = 64;

/// One operation.
#[derive(Clone, Copy, Debug)]
pub struct Op {
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Whether it writes.
    pub write: bool,
}

/// The operations of a lane.
pub type Ops = Box<dyn Iterator<Item = Op> + Send>;

/// A lane as a future. It resolves to its number of operations.
pub type Lane = Pin<Box<dyn Future<Output = Result<u64>> + Send>>;

/// The common state of all lanes of a thread.
#[derive(Debug)]
pub struct Shared {
    file: File,
    op_bytes: usize,
    seed: u64,
    writes: bool,
    verify: bool,
    stop: Arc<AtomicBool>,
    latency_ns: Mutex<Histogram<u64>>,
}

/// The work of a flyer in a slice.
pub(crate) struct Load<'a> {
    pub(crate) array: &'a Array,
    pub(crate) file: &'a File,
    pub(crate) op_bytes: usize,
    /// The seed of the pattern that the file holds.
    pub(crate) seed: u64,
    /// Some operations write, so only the stamps of pages can be checked.
    pub(crate) writes: bool,
}

/// The lanes of one thread.
pub struct Flights {
    lanes: Vec<(Ops, Memory)>,
    shared: Arc<Shared>,
}

impl Flights {
    pub(super) fn new(
        load: &Load<'_>,
        ops: Vec<Ops>,
        is_registered: bool,
        verify: bool,
        stop: Arc<AtomicBool>,
    ) -> Result<Flights> {
        let shared = Shared {
            file: load.file.clone(),
            op_bytes: load.op_bytes,
            seed: load.seed,
            writes: load.writes,
            verify,
            stop,
            latency_ns: Mutex::new(latencies()?),
        };
        let lane = |ops| Ok((ops, Memory::new(load, is_registered)?));
        Ok(Flights { lanes: ops.into_iter().map(lane).collect::<Result<_>>()?, shared: Arc::new(shared) })
    }

    pub(super) fn shared(&self) -> Arc<Shared> {
        Arc::clone(&self.shared)
    }

    /// The operations by lane and their memory, for drivers that do not use futures.
    pub(super) fn into_parts(self) -> (Vec<(Ops, Memory)>, Arc<Shared>) {
        (self.lanes, self.shared)
    }

    /// The lanes as futures.
    pub fn futures(self) -> Vec<Lane> {
        let shared = self.shared;
        let lanes = self.lanes.into_iter().enumerate();
        lanes.map(|(index, (ops, memory))| Box::pin(lane(Arc::clone(&shared), ops, memory, index)) as Lane).collect()
    }
}

/// The memory of a lane's operation, at the edge of a page.
#[derive(Debug)]
pub(super) enum Memory {
    /// The engines know it, so the kernel need not pin its pages for each operation.
    Registered(Buffer),
    Plain(PageBuf),
}

impl Memory {
    fn new(load: &Load<'_>, is_registered: bool) -> Result<Memory> {
        let failed = |e: std::io::Error| Error::Tool { what: "memory for a lane".into(), why: e.to_string() };
        let mut memory = match is_registered {
            true => Memory::Registered(load.array.buffer(load.op_bytes)?),
            false => Memory::Plain(PageBuf::new(load.op_bytes).map_err(failed)?),
        };
        // The pages come before the clock starts, also for less than a page.
        memory.as_mut_slice().fill(1);
        pattern::fill_to_write(memory.as_mut_slice());
        Ok(memory)
    }

    pub(super) fn as_slice(&self) -> &[u8] {
        match self {
            Memory::Registered(buffer) => buffer,
            Memory::Plain(memory) => memory.as_slice(),
        }
    }

    fn as_mut_slice(&mut self) -> &mut [u8] {
        match self {
            Memory::Registered(buffer) => buffer,
            Memory::Plain(memory) => memory.as_mut_slice(),
        }
    }
}

// SAFETY: the bytes are a mapping of the struct, so they stay where they are when it moves. Nothing else refers to them.
unsafe impl IoBytes for Memory {
    fn bytes(&self) -> *const [u8] {
        self.as_slice()
    }
}

// SAFETY: as above. `memory` borrows exclusively.
unsafe impl IoBuffer for Memory {
    fn memory(&mut self) -> *mut [u8] {
        self.as_mut_slice()
    }
}

/// When a lane fails, it ends the other lanes too.
async fn lane(shared: Arc<Shared>, ops: Ops, memory: Memory, index: usize) -> Result<u64> {
    let outcome = one_by_one(&shared, ops, memory, index).await;
    if outcome.is_err() {
        shared.stop();
    }
    outcome
}

async fn one_by_one(shared: &Shared, ops: Ops, mut bytes: Memory, index: usize) -> Result<u64> {
    let mut timer = Started::new(index);
    let mut done = 0;
    for op in ops {
        let started = timer.start();
        if op.write {
            shared.stamp(op.offset, bytes.as_mut_slice());
            bytes = shared.file.write_at_async(bytes, op.offset).await?;
        } else {
            let (read, count) = shared.file.read_at_async(bytes, op.offset).await?;
            shared.check(op.offset, &read.as_slice()[..count])?;
            bytes = black_box(read);
        }
        shared.record(started);
        done += 1;
        // Checked after the operation: on a busy machine the slice may end before the thread starts, and each lane must
        // still do one.
        if shared.is_over() {
            break;
        }
        if done % TURN == 0 {
            let_others_go_on().await;
        }
    }
    Ok(done)
}

async fn let_others_go_on() {
    let mut gone = false;
    poll_fn(|context| {
        if gone {
            return Poll::Ready(());
        }
        gone = true;
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Times one operation in [`TIMED_EVERY`].
#[derive(Debug)]
pub(super) struct Started {
    until_timed: u32,
}

impl Started {
    /// Lanes start at different counts, so that short slices also time some operations.
    pub(super) fn new(lane: usize) -> Started {
        Started { until_timed: 1 + lane as u32 % TIMED_EVERY }
    }

    #[inline(always)]
    pub(super) fn start(&mut self) -> Option<Instant> {
        self.until_timed -= 1;
        if self.until_timed > 0 {
            return None;
        }
        self.until_timed = TIMED_EVERY;
        Some(Instant::now())
    }
}

impl Shared {
    /// Ends all lanes.
    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    pub(super) fn op_bytes(&self) -> usize {
        self.op_bytes
    }

    /// The bytes that a lane writes; empty if no lane writes.
    pub(super) fn bytes_to_write(&self) -> Vec<u8> {
        let mut bytes = vec![0; if self.writes { self.op_bytes } else { 0 }];
        pattern::fill_to_write(&mut bytes);
        bytes
    }

    /// Puts on each page the stamp of its position.
    pub(super) fn stamp(&self, offset: u64, bytes: &mut [u8]) {
        for (page, bytes) in (offset / PAGE_BYTES as u64..).zip(bytes.chunks_exact_mut(PAGE_BYTES)) {
            bytes[..8].copy_from_slice(&pattern::stamp(self.seed, page).to_le_bytes());
        }
    }

    /// Checks that all bytes were read, and their content if the slice verifies.
    #[inline]
    pub(super) fn check(&self, offset: u64, read: &[u8]) -> Result<()> {
        let is_whole = read.len() == self.op_bytes;
        match is_whole && (!self.verify || is_right(self.seed, self.writes, offset, read)) {
            true => Ok(()),
            false => Err(pattern::wrong(self.file.name(), "block", offset)),
        }
    }

    #[inline]
    pub(super) fn record(&self, started: Option<Instant>) {
        if let Some(started) = started {
            let mut latency_ns = self.latency_ns.lock().unwrap_or_else(PoisonError::into_inner);
            latency_ns.saturating_record(started.elapsed().as_nanos() as u64);
        }
    }

    /// Adds the latencies of the timed operations to a count.
    pub(super) fn give_latencies(&self, count: &mut Count) {
        count.latency_ns += &*self.latency_ns.lock().unwrap_or_else(PoisonError::into_inner);
    }
}

/// Whether all bytes read are the pattern. In pages that a contender writes only the stamps are checked.
fn is_right(seed: u64, only_stamps: bool, offset: u64, bytes: &[u8]) -> bool {
    if !only_stamps {
        return pattern::holds(seed, offset, bytes);
    }
    let pages = (offset / pattern::PAGE_BYTES as u64..).zip(bytes.chunks(pattern::PAGE_BYTES));
    pages.into_iter().all(|(page, bytes)| pattern::stamp_in(bytes) == Some(pattern::stamp(seed, page)))
}

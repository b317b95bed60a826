//! iomill's asynchronous calls: futures and callbacks, with a number of operations in flight from each thread.
//!
//! Goals: the calls that a program without a runtime would write, in one loop that does nothing else. Other runtimes
//! drive the same operations through [`Driver`]. Non-goals: several tasks in one `submit`; each operation is a call.

mod callbacks;
mod chains;
pub(crate) mod executor;
mod lane;
mod way;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use iomill::Result;

use crate::contender::{
    IOMILL_CALLBACK_1, IOMILL_CALLBACK_64, IOMILL_CALLBACK_512, IOMILL_CHAIN_1, IOMILL_CHAIN_64, IOMILL_CHAIN_512,
    IOMILL_FUTURE_1, IOMILL_FUTURE_64, IOMILL_FUTURE_64_PLAIN, IOMILL_FUTURE_512, Sample, Slice,
};
use crate::threads::{self, Count};
pub(crate) use lane::Load;
pub use lane::{Flights, Lane, Op, Ops};
pub use way::{Driver, Way};

/// One of iomill's asynchronous ways, with a fixed number of operations in flight.
#[derive(Clone, Debug)]
pub struct Flyer {
    name: &'static str,
    way: Arc<dyn Way>,
    in_flight: usize,
    /// Whether the lanes' memory is registered with the engines, as that of io_uring by hand is.
    is_registered: bool,
}

impl Flyer {
    /// A way with that name. Each lane reads into a [`iomill::Buffer`].
    pub fn new(name: &'static str, way: Arc<dyn Way>, in_flight: usize) -> Flyer {
        Flyer { name, way, in_flight: in_flight.max(1), is_registered: true }
    }

    /// Futures and callbacks on this crate's own loops.
    pub fn all() -> Vec<Flyer> {
        let futures: Arc<dyn Way> = Arc::new(executor::BlockOn);
        let callbacks: Arc<dyn Way> = Arc::new(callbacks::Callbacks);
        let chains: Arc<dyn Way> = Arc::new(chains::Chains);
        vec![
            Flyer::new(IOMILL_FUTURE_1, futures.clone(), 1),
            Flyer::new(IOMILL_FUTURE_64, futures.clone(), 64),
            Flyer::new(IOMILL_FUTURE_512, futures, 512),
            Flyer::new(IOMILL_CALLBACK_1, callbacks.clone(), 1),
            Flyer::new(IOMILL_CALLBACK_64, callbacks.clone(), 64),
            Flyer::new(IOMILL_CALLBACK_512, callbacks, 512),
            Flyer::new(IOMILL_CHAIN_1, chains.clone(), 1),
            Flyer::new(IOMILL_CHAIN_64, chains.clone(), 64),
            Flyer::new(IOMILL_CHAIN_512, chains, 512),
        ]
    }

    /// Futures into memory that is not registered. Through a cache that makes no difference.
    pub fn plain() -> Flyer {
        Flyer { is_registered: false, ..Flyer::new(IOMILL_FUTURE_64_PLAIN, Arc::new(executor::BlockOn), 64) }
    }

    /// Its name in reports.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The number of operations that a thread has in flight.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// A note for the reader of the figures.
    pub(crate) fn note(&self) -> String {
        let memory = if self.is_registered { "registered" } else { "plain" };
        format!("{} in flight per thread, each a call of its own, into {memory} memory", self.in_flight)
    }

    /// Runs one slice. Each thread calls `set_up` before the clock starts, and `begin` when it starts to work. `ops`
    /// makes the operations of a lane, given its index and the number of lanes.
    pub(crate) fn run(
        &self,
        slice: &Slice<'_>,
        load: &Load<'_>,
        set_up: impl Fn(usize) -> Result<()> + Sync,
        ops: impl Fn(usize, usize) -> Result<Ops> + Sync,
        begin: impl Fn() + Sync,
    ) -> Result<Sample> {
        let stop = Arc::new(AtomicBool::new(false));
        let lanes = slice.threads.max(1) * self.in_flight;
        let set_up = |thread: usize| {
            set_up(thread)?;
            let own = thread * self.in_flight..(thread + 1) * self.in_flight;
            let ops = own.map(|lane| ops(lane, lanes)).collect::<Result<Vec<Ops>>>()?;
            let flights = Flights::new(load, ops, self.is_registered, slice.verify, Arc::clone(&stop))?;
            let shared = flights.shared();
            // The first call may start threads and rings. This read starts them before the clock starts.
            executor::block_on_all(vec![load.file.read_async(0, load.op_bytes)])
                .into_iter()
                .try_for_each(|read| read.map(drop))?;
            Ok((self.way.driver(flights)?, shared))
        };
        threads::run_told(
            &stop,
            slice,
            set_up,
            || Ok(()),
            |(driver, shared), _| {
                begin();
                let mut count = Count::new()?;
                count.ops = driver.drive()?;
                count.bytes = count.ops * load.op_bytes as u64;
                shared.give_latencies(&mut count);
                Ok(count)
            },
        )
    }
}

#[cfg(test)]
mod tests;

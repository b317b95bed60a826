//! iomill's futures on tokio's runtimes: each lane is a task.
//!
//! Goals: the costs for a program that already has a runtime. The runtime is made before the clock starts.
//! Non-goals: tuning of tokio.

use std::sync::Arc;

use crate::asynchronous::{Driver, Flights, Flyer, Lane, Way};
use iomill::{Error, Result};
use tokio::runtime::{Builder, Runtime};

/// Names of these ways: one, 64 and 512 operations in flight.
const CURRENT_THREAD: [(&str, usize); 3] =
    [("iomill-tokio-current-1", 1), ("iomill-tokio-current-64", 64), ("iomill-tokio-current-512", 512)];
const DRIVEN: [(&str, usize); 3] =
    [("iomill-tokio-driven-1", 1), ("iomill-tokio-driven-64", 64), ("iomill-tokio-driven-512", 512)];
const MULTI_THREAD: [(&str, usize); 3] =
    [("iomill-tokio-multi-1", 1), ("iomill-tokio-multi-64", 64), ("iomill-tokio-multi-512", 512)];

/// The kind of runtime.
#[derive(Clone, Copy, Debug)]
enum Tokio {
    /// The measuring thread polls the tasks.
    CurrentThread,
    /// The same, and its reactor waits for the drives: [`iomill::drive_by_tokio`].
    Driven,
    /// Threads of the runtime poll the tasks, one for each CPU.
    MultiThread,
}

impl Tokio {
    fn runtime(self) -> Result<Runtime> {
        let made = match self {
            Tokio::CurrentThread => Builder::new_current_thread().build(),
            Tokio::Driven => Builder::new_current_thread().enable_io().build(),
            Tokio::MultiThread => Builder::new_multi_thread().build(),
        };
        let runtime = made.map_err(|e| Error::Tool { what: "a runtime of tokio".into(), why: e.to_string() })?;
        if let Tokio::Driven = self {
            iomill::drive_by_tokio(runtime.handle())?;
        }
        Ok(runtime)
    }
}

impl Way for Tokio {
    fn driver(&self, flights: Flights) -> Result<Box<dyn Driver>> {
        Ok(Box::new(Tasks { runtime: self.runtime()?, lanes: flights.futures() }))
    }
}

struct Tasks {
    runtime: Runtime,
    lanes: Vec<Lane>,
}

impl Driver for Tasks {
    fn drive(&mut self) -> Result<u64> {
        let Tasks { runtime, lanes } = self;
        let lanes: Vec<_> = std::mem::take(lanes).into_iter().map(|lane| runtime.spawn(lane)).collect();
        runtime.block_on(async {
            let mut done = Ok(0);
            for lane in lanes {
                let ended = lane
                    .await
                    .unwrap_or_else(|e| Err(Error::Tool { what: "a task of tokio".into(), why: e.to_string() }));
                done = done.and_then(|done| Ok(done + ended?));
            }
            done
        })
    }
}

/// All ways of both kinds.
pub fn flyers() -> Vec<Flyer> {
    let of = |names: [(&'static str, usize); 3], tokio: Tokio| {
        let way: Arc<dyn Way> = Arc::new(tokio);
        names.map(|(name, in_flight)| Flyer::new(name, Arc::clone(&way), in_flight))
    };
    [of(CURRENT_THREAD, Tokio::CurrentThread), of(DRIVEN, Tokio::Driven), of(MULTI_THREAD, Tokio::MultiThread)].concat()
}

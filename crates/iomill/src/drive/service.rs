//! [`Service`]: the service of a drive, and the fallbacks if an engine cannot be made, or has failed.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use super::Batching;
use crate::counters::Meter;
use crate::engine::{Engine, EngineKind};
use crate::sys::fs::Alignment;

/// How one drive is served.
#[derive(Clone, Debug)]
pub struct Service {
    /// The engine.
    pub kind: EngineKind,
    /// The alignment that I/O on its parts needs.
    pub align: Alignment,
    /// Slots in flight at most.
    pub depth: u32,
    /// The options for waiting pieces.
    pub batching: Batching,
    /// Poll for completions.
    pub poll: bool,
    /// The counters of its queues, if any.
    pub meter: Option<Meter>,
}

/// The engines without a ring, the best first.
const INSTEAD_OF_RINGS: [EngineKind; 2] = [EngineKind::Aio, EngineKind::Posix];

/// What `make` makes for services. A ring may find too little locked memory: the kernel counts that of all rings of a
/// user together, so other processes may hold it. Where `may_change`, another engine then serves in place of the ring,
/// and `notice` is called.
pub fn with_rings_or_without<T>(
    services: &[Service],
    may_change: bool,
    notice: &dyn Fn(String),
    make: impl Fn(&[Service]) -> io::Result<T>,
) -> io::Result<T> {
    let has_rings = services.iter().any(|service| service.kind == EngineKind::Uring);
    let error = match make(services) {
        Err(error) if has_rings && may_change && error.kind() == io::ErrorKind::OutOfMemory => error,
        made => return made,
    };
    for kind in INSTEAD_OF_RINGS {
        let changed = |service: &Service| match service.kind {
            // Without direct I/O `io_submit` does each request before it takes the next.
            EngineKind::Uring if !service.align.is_direct() => Service { kind: EngineKind::Posix, ..service.clone() },
            EngineKind::Uring => Service { kind, ..service.clone() },
            _ => service.clone(),
        };
        if let Ok(made) = make(&services.iter().map(changed).collect::<Vec<_>>()) {
            notice(format!("some threads use {kind}: {error}"));
            return Ok(made);
        }
    }
    Err(error)
}

/// Has an engine forget a file that is being closed. This happens before the next use of the engine, on behalf of
/// operations that have no part in the file. So a panic of the engine ends here: at worst it keeps the closed file.
pub(super) fn forget(engine: &mut dyn Engine, key: u64) {
    // The panic message has been printed.
    let _ = catch_unwind(AssertUnwindSafe(|| engine.forget(key)));
}

/// Ends I/O in a drop, perhaps in a panic: a second one would end the process, so a panic of the engine counts as a
/// failure, and `end` goes on.
pub(super) fn end_in_drop(mut end: impl FnMut()) {
    let mut failures = 0;
    while catch_unwind(AssertUnwindSafe(&mut end)).is_err() {
        give_up_after(&mut failures, &io::Error::other("it panics"));
    }
}

/// The engine reports nothing any more, while the kernel may still write to memory. After a while only the end of the
/// process is safe. This has no known cause on a working kernel.
pub(super) fn give_up_after(failures: &mut u32, error: &io::Error) {
    /// A panic cannot leave an `extern "C"` function: its message is printed, and the process ends.
    extern "C" fn give_up(error: &io::Error) {
        panic!("iomill: an engine no longer reports the ends of I/O in flight ({error}); memory is not safe any more");
    }
    *failures += 1;
    if *failures > 10_000 {
        give_up(error);
    }
    std::thread::sleep(Duration::from_millis(1));
}

//! [`Raised`]: a flag of the calling thread. [`Thread`]: a thread of the library for rooms that must run in a simulation, too, and
//! so ask the platform for threads first ([`Platform::threads`](crate::engine::platform::Platform::threads)).

use std::cell::Cell;
use std::io;
use std::thread::{Builder, JoinHandle, LocalKey};

/// Keeps a flag of the calling thread set until this is dropped, also by a panic. Then the flag is as it was before.
pub struct Raised {
    flag: &'static LocalKey<Cell<bool>>,
    before: bool,
}

impl Raised {
    /// Sets the flag.
    pub fn new(flag: &'static LocalKey<Cell<bool>>) -> Raised {
        Raised { flag, before: flag.replace(true) }
    }
}

impl Drop for Raised {
    fn drop(&mut self) {
        self.flag.set(self.before);
    }
}

/// A thread that was started. It goes on when this is dropped.
#[derive(Debug)]
pub struct Thread(JoinHandle<()>);

impl Thread {
    /// Starts a thread with a name, which has at most 15 bytes.
    pub fn start(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<Thread> {
        Builder::new().name(name.to_owned()).spawn(work).map(Thread)
    }

    /// Waits until it has ended. A panic has been printed by then.
    pub fn join(self) {
        let _panicked = self.0.join();
    }
}

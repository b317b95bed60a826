//! [`Raised`]: a flag of the calling thread. [`Thread`]: a thread of the library, for rooms that also run in a
//! simulation. These rooms first ask whether they may have threads
//! ([`Platform::threads`](crate::engine::platform::Platform::threads)).

use std::cell::Cell;
use std::io;
use std::thread::{Builder, JoinHandle, LocalKey};

/// Keeps a flag of the calling thread set. Its drop, also in a panic, restores the flag's value from before.
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

/// A started thread. A drop does not end the thread.
#[derive(Debug)]
pub struct Thread(JoinHandle<()>);

impl Thread {
    /// Starts a thread with a name, which has at most 15 bytes.
    pub fn start(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<Thread> {
        Builder::new().name(name.to_owned()).spawn(work).map(Thread)
    }

    /// Waits for the thread's end. The runtime has printed a panic by then.
    pub fn join(self) {
        let _panicked = self.0.join();
    }
}

//! [`Apart`]: a system call that may never end, in a thread of its own. The caller waits for it within a bound. The
//! call itself cannot be cancelled, so its thread stays until the system answers. Rule D3 of `docs/origin.md`.
//! Non-goals: reads of granules, which have futures (`bounded`).

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread;
use std::time::Instant;

/// See the module.
#[derive(Debug)]
pub struct Apart<T>(Receiver<T>);

impl<T: Send + 'static> Apart<T> {
    /// Begins a call.
    pub fn begin(call: impl FnOnce() -> T + Send + 'static) -> io::Result<Apart<T>> {
        let (sender, receiver) = sync_channel(1);
        let run = move || {
            // A result that comes too late is dropped here.
            let _in_time = sender.send(call());
        };
        thread::Builder::new().name("iomill-apart".into()).spawn(run)?;
        Ok(Apart(receiver))
    }

    /// The result of the call. `None`: the call has not ended before `end`.
    pub fn wait_until(&self, end: Instant) -> io::Result<Option<T>> {
        match self.0.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(brought) => Ok(Some(brought)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(io::Error::other("its thread has panicked")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_call_is_waited_for_until_the_end_and_one_that_panics_is_an_error() {
        let soon = || Instant::now() + Duration::from_secs(600);
        assert_eq!(Apart::begin(|| 7).unwrap().wait_until(soon()).unwrap(), Some(7));
        let (end, ended) = sync_channel::<()>(1);
        let hangs = Apart::begin(move || ended.recv().is_ok()).unwrap();
        assert_eq!(hangs.wait_until(Instant::now() + Duration::from_millis(5)).unwrap(), None);
        end.send(()).unwrap();
        assert_eq!(hangs.wait_until(soon()).unwrap(), Some(true));
        let panics = Apart::begin(|| -> u8 { panic!("on purpose") }).unwrap();
        assert!(panics.wait_until(soon()).is_err());
    }
}

//! The null engine: completes every request at once, and touches neither memory nor files.
//!
//! Goals: measuring the cost of everything above an engine. Non-goals: data; reads leave the buffer as it was.

use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use super::wake::Deadline;
use super::{Completion, Engine, EngineConfig, EngineKind, EngineWake, IoRequest, Op};

/// See the module.
#[derive(Debug)]
pub struct NullEngine {
    /// Completions that no `wait` has handed out yet.
    ended: Vec<Completion>,
    wake: Arc<NullWake>,
}

#[derive(Debug, Default)]
struct NullWake {
    pending: Mutex<bool>,
    changed: Condvar,
}

impl NullEngine {
    /// Makes a null engine.
    pub fn new(config: &EngineConfig) -> NullEngine {
        NullEngine { ended: Vec::with_capacity(config.capacity as usize), wake: Arc::default() }
    }
}

impl EngineWake for NullWake {
    fn wake(&self) {
        *self.pending.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_one();
    }
}

impl Engine for NullEngine {
    fn kind(&self) -> EngineKind {
        EngineKind::Null
    }

    unsafe fn push(&mut self, requests: &[IoRequest]) {
        self.ended.extend(requests.iter().map(|request| {
            let result = if request.op == Op::Sync { 0 } else { i32::try_from(request.len).unwrap_or(i32::MAX) };
            Completion { slot: request.slot, result }
        }));
    }

    fn wait(&mut self, min: usize, timeout: Option<Duration>, done: &mut Vec<Completion>) -> io::Result<()> {
        let enough = self.ended.len() >= min;
        done.append(&mut self.ended);
        if enough {
            return Ok(());
        }
        // Nothing is ever in flight: only a wake or the timeout can end this.
        let mut deadline = Deadline::new(timeout);
        let mut pending = self.wake.pending.lock().unwrap_or_else(PoisonError::into_inner);
        while !*pending {
            pending = match deadline.left() {
                Some(left) if left.is_zero() => return Ok(()),
                Some(left) => self.wake.changed.wait_timeout(pending, left).unwrap_or_else(PoisonError::into_inner).0,
                None => self.wake.changed.wait(pending).unwrap_or_else(PoisonError::into_inner),
            };
        }
        *pending = false;
        Ok(())
    }

    fn waker(&self) -> Arc<dyn EngineWake> {
        Arc::clone(&self.wake) as Arc<dyn EngineWake>
    }
}

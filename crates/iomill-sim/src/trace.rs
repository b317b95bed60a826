//! A record of all events: a hash, which is the same for all runs of one seed, and the last events in words.

use std::collections::VecDeque;
use std::fmt::Write as _;

use twox_hash::XxHash3_64;

/// The number of events that are kept in words.
const KEPT: usize = 1000;

#[derive(Debug, Default)]
pub(crate) struct Trace {
    hash: u64,
    count: u64,
    last: VecDeque<String>,
}

impl Trace {
    /// Adds an event. `event` must be the same in every run: no address, no real time.
    pub fn add(&mut self, now_ns: u64, event: &str) {
        self.hash = XxHash3_64::oneshot_with_seed(self.hash ^ now_ns, event.as_bytes());
        self.count += 1;
        if self.last.len() == KEPT {
            self.last.pop_front();
        }
        self.last.push_back(format!("{:>14} ns  {event}", now_ns));
    }

    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// The last events, one a line.
    pub fn tail(&self) -> String {
        let mut text = String::new();
        if self.count > self.last.len() as u64 {
            let _ = writeln!(text, "({} earlier events)", self.count - self.last.len() as u64);
        }
        for line in &self.last {
            text.push_str(line);
            text.push('\n');
        }
        text
    }
}

/// The digest of data, so that events with different data differ.
pub(crate) fn digest(bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot(bytes)
}

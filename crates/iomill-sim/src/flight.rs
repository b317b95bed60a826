//! Engines and requests as the simulated machine sees them: plain data.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use iomill::engine::{Completion, IoRequest, Op};

use crate::fault::Kind;
use crate::memory::Stretches;

/// The world's side of one engine.
#[derive(Debug, Default)]
pub(crate) struct Port {
    pub capacity: u32,
    /// Slots with completions that have not come out of `wait` yet.
    pub slots: BTreeSet<u32>,
    /// Requests that were pushed but not started.
    pub waiting: Vec<u64>,
    pub ready: VecDeque<Completion>,
    pub woken: bool,
    /// The open files that the engine refers to: those that it holds on request, and those that it knows by key.
    pub held: Vec<u64>,
    pub files: BTreeMap<u64, u64>,
    /// Start and length of registered memory.
    pub regions: BTreeMap<u16, (usize, usize)>,
    /// The first breach of contract; `wait` fails from then on.
    pub misuse: Option<String>,
}

/// One request in flight.
#[derive(Debug)]
pub(crate) struct Flight {
    pub port: u64,
    pub request: IoRequest,
    /// Where the request's bytes were when the request came.
    pub memory: Stretches,
    pub open: u64,
    pub drive: usize,
    pub file: u64,
    pub started: bool,
    pub plan: Plan,
    /// For a sync: it covers what had completed before this tick of the file.
    pub mark: u64,
    /// For a write that has taken its bytes: its number in the file.
    pub change: Option<u64>,
    pub taken: bool,
    /// The result, if it is decided before the end.
    pub result: Option<i32>,
}

/// What is decided about a request before it ends.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Plan {
    Transfer(u32),
    Fail(i32),
}

impl Flight {
    pub fn kind(&self) -> Kind {
        match self.request.op {
            Op::Read => Kind::Read,
            Op::Write => Kind::Write,
            Op::Sync => Kind::Sync,
        }
    }
}

//! The simulated machine's data on engines and requests in flight.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use iomill::engine::{Completion, IoRequest, Op};

use crate::fault::Kind;
use crate::memory::Stretches;

/// The world's side of one engine.
#[derive(Debug, Default)]
pub(crate) struct Port {
    pub capacity: u32,
    /// The slots of requests with completions that `wait` has not returned yet.
    pub slots: BTreeSet<u32>,
    /// Pushed requests that have not started.
    pub waiting: Vec<u64>,
    pub ready: VecDeque<Completion>,
    pub woken: bool,
    /// The open files of `EngineConfig::hold`.
    pub held: Vec<u64>,
    /// The open files that the engine knows, by their keys.
    pub files: BTreeMap<u64, u64>,
    /// The start and length of registered memory, by region.
    pub regions: BTreeMap<u16, (usize, usize)>,
    /// The first breach of the engine's contract. From then on `wait` fails.
    pub misuse: Option<String>,
}

/// One request in flight.
#[derive(Debug)]
pub(crate) struct Flight {
    pub port: u64,
    pub request: IoRequest,
    /// The request's memory when it was pushed.
    pub memory: Stretches,
    pub open: u64,
    pub drive: usize,
    pub file: u64,
    pub started: bool,
    pub plan: Plan,
    /// For a sync: the tick of the file before which completed writes are covered.
    pub mark: u64,
    /// For a write that has taken its bytes: its number in the file.
    pub change: Option<u64>,
    /// For a write: whether it has taken its bytes.
    pub taken: bool,
    /// The result, if it is decided before the end.
    pub result: Option<i32>,
}

/// The planned outcome of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Plan {
    Transfer(u32),
    Fail(i32),
    /// This number of bytes counts as written, and is not.
    Lose(u32),
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

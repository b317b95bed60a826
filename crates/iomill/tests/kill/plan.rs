//! The operations of a writer, from a seed. The writer performs them, and the test that kills it follows. Both have a
//! planner, so a line through the pipe need only carry the writer's position.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use fastrand::Rng;
use iomill::engine::EngineKind;
use iomill::{ArrayOptions, FileOptions, Layout, Remote, Topology, Tuning};

pub const PAGE: u64 = 4096;

/// Threads of a writer. Each has its own names, and at most one operation in progress; the outcome of every other
/// operation is known. They share the array, its drives and the catalog.
pub const WORKERS: usize = 2;

/// Longest file in bytes.
const MAX: u64 = 48 * PAGE;

/// Names per worker.
const NAMES: [&str; 5] = ["a", "b", "c", "deep/d", "deep/e"];

/// How ranges are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// `write_ranges`.
    Ranges,
    /// `write_many`; all ranges have one length.
    Many,
    /// `write_vectored_at`; one range, from three slices.
    Vectored,
    /// `submit` of one task for each range: always by the drive threads.
    Submit,
}

/// Bytes to write: `stamp` makes them from the version and their offset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    pub call: Call,
    /// Never used twice.
    pub version: u64,
    /// Offset and length in bytes; none overlap.
    pub ranges: Vec<(u64, u64)>,
    /// From memory that starts at a page, so that whole pages go without a bounce.
    pub aligned_memory: bool,
}

impl Write {
    /// The end of the last range.
    pub fn end(&self) -> u64 {
        self.ranges.iter().map(|(offset, len)| offset + len).max().unwrap_or(0)
    }
}

/// How a file is laid out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    pub kind: Layout,
    pub block_bytes: u32,
    pub drives: Vec<u16>,
}

impl Shape {
    pub fn file_options(&self) -> FileOptions {
        FileOptions::new().layout(self.kind).block_bytes(self.block_bytes).drives(self.drives.clone())
    }
}

/// One operation of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    Create {
        name: String,
        shape: Shape,
    },
    Open {
        name: String,
    },
    Close {
        name: String,
    },
    Delete {
        name: String,
    },
    Rename {
        from: String,
        to: String,
        replaces: bool,
    },
    /// A whole content, blocking or by a future.
    Put {
        name: String,
        shape: Shape,
        version: u64,
        len: u64,
        replaces: bool,
        waits: bool,
    },
    Attribute {
        name: String,
        value: u64,
    },
    SetLen {
        name: String,
        from: u64,
        to: u64,
    },
    Write {
        name: String,
        write: Write,
    },
    /// A sync, and beside it a write.
    Race {
        name: String,
        write: Write,
    },
    Sync {
        name: String,
    },
}

impl Op {
    /// The names that the operation changes.
    pub fn names(&self) -> Vec<&String> {
        match self {
            Op::Rename { from, to, .. } => vec![from, to],
            Op::Create { name, .. }
            | Op::Open { name }
            | Op::Close { name }
            | Op::Delete { name }
            | Op::Put { name, .. }
            | Op::Attribute { name, .. }
            | Op::SetLen { name, .. }
            | Op::Write { name, .. }
            | Op::Race { name, .. }
            | Op::Sync { name } => vec![name],
        }
    }

    /// The kind, for the count of interrupted operations.
    pub fn kind(&self) -> &'static str {
        match self {
            Op::Create { .. } => "create",
            Op::Open { .. } => "open file",
            Op::Close { .. } => "close file",
            Op::Delete { .. } => "delete",
            Op::Rename { replaces: false, .. } => "rename",
            Op::Rename { replaces: true, .. } => "rename over a file",
            Op::Put { replaces: false, .. } => "put",
            Op::Put { replaces: true, .. } => "put over a file",
            Op::Attribute { .. } => "set_attribute",
            Op::SetLen { from, to, .. } if to < from => "set_len, shrinking",
            Op::SetLen { from, to, .. } if to > from => "set_len, growing",
            Op::SetLen { .. } => "set_len to the same",
            Op::Write { write, .. } if write.call == Call::Submit => "write by submit",
            Op::Write { write, .. } if write.call == Call::Many => "write_many",
            Op::Write { .. } => "write",
            Op::Race { .. } => "write beside a sync",
            Op::Sync { .. } => "sync",
        }
    }
}

/// The kinds that a run of some length must interrupt at least once.
pub const KINDS: [&str; 13] = [
    "create",
    "put",
    "put over a file",
    "delete",
    "rename",
    "rename over a file",
    "set_len, shrinking",
    "set_len, growing",
    "write",
    "write_many",
    "write by submit",
    "write beside a sync",
    "sync",
];

/// The bytes of a version at an offset of its file: cells of 16 bytes, with version and offset of the cell. So every
/// page shows which write made each of its bytes, and where they belong.
pub fn stamp(version: u64, offset: u64, len: u64) -> Vec<u8> {
    let first = offset / 16 * 16;
    let cells = (first..offset + len).step_by(16);
    let bytes: Vec<u8> = cells.flat_map(|cell| [version.to_le_bytes(), cell.to_le_bytes()].concat()).collect();
    bytes[(offset - first) as usize..][..len as usize].to_vec()
}

/// How the writer of a round opens the array.
pub fn options(rng: &mut Rng) -> (ArrayOptions, String) {
    let drive_threads = rng.bool();
    let asked = [EngineKind::Aio, EngineKind::Posix, EngineKind::Mmap].map(Some);
    let engine = [None, None, None, asked[0], asked[1], asked[2], asked[2]][rng.usize(..7)];
    let depth = [4, 32][rng.usize(..2)];
    // No cache, small caches with evictions, and a cache that holds everything.
    let cache_bytes = [0, 12 * PAGE, 48 * PAGE, 1 << 24][rng.usize(..4)];
    // A node has one set of 12 pages at least.
    let nodes = if cache_bytes < 48 * PAGE { 1 } else { [1, 2, 4][rng.usize(..3)] };
    let remote = [Remote::Auto, Remote::Message][rng.usize(..2)];
    let name = format!(
        "drive threads {drive_threads}, engine {engine:?}, depth {depth}, cache {cache_bytes}, {nodes} nodes, {remote:?}"
    );
    let options =
        ArrayOptions::new().tuning(Tuning::new().drive_threads(drive_threads)).depth(depth).cache_bytes(cache_bytes);
    let options = options.with_tuning(|tuning| tuning.topology(Topology::Emulate(nodes)).remote(remote));
    (if let Some(engine) = engine { options.engine(engine) } else { options }, name)
}

#[derive(Clone, Debug)]
struct Entry {
    len: u64,
    open: bool,
}

/// A worker's position in its plan.
#[derive(Clone, Debug)]
pub struct Planner {
    rng: Rng,
    worker: usize,
    /// Version of the next write.
    version: u64,
    drives: u16,
    files: BTreeMap<String, Entry>,
    /// Names that are no longer used.
    forgotten: BTreeSet<String>,
    /// Operations that must come first.
    queue: VecDeque<Op>,
}

impl Planner {
    /// The plan of a worker of a round, given the lengths of its files.
    pub fn new(seed: u64, round: u64, worker: usize, drives: u16, files: BTreeMap<String, u64>) -> Planner {
        let files = files.into_iter().map(|(name, len)| (name, Entry { len, open: false })).collect();
        let rng =
            Rng::with_seed(seed ^ (round * WORKERS as u64 + worker as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let version = 1 + (round << 32 | (worker as u64) << 24);
        Planner { rng, worker, version, drives, files, forgotten: BTreeSet::new(), queue: VecDeque::new() }
    }

    /// The next operation, while there are names. The planner assumes its success. After a failure its names are no
    /// longer used.
    pub fn next(&mut self) -> Option<Op> {
        let op = loop {
            match self.queue.pop_front() {
                Some(op) => break op,
                None if self.files.is_empty() && self.forgotten.len() == NAMES.len() => return None,
                None => self.plan(),
            }
        };
        self.take(&op);
        Some(op)
    }

    /// The operation has failed, so the state of its files is unknown.
    pub fn forget(&mut self, op: &Op) {
        self.queue.clear();
        for name in op.names() {
            self.files.remove(name);
            self.forgotten.insert(name.clone());
        }
    }

    fn take(&mut self, op: &Op) {
        let files = &mut self.files;
        match op {
            Op::Create { name, .. } => drop(files.insert(name.clone(), Entry { len: 0, open: true })),
            Op::Open { name } => files.get_mut(name).unwrap().open = true,
            Op::Close { name } => files.get_mut(name).unwrap().open = false,
            Op::Delete { name } => drop(files.remove(name)),
            Op::Rename { from, to, .. } => {
                let entry = files.remove(from).unwrap();
                files.insert(to.clone(), entry);
            }
            Op::SetLen { name, to, .. } => files.get_mut(name).unwrap().len = *to,
            Op::Write { name, write } | Op::Race { name, write } => {
                let entry = files.get_mut(name).unwrap();
                entry.len = entry.len.max(write.end());
            }
            Op::Put { name, len, .. } => drop(files.insert(name.clone(), Entry { len: *len, open: false })),
            Op::Attribute { .. } | Op::Sync { .. } => {}
        }
    }

    /// Queues an operation and the operations that must come before it. Queues nothing if it would change nothing.
    fn plan(&mut self) {
        let free: Vec<String> = NAMES
            .iter()
            .map(|name| format!("w{}/{name}", self.worker))
            .filter(|name| !self.files.contains_key(name) && !self.forgotten.contains(name))
            .collect();
        let names: Vec<String> = self.files.keys().cloned().collect();
        let dice = if names.len() < 2 { 0 } else { self.rng.u32(..100) };
        if dice < 9 && !free.is_empty() {
            let name = free[self.rng.usize(..free.len())].clone();
            let shape = self.shape();
            return self.queue.push_back(Op::Create { name, shape });
        }
        let name = names[self.rng.usize(..names.len())].clone();
        match dice {
            ..9 | 24..28 => {
                self.close(&name);
                self.queue.push_back(Op::Delete { name });
            }
            9..24 => {
                let other = names.iter().find(|other| **other != name).cloned().unwrap_or_else(|| name.clone());
                let replaces = free.is_empty() || self.rng.bool();
                let to = if replaces { other } else { free[self.rng.usize(..free.len())].clone() };
                self.close(&name);
                if replaces {
                    self.close(&to);
                }
                self.queue.push_back(Op::Rename { from: name, to, replaces });
            }
            28..35 => {
                let replaces = free.is_empty() || self.rng.bool();
                if replaces {
                    self.close(&name);
                }
                let name = if replaces { name } else { free[self.rng.usize(..free.len())].clone() };
                let put = self.put(name, replaces);
                self.queue.push_back(put);
            }
            35..38 => {
                let value = self.next_version();
                self.queue.push_back(Op::Attribute { name, value });
            }
            38..40 => self.close(&name),
            _ => {
                let entry = &self.files[&name];
                let len = entry.len;
                if !entry.open {
                    self.queue.push_back(Op::Open { name: name.clone() });
                }
                let op = self.plan_data(name, dice, len);
                self.queue.push_back(op);
            }
        }
    }

    fn close(&mut self, name: &str) {
        if self.files[name].open {
            self.queue.push_back(Op::Close { name: name.to_owned() });
        }
    }

    /// An operation on an open file.
    fn plan_data(&mut self, name: String, dice: u32, len: u64) -> Op {
        match dice {
            ..52 => {
                let to = match self.rng.u32(..10) {
                    0 => 0,
                    1 => len,
                    2..6 => self.rng.u64(..=len),
                    _ => self.rng.u64(len..=MAX.max(len)),
                };
                let to = if self.rng.bool() { to } else { to / PAGE * PAGE };
                Op::SetLen { name, from: len, to }
            }
            52..80 => Op::Write { name, write: self.write(len) },
            80..90 => Op::Race { name, write: self.write(len) },
            _ => {
                // A write first, to give the sync work.
                let write = self.write(len);
                self.queue.push_back(Op::Write { name: name.clone(), write });
                Op::Sync { name }
            }
        }
    }

    fn put(&mut self, name: String, replaces: bool) -> Op {
        let max = [2 * PAGE, MAX][self.rng.usize(..2)];
        let len = self.rng.u64(..=max);
        Op::Put { name, shape: self.shape(), version: self.next_version(), len, replaces, waits: self.rng.bool() }
    }

    fn next_version(&mut self) -> u64 {
        self.version += 1;
        self.version - 1
    }

    fn shape(&mut self) -> Shape {
        let kind = [Layout::Striping, Layout::Rotated, Layout::Hash][self.rng.usize(..3)];
        let block_bytes = [4096, 8192, 16384][self.rng.usize(..3)];
        let mut drives: Vec<u16> = (0..self.drives).collect();
        self.rng.shuffle(&mut drives);
        if self.rng.u8(..3) == 0 {
            drives.truncate(self.rng.usize(1..=drives.len()));
        }
        Shape { kind, block_bytes, drives }
    }

    fn write(&mut self, len: u64) -> Write {
        let call = [Call::Ranges, Call::Many, Call::Many, Call::Vectored, Call::Submit][self.rng.usize(..5)];
        let ranges = match call {
            Call::Vectored => vec![self.range(len)],
            Call::Ranges if self.rng.bool() => vec![self.range(len)],
            Call::Many => self.scatter(len, true),
            Call::Ranges | Call::Submit => self.scatter(len, false),
        };
        Write { call, version: self.next_version(), ranges, aligned_memory: self.rng.bool() }
    }

    /// One range: whole pages or any bytes, within the file, over its end or beyond.
    fn range(&mut self, len: u64) -> (u64, u64) {
        let offset = if self.rng.u8(..3) == 0 { len.min(MAX - PAGE) } else { self.rng.u64(..MAX - PAGE) };
        let end = offset + 1 + self.rng.u64(..(MAX - offset).min(20 * PAGE));
        if self.rng.bool() {
            let first = offset / PAGE * PAGE;
            return (first, end.next_multiple_of(PAGE) - first);
        }
        (offset, end - offset)
    }

    /// Many ranges, each in its own page; or two ranges in one page, which two pieces then change at the same time.
    fn scatter(&mut self, len: u64, same: bool) -> Vec<(u64, u64)> {
        let beyond = if self.rng.bool() { 0 } else { 8 };
        let pages = (len.div_ceil(PAGE) + beyond).clamp(4, MAX / PAGE);
        let mut chosen: Vec<u64> = (0..pages).collect();
        self.rng.shuffle(&mut chosen);
        chosen.truncate(self.rng.usize(1..=chosen.len()));
        let small = self.rng.u64(1..=PAGE / 2);
        let mut ranges = Vec::new();
        let all_whole = self.rng.bool();
        for page in chosen {
            let whole = if same { all_whole } else { self.rng.bool() };
            if whole {
                ranges.push((page * PAGE, PAGE));
                continue;
            }
            let record = if same { small } else { self.rng.u64(1..=PAGE / 2) };
            ranges.push((page * PAGE + self.rng.u64(..=PAGE / 2 - record), record));
            if self.rng.bool() {
                ranges.push(((page + 1) * PAGE - PAGE / 2 + self.rng.u64(..=PAGE / 2 - record), record));
            }
        }
        ranges
    }
}

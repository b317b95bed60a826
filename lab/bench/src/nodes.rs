//! The cost of pages on other NUMA nodes. The same reads run on one node; on several nodes with direct access to remote
//! pages or with messages; and on caching nodes without drives.
//!
//! Goals: hits and misses, from single pages to large batches, in one run.
//! Non-goals: rivals, which do not know nodes.

use std::fmt;
use std::sync::atomic::AtomicBool;

use iomill::{ArrayOptions, Error, FileOptions, Remote, Result, Topology};

use crate::access::Access;
use crate::arena::{Arena, Shape};
use crate::bench::Stage;
use crate::cached::Accesses;
use crate::contender::{Cache, Contender, Sample, Slice};
use crate::draw::Choice;
use crate::machine::Machine;
use crate::pattern::PAGE_BYTES;
use crate::report::Report;
use crate::rounds::{self, Plan, Turns, WARM_UP};
use crate::task::{Finds, Task};

/// iomill on one node, for any machine.
pub const ONE_NODE: &str = "iomill-one-node";
/// Direct access to pages of other nodes.
pub const DIRECT: &str = "iomill-direct";
/// Access to pages of other nodes by message.
pub const MESSAGE: &str = "iomill-message";
/// Access to pages of other nodes by iomill's default choice.
pub const AUTO: &str = "iomill-auto";
/// The first half of the nodes has the cache, the second half owns the drives.
pub const APART: &str = "iomill-apart";

/// The same number of emulated nodes on a machine with several nodes. Memory is not bound to them.
pub const EMULATED: &str = "iomill-emulated";

/// For hits the cache is this many times as large as the data. For misses the data is this many times as large as the
/// cache.
const CACHE_OVER_SIZE: u64 = 4;
const SIZE_OVER_CACHE: u64 = 8;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Length of the measured file in bytes. For hits all of it is in memory.
    pub size_bytes: u64,
    /// How iomill opens the array. The measurement sets the nodes, the cache's size and the access itself.
    pub options: ArrayOptions,
    /// The topology, with several nodes.
    pub topology: Topology,
    /// The numbers of its nodes.
    pub nodes: Vec<usize>,
    /// Pages per call; one measurement each.
    pub batches: Vec<u32>,
    /// How turns are taken.
    pub turns: Turns,
}

/// Random reads of whole pages, several per call. All are hits, or almost none is.
#[derive(Clone, Copy, Debug)]
pub struct Reads {
    hits: bool,
    access: Access,
}

impl fmt::Display for Reads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}x4KiB", if self.hits { "hits" } else { "misses" }, self.access.batch)
    }
}

impl Task for Reads {
    fn check(&self) -> Result<()> {
        self.access.check()
    }

    fn finds(&self) -> Option<Finds> {
        self.access.finds()
    }
}

/// A way to open the array, which does the work of [`Accesses`].
struct Way(Accesses);

impl Contender<Reads> for Way {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn cache(&self) -> Cache {
        self.0.cache()
    }

    fn prepare(&mut self, reads: &Reads) -> Result<Option<String>> {
        self.0.prepare(&reads.access)
    }

    fn run(&mut self, slice: &Slice<'_>) -> Result<Sample> {
        self.0.run(slice)
    }

    fn notes(&self) -> Vec<String> {
        self.0.notes()
    }
}

/// Measures on `arena`. `cancel` ends it soon; the report then has the complete rounds only.
pub fn run(
    arena: &mut Arena,
    settings: &Settings,
    cancel: &AtomicBool,
    stage: &mut dyn FnMut(Stage),
) -> Result<Report> {
    if settings.nodes.len() < 2 {
        let why = "there is nothing to compare; give a topology of several nodes, such as `emulate:4`";
        return Err(Error::invalid("one node", why));
    }
    let shape = Shape { len_bytes: settings.size_bytes, layout: FileOptions::new() };
    arena.fill(&shape, cancel, &mut |done, total| stage(Stage::Filling(done, total)))?;
    let machine = Machine::look(arena.target()?.parts());
    let mut contenders = contenders(arena, settings)?;
    let plans = settings.plans();
    let measured = rounds::run_each(&mut contenders, plans, &mut |at| stage(Stage::Measuring(at)), cancel)?;
    Ok(Report { baselines: &[ONE_NODE, DIRECT], ..Report::new(machine, &measured) })
}

fn contenders(arena: &Arena, settings: &Settings) -> Result<Vec<Box<dyn Contender<Reads>>>> {
    let (caching, owning) = settings.nodes.split_at(settings.nodes.len() / 2);
    let options = || settings.options.clone().with_tuning(|tuning| tuning.topology(settings.topology));
    let mut ways = vec![
        (ONE_NODE, options().with_tuning(|tuning| tuning.topology(Topology::One))),
        (DIRECT, options().with_tuning(|tuning| tuning.remote(Remote::Direct))),
        (MESSAGE, options().with_tuning(|tuning| tuning.remote(Remote::Message))),
        (AUTO, options()),
        (APART, options().with_tuning(|tuning| tuning.cache_nodes(caching).io_nodes(owning))),
    ];
    if settings.topology == Topology::Machine {
        let emulated = Topology::Emulate(settings.nodes.len());
        ways.push((EMULATED, options().with_tuning(|tuning| tuning.topology(emulated))));
    }
    let way = |(name, options)| Ok(Box::new(Way(Accesses::named(name, arena, &options)?)) as Box<dyn Contender<Reads>>);
    ways.into_iter().map(way).collect()
}

impl Settings {
    fn plans(&self) -> Vec<Plan<Reads>> {
        let page = PAGE_BYTES as u32;
        let access = |hits, batch| Access {
            choice: Choice::Uniform,
            slot_bytes: page,
            op_bytes: page,
            read_percent: 100,
            len_bytes: self.size_bytes,
            cache_bytes: if hits { self.size_bytes * CACHE_OVER_SIZE } else { self.size_bytes / SIZE_OVER_CACHE },
            batch,
        };
        let reads = [true, false]
            .into_iter()
            .flat_map(|hits| self.batches.iter().map(move |&batch| Reads { hits, access: access(hits, batch) }));
        reads.flat_map(|reads| self.turns.plans(reads, WARM_UP)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use iomill::CacheOptions;
    use std::time::Duration;

    static NEVER: AtomicBool = AtomicBool::new(false);

    fn settings(count: usize) -> Settings {
        Settings {
            size_bytes: 8 << 20,
            // Sets so large that none overflows while a quarter of the cache is in use. With sets of 4 pages a few in a
            // thousand reads miss.
            options: ArrayOptions::new().cache(CacheOptions::new().set_pages(16)),
            topology: Topology::Emulate(count),
            nodes: (0..count).collect(),
            batches: vec![1, 32],
            turns: Turns { threads: vec![2], rounds: 1, slice: Duration::from_millis(60) },
        }
    }

    #[test]
    fn each_contender_hits_and_misses_as_its_cache_says() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let arena = Arena::fresh(&dir.path().join("array"), 2).unwrap();
        let report = arena.measured(|arena| run(arena, &settings(4), &NEVER, &mut |_| ())).unwrap();
        assert!(report.left_out.is_empty() && report.results.len() == 4 * 5, "{report:?}");
        for row in &report.results {
            let percent = row.hit_percent.unwrap();
            // On a busy machine a slice may have only a few dozen reads, so that by chance more than an eighth hit.
            // Allow five standard deviations.
            let ops = (row.ops_per_s * 0.06).max(1.0);
            let share = 1.0 / SIZE_OVER_CACHE as f64;
            let most = 100.0 * (share + 0.05 + 5.0 * (share * (1.0 - share) / ops).sqrt());
            let as_meant = if row.workload.starts_with("hits-") { percent == 100.0 } else { percent < most };
            assert!(as_meant, "{} {}: {percent}% of {ops} operations, {most}", row.contender, row.workload);
        }
        let workloads = ["hits-1x4KiB", "hits-32x4KiB", "misses-1x4KiB", "misses-32x4KiB"];
        assert!(workloads.iter().all(|name| report.results.iter().any(|row| row.workload == *name)));
    }

    #[test]
    fn one_node_is_refused() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let arena = Arena::fresh(&dir.path().join("array"), 2).unwrap();
        let error = arena.measured(|arena| run(arena, &settings(1), &NEVER, &mut |_| ())).unwrap_err().to_string();
        assert!(error.contains("emulate:4"), "{error}");
    }
}

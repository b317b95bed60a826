//! What a hit costs: random reads of small records that are all in memory, from one contender after the other.
//!
//! Goals: the figure that decides whether a cache in user space is worth it, beside that of a mapped file. Non-goals:
//! misses, writes.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use iomill::{Error, Result};

use crate::arena::{Arena, SEED};
use crate::bench::{Rivals, Stage};
use crate::contender::{Contender, MMAP};
use crate::flat::FlatFile;
use crate::machine::{self, Machine};
use crate::pattern::PAGE_BYTES;
use crate::records::{Data, RecordReads, Skew};
use crate::report::Report;
use crate::rivals::caches::{Cached, Foyer, Moka, Pages, QuickCache};
use crate::rivals::resident::Resident;
use crate::rounds::{self, Plan};
use crate::target::{Part, Target};

/// How often all bytes are in memory at once: in the page cache, as pages of the crates, and in iomill's cache.
const COPIES: u64 = 3;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Bytes that are read from, all of them in memory.
    pub size_bytes: u64,
    /// Which records; one measurement each.
    pub skews: Vec<Skew>,
    /// How many threads; one measurement each.
    pub threads: Vec<usize>,
    /// Records per call of those that take many.
    pub batch: u32,
    /// Timed slices per contender.
    pub rounds: usize,
    /// Length of a slice.
    pub slice: Duration,
    /// Who takes part beside iomill.
    pub rivals: Rivals,
}

impl Settings {
    fn plans(&self) -> Vec<Plan<RecordReads>> {
        let plan = |skew: Skew, threads: usize| Plan {
            workload: RecordReads { skew, batch: self.batch },
            threads,
            rounds: self.rounds,
            slice: self.slice,
            warm_up: self.slice.min(Duration::from_millis(300)),
        };
        self.skews.iter().flat_map(|&skew| self.threads.iter().map(move |&threads| plan(skew, threads))).collect()
    }
}

/// Measures on `arena`, and leaves nothing behind. `cancel` ends it soon; the report then has what was complete.
pub fn run(arena: Arena, settings: &Settings, cancel: &AtomicBool, stage: &mut dyn FnMut(Stage)) -> Result<Report> {
    let result = measure(&arena, settings, cancel, stage);
    let cleaned = arena.clean_up();
    let report = result?;
    cleaned?;
    Ok(report)
}

fn measure(arena: &Arena, settings: &Settings, cancel: &AtomicBool, stage: &mut dyn FnMut(Stage)) -> Result<Report> {
    let (needed, there) = (settings.size_bytes.saturating_mul(COPIES), machine::available_memory_bytes()?);
    if needed > there / 10 * 9 {
        let (needed, there) = (crate::human::size(needed), crate::human::size(there));
        let why =
            format!("{COPIES} times that, {needed}, would be in memory, and {there} is free; give a smaller --size");
        return Err(Error::invalid(format!("a size of {}", crate::human::size(settings.size_bytes)), why));
    }
    let path = arena.flat_path()?;
    let mut filling = |done, total| stage(Stage::Filling(done, total));
    let flat = FlatFile::write(path, settings.size_bytes, SEED, cancel, &mut filling)?;
    let part = Part { path: flat.path().to_owned(), len_bytes: flat.len_bytes() };
    let machine = Machine::look(&Target::new(vec![part], SEED, Target::striped(1, 1))?);
    let data = Arc::new(Data::new(flat.path().to_owned(), flat.len_bytes() / PAGE_BYTES as u64, SEED)?);
    let mut contenders = contenders(&data);
    contenders.retain(|contender| settings.rivals.include(contender.name()));
    if contenders.is_empty() {
        return Err(Error::invalid("that choice of rivals", "nobody would take part; give `all` or other names"));
    }
    let mut measured = Vec::new();
    for plan in settings.plans() {
        let one = rounds::run(&mut contenders, &plan, &mut |at| stage(Stage::Measuring(at)), cancel)?;
        let cancelled = one.cancelled;
        measured.push(one);
        if cancelled {
            break;
        }
    }
    Ok(Report { baselines: &[MMAP], ..Report::new(machine, &measured) })
}

/// Everybody who takes part.
pub fn contenders(data: &Arc<Data>) -> Vec<Box<dyn Contender<RecordReads>>> {
    let pages = Arc::new(Pages::default());
    vec![
        Box::new(Resident::mmap(data.clone())),
        Box::new(Resident::pread(data.clone())),
        Box::new(Cached::<QuickCache>::new(data.clone(), pages.clone())),
        Box::new(Cached::<Moka>::new(data.clone(), pages.clone())),
        Box::new(Cached::<Foyer>::new(data.clone(), pages)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contender::{FOYER, MOKA, PREAD, QUICK_CACHE, Slice};

    static NEVER: AtomicBool = AtomicBool::new(false);

    fn setting(seed_read: u64) -> (tempfile::TempDir, FlatFile, Vec<Box<dyn Contender<RecordReads>>>) {
        let dir = tempfile::tempdir().unwrap();
        let flat = FlatFile::write(dir.path().join("f"), 2 << 20, 3, &NEVER, &mut |_, _| ()).unwrap();
        let data = Arc::new(Data::new(flat.path().to_owned(), 512, seed_read).unwrap());
        (dir, flat, contenders(&data))
    }

    fn slice(verify: bool) -> Slice<'static> {
        Slice { threads: 2, duration: Duration::from_millis(60), verify, cancel: &NEVER }
    }

    #[test]
    fn everybody_reads_the_right_records() {
        let (_dir, _flat, mut contenders) = setting(3);
        for skew in [Skew::Uniform, Skew::Zipf] {
            for contender in &mut contenders {
                assert_eq!(contender.prepare(&RecordReads { skew, batch: 100 }).unwrap(), None);
                for verify in [true, false] {
                    let sample = contender.run(&slice(verify)).unwrap();
                    assert!(sample.ops > 100 && sample.bytes == sample.ops * 128, "{}: {sample:?}", contender.name());
                    assert!(sample.cpu_us > 0.0, "{}", contender.name());
                }
            }
        }
        let names: Vec<&str> = contenders.iter().map(|contender| contender.name()).collect();
        assert_eq!(names, [MMAP, PREAD, QUICK_CACHE, MOKA, FOYER]);
    }

    #[test]
    fn everybody_notices_wrong_bytes() {
        let (_dir, _flat, mut contenders) = setting(4);
        for contender in &mut contenders {
            contender.prepare(&RecordReads { skew: Skew::Uniform, batch: 1 }).unwrap();
            let error = contender.run(&slice(true)).unwrap_err().to_string();
            assert!(error.contains("is not what was written"), "{}: {error}", contender.name());
        }
    }
}
